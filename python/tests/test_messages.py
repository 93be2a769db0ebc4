"""What errors say: in Python's words, what to do, and with torch.func's words where other libraries look for them."""

import re

import pytest
import torch
import torch_tower
from torch.autograd import Function
from torch_tower import check_grads, grad, hvp, jacfwd, jvp, vjp, vmap

w = torch.ones(3, requires_grad=True)
x = torch.ones(2, 3)
scalar = torch.tensor(1.0)


class WithRule(Function):
    @staticmethod
    def forward(x):
        return x * 2

    @staticmethod
    def setup_context(ctx, inputs, output):
        pass


def returning(value):
    """A Function whose vmap rule returns this."""
    return type("Broken", (WithRule,), {"vmap": staticmethod(lambda info, in_dims, x: value(x))})


ADVICE = [
    (lambda: vmap(lambda x: x + torch.randn(3))(x), 'randomness="different" draws for each example'),
    (lambda: jacfwd(lambda x: x + torch.randn(3))(x[0]), 'randomness="same" shares one draw'),
    (lambda: vmap(lambda x: x, (None,))(x), "every in_dim is None"),
    (lambda: vmap(torch.sin)(scalar), "in_dim 0 cannot be mapped. Leave its in_dim None"),
    (lambda: vmap(torch.sin, out_dims=None)(x), "its out_dim is None, which promises"),
    (lambda: vjp(lambda x: (x, x > 0), x)[1]((x, x)), "The cotangent must be None"),
    (lambda: grad(lambda x: (x * w).sum().backward() or x.sum())(x), "Call torch_tower.grad or torch_tower.vjp"),
    (lambda: vmap(lambda x: (x * w).sum().backward() or x)(x), "vmap (level 1): backward() or torch.autograd.grad"),
    (lambda: vmap(lambda x: torch.autograd.grad((x * w).sum(), w)[0])(x), "Call torch_tower.grad or torch_tower.vjp"),
    (lambda: jvp(lambda x: (x * w).sum().backward() or x, (x,), (x,)), "Call torch_tower.grad or torch_tower.vjp"),
    (lambda: grad(lambda x: ((x * 2).register_hook(abs), x.sum())[1])(x), "Use a torch.autograd.Function to change"),
    (lambda: vmap(returning(lambda x: x).apply)(x), "Broken: Expected the vmap staticmethod to have two returns"),
    (lambda: vmap(returning(lambda x: (x, 0, 0)).apply)(x), "It returned a tuple of 3 elements"),
    (lambda: vmap(returning(lambda x: (x, "0")).apply)(x), "out_dims has a str"),
    (lambda: jvp(torch.sin, scalar, scalar), "jvp: Expected primals to be a tuple"),
    (lambda: hvp(torch.sin, scalar, scalar), "hvp: Expected primals to be a tuple"),
    (lambda: check_grads(torch.sin, scalar), "check_grads: Expected args to be a tuple"),
    (lambda: vmap(lambda w: torch.nn.functional.embedding(torch.tensor([0]), w))(x), "'weight' must be 2-D"),
]


@pytest.mark.parametrize("case", range(len(ADVICE)))
def test_advice_is_pythons(case):
    call, words = ADVICE[case]
    with pytest.raises((RuntimeError, ValueError), match=re.escape(words)) as caught:
        call()
    assert not re.search(r"tower::|torch::|\w+::\w+\}|pybind|NoGradGuard|undefined|empty", str(caught.value))


THEIRS = [
    (RuntimeError, lambda t: t.grad(torch.sum, has_aux=True)(x), r"\(output, aux\) if has_aux is True"),
    (
        RuntimeError,
        lambda t: t.vjp(torch.sum, x, has_aux=True),
        r"should be a tuple: \(output, aux\) if has_aux is True",
    ),
    (RuntimeError, lambda t: t.jvp(torch.sum, (x,), (x,), has_aux=True), r"\(output, aux\) if has_aux is True"),
    (RuntimeError, lambda t: t.jacrev(torch.sum, has_aux=True)(x), r"\(output, aux\) if has_aux is True"),
    (RuntimeError, lambda t: t.jacfwd(torch.sum, has_aux=True)(x), r"\(output, aux\) if has_aux is True"),
    (RuntimeError, lambda t: t.vjp(lambda x: 1.0, x), "got unsupported type <class 'float'>"),
    (RuntimeError, lambda t: t.jvp(lambda x: 1.0, (x,), (x,)), "got unsupported type <class 'float'>"),
    (
        RuntimeError,
        lambda t: t.jvp(torch.sin, x, x),
        "Expected primals to be a tuple. E.g. it should be valid to call f",
    ),
    (
        RuntimeError,
        lambda t: t.jvp(torch.sin, (x,), (x, x)),
        "Expected primals and tangents to have the same python structure",
    ),
    (
        RuntimeError,
        lambda t: t.vjp(torch.sin, x)[1]((x, x)),
        "Expected pytree structure of cotangents to be the same as pytree structure of outputs to the function",
    ),
    (RuntimeError, lambda t: t.grad(torch.sum, 2)(x), "Got argnum=2, but only 1 positional inputs"),
    (RuntimeError, lambda t: t.grad(torch.sum, ())(x), "argnums must be non-empty"),
    (RuntimeError, lambda t: t.grad(torch.sum, (0, 0))(x), "argnums elements must be unique, got"),
    (ValueError, lambda t: t.grad(torch.sum)(1.0), "Thing passed to transform API must be Tensor, got <class 'float'>"),
    (ValueError, lambda t: t.vmap(lambda x: 1.0)(x), "must only return Tensors, got type <class 'float'>"),
    (ValueError, lambda t: t.vmap(torch.mul)(x, 1.0), "please use None as the respective in_dim"),
    (ValueError, lambda t: t.vmap(torch.sin)(), "got no inputs"),
    (ValueError, lambda t: t.vmap(torch.sin, [0])(x), "to be int or a .potentially nested. tuple"),
    (ValueError, lambda t: t.vmap(torch.sin, (0, 0))(x), "is not compatible with the structure of"),
    (ValueError, lambda t: t.vmap(torch.sin, out_dims=(0, 0))(x), "is not compatible with the structure of"),
    (
        RuntimeError,
        lambda t: t.vmap(returning(lambda x: x).apply)(x),
        "Expected the vmap staticmethod to have two returns",
    ),
]


@pytest.mark.parametrize("case", range(len(THEIRS)))
@pytest.mark.parametrize("library", [torch_tower, torch.func], ids=["ours", "torch.func"])
def test_the_words_of_torch_func_are_in_ours(library, case):
    kind, call, words = THEIRS[case]
    with pytest.raises(kind, match=words):
        call(library)
