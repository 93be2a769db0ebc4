"""What is right: judges that neither Tower nor torch.func wrote.

The loop over the examples judges vmap. LibTorch's autograd judges gradients, and directional derivatives through the
adjoint: <ct, jvp(t)> = <vjp(ct), t>. Where a result and autograd disagree, or autograd has no formula, finite
differences decide. So autograd's own errors do not count against anybody.
"""

from __future__ import annotations

import math

import torch

from .samples import seed

# Relative to the value, and to the largest one of the tensor: what a sum in another order may change. Where single
# precision is not enough to tell an error from rounding, the caller repeats the comparison in double precision.
TOLERANCE = {
    torch.float64: 1e-7,
    torch.complex128: 1e-7,
    torch.float32: 1e-5,
    torch.complex64: 1e-5,
    torch.float16: 2e-3,
    torch.complex32: 2e-3,
    torch.bfloat16: 2e-2,
}
STEP = 1e-4  # of finite differences


class Undecided(Exception):
    """No oracle can tell here: a kink, or a function that is not smooth enough for finite differences.

    So it is where the derivative does not exist: autograd gives nan or infinity, and finite differences do not
    converge.
    """


def dense(tensor):
    tensor = tensor.detach()
    if tensor.layout != torch.strided:
        tensor = tensor.to_dense()
    return tensor.resolve_conj().resolve_neg()


def in_double(tensors):
    wide = {True: torch.complex128, False: torch.float64}
    return [tensor.detach().to(wide[tensor.is_complex()]) for tensor in tensors]


def difference(actual, expected):
    """None if two tensors agree in shape, dtype and value, else what differs."""
    if actual.shape != expected.shape:
        return f"shape {list(actual.shape)}, expected {list(expected.shape)}"
    if actual.dtype != expected.dtype:
        return f"dtype {actual.dtype}, expected {expected.dtype}"
    actual, expected = dense(actual), dense(expected)
    tolerance = TOLERANCE.get(expected.dtype)
    if tolerance is None:
        wrong = actual != expected
    else:
        finite = expected.isfinite()
        scale = max(1.0, expected[finite].abs().max().item()) if finite.any() else 1.0
        wrong = ~torch.isclose(actual, expected, rtol=tolerance, atol=tolerance * scale, equal_nan=True)
    if not wrong.any():
        return None
    place = wrong.nonzero()[0].tolist()
    return (
        f"{int(wrong.sum())} of {wrong.numel()} elements differ, at {place}: "
        f"{actual[tuple(place)].item()}, expected {expected[tuple(place)].item()}"
    )


def differences(actual, expected):
    """As `difference`, of lists."""
    if len(actual) != len(expected):
        return f"{len(actual)} results, expected {len(expected)}"
    for k, (a, e) in enumerate(zip(actual, expected)):
        if text := difference(a, e):
            return f"result {k}: {text}" if len(expected) > 1 else text
    return None


def inner(left, right):
    """The real inner product of lists of tensors; complex numbers count as pairs."""
    total = 0.0
    for a, b in zip(left, right, strict=True):
        total += (a.resolve_conj().conj() * b).real.sum().item() if a.is_complex() else (a * b).sum().item()
    return total


def norm(tensors):
    return max(inner(tensors, tensors), 0.0) ** 0.5


def random_like(tensors, number):
    generator = torch.Generator().manual_seed(number)
    return [torch.randn(t.shape, dtype=t.dtype, generator=generator) for t in tensors]


class Point:
    """A function of floating-point tensors, at a point, with its derivative by autograd and by finite differences."""

    def __init__(self, function, inputs, seeded=True, primal=None):
        self.function = function
        self.inputs = inputs
        self.primal = primal  # the point of the function whose gradient this one's function is
        self.seeded = seeded  # a random operator draws the same each time

    def value(self, inputs=None):
        if self.seeded:
            seed(0)
        return self.function(*(self.inputs if inputs is None else inputs))

    def pullback(self, cotangents):
        """By autograd. Undecided if it has no formula."""
        inputs = [tensor.clone().requires_grad_() for tensor in self.inputs]
        with torch.enable_grad():
            try:
                outputs = self.value(inputs)
                pairs = [(y, ct) for y, ct in zip(outputs, cotangents, strict=True) if y.requires_grad]
                if not pairs:
                    return [torch.zeros_like(x) for x in self.inputs]
                outputs, cotangents = zip(*pairs)
                gradients = torch.autograd.grad(outputs, inputs, cotangents, allow_unused=True)
                # Asked for a graph, autograd may compute another gradient; its derivative is then not of this one.
                if self.primal and (text := differences(*([dense(y) for y in self.value(x)] for x in (inputs, None)))):
                    raise Undecided(f"autograd's gradient with and without a graph: {text}")
            except (RuntimeError, NotImplementedError) as error:
                raise Undecided(f"autograd: {error}") from error
        return [torch.zeros_like(x) if g is None else g.detach() for g, x in zip(gradients, self.inputs)]

    def directional(self, tangents):
        """By central differences, extrapolated, with an estimate of their error. Undecided at a kink."""

        def quotient(step):
            ends = []
            for sign in (1, -1):
                ends.append(self.value([x + sign * step * t for x, t in zip(self.inputs, tangents)]))
            return [(above - below) / (2 * step) for above, below in zip(*(in_double(end) for end in ends))]

        coarse, fine = quotient(STEP), quotient(STEP / 2)
        best = [(4 * f - c) / 3 for c, f in zip(coarse, fine)]
        error = norm([f - c for c, f in zip(coarse, fine)])
        if not error <= 1e-4 * max(1.0, norm(best)):
            raise Undecided("finite differences do not converge")
        return best, error + 1e-7 * max(1.0, norm(best))


