"""What reads a tensor's values from Python, inside a transform: print shows what it is and holds, numpy refuses."""

import functools

import torch

from . import _C

_tensor_str = torch._tensor_str._str


def _describe(tensor: torch.Tensor) -> str:
    return _C.text_of(tensor, _tensor_str)


def _str(self, *, tensor_contents=None):
    if _C.is_wrapper(self):
        return _describe(self)
    if _C.inside_transform():
        return _C.suspended(lambda: _tensor_str(self, tensor_contents=tensor_contents))
    return _tensor_str(self, tensor_contents=tensor_contents)


_numpy = torch._C.TensorBase.numpy


@functools.wraps(_numpy)
def numpy(self, *, force=False):
    if not force and (_C.is_batched(self) or _C.is_tracked(self)):
        self.data_ptr()  # raises: an array would lose what the transform tracks
    return _numpy(self, force=force)


_new_tensor = torch._C.TensorBase.new_tensor


@functools.wraps(_new_tensor)
def new_tensor(self, data, *, dtype=None, device=None, **options):
    if not _C.is_wrapper(self):
        return _new_tensor(self, data, dtype=dtype, device=device, **options)
    return torch.tensor(data, dtype=dtype or self.dtype, device=device or self.device, **options)


def install() -> None:
    """Makes tensors of Tower's transforms do this. Others are read as before."""
    torch._tensor_str._str = _str
    torch.Tensor.numpy = numpy
    torch.Tensor.new_tensor = new_tensor
