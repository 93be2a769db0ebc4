"""The libraries under test: the same transforms under the same names."""

from __future__ import annotations

import contextlib
import re
import warnings

import torch

TOWER = "torch_tower"
PEER = "torch.func"

_RANDOM = re.compile("randomness")
# torch.func warns: "There is a performance drop because we have not yet implemented the batching rule for aten::foo."
_PEER_LOOP = re.compile(r"batching rule for (\S+?)[.:;,]?(?:\s|$)")
_TOWER_LOOP = re.compile(r"(\w+::\S+) has no batching rule")


class Backend:
    """One library, and which operators it looped over while it ran something."""

    def __init__(self, name):
        self.name = name
        self.randomness = "error"
        if name == PEER:
            import torch.func as library

            self.version = torch.__version__
        else:
            import torch_tower as library

            self.version = library.__version__
        self.library = library
        self.vjp, self.jvp = library.vjp, library.jvp

    def vmap(self, function, in_dims=0):
        return self.library.vmap(function, in_dims, randomness=self.randomness)

    @contextlib.contextmanager
    def drawing(self, randomness):
        self.randomness = randomness
        try:
            yield
        finally:
            self.randomness = "error"

    def run(self, function):
        """What `function()` returns, and the names of the operators that the library looped over."""
        return self._run_peer(function) if self.name == PEER else self._run_tower(function)

    def _run_peer(self, function):
        with warnings.catch_warnings(record=True) as caught:
            warnings.simplefilter("always")
            result = function()
        return result, {match[1] for match in (_PEER_LOOP.search(str(w.message)) for w in caught) if match}

    def _run_tower(self, function):
        # Its warning comes once for each operator in a process; as an error it comes each time.
        previous = self.library.set_fallback_is_error(True)
        try:
            return function(), set()
        except Exception as error:
            match = _TOWER_LOOP.search(str(error))
            if not match:
                raise
        finally:
            self.library.set_fallback_is_error(previous)
        return function(), {match[1]}

    def warm_up(self):
        """Imports what the library imports at first use, before processes are forked."""
        x = torch.ones(2)
        self.jvp(lambda x: self.vmap(torch.sin)(x).sum(), (x,), (x,))
        self.vjp(torch.sin, x)[1](x)


def needs_randomness(error):
    return _RANDOM.search(str(error)) is not None
