"""Containers and tensor subclasses that stay what they are inside of transforms.

Two things can be said of a class:

- `register_container`: how vmap makes one example of a batch of it, and a batch of what one example became. For classes
  that know of a batch themselves, such as a TensorDict of its batch_size. Derivatives take containers as trees.
- `register_tensor_subclass`: how a tensor becomes one of the subclass again. For subclasses with attributes, which a
  function is to see on the tensors that a transform gives it.

tensordict's containers and pypose's LieTensor are known (_adapters.py), without importing either.
"""

import sys
from typing import Any, Callable, NamedTuple, Sequence

from torch import Tensor
from torch.utils._pytree import (
    SequenceKey,
    TreeSpec,
    register_pytree_node,
    tree_flatten,
    tree_flatten_with_path,
    tree_leaves,
    tree_unflatten,
)

from . import _adapters, _tensordict

Apart = tuple[Sequence[Tensor], Sequence[int | None], Callable[[Sequence[Tensor]], Any]]


class Container(NamedTuple):
    take_example: Callable[[Any, int], Apart]
    make_batch: Callable[[Any, int, int], Apart]


class _Hooks(dict):
    """What is known of a class, or None: what was said of the nearest of its bases."""

    def __init__(self, builtin: Callable[[type], Any]):
        super().__init__()
        self.builtin = builtin
        self.registered: dict[type, Any] = {}

    def register(self, cls: type, hook: Any) -> None:
        self.registered[cls] = hook
        self.clear()  # also what was found for classes that derive from it

    def __missing__(self, cls: type) -> Any:
        for base in cls.__mro__:
            hook = self.registered.get(base) or self.builtin(base)
            if hook is not None:
                break
        self[cls] = hook
        return hook


_containers = _Hooks(lambda cls: _adapters.container_of(cls, Container))
_subclasses = _Hooks(_adapters.subclass_of)


def register_container(
    cls: type, take_example: Callable[[Any, int], Apart], make_batch: Callable[[Any, int, int], Apart]
) -> None:
    """Says how vmap goes into containers of class `cls`, and of classes derived from it, and comes out of them.

    `take_example(container, in_dim)` takes a batch apart: (tensors, in_dims, rebuild), the tensors in it, the dimension
    of each that is mapped (None: not mapped), and a function of as many tensors, those of one example, that returns
    the container of that example. `make_batch(container, out_dim, batch_size)` does the same for what the function
    returned for one example: (tensors, out_dims, rebuild), where `rebuild` returns the container of the batch.

    Such a container has a single in_dim and out_dim, which may be counted from the end. One of which no tensor is
    mapped gives a tensor of its batch size all the same, such as torch.empty(()).expand(sizes):

        class Points:
            def __init__(self, xy, weights): ...  # of n points: [n, 2] and [n]

        def take_example(points, dim):
            return (points.xy, points.weights), (dim, dim), lambda tensors: Points(*tensors)

        def make_batch(points, dim, batch_size):
            return (points.xy, points.weights), (dim, dim), lambda tensors: Points(*tensors)

        torch_tower.register_container(Points, take_example, make_batch)

    To differentiate with respect to containers, register their class as a pytree node (torch.utils._pytree).
    """
    _containers.register(cls, Container(take_example, make_batch))


def register_tensor_subclass(cls: type, wrap: Callable[[Tensor, Tensor], Tensor]) -> None:
    """Keeps tensors of class `cls`, and of classes derived from it, what they are inside of transforms.

    `wrap(like, tensor)` returns `tensor` as one of the subclass, with the attributes of `like`. Without it a transform
    gives plain tensors. Functions get the subclass where it was passed, and values that they return keep it; gradients,
    tangents and Jacobians are plain tensors.
    """
    _subclasses.register(cls, wrap)


def is_container(value: Any) -> bool:
    return _containers[type(value)] is not None


