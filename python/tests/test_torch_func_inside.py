"""Transforms of torch.func, and LibTorch's autograd, inside of Tower's transforms."""

import pytest
import torch
import torch.func
import torch_tower
from support import Cube, assert_same, randn


def energy(x):
    return (x.sin() * x.roll(1, -1)).sum()


def force(x):
    return x.sin() * x.roll(1, -1)


INNER = {
    "grad": lambda x: torch.func.grad(energy)(x),
    "grad_and_value": lambda x: torch.func.grad_and_value(energy)(x)[0],
    "grad of a captured value": lambda x: torch.func.grad(lambda w: (w * x).square().sum())(torch.ones_like(x)),
    "grad of grad": lambda x: torch.func.grad(lambda y: torch.func.grad(energy)(y).square().sum())(x),
    "vjp": lambda x: torch.func.vjp(force, x)[1](x)[0],
    "jvp": lambda x: torch.func.jvp(force, (x,), (x,))[1],
    "jvp along a constant": lambda x: torch.func.jvp(force, (x,), (torch.ones(()).expand(x.shape),))[1],
    "jacrev": lambda x: torch.func.jacrev(force)(x),
    "jacrev by chunks": lambda x: torch.func.jacrev(force, chunk_size=2)(x),
    "jacfwd": lambda x: torch.func.jacfwd(force)(x),
    "hessian": lambda x: torch.func.hessian(energy)(x),
    "vmap": lambda x: torch.func.vmap(lambda a, b: a.sin() * b, (0, None))(x, x),
    "vmap(grad)": lambda x: torch.func.vmap(torch.func.grad(lambda a, b: (a * b).sum().sin()), (0, None))(x, x),
    "a write": lambda x: torch.func.grad(lambda y: y.clone().mul_(x).sin_().sum())(x),
    "autograd.Function": lambda x: torch.func.grad(lambda y: Cube.apply(y).sum())(x),
    "autograd.Function under vmap": lambda x: torch.func.vmap(torch.func.grad(Cube.apply))(x),
    "linear algebra": lambda x: torch.func.grad(lambda y: torch.linalg.inv(y.outer(y) + 2 * torch.eye(3)).sum())(x),
    "a Module": lambda x: torch.func.grad(lambda y: torch.nn.functional.gelu(y).softmax(-1).square().sum())(x),
}
OUTER = {
    "vmap": (torch_tower.vmap, lambda f: lambda x: torch.stack([f(row) for row in x]), (2, 3)),
    "grad": (
        lambda f: torch_tower.grad(lambda x: f(x).sum()),
        lambda f: torch.func.grad(lambda x: f(x).sum()),
        (3,),
    ),
    "jvp": (
        lambda f: lambda x: torch_tower.jvp(f, (x,), (x.cos(),))[1],
        lambda f: lambda x: torch.func.jvp(f, (x,), (x.cos(),))[1],
        (3,),
    ),
    "vmap(jacrev)": (
        lambda f: torch_tower.vmap(torch_tower.jacrev(f)),
        lambda f: lambda x: torch.stack([torch.func.jacrev(f)(row) for row in x]),
        (2, 3),
    ),
}


@pytest.mark.parametrize("outer", OUTER)
@pytest.mark.parametrize("inner", INNER)
def test_a_transform_of_torch_func_inside_of_towers(inner, outer):
    transform, reference, shape = OUTER[outer]
    x = randn(*shape)
    torch.set_default_dtype(torch.float64)
    try:
        assert_same(transform(INNER[inner])(x), reference(INNER[inner])(x))
    finally:
        torch.set_default_dtype(torch.float32)


def test_functorchs_own_refusals_stay():
    with pytest.raises(RuntimeError, match="requires_grad_"):
        torch_tower.vmap(torch.func.grad(lambda x: x.clone().requires_grad_().sum()))(randn(2, 3))


def test_backward_of_what_depends_on_no_example_reaches_captured_tensors_once():
    w = randn(3).requires_grad_()
    torch_tower.vmap(lambda x: (w * 2).sum().backward() or x)(randn(2, 3))
    assert_same(w.grad, torch.full((3,), 2.0, dtype=torch.float64))


def test_torchs_autograd_of_what_depends_on_no_example_is_batched():
    x, y = randn(3).requires_grad_(), randn(3)
    directions = torch.eye(3, dtype=torch.float64)

    def pullback(v, **options):
        return torch.autograd.grad([x * y], [x], v, **options)[0]

    assert_same(torch_tower.vmap(pullback)(directions), torch.diag(y))
    out = x.sin() * y

    def once_more(v):
        return torch.autograd.grad(out, x, v, retain_graph=True)[0]

    assert_same(torch_tower.vmap(once_more)(directions), torch.diag(x.cos() * y))
    assert_same(torch_tower.grad(lambda v: pullback(v, create_graph=True).square().sum())(y), 2 * y * y * y)


@pytest.mark.parametrize(
    "ask",
    [
        lambda x, v: torch.autograd.grad((x * v).sum(), x)[0],
        lambda x, v: (x * v).sum().backward() or x,
    ],
)
def test_torchs_autograd_of_a_tracked_value_is_an_error_with_advice(ask):
    x = randn(3).requires_grad_()
    with pytest.raises(RuntimeError, match=r"vmap \(level 1\): backward\(\) or torch.autograd.grad .* torch_tower"):
        torch_tower.vmap(lambda v: ask(x, v))(torch.eye(3, dtype=torch.float64))
