"""Branches, loops and checkpoints against the same written out by hand, which torch.func differentiates one by one."""

import functools
import itertools
import signal
import threading
import weakref

import pytest
import torch
import torch.func
import torch_tower
from nestings import by_loop, by_vmap, nest, nestings
from support import assert_same
from torch.utils._pytree import tree_map
from torch_tower import grad, vjp, vmap


def randn(*shape):
    return torch.randn(shape, dtype=torch.float64)


# ---- in every nesting -----------------------------------------------------------------------------------------------


class ByHand:
    """Control flow as one writes it. It asks for values, so it is for one example."""

    @staticmethod
    def cond(predicate, true_branch, false_branch, *operands):
        return (true_branch if predicate else false_branch)(*operands)

    @staticmethod
    def while_loop(predicate, body, state, **options):
        while predicate(state):
            state = body(state)
        return state

    @staticmethod
    def fori_loop(lower, upper, body, state, **options):
        for i in range(lower, upper):
            state = body(i, state)
        return state

    @staticmethod
    def scan(step, carry, inputs, reverse=False, **options):
        outputs = []
        order = range(len(inputs["x"]))
        for k in reversed(order) if reverse else order:
            carry, out = step(carry, tree_map(lambda t: t[k], inputs))
            outputs.append(out)
        return carry, tree_map(lambda *all: torch.stack(all), *(reversed(outputs) if reverse else outputs))

    @staticmethod
    def associative_scan(combine, elements, dim=0):
        a, b = (t.unbind(dim) for t in elements)
        results = list(itertools.accumulate(zip(a, b), combine))
        return tuple(torch.stack(all, dim) for all in zip(*results))

    @staticmethod
    def checkpoint(f):
        return f


class FewCheckpoints:
    """Tower's, with few states kept."""

    def __getattr__(self, name):
        few = {"checkpoints": 2} if name in ("while_loop", "fori_loop", "scan") else {}
        return functools.partial(getattr(torch_tower, name), **few)


def branches(lib, x, w):
    return lib.cond(x > 0, lambda v, w: {"y": v.sqrt() * w}, lambda v, w: {"y": v * v + w}, x, w)["y"]


def heron(lib, x, w):
    a = x * x + 1.5
    return w * lib.while_loop(lambda y: (y * y - a).abs() > 1e-12, lambda y: (y + a / y) / 2, a)


def draining(lib, x, w):
    """Its step has no finite derivative where an example has ended."""
    state = {"left": x + 2, "sum": [w * x], "name": "sum"}
    return lib.while_loop(
        lambda s: s["left"] > 0,
        lambda s: {"left": s["left"] - 1, "sum": [s["sum"][0] + w * s["left"].sqrt()], "name": "sum"},
        state,
    )["sum"][0]


def power(lib, x, w):
    return lib.fori_loop(1, 6, lambda i, s: (s[0] * x.sin() + i, s[1] + w * s[0]), (w, x))[1]


def recurrent(lib, x, w):
    def step(h, element):
        h = torch.tanh(h * w + element["x"])
        return h, (h * 2, h.sin())

    last, (a, b) = lib.scan(step, w, {"x": torch.stack([x, x * x, x + w, x.cos()])})
    return last + (a * b).sum()


def backwards(lib, x, w):
    inputs = {"x": torch.stack([x, x * w, x.sin()])}
    last, out = lib.scan(lambda h, e: (h * e["x"] + 1, {"h": h}), w, inputs, reverse=True)
    return last + (out["h"] * inputs["x"]).sum()


def recurrence(lib, x, w):
    def combine(f, g):
        return f[0] * g[0], f[1] * g[0] + g[1]

    a, b = lib.associative_scan(combine, (torch.stack([x, w, x * w, x.sin()]), torch.stack([w, x, w, x])))
    return (a * b).sum()


def checkpointed(lib, x, w):
    def block(x, scale):
        inner = lib.checkpoint(lambda y: {"y": torch.sin(y * w) + scale})
        return inner(x)["y"].exp()

    return lib.checkpoint(block)(lib.checkpoint(block)(x, scale=0.5), 2)


