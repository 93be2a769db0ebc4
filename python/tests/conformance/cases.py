"""One call of an operator through one nesting of transforms: how it is run, and what the oracles say to the results.

A case has several examples. `run(backend)` gives a list of results, one for each example (or one for all of them, where
the vmap is inside); a result is a list of tensors. `judge(results)` raises `Wrong`.
"""

from __future__ import annotations

import torch

from . import oracles
from .oracles import Point
from .samples import seed


class Wrong(Exception):
    """The answer is not what the oracles say."""


class NotApplicable(Exception):
    """There is nothing to run: the plain call does not have what the row is about."""


class RaggedResults(Exception):
    """The results of the examples differ in shape: no tensor holds them, an error is the only right answer."""


def stack(examples, mapped, dim):
    """The tensors of several examples with a batch dimension, and in_dims. Tensors not in `mapped` are the first's."""
    tensors, in_dims = [], []
    for k, column in enumerate(zip(*examples)):
        place = None
        if k in mapped:
            place = dim if dim <= column[0].dim() else 0
        in_dims.append(place)
        tensors.append(column[0] if place is None else torch.stack(column, place))
    return tensors, tuple(in_dims)


def as_mapped(examples, mapped):
    """The examples as a vmap sees them: what is not in `mapped` is the first's."""
    return [[own if k in mapped else first for k, (own, first) in enumerate(zip(e, examples[0]))] for e in examples]


def _detached(tensors):
    return [oracles.dense(tensor) for tensor in tensors]


def _plainly(function):
    """A call without transforms. What the operator says against its arguments is not about any transform."""
    try:
        return function()
    except Exception as error:
        raise NotApplicable(f"the plain call: {error}") from error


def _demand(text, context):
    if text:
        raise Wrong(f"{text} {context}".rstrip())


