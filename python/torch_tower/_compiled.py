"""compile, compiled functions in files, and the graph of what a function computes."""

import os
import pickle
import threading
import warnings
from typing import Any, Callable, Iterable

from . import _C
from ._compile import transformed, uncompiled
from ._containers import has_batch, untold_sizes
from ._found import Found
from ._trees import Arguments, Tree, describe

_MOST_KINDS = 64
_MOST_ALIKE = 8  # kinds that differ in what the function found: each may hold a model's tensors of another day
_OFTEN = 32  # times that a function finds something else before a warning says so
_MOST_ATTEMPTS = 16  # an == may call the function each time


class _Kinds:
    """The graphs of a function, by what they are for besides their tensors."""

    __slots__ = ("func", "make", "known", "lock", "changes")

    def __init__(self, func: Callable, make: Callable[[Any], _C.Compiled], known: Iterable[tuple[Any, _C.Compiled]]):
        self.func = func
        self.make = make  # for a key that is not known
        # Last used first, and never changed: keys are compared by an == of the user's, which may let other threads run,
        # or call the function again. The lock is held while one list takes the place of another, and then no longer.
        self.known = tuple((key, Found(()), of_kind) for key, of_kind in known)
        self.lock = threading.RLock()
        self.changes = 0  # times that the function found something else than before

    def find(self, key: Any) -> tuple[_C.Compiled | None, Found]:
        """The graphs, and what the function finds. None: a transform tracks what that is, so that the function is to be
        called as it is."""
        made = None
        for _ in range(_MOST_ATTEMPTS):
            known = self.known
            for i, entry in enumerate(known):
                if entry[1].still() and _same(self.func, entry[0], key):
                    if i:
                        self._publish(known, (entry, *known[:i], *known[i + 1 :]))
                    return entry[2], entry[1]
            if made is None:
                found = Found((self.func, *_static_leaves(key)))
                if found.tracked:
                    return None, found
                made = (key, found, self.make(key))
            if self._publish(known, (made, *self._kept(known, key))):
                break
        return made[2], made[1]

    def _kept(self, known: tuple, key: Any) -> tuple:
        """Of what is known, what stays beside new graphs."""
        alike = [i for i, entry in enumerate(known) if _same(self.func, entry[0], key)]
        if alike:
            self.changes += 1
            if self.changes == _OFTEN:
                warnings.warn(
                    f"compile({describe(self.func)}): a function was traced {_OFTEN} times because modules, tensors or "
                    "functions that it found were others than before. Write into a tensor that is there (copy_, "
                    "load_state_dict), or make what changes an argument.",
                    stacklevel=4,
                )
        dropped = set(alike[_MOST_ALIKE - 1 :])
        return tuple(entry for i, entry in enumerate(known) if i not in dropped)[: _MOST_KINDS - 1]

    def _publish(self, before: tuple, after: tuple) -> bool:
        """False where another thread was faster."""
        with self.lock:
            if self.known is not before:
                return False
            self.known = after
            return True

    @uncompiled
    def function(self) -> Callable:
        """What the user calls."""
        func, find = self.func, self.find

        @transformed(func)
        def compiled(*args, **kwargs):
            arguments, call, key = _flatten(func, args, kwargs)
            of_kind, found = find(key)
            if of_kind is None:
                return func(*args, **kwargs)
            results, outputs = of_kind.run(arguments.function(call), _Outputs(key), arguments.tensors, found.generators)
            if found.is_new:
                found.settle()
            return outputs.arrive(results)

        compiled.report = lambda: "".join(of_kind.report() for _, _, of_kind in self.known)
        compiled.listing = lambda: "".join(of_kind.listing() for _, _, of_kind in self.known)
        compiled.graphs = lambda: sum(of_kind.graphs() for _, _, of_kind in self.known)
        compiled.save = self.save
        compiled._kinds = self
        return compiled

    def save(self, path: str | os.PathLike) -> None:
        """Writes the graphs that there are to a file for `torch_tower.load`: with machine code for this CPU, and with
        the values that captured tensors have now."""
        _C.save_compiled(os.fspath(path), [of_kind for _, _, of_kind in self.known])


