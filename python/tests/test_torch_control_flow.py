"""torch's own control flow and checkpoints inside of transforms, beside the same written out by hand (torch.func's
derivatives of one example, one by one)."""

import itertools

import pytest
import torch
import torch.func
import torch_tower
from nestings import by_loop, by_vmap, nest, nestings
from support import assert_same, randn
from torch._higher_order_ops import associative_scan, map, scan, while_loop
from torch.utils._pytree import tree_map
from torch.utils.checkpoint import checkpoint, checkpoint_sequential, create_selective_checkpoint_contexts
from torch_tower import grad, jvp, vmap

# ---- in every nesting ------------------------------------------------------------------------------------------------


class Torchs:
    cond = staticmethod(torch.cond)
    while_loop = staticmethod(while_loop)
    scan = staticmethod(scan)
    associative_scan = staticmethod(associative_scan)
    map = staticmethod(map)
    checkpoint = staticmethod(checkpoint)


class ByHand:
    """With torch's signatures. It asks for values, so it is for one example."""

    @staticmethod
    def cond(pred, true_fn, false_fn, operands=()):
        return (true_fn if pred else false_fn)(*operands)

    @staticmethod
    def while_loop(cond_fn, body_fn, carried):
        while cond_fn(*carried):
            carried = body_fn(*carried)
        return carried

    @staticmethod
    def scan(combine, carry, xs, *, dim=0, reverse=False):
        outputs = []
        first = xs if isinstance(xs, torch.Tensor) else next(iter(xs.values()))
        order = range(first.shape[dim])
        for k in reversed(order) if reverse else order:
            carry, out = combine(carry, tree_map(lambda t: t.select(dim, k), xs))
            outputs.append(out)
        return carry, tree_map(lambda *all: torch.stack(all, dim), *(reversed(outputs) if reverse else outputs))

    @staticmethod
    def associative_scan(combine, xs, dim, reverse=False, combine_mode="generic"):
        parts = list(zip(*(t.flip(dim).unbind(dim) if reverse else t.unbind(dim) for t in xs)))
        results = [torch.stack(all, dim) for all in zip(*itertools.accumulate(parts, combine))]
        return tuple(t.flip(dim) if reverse else t for t in results)

    @staticmethod
    def map(f, xs, *args):
        rows = zip(*(t.unbind(0) for t in xs))
        return tree_map(lambda *all: torch.stack(all), *[f(list(row), *args) for row in rows])

    @staticmethod
    def checkpoint(f, *args, use_reentrant, preserve_rng_state=True, **kwargs):
        return f(*args, **kwargs)


def branches(lib, x, w):
    return lib.cond(x > 0, lambda v, w: (v.sqrt() * w,), lambda v, w: (v * v + w,), (x, w))[0]


def branches_of_trees(lib, x, w):
    operands = ({"v": x, "rest": [w, x * w]}, w)
    true = lambda d, u: {"y": d["v"].sqrt() * d["rest"][1] + u, "none": None, "n": 1}
    false = lambda d, u: {"y": d["v"] * d["rest"][0] - u, "none": None, "n": 1}
    return lib.cond(x > 0, true, false, operands)["y"]


def branches_that_capture(lib, x, w):
    return lib.cond(x > 0, lambda: (x.sqrt() * w).sin(), lambda: x * w) * w


def branches_in_branches(lib, x, w):
    def inner(v, u):
        return lib.cond(u > v, lambda a, b: (a * b).sin(), lambda a, b: a - b * b, (v, u))

    return lib.cond(x * w > 0, inner, lambda v, u: inner(u, v) * x, (x, w))


def known_branches(lib, x, w):
    y = lib.cond(torch.tensor(True), lambda v: v.sin() * w, lambda v: v.cos(), (x,))
    return lib.cond(x.dim() > 0, lambda v: v, lambda v: v * v, (y,))


def heron(lib, x, w):
    a = x * x + 1.5
    return w * lib.while_loop(lambda y: (y * y - a).abs() > 1e-12, lambda y: ((y + a / y) / 2,), (a,))[0]


def nested_trees(lib, x, w):
    """Its step has no finite derivative where an example has ended."""
    _, (total, _) = lib.while_loop(
        lambda left, sums: left["left"] > 0,
        lambda left, sums: ({"left": left["left"] - 1}, (sums[0] + w * left["left"].sqrt(), sums[1])),
        ({"left": x + 2}, (w * x, w)),
    )
    return total


def loops_in_loops(lib, x, w):
    def outer(a, b):
        _, c = lib.while_loop(lambda t, u: t.abs() > 0.5, lambda t, u: (t * 0.6, u + w * t), (a + 0.2, b))
        return a - 0.5, c + lib.cond(a > 1, lambda t: t * w, lambda t: t.sin(), (a,))

    return lib.while_loop(lambda a, b: a > 0.3, outer, (x + 1, w))[1]


