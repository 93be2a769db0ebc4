"""tensordict's containers under vmap (_containers.py), without importing it.

A TensorDict is taken apart by its own `apply`, container by container: each has a batch_size of its own. Three kinds of
parts are no batches of tensors that lie side by side:

- a lazy stack stays one where another dimension than that of the stack is mapped. Along that one, an example is a plain
  TensorDict; where the function returns that very object, it becomes a lazy stack again;
- a stack of values that are no tensors is seen whole by every example, and comes back as it was;
- an UnbatchedTensor is the same for all examples, unless the function made it of mapped values.

pytree, by which all else takes them apart, finds the batch_size again in the shapes of all entries, and the shape of an
UnbatchedTensor says nothing of it: those that hold one are trees of another kind here (`Unbatched`).
"""

from typing import Any, Callable, Iterator, NamedTuple

import torch
from torch import Tensor
from torch.utils._pytree import MappingKey, SequenceKey, register_pytree_node, tree_leaves

from ._questions import is_batched


class _Batch(NamedTuple):
    """A dimension of batches that leaves, for one example, or comes, with this size."""

    dim: int
    size: int | None = None

    @property
    def leaves(self) -> bool:
        return self.size is None

    def resize(self, per_dim: Any, new: Any) -> list:
        """What there is for each dimension, without the one that leaves, or with `new` for the one that comes."""
        before, after = per_dim[: self.dim], per_dim[self.dim + self.leaves :]
        return [*before, *after] if self.leaves else [*before, new, *after]

    def in_stack(self, stack_dim: int) -> tuple["_Batch", int]:
        """The dimension as those see it that are stacked along `stack_dim`, and where they are stacked afterwards."""
        if self.dim > stack_dim:
            return self._replace(dim=self.dim - 1), stack_dim
        return self, stack_dim - 1 if self.leaves else stack_dim + 1


# An attribute of one example of a stack: makes the stack again, of a batch of what became of it and a dimension.
_STACK_AGAIN = "_tower_stack_again"

Build = Callable[[Iterator[Tensor]], Any]