@uncompiled
def compile(func: Callable, *, math: str = "strict", cache: str | os.PathLike = "") -> Callable:
    """`func`, traced once for each kind of arguments and then run from its graph, where that can be as machine code.

    What is not a tensor among the arguments is compared by value. Tensors that the function captures are read at each
    call. It is traced again where a module that it calls has other parameters, buffers, parts, hooks or another mode
    (train, eval) than before, or a variable or attribute another tensor, module or function; a number that it takes
    from one stays what it was, and what it does besides calling operators, such as printing, is done once, while it is
    traced. A value that is read (`item()`, `if x > 0`) is refused.
    Transforms of the compiled function, and transforms inside of it, are compiled as well. `.report()` tells on a page
    what became of it, with the calls that are left to LibTorch and why, and `.listing()` of each kernel; `.graphs()`
    how many graphs there are; and `.save(path)` writes them to a file for `load`.

    With math="fast" a product and a sum may be rounded once, and a divisor of several numbers inverted once. `cache`
    names a folder that keeps machine code for other processes, as does TOWER_CACHE in the environment.
    """
    if math not in ("strict", "fast"):
        raise ValueError(f'compile: math is "strict" or "fast", not {math!r}.')
    folder = os.fspath(cache)
    return _Kinds(func, lambda key: _C.Compiled(math == "fast", folder), ()).function()


@uncompiled
def load(path: str | os.PathLike) -> Callable:
    """The function that was saved to the file `path`, without its code.

    It takes arguments of the kinds that it had been called with; RuntimeError for others, and where the file is not
    whole. Static parts of arguments and results are pickled: a file is a program, so load what you trust.
    """
    name = os.fspath(path)

    def loaded(*args, **kwargs):
        raise RuntimeError(f"load: {name} holds graphs and not the function.")

    def refuse(key: Any) -> _C.Compiled:
        raise RuntimeError(
            f"load: the function in {name} has no graph for arguments of this structure, or for these values of those "
            f"that are no tensors: {key}. It was saved with graphs for "
            + ", ".join(str(known) for known, _, _ in kinds.known)
            + " (the number of arguments, if all are tensors). Call it with such arguments before it is saved."
        )

    kinds = _Kinds(loaded, refuse, ())
    keys: dict[int, Any] = {}

    def restore(function: int, stored: bytes) -> _Outputs:
        outputs = _Outputs.restored(stored)
        keys[function] = outputs.key
        return outputs

    functions = _C.load_compiled(name, restore)
    kinds.known = tuple((keys[i], Found(()), function) for i, function in enumerate(functions) if i in keys)
    return kinds.function()


_EXPORT_WORDS = {
    "captured": ("constants", "arguments"),
    "abi": ("tower", "casadi"),
}


@uncompiled
def export_c(
    compiled: Callable,
    name: str,
    *,
    folder: str | os.PathLike = ".",
    target: str = "",
    also: Iterable[str] = (),
    captured: str = "constants",
    abi: str = "tower",
    derivatives: int = 2,
    parameters: Iterable[int] = (),
    argument_names: Iterable[str] = (),
    result_names: Iterable[str] = (),
) -> None:
    """Writes `compiled`, which `compile` or `load` gave, as a C function `name`, for arguments of the kind that it was
    last called with: name.h, name.c, name_kernels.o and name.cmake in `folder`.

    It is for this CPU, or for the `target` "x86-64", "x86-64-v2", "x86-64-v3", "x86-64-v4" or "aarch64". `also` are
    "ll" and "s", for LLVM's text of the kernels and their assembler in files besides.

    It is for any number of examples where the function was called with two. Its arguments and results are the tensors
    among those of `compiled`, as they come. Tensors that it `captured` become "constants", with the values that they
    have now, or further "arguments".

    With `abi` "casadi", it is called as CasADi calls external functions, for one example, with the `derivatives` that
    CasADi looks for: 1, Jacobians and derivatives along directions, 2, Hessians as well. `parameters` are the positions
    of tensors that nothing is differentiated by. `argument_names` and `result_names` are what the header says and
    CasADi has.

    RuntimeError where something in the function is no kernel.
    """
    kinds = getattr(compiled, "_kinds", None)
    if not isinstance(kinds, _Kinds):
        raise TypeError(f"export_c: {describe(compiled)} is not a function that compile or load gave.")
    words = {"captured": captured, "abi": abi}
    for option, word in words.items():
        if word not in _EXPORT_WORDS[option]:
            one, other = _EXPORT_WORDS[option]
            raise ValueError(f'export_c: {option} is "{one}" or "{other}", not {word!r}.')
    if not kinds.known:
        raise RuntimeError(
            "export_c: the function has no graph yet. Call it with arguments of the kind that it is wanted for; with "
            "two numbers of examples, for any."
        )
    options = {
        **words,
        "folder": os.fspath(folder),
        "target": target,
        "also": list(also),
        "derivatives": derivatives,
        "parameters": list(parameters),
        "argument_names": list(argument_names),
        "result_names": list(result_names),
    }
    _C.export_compiled(kinds.known[0][2], name, options)


