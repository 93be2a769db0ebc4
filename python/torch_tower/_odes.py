"""odeint, odeint_until."""

from enum import IntEnum
from typing import Any, Callable, NamedTuple, Sequence

import torch
from torch import Tensor

from . import _C
from ._compile import uncompiled
from ._containers import flatten
from ._control_flow import _check_checkpoints, _Same, _state
from ._kept import KeptFunction
from ._trees import what_is


class OdeStatus(IntEnum):
    """How an integration ended: the numbers in `status`. `event` is that of `odeint_until`."""

    reached = 0
    max_steps = 1
    step_too_small = 2
    not_finite = 3
    unordered_times = 4
    event = 5


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


class OdeEventSolution(NamedTuple):
    """What `odeint_until` found. Under vmap each system has its own. `ys`, `t` and `y` have derivatives.

    `ys`: y at each of `ts`, along a new first dimension, nan behind the event and where not reached; `t`: the time of
    the event, or, where it did not happen, the time that was reached; `y`: the state at that time; `status`, int64:
    OdeStatus.event where the event happened; `steps` and `rejected`, int64, as of `odeint`.
    """

    ys: Any
    t: Tensor
    y: Any
    status: Tensor
    steps: Tensor
    rejected: Tensor


_OPTIONS = {
    "method",
    "rtol",
    "atol",
    "step",
    "first_step",
    "longest_step",
    "max_steps",
    "checkpoints",
    "compact",
    "adjoint",
    "crossing",
}


def _named(arguments: dict) -> dict:
    given = {name: value for name, value in arguments.items() if name in _OPTIONS}
    return {"crossing": "any", "adjoint": "steps", **given}


def _problem(op: str, y0: Any, ts: Tensor | Sequence[float], options: dict) -> tuple[_Same, list[Tensor], Tensor]:
    state, leaves = _state(op, "state y0", "the right-hand side", y0)
    _check_checkpoints(op, options["checkpoints"])
    for name in ("rtol", "atol"):
        options[name] = _tolerance(op, name, options[name], state)
    return state, leaves, ts if isinstance(ts, Tensor) else torch.tensor(ts, dtype=torch.float64)


def _tolerance(op: str, name: str, value: Any, state: _Same) -> float | list[Tensor]:
    if isinstance(value, (int, float)):
        return value
    if isinstance(value, Tensor) and value.dim() == 0:
        return [value]
    flat, spec = flatten(value)
    each = [flat[k] for k in state.positions] if spec == state.spec else [None]
    if not all(isinstance(number, (int, float, Tensor)) for number in each):
        raise ValueError(
            f"{op}: {name} is {value!r}; it must be a number, or a tree like the state y0 that has a number or a "
            "tensor for each of its tensors."
        )
    return [number if isinstance(number, Tensor) else torch.tensor(number, dtype=torch.float64) for number in each]


def _slope(state: _Same, f: Callable) -> Callable:
    return lambda t, y: state.leaves(f(t, state.arrive(y)))


@uncompiled
def odeint(
    f: Callable,
    y0: Any,
    ts: Tensor | Sequence[float],
    *,
    method: str = "tsit5",
    rtol: Any = 1e-6,
    atol: Any = 1e-9,
    step: float | None = None,
    first_step: float | None = None,
    longest_step: float | None = None,
    max_steps: int = 10_000,
    checkpoints: int | str = "all",
    compact: float = 0.0,
    adjoint: str = "steps",
) -> OdeSolution:
    """The solution of y' = f(t, y) from `y0`, a tree of real tensors of one dtype, at all of the times `ts`.

    `f` takes a time and a state and returns a tree like y0; y0 is the state at ts[0], and the times go up or down. The
    `method` is "tsit5" or "dopri5", explicit and of order five, "dop853", explicit and of order eight, for small
    tolerances, or "rodas5p", for stiff systems of up to some hundred numbers. Steps are made where √(mean of (error /
    (`atol` + `rtol` · max(|y|, |y of the next step|)))²) is at most one; the first one to be tried is `first_step`,
    none is longer than `longest_step`, and there are at most `max_steps`. A tolerance is a number, or a tree like y0
    that has a number or a tensor for each tensor; a component whose tolerance is infinite does not count in the mean.
    With `step` all have that length, positive also where time goes backwards, and tolerances mean nothing.

    Under vmap each system has its own steps and its own end; that one does not reach its last time is no exception, but
    stands in its `status`. `ys` has derivatives by y0, by `ts` and by what `f` captured, in both modes and to any
    order, through the steps that were made; how long these were has none. With the `adjoint` "continuous" reverse mode
    solves the adjoint equation instead, backwards, by the same method and tolerances: states are kept at `ts` alone,
    and gradients are right to the tolerances. `checkpoints` ("all", "automatic" or a number) and `compact` are as in
    `while_loop`. ValueError where sizes, dtypes or options are wrong.
    """
    options = _named(locals())
    state, leaves, times = _problem("odeint", y0, ts, options)
    with KeptFunction(f) as held:
        ys, *reports = _C.odeint(_slope(state, held), leaves, times, options)
    return OdeSolution(state.arrive(ys), *reports)


@uncompiled
def odeint_until(
    f: Callable,
    event: Callable,
    y0: Any,
    ts: Tensor | Sequence[float],
    *,
    crossing: str = "any",
    method: str = "tsit5",
    rtol: Any = 1e-6,
    atol: Any = 1e-9,
    step: float | None = None,
    first_step: float | None = None,
    longest_step: float | None = None,
    max_steps: int = 10_000,
    checkpoints: int | str = "all",
    compact: float = 0.0,
) -> OdeEventSolution:
    """`odeint` that ends where `event(t, y)`, a tensor with one number, goes through zero.

    `crossing` says which way: "any", "rising" from below zero or "falling" from above it, in the order of the steps.
    The event's value is looked at behind each step, and where its sign has changed, its zero is found on the step's
    dense output; an even number of zeros within one step is not seen, for which there is `longest_step`. Where the
    value is zero in the beginning, the sign that it has from there on counts.

    The event's time and state have derivatives, those of the implicit function t: event(t, y(t)) = 0, of orders up to
    seven, by all that those of `odeint` are by and by what `event` captured. The other arguments, `f`, `y0`, `ts`,
    `method`, `rtol`, `atol`, `step`, `first_step`, `max_steps`, `checkpoints` and `compact`, are those of `odeint`.
    """
    options = _named(locals())
    state, leaves, times = _problem("odeint_until", y0, ts, options)
    with KeptFunction(f) as held, KeptFunction(event) as held_event:

        def value(t: Tensor, y: list[Tensor]) -> Tensor:
            found = held_event(t, state.arrive(y))
            if not isinstance(found, Tensor):
                raise TypeError(f"odeint_until: the event returned {what_is(found)}. Return a tensor with one number.")
            return found

        ys, t, y, *reports = _C.odeint_until(_slope(state, held), value, leaves, times, options)
    return OdeEventSolution(state.arrive(ys), t, state.arrive(y), *reports)
