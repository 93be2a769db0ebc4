"""Functions of the user's that are run again when the call that they were given to is over."""

from functools import partial
from itertools import chain
from types import CellType, FunctionType, MethodType
from typing import Any, Callable

from torch import Tensor
from torch.func import functional_call
from torch.nn import Module


class KeptFunction:
    """A user's function that the backward pass may run again, when its variables may have got other values.

    What it captured it then finds as it was when the call began. Variables: those of a Python function are not captured
    by value, so of a loop over layers all checkpoints would see the last one. Modules: `functional_call` gives them
    other parameters while it lasts.
    """

    __slots__ = ("now", "later")

    def __init__(self, function: Callable):
        self.now, self.later = function, _with_states(_by_value(function, {}))

    def __call__(self, *args, **kwargs) -> Any:
        return self.now(*args, **kwargs)

    def __enter__(self) -> "KeptFunction":
        return self

    def __exit__(self, *error) -> None:
        self.now = self.later


def _by_value(value: Any, copies: dict[int, FunctionType]) -> Any:
    """A function with its captured variables as they are now, those of functions among them too."""
    if not isinstance(value, FunctionType) or not value.__closure__:
        return value
    if id(value) in copies:
        return copies[id(value)]
    cells = tuple(CellType() for _ in value.__closure__)
    copy = FunctionType(value.__code__, value.__globals__, value.__name__, value.__defaults__, cells)
    copy.__kwdefaults__ = value.__kwdefaults__
    vars(copy).update(vars(value))
    copies[id(value)] = copy
    for cell, variable in zip(cells, value.__closure__):
        try:
            cell.cell_contents = _by_value(variable.cell_contents, copies)
        except ValueError:  # it has no value yet
            pass
    return copy


def captured(value: Any, found: dict[int, Any]) -> None:
    """Into `found`, by identity: the modules, tensors and functions that it captured, is, or is a method of."""
    if isinstance(value, MethodType):
        captured(value.__self__, found)
    elif isinstance(value, partial):
        for part in (value.func, *value.args, *value.keywords.values()):
            captured(part, found)
    elif id(value) in found:
        return
    elif isinstance(value, (Module, Tensor)):
        found[id(value)] = value
    elif isinstance(value, (list, tuple, dict)):
        found[id(value)] = value
        for part in value.values() if isinstance(value, dict) else value:
            captured(part, found)
    elif isinstance(value, FunctionType):
        found[id(value)] = value
        for cell in value.__closure__ or ():
            try:
                captured(cell.cell_contents, found)
            except ValueError:  # it has no value yet
                pass


class _Holder(Module):
    """What functional_call calls to run a function while all of these modules have other tensors."""

    def __init__(self, function: Callable, modules: list[Module]):
        super().__init__()
        self.function = function
        for number, module in enumerate(modules):
            self.add_module(str(number), module)

    def forward(self, *args, **kwargs) -> Any:
        return self.function(*args, **kwargs)

    def state(self) -> dict[str, Tensor]:
        # functional_call registers all of a tied tensor's names alike.
        tensors = chain(self.named_parameters(remove_duplicate=False), self.named_buffers(remove_duplicate=False))
        return dict(tensors)


def _with_states(function: Callable) -> Callable:
    """The function with the modules that it captured as they are now."""
    found: dict[int, Any] = {}
    captured(function, found)
    modules = [value for value in found.values() if isinstance(value, Module)]
    if not modules:
        return function
    holder = _Holder(function, modules)
    then = holder.state()

    def run(*args, **kwargs):
        now = holder.state()
        others = {name: tensor for name, tensor in then.items() if now.get(name) is not tensor}
        return functional_call(holder, others, args, kwargs) if others else function(*args, **kwargs)

    return run
