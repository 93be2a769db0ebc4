"""torch_tower.compile: functions that are traced once and run from their graph. Oracle: the function itself."""

import gc
import weakref

import pytest
import torch
from support import assert_same, randn
from torch_tower import compile, grad, graph, hessian, jacrev, jvp, vjp, vmap


def energy(x):
    return ((x * x + 0.3).log().sin() * x + x.exp()).sum()


TRANSFORMED = {
    "plain": lambda f: f,
    "vmap": lambda f: vmap(f),
    "grad": lambda f: grad(f),
    "vmap(grad)": lambda f: vmap(grad(f)),
    "jacrev": lambda f: jacrev(f),
    "hessian": lambda f: hessian(f),
    "jvp": lambda f: lambda x: jvp(f, (x,), (x,)),
    "pullback": lambda f: lambda x: vjp(f, x)[1](torch.tensor(2.0, dtype=torch.float64)),
}


@pytest.mark.parametrize("name", TRANSFORMED)
def test_inside_and_outside_of_transforms(name):
    transformed = TRANSFORMED[name]
    inside, outside = compile(transformed(energy)), transformed(compile(energy))
    for _ in range(3):
        x = randn(3, 4) if "vmap" in name else randn(4)
        assert_same(inside(x), transformed(energy)(x))
        assert_same(outside(x), transformed(energy)(x))


def test_the_function_runs_once_for_each_kind_of_arguments():
    runs = []

    @compile
    def f(x, scale, *, how="sum"):
        runs.append(how)
        y = x["a"] * scale + x["b"]
        return {"y": y, "total": getattr(y, how)(), "how": how}

    for _ in range(2):
        x = {"a": randn(3), "b": randn(3)}
        for scale, how in ((2, "sum"), (2.0, "sum"), (2, "mean"), (True, "sum")):
            found = f(x, scale, how=how)
            assert found["how"] == how
            assert_same(found["y"], x["a"] * scale + x["b"])
            assert_same(found["total"], getattr(found["y"], how)())
    assert runs == ["sum", "sum", "mean", "sum"]
    assert f.graphs() == 4


def test_zeros_of_both_signs_and_nan_are_told_apart():
    f = compile(lambda x, z: x + (1 if str(z) == "0.0" else 2))
    x = randn(2)
    for _ in range(2):
        for z in (0.0, -0.0, float("nan")):
            assert_same(f(x, z), x + (1 if str(z) == "0.0" else 2))
    assert f.graphs() == 3


def test_what_is_captured_is_read_at_each_call():
    net = torch.nn.Linear(4, 2).double()
    f = compile(lambda x: net(x).relu())
    for _ in range(3):
        x = randn(3, 4)
        assert_same(f(x), net(x).relu())
        with torch.no_grad():
            net.weight.mul_(-0.5)


def test_backward_goes_through_the_result():
    f = compile(energy)
    for _ in range(3):
        x = randn(4).requires_grad_()
        f(x).backward()
        assert_same(x.grad, grad(energy)(x.detach()))


def test_writes_to_arguments_reach_them_and_views_come_back():
    @compile
    def f(x):
        x.mul_(2)
        return x[1], x

    for _ in range(3):
        x = randn(3, 2)
        expected = x * 2
        row, same = f(x)
        assert_same(x, expected)
        assert same is x
        row.zero_()
        assert_same(x[1], torch.zeros_like(row))


@pytest.mark.parametrize("transform", [lambda f: f, vmap])
def test_writes_to_lazily_negative_and_conjugate_arguments_reach_them_at_the_first_call(transform):
    def f(x):
        x.mul_(2)
        return x.sin()

    z = torch.complex(randn(3, 2), randn(3, 2))
    for lazy in (lambda: z.clone().conj().imag, lambda: z.clone().conj()):
        compiled = compile(transform(f))
        for _ in range(3):
            found, expected = lazy(), lazy()
            assert found.is_neg() or found.is_conj()
            assert_same(compiled(found), f(expected))
            assert_same(found, expected)


