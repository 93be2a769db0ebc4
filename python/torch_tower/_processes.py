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
    collective waits for the others, and who makes the mesh; `check`: each compares first what the processes are about to
    do.
    """

    def __init__(self, handle: Any):
        self._handle = handle

    def __repr__(self) -> str:
        return f"Mesh({self.axes}, rank={self.rank})"

    @staticmethod
    def from_environment(axes: dict[str, int], *, timeout: float = 300, check: bool = False) -> "Mesh":
        """From torchrun's variables: RANK, WORLD_SIZE, MASTER_ADDR, MASTER_PORT."""
        return Mesh(_C.mesh_from_environment(list(axes.items()), timedelta(seconds=timeout), check))

    @staticmethod
    def from_group(group: Any, axes: dict[str, int], *, timeout: float = 300, check: bool = False) -> "Mesh":
        """From a group of torch.distributed, such as torch.distributed.group.WORLD."""
        return Mesh(_C.mesh_from_group(group.group_name, list(axes.items()), timedelta(seconds=timeout), check))

    @staticmethod
    def from_device_mesh(mesh: Any, *, timeout: float = 300, check: bool = False) -> "Mesh":
        """From a DeviceMesh of one dimension, which has a name."""
        if mesh.ndim != 1 or not mesh.mesh_dim_names:
            raise ValueError(
                "Mesh: the DeviceMesh must have one dimension with a name; take one of its axes: mesh['data']."
            )
        return Mesh.from_group(mesh.get_group(), {mesh.mesh_dim_names[0]: -1}, timeout=timeout, check=check)

    @property
    def rank(self) -> int:
        return self._handle.rank

    @property
    def size(self) -> int:
        return self._handle.size

    @property
    def axes(self) -> dict[str, int]:
        return dict(self._handle.axes)

    def rank_along(self, axis: str) -> int:
        """Where this process is along an axis."""
        return self._handle.rank_along(axis)


def handle_of(mesh: Mesh | None) -> Any:
    return None if mesh is None else mesh._handle


def _of_tree(collective: Callable[..., list[Tensor]], tree: Any, *rest: Any) -> Any:
    leaves, spec = flatten(tree)
    return tree_unflatten(collective(leaves, *rest), spec)


def psum(tree: Any, axis: str) -> Any:
    """The sum over the examples of a running vmap with this axis: the same for all of them."""
    return _of_tree(_C.psum, tree, axis)


def pmean(tree: Any, axis: str) -> Any:
    """The mean over the examples."""
    return _of_tree(_C.pmean, tree, axis)


def pmax(tree: Any, axis: str) -> Any:
    """The largest over the examples, elementwise."""
    return _of_tree(_C.pmax, tree, axis)


def pmin(tree: Any, axis: str) -> Any:
    """The smallest over the examples, elementwise."""
    return _of_tree(_C.pmin, tree, axis)


def all_gather(tree: Any, axis: str, dim: int = 0) -> Any:
    """All examples' tensors, stacked along a new dimension."""
    return _of_tree(_C.all_gather, tree, axis, dim)


def psum_scatter(tree: Any, axis: str, dim: int = 0) -> Any:
    """The sum, of which example i gets element i along `dim`."""
    return _of_tree(_C.psum_scatter, tree, axis, dim)


def ppermute(tree: Any, axis: str, perm: Sequence[tuple[int, int]]) -> Any:
    """For each pair (from, to) example `to` gets what `from` has; one that is no `to` gets zeros."""
    return _of_tree(_C.ppermute, tree, axis, list(perm))


def all_to_all(tree: Any, axis: str, split_dim: int, concat_dim: int) -> Any:
    """Example i gets element i along `split_dim` of every example, stacked along `concat_dim`."""
    return _of_tree(_C.all_to_all, tree, axis, split_dim, concat_dim)


def axis_index(axis: str) -> Tensor:
    """Which example this is."""
    return _C.axis_index(axis)


def axis_size(axis: str) -> int:
    """How many examples there are."""
    return _C.axis_size(axis)


def sum_across(mesh: Mesh, axis: str, tree: Any) -> Any:
    """Outside of the mapped function: the sum of what the processes of an axis have, with a derivative."""
    leaves, spec = flatten(tree)
    return tree_unflatten(_C.sum_across(mesh._handle, axis, leaves), spec)


def gather_across(mesh: Mesh, axis: str, part: Tensor, dim: int = 0) -> Tensor:
    """The processes' parts, one behind the other."""
    return _C.gather_across(mesh._handle, axis, part, dim)


def part_of(mesh: Mesh, axis: str, whole: Tensor, dim: int = 0) -> Tensor:
    """This process's part of what all have."""
    return _C.part_of(mesh._handle, axis, whole, dim)
