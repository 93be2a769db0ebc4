"""What reads a tensor's values from Python, inside a transform: print shows what it is and holds, numpy refuses."""

import functools
import textwrap

import torch

from . import _C

_CLASSES = {"vmap": "BatchedTensor", "jvp": "DualTensor", "vjp": "TapedTensor"}
_tensor_str = torch._tensor_str._str


def _describe(tensor: torch.Tensor) -> str:
    seen = _C.inspect(tensor)
    if seen is None:
        return _C.suspended(lambda: _tensor_str(tensor))
    transform, _, level, ended, constant, value, tangent, batch_dim = seen
    if constant:
        return _describe(value)
    parts = [f"level={level}"]
    if batch_dim is not None:
        parts.append(f"bdim={batch_dim}")
    parts.append("value=" + _describe(value))
    if transform == "jvp":
        parts.append("tangent=" + (_describe(tangent) if tangent is not None else "0"))
    if ended:
        parts.append("ended=True")
    if any("\n" in part for part in parts):
        return f"{_CLASSES[transform]}(\n" + textwrap.indent(",\n".join(parts), "  ") + "\n)"
    return f"{_CLASSES[transform]}({', '.join(parts)})"


def _str(self, *, tensor_contents=None):
    if _C.is_wrapper(self):
        return _describe(self)
    if _C.inside_transform():
        return _C.suspended(lambda: _tensor_str(self, tensor_contents=tensor_contents))
    return _tensor_str(self, tensor_contents=tensor_contents)


_numpy = torch._C.TensorBase.numpy


@functools.wraps(_numpy)
def numpy(self, *, force=False):
    if not force and _C.is_tracked(self):
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
