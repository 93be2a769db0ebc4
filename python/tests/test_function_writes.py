"""autograd.Functions that write into their arguments (ctx.mark_dirty), and those with tensors in nested outputs."""

import pytest
import torch
from support import assert_same, randn
from torch.autograd import Function
from torch_tower import grad, hessian, jacfwd, jacrev, jvp, vjp, vmap


class Scale(Function):
    """x *= factor, in place."""

    @staticmethod
    def forward(x, factor):
        x.mul_(factor)
        return x

    @staticmethod
    def setup_context(ctx, inputs, output):
        x, factor = inputs
        assert x is output
        ctx.mark_dirty(x)
        ctx.save_for_backward(x, factor)
        ctx.save_for_forward(x, factor)

    @staticmethod
    def backward(ctx, g):
        x, factor = ctx.saved_tensors
        return g * factor, (g * x / factor).sum()

    @staticmethod
    def jvp(ctx, x_t, factor_t):
        x, factor = ctx.saved_tensors
        return x_t * factor + x / factor * factor_t


class ScaleInForward(Function):
    """The same for a forward that takes the ctx."""

    @staticmethod
    def forward(ctx, x, factor):
        x.mul_(factor)
        ctx.mark_dirty(x)
        ctx.save_for_backward(x.clone(), factor)
        return x

    backward = Scale.backward


class ScaleMapped(Scale):
    """The same with a rule for vmap."""

    @staticmethod
    def vmap(info, in_dims, x, factor):
        x = x.movedim(in_dims[0], 0) if in_dims[0] else x
        x.mul_(factor if in_dims[1] is None else factor.reshape(-1, *[1] * (x.dim() - 1)))
        return x, 0


def scaled_by(cls):
    def f(x, factor):
        y = x * 1
        z = cls.apply(y, factor)
        # Both names are of the tensor that was written to.
        return (y.sin() * z).sum()

    return f


def scaled(x, factor):
    return ((x * factor).sin() * x * factor).sum()


x, factor = randn(3), torch.tensor(1.7, dtype=torch.float64)
CLASSES = [Scale, ScaleInForward, ScaleMapped]


@pytest.mark.parametrize("cls", CLASSES)
def test_the_argument_is_written_to_and_returned(cls):
    def f(x):
        y = x * 1
        z = cls.apply(y, factor)
        assert z is y
        return y

    expected = x * factor
    assert_same(f(x), expected)
    assert_same(vmap(f)(torch.stack([x, 2 * x])), torch.stack([expected, 2 * expected]))
    assert_same(vjp(f, x)[0], expected)


@pytest.mark.parametrize("cls", CLASSES)
def test_gradients_through_a_write(cls):
    f = scaled_by(cls)
    assert_same(grad(f, (0, 1))(x, factor), grad(scaled, (0, 1))(x, factor))
    xs = torch.stack([x, x + 1])
    for in_dims in ((0, None), (0, 0)):
        args = xs, factor if in_dims[1] is None else torch.stack([factor, factor + 1])
        assert_same(vmap(grad(f, (0, 1)), in_dims)(*args), vmap(grad(scaled, (0, 1)), in_dims)(*args))
        assert_same(
            grad(lambda *a: vmap(f, in_dims)(*a).sum(), (0, 1))(*args),
            grad(lambda *a: vmap(scaled, in_dims)(*a).sum(), (0, 1))(*args),
        )


@pytest.mark.parametrize("cls", [Scale, ScaleMapped])
def test_forward_mode_and_second_derivatives_through_a_write(cls):
    f, v = scaled_by(cls), randn(3)
    assert_same(jvp(f, (x, factor), (v, factor)), jvp(scaled, (x, factor), (v, factor)))
    assert_same(hessian(f)(x, factor), hessian(scaled)(x, factor))
    assert_same(jacrev(grad(f))(x, factor), hessian(scaled)(x, factor))
    assert_same(jacfwd(grad(f))(x, factor), hessian(scaled)(x, factor))


def test_a_write_into_what_torch_records_outside():
    w = randn(3).requires_grad_()
    result = vmap(lambda f: scaled_by(Scale)(w, f))(torch.stack([factor, factor + 1]))
    result.sum().backward()
    leaf = w.detach().clone().requires_grad_()
    (scaled(leaf, factor) + scaled(leaf, factor + 1)).backward()
    assert_same(w.grad, leaf.grad)


def test_a_plain_argument_is_written_to_itself():
    plain = torch.ones(3)
    assert_same(
        grad(lambda s: Scale.apply(plain.clone(), torch.tensor(2.0)).sum() * s)(torch.tensor(1.0)), torch.tensor(6.0)
    )
    given = torch.ones(3)
    grad(lambda s: s * Scale.apply(given, torch.tensor(2.0)).sum().detach())(torch.tensor(1.0))
    assert_same(given, torch.full((3,), 2.0))


