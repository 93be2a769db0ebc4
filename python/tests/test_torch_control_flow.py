"""torch's own control flow and checkpoints inside of transforms, beside the same written out by hand (torch.func's
derivatives of one example, one by one)."""

import contextlib
import itertools
import weakref

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
    last, out = lib.scan(lambda c, e: ((c[0] * e + 1, c[1] + e.sum()), c[0] * c[1]), carry, inputs, dim=1, reverse=True)
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
    last = lib.cond(x > 0, lambda v: lib.checkpoint(torch.sin, v, use_reentrant=False), lambda v: v, (last,))
    return last + out.sum()


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


# Derivatives of checkpoints in checkpoints are refused by `compile`, torch_tower's own too.
COMPILED = [program for program in PROGRAMS if program is not checkpointed]


@pytest.mark.parametrize("program", COMPILED, ids=lambda f: f.__name__)
def test_every_program_compiles_and_fits_other_examples(program):
    f = lambda x, w: program(Torchs, x, w)
    step = torch_tower.compile(vmap(grad(f, (0, 1))))
    for n in (3, 5, 1):
        x, w = randn(n), randn(n)
        expected = [torch.func.grad(lambda x, w: program(ByHand, x, w), (0, 1))(a, b) for a, b in zip(x, w)]
        assert_same(step(x, w), tuple(torch.stack(all) for all in zip(*expected)), rtol=1e-9, atol=1e-9)


def test_outside_of_transforms_torchs_functions_are_torchs():
    x, w = randn().requires_grad_(), randn().requires_grad_()
    for program in (branches, rows):
        theirs = torch.autograd.grad(program(Torchs, x, w), (x, w))
        assert_same(theirs, torch.autograd.grad(program(ByHand, x, w), (x, w)))
    vmap(lambda x: torch.cond(x > 0, torch.sin, torch.cos, (x,)))(randn(2))
    with pytest.raises(RuntimeError, match="(?s)Expected pred to be bool or single-element tensor"):
        torch.cond(torch.tensor([True, False]), torch.sin, torch.cos, (x,))


# ---- while_loop ------------------------------------------------------------------------------------------------------


def test_numbers_that_are_carried_stay_numbers_while_the_predicate_is_known():
    kinds = []

    def body(i, y):
        kinds.append(type(i))
        return i + 1, y * y[i % 2]

    y = randn(3, 2)
    steps, last = vmap(lambda y: while_loop(lambda i, y: i < 3, body, (0, y)), out_dims=(None, 0))(y)
    assert steps == 3 and type(steps) is int and kinds == [int] * 3
    by_hand = lambda y: ByHand.while_loop(lambda i, y: i < 3, lambda i, y: (i + 1, y * y[i % 2]), (0, y))[1]
    assert_same(last, torch.stack([by_hand(a) for a in y]))


def test_numbers_that_are_carried_become_those_of_each_example():
    limits = torch.tensor([3, 0, 5])
    f = lambda n: while_loop(lambda i, go, n: (i < n) & go, lambda i, go, n: (i + 1, i < 3, n * 1), (0, True, n))
    steps, go, _ = vmap(f)(limits)
    assert_same((steps, go), (torch.tensor([3, 0, 4]), torch.tensor([True, True, False])))


def test_a_loop_without_a_step_gives_copies():
    def f(x):
        y = x * 1
        (z,) = while_loop(lambda y: y.sum() > 1e9, lambda y: (y + 1,), (y,))
        z.add_(1)
        return y, z

    x = randn(3)
    assert_same(vmap(f)(x), (x, x + 1))
    assert_same(jvp(f, (x,), (x,)), ((x, x + 1), (x, x)))


