"""Between trees and the flat lists of tensors that Tower's dynamic layer takes."""

from bisect import bisect_left, bisect_right
from operator import index
from typing import Any, Callable, Sequence

from torch import Tensor
from torch.utils._pytree import TreeSpec, keystr, tree_flatten, tree_unflatten

from ._containers import flatten, flatten_with_path, is_plain, wrapper_of

LEAF = tree_flatten(None)[1]
KEPT = object()


def describe(function: Callable) -> str:
    return getattr(function, "__name__", None) or repr(function)


class Shape:
    """The trees of the arguments of a call, without their leaves."""

    __slots__ = ("specs", "starts")

    def __init__(self, specs: list[TreeSpec] | None, starts: Sequence[int]):
        self.specs = specs  # of each argument; None: every argument is a tensor
        self.starts = starts  # of each argument's leaves among all

    def unflatten(self, flat: Sequence[Any]) -> tuple:
        """The arguments with these leaves."""
        if self.specs is None:
            return tuple(flat)
        return tuple(
            flat[start] if spec is LEAF else tree_unflatten(flat[start : start + spec.num_leaves], spec)
            for spec, start in zip(self.specs, self.starts)
        )


class Arguments:
    """The arguments of a call: their tensors in a list, everything else kept here.

    A tensor given by keyword comes after the positional arguments. What else is given by keyword, also a container that
    holds tensors, is handed through as it is.
    """

    __slots__ = ("args", "kwargs", "keywords", "flat", "shape", "tensors", "positions", "wraps")

    def __init__(self, args: Sequence[Any], kwargs: dict | None = None):
        self.args = args  # the positional ones
        self.kwargs = kwargs
        self.keywords = [name for name, value in kwargs.items() if isinstance(value, Tensor)] if kwargs else ()
        given = (*args, *map(kwargs.get, self.keywords)) if self.keywords else args
        for arg in given:
            if type(arg) is not Tensor and not is_plain(arg):
                self._flatten(given)
                return
        self.flat = self.tensors = given
        self.positions = range(len(given))
        self.shape = Shape(None, self.positions)
        self.wraps = ()

    def _flatten(self, given: Sequence[Any]) -> None:
        self.flat, specs, starts = [], [], []
        for arg in given:
            starts.append(len(self.flat))
            if isinstance(arg, Tensor):
                self.flat.append(arg)
                specs.append(LEAF)
            else:
                leaves, spec = flatten(arg)
                self.flat += leaves
                specs.append(spec)
        self.shape = Shape(specs, starts)
        self.positions = [i for i, leaf in enumerate(self.flat) if isinstance(leaf, Tensor)]
        self.tensors = [self.flat[i] for i in self.positions]
        self.wraps = [(i, wrap, self.flat[i]) for i in self.positions if (wrap := wrapper_of(self.flat[i]))]

    @property
    def all_tensors(self) -> bool:
        """Whether each argument is a tensor, and nothing more than that."""
        return self.shape.specs is None

    def function(self, func: Callable) -> Callable:
        """`func` as a function of the tensors alone."""
        if self.all_tensors and not self.kwargs:
            return func
        count = len(self.args)

        def call(*tensors):
            flat = list(self.flat)
            for i, tensor in zip(self.positions, tensors):
                flat[i] = tensor
            for i, wrap, like in self.wraps:
                flat[i] = wrap(like, flat[i])
            given = self.shape.unflatten(flat)
            if not self.kwargs:
                return func(*given)
            return func(*given[:count], **{**self.kwargs, **dict(zip(self.keywords, given[count:]))})

        return call

    def name(self, tensor: int) -> str:
        """How messages name a tensor: "argument 1['weight']"."""
        position = self.positions[tensor]
        argument = bisect_right(self.shape.starts, position) - 1
        if argument >= len(self.args):
            return f"argument {self.keywords[argument - len(self.args)]}"
        path = flatten_with_path(self.args[argument])[position - self.shape.starts[argument]][0]
        return f"argument {argument}{keystr(path)}"


class Chosen:
    """The arguments to differentiate with respect to."""

    __slots__ = ("single", "specs", "tensors")

    def __init__(self, transform: str, arguments: Arguments, argnums: int | tuple[int, ...]):
        self.single = isinstance(argnums, int) and not isinstance(argnums, bool)
        numbers = (argnums,) if self.single else argnums
        if not isinstance(numbers, tuple) or not all(isinstance(n, int) for n in numbers):
            instead = f" Write argnums={tuple(argnums)}." if isinstance(argnums, list) else ""
            raise TypeError(
                f"{transform}: argnums must be int or Tuple[int, ...], got: {type(argnums)}. It must be an int or a "
                f"tuple of ints.{instead}"
            )
        count = len(arguments.args)
        for n in numbers:
            if not -count <= n < count:
                raise RuntimeError(
                    f"{transform}: argnums has {n}: Got argnum={n}, but only {count} positional inputs that the "
                    "function was called with."
                )
        numbers = [n % count for n in numbers]
        if not numbers:
            raise RuntimeError(f"{transform}: argnums must be non-empty: it must name at least one argument.")
        if len(set(numbers)) != len(numbers):
            raise RuntimeError(f"{transform}: argnums elements must be unique, got {argnums!r}. Name each once.")
        if arguments.all_tensors:
            self.specs, self.tensors = [LEAF] * len(numbers), numbers
            return
        self.specs = [arguments.shape.specs[n] for n in numbers]
        self.tensors = []
        for n, spec in zip(numbers, self.specs):
            start = arguments.shape.starts[n]
            for i in range(start, start + spec.num_leaves):
                if not isinstance(arguments.flat[i], Tensor):
                    raise ValueError(
                        f"{transform}: Thing passed to transform API must be Tensor, got {type(arguments.flat[i])}: "
                        f"argument {n} holds a {type(arguments.flat[i]).__name__}, but only tensors can be "
                        "differentiated with respect to. Leave it out of argnums or out of the argument."
                    )
                self.tensors.append(bisect_left(arguments.positions, i))

    def unflatten(self, tensors: Sequence[Any]) -> Any:
        """A tree like the chosen argument, or a tuple of such."""
        result, start = [], 0
        for spec in self.specs:
            end = start + spec.num_leaves
            result.append(tensors[start] if spec is LEAF else tree_unflatten(tensors[start:end], spec))
            start = end
        return result[0] if self.single else tuple(result)


