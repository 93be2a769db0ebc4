"""Whether the modules that a function calls are in training mode: what they compute depends on it."""

from functools import partial
from types import CodeType, FunctionType, MethodType
from typing import Any, Callable, Iterator

from torch.nn import Module

_DEEPEST = 8  # objects in objects
_LONGEST = 1000  # parts of a container: what has more is data
_MOST = 10_000  # functions, containers and objects that are looked into


def modes(modules: list[Module]) -> tuple[bool, ...]:
    """The mode of each."""
    return tuple([module.training for module in modules])


def modules_of(func: Callable) -> list[Module]:
    """All modules that `func` is, is a method of, captured, or names as a global variable, and those inside of them.

    It is also looked for in functions, containers and objects that it has in one of these ways. What a function finds
    otherwise, by a call or in a module of Python's, is not seen.
    """
    found: dict[int, Any] = {}
    _collect(func, found, 0)
    return list(dict.fromkeys(inner for each in found.values() if isinstance(each, Module) for inner in each.modules()))


def _collect(value: Any, found: dict[int, Any], depth: int) -> None:
    if depth > _DEEPEST or len(found) > _MOST or id(value) in found:
        return
    try:
        parts = _parts(value)
    except Exception:  # of the user's: an object that stands for another, which is not there now
        return
    if parts or issubclass(type(value), Module):
        found[id(value)] = value
    for part in parts:
        _collect(part, found, depth + 1)


def _parts(value: Any) -> list:
    if isinstance(value, (Module, type, str, bytes, int, float)):
        return []
    if isinstance(value, FunctionType):
        return _of_function(value)
    if isinstance(value, MethodType):
        return [value.__self__, value.__func__]
    if isinstance(value, partial):
        return [value.func, *value.args, *value.keywords.values()]
    if isinstance(value, (dict, list, tuple, set, frozenset)):
        return list(value.values() if isinstance(value, dict) else value) if len(value) <= _LONGEST else []
    if str(type(value).__module__).partition(".")[0] in ("builtins", "torch", "numpy"):
        return []  # tensors among others, which have nothing of the kind
    return list(vars(value).values()) if hasattr(value, "__dict__") else []


def _of_function(function: FunctionType) -> list:
    variables, parts = function.__globals__, []
    if str(variables.get("__name__")).partition(".")[0] not in ("torch", "torch_tower"):
        parts = [variables[name] for name in _names(function.__code__) if name in variables]
    for cell in function.__closure__ or ():
        try:
            parts.append(cell.cell_contents)
        except ValueError:  # it has no value yet
            pass
    return [*parts, *(function.__defaults__ or ()), *(function.__kwdefaults__ or {}).values()]


def _names(code: CodeType) -> Iterator[str]:
    """Of global variables and attributes, also in the functions that are made inside."""
    yield from code.co_names
    for constant in code.co_consts:
        if isinstance(constant, CodeType):
            yield from _names(constant)
