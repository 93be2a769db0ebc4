"""minimize, least_squares."""

from enum import IntEnum
from typing import Any, Callable, NamedTuple

import torch
from torch import Tensor

from . import _C
from ._compile import uncompiled
from ._control_flow import _Same, _state
from ._kept import KeptFunction
from ._trees import Tree, what_is


class MinimumStatus(IntEnum):
    """How a minimization ended: the numbers in `Minimum.status`. The first two are what was looked for."""

    small_gradient = 0
    small_change = 1
    max_steps = 3
    stuck = 4
    not_finite = 5


class FitStatus(IntEnum):
    """How a fit ended: the numbers in `LeastSquaresFit.status`. The first three are what was looked for."""

    small_gradient = 0
    small_change = 1
    small_step = 2
    max_steps = 3
    stuck = 4
    not_finite = 5


class Minimum(NamedTuple):
    """What `minimize` found. Under vmap each problem has its own. `x` has derivatives; the others are reports.

    `x`: a tree like x0; `value`: of the function there; `gradient`: the largest magnitude in the gradient there;
    `status`, int64: a MinimumStatus; `steps`, int64: how many were tried; `products`, int64: how many products with the
    Hessian were made.
    """

    x: Any
    value: Tensor
    gradient: Tensor
    status: Tensor
    steps: Tensor
    products: Tensor


class LeastSquaresFit(NamedTuple):
    """What `least_squares` found. Under vmap each fit has its own. `x` has derivatives; the others are reports.

    `x`: a tree like x0; `cost`: half of the sum of squares, or what the loss makes of it; `status`, int64: a FitStatus;
    `steps`, int64: how many were tried; `covariance`: of all numbers of x, one tensor after the other, nan where there
    are no more residuals than unknowns, and zero for what a bound holds.
    """

    x: Any
    cost: Tensor
    status: Tensor
    steps: Tensor
    covariance: Tensor


def minimize(
    f: Callable,
    x0: Any,
    *,
    method: str = "lbfgs",
    gtol: float = 1e-6,
    ftol: float = 1e-12,
    max_steps: int = 1000,
    memory: int = 8,
    first_radius: float = 1.0,
) -> Minimum:
    """A local minimum of `f(x)`, one real number, that is reached downhill from `x0`, a tree of real tensors.

    The `method` is "lbfgs", with `memory` changes of the gradient and a search for the strong Wolfe conditions, or
    "newton", steps within a trust region of `first_radius` by conjugate gradients on products with the Hessian. It ends
    where max |gᵢ| max(|xᵢ|, 1) is at most `gtol` · max(|f|, 1), where a step changes the value by less than `ftol` of
    it, or after `max_steps`. Under vmap each problem has its own steps; x has the derivatives of the implicit function
    by what `f` captured, nan where no minimum was found, and none by x0.
    """
    unknown, leaves = _state("minimize", "start x0", "the function", x0)
    options = {
        "method": method,
        "gtol": gtol,
        "ftol": ftol,
        "max_steps": max_steps,
        "memory": memory,
        "first_radius": first_radius,
    }
    with KeptFunction(f) as held:

        def of_lists(tensors: list[Tensor]) -> list[Tensor]:
            value = held(unknown.arrive(tensors))
            if not isinstance(value, Tensor):
                raise TypeError(f"minimize: the function returned {what_is(value)}. Return a tensor, one number.")
            return [value]

        x, *reports = _C.minimize(of_lists, leaves, options)
    return Minimum(unknown.arrive(x), *reports)


def _bound(name: str, unknown: _Same, leaves: list[Tensor], bound: Any) -> Tensor | None:
    """As one tensor: of one number for all, or of one for each of the `leaves`."""
    if bound is None or (isinstance(bound, Tensor) and bound.numel() == 1):
        return bound
    if isinstance(bound, (int, float)):
        return torch.tensor(float(bound), dtype=torch.float64)
    try:
        bounds = unknown.leaves(bound)
        for of_leaf, leaf in zip(bounds, leaves):
            if of_leaf.shape != leaf.shape:
                raise ValueError(f"Where x0 is of shape {list(leaf.shape)}, it is of shape {list(of_leaf.shape)}.")
        return torch.cat([of_leaf.reshape(-1) for of_leaf in bounds])
    except ValueError as error:
        raise ValueError(
            f"least_squares: {name} is {what_is(bound)}. It is one number for all, or a tree like x0. {error}"
        ) from None


def least_squares(
    residuals: Callable,
    x0: Any,
    *,
    loss: str = "squares",
    scale: float = 1.0,
    lower: Any = None,
    upper: Any = None,
    ftol: float = 1e-8,
    xtol: float = 1e-8,
    gtol: float = 1e-8,
    max_steps: int = 200,
    first_damping: float = 1e-3,
) -> LeastSquaresFit:
    """The x near `x0` for which the sum of the squares of `residuals(x)` is least, by Levenberg and Marquardt's method.

    x0 and the residuals are trees of real tensors of one dtype. `loss` is one of "squares", "huber", "soft_l1" and
    "cauchy", of residuals beyond `scale`; `lower` and `upper` bound x: one number, or a tree like x0. It ends where the
    residuals are at right angles to the Jacobian's columns within `gtol`, where a step changes the cost by less than
    `ftol` of it or x by less than `xtol`, or after `max_steps`. Under vmap each fit has its own damping, at first
    `first_damping`, and its own end; x has the derivatives of the implicit function by what the residuals captured, and
    by the bounds that hold it; they are nan where there is no fit, and none by x0.
    """
    unknown, leaves = _state("least_squares", "start x0", "a bound", x0)
    options = {
        "loss": loss,
        "scale": scale,
        "lower": _bound("lower", unknown, leaves, lower),
        "upper": _bound("upper", unknown, leaves, upper),
        "ftol": ftol,
        "xtol": xtol,
        "gtol": gtol,
        "max_steps": max_steps,
        "first_damping": first_damping,
    }
    with KeptFunction(residuals) as held:
        x, *reports = _C.least_squares(lambda tensors: Tree().depart(held(unknown.arrive(tensors))), leaves, options)
    return LeastSquaresFit(unknown.arrive(x), *reports)


for _function in (minimize, _bound, least_squares):
    uncompiled(_function)
