"""torch.autograd.Function inside transforms.

Several rules here are deliberately not the derivatives of what forward computes, so that a test sees whether the rule
was used or the implementation was differentiated.
"""

import gc
import weakref

import pytest
import torch
import torch.func
import torch_tower
from support import KeepsInputs, KeepsNothing, assert_same, randn
from torch.autograd import Function
from torch_tower import grad, hessian, jacfwd, jacrev, jvp, linear_backward, linearize, vjp, vmap


class Cube(Function):
    """x³, whose backward is said to be 5 x² and whose jvp 7 x²."""

    generate_vmap_rule = True

    @staticmethod
    def forward(x):
        return x * x * x

    @staticmethod
    def setup_context(ctx, inputs, output):
        (x,) = inputs
        ctx.save_for_backward(x)
        ctx.save_for_forward(x)

    @staticmethod
    def backward(ctx, grad):
        (x,) = ctx.saved_tensors
        return 5 * x**2 * grad

    @staticmethod
    def jvp(ctx, tangent):
        (x,) = ctx.saved_tensors
        return 7 * x**2 * tangent


class NumpySin(KeepsInputs):
    """An implementation that no transform can look into."""

    @staticmethod
    def forward(x):
        return torch.from_numpy(__import__("numpy").sin(x.numpy()))

    @staticmethod
    def backward(ctx, grad):
        return ctx.saved_tensors[0].cos() * grad

    @staticmethod
    def vmap(info, in_dims, x):
        assert info.batch_size == x.shape[in_dims[0]]
        return NumpySin.apply(x), in_dims[0]


class MulSum(Function):
    """Two tensors, a number and an option; two outputs; what backward needs is kept in attributes."""

    generate_vmap_rule = True

    @staticmethod
    def forward(x, y, scale=2.0, square=False):
        return scale * x * y, (x * x if square else x).sum(-1)

    @staticmethod
    def setup_context(ctx, inputs, output):
        ctx.x, ctx.y, ctx.scale, ctx.square = inputs
        ctx.kept = {"outputs": list(output)}

    @staticmethod
    def backward(ctx, product, total):
        assert ctx.kept["outputs"][0].shape == product.shape
        total = total.unsqueeze(-1) * (2 * ctx.x if ctx.square else torch.ones_like(ctx.x))
        gx = ctx.scale * product * ctx.y + total if ctx.needs_input_grad[0] else None
        gy = ctx.scale * product * ctx.x if ctx.needs_input_grad[1] else None
        return gx, gy, None, None

    @staticmethod
    def jvp(ctx, dx, dy, _, __):
        return ctx.scale * (dx * ctx.y + ctx.x * dy), ((2 * ctx.x if ctx.square else 1) * dx).sum(-1)


class Combined(Function):
    """The old shape: forward takes the ctx. x², whose backward is said to be 3 x."""

    @staticmethod
    def forward(ctx, x):
        ctx.save_for_backward(x)
        return x * x

    @staticmethod
    def backward(ctx, grad):
        return 3 * ctx.saved_tensors[0] * grad


def test_the_rules_are_used_at_every_level():
    x, v = randn(3), randn(3)
    f = lambda x: Cube.apply(x).sum()
    assert_same(grad(f)(x), 5 * x**2)
    assert_same(jvp(Cube.apply, (x,), (v,))[1], 7 * x**2 * v)
    assert_same(jacrev(Cube.apply)(x), (5 * x**2).diag())
    assert_same(jacfwd(Cube.apply)(x), (7 * x**2).diag())
    assert_same(grad(lambda x: grad(f)(x).sum())(x), 10 * x)
    assert_same(hessian(f)(x), (10 * x).diag())
    assert_same(linearize(Cube.apply, x)[1](v), 7 * x**2 * v)