class _Apart:
    """A container taken apart: `build` makes one without or with `batch`, of other tensors in the order of these."""

    def __init__(self, container: Any, batch: _Batch):
        self.tensors: list[Tensor] = []
        self.dims: list[int | None] = []
        self.build = self._part(container, batch)

    def result(self) -> tuple:
        return self.tensors, self.dims, lambda tensors: self.build(iter(tensors))

    def _tensor(self, tensor: Tensor, dim: int | None) -> Build:
        self.tensors.append(tensor)
        self.dims.append(dim)
        return next

    def _part(self, part: Any, batch: _Batch) -> Build:
        if isinstance(part, Tensor):
            return self._unbatched(part, batch) if is_unbatched(part) else self._tensor(part, batch.dim)
        if not _is_stack(part):
            return self._dense(part, batch)
        if not batch.leaves or part.stack_dim != batch.dim:
            return self._stack(part, batch)
        return self._values(part) if part._is_non_tensor else self._across_stack(part, batch)

    def _unbatched(self, unbatched: Any, batch: _Batch) -> Build:
        sizes = batch.resize(unbatched.batch_size, batch.size)
        if batch.leaves:
            return lambda given: as_unbatched(type(unbatched), unbatched._base_tensor(), sizes)
        tensor = unbatched._base_tensor()
        if is_batched(tensor):
            return self._tensor(tensor, batch.dim)
        take = self._tensor(tensor, None)
        return lambda given: as_unbatched(type(unbatched), take(given), sizes)

    def _dense(self, td: Any, batch: _Batch) -> Build:
        builds: list[Build] = []

        def visit(part: Any) -> Any:
            builds.append(self._part(part, batch))
            return part

        # The entries as they are now: those of a lazy stack are stacked here, and may be a running transform's.
        entries = td.apply(visit, call_on_nested=True, batch_size=td.batch_size, filter_empty=False)
        unbatched = [(key, self._part(part, batch)) for key, part in entries.items() if is_unbatched(part)]
        for key, _ in unbatched:
            entries.del_(key)  # `apply` would not ask, and copy them
        names = batch.resize(td.names, None)
        options = {
            "batch_size": batch.resize(td.batch_size, batch.size),
            "names": names if any(name is not None for name in names) else None,
        }
        stack_again = vars(td).get(_STACK_AGAIN)

        def build(given: Iterator[Tensor]) -> Any:
            parts = iter(builds)
            made = entries.apply(lambda _: next(parts)(given), call_on_nested=True, filter_empty=False, **options)
            for key, part in unbatched:
                made.set(key, part(given))
            if stack_again:
                made = stack_again(made, batch.dim)
            return made.lock_() if td.is_locked else made

        return build

    def _stack(self, stack: Any, batch: _Batch) -> Build:
        inner, stack_dim = batch.in_stack(stack.stack_dim)
        builds = [self._part(part, inner) for part in stack.tensordicts]
        options = {"stack_dim": stack_dim, "stack_dim_name": stack.names[stack.stack_dim]}

        def build(given: Iterator[Tensor]) -> Any:
            made = type(stack)(*[part(given) for part in builds], **options)
            return made.lock_() if stack.is_locked else made

        return build

    def _across_stack(self, stack: Any, batch: _Batch) -> Build:
        try:
            build = self._dense(stack, batch)
        except RuntimeError as error:
            raise ValueError(
                f"vmap: in_dim {batch.dim} of a {type(stack).__name__} is the dimension of the stack, and its entries "
                "differ in shape from one element to the next, so that one example has no shape. Map another "
                "dimension, pad the entries, or loop over the elements."
            ) from error
        return lambda given: _remember(build(given), lambda made, dim: type(stack)(*made.unbind(dim), stack_dim=dim))

    def _values(self, stack: Any) -> Build:
        first = stack.tensordicts[0]
        while _is_stack(first):
            first = first.tensordicts[0]
        sizes = stack.tensordicts[0].batch_size
        return lambda given: _remember(
            type(first)(data=stack.tolist(), batch_size=sizes),
            lambda made, dim: type(stack)(*stack.tensordicts, stack_dim=dim),
        )


def _remember(example: Any, stack_again: Callable[[Any, int], Any]) -> Any:
    vars(example)[_STACK_AGAIN] = stack_again
    return example


def is_unbatched(value: Any) -> bool:
    return getattr(type(value), "_pass_through", False)


def as_unbatched(cls: type, tensor: Tensor, batch_size: Any) -> Tensor:
    """`tensor` as an UnbatchedTensor. A call of the class would cut it off from what it is computed from."""
    result = tensor.as_subclass(cls)
    result.batch_size = batch_size
    return result


def _is_stack(value: Any) -> bool:
    return any(f"{base.__module__}.{base.__qualname__}" == _LAZY_STACK for base in type(value).__mro__)


_LAZY_STACK = "tensordict._lazy.LazyStackedTensorDict"


def _dim(name: str, dim: int, container: Any, dims: int) -> int:
    if not -dims <= dim < dims:
        raise ValueError(
            f"vmap: {name} {dim} of a {type(container).__name__} is out of range: its batch_size is "
            f"{list(container.batch_size)}{' for one example' if name == 'out_dim' else ''}."
        )
    return dim % dims


def take_example(container: Any, in_dim: int) -> tuple:
    batch = _Batch(_dim("in_dim", in_dim, container, len(container.batch_size)))
    tensors, dims, rebuild = _Apart(container, batch).result()
    if not tensors:
        # Something must say how many examples there are.
        return [torch.empty(()).expand(container.batch_size)], [batch.dim], rebuild
    return tensors, dims, rebuild


def make_batch(container: Any, out_dim: int, batch_size: int) -> tuple:
    batch = _Batch(_dim("out_dim", out_dim, container, len(container.batch_size) + 1), batch_size)
    return _Apart(container, batch).result()


