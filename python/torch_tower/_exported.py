"""Models that torch.export.save wrote, as functions to transform, without the code that they were made of."""

import collections
import dataclasses
import functools
import keyword
import os
from typing import Any, Iterator

from torch import Tensor

from . import _C


class ExportedModel:
    """A model of a file, called as the Python function that was exported. `load_exported` makes one."""

    def __init__(self, model: Any):
        """`model` is the extension's."""
        self._model = model
        _, self._names, self._arguments = model.arguments()
        self._results = model.results()

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        """What the model gives for these arguments, `args` and `kwargs`."""
        return self.call({}, *args, **kwargs)

    def call(self, weights: dict[str, Tensor], *args: Any, **kwargs: Any) -> Any:
        """What the model gives for `args` and `kwargs` with `weights` in the place of its parameters, buffers and
        constants of these names."""
        given = dict(zip(self._names, args))
        given.update(kwargs)
        if len(args) > len(self._names) or given.keys() != set(self._names) or len(given) != len(args) + len(kwargs):
            raise TypeError(f"exported model: it is {self.signature()}, and was called with other arguments")
        leaves: list[Any] = []
        for name, tree in zip(self._names, self._arguments):
            _append_leaves(given[name], tree, name, leaves)
        return _tree_of(self._results, iter(self._model.call(weights, leaves)))

    def parameters(self) -> dict[str, Tensor]:
        """The parameters, by name. They share memory with the model's and do not require grad."""
        return self._model.parameters()

    def buffers(self) -> dict[str, Tensor]:
        """The buffers, by name, in the same way."""
        return self._model.buffers()

    def constants(self) -> dict[str, Tensor]:
        """The tensors that the exported code held otherwise, by name."""
        return self._model.constants()

    def signature(self) -> str:
        """Names and kinds of the arguments and of the result."""
        return self._model.signature()

    def report(self) -> str:
        """A page: the signature, sizes, weights, and how each operator is served under the transforms."""
        return self._model.report()


_MAPPINGS = ("dict", "OrderedDict", "defaultdict")


def _append_leaves(value: Any, tree: tuple, place: str, leaves: list) -> None:
    kind, keys, children = tree
    if children is None:
        leaves.append(value)
        return
    if keys and dataclasses.is_dataclass(value):
        # As it was exported: fields that are None are left out.
        fields = {field.name: getattr(value, field.name) for field in dataclasses.fields(value)}
        value = {name: v for name, v in fields.items() if v is not None or name in keys}
    has_names = kind in _MAPPINGS or (bool(keys) and isinstance(value, dict))
    if isinstance(value, dict) == has_names and isinstance(value, (dict, list, tuple)) and len(value) == len(children):
        if not has_names:
            keys = range(len(children))
        if not isinstance(value, dict) or value.keys() == set(keys):
            for key, child in zip(keys, children):
                _append_leaves(value[key], child, f"{place}[{key!r}]", leaves)
            return
    raise TypeError(f"exported model: {place} is no {kind} of {len(children)}, as the model was exported for")


def _tree_of(tree: tuple, leaves: Iterator[Any]) -> Any:
    kind, keys, children = tree
    if children is None:
        return next(leaves)
    values = [_tree_of(child, leaves) for child in children]
    if kind in _MAPPINGS:
        return dict(zip(keys, values))
    if keys:
        return _named(kind, tuple(keys))(*values)
    return values if kind == "list" else tuple(values)


@functools.cache
def _named(kind: str, keys: tuple[str, ...]) -> type:
    """What stands for a namedtuple or dataclass in results."""
    name = kind if kind.isidentifier() and not keyword.iskeyword(kind) else "Fields"
    return collections.namedtuple(name, keys, rename=True)


def load_exported(path: str | os.PathLike, *, model: str = "", any_version: bool = False) -> ExportedModel:
    """The model of the file `path` that torch.export.save wrote; `model` names one where the file has several. Nothing
    of the file is run as code. With `any_version`, files of a version of the schema that is not known are read, too."""
    return ExportedModel(_C.load_exported(os.fspath(path), model, any_version))