def test_the_rules_are_used_under_vmap_in_any_order():
    x = randn(4, 3)
    assert_same(vmap(Cube.apply)(x), x**3)
    assert_same(vmap(grad(lambda x: Cube.apply(x).sum()))(x), 5 * x**2)
    assert_same(grad(lambda x: vmap(Cube.apply)(x).sum())(x), 5 * x**2)
    assert_same(grad(lambda x: vmap(vmap(Cube.apply), 1)(x).sum())(x), 5 * x**2)
    assert_same(vmap(jacfwd(Cube.apply))(x), torch.diag_embed(7 * x**2))
    assert_same(jvp(vmap(Cube.apply), (x,), (x,))[1], 7 * x**3)


def test_torch_autograd_outside_uses_them_too():
    x = randn(4, 3).requires_grad_()
    vmap(Cube.apply)(x).sum().backward()
    assert_same(x.grad, (5 * x**2).detach())
    w = randn(3).requires_grad_()
    inner = grad(lambda x: Cube.apply(x * w).sum())(x[0].detach())
    (outer,) = torch.autograd.grad(inner.sum(), w)
    a = x[0].detach()
    assert_same(outer, (15 * a**2 * w**2).detach())


def test_outside_of_transforms_nothing_changes():
    x = randn(3).requires_grad_()
    Cube.apply(x).sum().backward()
    assert_same(x.grad, (5 * x**2).detach())
    assert Cube.apply(x).grad_fn.name() == "CubeBackward"


@pytest.mark.parametrize("square", [False, True])
def test_several_arguments_and_outputs_against_torch_func(square):
    x, y = randn(4, 3), randn(3)

    def f(x, y):
        product, total = MulSum.apply(x, y, 3.0, square)
        return (product.sin().sum() * total).sum()

    for transform in ("grad", "jacrev", "jacfwd"):
        for argnums in (0, 1, (0, 1)):
            ours, theirs = (
                lib.vmap(getattr(lib, transform)(f, argnums), (0, None))(x, y) for lib in (torch_tower, torch.func)
            )
            assert_same(ours, theirs)
    assert_same(grad(f)(x, y), torch.func.grad(f)(x, y))
    assert_same(vmap(hessian(f), (0, None))(x, y), torch.func.vmap(torch.func.hessian(f), (0, None))(x, y))


def test_defaults_and_keywords_of_forward():
    x, y = randn(3), randn(3)
    f = lambda x: sum(t.sum() for t in MulSum.apply(x, y=y, square=True))
    assert_same(grad(f)(x), torch.func.grad(f)(x))


def test_forward_that_takes_the_ctx():
    x = randn(4, 3)
    assert_same(vmap(grad(lambda x: Combined.apply(x).sum()))(x), 3 * x)
    assert_same(grad(lambda x: vmap(Combined.apply)(x).sum())(x), 3 * x)
    assert_same(grad(lambda x: grad(lambda x: Combined.apply(x).sum())(x).sum())(x[0]), torch.full((3,), 3.0).double())


def test_a_vmap_staticmethod_is_used():
    x = randn(4, 3)
    assert_same(vmap(NumpySin.apply)(x), x.sin())
    assert_same(vmap(NumpySin.apply, 1)(x), x.sin().t())
    assert_same(vmap(vmap(NumpySin.apply))(x), x.sin())
    assert_same(vmap(grad(lambda x: NumpySin.apply(x).sum()))(x), x.cos())
    assert_same(grad(lambda x: vmap(NumpySin.apply)(x).sum())(x), x.cos())
    assert_same(jacrev(lambda x: grad(lambda x: NumpySin.apply(x).sum())(x))(x[0]), (-x[0].sin()).diag())


def test_a_vmap_staticmethod_sees_dimensions_numbers_and_trees():
    seen = []

    class Scale(KeepsNothing):
        @staticmethod
        def forward(x, n, pair):
            return x * n + pair[0], 3

        @staticmethod
        def vmap(info, in_dims, x, n, pair):
            seen.append((info.batch_size, info.randomness, in_dims, n))
            return (x.movedim(in_dims[0], 0) * n + pair[0], 3), (0, None)

    x, y = randn(3, 4), randn(3)
    out, three = vmap(Scale.apply, (1, None, None), (0, None), randomness="different")(x, 2, [y, None])
    assert_same(out, x.t() * 2 + y)
    assert three == 3 and seen == [(4, "different", (1, None, [None, None]), 2)]