def nested(lib, x, w):
    def outer(s):
        inner = lib.while_loop(lambda t: t[0].abs() > 0.5, lambda t: (t[0] * 0.6, t[1] + w * t[0]), (s[0] + 0.2, s[1]))
        return s[0] - 0.5, inner[1] + inner[0]

    return lib.while_loop(lambda s: s[0] > 0.3, outer, (x + 1, w))[1]


PROGRAMS = [branches, heron, draining, power, recurrent, backwards, recurrence, checkpointed, nested]


@pytest.mark.parametrize("kinds", nestings(3))
@pytest.mark.parametrize("program", PROGRAMS, ids=lambda f: f.__name__)
def test_every_program_in_every_nesting_is_as_by_hand(program, kinds):
    shape = (3,) * kinds.count("v")
    x, w = randn(*shape), randn(*shape)
    expected = nest(lambda x, w: program(ByHand, x, w), kinds, torch.func, by_loop)(x, w)
    assert torch.isfinite(expected).all()
    for ours in (torch_tower, FewCheckpoints()):
        actual = nest(lambda x, w: program(ours, x, w), kinds, torch_tower, by_vmap)(x, w)
        assert_same(actual, expected, rtol=1e-9, atol=1e-9)


@pytest.mark.parametrize("program", PROGRAMS, ids=lambda f: f.__name__)
def test_outside_of_transforms_torchs_backward_goes_through(program):
    def gradients(lib):
        torch.manual_seed(1)
        x, w = randn().requires_grad_(), randn().requires_grad_()
        return torch.autograd.grad(program(lib, x, w), (x, w))

    assert_same(gradients(torch_tower), gradients(ByHand))


# ---- loops ----------------------------------------------------------------------------------------------------------


def test_outside_of_transforms_a_loop_sees_values():
    seen = []
    last = torch_tower.while_loop(lambda s: s.item() < 10, lambda s: (seen.append(s.item()), s * 2)[1], torch.ones(()))
    assert last == 16 and seen == [1, 2, 4, 8]


def test_max_steps_is_an_error_or_a_flag_for_each_example():
    def run(loop, x):
        return loop(lambda s: s < 10, lambda s: s * 2, x, max_steps=3)

    xs = torch.tensor([6.0, 1.0, 2.0, 20.0])
    with pytest.raises(
        torch_tower.MaxStepsError, match="while_loop: after 3 steps.* for 1 of 4 examples.*try_while_loop"
    ):
        vmap(lambda x: run(torch_tower.while_loop, x))(xs)
    assert issubclass(torch_tower.MaxStepsError, RuntimeError)
    result = vmap(lambda x: run(torch_tower.try_while_loop, x))(xs)
    assert_same(result.state, torch.tensor([12.0, 8, 16, 20]))
    assert_same(result.finished, torch.tensor([True, False, True, True]))
    assert_same(result.steps, torch.tensor([1, 3, 3, 0]))


def test_scan_without_inputs_and_of_no_steps():
    last, out = torch_tower.scan(lambda s: (s * 2, {"s": s, "n": None}), torch.ones(()), length=3)
    assert_same((last, out), (torch.tensor(8.0), {"s": torch.tensor([1.0, 2, 4]), "n": None}))
    last, out = torch_tower.scan(lambda s, x: (s, x.sum()), torch.ones(()), torch.zeros(0, 2))
    assert last == 1 and out.shape == (0,)


def test_few_checkpoints_change_no_bit():
    x = randn(5)

    def f(x, few):
        return torch_tower.fori_loop(0, 50, lambda i, s: s + 0.1 * s.cos() * i, x, checkpoints=few).sum()

    expected = grad(lambda x: f(x, "all"))(x)
    for few in (1, 7, "automatic"):
        assert torch.equal(grad(lambda x: f(x, few))(x), expected)


def test_random_numbers_are_drawn_again_as_they_were():
    x = randn(40)
    y, pullback = vjp(vmap(torch_tower.checkpoint(lambda v: v * torch.rand_like(v)), randomness="different"), x)
    torch.rand(7)
    assert_same(pullback(torch.ones_like(y))[0], y / x)