# ---- trees -----------------------------------------------------------------------------------------------------------


class Unbatched:
    """A container as a tree: what is left of it without the entries that are, or hold, an UnbatchedTensor, and these.

    A lazy stack is the tree of its elements.
    """

    __slots__ = ("children", "context")

    def __init__(self, children: list, context: tuple):
        self.children = children
        self.context = context  # compared, and pickled

    @classmethod
    def of(cls, container: Any) -> "Unbatched":
        if _is_stack(container):
            name = container.names[container.stack_dim]
            return cls([in_parts(part) for part in container.tensordicts], (type(container), container.stack_dim, name))
        apart = {key: value for key, value in container.items() if is_unbatched(value) or holds_unbatched(value)}
        kinds = [(type(value), value.dim()) if is_unbatched(value) else None for value in apart.values()]
        return cls([container.exclude(*apart), *map(in_parts, apart.values())], (None, list(apart), kinds))

    @property
    def paths(self) -> list:
        stack, keys, _ = self.context
        return [SequenceKey(i) for i in range(len(self.children))] if stack else [_Here(), *map(MappingKey, keys)]

    def build(self) -> Any:
        if not all(isinstance(child, Tensor) or hasattr(child, "batch_size") for child in self.children):
            return self  # numbers or None in place of the tensors, which no container can hold
        stack, *details = self.context
        if stack:
            return stack(*self.children, stack_dim=details[0], stack_dim_name=details[1])
        container, *apart = self.children
        for key, kind, value in zip(*details, apart):
            if kind and not is_unbatched(value):
                cls, dims = kind
                if value.dim() == dims:  # a gradient or a tangent
                    value = as_unbatched(cls, value, container.batch_size)
                else:  # a Jacobian: the dimensions of the output are the batch that all entries have
                    container.batch_size = container.batch_size[: value.dim() - dims]
            container.set(key, value)
        return container


class _Here:
    """In a path of keys: no step."""

    def __str__(self) -> str:
        return ""


register_pytree_node(
    Unbatched,
    lambda parts: (parts.children, parts.context),
    lambda children, context: Unbatched(list(children), context).build(),
    flatten_with_keys_fn=lambda parts: (list(zip(parts.paths, parts.children)), parts.context),
)


def holds_unbatched(value: Any) -> bool:
    if isinstance(value, Tensor) or not is_collection(value):
        return False
    parts = value.tensordicts if _is_stack(value) else value.values()
    return any(is_unbatched(part) or holds_unbatched(part) for part in parts)


def in_parts(value: Any) -> Any:
    return Unbatched.of(value) if holds_unbatched(value) else value


def untold_sizes(part: Any, told: int = 0, of_parents: bool = True) -> list[tuple[int, ...]]:
    """The batch sizes in a container of which no shape of a tensor in it tells, without the first `told` dimensions.

    With `of_parents` the tensors beside a container tell as well.
    """
    if isinstance(part, Tensor):
        return [tuple(part.batch_size[told:])] if is_unbatched(part) else []
    tells = any(isinstance(leaf, Tensor) and not is_unbatched(leaf) for leaf in tree_leaves(part))
    sizes = [] if tells else [tuple(part.batch_size[told:])]
    for inner in part.tensordicts if _is_stack(part) else part.values():
        if isinstance(inner, Tensor) or is_collection(inner):
            dims = len(inner.batch_size if _is_stack(part) else part.batch_size) if tells and of_parents else 0
            sizes += untold_sizes(inner, dims, of_parents)
    return [size for size in sizes if size]


def is_collection(value: Any) -> bool:
    cls = type(value)
    if not hasattr(cls, "batch_size"):
        return False
    names = (f"{base.__module__}.{base.__qualname__}" for base in cls.__mro__)
    return _COLLECTION in names or vars(cls).get("_is_tensorclass") is True


_COLLECTION = "tensordict.base.TensorDictBase"