def gradient_of(function, count):
    """The gradient of a function of `count` tensors, by autograd, as a differentiable function of them and ct."""

    def gradient(*both):
        inputs = [x if x.requires_grad else x.detach().requires_grad_() for x in both[:count]]
        with torch.enable_grad():
            outputs = function(*inputs)
            pairs = [(y, ct) for y, ct in zip(outputs, both[count:], strict=True) if y.requires_grad]
            outputs, cotangents = zip(*pairs)
            graph = any(x.requires_grad for x in both)
            found = torch.autograd.grad(outputs, inputs, cotangents, create_graph=graph, allow_unused=True)
        return tuple(torch.zeros_like(x) if g is None else g for g, x in zip(found, inputs))

    return gradient


def _agree_where_finite(actual, expected):
    known = [tensor.isfinite() for tensor in expected]
    keep = lambda tensors: [tensor.where(k, torch.zeros_like(tensor)) for tensor, k in zip(tensors, known)]
    return not all(k.all() for k in known) and differences(keep(actual), keep(expected)) is None


def _nearby(tensors):
    """The same tensors but for rounding."""
    return [x * (1 + 4 * torch.finfo(x.dtype).eps * r) for x, r in zip(tensors, random_like(tensors, 40))]


def judge_gradient(point, cotangents, gradient):
    """None if `gradient` is that of <cotangents, function> at the point, else what differs."""
    if any(g.shape != x.shape or g.dtype != x.dtype for g, x in zip(gradient, point.inputs, strict=True)):
        return differences(gradient, point.inputs)
    try:
        by_autograd = point.pullback(cotangents)
        text = differences(gradient, by_autograd)
        if text is None:
            return None
        again = Point(point.function, _nearby(point.inputs)).pullback(cotangents)
        if norm([a - e for a, e in zip(gradient, by_autograd)]) <= 100 * norm(
            [a - e for a, e in zip(again, by_autograd)]
        ):
            return None
        judged_by_autograd = True
    except Undecided as reason:
        text, judged_by_autograd = str(reason), False
    try:
        for number in (1, 2):
            tangents = random_like(point.inputs, number)
            slope, error = point.directional(tangents)
            expected, actual = inner(cotangents, slope), inner(gradient, tangents)
            if not abs(actual - expected) <= 10 * error * max(1.0, norm(cotangents)):
                return (
                    f"gradient against autograd: {text}; along a direction {actual:.8g}, by differences {expected:.8g}"
                )
    except Undecided as reason:
        if judged_by_autograd and not _agree_where_finite(gradient, by_autograd):
            return f"gradient against autograd: {text}; {reason}"
        raise
    return None


def judge_tangent(point, tangents, result):
    """None if `result` is the derivative of the function at the point along `tangents`, else what differs."""
    outputs = [y.detach() for y in point.value()]
    if any(r.shape != y.shape or r.dtype != y.dtype for r, y in zip(result, outputs, strict=True)):
        return differences(result, outputs)
    text, judged_by_autograd = None, True
    try:
        tolerance = max(TOLERANCE[tensor.dtype] for tensor in [*outputs, *point.inputs])
        for number in (1, 2):
            cotangents = random_like(outputs, 10 + number)
            gradient = point.pullback(cotangents)
            expected, actual = inner(gradient, tangents), inner(cotangents, result)
            bound = max(1.0, norm(gradient) * norm(tangents) + norm(cotangents) * norm(result))
            if not abs(actual - expected) <= tolerance * bound and not (actual != actual and expected != expected):
                again = inner(Point(point.function, _nearby(point.inputs)).pullback(cotangents), tangents)
                if not abs(actual - expected) <= 100 * abs(again - expected):
                    text = f"<ct, jvp(t)> = {actual:.8g}, <vjp(ct), t> = {expected:.8g}"
                    break
        if text is None:
            return None
    except Undecided as reason:
        text, judged_by_autograd = str(reason), False
    try:
        slope, error = point.directional(tangents)
    except Undecided as reason:
        if judged_by_autograd and math.isfinite(expected):
            return f"{text}; {reason}"
        raise
    distance = norm([r - s for r, s in zip(result, slope)])
    if not distance <= 10 * error:
        return f"{text}; {distance:.3g} away from finite differences of norm {norm(slope):.3g}"
    return None
