"""torch.utils.checkpoint inside Tower's transforms: the function is called as a checkpoint of Tower's.

With use_reentrant=True, torch's checkpoint is a torch.autograd.Function, which Tower runs (_functions.py). Without, it
saves the arguments, begins hooks for what LibTorch's autograd saves, and calls the function. Tower's tapes save nothing
there; so where the hooks begin, the function that is about to be called is replaced, in that call alone.
"""

import inspect
import sys
from types import FrameType
from typing import Any, Callable

import torch.utils.checkpoint
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode

from . import _C, _control_flow

_CHECKPOINT = inspect.unwrap(torch.utils.checkpoint.checkpoint).__code__
_MODULE = torch.utils.checkpoint.__name__


def save_argument(argument: Tensor, is_output: bool) -> Tensor:
    """In place of a SavedTensor, which holds no tensor of a transform; Tower's checkpoint keeps its own arguments."""
    del is_output
    return argument


def begin_hooks(pack: Callable, unpack: Callable) -> tuple[Callable, Callable]:
    """The hooks to begin. Those of a checkpoint would run LibTorch's autograd on what it saved."""
    if pack.__module__ != _MODULE or not pack.__qualname__.startswith("_checkpoint_hook."):
        return pack, unpack
    frame = sys._getframe(1)
    while frame is not None and frame.f_globals.get("__name__") in (_MODULE, "torch.autograd.graph"):
        if frame.f_code is _CHECKPOINT:
            _replace_function(frame)
            break
        frame = frame.f_back
    return _as_it_is, _as_it_is


def _as_it_is(tensor: Tensor) -> Tensor:
    return tensor


_as_it_is.__module__ = _MODULE  # hooks of a checkpoint are those that tapes pass over


def _replace_function(checkpoint: FrameType) -> None:
    variables = checkpoint.f_locals
    function, context_fn = variables["function"], variables["context_fn"]
    if context_fn is not torch.utils.checkpoint.noop_context_fn:
        function = _in_contexts(function, context_fn)
    variables["function"] = _control_flow.checkpoint(function)
    _C.write_locals(checkpoint)


def _in_contexts(function: Callable, context_fn: Callable) -> Callable:
    """The function, in the context for computing it again where it is; torch's checkpoint sees to the first time.

    A mode that chooses what is kept keeps nothing here.
    """
    first = [True]

    def run(*args, **kwargs) -> Any:
        context = context_fn()[1]
        if first or isinstance(context, TorchDispatchMode):
            result = function(*args, **kwargs)
            first.clear()
            return result
        with context:
            return function(*args, **kwargs)

    return run
