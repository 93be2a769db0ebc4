"""grad, grad_and_value, vjp, jvp, linearize, hvp against torch.func and torch.autograd."""

import pytest
import torch
import torch.func
import torch_tower
from support import assert_same, randn

BOTH = torch_tower, torch.func


def parameters():
    return {"w": randn(3, 2), "b": [randn(3)]}


def predict(p, x):
    return {"y": torch.tanh(p["w"] @ x + p["b"][0]), "norm": p["w"].square().sum()}


def loss(p, x):
    out = predict(p, x)
    return out["y"].sum() * out["norm"]


@pytest.mark.parametrize("argnums", [0, 1, -1, (0,), (1, 0), (0, -1)])
@pytest.mark.parametrize("name", ["grad", "grad_and_value"])
def test_argnums_and_trees(name, argnums):
    p, x = parameters(), randn(2)
    ours, theirs = (getattr(lib, name)(loss, argnums)(p, x) for lib in BOTH)
    assert_same(ours, theirs)


@pytest.mark.parametrize("name", ["grad", "grad_and_value"])
def test_aux_is_any_tree(name):
    p, x = parameters(), randn(2)

    def f(p, x, scale=1):
        return loss(p, x) * scale, {"out": predict(p, x), "shape": (x.sum(),)}

    ours, theirs = (getattr(lib, name)(f, has_aux=True)(p, x, scale=3) for lib in BOTH)
    assert_same(ours, theirs)
    assert not torch_tower._C.is_wrapper((ours[1][1] if name == "grad_and_value" else ours[1])["out"]["y"])


def test_aux_may_hold_what_is_no_tensor():
    gradient, aux = torch_tower.grad(lambda x: (x.sin(), {"name": "sine", "x": x, "n": 3}), has_aux=True)(randn(()))
    assert aux["name"] == "sine" and aux["n"] == 3 and not torch_tower._C.is_wrapper(aux["x"])


def test_aux_of_an_inner_transform_stays_in_the_outer_one():
    def f(x):
        gradient, aux = torch_tower.grad(lambda y: (y.sin() * x, y * x), has_aux=True)(x)
        return gradient * aux

    x = randn(())
    by_hand = lambda x: (x.cos() * x) * (x * x)
    y = x.clone().requires_grad_()
    by_hand(y).backward()
    assert_same(torch_tower.grad(f)(x), y.grad)


def test_third_derivative():
    x = randn(())
    f = torch.sin
    for _ in range(3):
        f = torch_tower.grad(f)
    assert_same(f(x), -x.cos())


def test_vjp_of_trees():
    p, x = parameters(), randn(2)
    cotangents = {"y": randn(3), "norm": randn(())}
    results = []
    for lib in BOTH:
        out, pullback = lib.vjp(predict, p, x)
        results.append((out, pullback(cotangents), pullback(cotangents)))
    assert_same(*results)


def test_vjp_with_aux():
    x = randn(3)
    ours, theirs = (lib.vjp(lambda x: (x.sin(), {"a": x.cos()}), x, has_aux=True) for lib in BOTH)
    assert_same((ours[0], ours[2], ours[1](x)), (theirs[0], theirs[2], theirs[1](x)))


def test_a_cotangent_of_none_is_zero():
    p, x = parameters(), randn(2)
    _, pullback = torch_tower.vjp(predict, p, x)
    assert_same(pullback({"y": None, "norm": torch.tensor(2.0).double()})[0]["w"], 4 * p["w"])


def test_a_pullback_under_vmap():
    x = randn(3)
    _, pullback = torch_tower.vjp(lambda x: x.sin() * x.sum(), x)
    rows = torch_tower.vmap(pullback)(torch.eye(3).double())[0]
    assert_same(rows, torch.func.jacrev(lambda x: x.sin() * x.sum())(x))


def test_a_pullback_in_an_outer_grad():
    def f(lib):
        def inner(x):
            out, pullback = lib.vjp(torch.sin, x)
            return (pullback(out)[0] * x).sum()

        return lib.grad(inner)

    x = randn(3)
    assert_same(f(torch_tower)(x), f(torch.func)(x))


def test_jvp_of_trees():
    p, x = parameters(), randn(2)
    tangents = parameters(), randn(2)
    assert_same(torch_tower.jvp(predict, (p, x), tangents), torch.func.jvp(predict, (p, x), tangents))


def test_jvp_with_aux():
    x, v = randn(3), randn(3)
    ours, theirs = (lib.jvp(lambda x: (x.sin(), [x.cos()]), (x,), (v,), has_aux=True) for lib in BOTH)
    assert_same(ours, theirs)


def test_a_tangent_of_none_is_zero():
    x, y = randn(3), randn(3)
    assert_same(torch_tower.jvp(torch.mul, (x, y), (y, None))[1], y * y)


def test_strict_jvp_refuses_a_constant_output():
    f = lambda x: (x, torch.ones(2))
    assert_same(torch_tower.jvp(f, (randn(3),), (randn(3),))[1][1], torch.zeros(2))
    with pytest.raises(RuntimeError, match="output 1 does not depend on the primals"):
        torch_tower.jvp(f, (randn(3),), (randn(3),), strict=True)