# ---- policies and compaction ----------------------------------------------------------------------------------------

POLICIES = [
    {},
    {"keep": ["aten::mm"]},
    {"keep_names": ["hidden"]},
    {"policy": lambda op, results: results[0].numel() > 3},
    {"keep": ["aten::mm", "aten::sin"], "keep_names": ["hidden"], "policy": lambda op, results: True},
]


@pytest.mark.parametrize("options", POLICIES, ids=lambda o: "-".join(o) or "none")
def test_a_policy_changes_no_derivative(options):
    def block(w, x):
        product = x @ w
        hidden = torch_tower.checkpoint_name(product.tanh().view(-1), "hidden").view(4, 5)
        return (hidden @ w).sin() * product

    x, ws = randn(4, 5), randn(3, 5, 5)
    ours = lambda w: torch_tower.checkpoint(block, **options)(w, x).sum()
    plain = lambda w: block(w, x).sum()
    for transformed in (
        lambda lib, f: lib.vmap(lib.grad(f))(ws),
        lambda lib, f: lib.grad(lambda ws: lib.vmap(f)(ws).sum())(ws),
        lambda lib, f: lib.vmap(lambda w: lib.jvp(lib.grad(f), (w,), (w,))[1])(ws),
        lambda lib, f: lib.vmap(lib.grad(lambda w: (lib.grad(f)(w) * w).sum()))(ws),
    ):
        assert_same(transformed(torch_tower, ours), transformed(torch.func, plain))
    leaf = ws[0].clone().requires_grad_()
    ours(leaf).backward()
    assert_same(leaf.grad, torch.func.grad(plain)(ws[0]))


def test_what_a_policy_keeps_is_computed_once():
    asked = []

    def policy(op, results):
        asked.append((op, tuple(results[0].shape)))
        return op == "aten::sin"

    grad(lambda x: torch_tower.checkpoint(lambda x: x.sin().exp().sum(), policy=policy)(x))(randn(3))
    assert asked == [("aten::sin", (3,)), ("aten::exp", (3,)), ("aten::sum", ())]
    with pytest.raises(ValueError, match="keep names the operator 'mm'"):
        grad(torch_tower.checkpoint(torch.sin, keep=["mm"]))(randn(1)[0])


def test_compaction_changes_no_bit_and_leaves_out_what_has_ended():
    def f(x, n, compact):
        body = lambda s: (s[0] * x.cos(), s[1] + s[0].sin(), s[2] + 1)
        start = (x, x, torch.zeros((), dtype=torch.long))
        return torch_tower.while_loop(lambda s: s[2] < n, body, start, compact=compact)[1]

    xs, ns = randn(6), torch.tensor([1, 5, 0, 2, 9, 1])
    for run in (lambda c: vmap(lambda x, n: f(x, n, c))(xs, ns), lambda c: vmap(grad(lambda x, n: f(x, n, c)))(xs, ns)):
        assert torch.equal(run(True), run(False)) and torch.equal(run(0.5), run(False))
    with pytest.raises(ValueError, match="compact is 2"):
        f(xs[0], ns[0], 2)

    def divided(n, compact):
        body = lambda s: (s[0] - 1, s[1] + torch.floor_divide(12, s[0]))
        return torch_tower.while_loop(lambda s: s[0] > 0, body, (n, n * 0), compact=compact)[1]

    assert vmap(lambda n: divided(n, True))(torch.tensor([3, 0, 2, 1])).tolist() == [22, 0, 18, 12]


# ---- what a function captures ---------------------------------------------------------------------------------------


def layers(lib, x, ws):
    for scale, w in enumerate(ws, 1):

        def layer(x):
            return torch.tanh(x @ w)

        x = lib.checkpoint(lambda x: layer(x) * scale)(x)
    return x.sum()