def test_a_graph_views_lazily_conjugate_arguments():
    compiled = compile(lambda z: (z.imag + 1, z.real.sin(), vmap(lambda z: z.imag * 2)(z)))
    z = torch.complex(randn(3, 2), randn(3, 2))
    for given in (z, z, z.conj(), z.conj()):  # the graph is of the first
        assert_same(compiled(given), (given.imag + 1, given.real.sin(), given.imag * 2))


def test_random_numbers_are_drawn_anew():
    f = compile(lambda x: x + torch.rand_like(x))
    x = torch.zeros(3)
    torch.manual_seed(0)
    first, second = f(x), f(x)
    torch.manual_seed(0)
    assert_same(first, torch.rand_like(x))
    assert_same(second, torch.rand_like(x))


def test_reading_a_number_is_refused_by_name():
    with pytest.raises(RuntimeError, match="compile .*reads a value"):
        compile(lambda x: x * float(x.sum()))(randn(3))


def test_what_was_chosen_by_a_value_is_chosen_anew():
    f = compile(lambda x: x * 2 if x.sum() > 0 else -x)
    for x in (torch.ones(3), -torch.ones(3)) * 3:
        assert_same(f(x), x * 2 if x.sum() > 0 else -x)


@pytest.mark.parametrize("transform", [lambda f: f, vmap, lambda f: vmap(grad(lambda *a: f(*a).sum()))])
def test_distributions_and_losses_check_their_arguments(transform):
    def log_prob(x, scale):
        normal = torch.distributions.Normal(x, scale, validate_args=True)
        return normal.log_prob(x + 1) + torch.nn.functional.gaussian_nll_loss(x, 2 * x, scale)

    f, plain = compile(transform(log_prob)), transform(log_prob)
    for k in range(3):
        x, scale = randn(3, 4), torch.rand(3, 4) + 1 + k
        assert_same(f(x, scale), plain(x, scale))
    with pytest.raises(ValueError):
        f(x, -scale)
    assert_same(f(x, scale), plain(x, scale))


def test_masks_from_outside_pick_what_they_pick_at_each_call():
    mask, start = torch.tensor([True, False, True, False]), torch.tensor(1)
    plain = lambda x: x[mask].sum() + x.narrow(0, start, 2) + torch.combinations(x).sum()  # noqa: E731
    f = compile(plain)
    for k in range(4):
        x = randn(4)
        assert_same(f(x), plain(x))
        if k == 1:
            mask[1] = True
            start.zero_()


def test_arguments_that_cannot_be_compared_are_refused():
    numpy = pytest.importorskip("numpy")
    f = compile(lambda x, a: x * float(a[0]))
    f(randn(2), numpy.ones(2))
    with pytest.raises(TypeError, match="cannot be compared"):
        f(randn(2), numpy.ones(2))


def test_a_python_error_passes_through_and_leaves_nothing_behind():
    class Mine(Exception):
        pass

    def f(x, fails):
        if fails:
            raise Mine("mine")
        return x * 2

    compiled = compile(f)
    with pytest.raises(Mine, match="mine"):
        compiled(randn(2), True)
    x = randn(2)
    assert_same(compiled(x, False), x * 2)


def test_the_graph_is_data():
    traced = graph(vmap(grad(lambda x: (x.sin() * x).sum())))(torch.zeros(5, 3))
    assert "aten::sin<0|a5>" in str(traced)
    assert [v.origin for v in traced.values][0] == "argument"
    call = next(c for c in traced.calls if c.op == "aten::sin")
    assert call.vmaps[0].batch_size == 5 and call.vmaps[0].dims == [0]
    assert traced.values[call.results[0]].sizes == [5, 3]
    assert traced.values[call.results[0]].dtype is torch.float32


def test_the_report_tells_of_images():
    f = compile(energy)
    for _ in range(3):
        grad(f)(randn(4))
    assert "under vjp, pulled back" in f.report()
    assert f.report().startswith("graphs: 1; in the one used last, kernels: ")
    assert f.listing().startswith("graph Double [4]")


def test_the_function_goes_with_what_was_compiled():
    class Big:
        pass

    def make():
        big = Big()
        f = compile(lambda x: (x * 2, big)[0])
        for _ in range(2):
            f(randn(3))
        return weakref.ref(big)

    ref = make()
    gc.collect()
    assert ref() is None