def test_linearize():
    p, x = parameters(), randn(2)
    calls = []

    def f(p, x):
        calls.append(1)
        return predict(p, x)

    out, pushforward = torch_tower.linearize(f, p, x)
    for _ in range(2):
        tangents = parameters(), randn(2)
        assert_same((out, pushforward(*tangents)), torch.func.jvp(predict, (p, x), tangents))
    assert len(calls) == 1


def test_forward_over_reverse_and_reverse_over_forward():
    x, v = randn(3), randn(3)
    f = lambda x: x.sin().prod()
    hessian = torch.func.hessian(f)(x)
    assert_same(torch_tower.jvp(torch_tower.grad(f), (x,), (v,))[1], hessian @ v)
    assert_same(torch_tower.grad(lambda x: torch_tower.jvp(f, (x,), (v,))[1])(x), hessian @ v)


def test_hvp():
    p, x = parameters(), randn(2)
    tangents = parameters(), randn(2)
    expected = torch.func.jvp(torch.func.grad(loss, (0, 1)), (p, x), tangents)
    assert_same(torch_tower.hvp(loss, (p, x), tangents), expected)


@pytest.mark.parametrize("depth", [1, 2])
def test_random_numbers_follow_the_seed_as_outside(depth):
    f = lambda x: (x * torch.randn(3)).sum()
    transformed = torch_tower.grad(f)
    torch.manual_seed(3)
    expected = torch.randn(3)
    torch.manual_seed(3)
    assert_same(transformed(torch.zeros(3)), expected)


def test_no_grad_and_detach_inside():
    x = randn(3)

    def f(x):
        with torch.no_grad():
            weight = x.sin()
        return (weight * x + x.detach() * x).sum()

    assert_same(torch_tower.grad(f)(x), x.sin() + x)


def test_no_grad_outside_does_not_reach_in():
    x = randn(3)
    with torch.no_grad():
        assert_same(torch_tower.grad(lambda x: x.square().sum())(x), 2 * x)


def test_gradients_flow_to_tensors_that_require_grad_outside():
    x, w = randn(3), randn(3).requires_grad_()
    inner = torch_tower.grad(lambda x: (x.sin() * w).sum())(x)
    inner.sum().backward()
    assert_same(w.grad, x.cos())


@pytest.mark.parametrize(
    ("call", "kind", "text"),
    [
        (lambda x: torch_tower.grad(torch.sin)(x), RuntimeError, "must be a scalar"),
        (lambda x: torch_tower.grad(lambda x: (x.sum(), x))(x), RuntimeError, "it returned a tuple"),
        (lambda x: torch_tower.grad(lambda x: x.sum(), has_aux=True)(x), RuntimeError, "returned a Tensor"),
        (lambda x: torch_tower.grad(lambda x: 3)(x), RuntimeError, "must return a scalar tensor"),
        (lambda x: torch_tower.grad(torch.sum)(x.int()), RuntimeError, "derivatives exist only for floating point"),
        (lambda x: torch_tower.grad(torch.sum, 1)(x), RuntimeError, "argnums has 1"),
        (lambda x: torch_tower.grad(torch.sum, (0, -1))(x), RuntimeError, "each once"),
        (lambda x: torch_tower.grad(torch.sum, ())(x), RuntimeError, "at least one argument"),
        (lambda x: torch_tower.grad(torch.sum, 0.5)(x), TypeError, "int or a tuple of ints"),
        (lambda x: torch_tower.grad(lambda p: p["x"].sum())({"x": x, "n": 2}), ValueError, "argument 0 holds a int"),
        (lambda x: torch_tower.vjp(torch.sin, 3.0), ValueError, "found a float"),
        (lambda x: torch_tower.vjp(torch.sin), RuntimeError, "hold no tensor"),
        (lambda x: torch_tower.vjp(lambda x: None, x), RuntimeError, "it returned a NoneType"),
        (lambda x: torch_tower.vjp(torch.sin, x)[1](x[0]), ValueError, "cotangent 0 is .*, expected the shape of"),
        (lambda x: torch_tower.vjp(torch.sin, x)[1]((x, x)), RuntimeError, "must have the tree of the output"),
        (lambda x: torch_tower.jvp(torch.sin, x, x), RuntimeError, "it must be a tuple"),
        (lambda x: torch_tower.jvp(torch.sin, (x,), (x, x)), RuntimeError, "must have the tree of primals"),
        (lambda x: torch_tower.jvp(torch.sin, (x,), (x.float(),)), ValueError, "expected the dtype of"),
        (lambda x: torch_tower.jvp(lambda x: [], (x,), (x,)), RuntimeError, "which holds none"),
        (lambda x: torch_tower.linearize(torch.sin, x)[1](x, x), RuntimeError, "must have the tree of the primals"),
    ],
)
def test_what_is_refused_says_why(call, kind, text):
    with pytest.raises(kind, match=text):
        call(randn(2, 3))
