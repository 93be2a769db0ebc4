"""The rows of the conformance table, and how one call of an operator goes through a row."""

from __future__ import annotations

import statistics
from dataclasses import dataclass

from . import mistakes
from .backends import needs_randomness
from .cases import DerivativeCase, GraphCase, NotApplicable, RaggedResults, ValueCase, Wrong
from .oracles import Undecided, differences

BATCH = 3  # examples of one level of vmap
DRAWS = 24  # examples in checks of randomness


@dataclass(frozen=True)
class Row:
    """A nesting. A second-order row transforms the gradient g(x, ct) = vjp(f, x)(ct) in place of f."""

    name: str
    transform: str  # "value", "in-place", "vjp", "jvp", "graph": the backward pass of autograd's own graph, "mistakes"
    order: int = 1
    vmap: str = "none"  # "none", "outside", "inside", "twice"
    mapped: str = "all"  # or "differentiable": which tensors have the batch dimension
    fast: bool = False  # part of `--fast`

    @property
    def differentiates(self):
        return self.transform in ("vjp", "jvp", "graph")


ROWS = (
    Row("vmap", "value", vmap="outside", fast=True),
    Row("vmap(vmap)", "value", vmap="twice", fast=True),
    Row("vmap of the in-place variant", "in-place", vmap="outside", fast=True),
    Row("vjp", "vjp", fast=True),
    Row("vmap(vjp)", "vjp", vmap="outside", fast=True),
    Row("vmap(vjp), only differentiable tensors mapped", "vjp", vmap="outside", mapped="differentiable", fast=True),
    Row("vjp(vmap)", "vjp", vmap="inside", fast=True),
    Row("jvp", "jvp", fast=True),
    Row("vmap(jvp)", "jvp", vmap="outside"),
    Row("vjp(vjp)", "vjp", order=2),
    Row("jvp(vjp)", "jvp", order=2),
    Row("vmap(vjp(vjp))", "vjp", order=2, vmap="outside"),
    Row("vmap(jvp(vjp))", "jvp", order=2, vmap="outside"),
    Row("vmap over torch.autograd.grad", "graph", vmap="outside", fast=True),
    Row("vmap, vjp and jvp of wrong calls", "mistakes", fast=True),
)


def _cases(row, call, parity):
    """The cases of a call: which tensors are mapped, and at which dimension. `parity` alternates from call to call."""
    everything = set(range(len(call.positions)))
    if row.differentiates:
        mapped = set(call.differentiable) if row.mapped == "differentiable" else set(everything)
        if row.vmap == "inside" and parity and len(call.differentiable) > 1:
            mapped.discard(call.differentiable[-1])  # its gradient is the sum over the examples
        dim = -1 if parity and row.vmap != "none" else 0
        examples = call.examples[: 1 if row.vmap == "none" else BATCH]
        if row.transform == "graph":
            yield GraphCase(row, call, examples[:1] * BATCH, mapped, dim)
            return
        try:
            yield DerivativeCase(row, call, examples, mapped, dim)
        except RaggedResults:  # with equal examples there may be a right answer
            yield DerivativeCase(row, call, examples[:1] * BATCH, mapped, dim)
        return
    examples = call.examples if row.vmap == "twice" else call.examples[:BATCH]
    yield ValueCase(row, call, examples, everything, 0)
    if row.transform == "in-place" and len(everything) > 1:
        yield ValueCase(row, call, examples, {0}, 0)
    elif len(everything) > 1:
        for k in range(min(len(everything), 3)):
            yield ValueCase(row, call, examples, {k}, (0, -1, 1)[k])
    if everything:
        yield ValueCase(row, call, examples, everything, -1)


def _judged(case, results):
    try:
        case.judge(results)
    except Wrong as error:
        if "elements differ" not in str(error) or (double := case.in_double()) is None:
            raise
        return double
    return None


def check(row, backend, call, parity):
    """Runs a call through a row. Returns the operators looped over, and whether it needs a randomness flag.

    Raises Wrong, what the backend raised, or NotApplicable where there is nothing to run.
    """
    if row.transform == "mistakes":
        if text := mistakes.differences_of(backend, call):
            raise Wrong(text)
        return set(), False
    if row.transform == "in-place" and not call.has_in_place():
        raise NotApplicable("no in-place variant")
    if row.differentiates and not call.differentiable:
        raise NotApplicable("nothing is differentiable")
    looped, random, reason = set(), False, None
    tried = False
    for case in _cases(row, call, parity):
        try:
            own, draws = _check_case(row, backend, call, case)
        except NotApplicable as error:  # these examples do not go together
            reason = error
            continue
        tried, looped, random = True, looped | own, random or draws
    if not tried:
        raise reason
    return looped, random


def _check_case(row, backend, call, case):
    ragged = case.is_ragged()  # also finds out whether the operator takes these examples
    try:
        results, looped = backend.run(lambda: case.run(backend))
    except Exception as error:
        if ragged:
            raise RaggedResults(str(error)) from error
        if needs_randomness(error):
            return _check_random(row, backend, call, case), True
        raise
    try:
        if double := _judged(case, results):
            double.judge(backend.run(lambda: double.run(backend))[0])
    except Wrong:
        if row.vmap != "none" or not _check_draws(backend, case):
            raise
    return looped, False


def _check_random(row, backend, call, case):
    """Both randomness modes over equal examples: shapes, equality of draws, and the mean against plain calls. Only
    "same" may be refused: one draw for examples with parameters of their own need not have a meaning."""
    copies = [call.examples[0]] * DRAWS
    mapped = set(range(len(call.positions))) if row.vmap == "inside" else case.mapped
    case = type(case)(row, call, copies, mapped, case.dim)
    if row.differentiates:
        case.directions = [case.directions[0]] * DRAWS
    looped, scalars = set(), {}
    for mode in ("same", "different"):
        try:
            with backend.drawing(mode):
                results, own = backend.run(lambda: case.run(backend))
        except Exception:
            if mode == "different":
                raise
            continue
        looped |= own
        results = case.per_example(results)
        if len(results) != DRAWS:
            raise Wrong(f"randomness={mode!r}: {len(results)} results of {DRAWS} examples")
        scalars[mode] = [case.scalar(result) for result in results]
        if mode == "same" and any(differences(result, results[0]) for result in results):
            raise Wrong("randomness='same': the examples differ")
    plain = [case.draw() for _ in range(DRAWS)]
    if len(set(plain)) > DRAWS // 2 and len(set(scalars["different"])) <= DRAWS // 4:
        raise Wrong("randomness='different': the examples are alike")
    _compare_means(plain, scalars["different"], "randomness='different'")
    return looped


def _compare_means(plain, drawn, context):
    spread = (statistics.variance(plain) + statistics.variance(drawn)) / DRAWS
    expected, actual = statistics.mean(plain), statistics.mean(drawn)
    if not abs(actual - expected) <= 6 * spread**0.5 + 1e-6 * abs(expected):
        raise Wrong(f"{context}: mean {actual:.5g}, of plain calls {expected:.5g}, standard error {spread**0.5:.2g}")


def _check_draws(backend, case):
    """An operator that draws, without vmap: it need not use the generator's numbers in the plain call's order."""
    plain = [case.draw() for _ in range(DRAWS)]
    if len({repr(number) for number in plain}) == 1:  # nan is not equal to itself
        return False
    drawn = [case.scalar(case.run(backend, reseed=False)[0]) for _ in range(DRAWS)]
    _compare_means(plain, drawn, "drawn without a vmap")
    return True


__all__ = ["ROWS", "NotApplicable", "RaggedResults", "Row", "Undecided", "Wrong", "check"]
