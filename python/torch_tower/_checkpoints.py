"""torch.utils.checkpoint inside Tower's transforms: the function is called as a checkpoint of Tower's.

With use_reentrant=True, torch's checkpoint is a torch.autograd.Function, whose call Tower sees. Without, it saves the
arguments, begins hooks for what LibTorch's autograd saves, and calls the function. Tower's tapes save nothing
there; so where the hooks begin, the function that is about to be called is replaced, in that call alone.
"""

import inspect
import sys
from types import CodeType, FrameType, FunctionType
from typing import Any, Callable

import torch.utils.checkpoint
from torch import Tensor
from torch.nn import Module
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves
from torch.utils.checkpoint import CheckpointFunction, noop_context_fn

from . import _C, _control_flow, _functions
from ._kept import captured

# The code that calls the function.
_CHECKPOINT = inspect.unwrap(torch.utils.checkpoint.checkpoint).__code__
_MODULE = torch.utils.checkpoint.__name__


def apply(cls: type, *args, **kwargs) -> Any:
    """`cls.apply(…)` of a torch.autograd.Function inside Tower's transforms."""
    if cls is CheckpointFunction:
        # Its backward would run LibTorch's autograd, which knows no level of a transform.
        function, _preserve_rng_state, *inputs = args
        return checkpointed(function)(*inputs)
    return _functions.apply(cls, args, kwargs)


def save_argument(argument: Tensor, is_output: bool) -> Tensor:
    """In place of a SavedTensor, which holds no tensor of a transform; Tower's checkpoint keeps its own arguments."""
    del is_output
    return argument


def begin_hooks(pack: Callable, unpack: Callable) -> tuple[Callable, Callable]:
    """The hooks to begin. Those of a checkpoint would run LibTorch's autograd on what it saved."""
    if not isinstance(pack, FunctionType) or pack.__module__ != _MODULE or "_checkpoint_hook." not in pack.__qualname__:
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
    variables["function"] = checkpointed(variables["function"], variables["context_fn"])
    _C.write_locals(checkpoint)


def checkpointed(function: Callable, context_fn: Callable = noop_context_fn) -> Callable:
    """The function as a checkpoint of Tower's, in the context for computing it again where that is done.

    torch's checkpoint sees to the context of the first time. A mode that chooses what is kept keeps nothing here.
    """
    tensors = _captured_tensors(function)
    if torch.is_grad_enabled() and any(t.requires_grad and not _C.is_wrapper(t) for t in tensors):
        return function  # LibTorch's autograd, around the transforms, follows what is run as it is
    first = [True]

    def run(*args, **kwargs) -> Any:
        if first:
            given = [leaf for leaf in tree_leaves((args, kwargs)) if isinstance(leaf, Tensor)]
            before = [_stamp(t) for t in given]
            result = function(*args, **kwargs)
            if any(_differ(_stamp(t), stamp) for t, stamp in zip(given, before)):
                raise RuntimeError(
                    "torch.utils.checkpoint: the function writes to an argument, in which it would find what it wrote "
                    "when it is computed again. Write to a copy, or call the function without a checkpoint."
                )
            first.clear()
            return result
        context = context_fn()[1]
        if isinstance(context, TorchDispatchMode):
            return function(*args, **kwargs)
        with context:
            return function(*args, **kwargs)

    return _control_flow.checkpoint(run)


def _captured_tensors(function: Callable) -> list[Tensor]:
    """Those in variables, in modules, and in global variables that it names."""
    found: dict[int, Any] = {}
    captured(function, found)
    for value in list(found.values()):
        if isinstance(value, FunctionType):
            for name in _names(value.__code__):
                if isinstance(part := value.__globals__.get(name), (Tensor, Module)):
                    captured(part, found)
    tensors = [value for value in found.values() if isinstance(value, Tensor)]
    for module in found.values():
        if isinstance(module, Module):
            tensors += [*module.parameters(), *module.buffers()]
    return tensors


def _names(code: CodeType) -> set[str]:
    return set(code.co_names).union(*(_names(part) for part in code.co_consts if isinstance(part, CodeType)))


def _stamp(tensor: Tensor) -> list:
    """What a write changes: a wrapper's value, or a plain tensor's version."""
    stamp = []
    while seen := _C.inspect(tensor):
        tensor = seen[5]
        stamp.append(tensor)
    return [*stamp, None if tensor.is_inference() else tensor._version]


def _differ(now: list, before: list) -> bool:
    return now[-1] != before[-1] or len(now) != len(before) or any(a is not b for a, b in zip(now[:-1], before[:-1]))
