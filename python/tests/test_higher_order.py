"""A program's own higher-order operators inside of transforms: opened, by their own autograd kernels, and with rules.

Rules are given derivatives that no derivative of the implementation is, so that it shows which of them was used."""

import itertools
import math

import pytest
import torch
import torch.func
import torch_tower
from nestings import by_loop, by_vmap, nest, nestings
from support import assert_same, randn
from torch._C import DispatchKey
from torch._ops import HigherOrderOperator
from torch_tower import grad, jvp, linear_backward, register_higher_order, register_sparsity, vmap

_numbers = itertools.count()


class Operator(HigherOrderOperator):
    """op(f, *operands)."""

    def __init__(self, name=None):
        super().__init__(name or f"test_operator_{next(_numbers)}")

    def __call__(self, *args, **kwargs):
        return super().__call__(*args, **kwargs)


def dense(op, implementation=lambda f, *operands: f(*operands)):
    op.py_impl(DispatchKey.CompositeExplicitAutograd)(implementation)
    return op


# ---- opened ----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("kinds", nestings(2))
@pytest.mark.parametrize("key", [DispatchKey.CompositeExplicitAutograd, DispatchKey.CPU])
@pytest.mark.cpu("the second implementation is for the CPU")
def test_an_operator_with_a_dense_implementation_is_opened(key, kinds):
    op = Operator()
    op.py_impl(key)(lambda f, a, *, scale: f(f(a)) * scale)
    shape = (3,) * kinds.count("v")
    x, w = randn(*shape), randn(*shape)
    program = lambda x, w: op(lambda v: torch.sin(v * w) + x, x, scale=w)
    plainly = lambda x, w: torch.sin((torch.sin(x * w) + x) * w) * w + x * w
    assert_same(nest(program, kinds, torch_tower, by_vmap)(x, w), nest(plainly, kinds, torch.func, by_loop)(x, w))


def test_an_operator_is_known_where_it_is_defined_inside_of_a_transform_and_where_its_name_was_taken():
    def program(x):
        first, second = dense(Operator("test_twice_defined")), dense(Operator("test_twice_defined"))
        return first(torch.sin, x) * second(torch.cos, x)

    x = randn(3)
    assert_same(vmap(grad(program))(x), torch.cos(2 * x))


def test_outside_of_transforms_an_operator_is_what_it_was():
    op = dense(Operator())
    called = []

    @op.py_impl(DispatchKey.Autograd)
    def autograd(f, x):
        called.append("autograd")
        with torch._C._AutoDispatchBelowAutograd():
            return op(f, x)

    vmap(lambda x: op(torch.sin, x))(randn(2))
    register_higher_order(op, vjp=lambda inputs, output, cotangents: (None, cotangents))
    vmap(lambda x: op(torch.sin, x))(randn(2))
    called.clear()
    x = randn(2).requires_grad_()
    assert_same(op(torch.sin, x), x.sin())
    assert called == ["autograd"]


@pytest.mark.cpu("the text names the device")
def test_an_operator_without_a_dense_implementation_says_what_to_do():
    op = Operator("test_no_implementation")
    with pytest.raises(
        NotImplementedError,
        match=r"grad \(level 2\): test_no_implementation is a higher-order operator without rules.* no dense "
        r"implementation for cpu.*register_higher_order.*CompositeExplicitAutograd",
    ):
        vmap(grad(lambda x: op(torch.sin, x)))(randn(2))
    with pytest.raises(NotImplementedError, match="inside a transform: test_no_implementation"):
        vmap(lambda x: x * op(torch.sin, 2))(randn(2))


# ---- with an autograd kernel of its own ------------------------------------------------------------------------------


def with_own_autograd(register):
    """Its derivative is that of its implementation, ten times."""
    op = dense(Operator())

    class Tenfold(torch.autograd.Function):
        @staticmethod
        def forward(f, x):
            with torch._C._AutoDispatchBelowAutograd():
                return op(f, x)

        @staticmethod
        def setup_context(ctx, inputs, output):
            ctx.f = inputs[0]
            ctx.save_for_backward(inputs[1])

        @staticmethod
        def backward(ctx, g):
            (x,) = ctx.saved_tensors
            return None, 10 * g * op(torch.cos, x)

    register(op)(lambda f, x: Tenfold.apply(f, x))
    return op


@pytest.mark.parametrize("register", [lambda op: op.py_impl(DispatchKey.Autograd), lambda op: op.py_autograd_impl])
def test_an_autograd_kernel_of_the_operators_own_gives_its_derivative(register):
    op = with_own_autograd(register)
    f = lambda x: op(torch.sin, x)
    x = randn(3)
    assert_same(vmap(f)(x), x.sin())
    assert_same(vmap(grad(f))(x), 10 * x.cos())
    assert_same(grad(lambda x: vmap(f)(x).sum())(x), 10 * x.cos())
    y = x.clone().requires_grad_()
    assert_same(torch.autograd.grad(f(y).sum(), y)[0], 10 * x.cos())


