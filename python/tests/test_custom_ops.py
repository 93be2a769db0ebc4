"""torch.library.custom_op inside transforms. Derivatives are said to be 3 times what they are, to see who gave them."""

import uuid

import numpy as np
import pytest
import torch
from support import assert_same, randn
from torch import Tensor
from torch_tower import grad, hessian, jacrev, jvp, linear_backward, vjp, vmap


def name():
    return f"torch_tower_tests::op_{uuid.uuid4().hex}"


def numpy_sin():
    @torch.library.custom_op(name(), mutates_args=())
    def op(x: Tensor) -> Tensor:
        return torch.from_numpy(np.sin(x.numpy()))

    return op


def with_autograd(op):
    op.register_autograd(
        lambda ctx, g: 3 * g * ctx.saved_tensors[0].cos(),
        setup_context=lambda ctx, inputs, output: ctx.save_for_backward(*inputs),
    )
    return op


def with_vmap(op, seen=None):
    def rule(info, in_dims, x):
        if seen is not None:
            seen.append((info.batch_size, in_dims))
        return op(x), in_dims[0]

    op.register_vmap(rule)
    return op


@pytest.fixture(params=["by torch.ops", "by the object"])
def call(request):
    def calling(op):
        namespace, opname = op._qualname.split("::")
        return getattr(getattr(torch.ops, namespace), opname) if request.param == "by torch.ops" else op

    return calling


def test_backward_is_used_at_every_level(call):
    f = call(with_autograd(with_vmap(numpy_sin())))
    x = randn(4, 3)
    assert_same(grad(lambda x: f(x).sum())(x), 3 * x.cos())
    assert_same(vmap(grad(lambda x: f(x).sum()))(x), 3 * x.cos())
    assert_same(grad(lambda x: vmap(f)(x).sum())(x), 3 * x.cos())
    assert_same(grad(lambda x: vmap(vmap(f))(x).sum())(x), 3 * x.cos())
    assert_same(grad(lambda x: grad(lambda x: f(x).sum())(x).sum())(x), -3 * x.sin())
    assert_same(vmap(jacrev(f))(x), torch.diag_embed(3 * x.cos()))
    assert_same(vjp(f, x)[1](x)[0], 3 * x * x.cos())


def test_the_vmap_rule_is_used(call):
    seen = []
    f = call(with_vmap(numpy_sin(), seen))
    x = randn(4, 3)
    assert_same(vmap(f)(x), x.sin())
    assert_same(vmap(f, 1)(x), x.sin().t())
    assert seen == [(4, (0,)), (3, (1,))]


def test_without_a_vmap_rule_it_is_looped(call):
    f = call(with_autograd(numpy_sin()))
    x = randn(4, 3)
    assert_same(vmap(f)(x), x.sin())
    assert_same(vmap(grad(lambda x: f(x).sum()))(x), 3 * x.cos())
    assert_same(grad(lambda x: vmap(f)(x).sum())(x), 3 * x.cos())


def test_an_implementation_of_operators_is_mapped_by_them(call):
    calls = []

    @torch.library.custom_op(name(), mutates_args=())
    def op(x: Tensor) -> Tensor:
        calls.append(x.shape)
        return x.exp() * 2

    x = randn(4, 3)
    assert_same(vmap(call(op))(x), 2 * x.exp())
    assert calls == [(3,)]


def test_a_registration_made_later_counts(call):
    op = numpy_sin()
    f = call(op)
    x = randn(4, 3)
    with pytest.raises(NotImplementedError, match="has no backward"):
        grad(lambda x: f(x).sum())(x)
    with_autograd(op)
    assert_same(grad(lambda x: f(x).sum())(x), 3 * x.cos())


def test_forward_mode_without_a_rule_for_it_is_an_error_not_a_zero(call):
    f = call(with_autograd(numpy_sin()))
    with pytest.raises(RuntimeError, match="no jvp rule"):
        jvp(f, (randn(3),), (randn(3),))
    with pytest.raises(RuntimeError, match="no jvp rule"):
        hessian(lambda x: f(x).sum())(randn(3))