def counted(lib, x, w):
    """The number is known in every step."""
    i, y = lib.while_loop(lambda i, y: i < 4, lambda i, y: (i + 1, y * w.sin() + i * x), (0, x))
    return y * i


def counted_by_value(lib, x, w):
    """It is not: each example has its own."""
    i, y = lib.while_loop(lambda i, y: y.abs() < 9 + i, lambda i, y: (i + 1, y * 1.7 + (i + 1) * w * w), (0, x + 0.1))
    return y * w + i


def recurrent(lib, x, w):
    def step(h, element):
        h = torch.tanh(h * w + element["x"])
        return h, {"a": h * 2, "b": [h.sin(), None]}

    class ByHandOutputs:
        @staticmethod
        def scan(combine, carry, xs):
            outputs = []
            for k in range(len(xs["x"])):
                carry, out = combine(carry, {"x": xs["x"][k]})
                outputs.append(out)
            stack = lambda get: torch.stack([get(out) for out in outputs])
            return carry, {"a": stack(lambda o: o["a"]), "b": [stack(lambda o: o["b"][0]), None]}

    scanned = ByHandOutputs.scan if lib is ByHand else lib.scan
    last, out = scanned(step, w, {"x": torch.stack([x, x * x, x + w, x.cos()])})
    return last + (out["a"] * out["b"][0]).sum()


def backwards_along_a_dimension(lib, x, w):
    inputs = torch.stack([x, x * w, x.sin(), w, x, w]).view(2, 3)
    carry = (w * inputs[:, 0], x)
    last, out = lib.scan(
        lambda c, e: ((c[0] * e + 1, c[1] + e.sum()), c[0] * c[1]), carry, inputs, dim=1, reverse=True
    )
    return (last[0] * inputs[:, 1]).sum() + last[1] + (out * inputs).sum()


def recurrence(lib, x, w):
    def combine(f, g):
        return f[0] * g[0], f[1] * g[0] + g[1]

    maps = (torch.stack([x, w, x * w, x.sin()]), torch.stack([w, x, w, x]))
    a, b = lib.associative_scan(combine, maps, 0, combine_mode="generic")
    c, d = lib.associative_scan(combine, maps, 0, reverse=True, combine_mode="generic")
    return (a * b * c * d).sum()


def rows(lib, x, w):
    def f(row, u):
        a, b = row
        y = lib.cond(a > b, lambda s: s * u, lambda s: s.sin(), (a,))
        return {"y": y * w, "z": [b * u]}

    out = lib.map(f, [torch.stack([x, w, x * w]), torch.stack([w, x, x])], w.cos())
    return (out["y"] * out["z"][0]).sum()


def checkpointed(lib, x, w):
    def block(x, scale):
        return lib.checkpoint(lambda y: {"y": torch.sin(y * w) + scale}, x, use_reentrant=False)["y"].exp()

    y = lib.checkpoint(block, x, scale=0.5, use_reentrant=False, preserve_rng_state=False)
    return lib.checkpoint(lambda a, b: block(a, b) * x, y, w, use_reentrant=True) + w


def steps_with_checkpoints(lib, x, w):
    def step(h, e):
        h = lib.checkpoint(lambda h: torch.tanh(h * w + e) * h, h, use_reentrant=False)
        return h, h * e

    last, out = lib.scan(step, w, torch.stack([x, x * x, x + w]))
    return lib.cond(x > 0, lambda v: lib.checkpoint(torch.sin, v, use_reentrant=False), lambda v: v, (last,)) + out.sum()


PROGRAMS = [
    branches,
    branches_of_trees,
    branches_that_capture,
    branches_in_branches,
    known_branches,
    heron,
    nested_trees,
    loops_in_loops,
    counted,
    counted_by_value,
    recurrent,
    backwards_along_a_dimension,
    recurrence,
    rows,
    checkpointed,
    steps_with_checkpoints,
]


@pytest.mark.parametrize("kinds", nestings(2))
@pytest.mark.parametrize("program", PROGRAMS, ids=lambda f: f.__name__)
def test_every_program_in_every_nesting_is_as_by_hand(program, kinds):
    shape = (3,) * kinds.count("v")
    x, w = randn(*shape), randn(*shape)
    expected = nest(lambda x, w: program(ByHand, x, w), kinds, torch.func, by_loop)(x, w)
    assert torch.isfinite(expected).all()
    actual = nest(lambda x, w: program(Torchs, x, w), kinds, torch_tower, by_vmap)(x, w)
    assert_same(actual, expected, rtol=1e-9, atol=1e-9)