def test_forward_without_torch_operators_is_looped_where_there_is_no_vmap():
    class NumpyCos(KeepsInputs):
        @staticmethod
        def forward(x):
            return torch.from_numpy(__import__("numpy").cos(x.numpy()))

        @staticmethod
        def backward(ctx, grad):
            return -ctx.saved_tensors[0].sin() * grad

    x = randn(4, 3)
    assert_same(grad(lambda x: NumpyCos.apply(x).sum())(x), -x.sin())
    assert_same(vmap(NumpyCos.apply)(x), x.cos())
    assert_same(vmap(grad(lambda x: NumpyCos.apply(x).sum()))(x), -x.sin())


def test_gradients_not_materialized_marked_constant_and_absent():
    class Parts(Function):
        @staticmethod
        def forward(x, y):
            return x * y, x.argmax(), x + y

        @staticmethod
        def setup_context(ctx, inputs, output):
            ctx.set_materialize_grads(False)
            ctx.mark_non_differentiable(output[2])
            ctx.save_for_backward(*inputs)

        @staticmethod
        def backward(ctx, g, index, total):
            assert index is None and total is None
            x, y = ctx.saved_tensors
            return (None if g is None else g * y), None

    x, y = randn(3), randn(3)
    assert_same(grad(lambda x, y: Parts.apply(x, y)[0].sum())(x, y), y)
    assert_same(grad(lambda x, y: Parts.apply(x, y)[0].sum(), 1)(x, y), torch.zeros(3).double())
    assert_same(grad(lambda x, y: Parts.apply(x, y)[2].sum())(x, y), torch.zeros(3).double())


def test_once_differentiable_twice_is_an_error_not_zero():
    class Once(KeepsInputs):
        @staticmethod
        def forward(x):
            return x**3

        @staticmethod
        @torch.autograd.function.once_differentiable
        def backward(ctx, grad):
            return 3 * ctx.saved_tensors[0] ** 2 * grad

    x = randn(3)
    assert_same(grad(lambda x: Once.apply(x).sum())(x), 3 * x**2)
    assert_same(vmap(grad(lambda x: Once.apply(x)))(x), 3 * x**2)
    for twice in (grad(lambda x: grad(lambda x: Once.apply(x).sum())(x).sum()), jacrev(jacrev(Once.apply))):
        with pytest.raises(RuntimeError, match="Once.backward is differentiated, but it is once_differentiable"):
            twice(x)


def test_missing_rules_are_errors_not_zeros():
    class Bare(KeepsNothing):
        @staticmethod
        def forward(x):
            return x.sin()

    for transformed in (grad(lambda x: Bare.apply(x).sum()), grad(lambda x: vmap(Bare.apply)(x).sum())):
        with pytest.raises(NotImplementedError, match="Bare is differentiated, but has no backward"):
            transformed(randn(3))
    with pytest.raises(RuntimeError, match="Bare"):
        jvp(Bare.apply, (randn(3),), (randn(3),))
    with pytest.raises(RuntimeError, match="NumpySin"):
        jvp(NumpySin.apply, (randn(3),), (randn(3),))


def test_a_jvp_alone_serves_reverse_mode():
    class Forward(Function):
        @staticmethod
        def forward(x):
            return x.sin()

        @staticmethod
        def setup_context(ctx, inputs, output):
            ctx.save_for_forward(*inputs)

        @staticmethod
        def jvp(ctx, tangent):
            return 2 * ctx.saved_tensors[0].cos() * tangent

    x = randn(3)
    assert_same(grad(lambda x: Forward.apply(x).sum())(x), 2 * x.cos())