# ---- with rules ------------------------------------------------------------------------------------------------------


def log(calls, name, rule):
    def logged(*args, **kwargs):
        calls.append(name)
        return rule(*args, **kwargs)

    return logged


def scaled(calls):
    """op(f, {"x": x}, w, n) is (f(x) w n, x); its derivatives are ten and a hundred times those."""
    op = dense(Operator(), lambda f, d, w, n: (f(d["x"]) * w * n, [d["x"] * 1]))

    def vjp_rule(inputs, output, cotangents):
        f, d, w, n = inputs
        out, (rest,) = cotangents
        fx, pullback = torch_tower.vjp(f, d["x"])
        return None, {"x": 10 * pullback(out * w * n)[0] + rest}, 10 * out * fx * n, None

    def jvp_rule(inputs, output, tangents):
        f, d, w, n = inputs
        _, dd, dw, dn = tangents
        assert dn is None and dd.keys() == {"x"}
        fx, dfx = torch_tower.jvp(f, (d["x"],), (dd["x"],))
        return 100 * (dfx * w + fx * dw) * n, [dd["x"]]

    def vmap_rule(info, in_dims, f, d, w, n):
        x, w = (t if dim is None else t.movedim(dim, 0) for t, dim in ((d["x"], in_dims[1]["x"]), (w, in_dims[2])))
        assert in_dims[0] is None and in_dims[3] is None
        x = x if in_dims[1]["x"] is not None else x.expand(info.batch_size, *x.shape)
        return op(f, {"x": x}, w, n), (0, [0])

    rules = dict(vjp=vjp_rule, jvp=jvp_rule, vmap=vmap_rule)
    return register_higher_order(op, **{name: log(calls, name, rule) for name, rule in rules.items()})


def slope_by_hand(kind, phase):
    """What one derivative (nestings.py) of a + b is by the rules, where a, b = op(sin, x, w, 3). It is pointwise."""
    c, s = math.cos(phase), math.sin(phase)
    along = lambda x, w: 300 * (x.cos() * c * w + x.sin() * s) + c
    back = lambda x, w: 30 * c * x.cos() * w + c + 2 * 30 * c * x.sin()
    return {"j": along, "r": back}[kind]


@pytest.mark.parametrize("kinds", nestings(3))
def test_rules_are_honoured_at_every_level(kinds):
    calls = []
    op = scaled(calls)

    def total(x, w):
        a, (b,) = op(torch.sin, {"x": x}, w, 3)
        return a + b

    shape = (2,) * kinds.count("v")
    x, w = randn(*shape), randn(*shape)
    # The innermost derivative is that of a rule, and is ordinary code for the levels around it.
    around = kinds.rstrip("v")
    inside = len(kinds) - len(around)
    if around:
        slope = slope_by_hand(around[-1], 0.3 + inside)
        expected = nest(slope, around[:-1], torch.func, by_loop, inside + 1)(x, w)
    else:
        expected = x.sin() * w * 3 + x
    assert_same(nest(total, kinds, torch_tower, by_vmap)(x, w), expected)
    assert {"v": "vmap", "j": "jvp", "r": "vjp"}[kinds[-1]] in calls


def test_without_a_derivative_rule_the_implementation_is_differentiated_and_vmap_stays():
    calls = []
    op = dense(Operator(), lambda f, x: f(x) * x)
    register_higher_order(op, vmap=log(calls, "vmap", lambda info, in_dims, f, x: (op(f, x), in_dims[1])))
    x = randn(3)
    expected = x.cos() * x + x.sin()
    assert_same(vmap(grad(lambda x: op(torch.sin, x)))(x), expected)
    assert_same(grad(lambda x: vmap(lambda x: op(torch.sin, x))(x).sum())(x), expected)
    assert_same(vmap(lambda x: jvp(lambda x: op(torch.sin, x), (x,), (x,))[1])(x), expected * x)
    assert "vmap" in calls


def test_a_jvp_rule_serves_reverse_mode_and_a_linear_vjp_rule_forward_mode():
    x = randn(3)
    tenfold = lambda inputs, output, t: 10 * t[1] * inputs[1].cos()
    op = register_higher_order(dense(Operator()), jvp=tenfold)
    assert_same(vmap(grad(lambda x: op(torch.sin, x)))(x), 10 * x.cos())
    back = lambda inputs, output, ct: (None, 10 * ct * inputs[1].cos())
    op = register_higher_order(dense(Operator()), vjp=back)
    along = lambda x: jvp(lambda x: op(torch.sin, x), (x,), (torch.ones_like(x),))[1]
    with pytest.raises(RuntimeError, match="test_operator_.* has a backward but no jvp rule"):
        along(x)
    linear_backward(op)
    assert_same(along(x), 10 * x.cos())


