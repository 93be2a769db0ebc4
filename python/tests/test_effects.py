"""Functions that are run for others than those who asked, or once more for a derivative, are not seen to run: what they
write to what they did not make is refused, and what they make themselves they may write to."""

import pytest
import torch
import torch_tower
from support import assert_same
from torch_tower import associative_scan, checkpoint, cond, fori_loop, grad, jvp, vmap, while_loop

D = torch.float64
XS = torch.tensor([0.5, 2.0], dtype=D)


def with_data(y):
    y.data = y.data * 2
    return y * 1


# Of a tensor of two elements, to which each of them writes.
WRITES = {
    "itself": lambda y: y.mul_(2),
    "a view": lambda y: y.view(2, 1).t()[0].mul_(2),
    "an element": lambda y: (y.__setitem__(0, 5.0), y * 1)[1],
    "out": lambda y: torch.sin(y, out=y),
    "a list": lambda y: (torch._foreach_mul_([y], 2), y * 1)[1],
    "its form": lambda y: y.unsqueeze_(0)[0] * 1,
    "detached": lambda y: (y.detach().mul_(2), y * 1)[1],
    "data": lambda y: (y.data.mul_(2), y * 1)[1],
    "other data": with_data,
    "an argument of vmap": lambda y: (vmap(lambda v: v.mul_(2))(y), y * 1)[1],
    "an argument of grad": lambda y: (grad(lambda v: v.mul_(2).sum())(y), y * 1)[1],
}

# The same for what is made inside.
OWN = {
    "a result": lambda y: (y * 1).mul_(2),
    "zeros": lambda y: torch.zeros(2, dtype=D).add_(y),
    "numbers": lambda y: torch.tensor([1.0, 2.0], dtype=D).mul_(y),
    "views": lambda y: y.clone().view(2, 1).t_()[0].mul_(3),
    "elements": lambda y: (lambda z: (z.__setitem__(0, y[0]), z * y)[1])(y.new_zeros(2)),
    "an argument of vmap": lambda y: vmap(lambda v: v.mul_(2))(y * 1),
    "buffers": lambda y: torch.nn.BatchNorm1d(2, dtype=D)(torch.stack([y, 2 * y]))[0],
}


def refused(f, *words):
    with pytest.raises(RuntimeError) as error:
        f()
    text = str(error.value)
    for word in ("writes", "Clone the tensor first, and return what the write was for", *words):
        assert word in text, text


def two(x):
    return torch.stack([x, 2 * x])


def in_branch(write):
    def f(x):
        y = two(x)
        return cond(x > 1, lambda: write(y), lambda: y.sin())

    return f


@pytest.mark.parametrize("write", WRITES.values(), ids=WRITES)
def test_a_branch_does_not_write_to_what_it_captured_where_examples_take_both(write):
    f = in_branch(write)
    words = ("level", "cond: true_branch", "captured tensor, Double", "differs between examples")
    refused(lambda: vmap(f)(XS), "vmap", *words)
    refused(lambda: vmap(grad(lambda x: f(x).sum()))(XS), *words)
    refused(lambda: grad(lambda x: vmap(f)(x).sum())(XS), *words)
    refused(lambda: jvp(vmap(f), (XS,), (XS,)), *words)
    refused(lambda: vmap(vmap(f))(XS[None]), *words)
    for x in XS:  # of one example one branch is run
        y = two(x)
        expected = write(y) if x > 1 else y.sin()
        assert_same(f(x), expected)


@pytest.mark.parametrize("write", WRITES.values(), ids=WRITES)
def test_a_branch_does_not_write_to_plain_tensors_where_examples_take_both(write):
    plain = torch.ones(2, dtype=D)
    f = lambda x: cond(x > 1, lambda: (write(plain), two(x))[1], lambda: two(x).sin())
    refused(lambda: vmap(f)(XS), "vmap (level 1)", "cond: true_branch", "differs between examples")
    assert_same(plain, torch.ones(2, dtype=D))


@pytest.mark.parametrize("write", OWN.values(), ids=OWN)
def test_what_a_branch_or_a_checkpoint_makes_it_may_write_to(write):
    f = in_branch(write)
    assert_same(vmap(f)(XS), torch.stack([f(x) for x in XS]))
    leaves = [x.clone().requires_grad_() for x in XS]
    results = [write(two(x)) if x > 1 else two(x).sin() for x in leaves]
    each = torch.stack([torch.autograd.grad(y.sum(), x)[0] for y, x in zip(results, leaves)])
    assert_same(vmap(grad(lambda x: f(x).sum()))(XS), each)
    assert_same(grad(lambda x: vmap(f)(x).sum())(XS), each)
    assert_same(grad(lambda x: checkpoint(write)(two(x)).sum())(XS[1]), each[1])


def test_a_body_does_not_write_to_what_it_captured_where_examples_are_idle():
    def f(x):
        y = x * 1

        def body(s):
            y.add_(1)
            return s * y

        return while_loop(lambda s: s < 20, body, x)

    expected = XS[0].clone()
    y = XS[0].clone()
    while expected < 20:
        y += 1
        expected = expected * y
    assert_same(vmap(f)(XS[:1].repeat(3)), expected.repeat(3))
    for run in (vmap(f), vmap(grad(f)), grad(lambda x: vmap(f)(x).sum())):
        refused(lambda: run(XS), "level", "while_loop: the body", "captured tensor", "differs between examples")