@uncompiled
def graph(func: Callable) -> Callable:
    """What `func` computes of its arguments, as data: the operator calls that it makes.

    A function of the same arguments that gives a Graph; str() of that is a line a call. `func` is run once for it.
    """

    @transformed(func)
    def traced(*args, **kwargs):
        arguments, call, _ = _flatten(func, args, kwargs)
        return _C.graph(arguments.function(call), Tree().depart, arguments.tensors)

    return traced


class _Outputs(Tree):
    """What a compiled function returns, and what its graph is for besides tensors."""

    __slots__ = ("key", "sizes")

    def __init__(self, key: Any):
        super().__init__()
        self.key = key
        self.sizes: list = []

    def depart(self, value: Any) -> list:
        self.sizes = untold_sizes(value, of_parents=False)  # pytree makes those of the containers around of them
        return super().depart(value)

    def stored(self) -> bytes:
        if self.spec is not None and self.wraps:
            raise TypeError(f"save: the function returns a {type(self.wraps[0][2]).__name__}, which cannot be saved.")
        result = None if self.spec is None else (self.spec, self.flat, self.positions, self.sizes)
        try:
            return pickle.dumps((self.key, result))
        except Exception as error:
            raise TypeError(
                "save: what the function is compiled for, or what it returns besides tensors, cannot be pickled: "
                f"{error}"
            ) from error

    @classmethod
    def restored(cls, stored: bytes) -> "_Outputs":
        key, result = pickle.loads(stored)
        outputs = cls(key)
        if result is not None:
            outputs.spec, outputs.flat, outputs.positions, outputs.sizes = result
            outputs.wraps = []
        return outputs

    def same(self, other: "_Outputs") -> bool:
        """Whether the other is the same tree but for its tensors."""
        if self.spec is None or other.spec is None:
            return self.spec is other.spec
        try:
            same_tree = self.spec == other.spec and self.sizes == other.sizes
            return same_tree and not self.wraps and self._statics() == other._statics()
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
    batched = bool(wraps) or any(map(has_batch, arguments.shape.specs))
    sizes = untold_sizes(arguments.args, of_parents=True) if batched else []
    return arguments, call, (bool(kwargs), arguments.shape.specs, arguments.positions, wraps, statics, sizes)


def _static(leaf: Any) -> Any:
    """So that 1, 1.0 and True differ, and 0.0 and -0.0, and nan is what it is."""
    if isinstance(leaf, float):
        return type(leaf), leaf.hex()
    if isinstance(leaf, complex):
        return type(leaf), leaf.real.hex(), leaf.imag.hex()
    return type(leaf), leaf


def _static_leaves(key: Any) -> list:
    """Of the arguments, those that are no tensors, modules among them."""
    return [leaf for _, leaf, *_ in key[4]] if isinstance(key, tuple) else []


def _same(func: Callable, a: Any, b: Any) -> bool:
    try:
        return bool(a == b)
    except Exception as error:
        raise TypeError(
            f"compile({describe(func)}): a function is compiled for the values of those arguments that are no tensors, "
            f"but two of them cannot be compared: {error} Pass numbers, strings, or objects with an == that is true or "
            "false; an array as a tensor."
        ) from error
