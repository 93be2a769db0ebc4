"""vmap."""

import functools
from typing import Any, Callable

from torch import Tensor
from torch.utils._pytree import _broadcast_to_and_flatten, tree_flatten, tree_leaves

from . import _C
from ._trees import Arguments, Tree, describe

in_dims_t = int | tuple[Any, ...]
out_dims_t = int | tuple[Any, ...] | None


def vmap(
    func: Callable,
    in_dims: in_dims_t = 0,
    out_dims: out_dims_t = 0,
    randomness: str = "error",
    *,
    chunk_size: int | None = None,
) -> Callable:
    """`func` mapped over dimension(s) `in_dims` of its arguments: inside, it sees one example.

    The same as :func:`torch.func.vmap`. `in_dims` is an int, or a tuple with an entry for each positional argument:
    an int, None (not mapped) or a tree of them. Keyword arguments are not mapped. Outputs get their batch dimension at
    `out_dims`. `randomness` says what a random operator means: "error", "different" or "same" draws for
    the examples. At most `chunk_size` examples are computed at once.
    """
    if randomness not in ("error", "different", "same"):
        raise ValueError(f"vmap: randomness is {randomness!r}; it must be 'error', 'different' or 'same'.")
    if chunk_size is not None and chunk_size <= 0:
        raise ValueError(f"vmap: chunk_size is {chunk_size}; it must be positive or None.")
    if type(out_dims) is not int:
        _check_out_dims(func, out_dims)

    @functools.wraps(func)
    def mapped(*args, **kwargs):
        arguments = Arguments(args)
        outputs = Mapped(func, out_dims)
        return outputs.arrive(
            _C.vmap(
                arguments.function(func, kwargs),
                outputs.depart,
                arguments.tensors,
                _in_dims(func, in_dims, arguments),
                out_dims if type(out_dims) is int else None,
                randomness,
                chunk_size,
                arguments.name,
            )
        )

    return mapped


class Mapped(Tree):
    """What a mapped function returns, and its out_dims once its tree is known."""

    __slots__ = ("func", "out_dims")

    def __init__(self, func: Callable, out_dims: out_dims_t):
        super().__init__()
        self.func = func
        self.out_dims = out_dims

    def depart(self, value: Any) -> tuple[list[Tensor], list[int | None]]:
        tensors = super().depart(value)
        if isinstance(value, Tensor) and isinstance(self.out_dims, tuple) and len(self.out_dims) == 1:
            dims = list(self.out_dims)
        else:
            dims = _broadcast_to_and_flatten(self.out_dims, self.spec)
        if dims is None:
            raise ValueError(
                f"vmap({describe(self.func)}): out_dims has structure {tree_flatten(self.out_dims)[1]}, which does not "
                f"fit that of the outputs, {self.spec}."
            )
        for leaf, dim in zip(tree_leaves(value), dims):
            if dim is not None and not isinstance(leaf, Tensor):
                raise ValueError(
                    f"vmap({describe(self.func)}): the function must return tensors, but it returned a "
                    f"{type(leaf).__name__}. Its out_dim must be None to hand it through."
                )
        return tensors, [dims[i] for i in self.positions]


def _check_out_dims(func: Callable, out_dims: out_dims_t) -> None:
    for dim in tree_leaves(out_dims):
        if dim is not None and not isinstance(dim, int):
            raise ValueError(
                f"vmap({describe(func)}): out_dims has a {type(dim).__name__}; it must be an int, None or a tree of "
                "them that fits the outputs."
            )


def _in_dims(func: Callable, in_dims: in_dims_t, arguments: Arguments) -> list[int | None]:
    """One entry for each tensor of the arguments."""
    args = arguments.args
    if not args:
        raise ValueError(
            f"vmap({describe(func)}): there is nothing to map: it was called without positional arguments."
        )
    if type(in_dims) is int and arguments.all_tensors:
        return [in_dims] * len(args)
    if not isinstance(in_dims, (int, tuple)):
        raise ValueError(
            f"vmap({describe(func)}): in_dims is a {type(in_dims).__name__}; it must be an int or a tuple with an "
            "entry for each positional argument."
        )
    spec = tree_flatten(tuple(args))[1]
    dims = _broadcast_to_and_flatten(in_dims, spec)
    if dims is None:
        raise ValueError(
            f"vmap({describe(func)}): in_dims has structure {tree_flatten(in_dims)[1]}, which does not fit that of the "
            f"arguments, {spec}."
        )
    for leaf, dim in zip(arguments.flat, dims):
        if dim is not None and not isinstance(dim, int):
            raise ValueError(f"vmap({describe(func)}): in_dims has a {type(dim).__name__}; entries are ints or None.")
        if dim is not None and not isinstance(leaf, Tensor):
            raise ValueError(
                f"vmap({describe(func)}): in_dim {dim} is that of a {type(leaf).__name__}, but only tensors can be "
                "mapped. Give it None as in_dim."
            )
    return [dims[i] for i, leaf in enumerate(arguments.flat) if isinstance(leaf, Tensor)]
