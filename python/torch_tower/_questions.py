"""Questions about a tensor that code asks which must do without Tower's values."""

from torch import Tensor

from . import _C


def is_batched(tensor: Tensor) -> bool:
    """Whether `tensor` may differ between the examples of a batch: a running vmap maps over what it was made from.

    In place of `torch._C._functorch.is_batchedtensor`; transforms that lie above do not hide the batch.
    """
    return _C.is_batched(tensor)


def is_tracked(tensor: Tensor) -> bool:
    """Whether a derivative is taken of `tensor`: a running grad, vjp, jvp, … differentiates by what it was made from.

    In place of `torch._C._functorch.is_gradtrackingtensor`; transforms that lie above do not hide it. A constant inside
    of a transform is neither tracked nor batched.
    """
    return _C.is_tracked(tensor)
