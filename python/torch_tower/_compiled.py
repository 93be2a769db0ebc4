"""compile, and the graph of what a function computes."""

from typing import Any, Callable

from . import _C
from ._compile import transformed, uncompiled
from ._trees import Arguments, Tree, describe

_MOST_KINDS = 64


@uncompiled
def compile(func: Callable) -> Callable:
    """`func`, traced once for each kind of arguments and then run from its graph, where that can be as machine code.

    What is not a tensor among the arguments is compared by value. Tensors that the function captures are read at each
    call; what it does besides calling operators, such as printing, is done once, while it is traced. A value that is
    read (`item()`, `if x > 0`) is refused. Transforms of the compiled function, and transforms inside of it, are
    compiled as well. `.report()` tells what became of it, `.graphs()` how many graphs there are.
    """
    kinds: list[tuple[Any, _C.Compiled]] = []  # last used first

    def find(key: Any) -> _C.Compiled:
        for i, (known, compiled) in enumerate(kinds):
            if _same(func, known, key):
                if i:
                    kinds.insert(0, kinds.pop(i))
                return compiled
        kinds.insert(0, (key, _C.Compiled()))
        del kinds[_MOST_KINDS:]
        return kinds[0][1]

    @transformed(func)
    def compiled(*args, **kwargs):
        arguments, call, key = _flatten(func, args, kwargs)
        results, outputs = find(key).run(arguments.function(call), _Outputs(), arguments.tensors)
        return outputs.arrive(results)

    compiled.report = lambda: "".join(of_kind.report() for _, of_kind in kinds)
    compiled.graphs = lambda: sum(of_kind.graphs() for _, of_kind in kinds)
    return compiled


@uncompiled
def graph(func: Callable) -> Callable:
    """What `func` computes of its arguments, as data: the operator calls that it makes. str() of it is a line a call."""

    @transformed(func)
    def traced(*args, **kwargs):
        arguments, call, _ = _flatten(func, args, kwargs)
        return _C.graph(arguments.function(call), Tree().depart, arguments.tensors)

    return traced


class _Outputs(Tree):
    """What a compiled function returns."""

    __slots__ = ()

    def same(self, other: "_Outputs") -> bool:
        """Whether the other is the same tree but for its tensors."""
        if self.spec is None or other.spec is None:
            return self.spec is other.spec
        try:
            return self.spec == other.spec and not self.wraps and self._statics() == other._statics()
        except Exception:  # an == of the user's
            return False

    def _statics(self) -> list:
        return [_static(leaf) if i not in self.positions else None for i, leaf in enumerate(self.flat)]


def _flatten(func: Callable, args: tuple, kwargs: dict) -> tuple[Arguments, Callable, Any]:
    """The arguments, `func` as a function of them, and what it is compiled for besides its tensors."""
    if kwargs:
        count = len(args)
        arguments = Arguments((*args, kwargs))

        def call(*given):
            return func(*given[:count], **given[count])

    else:
        arguments, call = Arguments(args), func
    if arguments.all_tensors:
        return arguments, call, len(args)
    flat = arguments.flat
    positions = set(arguments.positions)
    wraps = [type(like) for _, _, like in arguments.wraps]
    statics = [_static(leaf) for i, leaf in enumerate(flat) if i not in positions]
    return arguments, call, (bool(kwargs), arguments.shape.specs, arguments.positions, wraps, statics)


def _static(leaf: Any) -> Any:
    """So that 1, 1.0 and True differ, and 0.0 and -0.0, and nan is what it is."""
    if isinstance(leaf, float):
        return type(leaf), leaf.hex()
    if isinstance(leaf, complex):
        return type(leaf), leaf.real.hex(), leaf.imag.hex()
    return type(leaf), leaf


def _same(func: Callable, a: Any, b: Any) -> bool:
    try:
        return bool(a == b)
    except Exception as error:
        raise TypeError(
            f"compile({describe(func)}): a function is compiled for the values of those arguments that are no tensors, "
            f"but two of them cannot be compared: {error} Pass numbers, strings, or objects with an == that is true or "
            "false; an array as a tensor."
        ) from error
