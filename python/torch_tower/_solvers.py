"""linear_solve, cg, bicgstab, gmres, implicit_root, fixed_point."""

from contextlib import ExitStack
from typing import Any, Callable, NamedTuple

from torch import Tensor

from . import _C
from ._compile import transformed, uncompiled
from ._control_flow import _Same, _state
from ._kept import KeptFunction
from ._trees import Tree

NoConvergenceError = _C.NoConvergenceError
NoConvergenceError.__module__ = "torch_tower"
NoConvergenceError.__doc__ = "An iterative solver did not come to its tolerance."


class IterativeSolution(NamedTuple):
    """What an iterative solver found. Under vmap each example has its own.

    `x`: the solution, a tree like b; `converged`, bool: whether the tolerance was met; `steps`, int64: how many there
    were; `residual`: |b − A x|, computed from x, a report without a derivative.
    """

    x: Any
    converged: Tensor
    steps: Tensor
    residual: Tensor


_ITERATION = {
    "tolerance": None,
    "absolute_tolerance": 0.0,
    "max_steps": None,
    "preconditioner": None,
    "start": None,
    "restart": 30,
    "on_no_convergence": "error",
}
_LINEAR = {
    "method": "automatic",
    "dense_up_to": 256,
    "symmetric": False,
    "solve": None,
    "solve_transposed": None,
    "per_example": False,
}


def _options(op: str, given: dict, known: dict) -> dict:
    for name in given:
        if name not in known:
            raise TypeError(f"{op}: there is no option {name!r}. Those that there are: {', '.join(known)}.")
    return {**known, **given}


class _Functions(ExitStack):
    """The user's functions of a call, as functions of lists: kept, and run again in the backward pass."""

    def linear(self, unknown: _Same, function: Callable | None) -> Callable | None:
        if function is None:
            return None
        held = self.enter_context(KeptFunction(function))
        return lambda tensors: unknown.leaves(held(unknown.arrive(tensors)))

    def solver(self, unknown: _Same, function: Callable | None) -> Callable | None:
        if function is None:
            return None
        held = self.enter_context(KeptFunction(function))

        def solve(apply: Callable, b: list[Tensor]) -> list[Tensor]:
            def on_trees(v: Any) -> Any:
                return unknown.arrive(apply(unknown.leaves(v)))

            return unknown.leaves(held(on_trees, unknown.arrive(b)))

        return solve

    def options(self, unknown: _Same, options: dict) -> dict:
        """With functions of lists in place of functions of trees."""
        result = dict(options)
        result["preconditioner"] = self.linear(unknown, options["preconditioner"])
        if options["start"] is not None:
            result["start"] = unknown.leaves(options["start"])
        for name in ("solve", "solve_transposed"):
            if name in options:
                result[name] = self.solver(unknown, options[name])
        return result


def linear_solve(apply: Callable, b: Any, **options) -> Any:
    """The solution of apply(x) = b for a linear function `apply` of trees like b.

    Its derivatives, in both modes and to any order, are further linear solves; how it was found is never
    differentiated. Tensors that `apply` captures get their derivatives as b does.

    The `options` are `method`, one of "automatic" (dense up to `dense_up_to` unknowns, 256, else GMRES), "dense", "cg",
    "bicgstab", "gmres"; `symmetric`; `solve(apply, b)` and `solve_transposed`, solvers of your own; `per_example`, one
    example at a time under vmap; and those of `cg` and `gmres` for the iterative methods. ValueError where the function
    is seen not to be linear, or tensors are not of one floating point dtype; NoConvergenceError.
    """
    unknown, leaves = _state("linear_solve", "right-hand side", "a function", b)
    given = _options("linear_solve", options, {**_LINEAR, **_ITERATION})
    with _Functions() as functions:
        found = _C.linear_solve(functions.linear(unknown, apply), leaves, functions.options(unknown, given))
    return unknown.arrive(found)


def _iterate(method: str, apply: Callable, b: Any, options: dict) -> IterativeSolution:
    unknown, leaves = _state(method, "right-hand side", "a function", b)
    with _Functions() as functions:
        x, *reports = _C.iterate(
            method, functions.linear(unknown, apply), leaves, functions.options(unknown, {**_ITERATION, **options})
        )
    return IterativeSolution(unknown.arrive(x), *reports)


