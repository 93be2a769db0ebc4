"""Hooks for saved tensors are for what LibTorch's autograd saves: the tapes of reverse mode refuse them."""

import pytest
import torch
from support import assert_same
from torch.autograd.graph import save_on_cpu, saved_tensors_hooks
from torch.utils.checkpoint import checkpoint
from torch_tower import grad, hessian, jacfwd, jacrev, jvp, vjp, vmap

X = torch.linspace(0.5, 1.5, 3, dtype=torch.float64)
TRANSFORMS = {
    "grad": lambda f: grad(lambda x: f(x).sum()),
    "vjp": lambda f: lambda x: vjp(f, x)[0],
    "jacrev": jacrev,
    "hessian": lambda f: hessian(lambda x: f(x).sum()),
    "vmap of grad": lambda f: vmap(grad(f)),
}


@pytest.mark.parametrize("name", TRANSFORMS)
def test_hooks_around_or_inside_of_reverse_mode_are_refused(name):
    def inside(x):
        with saved_tensors_hooks(lambda t: t * 0, lambda t: t):
            return x * x

    with pytest.raises(RuntimeError, match="don't yet support saved tensor hooks"):
        TRANSFORMS[name](inside)(X)
    for context in (save_on_cpu(), saved_tensors_hooks(lambda t: t * 0, lambda t: t)):
        with context, pytest.raises(RuntimeError, match="don't yet support saved tensor hooks"):
            TRANSFORMS[name](lambda x: x * x)(X)
    TRANSFORMS[name](lambda x: x * x)(X)


def test_hooks_around_the_other_transforms_see_what_libtorch_saves():
    x, seen = X.clone().requires_grad_(), []
    with saved_tensors_hooks(lambda t: seen.append(t) or t, lambda t: t):
        y = vmap(lambda e: e * e)(x)
        tangent = jvp(lambda u: u * u, (x.detach(),), (x.detach(),))[1]
        columns = jacfwd(lambda u: u * u)(x.detach())
    assert seen
    assert_same(torch.autograd.grad(y.sum(), x)[0], 2 * x.detach())
    assert_same(tangent, 2 * x.detach() ** 2)
    assert_same(columns, torch.diag(2 * x.detach()))


def test_checkpoints_inside_and_around_compute_what_their_function_computes():
    x, w = X, X.cos()
    run = lambda f, *args: checkpoint(f, *args, use_reentrant=False)
    assert_same(grad(lambda u: run(lambda: (u * u).sin()).sum())(x), (x * x).cos() * 2 * x)
    assert_same(vmap(grad(lambda u: run(lambda: (u * u).sin())))(x), (x * x).cos() * 2 * x)
    leaf = w.clone().requires_grad_()
    y = run(lambda v: grad(lambda u: (u * u * v).sum())(x), leaf)
    assert_same(torch.autograd.grad(y.sum(), leaf)[0], 2 * x)