def test_rules_can_be_replaced_and_taken_back():
    op = dense(Operator())
    slope = lambda: grad(lambda x: op(torch.sin, x))(torch.tensor(0.0))
    assert slope() == 1
    for factor in (2.0, 3.0):
        assert register_higher_order(op, vjp=lambda i, o, ct, k=factor: (None, k * ct)) is op
        assert slope() == factor
    register_higher_order(op)
    assert slope() == 1


def test_keyword_arguments_are_given_to_the_rules_and_tensors_among_them_are_constants():
    op = dense(Operator(), lambda f, x, *, k, t: f(x) * k * t)
    register_higher_order(
        op,
        vjp=lambda inputs, output, ct, *, k, t: (None, ct * inputs[1].cos() * k * t * 10),
        vmap=lambda info, in_dims, f, x, *, k, t: (op(f, x, k=k, t=t), in_dims[1]),
    )
    x, t = randn(3), torch.tensor(2.0, dtype=torch.float64)
    assert_same(vmap(grad(lambda x: op(torch.sin, x, k=3, t=t)))(x), 60 * x.cos())
    with pytest.raises(RuntimeError, match="a tensor given by keyword is differentiated.*Pass it by position"):
        grad(lambda t: op(torch.sin, x[0], k=3, t=t))(t)
    with pytest.raises(RuntimeError, match="a tensor given by keyword is mapped.*Pass it by position"):
        vmap(lambda t: op(torch.sin, x[0], k=3, t=t))(x)


def test_a_captured_tensor_of_a_transform_is_passed_on_where_no_derivative_of_it_is_asked():
    op = dense(Operator())
    register_higher_order(op, vjp=lambda inputs, output, ct: (None, 10 * ct))
    x, w = randn(3), randn(3)
    assert_same(vmap(lambda x, w: op(lambda v: v * w, x))(x, w), x * w)
    assert_same(vmap(lambda x, w: grad(lambda x: op(lambda v: v * w, x))(x))(x, w), torch.full_like(x, 10))
    with pytest.raises(RuntimeError, match="where it cannot be seen"):
        grad(lambda w: op(lambda v: v * w, w * x[0]))(w[0])


def test_sparsity_is_what_was_registered_for_the_operator():
    op = dense(Operator(), lambda f, x: f(x))
    register_higher_order(op, vjp=lambda inputs, output, ct: (None, ct * inputs[1].cos()))
    x = randn(4)
    assert torch_tower.jacobian_sparsity(lambda x: op(torch.sin, x), x).mask().sum() == 16
    register_sparsity(op, lambda f, x: x * 1)
    found = torch_tower.jacobian_sparsity(lambda x: op(torch.sin, x), x).mask()  # which is the CPU's on any device
    assert_same(found, torch.eye(4, dtype=torch.bool, device="cpu"))


def test_compiled_functions_have_the_rules_in_their_graphs():
    calls = []
    op = scaled(calls)
    slope = grad(lambda x, w: op(torch.sin, {"x": x}, w, 3)[0])
    step = torch_tower.compile(vmap(slope))
    for n in (3, 5):
        x, w = randn(n), randn(n)
        assert_same(step(x, w), 30 * x.cos() * w)


@pytest.mark.parametrize(
    "rules, words",
    [
        (dict(vjp=lambda i, o, ct: ct), "its vjp rule must return a tuple with the gradient of each of the 2 args"),
        (dict(vjp=lambda i, o, ct: (None,)), "of each of the 2 args, but it returned a tuple of 1 elements"),
        (dict(vjp=lambda i, o, ct: (ct, ct)), "its vjp rule returned a Tensor for what is no tensor"),
        (dict(vjp=lambda i, o, ct: (None, [ct, ct])), "its vjp rule returned a tuple of 2 elements with the tree"),
        (dict(vjp=lambda i, o, ct: (None, ct.sum())), "its vjp rule gave .* for operand 0, which is"),
        (dict(jvp=lambda i, o, t: [t[1], t[1]]), "its jvp rule returned a list of 2 elements with the tree"),
        (dict(vmap=lambda info, dims, f, x: f(x)), r"return \(output, out_dims\)"),
        (dict(vmap=lambda info, dims, f, x: (f(x), (0, 0))), r"its vmap rule returned out_dims \(0, 0\)"),
    ],
)
def test_what_is_wrong_with_a_rule_is_said(rules, words):
    op = register_higher_order(dense(Operator()), **rules)
    with pytest.raises(RuntimeError, match=words):
        vmap(grad(lambda x: op(torch.sin, x).sum()))(randn(2, 3))


def test_only_higher_order_operators_are_registered():
    with pytest.raises(TypeError, match="expected a torch._ops.HigherOrderOperator, got a function.*custom_op"):
        register_higher_order(torch.sin.__call__ and (lambda: None), vjp=lambda *args: None)