class ValueCase:
    """The operator, or its in-place variant, under one vmap or two, against the loop over the examples."""

    def __init__(self, row, call, examples, mapped, dim):
        self.row, self.call, self.dim = row, call, dim
        self.examples = as_mapped(examples, mapped)
        self.mapped = mapped
        # A factory takes no tensors; the batch is then that of a tensor which it does not read.
        self.bystander = not self.examples[0]
        self.function = call.in_place if row.transform == "in-place" else call

    def _loop(self):
        def one(example):
            seed(0)
            return _detached(self.function(*(tensor.clone() for tensor in example)))

        results = [_plainly(lambda: one(example)) for example in self.examples]
        if not results[0]:
            raise NotApplicable("no tensor comes out")
        return results

    def run(self, backend):
        examples, mapped = self.examples, self.mapped
        function = lambda *tensors: tuple(self.function(*tensors))
        if self.bystander:
            examples, mapped = [[torch.zeros(())] for _ in examples], {0}
            function = lambda _: tuple(self.function())
        batches = [examples]
        if self.row.vmap == "twice":
            batches = [examples[: len(examples) // 2], examples[len(examples) // 2 :]]
        tensors, in_dims = zip(*(stack(batch, mapped, self.dim) for batch in batches))
        tensors, in_dims = list(tensors), in_dims[0]
        seed(0)
        if self.row.vmap != "twice":
            columns = backend.vmap(function, in_dims)(*tensors[0])
        else:
            both = [a if d is None else torch.stack([a, b]) for a, b, d in zip(*tensors, in_dims)]
            outer = tuple(None if d is None else 0 for d in in_dims)
            columns = backend.vmap(lambda *inner: backend.vmap(function, in_dims)(*inner), outer)(*both)
            columns = [oracles.dense(column).flatten(0, 1) for column in columns]
        return list(zip(*(oracles.dense(column).unbind(0) for column in columns)))

    def judge(self, results):
        expected = self._loop()
        if any([e.shape for e in one] != [e.shape for e in expected[0]] for one in expected):
            raise Wrong("the examples' results differ in shape, and yet something came out")
        for b, (actual, one) in enumerate(zip(results, expected, strict=True)):
            if self.undefined():
                actual, one = [torch.zeros_like(a) for a in actual], [torch.zeros_like(e) for e in one]
            _demand(oracles.differences(actual, one), self.context(b))

    def context(self, b):
        return f"[example {b}, mapped {sorted(self.mapped)} at {self.dim}]"

    def per_example(self, results):
        return results

    def undefined(self):
        """Whether the operator promises a shape and no values."""
        return self.call.entry.name.removeprefix("new_").startswith("empty")

    def is_ragged(self):
        shapes = [[tensor.shape for tensor in result] for result in self._loop()]
        return any(one != shapes[0] for one in shapes)

    def in_double(self):
        """The same in double precision, which tells errors from rounding. None if it is the same."""
        wider = {torch.float32: torch.float64, torch.complex64: torch.complex128}
        examples = [[tensor.to(wider.get(tensor.dtype, tensor.dtype)) for tensor in e] for e in self.examples]
        if all(a.dtype == b.dtype for a, b in zip(examples[0], self.examples[0])):
            return None
        return ValueCase(self.row, self.call, examples, self.mapped, self.dim)

    def scalar(self, result):
        """One number of a result, for statistics."""
        return oracles.inner(oracles.random_like(oracles.in_double(result), 1), oracles.in_double(result))

    def draw(self):
        """The same number of one plain call with new random numbers."""
        return self.scalar(_detached(self.function(*(tensor.clone() for tensor in self.examples[0]))))


class DerivativeCase:
    """A derivative of the operator, of first or second order, perhaps with a vmap outside or inside."""

    def __init__(self, row, call, examples, mapped, dim):
        self.row, self.call, self.dim, self.mapped = row, call, dim, mapped
        self.examples = as_mapped(examples, mapped)
        self.differentiable = call.differentiable
        self.fixed = [k for k in range(len(call.positions)) if k not in self.differentiable]
        self.outputs = self._outputs_that_depend()
        self.points = [self._point(example) for example in self.examples]
        values = [_detached(_plainly(point.value)) for point in self.points]
        self.directions = [
            oracles.random_like(point.inputs if row.transform == "jvp" else value, 20 + b)
            for b, (point, value) in enumerate(zip(self.points, values))
        ]
        if any([d.shape for d in own] != [d.shape for d in self.directions[0]] for own in self.directions):
            raise RaggedResults

    def _outputs_that_depend(self):
        tensors = list(self.examples[0])
        for k in self.differentiable:
            tensors[k] = tensors[k].clone().requires_grad_()
        seed(0)
        outputs = [k for k, y in enumerate(_plainly(lambda: self.call(*tensors))) if y.requires_grad]
        if not outputs:
            raise NotApplicable("no output depends on a differentiable tensor")
        return outputs

    def _split(self, example):
        return [example[k] for k in self.differentiable], [example[k] for k in self.fixed]

    def _function(self, fixed):
        """The operator as a function of its differentiable tensors alone."""

        def function(*inputs):
            tensors = [None] * len(self.call.positions)
            for k, tensor in zip(self.differentiable + self.fixed, (*inputs, *fixed), strict=True):
                tensors[k] = tensor
            outputs = self.call(*tensors)
            return tuple(outputs[k] for k in self.outputs)

        return function

    def _point(self, example):
        """What the oracles judge by: the function, or its gradient by autograd as a function of (x, ct)."""
        inputs, fixed = self._split(example)
        function = self._function(fixed)
        if self.row.order == 1:
            return Point(function, inputs)
        primal = Point(function, inputs)
        outputs = _detached(_plainly(primal.value))
        gradient = oracles.gradient_of(function, len(inputs))
        return Point(gradient, inputs + oracles.random_like(outputs, 5), primal=primal)

    def _transformed(self, backend, fixed):
        """What the row differentiates: as `_point`, with the backend's gradient."""
        function = self._function(fixed)
        if self.row.order == 1:
            return function
        count = len(self.differentiable)
        return lambda *both: tuple(backend.vjp(function, *both[:count])[1](tuple(both[count:])))

    def run(self, backend, reseed=True):
        if reseed:
            seed(0)
        if self.row.vmap == "inside":
            return self._run_vjp_of_vmap(backend)
        inputs, along = len(self.points[0].inputs), len(self.directions[0])

        def one(*tensors):
            x, directions, fixed = tensors[:inputs], tensors[inputs : inputs + along], tensors[inputs + along :]
            function = self._transformed(backend, list(fixed))
            if self.row.transform == "jvp":
                outputs, tangents = backend.jvp(function, tuple(x), tuple(directions))
                return (*outputs, *tangents)
            outputs, pullback = backend.vjp(function, *x)
            return (*outputs, *pullback(tuple(directions)))

        flat = [p.inputs + d + self._split(e)[1] for p, d, e in zip(self.points, self.directions, self.examples)]
        if self.row.vmap == "none":
            return [one(*flat[0])]
        mapped = {inputs + along + j for j, k in enumerate(self.fixed) if k in self.mapped}
        stacked, in_dims = stack(flat, mapped | set(range(inputs + along)), self.dim)
        return list(zip(*(y.unbind(0) for y in backend.vmap(one, in_dims)(*stacked))))

    def _run_vjp_of_vmap(self, backend):
        stacked, in_dims = stack(self.examples, self.mapped, self.dim)
        in_dims = tuple(in_dims[k] for k in self.differentiable + self.fixed)
        inputs, fixed = self._split(stacked)

        def function(*inputs):
            one = lambda *tensors: self._function(tensors[len(inputs) :])(*tensors[: len(inputs)])
            return backend.vmap(one, in_dims)(*inputs, *fixed)

        outputs, pullback = backend.vjp(function, *inputs)
        return [(*outputs, *pullback(tuple(torch.stack(column) for column in zip(*self.directions))))]

    def _loop_as_point(self):
        """The oracle of vjp(vmap): the loop over the examples as one function of the stacked tensors."""
        stacked, in_dims = stack(self.examples, self.mapped, self.dim)

        def loop(*inputs):
            columns = []
            for b, example in enumerate(self.examples):
                own = [
                    x if in_dims[k] is None else x.select(in_dims[k], b).clone(memory_format=torch.contiguous_format)
                    for k, x in zip(self.differentiable, inputs)
                ]
                columns.append(self._function(self._split(example)[1])(*own))
            return tuple(torch.stack(column) for column in zip(*columns))

        return Point(loop, self._split(stacked)[0])

    def judge(self, results):
        if self.row.vmap == "inside":
            cotangents = [torch.stack(column) for column in zip(*self.directions)]
            return self._judge(self._loop_as_point(), cotangents, results[0], f"[mapped {sorted(self.mapped)}]")
        for b, (point, directions, result) in enumerate(zip(self.points, self.directions, results, strict=True)):
            context = "" if self.row.vmap == "none" else f"[example {b}, mapped {sorted(self.mapped)} at {self.dim}]"
            self._judge(point, directions, result, context)

    def _judge(self, point, directions, result, context):
        values, result = _detached(point.value()), _detached(result)
        outputs, derivative = result[: len(values)], result[len(values) :]
        text = oracles.differences(outputs, values)
        if text and point.primal:
            # If this gradient, which is not autograd's, is right, then autograd cannot judge its derivatives.
            if not oracles.judge_gradient(point.primal, point.inputs[len(outputs) :], outputs):
                raise oracles.Undecided("autograd's own gradient is wrong here")
        _demand(text and f"the value: {text}", context)
        judge = oracles.judge_gradient if self.row.transform == "vjp" else oracles.judge_tangent
        _demand(judge(point, directions, derivative), context)

    def is_ragged(self):
        return False

    def in_double(self):
        return None

    def scalar(self, result):
        """One number of the derivative, for statistics: along a direction it is the same in both modes."""
        point = self.points[0]
        derivative = _detached(result)[-len(point.inputs) :] if self.row.transform == "vjp" else None
        if derivative is not None:
            return oracles.inner(derivative, oracles.random_like(derivative, 1))
        tangents = _detached(result)[len(result) // 2 :]
        return oracles.inner(oracles.random_like(tangents, 1), tangents)

    def draw(self):
        """The same number of one plain call with new random numbers, by autograd."""
        point = Point(self.points[0].function, self.points[0].inputs, seeded=False)
        if self.row.transform == "vjp":
            gradient = point.pullback(self.directions[0])
            return oracles.inner(gradient, oracles.random_like(gradient, 1))
        cotangents = oracles.random_like(_detached(point.value()), 1)
        return oracles.inner(point.pullback(cotangents), self.directions[0])

    def per_example(self, results):
        """The results of each example where the vmap is inside."""
        if self.row.vmap != "inside":
            return results
        _, in_dims = stack(self.examples, self.mapped, self.dim)
        places = [0] * len(self.outputs) + [in_dims[k] for k in self.differentiable]
        return list(zip(*(y.unbind(place) for y, place in zip(results[0], places))))


class GraphCase(DerivativeCase):
    """A backward pass through a graph that LibTorch's autograd recorded outside, once for each cotangent: under a vmap,
    against the loop over them. It is one graph, so all examples are the first."""

    def _outputs(self):
        inputs = [tensor.clone().requires_grad_() for tensor in self.points[0].inputs]
        with torch.enable_grad():
            return inputs, self.points[0].value(inputs)

    def _backward(self, inputs, outputs):
        def backward(*cotangents):
            found = torch.autograd.grad(outputs, inputs, cotangents, retain_graph=True, allow_unused=True)
            return tuple(torch.zeros_like(x) if g is None else g for g, x in zip(found, inputs))

        return backward

    def run(self, backend, reseed=True):
        directions, in_dims = stack(self.directions, set(range(len(self.outputs))), self.dim)
        columns = backend.vmap(self._backward(*self._outputs()), in_dims)(*directions)
        return list(zip(*(oracles.dense(column).unbind(0) for column in columns)))

    def judge(self, results):
        backward = self._backward(*self._outputs())
        for b, (directions, result) in enumerate(zip(self.directions, results, strict=True)):
            expected = _detached(_plainly(lambda: backward(*directions)))
            _demand(oracles.differences(result, expected), f"[cotangent {b}, mapped at {self.dim}]")