class Tree:
    """The tree of a value on its way through the flat layer: its tensors travel, the rest waits here."""

    __slots__ = ("spec", "flat", "positions", "wraps")

    def __init__(self):
        self.spec = None  # a single tensor, unless something departs

    def depart(self, value: Any) -> list[Tensor]:
        return self._leave(*flatten(value))

    def _leave(self, flat: list[Any], spec: TreeSpec) -> list[Tensor]:
        self.flat, self.spec = flat, spec
        self.positions = [i for i, leaf in enumerate(self.flat) if isinstance(leaf, Tensor)]
        tensors = [self.flat[i] for i in self.positions]
        self.wraps = [(k, wrap, t) for k, t in enumerate(tensors) if (wrap := wrapper_of(t))]
        for i in self.positions:
            self.flat[i] = None
        return tensors

    def arrive(self, values: Sequence[Tensor]) -> Any:
        """The tree with these values in place of its tensors, of the subclasses that those are of."""
        if self.spec is not None and self.wraps:
            values = list(values)
            for k, wrap, like in self.wraps:
                values[k] = wrap(like, values[k])
        return self.like(values)

    def like(self, values: Sequence[Any], static: Any = KEPT) -> Any:
        """The tree with anything in place of its tensors and, unless the rest is to stay, `static` in place of that."""
        if self.spec is None:
            return values[0]
        flat = list(self.flat) if static is KEPT else [static] * len(self.flat)
        for i, value in zip(self.positions, values):
            flat[i] = value
        return tree_unflatten(flat, self.spec)


class Outputs(Tree):
    """What the user's function returns: tensors only, and, with has_aux, whatever aux is."""

    __slots__ = ("transform", "aux")

    def __init__(self, transform: str, has_aux: bool = False):
        super().__init__()
        self.transform = transform
        self.aux = Tree() if has_aux else None

    def depart(self, value: Any) -> Any:
        if self.aux is None:
            return self._tensors(value)
        if not isinstance(value, tuple) or len(value) != 2:
            raise RuntimeError(
                f"{self.transform}: output of the function should be a tuple: (output, aux) if has_aux is True, "
                f"but it returned {what_is(value)}."
            )
        return self._tensors(value[0]), self.aux.depart(value[1])

    def _tensors(self, value: Any) -> list[Tensor]:
        tensors = super().depart(value)
        if len(tensors) != len(self.flat) or not tensors:
            culprit = next((leaf for i, leaf in enumerate(self.flat) if i not in self.positions), value)
            raise RuntimeError(
                f"{self.transform}: Expected tensors, got unsupported type {type(culprit)}: the function must return "
                f"tensors or a tree of tensors, but it returned {what_is(value)}"
                + (f" with a {type(culprit).__name__} in it." if self.flat else ", which holds none.")
            )
        return tensors


def check_tuple(transform: str, what: str, value: Any) -> None:
    """For what a function is called with."""
    if not isinstance(value, tuple):
        raise RuntimeError(
            f"{transform}: Expected {what} to be a tuple. E.g. it should be valid to call f(*{what}). Found a "
            f"{type(value).__name__}; it must be a tuple."
        )


def check_whole(op: str, **numbers: Any) -> None:
    """TypeError where one of these arguments of `op` is no whole number."""
    for name, number in numbers.items():
        try:
            index(number)
        except TypeError:
            raise TypeError(f"{op}: {name} is {number!r}; it must be a whole number.") from None


def check_chunk_size(transform: str, chunk_size: int | None) -> None:
    if chunk_size is None:
        return
    check_whole(transform, chunk_size=chunk_size)
    if chunk_size <= 0:
        raise ValueError(f"{transform}: chunk_size is {chunk_size}; it must be positive or None.")


def what_is(value: Any) -> str:
    return f"a {type(value).__name__}" + (f" of {len(value)} elements" if isinstance(value, (tuple, list)) else "")


def same_tree(transform: str, what: str, value: Any, like: str, spec: TreeSpec | None, words: str) -> list[Any]:
    """The leaves of `value`, which must have the structure `spec` (None: a single tensor). None stands for zero.

    `words` are those that torch.func says it with.
    """
    if spec is None or spec is LEAF:
        if isinstance(value, Tensor) or value is None:
            return [value]
        spec = LEAF
    leaves, found = flatten(value)
    if found != spec:
        raise RuntimeError(
            f"{transform}: {words}. The {what} must have the tree of {like}, but it has {found} in place of {spec}."
        )
    for leaf in leaves:
        if leaf is not None and not isinstance(leaf, Tensor):
            raise RuntimeError(f"{transform}: {what} must be tensors, or None for zero; found a {type(leaf).__name__}.")
    return leaves
