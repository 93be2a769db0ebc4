"""What the tests share."""

import torch
from torch.autograd import Function
from torch.testing import assert_close
from torch.utils._pytree import tree_flatten

# A kernel that was printed and then refused is a defect, though what is computed without it is right. (For warnings'
# filters.)
REFUSED_KERNEL = ".*operator by operator, not as machine code. (?!no LLVM)"


def assert_same(ours, theirs, **tolerances):
    """The same tree with the same values and dtypes."""
    our_leaves, our_spec = tree_flatten(ours)
    their_leaves, their_spec = tree_flatten(theirs)
    assert our_spec == their_spec
    for a, b in zip(our_leaves, their_leaves):
        if isinstance(b, torch.Tensor):
            assert_close(a, b, **tolerances)
        else:
            assert a == b


def randn(*shape):
    return torch.randn(*(shape or [()]), dtype=torch.float64)


class Cube(Function):
    """x³, with a derivative of its own in both modes, and a rule for vmap."""

    generate_vmap_rule = True

    @staticmethod
    def forward(x):
        return x**3

    @staticmethod
    def setup_context(ctx, inputs, output):
        ctx.save_for_backward(*inputs)
        ctx.save_for_forward(*inputs)

    @staticmethod
    def backward(ctx, grad):
        return 3 * ctx.saved_tensors[0] ** 2 * grad

    @staticmethod
    def jvp(ctx, tangent):
        return 3 * ctx.saved_tensors[0] ** 2 * tangent


class KeepsInputs(Function):
    """A base whose context keeps the inputs for backward."""

    @staticmethod
    def setup_context(ctx, inputs, output):
        ctx.save_for_backward(*inputs)


class KeepsNothing(Function):
    """A base for forward in the shape without a ctx."""

    @staticmethod
    def setup_context(ctx, inputs, output):
        pass