def test_a_predicate_does_not_write_once_examples_are_idle():
    def f(x):
        y = x * 1
        return while_loop(lambda s: s < 3 + 0 * y.add_(1), lambda s: s + y, x)

    y, s = XS[0].clone(), XS[0].clone()
    while s < 3 + 0 * y.add_(1):
        s = s + y
    assert_same(vmap(f)(XS[:1].repeat(2)), s.repeat(2))
    refused(lambda: vmap(f)(torch.tensor([0.5, 2.9], dtype=D)), "while_loop: the predicate", "captured tensor")


def test_combine_does_not_write_to_what_it_did_not_make():
    count = torch.zeros((), dtype=D)
    counted = lambda a, b: (count.add_(1), a * b)[1]
    refused(lambda: associative_scan(counted, two(XS)), "associative_scan: combine", "captured tensor")
    refused(lambda: associative_scan(lambda a, b: a.mul_(b), two(XS)), "associative_scan: combine", "operand 0")
    assert_same(associative_scan(lambda a, b: (a * 1).mul_(b), two(XS)), two(XS).cumprod(0))


@pytest.mark.parametrize("keep", [None, ["aten::sin"]])
@pytest.mark.parametrize("write", WRITES.values(), ids=WRITES)
def test_a_checkpoint_does_not_write_to_what_it_did_not_make(write, keep):
    options = {"keep": keep} if keep else {}
    captured = lambda y: checkpoint(lambda x: (write(y) * x).sum(), **options)
    argument = checkpoint(lambda y: write(y).sum(), **options)
    plain = two(XS[0])
    words = ("checkpoint: the function", "evaluated again")
    for f in (lambda x: captured(two(x))(x), lambda x: captured(plain)(x), lambda x: argument(two(x))):
        for run in (lambda: grad(f)(XS[1]), lambda: vmap(grad(f))(XS), lambda: grad(lambda x: vmap(f)(x).sum())(XS)):
            refused(run, *words)


@pytest.mark.parametrize("checkpoints", [2, "automatic"])
def test_a_step_that_is_evaluated_again_does_not_write_to_what_it_did_not_make(checkpoints):
    count = torch.zeros((), dtype=D)
    fori = lambda x: fori_loop(0, 7, lambda i, s: (count.add_(1) * s).sin(), x, checkpoints=checkpoints)
    refused(lambda: grad(fori)(XS[0]), "fori_loop", "evaluated again")
    loop = lambda x: while_loop(lambda s: s < 9, lambda s: s * 2 + 0 * count.add_(1), x, checkpoints=checkpoints)
    refused(lambda: grad(loop)(XS[0]), "while_loop", "evaluated again")


def by_checkpoint(f):
    return checkpoint(f)


def by_keeping(f):
    return checkpoint(f, keep=["aten::sin"])


@pytest.mark.parametrize("wrapped", [by_checkpoint, by_keeping])
def test_the_gradient_of_a_tensor_from_outside_that_a_checkpoint_captured_is_libtorchs(wrapped):
    w = torch.tensor(3.0, dtype=D, requires_grad=True)
    by_hand = lambda x: (x * w).sin() * x
    f = wrapped(by_hand)
    programs = {
        "value": lambda f: torch_tower.grad_and_value(f)(XS[1])[1],
        "gradient": lambda f: grad(f)(XS[1]),
        "gradients": lambda f: vmap(grad(f))(XS).sum(),
        "of a batch": lambda f: grad(lambda x: vmap(f)(x).sum())(XS).sum(),
        "second": lambda f: grad(grad(f))(XS[1]),
        "tangent": lambda f: jvp(f, (XS[1],), (XS[0],))[1],
        "tangent of a gradient": lambda f: jvp(grad(f), (XS[1],), (XS[0],))[1],
    }
    for name, program in programs.items():
        ours, expected = (torch.autograd.grad(program(g), w)[0] for g in (f, by_hand))
        assert_same(ours, expected)


def test_a_loop_with_checkpoints_refuses_a_captured_tensor_that_requires_grad():
    w = torch.tensor(3.0, dtype=D, requires_grad=True)
    f = lambda x: fori_loop(0, 7, lambda i, s: (s * w).sin(), x, checkpoints=2)
    with pytest.raises(RuntimeError, match="fori_loop: it uses a tensor that it captured .*pass it as an argument"):
        grad(f)(XS[0])
    solve = lambda b: torch_tower.linear_solve(lambda v: w * v, b).sum()
    with pytest.raises(RuntimeError, match="linear_solve: .*captured and that requires grad.*pass it as an argument"):
        grad(solve)(XS)
    with torch.no_grad():
        assert_same(f(XS[0]), fori_loop(0, 7, lambda i, s: (s * w).sin(), XS[0]))


@pytest.mark.parametrize("solve", [torch_tower.linear_solve, lambda f, b: torch_tower.cg(f, b).x])
def test_the_function_of_a_solver_does_not_write_to_what_it_did_not_make(solve):
    def captured(b):
        y = b * 1
        return (solve(lambda v: v * 2 + 0 * y.add_(1), b) * y).sum()

    words = ("the function", "evaluated as often as the solver")
    refused(lambda: grad(captured)(XS), "captured tensor", *words)
    refused(lambda: vmap(captured)(two(XS)), "captured tensor", *words)
    in_place = lambda b: solve(lambda v: v.mul_(2), b).sum()
    refused(lambda: in_place(XS), "operand 0", *words)
    refused(lambda: grad(in_place)(XS), "operand 0", *words)
    own = lambda b: solve(lambda v: (v * 1).mul_(2), b).sum()
    assert_same(own(XS), XS.sum() / 2)
    assert_same(grad(own)(XS), torch.full_like(XS, 0.5))