def test_a_list_can_be_carried_and_modules_can_be_captured():
    linear = torch.nn.Linear(2, 2, dtype=torch.float64)
    parameters = {name: p.detach() for name, p in linear.named_parameters()}

    def f(lib, parameters, n, x):
        call = lambda x: torch.func.functional_call(linear, parameters, (x,)).tanh()
        last = lib.while_loop(lambda n, x: n > 0, lambda n, x: (n - 1, call(x)), [n, x])
        return last[1].sum()

    n, x = torch.tensor([2, 0, 1]), randn(3, 2)
    ours = vmap(grad(lambda *args: f(Torchs, *args)), (None, 0, 0))(parameters, n, x)
    theirs = [torch.func.grad(lambda *args: f(ByHand, *args))(parameters, a, b) for a, b in zip(n, x)]
    assert_same(ours, tree_map(lambda *all: torch.stack(all), *theirs))


def test_additional_inputs_of_the_operators_are_differentiated():
    op = torch.ops.higher_order
    x, w = randn(3), randn(3)

    def f(x, w):
        (y,) = op.while_loop(lambda y, w: y.abs() < 5, lambda y, w: (y * 1.5 + w * w,), (x + 0.1,), (w,))
        last, out = op.scan(lambda c, e, w: [c * e + w, c * w], [y], [torch.stack([x, w])], (w,))
        (a,) = op.associative_scan(lambda a, b, w: [a + b * w], [torch.stack([x, y])], (w,))
        return last + out.sum() + a.sum()

    def by_hand(x, w):
        y = x + 0.1
        while y.abs() < 5:
            y = y * 1.5 + w * w
        c0, c1 = y, y * x + w
        return c1 * w + w + (c0 + c1) * w + x + (x + y * w)

    for arg in (0, 1):
        expected = torch.stack([torch.func.grad(by_hand, arg)(a, b) for a, b in zip(x, w)])
        assert_same(vmap(grad(f, arg))(x, w), expected)


@pytest.mark.parametrize(
    "program, words",
    [
        (lambda x: while_loop(lambda y: y < 1, lambda y: (y, y), (x,)), "the body returned 2 values, but 1 is carried"),
        (lambda x: scan(lambda c, e: c + e, x, torch.ones(3)), r"combine_fn must return \(next carry, output\)"),
        (lambda x: while_loop(lambda y: 1.5, lambda y: (y,), (x,)), "the predicate returned 1.5"),
        (lambda x: torch.cond(x > 0, lambda v: v, lambda v: torch.stack([v, v]), (x,)), "cond.*shape|cond.*\\[2\\]"),
        (lambda x: while_loop(lambda y: y < 1, lambda y: (y.sum() > 0,), (x,)), "while_loop.*Bool"),
    ],
)
def test_what_is_wrong_with_a_program_is_said(program, words):
    with pytest.raises((ValueError, RuntimeError), match=f"(?s){words}"):
        vmap(program)(randn(3) - 1)


def test_torchs_own_vmap_inside_goes_over_torchs_cond():
    f = lambda x: torch.cond(x.sum() > 0, lambda x: (x.sin(),), lambda x: (x.cos(),), (x,))[0]
    x = randn(2, 3, 4)
    expected = torch.where(x.sum(-1, keepdim=True) > 0, x.sin(), x.cos())
    assert_same(vmap(lambda x: torch.func.vmap(f)(x))(x), expected)


# ---- checkpoint ------------------------------------------------------------------------------------------------------

KINDS = [
    dict(use_reentrant=True),
    dict(use_reentrant=False),
    dict(use_reentrant=False, preserve_rng_state=False),
    dict(use_reentrant=False, determinism_check="none", early_stop=False),
    dict(use_reentrant=False, context_fn=lambda: create_selective_checkpoint_contexts([torch.ops.aten.sin.default])),
]


@pytest.mark.parametrize("options", KINDS, ids=lambda options: "-".join(options))
def test_a_checkpoint_computes_its_function_again_in_the_backward_pass(options):
    calls = []

    def block(x):
        middle = x.sin()
        calls.append(weakref.ref(middle))
        return middle.exp()

    x = randn(3)
    _, pullback = torch_tower.vjp(lambda x: checkpoint(block, x, **options), x)
    assert calls[0]() is None  # the value is not kept
    before = len(calls)
    assert_same(pullback(x)[0], x * x.cos() * x.sin().exp())
    assert len(calls) > before
    second = lambda f: vmap(grad(grad(f)))
    assert_same(second(lambda x: checkpoint(block, x, **options))(x), second(lambda x: x.sin().exp())(x))


