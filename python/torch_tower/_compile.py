"""torch.compile beside Tower: around a transform there is a graph break, and inside of one operators run one by one.

Nothing here imports torch._dynamo, which takes seconds: its marks are attributes of functions and of code.
"""

import functools
from types import CodeType
from typing import Any, Callable

from torch._C._dynamo.eval_frame import _FrameAction, _FrameExecStrategy, set_code_exec_strategy

_MARKS = {
    "_torchdynamo_disable": True,
    "_torchdynamo_disable_msg": "torch_tower: transforms are not compiled. Leave out fullgraph=True, so that the graph "
    "breaks here, or compile what needs no transform.",
}


def _skip(code: CodeType) -> None:
    """Neither this code nor what it calls is compiled when it runs."""
    set_code_exec_strategy(code, _FrameExecStrategy(_FrameAction.SKIP, _FrameAction.SKIP))
    for constant in code.co_consts:
        if isinstance(constant, CodeType):
            _skip(constant)


def uncompiled(function: Callable) -> Callable:
    """Marks a function of the package: Dynamo neither traces nor compiles it, nor the functions that it makes."""
    _skip(function.__code__)
    vars(function).update(_MARKS)
    return function


def transformed(func: Callable) -> Callable:
    """functools.wraps(func), for a function that a transform makes of it."""

    # What torch.compile noted of `func` does not hold: it leads to `func` without the transform.
    updated = () if hasattr(func, "_torchdynamo_orig_callable") else functools.WRAPPER_UPDATES

    def mark(function: Callable) -> Callable:
        functools.update_wrapper(function, func, updated=updated)
        vars(function).update(_MARKS)
        return function

    return mark


def begin_inside() -> Any:
    """A compiled function is called inside of a transform: it runs as it was before it was compiled."""
    from torch._dynamo.eval_frame import dynamo_tls, set_fullgraph_compiled_frame_count
    from torch._higher_order_ops.utils import _in_hop_compile

    if _in_hop_compile():
        # One of torch's higher-order operators, which are always called so. That nothing is compiled is no error.
        set_fullgraph_compiled_frame_count(-1)
    elif dynamo_tls.skip_reasons is not None:  # with fullgraph=True, that is an error, of which this is a part
        dynamo_tls.skip_reasons.append(
            "It was called inside of a transform of torch_tower, where operators run one by one. Leave out "
            "fullgraph=True, or compile around the transform."
        )