def cg(
    apply: Callable,
    b: Any,
    *,
    tolerance: float | None = None,
    absolute_tolerance: float = 0.0,
    max_steps: int | None = None,
    preconditioner: Callable | None = None,
    start: Any = None,
    on_no_convergence: str = "error",
) -> IterativeSolution:
    """Conjugate gradients for apply(x) = b, where `apply` is linear, self-adjoint and positive definite.

    It ends where |b − A x| is at most `tolerance` · |b| (1e-10, in single precision 1e-5) or `absolute_tolerance`.
    `preconditioner` is a linear function near the inverse; `start`, a tree like b, where the iteration begins, zero if
    it is None. Without convergence after `max_steps` it raises NoConvergenceError, or, with on_no_convergence="report",
    says so in `converged`. Under vmap each example has its own number of steps. Derivatives are linear solves by the
    same method.
    """
    return _iterate("cg", apply, b, _named(locals()))


def bicgstab(
    apply: Callable,
    b: Any,
    *,
    tolerance: float | None = None,
    absolute_tolerance: float = 0.0,
    max_steps: int | None = None,
    preconditioner: Callable | None = None,
    start: Any = None,
    on_no_convergence: str = "error",
) -> IterativeSolution:
    """Stabilized biconjugate gradients (van der Vorst): any regular linear function. Arguments are those of `cg`."""
    return _iterate("bicgstab", apply, b, _named(locals()))


def gmres(
    apply: Callable,
    b: Any,
    *,
    tolerance: float | None = None,
    absolute_tolerance: float = 0.0,
    max_steps: int | None = None,
    preconditioner: Callable | None = None,
    start: Any = None,
    restart: int = 30,
    on_no_convergence: str = "error",
) -> IterativeSolution:
    """Generalized minimal residuals (Saad and Schultz), anew after `restart` steps: any regular linear function.

    The other arguments are those of `cg`.
    """
    return _iterate("gmres", apply, b, _named(locals()))


def _named(arguments: dict) -> dict:
    return {name: value for name, value in arguments.items() if name in _ITERATION}


def _implicit(
    op: str,
    function: Callable,
    solver: Callable,
    preconditioner: Callable | None,
    per_example: bool,
    linear: dict | None,
) -> Callable:
    options = _options(op, linear or {}, {**_LINEAR, **_ITERATION})

    @transformed(solver)
    def solved(*params):
        given, unknown = Tree(), _Same(op, "solution", "the residual" if op == "implicit_root" else "the map")
        leaves = given.depart(params)

        def x_like(tensors: list[Tensor]) -> Any:
            return unknown.arrive(tensors)

        with _Functions() as functions:
            f, find = functions.enter_context(KeptFunction(function)), functions.enter_context(KeptFunction(solver))
            make = preconditioner and functions.enter_context(KeptFunction(preconditioner))

            def made(x: list[Tensor], tensors: list[Tensor]) -> Callable:
                linear_function = make(x_like(x), *given.arrive(tensors))
                return lambda v: unknown.leaves(linear_function(x_like(v)))

            found = _C.implicit(
                op == "fixed_point",
                lambda x, tensors: unknown.leaves(f(x_like(x), *given.arrive(tensors))),
                lambda tensors: unknown.depart(find(*given.arrive(tensors))),
                leaves,
                made if make else None,
                per_example,
                functions.options(unknown, options),
            )
        return unknown.arrive(found)

    return solved


def implicit_root(
    residual: Callable,
    solver: Callable,
    *,
    preconditioner: Callable | None = None,
    per_example: bool = False,
    linear: dict | None = None,
) -> Callable:
    """`solver`, a function of parameters, with the derivatives of the x for which residual(x, *params) is zero.

    The solver is never differentiated: it may use item(), NumPy, libraries. x and the parameters are trees; the
    residual returns a tree like x. Derivatives, in both modes and to any order, are linear systems with the residual's
    derivative by x, with the options of `linear_solve` in `linear`; `preconditioner(x, *params)` makes one for its
    iterative methods. With `per_example` the solver is called for each example of a vmap by itself.
    """
    return _implicit("implicit_root", residual, solver, preconditioner, per_example, linear)


def fixed_point(
    map: Callable,
    solver: Callable,
    *,
    preconditioner: Callable | None = None,
    per_example: bool = False,
    linear: dict | None = None,
) -> Callable:
    """`solver`, a function of parameters, with the derivatives of the x for which x is `map(x, *params)`.

    Options are those of `implicit_root`.
    """
    return _implicit("fixed_point", map, solver, preconditioner, per_example, linear)


for _function in (linear_solve, _iterate, cg, bicgstab, gmres, _implicit, implicit_root, fixed_point):
    uncompiled(_function)