def test_a_backward_declared_linear_serves_forward_mode():
    class Sin(KeepsInputs):
        @staticmethod
        def forward(x):
            return x.sin()

        @staticmethod
        def backward(ctx, grad):
            return 3 * ctx.saved_tensors[0].cos() * grad

    x, v = randn(3), randn(3)
    with pytest.raises(RuntimeError, match="no jvp rule"):
        jvp(Sin.apply, (x,), (v,))
    assert linear_backward(Sin) is Sin
    assert_same(jvp(Sin.apply, (x,), (v,))[1], 3 * x.cos() * v)
    assert_same(hessian(lambda x: Sin.apply(x).sum())(x), (-3 * x.sin()).diag())
    assert_same(vmap(jacfwd(Sin.apply))(torch.stack([x, v])), torch.diag_embed(3 * torch.stack([x, v]).cos()))


@pytest.mark.parametrize(
    ("returned", "text"),
    [
        (lambda g: (g, g), "backward returned 2 gradients, but forward has 1 arguments"),
        (lambda g: torch.ones(7), r"gradient 0 has shape \(7,\), expected \(3,\)"),
        (lambda g: 3.0, "gradient 0 is a float"),
    ],
)
def test_a_backward_that_returns_what_does_not_fit(returned, text):
    class Wrong(KeepsNothing):
        @staticmethod
        def forward(x):
            return x.sin()

        @staticmethod
        def backward(ctx, grad):
            return returned(grad)

    with pytest.raises(RuntimeError, match="Wrong: " + text):
        grad(lambda x: Wrong.apply(x).sum())(randn(3))


def test_a_broadcast_gradient_is_summed():
    class Add(KeepsNothing):
        @staticmethod
        def forward(x, y):
            return x + y

        @staticmethod
        def backward(ctx, grad):
            return grad, grad

    x, y = randn(4, 3), randn(3)
    assert_same(grad(lambda x, y: Add.apply(x, y).sum(), 1)(x, y), torch.full((3,), 4.0).double())


def test_a_tensor_inside_of_a_container_has_no_gradient_and_says_so():
    class Pair(KeepsNothing):
        @staticmethod
        def forward(pair, z):
            return pair[0] * pair[1] + z

        @staticmethod
        def backward(ctx, grad):
            return None, grad

    x, y, z = randn(3), randn(3), randn(3)
    assert_same(grad(lambda z: Pair.apply([x, y], z).sum())(z), torch.ones(3).double())
    with pytest.raises(RuntimeError, match="Pass the tensor as an argument of its own"):
        grad(lambda x: Pair.apply([x, y], z).sum())(x)


def test_errors_of_the_rules_keep_their_type():
    class Broken(KeepsNothing):
        @staticmethod
        def forward(x):
            return x.sin()

        @staticmethod
        def backward(ctx, grad):
            raise KeyError("from backward")

    with pytest.raises(KeyError, match="from backward"):
        grad(lambda x: Broken.apply(x).sum())(randn(3))
    with pytest.raises(KeyError, match="from backward"):
        vmap(grad(lambda x: Broken.apply(x)))(randn(3))


def test_functions_inside_of_functions():
    class Outer(KeepsInputs):
        generate_vmap_rule = True

        @staticmethod
        def forward(x):
            return Cube.apply(x).sin()

        @staticmethod
        def backward(ctx, grad):
            (x,) = ctx.saved_tensors
            return Cube.apply(x) * grad

    x = randn(4, 3)
    f = lambda x: Outer.apply(x).sum()
    assert_same(vmap(grad(f))(x), x**3)
    assert_same(vmap(grad(lambda x: grad(f)(x).sum()))(x), 5 * x**2)


def test_the_class_and_the_tape_are_let_go():
    def run():
        class Local(Function):
            @staticmethod
            def forward(x):
                return x.sin()

            @staticmethod
            def setup_context(ctx, inputs, output):
                ctx.save_for_backward(*inputs)
                ctx.also = inputs[0]

            @staticmethod
            def backward(ctx, grad):
                return ctx.also.cos() * grad

        references = [weakref.ref(Local)]

        def f(x):
            references.append(weakref.ref(x))
            return Local.apply(x)

        out, pullback = vjp(f, randn(3))
        pullback(out)
        return references

    references = run()
    gc.collect()
    assert [reference() for reference in references] == [None, None]