def test_a_checkpoint_draws_the_same_numbers_again():
    x = torch.ones(4)
    for options in KINDS[:2]:
        y, pullback = torch_tower.vjp(lambda x: checkpoint(lambda x: x * torch.rand_like(x), x, **options), x)
        assert_same(pullback(torch.ones(4))[0], y)


def test_the_contexts_of_a_checkpoint_are_those_of_the_first_and_of_the_second_time():
    entered = []

    @contextlib.contextmanager
    def context(name):
        entered.append(name)
        yield
        entered.append(name)

    contexts = lambda: (context("forward"), context("again"))
    grad(lambda x: checkpoint(torch.sin, x, use_reentrant=False, context_fn=contexts))(randn())
    assert entered == ["forward"] * 2 + ["again"] * 2


@pytest.mark.parametrize("options", KINDS[:2], ids=lambda options: "-".join(options))
@pytest.mark.parametrize("run", [lambda net, x, options: checkpoint(net, x, **options),
                                 lambda net, x, options: checkpoint_sequential(net, 2, x, **options)])  # fmt: skip
def test_checkpoints_of_modules_have_the_parameters_that_they_were_called_with(run, options):
    net = torch.nn.Sequential(torch.nn.Linear(3, 4), torch.nn.LayerNorm(4), torch.nn.Tanh(), torch.nn.Linear(4, 1))

    class Checkpointed(torch.nn.Module):
        def __init__(self):
            super().__init__()
            self.net = net

        def forward(self, x):
            return run(self.net, x, options)

    x = torch.randn(5, 3)
    parameters = {"net." + name: p.detach() for name, p in net.named_parameters()}
    loss = lambda call: lambda p: torch.func.functional_call(call, p, (x,)).square().sum()
    plainly = {name.removeprefix("net."): p for name, p in parameters.items()}
    expected = {"net." + name: g for name, g in torch.func.grad(loss(net))(plainly).items()}
    assert_same(grad(loss(Checkpointed()))(parameters), expected)


@pytest.mark.parametrize("options", KINDS[:2], ids=lambda options: "-".join(options))
def test_a_checkpoint_that_captured_what_torchs_autograd_follows_is_run_as_it_is(options):
    w = randn(3).requires_grad_()
    f = lambda call: lambda x: call(lambda x: (x * w).sin(), x).sum()
    x = randn(3)
    gradient = grad(f(lambda g, x: checkpoint(g, x, **options)))(x)
    assert_same(torch.autograd.grad(gradient.sum(), w), torch.autograd.grad(grad(f(lambda g, x: g(x)))(x).sum(), w))


@pytest.mark.parametrize("options", KINDS[:2], ids=lambda options: "-".join(options))
def test_a_checkpoint_whose_function_writes_to_its_argument_is_refused(options):
    def f(x):
        y = x * 1
        return checkpoint(lambda y: y.add_(1).sin(), y, **options).sum()

    with pytest.raises(RuntimeError, match="torch.utils.checkpoint: the function writes to an argument.*to a copy"):
        grad(f)(randn(3))


@pytest.mark.parametrize("options", KINDS[:2], ids=lambda options: "-".join(options))
def test_what_a_checkpoints_function_raises_is_raised_and_the_next_one_works(options):
    def fails(x):
        raise KeyError("its own")

    with pytest.raises(KeyError, match="its own"):
        grad(lambda x: checkpoint(fails, x, **options))(randn())
    x = randn()
    assert_same(grad(lambda x: checkpoint(torch.sin, x, **options))(x), x.cos())
    y = x.clone().requires_grad_()
    checkpoint(torch.sin, y, **options).backward()
    assert_same(y.grad, x.cos())
