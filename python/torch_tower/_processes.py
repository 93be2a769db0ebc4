"""Named axes and their collectives, and batches that are spread over processes (docs/processes.md).

mesh = torch_tower.Mesh.from_environment({"data": -1})  # under torchrun
step = vmap(f, axis="data", across=mesh)                # and inside of f: torch_tower.psum(x, "data")
"""

from datetime import timedelta
from typing import Any, Callable, Sequence

from torch import Tensor
from torch.utils._pytree import tree_unflatten

from . import _C
from ._containers import flatten

MeshError = _C.MeshError
MeshError.__module__ = "torch_tower"
MeshError.__doc__ = (
    "Something is wrong between processes: one died, hangs, failed, or does something else than the others."
)


class Mesh:
    """Processes that share the examples of a vmap, numbered along named axes: {"data": 4, "model": 2}.

    A size of -1 is as many as there are. Every process makes it with the same axes. `timeout`: how many seconds a
    collective waits for the others, and who makes the mesh; `check`: each compares first what the processes are about
    to do.
    """

    def __init__(self, handle: Any):
        self._handle = handle

    def __repr__(self) -> str:
        return f"Mesh({self.axes}, rank={self.rank})"

    @staticmethod
    def from_environment(axes: dict[str, int], *, timeout: float = 300, check: bool = False) -> "Mesh":
        """From torchrun's variables: RANK, WORLD_SIZE, MASTER_ADDR, MASTER_PORT. The last of `axes` varies fastest.

        MeshError where the variables are missing or do not fit, and after `timeout` seconds; `check` as for the class.
        """
        return Mesh(_C.mesh_from_environment(list(axes.items()), timedelta(seconds=timeout), check))

    @staticmethod
    def from_group(group: Any, axes: dict[str, int], *, timeout: float = 300, check: bool = False) -> "Mesh":
        """From a `group` of torch.distributed, such as torch.distributed.group.WORLD.

        `axes`, `timeout` and `check` are those of the class.
        """
        return Mesh(_C.mesh_from_group(group.group_name, list(axes.items()), timedelta(seconds=timeout), check))

    @staticmethod
    def from_device_mesh(mesh: Any, *, timeout: float = 300, check: bool = False) -> "Mesh":
        """From a DeviceMesh `mesh` of one dimension, which has a name; ValueError for another.

        `timeout` and `check` are those of the class.
        """
        if mesh.ndim != 1 or not mesh.mesh_dim_names:
            raise ValueError(
                "Mesh: the DeviceMesh must have one dimension with a name; take one of its axes: mesh['data']."
            )
        return Mesh.from_group(mesh.get_group(), {mesh.mesh_dim_names[0]: -1}, timeout=timeout, check=check)

    @property
    def rank(self) -> int:
        """The number of this process, from 0."""
        return self._handle.rank

    @property
    def size(self) -> int:
        """How many processes there are."""
        return self._handle.size

    @property
    def axes(self) -> dict[str, int]:
        """The axes, with their sizes."""
        return dict(self._handle.axes)

    def rank_along(self, axis: str) -> int:
        """Where this process is along `axis`, from 0. MeshError where there is no such axis."""
        return self._handle.rank_along(axis)


def handle_of(mesh: Mesh | None) -> Any:
    return None if mesh is None else mesh._handle


def _of_tree(collective: Callable[..., list[Tensor]], tree: Any, *rest: Any) -> Any:
    leaves, spec = flatten(tree)
    return tree_unflatten(collective(leaves, *rest), spec)


def psum(tree: Any, axis: str) -> Any:
    """The sum of `tree` over the examples of the innermost running vmap whose axis is `axis`: the same for all of them.

    A tree of the same shapes and dtypes. ValueError where no such vmap is running, as for all collectives.
    """
    return _of_tree(_C.psum, tree, axis)


def pmean(tree: Any, axis: str) -> Any:
    """The mean of `tree` over the examples of `axis`. Integers give floats."""
    return _of_tree(_C.pmean, tree, axis)


def pmax(tree: Any, axis: str) -> Any:
    """The largest over the examples of `axis`, for each element of `tree`. Several share the derivative evenly."""
    return _of_tree(_C.pmax, tree, axis)


def pmin(tree: Any, axis: str) -> Any:
    """The smallest over the examples of `axis`, for each element of `tree`. Several share the derivative evenly."""
    return _of_tree(_C.pmin, tree, axis)


def all_gather(tree: Any, axis: str, dim: int = 0) -> Any:
    """The tensors of `tree` that all examples of `axis` have, stacked along a new dimension `dim` of the result."""
    return _of_tree(_C.all_gather, tree, axis, dim)


def psum_scatter(tree: Any, axis: str, dim: int = 0) -> Any:
    """The sum of `tree` over the examples of `axis`, of which example i gets element i along `dim`, which goes.

    ValueError where the size of `dim` is not axis_size(axis).
    """
    return _of_tree(_C.psum_scatter, tree, axis, dim)


def ppermute(tree: Any, axis: str, perm: Sequence[tuple[int, int]]) -> Any:
    """For each pair (from, to) of `perm` example `to` of `axis` gets what example `from` has in `tree`.

    One that is no `to` gets zeros. ValueError where two pairs have the same `from` or `to`, or there is no such
    example.
    """
    return _of_tree(_C.ppermute, tree, axis, list(perm))


def all_to_all(tree: Any, axis: str, split_dim: int, concat_dim: int) -> Any:
    """Example i of `axis` gets element i along `split_dim` of the `tree` of every example, stacked along `concat_dim`.

    ValueError where the size of `split_dim` is not axis_size(axis).
    """
    return _of_tree(_C.all_to_all, tree, axis, split_dim, concat_dim)


def axis_index(axis: str) -> Tensor:
    """Which example of `axis` this is: an int64 scalar, from 0."""
    return _C.axis_index(axis)


def axis_size(axis: str) -> int:
    """How many examples `axis` has, those of other processes included."""
    return _C.axis_size(axis)


def sum_across(mesh: Mesh, axis: str, tree: Any) -> Any:
    """Outside of the mapped function: the sum of the `tree` that each process of `mesh` along `axis` has.

    It has a derivative, as those of `gather_across` and `part_of`: what is differentiated is the program of all
    processes.
    """
    leaves, spec = flatten(tree)
    return tree_unflatten(_C.sum_across(mesh._handle, axis, leaves), spec)


def gather_across(mesh: Mesh, axis: str, part: Tensor, dim: int = 0) -> Tensor:
    """Outside of the mapped function: the `part` of each process of `mesh` along `axis`, joined along `dim`."""
    return _C.gather_across(mesh._handle, axis, part, dim)


def part_of(mesh: Mesh, axis: str, whole: Tensor, dim: int = 0) -> Tensor:
    """Outside of the mapped function: the part of this process of `mesh` along `axis`, a piece of `dim` of a `whole`.

    All have the whole. The first processes have one more where the size does not divide.
    """
    return _C.part_of(mesh._handle, axis, whole, dim)
