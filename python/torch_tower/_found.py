"""What a function finds besides its arguments, modules, tensors and functions, and whether it still finds the same."""

from functools import partial
from types import CellType, CodeType, FunctionType, MethodType, ModuleType
from typing import Any, Iterable, Iterator

from torch import Generator, Tensor
from torch._C._functorch import is_functorch_wrapped_tensor
from torch.nn import Module

from . import _C

_DEEPEST = 8  # objects in objects
_LONGEST = 1000  # parts of a container: what has more is data
_MOST = 10_000  # functions, containers and objects that are looked into

# What a module holds by name, all of which says what it computes.
_HELD = ("_parameters", "_buffers", "_modules", "_forward_pre_hooks", "_forward_hooks")
_OF_OTHERS = ("builtins", "collections", "functools", "numpy", "torch", "torch_tower")


class Found:
    """All that a function finds now: what it captured, and what it names as global variables, in modules of Python's
    or as attributes of the objects and modules of torch.nn that it has; and what functions find that are found so.

    What is found by a call, in objects that have no __dict__ or as an attribute of a class is not seen, and numbers and
    strings are not looked at.
    """

    __slots__ = ("places", "tracked", "generators", "is_new", "_matters", "_kept", "_uses")

    def __init__(self, roots: Iterable[Any]):
        # (holder, key, value): what a cell has, a dict by a key (None: nothing), an attribute; or, without a key, all
        # that a list or a dict has, in which `...` stands for what does not matter.
        self.places: list[tuple[Any, str | None, Any]] = []
        self.tracked = False  # whether some of the tensors belong to a transform that is running
        self.generators: list[Generator] = []
        self.is_new = True  # nothing was traced since
        self._matters: dict[int, bool] = {}
        self._kept: list[Any] = []  # whose id is a key there
        for root in roots:
            self._look(root, 0)
        self._matters, self._kept = {}, []
        self._uses = [value._use_count() if isinstance(value, Tensor) else 0 for _, _, value in self.places]

    def still(self) -> bool:
        """Whether the function would find the same."""
        return _C.still_there(self.places)

    def settle(self) -> None:
        """The function has been traced. Where it has put another tensor in the place of one that it did not read, such
        as what it computed last, that is its own affair."""
        if not self.still():
            self.places = [
                place
                for place, uses in zip(self.places, self._uses)
                if not uses or _C.still_there([place]) or place[2]._use_count() > uses
            ]
        self._uses, self.is_new = [], False

    def _look(self, value: Any, depth: int) -> bool:
        """Whether it matters that this value is found, and not another; if so, what is found in it is noted."""
        if depth > _DEEPEST or isinstance(value, (str, bytes, int, float, type, CodeType)):
            return False
        if isinstance(value, Tensor):
            return self._look_at_tensor(value)
        known = self._matters.get(id(value))
        if known is not None or len(self._matters) > _MOST:
            return bool(known)
        self._matters[id(value)] = True  # until all of it was seen: what it is a part of itself matters
        self._kept.append(value)
        try:
            matters = self._look_into(value, depth + 1)
        except Exception:  # of the user's: an object that stands for another, which is not there now
            matters = False
        self._matters[id(value)] = matters
        return matters

    def _look_at_tensor(self, tensor: Tensor) -> bool:
        if _C.is_wrapper(tensor):
            if _C.inspect(tensor)[3]:  # its transform has ended: nobody can read it
                return False
            self.tracked = True
        elif is_functorch_wrapped_tensor(tensor):
            self.tracked = True
        return True

    def _look_into(self, value: Any, depth: int) -> bool:
        if isinstance(value, Generator):
            self.generators.append(value)
            return True
        if isinstance(value, FunctionType):
            self._look_into_function(value, depth)
            return True
        if isinstance(value, Module):
            self._look_into_module(value, depth)
            return True
        if isinstance(value, MethodType):
            return self._any((value.__self__, value.__func__), depth)
        if isinstance(value, partial):
            return self._any((value.func, *value.args, *value.keywords.values()), depth)
        if isinstance(value, (dict, list)):
            return len(value) <= _LONGEST and self._look_into_parts(value, depth)
        if isinstance(value, (tuple, set, frozenset)):
            return len(value) <= _LONGEST and self._any(value, depth)
        if isinstance(value, ModuleType) or not hasattr(value, "__dict__"):
            return False
        if _is_of_others(type(value).__module__) and not hasattr(value, "__wrapped__"):
            return False
        of_class = self._any(_methods(type(value)), depth)
        return self._look_into_names(vars(value), vars(value), depth) or of_class

    def _any(self, values: Iterable[Any], depth: int) -> bool:
        return any([self._look(value, depth) for value in values])

    def _look_into_names(self, holder: dict, names: Iterable[str], depth: int) -> bool:
        found = [(name, holder[name]) for name in names if name in holder]
        mattering = [(holder, name, value) for name, value in found if self._look(value, depth)]
        self.places += mattering
        return bool(mattering)

    def _look_into_parts(self, holder: dict | list, depth: int) -> bool:
        parts = list(dict.values(holder) if isinstance(holder, dict) else list.__iter__(holder))
        mattering = [self._look(part, depth) for part in parts]
        if not any(mattering):
            return False
        self.places.append((holder, None, tuple(p if matters else ... for p, matters in zip(parts, mattering))))
        return True

    def _look_into_function(self, function: FunctionType, depth: int) -> None:
        variables = function.__globals__
        for cell in function.__closure__ or ():
            self._look_into_cell(cell, depth)
        self._any((*(function.__defaults__ or ()), *(function.__kwdefaults__ or {}).values()), depth)
        if _is_of_others(variables.get("__name__")):
            return
        names = list(dict.fromkeys(_names(function.__code__)))
        self._look_into_names(variables, names, depth)
        for module in [variables.get(name) for name in names]:
            if isinstance(module, ModuleType) and not _is_of_others(module.__name__):
                self._look_into_names(vars(module), names, depth)

    def _look_into_cell(self, cell: CellType, depth: int) -> None:
        try:
            value = cell.cell_contents
        except ValueError:  # it has no value yet
            return
        if self._look(value, depth):
            self.places.append((cell, None, value))

    def _look_into_module(self, module: Module, depth: int) -> None:
        held = vars(module)
        if "training" not in held:  # of TorchScript, which holds what it has elsewhere
            tensors = (*module.named_parameters(recurse=False), *module.named_buffers(recurse=False))
            self.places += [(module, "training", module.training), *((module, name, t) for name, t in tensors)]
            self._any(module.children(), depth - 1)
            return
        self.places += [(held, "training", held["training"]), (held, "forward", held.get("forward"))]
        for name in _HELD:
            parts = tuple(dict.values(held[name]))
            self.places += [(held, name, held[name]), (held[name], None, parts)]
            self._any(parts, depth - 1)  # however deep modules are inside of others
        self._look(held.get("forward"), depth)
        self._look_into_names(held, [name for name in held if name not in (*_HELD, "forward")], depth)
        self._any(_methods(type(module)), depth)


def _is_of_others(module: Any) -> bool:
    """Whether a module of Python's, by its name, is of a package that has no tensors of the user's."""
    return str(module).partition(".")[0] in _OF_OTHERS


def _methods(of: type) -> Iterator[FunctionType]:
    for base in of.__mro__:
        if not _is_of_others(base.__module__):
            yield from [value for value in vars(base).values() if isinstance(value, FunctionType)]


def _names(code: CodeType) -> Iterator[str]:
    """Of global variables and attributes, also in the functions that are made inside."""
    yield from code.co_names
    for constant in code.co_consts:
        if isinstance(constant, CodeType):
            yield from _names(constant)