def is_plain(value: Any) -> bool:
    """Whether it is a tensor, and nothing more than that."""
    return isinstance(value, Tensor) and wrapper_of(value) is None and not is_container(value)


def wrapper_of(tensor: Tensor) -> Callable[[Tensor, Tensor], Tensor] | None:
    """What makes a tensor of the subclass that `tensor` is of."""
    return None if type(tensor) is Tensor else _subclasses[type(tensor)]


def flatten(value: Any) -> tuple[list[Any], TreeSpec]:
    """The leaves of a value and its tree, which keeps the batch_size of containers that pytree would lose."""
    flat, spec = tree_flatten(value)
    if any(map(_tensordict.is_unbatched, flat)):
        return tree_flatten(in_parts(value))
    return flat, spec


def flatten_with_path(value: Any) -> list[tuple[tuple, Any]]:
    """The leaves of `flatten`, each with the keys that lead to it."""
    return tree_flatten_with_path(in_parts(value))[0]


def untold_sizes(value: Any, of_parents: bool) -> list[tuple[int, ...]]:
    """The batch sizes in a value that pytree keeps, and compares with none: of containers without tensors."""
    if "tensordict" not in sys.modules:
        return []
    leaves = tree_leaves(value, is_leaf=_tensordict.is_collection)
    found = (leaf for leaf in leaves if _tensordict.is_unbatched(leaf) or _tensordict.is_collection(leaf))
    return [size for leaf in found for size in _tensordict.untold_sizes(leaf, of_parents=of_parents)]


def has_batch(spec: TreeSpec) -> bool:
    """Whether a container with a batch_size is in the tree; quickly."""
    return hasattr(spec.type, "batch_size") or any(has_batch(child) for child in spec.children() if child.type)


def in_parts(value: Any) -> Any:
    """The value, as pytree is to see it."""
    flat, spec = tree_flatten(value, is_leaf=_tensordict.holds_unbatched)
    parts = [_tensordict.in_parts(leaf) for leaf in flat]
    return tree_unflatten(parts, spec) if any(part is not leaf for part, leaf in zip(parts, flat)) else value


class Parts:
    """A container taken apart: a tree of its tensors, which is built to a container again."""

    __slots__ = ("tensors", "dims", "rebuild")

    def __init__(self, owner: type, apart: Apart):
        self.tensors, self.dims, self.rebuild = apart
        if len(self.tensors) != len(self.dims) or not all(isinstance(t, Tensor) for t in self.tensors):
            raise TypeError(
                f"vmap: what is registered for the container {owner.__name__} must return tensors and a dimension, or "
                f"None, for each; it returned {len(self.tensors)} tensors and {len(self.dims)} dimensions."
            )

    @classmethod
    def of_batch(cls, container: Any, in_dim: int) -> "Parts":
        return cls(type(container), _containers[type(container)].take_example(container, in_dim))

    @classmethod
    def of_example(cls, container: Any, out_dim: int, batch_size: int) -> "Parts":
        return cls(type(container), _containers[type(container)].make_batch(container, out_dim, batch_size))

    @classmethod
    def of_tree(cls, container: Any) -> "Parts":
        """Of one that is not mapped: what pytree says that it holds, if that knows its class."""
        flat, spec = flatten(container)
        places = [i for i, leaf in enumerate(flat) if isinstance(leaf, Tensor)]

        def rebuild(tensors: Sequence[Tensor]) -> Any:
            filled = list(flat)
            for i, tensor in zip(places, tensors):
                filled[i] = tensor
            return tree_unflatten(filled, spec)

        return cls(type(container), ([flat[i] for i in places], [None] * len(places), rebuild))


register_pytree_node(
    Parts,
    lambda parts: (list(parts.tensors), parts.rebuild),
    lambda tensors, rebuild: rebuild(tensors),
    flatten_with_keys_fn=lambda parts: ([(SequenceKey(i), t) for i, t in enumerate(parts.tensors)], parts.rebuild),
)
