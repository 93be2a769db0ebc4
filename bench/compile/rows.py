"""The rows of `bench/compile.cpp` for libraries of Python: each written once, over the operators and transforms that
libraries.py gives them, so that all compute the same."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any, Callable

import numpy as np

OPERATORS = 30
CORRECTIONS = 10
STEPS = 200
UNROLLED = "its 200 steps, unrolled, were not compiled after ten minutes, on a busy machine"


@dataclass
class Row:
    name: str  # as in bench/compile.cpp
    arguments: tuple
    make: Callable  # from a library to the function that is compiled
    calls: int = 1  # one after the other: the first result is the next one's first argument
    count: int = 1  # operators that the time is divided by
    cannot: dict[str, str] = field(default_factory=dict)  # why a library is left out, by its name
    material: Any = None  # CasADi computes these, too


def all_rows():
    random = np.random.RandomState(7)
    rows = pointwise(random) + chains(random)
    for points in 10_000, 1:
        rows += newton(random, points)
    return rows + [pinn(random), dp_perceptron(random), hessian(random), hvp(random), *integrators(random)]


def single(*arrays):
    return tuple(np.asarray(array, np.float32) for array in arrays)


# ---- pointwise -----------------------------------------------------------------------------------------------------


def pointwise(random):
    arguments = single(random.rand(1_000_000) + 0.5, random.rand(1_000_000) + 0.25)

    def cheap(lib):
        def f(x, y):
            for _ in range(OPERATORS // 5):
                x = (lib.abs(x * 0.99 + y) - 0.1) * y
            return x

        return f

    def mixed(lib):
        def f(x, y):
            for _ in range(OPERATORS // 10):
                x = lib.sin(lib.log(lib.abs(lib.exp(lib.tanh(x) * 0.5) + y) + 1) * y) - 0.1
            return x

        return f

    def gradients(make):
        def with_sum(lib):
            f = make(lib)
            return lambda x, y: lib.grad(lambda x, y: f(x, y).sum(), (0, 1))(x, y)

        return with_sum

    rows = []
    for name, make in ("cheap", cheap), ("mixed", mixed):
        rows += [Row(name, arguments, make), Row(f"{name}, gradients", arguments, gradients(make))]
    return rows


def chains(random):
    # Such that the derivative of a hundred steps does not vanish.
    arguments = single(random.rand(4), 0.9 + 0.1 * random.rand(4), 0.05 * random.rand(4))
    (direction,) = single(random.rand(4))
    count = 100

    def chain(lib):
        def f(x, a, b):
            for _ in range(count):
                x = lib.sin(x) * a + b
            return x

        return f

    def summed(lib):
        return lambda x, a, b: chain(lib)(x, a, b).sum()

    def gradient(lib):
        return lambda x, a, b: lib.grad(summed(lib))(x, a, b)

    def mapped(make):
        return lambda lib: lambda x, a, b: lib.vmap(make(lib))(x, a, b)

    def along(make):
        def forward(lib):
            v = lib.array(direction)
            return lambda x, a, b: lib.jvp(lambda x: make(lib)(x, a, b), (x,), (v,))[1]

        return forward

    kinds = {
        "chain": chain,
        "chain, vmap": mapped(chain),
        "chain, grad": gradient,
        "chain, vmap(grad)": mapped(gradient),
        "chain, jvp": along(chain),
        "chain, jvp(grad)": along(gradient),
    }
    rows = [Row(name, arguments, make, count=3 * count) for name, make in kinds.items()]
    return [*rows, Row("call", arguments[:1], lambda lib: lambda x: lib.sin(x))]


# ---- a material: examples/material_newton --------------------------------------------------------------------------


class Material:
    YOUNG, POISSON, YIELD, HARDENING, SATURATION, RATE, DRAG, REFERENCE = 210e3, 0.3, 250, 1500, 120, 40, 10, 1e-3

    def __init__(self, lib):
        self.lib = lib
        self.shear = self.YOUNG / (2 * (1 + self.POISSON))
        lame = self.YOUNG * self.POISSON / ((1 + self.POISSON) * (1 - 2 * self.POISSON))
        identity = np.array([1.0, 1, 1, 0, 0, 0])
        self.deviator = lib.array(np.eye(6) - np.outer(identity, identity) / 3)
        self.elasticity = lib.array(lame * np.outer(identity, identity) + 2 * self.shear * np.eye(6))

    def hardened(self, p):
        return self.YIELD + self.HARDENING * p - self.SATURATION * self.lib.expm1(-self.RATE * p)

    def residual(self, x, strain, duration, stress, plastic):
        lib = self.lib
        drop = x[6]
        trial = stress + self.elasticity @ strain
        trial_deviator = self.deviator @ trial
        hardened = self.hardened(plastic)
        yields = 1.5 * lib.dot(trial_deviator, trial_deviator) > hardened * hardened
        s = self.deviator @ x[:6]
        von_mises = lib.sqrt(lib.where(yields, 1.5 * lib.dot(s, s), self.YIELD * self.YIELD))
        increment = drop / (3 * self.shear)
        flow = self.hardened(plastic + increment) - von_mises
        flow = flow + self.DRAG * lib.asinh(increment / duration / self.REFERENCE)
        return lib.hstack([x[:6] - trial + drop / von_mises * s, lib.where(yields, flow, drop)])


def strain_step(random, points):
    """The first tenth of a strain cycle of each point: its trial stress, and what is given."""

    def powers_of_ten(low, high):
        return 10 ** (low + (high - low) * random.rand(points))

    def direction():
        d = random.randn(points, 6)
        return d / np.linalg.norm(d, axis=1, keepdims=True)

    amplitude = powers_of_ten(np.log10(0.002), np.log10(0.02))
    period = 4 * amplitude / powers_of_ten(-6, -1)
    angle = 2 * np.pi * 0.1
    strain = amplitude[:, None] * (np.sin(angle) * direction() + (1 - np.cos(angle)) / 2 * direction())
    return strain, period / 10, np.zeros((points, 6)), np.zeros(points)


def newton(random, points):
    strain, duration, stress, plastic = strain_step(random, points)
    start = np.concatenate([strain @ Material(Arrays).elasticity, np.zeros((points, 1))], 1)

    def correct(of):
        def make(lib):
            material = Material(lib)

            def one(x, *given):
                def residual(x):
                    return material.residual(x, *given)

                r = residual(x)
                return x - lib.solve(getattr(lib, of)(residual)(x), r), lib.sqrt(lib.dot(r, r))

            return lambda *arguments: lib.vmap(one)(*arguments)

        return make

    size = f"{points} point{'s' if points > 1 else ''}"
    arguments = (start, strain, duration, stress, plastic)
    return [
        Row(f"Newton, {size}, {of}", arguments, correct(of), CORRECTIONS, material=Material)
        for of in ("jacfwd", "jacrev")
    ]


class Arrays:
    """As much of a library as the constants of a material need."""

    array = staticmethod(np.asarray)


# ---- networks ------------------------------------------------------------------------------------------------------


def dense_layers(random, *sizes):
    """Weights and biases, one after the other."""
    layers = []
    for inputs, outputs in zip(sizes, sizes[1:]):
        layers += [random.randn(outputs, inputs) / np.sqrt(inputs), random.randn(outputs) / np.sqrt(inputs)]
    return single(*layers)


def perceptron(lib, layers, x, activation):
    for i in range(0, len(layers), 2):
        x = lib.linear(x, layers[i], layers[i + 1])
        if i + 2 < len(layers):
            x = activation(x)
    return x


def picked(lib, rows, labels):
    return lib.take(rows, labels[..., None], -1)[..., 0]


def smooth_cross_entropy(lib, logits, labels):
    return (lib.logsumexp(logits, -1) - picked(lib, logits, labels)).mean()


def pinn(random):
    def make(lib):
        def loss(*arguments):
            layers, points = arguments[:6], arguments[6]

            def u(x):
                return perceptron(lib, layers, x, lib.tanh)[0]

            def laplacian(x):
                curvature = lib.jacfwd(lib.jacrev(u))(x)
                return curvature[0, 0] + curvature[1, 1]

            residual = lib.vmap(laplacian)(points)
            return (residual * residual).mean()

        return lambda *arguments: lib.grad(loss, tuple(range(6)))(*arguments)

    arguments = (*dense_layers(random, 2, 64, 64, 1), *single(random.rand(10_000, 2)))
    return Row("PINN, 10,000 points", arguments, make)


def dp_perceptron(random):
    examples = 64

    def make(lib):
        def loss(*arguments):
            logits = perceptron(lib, arguments[:4], arguments[4], lib.relu)
            return -picked(lib, lib.log_softmax(logits, -1), arguments[5])

        def step(*arguments):
            gradients = lib.vmap(lib.grad(loss, (0, 1, 2, 3)), (None, None, None, None, 0, 0))(*arguments)
            flat = [g.reshape(examples, -1) for g in gradients]
            norm = lib.sqrt(sum((g * g).sum(1) for g in flat))
            factor = lib.where(norm > 1, 1 / norm, lib.ones_like(norm)) / examples
            return tuple((factor @ g).reshape(full.shape[1:]) for g, full in zip(flat, gradients))

        return step

    images, labels = single(random.randn(examples, 64)), random.randint(0, 10, examples)
    arguments = (*dense_layers(random, 64, 128, 10), *images, labels)
    return Row("DP-SGD perceptron, 64 examples", arguments, make)


def hessian(random):
    def make(lib):
        def loss(p, x, labels):
            hidden = lib.tanh(lib.linear(x, p[:320].reshape(20, 16), p[320:340]))
            return smooth_cross_entropy(lib, hidden @ p[340:].reshape(8, 20).T, labels)

        return lambda *arguments: lib.jacfwd(lib.jacrev(loss))(*arguments)

    arguments = (*single(random.randn(500) / 4, random.randn(64, 16)), random.randint(0, 8, 64))
    return Row("Hessian of 500 parameters", arguments, make)


def hvp(random):
    sizes = 256, 256, 128, 10
    layers, directions = dense_layers(random, *sizes), dense_layers(random, *sizes)

    def make(lib):
        along = tuple(lib.array(direction) for direction in directions)

        def product(*arguments):
            def loss(*layers):
                return smooth_cross_entropy(lib, perceptron(lib, layers, arguments[6], lib.tanh), arguments[7])

            def slope(*layers):
                return lib.jvp(loss, layers, along)[1]

            return lib.grad(slope, tuple(range(6)))(*arguments[:6])

        return product

    return Row("hvp, 1e5 parameters", (*layers, *single(random.randn(64, 256)), random.randint(0, 10, 64)), make)


# ---- an integrator -------------------------------------------------------------------------------------------------


def integrators(random):
    arguments = single(random.randn(4096, 6), random.rand(4096, 3) + 0.5)
    h = 0.02

    def step(lib):
        def slope(y, stiffness):
            q, v = y[:3], y[3:]
            return lib.hstack([v, -stiffness * q - 0.1 * q * q * q + 0.2 * lib.roll(q, 1)])

        def advance(y, stiffness):
            k1 = slope(y, stiffness)
            k2 = slope(y + h / 2 * k1, stiffness)
            k3 = slope(y + h / 2 * k2, stiffness)
            k4 = slope(y + h * k3, stiffness)
            return y + h / 6 * (k1 + 2 * k2 + 2 * k3 + k4)

        return advance

    def mapped(lib):
        return lambda y, stiffness: lib.vmap(step(lib))(y, stiffness)

    def gradient(lib):
        def energy(y, stiffness):
            y = lib.repeat(STEPS, lambda y: step(lib)(y, stiffness), y)
            return (y * y).sum()

        return lambda y, stiffness: lib.vmap(lib.grad(energy, (0, 1)))(y, stiffness)

    return [
        Row("RK4, 200 steps, 4,096 lanes, vmap", arguments, mapped, STEPS),
        Row("integrator, 200 steps, vmap(grad), 4096", arguments, gradient, cannot={"torch.compile": UNROLLED}),
    ]