def test_a_backward_declared_linear_serves_forward_mode(call):
    f = call(linear_backward(with_autograd(numpy_sin())))
    x, v = randn(3), randn(3)
    assert_same(jvp(f, (x,), (v,))[1], 3 * x.cos() * v)
    assert_same(hessian(lambda x: f(x).sum())(x), (-3 * x.sin()).diag())


def test_numbers_keywords_and_several_outputs():
    @torch.library.custom_op(name(), mutates_args=())
    def op(x: Tensor, n: int, y: Tensor, *, scale: float = 2.0) -> tuple[Tensor, Tensor]:
        return torch.from_numpy(n * x.numpy() * y.numpy()), torch.from_numpy(scale * x.numpy())

    def setup(ctx, inputs, keyword_only_inputs, output):
        x, ctx.n, y = inputs
        ctx.scale = keyword_only_inputs["scale"]
        assert len(output) == 2
        ctx.save_for_backward(x, y)

    def backward(ctx, product, scaled):
        x, y = ctx.saved_tensors
        assert ctx.needs_input_grad[1] is False
        return ctx.n * product * y + ctx.scale * scaled, None, ctx.n * product * x

    op.register_autograd(backward, setup_context=setup)
    op.register_vmap(
        lambda info, in_dims, x, n, y, *, scale=2.0: (
            op(x.movedim(in_dims[0], 0), n, y.expand_as(x) if in_dims[2] is None else y, scale=scale),
            (0, 0),
        )
    )
    x, y = randn(4, 3), randn(3)

    def f(x, y):
        product, scaled = op(x, 5, y, scale=7.0)
        return (product.sin() + scaled).sum()

    expected = lambda x, y: ((5 * x * y).sin() + 7 * x).sum()
    leaves = x.clone().requires_grad_(), y.clone().requires_grad_()
    expected(*leaves).backward()
    assert_same(grad(f, (0, 1))(x, y), (leaves[0].grad, leaves[1].grad))
    assert_same(vmap(grad(f), (0, None))(x, y), leaves[0].grad)
    assert_same(grad(lambda x, y: vmap(f, (0, None))(x, y).sum(), 1)(x, y), leaves[1].grad)


def test_lists_of_tensors():
    @torch.library.custom_op(name(), mutates_args=())
    def op(xs: list[Tensor], weights: list[float]) -> list[Tensor]:
        return [torch.from_numpy(w * x.numpy() ** 2) for x, w in zip(xs, weights)]

    def setup(ctx, inputs, output):
        ctx.xs, ctx.weights = inputs

    def backward(ctx, grads):
        return [2 * w * x * g for x, w, g in zip(ctx.xs, ctx.weights, grads)], None

    op.register_autograd(backward, setup_context=setup)
    x, y = randn(4, 3), randn(4, 3)

    def f(x, y):
        a, b = op([x, y], [2.0, 3.0])
        return (a * b).sum()

    gradients = grad(f, (0, 1))(x, y)
    leaves = x.clone().requires_grad_(), y.clone().requires_grad_()
    (2 * leaves[0] ** 2 * 3 * leaves[1] ** 2).sum().backward()
    assert_same(gradients, (leaves[0].grad, leaves[1].grad))
    assert_same(vmap(grad(f, (0, 1)))(x, y), (leaves[0].grad, leaves[1].grad))


def test_plain_tensors_that_require_grad_go_through_transformed_functions():
    op = with_autograd(with_vmap(numpy_sin()))
    w = torch.randn(4, 3, requires_grad=True)

    @torch.library.custom_op(name(), mutates_args=())
    def double(x: Tensor) -> Tensor:
        return x * 2

    double.register_autograd(lambda ctx, g: 5 * g)
    vmap(double)(w).sum().backward()
    assert_same(w.grad, torch.full((4, 3), 5.0))
    x = randn(3)
    u = randn(3).requires_grad_()
    grad(lambda x: (op(x) * u).sum())(x).sum().backward()
    assert_same(u.grad, 3 * x.cos())


