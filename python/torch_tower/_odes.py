"""odeint."""

from enum import IntEnum
from typing import Any, Callable, NamedTuple, Sequence

import torch
from torch import Tensor

from . import _C
from ._compile import uncompiled
from ._control_flow import _check_checkpoints, _state
from ._kept import KeptFunction


class OdeStatus(IntEnum):
    """How an integration ended: the numbers in `OdeSolution.status`."""

    reached = 0
    max_steps = 1
    step_too_small = 2
    not_finite = 3
    unordered_times = 4


class OdeSolution(NamedTuple):
    """What `odeint` found. Under vmap each system has its own. `ys` and `t` have derivatives; the others are reports.

    `ys`: y at each of `ts`, along a new first dimension of each tensor, nan at times that were not reached; `t`: the
    time that was reached, the last of `ts` or where it ended before; `status`, int64: an OdeStatus; `steps`, int64: how
    many were tried; `rejected`, int64: how many of these were not made, because their error was too large.
    """

    ys: Any
    t: Tensor
    status: Tensor
    steps: Tensor
    rejected: Tensor


@uncompiled
def odeint(
    f: Callable,
    y0: Any,
    ts: Tensor | Sequence[float],
    *,
    method: str = "tsit5",
    rtol: float = 1e-6,
    atol: float = 1e-9,
    step: float | None = None,
    first_step: float | None = None,
    longest_step: float | None = None,
    max_steps: int = 10_000,
    checkpoints: int | str = "all",
    compact: float = 0.0,
) -> OdeSolution:
    """The solution of y' = f(t, y) from `y0`, a tree of real tensors of one dtype, at all of the times `ts`.

    `f` takes a time and a state and returns a tree like y0; y0 is the state at ts[0], and the times go up or down. The
    `method` is "tsit5" or "dopri5", explicit and of order five, or "rodas5p", for stiff systems of up to some hundred
    numbers. Steps are made where √(mean of (error / (`atol` + `rtol` · max(|y|, |y of the next step|)))²) is at most
    one; the first one to be tried is `first_step`, none is longer than `longest_step`, and there are at most
    `max_steps`. With `step` all have that length, positive also where time goes backwards, and tolerances mean nothing.

    Under vmap each system has its own steps and its own end; that one does not reach its last time is no exception, but
    stands in its `status`. `ys` has derivatives by y0, by `ts` and by what `f` captured, in both modes and to any
    order, through the steps that were made; how long these were has none. `checkpoints` ("all", "automatic" or a
    number) and `compact` are as in `while_loop`. ValueError where sizes, dtypes or options are wrong.
    """
    state, leaves = _state("odeint", "state y0", "the right-hand side", y0)
    _check_checkpoints("odeint", checkpoints)
    options = {
        "method": method,
        "rtol": rtol,
        "atol": atol,
        "step": step,
        "first_step": first_step,
        "longest_step": longest_step,
        "max_steps": max_steps,
        "checkpoints": checkpoints,
        "compact": compact,
    }
    times = ts if isinstance(ts, Tensor) else torch.tensor(ts, dtype=torch.float64)
    with KeptFunction(f) as held:

        def slope(t: Tensor, y: list[Tensor]) -> list[Tensor]:
            return state.leaves(held(t, state.arrive(y)))

        ys, *reports = _C.odeint(slope, leaves, times, options)
    return OdeSolution(state.arrive(ys), *reports)
