"""What reads a tensor's values from Python, inside a transform: print shows what it is and holds, numpy refuses."""

import torch

from . import _C


def show(tensor: torch.Tensor) -> str:
    return _C.text_of(tensor, torch.Tensor.__repr__)


def check_readable(self, *, force=False):
    if not force and (_C.is_batched(self) or _C.is_tracked(self)):
        self.data_ptr()  # raises: an array would lose what the transform tracks


def new_tensor(self, data, *, dtype=None, device=None, **options):
    return torch.tensor(data, dtype=dtype or self.dtype, device=device or self.device, **options)


def _without_constants(t: torch.Tensor) -> torch.Tensor:
    while isinstance(t, torch.Tensor) and (seen := _C.inspect(t)) and seen[4]:
        t = seen[5]
    return t


def differentiable_by_torch(outputs: tuple) -> tuple:
    """What backward() and torch.autograd.grad differentiate inside a transform: values that depend on none. Of what a
    transform tracks they find no way back, and say what to use."""
    return tuple(_without_constants(t) for t in outputs)