def test_outside_of_transforms_nothing_changes():
    op = with_autograd(numpy_sin())
    x = torch.randn(3)
    assert_same(op(x), x.sin())
    torch.library.opcheck(op, (x,), test_utils=("test_schema", "test_autograd_registration"))


# ---- operators that write to their arguments -------------------------------------------------------------------------


def numpy_scale():
    @torch.library.custom_op(name(), mutates_args=("x",))
    def op(x: Tensor, factor: Tensor) -> None:
        x.numpy()[...] *= factor.numpy()

    return op


def operators_scale():
    @torch.library.custom_op(name(), mutates_args=("x",))
    def op(x: Tensor, factor: Tensor) -> None:
        x.mul_(factor)

    return op


def mapped_scale():
    op = numpy_scale()

    @op.register_vmap
    def rule(info, in_dims, x, factor):
        assert in_dims[0] is not None  # what is written to has room for every example
        x = x.movedim(in_dims[0], 0)
        op(x, factor if in_dims[1] is None else factor.reshape(-1, *[1] * (x.dim() - 1)))
        return None, None

    return op


@pytest.mark.parametrize("make", [numpy_scale, operators_scale, mapped_scale])
@pytest.mark.filterwarnings("ignore:.*no batching rule")
def test_an_operator_that_writes_to_an_argument(make, call):
    op = call(make())

    def f(x, factor):
        y = x * 1
        view = y[1:]
        assert op(y, factor) is None
        return y, view

    xs, factors = randn(4, 3), randn(4)
    for in_dims, expected in (
        ((0, 0), xs * factors[:, None]),
        ((0, None), xs * 2),
        ((None, 0), xs[0] * factors[:, None]),
    ):
        args = xs if in_dims[0] == 0 else xs[0], factors if in_dims[1] == 0 else torch.tensor(2.0).double()
        y, view = vmap(f, in_dims)(*args)
        assert_same(y, expected)
        assert_same(view, expected[:, 1:])
    # A constant may be written to where derivatives are taken of something else.
    assert_same(grad(lambda s: (s * f(xs[0], factors[0])[0]).sum())(factors[0]), (xs[0] * factors[0]).sum())


def test_the_callers_tensor_is_written_to(call):
    op, x = call(numpy_scale()), torch.ones(3)
    grad(lambda s: op(x, torch.tensor(2.0)) or s)(torch.tensor(1.0))
    assert_same(x, torch.full((3,), 2.0))
    with pytest.raises(RuntimeError, match="made outside|captured|would write"):
        vmap(lambda s: op(x, s) or s)(torch.tensor([1.0, 2.0]))


def test_a_write_whose_derivative_is_asked_for_is_an_error_not_a_zero(call):
    op = call(numpy_scale())

    def f(x):
        y = x * 1
        op(y, torch.tensor(2.0))
        return y.sum()

    with pytest.raises(NotImplementedError, match="has no backward"):
        grad(f)(torch.ones(3))
    with pytest.raises(RuntimeError, match="no jvp rule|has no backward"):
        jvp(f, (torch.ones(3),), (torch.ones(3),))


def test_lists_and_results_besides_what_is_written_to():
    @torch.library.custom_op(name(), mutates_args=("xs",))
    def op(xs: list[Tensor], by: float) -> Tensor:
        for x in xs:
            x.add_(by)
        return xs[0] * xs[1]

    def f(x):
        a, b = x * 1, x * 2
        return op([a, b], 1.0), a, b

    x = randn(4)
    assert_same(vmap(f)(x), ((x + 1) * (2 * x + 1), x + 1, 2 * x + 1))