def test_a_mapped_write_into_a_captured_tensor_is_refused():
    captured = torch.ones(3)
    with pytest.raises(RuntimeError, match="captured|made outside|would write"):
        vmap(lambda f: Scale.apply(captured, f))(torch.tensor([1.0, 2.0]))
    assert_same(captured, torch.ones(3))


def test_one_of_several_arguments_is_written_to():
    class AddTo(Function):
        @staticmethod
        def forward(total, x):
            return x * 2, total.add_(x)

        @staticmethod
        def setup_context(ctx, inputs, output):
            ctx.mark_dirty(inputs[0])

        @staticmethod
        def backward(ctx, doubled, total):
            return total, 2 * doubled + total

    def f(x):
        total = torch.ones(3, dtype=x.dtype)
        doubled, same = AddTo.apply(total, x)
        assert same is total
        return (doubled * total).sum()

    expected = lambda x: (2 * x * (1 + x)).sum()
    assert_same(grad(f)(x), grad(expected)(x))
    assert_same(vmap(grad(f))(torch.stack([x, -x])), vmap(grad(expected))(torch.stack([x, -x])))


def test_wrong_marks_are_named():
    class NotReturned(Scale):
        @staticmethod
        def forward(x, factor):
            x.mul_(factor)
            return x * 1

        @staticmethod
        def setup_context(ctx, inputs, output):
            ctx.mark_dirty(inputs[0])

    class NoInput(Scale):
        @staticmethod
        def setup_context(ctx, inputs, output):
            ctx.mark_dirty(inputs[0] * 1)

    def mark(ctx, x):
        getattr(ctx, "mark" + "_dirty")(x)

    class Elsewhere(Scale):
        @staticmethod
        def setup_context(ctx, inputs, output):
            mark(ctx, inputs[0])

    class ForgottenByVmap(Scale):
        @staticmethod
        def vmap(info, in_dims, x, factor):
            return x * factor, 0

    for cls, words in (
        (NotReturned, "mark_dirty was given argument 0, which forward does not return"),
        (NoInput, "mark_dirty was given a tensor that is not an input"),
        (Elsewhere, "mark_dirty was called by a function"),
    ):
        with pytest.raises(RuntimeError, match=f"{cls.__name__}: {words}"):
            grad(lambda x: cls.apply(x * 1, factor).sum())(x)
    with pytest.raises(RuntimeError, match="ForgottenByVmap: vmap must return the arguments"):
        vmap(lambda x: ForgottenByVmap.apply(x * 1, factor))(x)


# ---- nested outputs --------------------------------------------------------------------------------------------------


class Nested(Function):
    """Tensors inside of containers among the outputs: torch's own Function hands these through as constants."""

    @staticmethod
    def forward(x):
        return x.sin(), {"cos": x.cos(), "size": 3}, [x * 2, (x * 3,)]

    @staticmethod
    def setup_context(ctx, inputs, output):
        ctx.save_for_backward(output[1]["cos"])
        ctx.save_for_forward(output[1]["cos"])

    @staticmethod
    def backward(ctx, g, in_dict, in_list):
        assert in_dict is None and in_list is None
        return g * ctx.saved_tensors[0]

    @staticmethod
    def jvp(ctx, x_t):
        return x_t * ctx.saved_tensors[0], None, None


def uses_nested(x):
    y, parts, (twice, (thrice,)) = Nested.apply(x)
    assert parts["size"] == 3
    return (y * parts["cos"] * twice * thrice).sum()


def test_tensors_in_nested_outputs_are_constants_as_in_torch():
    leaf = x.clone().requires_grad_()
    uses_nested(leaf).backward()
    assert_same(grad(uses_nested)(x), leaf.grad)
    assert_same(jacfwd(uses_nested)(x), leaf.grad)
    assert_same(uses_nested(x), x.sin().mul(x.cos()).mul(6 * x * x).sum())


def test_nested_outputs_are_mapped():
    xs = torch.stack([x, x + 1, x - 1])
    out = vmap(lambda x: Nested.apply(x)[1]["cos"])(xs)
    assert_same(out, xs.cos())
    assert_same(vmap(uses_nested)(xs), torch.stack([uses_nested(x) for x in xs]))
    assert_same(vmap(grad(uses_nested))(xs), torch.stack([grad(uses_nested)(x) for x in xs]))


def test_only_containers_as_output():
    class InADict(Function):
        @staticmethod
        def forward(ctx, x):
            return {"a": x * 2}

        @staticmethod
        def backward(ctx, g):
            raise AssertionError("nothing of it is differentiable")

    assert_same(vmap(lambda x: InADict.apply(x)["a"])(x), 2 * x)
    assert_same(grad(lambda x: (InADict.apply(x)["a"] * x).sum())(x), 2 * x)
