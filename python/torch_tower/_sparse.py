"""jacobian_sparsity, hessian_sparsity, sparse_jacobian, sparse_hessian."""

from typing import Any, Callable

import torch
from torch import Tensor

from . import _C
from ._compile import uncompiled
from ._trees import Outputs, Tree, check_chunk_size, what_is

Sparsity = _C.Sparsity
Sparsity.__module__ = "torch_tower"
Sparsity.__doc__ = """Where a matrix has entries: rows are elements of an output, columns those of an input.

`Sparsity.of(matrix)` is that of a matrix, dense or sparse. `taken_for_dense` names the operators of which nothing
better was known than that all they give depends on all they were given.
"""


def _on_lists(transform: str, func: Callable, x: Any) -> tuple[Callable, list[Tensor]]:
    """`func` of a tree like x as a function of lists of tensors, and the tensors of x."""
    given = Tree()
    leaves = given.depart(x)
    return lambda tensors: Outputs(transform).depart(func(given.arrive(tensors))), leaves


@uncompiled
def jacobian_sparsity(
    func: Callable, x: Any, *, values_decide: bool = False, most_entries: int = 100_000_000
) -> Sparsity:
    """Where the Jacobian of `func` by the tensors of `x`, a tree, can have entries; values have no part in it.

    `func` must not read values that depend on x, as an `if` by them does, unless `values_decide`: the pattern is then
    that of the way taken at this x, and may lack entries elsewhere. A pattern of more than `most_entries` is an error,
    which names the operators that were taken for dense.
    """
    return _C.jacobian_sparsity(*_on_lists("jacobian_sparsity", func, x), values_decide, most_entries)


@uncompiled
def hessian_sparsity(
    func: Callable, x: Any, *, values_decide: bool = False, most_entries: int = 100_000_000
) -> Sparsity:
    """Where the Hessian of `func` by the tensors of `x`, which returns a real scalar, can have entries.

    `values_decide` and `most_entries` are as in `jacobian_sparsity`.
    """
    return _C.hessian_sparsity(*_on_lists("hessian_sparsity", func, x), values_decide, most_entries)


class SparseDerivative:
    """The Jacobian, or the Hessian, of a function, whose pattern is known: what does not depend on x is made once."""

    __slots__ = ("_transform", "_func", "_plan")

    def __init__(self, transform: str, func: Callable, plan: _C.SparsePlan):
        self._transform, self._func, self._plan = transform, func, plan

    def __call__(self, x: Any) -> Tensor:
        """The sparse matrix at `x`, with the entries of the pattern, zeros too. RuntimeError inside of a transform."""
        return self.matrix(self.values(x))

    def values(self, x: Any) -> Tensor:
        """The entries at `x` alone, of one dimension, in the pattern's order by rows: what transforms can carry."""
        func, leaves = _on_lists(self._transform, self._func, x)
        return self._plan.values(func, leaves, self._transform == "sparse_hessian")

    def matrix(self, values: Tensor) -> Tensor:
        """The sparse matrix with these `values` as entries, outside of the transforms that carried them."""
        return self._plan.matrix(values)

    @property
    def sparsity(self) -> Sparsity:
        """Where the entries are."""
        return self._plan.sparsity

    @property
    def num_colours(self) -> int:
        """Directional derivatives that one evaluation takes."""
        return self._plan.num_colours

    @property
    def num_row_colours(self) -> int:
        """Those of them that are vjps, of rows."""
        return self._plan.num_row_colours


for _method in (SparseDerivative.__call__, SparseDerivative.values, SparseDerivative.matrix):
    uncompiled(_method)


def _plan(transform: str, sparsity: Sparsity, chunk_size: int | None, layout: Any, blocksize: Any) -> Any:
    if not isinstance(sparsity, Sparsity):
        pattern = transform.replace("sparse_", "") + "_sparsity"
        raise TypeError(
            f"{transform}: the pattern is {what_is(sparsity)}. It is a Sparsity, of {pattern}(func, x), or of a matrix "
            "by Sparsity.of(matrix)."
        )
    check_chunk_size(transform, chunk_size)
    return _C.SparsePlan(sparsity, transform == "sparse_hessian", chunk_size, str(layout), blocksize)


@uncompiled
def sparse_jacobian(
    func: Callable,
    sparsity: Sparsity,
    *,
    chunk_size: int | None = None,
    layout: torch.layout = torch.sparse_csr,
    blocksize: tuple[int, int] = (1, 1),
) -> SparseDerivative:
    """A function for the Jacobian of `func`, by as few directional derivatives as the pattern `sparsity` allows.

    The result is a sparse tensor of that `layout` (CSR, CSC, COO, or BSR with blocks of `blocksize`). At most
    `chunk_size` directions are computed at once.
    """
    plan = _plan("sparse_jacobian", sparsity, chunk_size, layout, blocksize)
    return SparseDerivative("sparse_jacobian", func, plan)


@uncompiled
def sparse_hessian(
    func: Callable,
    sparsity: Sparsity,
    *,
    chunk_size: int | None = None,
    layout: torch.layout = torch.sparse_csr,
    blocksize: tuple[int, int] = (1, 1),
) -> SparseDerivative:
    """The same for the Hessian of `func`, which returns a real scalar; entries may be found as the mirrored ones.

    Arguments are those of `sparse_jacobian`.
    """
    plan = _plan("sparse_hessian", sparsity, chunk_size, layout, blocksize)
    return SparseDerivative("sparse_hessian", func, plan)
