"""The libraries under test: the same transforms under the same names."""

from __future__ import annotations

import contextlib
import re
import warnings

import torch
from support import REFUSED_KERNEL

TOWER = "torch_tower"
COMPILED = "torch_tower.compile"
PEER = "torch.func"

_RANDOM = re.compile("randomness")
# torch.func warns: "There is a performance drop because we have not yet implemented the batching rule for aten::foo."
_PEER_LOOP = re.compile(r"batching rule for (\S+?)[.:;,]?(?:\s|$)")
# What torch_tower.compile says of it.
_READS = re.compile(r"compile.*: \S+ (reads a value|gives a tensor whose shape depends on values)")
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

    def vjp(self, function, *primals):
        return self.library.vjp(function, *primals)

    def jvp(self, function, primals, tangents):
        return self.library.jvp(function, primals, tangents)

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

    def refuses(self, error):
        """Why the library takes the call nowhere, whatever its arguments are; empty if it should."""
        return ""

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


class Compiled(Backend):
    """Tower, with all transforms compiled. Each function is called twice: the first call traces, what it gives is
    thrown away, and the second runs what was compiled. Both draw the same random numbers. (A function inside of another
    is called once by it: what puts random numbers back is not compiled.)"""

    def __init__(self):
        super().__init__(TOWER)
        self.name = COMPILED
        self._inside = False

    def _twice(self, function):
        compiled = self.library.compile(function)

        def second(*arguments):
            if self._inside:
                return compiled(*arguments)
            self._inside = True
            try:
                drawn_before = torch.get_rng_state()
                compiled(*arguments)
                torch.set_rng_state(drawn_before)
                return compiled(*arguments)
            finally:
                self._inside = False

        return second

    def vmap(self, function, in_dims=0):
        return self._twice(super().vmap(function, in_dims))

    def vjp(self, function, *primals):
        def pull_back(primals, cotangents):
            return self.library.vjp(function, *primals)[1](cotangents)

        outputs = self._twice(lambda *primals: self.library.vjp(function, *primals)[0])(*primals)
        return outputs, lambda cotangents: self._twice(pull_back)(primals, cotangents)

    def jvp(self, function, primals, tangents):
        return self._twice(lambda *both: self.library.jvp(function, *both))(primals, tangents)

    def run(self, function):
        with warnings.catch_warnings():
            warnings.filterwarnings("error", REFUSED_KERNEL)
            return function(), set()  # what stands for LibTorch's own formulas is looped over inside of a graph

    def refuses(self, error):
        return "it reads values, or has a shape that depends on them" if _READS.search(str(error)) else ""


def needs_randomness(error):
    return _RANDOM.search(str(error)) is not None