def test_a_variable_has_for_the_second_evaluation_the_value_that_it_had_at_the_first():
    x, ws = randn(3), [randn(3, 3) for _ in range(3)]
    expected = torch.func.grad(lambda x: layers(ByHand, x, ws))(x)
    assert_same(grad(lambda x: layers(torch_tower, x, ws))(x), expected)
    assert_same(grad(lambda ws: layers(torch_tower, x, ws))(ws), torch.func.grad(lambda ws: layers(ByHand, x, ws))(ws))
    leaf = x.clone().requires_grad_()
    layers(torch_tower, leaf, ws).backward()
    assert_same(leaf.grad, expected)


def test_what_the_first_evaluation_writes_to_variables_stays():
    steps = 0

    def body(s):
        nonlocal steps
        steps += 1
        return s * 2

    grad(lambda x: torch_tower.while_loop(lambda s: s < 10, body, x))(torch.ones(()))
    assert steps == 4


def test_parameters_of_a_module_are_captured_outside_and_inside():
    net = torch.nn.Sequential(torch.nn.Linear(3, 3), torch.nn.Tanh()).double()
    x = randn(3)
    torch_tower.checkpoint(net)(x).sum().backward()
    expected = {name: p.grad for name, p in net.named_parameters()}
    parameters = {name: p.detach() for name, p in net.named_parameters()}
    call = lambda p, x: torch_tower.functional_call(net, p, x)
    assert_same(grad(lambda p: torch_tower.checkpoint(call)(p, x).sum())(parameters), expected)
    captured = lambda p: torch_tower.checkpoint(lambda x: call(p, x))(x).sum()
    assert_same(grad(captured)(parameters), expected)


def test_a_checkpoint_keeps_nothing_but_its_arguments():
    kept = []

    def block(x):
        middle = x.sin()
        kept.append(weakref.ref(middle))
        return middle.exp() * middle

    _, pullback = vjp(torch_tower.checkpoint(block), randn(3))
    assert kept[0]() is None
    pullback(torch.ones(3).double())
    assert len(kept) == 2


def test_nothing_keeps_a_function_when_its_loop_is_over():
    class Body:
        def __call__(self, s):
            return s - 1

    body = Body()
    alive = weakref.ref(body)
    for few in ("all", 2):
        f = lambda x, body=body: torch_tower.while_loop(lambda s: s > 0, body, x, checkpoints=few)
        y, pullback = vjp(vmap(f), torch.tensor([1.0, 3.0]))
        pullback(y)
    del body, f, y, pullback
    assert alive() is None


# ---- refusals -------------------------------------------------------------------------------------------------------

ONE = torch.ones(())


@pytest.mark.parametrize(
    "call, words",
    [
        (lambda t: t.while_loop(lambda s: s > 0, lambda s: s, torch.ones(2)), ["while_loop", "predicate", "any()"]),
        (lambda t: t.while_loop(lambda s: 1.5, lambda s: s, ONE), ["while_loop", "predicate returned 1.5"]),
        (
            lambda t: t.while_loop(lambda s: s["a"][0] < 3, lambda s: {"a": [s["a"][0].double()]}, {"a": [ONE]}),
            ["while_loop", "state['a'][0] is Float []", "Double []"],
        ),
        (
            lambda t: t.fori_loop(0, 2, lambda i, s: (s[0], s[1] + i), (ONE, 7)),
            ["fori_loop", "state[1] is 7", "returned 8"],
        ),
        (lambda t: t.fori_loop(0, 2, lambda i, s: (s[0], s[0]), (ONE, 7)), ["state[1] is 7", "returned a tensor"]),
        (lambda t: t.fori_loop(0, 2, lambda i, s: (3.0,), (ONE,)), ["state[0] is a tensor", "returned 3.0"]),
        (lambda t: t.fori_loop(0, 2, lambda i, s: [s], ONE), ["fori_loop", "tree", "a list of 1 elements"]),
        (lambda t: t.fori_loop(0, 2, lambda i, s: s, 7), ["fori_loop", "the state is a int", "no tensor"]),
        (lambda t: t.fori_loop(0, 2, lambda i, s: s, ONE, checkpoints=0), ["checkpoints is 0", "'automatic'"]),
        (lambda t: t.scan(lambda c: (c, c), ONE), ["scan", "length="]),
        (lambda t: t.scan(lambda c, x: c, ONE, torch.ones(2)), ["scan", "(next carry, output)", "a Tensor"]),
        (lambda t: t.scan(lambda c, x: (c + x, x), ONE, torch.ones(2, 3)), ["scan", "carry", "Float [3]"]),
        (lambda t: t.scan(lambda c, x: (c, {"n": x.item()}), ONE, torch.arange(2)), ["output['n'] is 0", "returned 1"]),
        (lambda t: t.associative_scan(lambda a, b: (a[0], 2), (torch.ones(2), 1)), ["element[1] is 1", "returned 2"]),
        (lambda t: t.associative_scan(lambda a, b: a, torch.ones(2), 1), ["associative_scan", "dim is 1"]),
        (
            lambda t: t.vmap(lambda x: t.cond(x > 0, lambda x: (x, 1), lambda x: (x, 2), x))(torch.tensor([1.0, -1])),
            ["cond", "differs between examples", "no tensor"],
        ),
    ],
)
def test_mistakes_are_named(call, words):
    with pytest.raises(ValueError) as error:
        call(torch_tower)
    for word in words:
        assert word in str(error.value)


