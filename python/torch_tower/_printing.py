"""How tensors inside a transform print: what they are and hold, in place of numbers that one example does not have."""

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


def install() -> None:
    """Makes torch print tensors of Tower's transforms like this. Others print as before."""
    torch._tensor_str._str = _str
