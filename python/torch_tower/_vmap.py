"""vmap."""

from typing import Any, Callable

from torch import Tensor
from torch.utils._pytree import _broadcast_to_and_flatten, tree_flatten, tree_leaves, tree_unflatten

from . import _C
from ._compile import transformed, uncompiled
from ._containers import Parts, flatten, is_container
from ._processes import Mesh, handle_of
from ._trees import Arguments, Tree, check_chunk_size, describe

in_dims_t = int | tuple[Any, ...]
out_dims_t = int | tuple[Any, ...] | None


@uncompiled
def vmap(
    func: Callable,
    in_dims: in_dims_t = 0,
    out_dims: out_dims_t = 0,
    randomness: str = "error",
    *,
    chunk_size: int | None = None,
    axis: str | None = None,
    across: Mesh | None = None,
) -> Callable:
    """`func` mapped over dimension(s) `in_dims` of its arguments: inside, it sees one example.

    The same as :func:`torch.func.vmap`. `in_dims` is an int, or a tuple with an entry for each positional argument:
    an int, None (not mapped) or a tree of them. Keyword arguments are not mapped. Outputs get their batch dimension at
    `out_dims`. `randomness` says what a random operator means: "error", "different" or "same" draws for
    the examples. At most `chunk_size` examples are computed at once. `axis` names the examples for collectives (psum,
    …); `across` a mesh of processes, each of which passes and gets its part of what is mapped.
    """
    if randomness not in ("error", "different", "same"):
        raise ValueError(f"vmap: randomness is {randomness!r}; it must be 'error', 'different' or 'same'.")
    check_chunk_size("vmap", chunk_size)
    if type(out_dims) is not int:
        _check_out_dims(func, out_dims)

    @transformed(func)
    def mapped(*args, **kwargs):
        arguments, dims = _arguments(func, in_dims, args, kwargs)
        outputs = Mapped(func, out_dims, arguments, dims)
        return outputs.arrive(
            _C.vmap(
                arguments.function(func),
                outputs.depart,
                arguments.tensors,
                dims,
                out_dims if type(out_dims) is int else None,
                randomness,
                chunk_size,
                axis or "",
                handle_of(across),
                arguments.name,
            )
        )

    return mapped


class Mapped(Tree):
    """What a mapped function returns, and its out_dims once its tree is known."""

    __slots__ = ("func", "out_dims", "arguments", "in_dims")

    def __init__(self, func: Callable, out_dims: out_dims_t, arguments: Arguments, in_dims: list[int | None]):
        super().__init__()
        self.func = func
        self.out_dims = out_dims
        self.arguments = arguments
        self.in_dims = in_dims

    @property
    def batch_size(self) -> int:
        return next(t.shape[d] for t, d in zip(self.arguments.tensors, self.in_dims) if d is not None)

    def depart(self, value: Any) -> tuple[list[Tensor], list[int | None]]:
        flat, spec = tree_flatten(value, is_leaf=is_container)
        if spec.is_leaf() and isinstance(self.out_dims, tuple) and len(self.out_dims) == 1:
            dims = list(self.out_dims)
        else:
            dims = _broadcast_to_and_flatten(self.out_dims, spec)
        if dims is None:
            raise ValueError(
                f"vmap({describe(self.func)}): out_dims has structure "
                f"{tree_flatten(self.out_dims)[1]}, which is not compatible with the structure of outputs, {spec}."
            )

        def refuse(leaf: Any, dim: int) -> None:
            raise ValueError(
                f"vmap({describe(self.func)}): the function must only return Tensors, got type {type(leaf)}: it "
                f"returned a {type(leaf).__name__}. Did you mean to set out_dims= to None for output? A container of "
                "tensors must be registered: torch_tower.register_container."
            )

        tensor_dims = _dims_of_tensors(
            flat, dims, lambda leaf, dim: Parts.of_example(leaf, dim, self.batch_size), refuse
        )
        if Parts in map(type, flat):
            flat, spec = flatten(tree_unflatten(flat, spec))
        return self._leave(flat, spec), tensor_dims


def _check_out_dims(func: Callable, out_dims: out_dims_t) -> None:
    for dim in tree_leaves(out_dims):
        if dim is not None and not isinstance(dim, int):
            raise ValueError(
                f"vmap({describe(func)}): out_dims has a {type(dim).__name__}; it must be an int, None or a tree of "
                "them that fits the outputs."
            )


def _arguments(func: Callable, in_dims: in_dims_t, args: tuple, kwargs: dict) -> tuple[Arguments, list[int | None]]:
    """The arguments, mapped containers taken apart, and an entry of in_dims for each of their tensors."""
    if not args:
        raise ValueError(
            f"vmap({describe(func)}): got no inputs, so there is nothing to map: it was called without positional "
            "arguments."
        )
    arguments = Arguments(args, kwargs)
    not_mapped = [None] * len(arguments.keywords)
    if type(in_dims) is int and arguments.all_tensors:
        return arguments, [in_dims] * len(args) + not_mapped
    if not isinstance(in_dims, (int, tuple)):
        raise ValueError(
            f"vmap({describe(func)}): in_dims is a {type(in_dims).__name__}; expected `in_dims` to be int or a "
            "(potentially nested) tuple with an entry for each positional argument."
        )
    flat, spec = tree_flatten(args, is_leaf=None if arguments.all_tensors else is_container)
    dims = _broadcast_to_and_flatten(in_dims, spec)
    if dims is None:
        raise ValueError(
            f"vmap({describe(func)}): in_dims has structure {tree_flatten(in_dims)[1]}, which is not compatible with "
            f"the structure of inputs, {spec}."
        )

    def refuse(leaf: Any, dim: int) -> None:
        raise ValueError(
            f"vmap({describe(func)}): in_dim {dim} is that of a {type(leaf).__name__}: We cannot vmap over non-Tensor "
            "arguments, please use None as the respective in_dim. A container of tensors must be registered: "
            "torch_tower.register_container."
        )

    for dim in dims:
        if dim is not None and not isinstance(dim, int):
            raise ValueError(
                f"vmap({describe(func)}): in_dims has a {type(dim).__name__}: Got in_dim={dim} for an input but in_dim "
                "must be either an integer dimension or None."
            )
    tensor_dims = _dims_of_tensors(flat, dims, Parts.of_batch, refuse)
    if Parts in map(type, flat):
        arguments = Arguments(tree_unflatten(flat, spec), kwargs)
    return arguments, tensor_dims + not_mapped


def _dims_of_tensors(flat: list[Any], dims: list[int | None], take_apart: Callable, refuse: Callable) -> list:
    """The entry of dims for each tensor of these leaves. Containers among them are replaced by their parts."""
    result = []
    for i, (leaf, dim) in enumerate(zip(flat, dims)):
        if is_container(leaf):
            flat[i] = parts = Parts.of_tree(leaf) if dim is None else take_apart(leaf, dim)
            result += parts.dims
        elif isinstance(leaf, Tensor):
            result.append(dim)
        elif dim is not None:
            refuse(leaf, dim)
    return result
