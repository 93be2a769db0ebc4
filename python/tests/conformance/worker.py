"""One entry of the database through all rows and both libraries: outcomes."""

from __future__ import annotations

import contextlib
import io
import re

import torch

from . import mistakes, samples
from .rows import NotApplicable, RaggedResults, Undecided, Wrong, check

# From bad to good; the outcome of several calls is the worst of theirs.
OUTCOMES = ("wrong", "error", "random", "loop", "ok", "untested")

# Operators whose result has no shape or value that the shapes of their arguments tell: for a batch of different
# examples an error is right. Some only if they are called with so many tensors.
_DATA_DEPENDENT = {
    "argwhere": (1, "the number of results depends on the data"),
    "bincount": (1, "the size of the result depends on the data"),
    "item": (1, "its result is a Python number"),
    "masked_select": (1, "the number of results depends on the data"),
    "nonzero": (1, "the number of results depends on the data"),
    "tensor_split": (2, "a tensor that says where to split decides the shapes of the results"),
    "unique": (1, "the number of results depends on the data"),
    "unique_consecutive": (1, "the number of results depends on the data"),
    "to_sparse": (1, "the number of stored elements depends on the data"),
    "nn.functional.one_hot": (1, "without num_classes the size of the result depends on the data"),
    "repeat_interleave": (2, "a tensor of repeats decides the size of the result"),
}


def _data_dependence(call):
    tensors, reason = _DATA_DEPENDENT.get(call.entry.name, (0, ""))
    return reason if len(call.positions) >= tensors else ""


def _short(error):
    text = str(error) or type(error).__name__
    return re.sub(r"\s+", " ", text)[:400]


def _dtype_of_derivatives(entry):
    """None if the entry has no derivative."""
    supported = entry.supported_backward_dtypes(samples.DEVICE) if entry.supports_autograd else ()
    return next((dtype for dtype in (torch.float64, torch.float32) if dtype in supported), None)


class _Result:
    """The outcome of an entry in a row: the worst of its calls, with that one's text."""

    def __init__(self):
        self.outcome, self.text, self.looped, self.calls = "untested", "", set(), 0
        self.reasons = []  # for each error, why the data leaves no other answer; empty if they do

    def add(self, outcome, text=""):
        self.calls += outcome != "untested"
        if OUTCOMES.index(outcome) < OUTCOMES.index(self.outcome) or not self.text:
            self.text = text
        self.outcome = min(self.outcome, outcome, key=OUTCOMES.index)

    def as_json(self):
        return {
            "outcome": self.outcome,
            "text": self.text,
            "looped": sorted(self.looped),
            "calls": self.calls,
            "data_dependent": self.reasons[0] if self.reasons and all(self.reasons) else "",
        }


def _try(result, row, backend, call, parity):
    try:
        with contextlib.redirect_stdout(io.StringIO()):
            looped, random = check(row, backend, call, parity)
    except NotApplicable as error:
        result.add("untested", _short(error))
    except Undecided as error:
        result.add("untested", f"no oracle: {_short(error)}")
    except Wrong as error:
        result.add("wrong", f"{call.describe()}: {_short(error)}")
    except RaggedResults as error:
        result.reasons.append("the shape of the result depends on the data")
        result.add("error", f"{call.describe()}: {_short(error)}")
    except Exception as error:
        result.reasons.append(backend.refuses(error) or _data_dependence(call))
        result.add("error", f"{call.describe()}: {type(error).__name__}: {_short(error)}")
    else:
        result.looped |= looped
        result.add("random" if random else "loop" if looped else "ok")


def run(name, rows, backends, count, done, tell):
    """Runs an entry but for the cells in `done`.

    Calls `tell("at", row, backend)` before each cell and `tell("is", result)` after it; `tell("at")` before it makes
    samples.
    """
    torch.set_num_threads(1)
    samples.let_random_operators_draw()
    samples.seed_samples_cheaply()
    entry, dtype = samples.entries()[name]
    drawn = {}
    for row in rows:
        cells = [backend for backend in backends if (row.name, backend.name) not in done]
        own_dtype = _dtype_of_derivatives(entry) if row.differentiates else dtype
        if own_dtype is None or not cells:
            continue
        kind = "wrong" if row.transform == "mistakes" else row.differentiates
        if kind not in drawn:
            tell("at")
            if kind == "wrong":
                # A mistake in one call is one in the others, mostly, and this row alone takes half of a fast run.
                good = drawn.get(False) or samples.calls(entry, own_dtype, count)
                drawn[kind] = mistakes.calls(entry, good[: (len(good) + 1) // 2])
            else:
                drawn[kind] = samples.calls(entry, own_dtype, count, row.differentiates)
        for backend in cells:
            tell("at", row.name, backend.name)
            result = _Result()
            for number, call in enumerate(drawn[kind]):
                _try(result, row, backend, call, number % 2)
            tell("is", result.as_json())
