"""BlockLeastSquares: large sparse fits."""

from typing import Any, Callable, NamedTuple, Sequence

from torch import Tensor

from . import _C
from ._compile import uncompiled
from ._kept import KeptFunction
from ._trees import Tree


class FitUnknowns(NamedTuple):
    """One kind of unknowns: the rows of `x0`, where they start.

    `retract(x, d)`: of one of them, what lies in the direction d, of `freedom` numbers, from x; without it x + d.
    `held`, bool: which of them stay as they are. `lower` and `upper`: bounds, of the sizes of `x0` or what expands to
    them, infinite where there is none; not with `retract`.
    """

    x0: Tensor
    retract: Callable[[Tensor, Tensor], Tensor] | None = None
    freedom: int = 0
    held: Tensor | None = None
    lower: Tensor | None = None
    upper: Tensor | None = None


class FitTerm(NamedTuple):
    """Residuals of one form: many blocks, each of a few unknowns and data of its own.

    `residual(*unknowns, *data)`, of one block, gives a tree of its residuals. `uses` are pairs: the place of a kind in
    the list of unknowns, and of each block which of them it takes, int64. `data` have the blocks as their first
    dimension. `loss` and `scale` are as in `least_squares`, of the sum of a block's squares.
    """

    residual: Callable
    uses: Sequence[tuple[int, Tensor]]
    data: Sequence[Tensor] = ()
    loss: str = "squares"
    scale: float = 1.0


class BlockFit(NamedTuple):
    """What a fit of blocks found. `x` has derivatives by the data; the others are reports.

    `x`: of each kind of unknowns, like its x0; `cost`: half of the sum of squares, or what losses make of it; `status`,
    int64: a FitStatus; `steps`, int64: how many were tried; `covariance`: if asked for, of each kind that of each
    unknown's numbers, [count, s, s].
    """

    x: list[Tensor]
    cost: Tensor
    status: Tensor
    steps: Tensor
    covariance: list[Tensor]


class BlockLeastSquares:
    """Nonlinear least squares of many blocks, as in bundle adjustment, for any number of fits to other data.

    `unknowns` are FitUnknowns, `terms` FitTerms. The `method` is "levenberg_marquardt" or "dogleg"; `eliminate` names
    the kind of unknowns, of which no block takes two, that goes first: what is left, its Schur complement, is factored
    densely or by Eigen. The `solver` of steps is "cholesky", "qr", of the whole Jacobian, or "conjugate_gradients",
    which make no Schur complement and go on to `cg_tolerance`, without dogleg and covariances. `progress(step, cost)`
    is called at the start, and after each step. `ftol`, `xtol`, `gtol`, `max_steps` and `first_damping` are as in
    `least_squares`. Residuals are compiled once, so what is mapped or differentiated is data, and not captured. x has
    derivatives by the data, of any order; under vmap fits are made one after the other.
    """

    __slots__ = ("_fit",)

    def __init__(
        self,
        unknowns: Sequence[FitUnknowns],
        terms: Sequence[FitTerm],
        *,
        method: str = "levenberg_marquardt",
        eliminate: int | None = None,
        solver: str = "cholesky",
        cg_tolerance: float = 0.1,
        ftol: float = 1e-8,
        xtol: float = 1e-8,
        gtol: float = 1e-8,
        max_steps: int = 200,
        first_damping: float = 1e-4,
        covariance: bool = False,
        progress: Callable[[int, float], None] | None = None,
    ):
        options = {
            "method": method,
            "eliminate": eliminate,
            "solver": solver,
            "cg_tolerance": cg_tolerance,
            "ftol": ftol,
            "xtol": xtol,
            "gtol": gtol,
            "max_steps": max_steps,
            "first_damping": first_damping,
            "covariance": covariance,
            "progress": None if progress is None else _kept(progress),
        }
        kinds = [FitUnknowns(*kind)._asdict() for kind in unknowns]
        for kind in kinds:
            if kind["retract"] is not None:
                kind["retract"] = _kept(kind["retract"])
        lists = []
        for term in (FitTerm(*term) for term in terms):
            lists.append(term._asdict() | {"residual": _of_lists(term.residual), "data": list(term.data)})
        self._fit = _C.BlockLeastSquares(kinds, lists, options)

    def __call__(self, *data: Tensor) -> BlockFit:
        """The fit to the terms' own data, or to other ones, of all terms, one term's after the other."""
        return BlockFit(*self._fit.fit(list(data) if data else None))

    @property
    def num_unknowns(self) -> int:
        """How many numbers are sought, those that are held among them."""
        return self._fit.num_unknowns()

    @property
    def factored(self) -> tuple[int, int]:
        """The size of the system that is left to factor, and the entries of its blocks on and above the diagonal."""
        return self._fit.factored()


def _kept(function: Callable) -> Callable:
    """With what it captures now."""
    with KeptFunction(function) as held:
        return held


def _of_lists(residual: Callable) -> Callable[[list[Tensor]], list[Tensor]]:
    held: Any = _kept(residual)
    return lambda block: Tree().depart(held(*block))


for _method in (BlockLeastSquares.__init__, BlockLeastSquares.__call__):
    uncompiled(_method)
