"""What is known of other libraries' containers and tensor subclasses (_containers.py), by the names of classes."""

from typing import Any, Callable, Iterator

from torch import Tensor

# ---- tensordict ------------------------------------------------------------------------------------------------------


def _nested(td: Any) -> Iterator[tuple[str, Any]]:
    """The containers in it that have a batch of their own."""
    for key, value in td.items():
        if hasattr(value, "batch_dims") and hasattr(value, "apply") and not getattr(value, "_is_non_tensor", False):
            yield key, value


def _with_batch_sizes(like: Any, td: Any, batch_size: Callable[[Any], list[int]]) -> Any:
    """`td`, whose containers are `like`'s, with these batch sizes: `apply` gives all of them the outermost one's."""
    for key, nested in _nested(like):
        inner = td.get(key)
        inner.batch_size = batch_size(nested)
        _with_batch_sizes(nested, inner, batch_size)
    return td


def _taken_apart(td: Any, dim: int, batch_size: Callable[[Any], list[int]], names: list[str | None]):
    """The tensors of a TensorDict, their dimensions, and what makes one of other batch sizes of as many tensors."""
    tensors: list[Tensor] = []

    def take(tensor: Tensor) -> Tensor:
        # tensordict's UnbatchedTensor has no batch: it is the same for all examples.
        if not hasattr(tensor, "_add_batch_dim"):
            tensors.append(tensor)
        return tensor

    # A lazy stack becomes a dense one. It must be now: what it stacks may be a running transform's.
    dense = td.apply(take, batch_size=td.batch_size, filter_empty=False)
    dense = _with_batch_sizes(td, dense, lambda nested: nested.batch_size)

    def rebuild(given: list[Tensor]) -> Any:
        given = iter(given)
        result = dense.apply(
            lambda t: t if hasattr(t, "_add_batch_dim") else next(given),
            batch_size=batch_size(dense),
            names=names if any(name is not None for name in names) else None,
            filter_empty=False,
        )
        _with_batch_sizes(dense, result, batch_size)
        return result.lock_() if td.is_locked else result

    return tensors, [dim] * len(tensors), rebuild


def _tensordict_example(td: Any, in_dim: int):
    dims = td.batch_dims
    if not -dims <= in_dim < dims:
        raise ValueError(
            f"vmap: in_dim {in_dim} of a {type(td).__name__} is out of range: its batch_size is {list(td.batch_size)}."
        )
    in_dim %= dims

    def without(sizes: Any) -> list:
        return [*sizes[:in_dim], *sizes[in_dim + 1 :]]

    return _taken_apart(td, in_dim, lambda part: without(part.batch_size), without(td.names))


def _tensordict_batch(td: Any, out_dim: int, batch_size: int):
    dims = td.batch_dims + 1
    if not -dims <= out_dim < dims:
        raise ValueError(
            f"vmap: out_dim {out_dim} of a {type(td).__name__} is out of range: its batch_size is "
            f"{list(td.batch_size)} for one example."
        )
    out_dim %= dims

    def with_batch(sizes: Any, new: Any) -> list:
        return [*sizes[:out_dim], new, *sizes[out_dim:]]

    return _taken_apart(td, out_dim, lambda part: with_batch(part.batch_size, batch_size), with_batch(td.names, None))


_TENSORDICTS = {"tensordict.base.TensorDictBase", "tensordict._tensorcollection.TensorCollection"}


def container_of(cls: type, make: Callable) -> Any:
    # A class that @tensorclass decorates keeps its bases.
    if _name(cls) in _TENSORDICTS or vars(cls).get("_is_tensorclass") is True:
        return make(_tensordict_example, _tensordict_batch)
    return None


# ---- pypose ----------------------------------------------------------------------------------------------------------


def _lie_tensor(like: Tensor, tensor: Tensor) -> Tensor:
    cls = next(base for base in type(like).__mro__ if _name(base) == _LIE_TENSOR)
    result = tensor.as_subclass(cls)
    if hasattr(like, "ltype"):
        result.ltype = like.ltype
    return result


_LIE_TENSOR = "pypose.lietensor.lietensor.LieTensor"


def subclass_of(cls: type) -> Callable[[Tensor, Tensor], Tensor] | None:
    return _lie_tensor if _name(cls) == _LIE_TENSOR else None


def _name(cls: type) -> str:
    return f"{cls.__module__}.{cls.__qualname__}"
