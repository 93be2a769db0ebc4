"""Which results of a compiled function LibTorch's autograd follows. Oracle: the function, uncompiled."""

import pytest
import torch
from support import randn
from torch_tower import compile


def beside_each_other(x, w):
    y = (x * 2).sin().cos().exp()
    return y.detach(), (y * w.sin()).cos(), (x * 3).sin().cos().exp(), w.sin().cos().exp() * 2


def of_detached(x, w):
    y = (x * w).sin().cos().exp()
    return y.detach() + w.detach(), y.sin().cos(), y.detach().sin().cos() * 2, x.argmax(), x > w


def without_grad_mode(x, w):
    with torch.no_grad():
        fixed = (x * w).sin().cos().exp()
    return fixed, (fixed * w).sin().cos(), fixed.sin(), (x.detach() * fixed).sin()


@pytest.mark.parametrize("f", (beside_each_other, of_detached, without_grad_mode))
def test_results_require_grad_where_those_of_the_function_do(f):
    fast = compile(f)
    for of_x, of_w in ((False, True), (True, True), (True, False), (False, False)):
        x, w = randn(2, 3).requires_grad_(of_x), randn(3).requires_grad_(of_w)
        given = [t for t in (x, w) if t.requires_grad]
        for _ in range(2):
            found, expected = fast(x, w), f(x, w)
            assert [t.requires_grad for t in found] == [t.requires_grad for t in expected]
            sums = [sum(t.sum() for t in results if t.requires_grad) for results in (found, expected)]
            if any(t.requires_grad for t in expected):
                grads = [torch.autograd.grad(s, given, materialize_grads=True) for s in sums]
                torch.testing.assert_close(*grads)