def test_an_exception_of_a_body_comes_out_as_it_was():
    class Mine(Exception):
        pass

    def body(s):
        raise Mine("here")

    for run in (lambda f: f(ONE), lambda f: vmap(f)(torch.ones(2)), lambda f: grad(f)(ONE)):
        with pytest.raises(Mine, match="here"):
            run(lambda x: torch_tower.while_loop(lambda s: s > 0, body, x))


@pytest.mark.parametrize("few", ["all", 2])
def test_an_endless_loop_can_be_interrupted(few):
    def endless(x):
        return torch_tower.while_loop(lambda s: s > 0, lambda s: s * 1.0, x, max_steps=10**9, checkpoints=few)

    xs = torch.tensor([1.0, -1.0])
    # A shell's background jobs, and what they start, ignore SIGINT.
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    try:
        for run in (
            lambda: endless(xs[0]),
            lambda: grad(endless)(xs[0]),
            lambda: vmap(endless)(xs),
            lambda: vmap(grad(endless))(xs),
        ):
            timer = threading.Timer(0.2, signal.raise_signal, [signal.SIGINT])
            timer.start()
            with pytest.raises(KeyboardInterrupt):
                run()
            timer.join()
    finally:
        signal.signal(signal.SIGINT, before)


class Repeated(torch.nn.Module):
    """Evaluates its layer again on the way back."""

    def __init__(self, way):
        super().__init__()
        self.weight = torch.nn.Parameter(torch.tensor(100.0, dtype=torch.float64))
        self.way = way

    def scaled(self, x):
        return (x * self.weight).sin()

    def forward(self, x):
        if self.way == "method":
            return torch_tower.checkpoint(self.scaled)(x)
        if self.way == "partial":
            return torch_tower.checkpoint(functools.partial(lambda module, x: module.scaled(x), self))(x)
        if self.way == "cond":
            return torch_tower.cond(x > 0.5, lambda x: self.scaled(x), lambda x: 2 * self.scaled(x), x)
        return torch_tower.checkpoint(lambda x: self.scaled(x))(x)


@pytest.mark.parametrize("way", ["method", "partial", "function", "cond"])
def test_a_module_that_is_evaluated_again_has_the_parameters_it_was_called_with(way):
    module = Repeated(way)
    weight, x = torch.tensor(0.7, dtype=torch.float64), torch.tensor([0.3, 1.2], dtype=torch.float64)

    def f(x, weight):
        return torch_tower.functional_call(module, {"weight": weight}, (x,))

    scale = torch.where(x > 0.5, 1, 2) if way == "cond" else 1
    by_x, by_weight = vmap(grad(f, argnums=(0, 1)), in_dims=(0, None))(x, weight)
    torch.testing.assert_close(by_x, scale * weight * (x * weight).cos())
    torch.testing.assert_close(by_weight, scale * x * (x * weight).cos())
    torch.testing.assert_close(grad(lambda x: vmap(f, in_dims=(0, None))(x, weight).sum())(x), by_x)
    assert module.weight.item() == 100 and module.weight.grad is None
