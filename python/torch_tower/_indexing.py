"""x[i] and x[i] = v where the number i differs between the examples of a batch: it becomes an index tensor."""

from typing import Any

import torch
from torch import Tensor
from torch.overrides import handle_torch_function, has_torch_function_unary

from . import _C


def _consumed(entry: Any) -> int:
    """How many dimensions an entry of an index stands for; the ellipsis aside."""
    if entry is None or isinstance(entry, bool):
        return 0
    if isinstance(entry, Tensor) and entry.dtype in (torch.bool, torch.uint8):
        return entry.dim()
    return 1


def _plan(x: Tensor, index: Any) -> tuple[tuple, list[tuple]]:
    """The index with 0 in place of the mapped numbers, and each of these with its dimension."""
    entries = index if isinstance(index, tuple) else (index,)
    rest = x.dim() - sum(_consumed(entry) for entry in entries if entry is not Ellipsis)
    plain, numbers, dim = [], [], 0
    for entry in entries:
        if isinstance(entry, Tensor) and _C.is_mapped_number(entry):
            numbers.append((dim, entry))
            plain.append(0)
        else:
            plain.append(entry)
        dim += rest if entry is Ellipsis else _consumed(entry)
    return tuple(plain), numbers


def select(x: Tensor, index: Any) -> Tensor:
    if has_torch_function_unary(x):
        return handle_torch_function(Tensor.__getitem__, (x,), x, index)
    plain, numbers = _plan(x, index)
    for dim, number in numbers:
        x = x.narrow(dim, number, 1)  # a view, as x[number] is
    return x[plain]


def put(x: Tensor, index: Any, value: Any) -> None:
    if has_torch_function_unary(x):
        return handle_torch_function(Tensor.__setitem__, (x,), x, index, value)
    plain, numbers = _plan(x, index)
    for dim, number in numbers:
        x = x.narrow(dim, number, 1)
    x[plain] = value
