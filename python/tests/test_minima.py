"""minimize and least_squares. Oracles: closed forms; scipy's published solutions stand in the C++ tests."""

import pytest
import torch
import torch_tower
from torch_tower import FitStatus, MinimumStatus, compile, jacfwd, jacrev, least_squares, minimize, vmap

b = torch.tensor([[1.0, 2.0], [4.0, 0.5], [8.0, 1.0]], dtype=torch.float64)
t = torch.tensor([0.0, 0.4, 1.0, 2.0], dtype=torch.float64)
start = torch.ones(2, dtype=torch.float64)


@pytest.mark.parametrize("method", ["lbfgs", "newton"])
def test_a_minimum_is_found_and_has_derivatives_by_what_was_captured(method):
    def minimum(b):
        # Least at log b.
        def f(x):
            return (x["u"].exp() - b * x["u"]).sum()

        return minimize(f, {"u": 0 * b}, method=method, gtol=1e-10)

    found = minimum(b)
    torch.testing.assert_close(found.x["u"], b.log(), atol=1e-7, rtol=0)
    assert isinstance(found, torch_tower.Minimum) and found.status <= MinimumStatus.small_change
    assert (found.products > 0) == (method == "newton")
    for jacobian in (jacrev, jacfwd):
        slopes = jacobian(lambda b: minimum(b).x["u"])(b[0])
        torch.testing.assert_close(slopes, torch.diag(1 / b[0]), atol=1e-7, rtol=0)
    each = compile(vmap(lambda b: minimum(b).x["u"]))
    for _ in range(4):
        torch.testing.assert_close(each(b), b.log(), atol=1e-7, rtol=0)


SCALES = torch.tensor([1.0, 10, 100, 1000], dtype=torch.float64)
KINKED = {
    "largest": lambda x: x.abs().max() + 1,
    "of many scales": lambda x: (SCALES * x).abs().sum() + 1,
    "beside a large number": lambda x: x[:3].abs().sum() + 100,
}


@pytest.mark.cpu("hundreds of steps: a minute without kernels")
@pytest.mark.parametrize("name", KINKED)
def test_a_kink_is_not_taken_for_a_minimum(name):
    f = KINKED[name]
    for k in range(12):
        generator = torch.Generator().manual_seed(k)
        found = minimize(f, 3 * torch.randn(4, dtype=torch.float64, generator=generator))
        lowest = f(torch.zeros(4, dtype=torch.float64))
        assert found.status > MinimumStatus.small_change or found.value - lowest < 1e-6 * lowest


def test_fits_of_trees_have_bounds_losses_and_reports():
    data = 2 * (-0.7 * t).exp()

    def fit(data, **options):
        return least_squares(lambda x: [x[0] * (-x[1] * t).exp() - data, 0 * x[0]], (start[0], start[1]), **options)

    found = fit(data)
    assert isinstance(found, torch_tower.LeastSquaresFit) and found.status <= FitStatus.small_step
    torch.testing.assert_close(torch.stack(found.x), torch.tensor([2.0, 0.7], dtype=torch.float64))
    assert found.covariance.shape == (2, 2) and found.steps > 1
    # At a bound of the rate the factor is that of a linear fit.
    e = (-0.5 * t).exp()
    for upper in ((torch.tensor(9.0), torch.tensor(0.5)), None):
        factor = fit(data, upper=upper, lower=-5).x[0]
        torch.testing.assert_close(factor, (e @ data / (e @ e)) if upper else found.x[0])
    # A wrong number counts for little.
    wrong = data + torch.tensor([0, 0, 0, 5.0], dtype=torch.float64)
    assert abs(fit(wrong, loss="cauchy", scale=0.1).x[0] - 2) < 0.1 < abs(fit(wrong).x[0] - 2)
    assert vmap(lambda d: fit(d).x[1])(torch.stack([data, 3 * data])).sub(0.7).abs().max() < 1e-6


def fitted(a, d):
    """Of a = (1, 1) at d; of others nothing is known of one number."""
    return least_squares(lambda x: torch.cat([a * x - d, a * x - d]), start).x


def least(a, d):
    return minimize(lambda x: (a * x - d).square().sum(), start).x


@pytest.mark.parametrize("found", [fitted, least])
def test_an_example_whose_solution_is_not_one_alone_has_nan_for_derivatives_and_the_others_have_theirs(found):
    a = torch.tensor([[1.0, 0.0], [1.0, 1.0], [0.0, 0.0]], dtype=torch.float64)
    d = torch.tensor([1.0, 2.0, 3.0], dtype=torch.float64)
    for jacobian in (jacfwd, jacrev):
        by_d = vmap(jacobian(found, 1))
        for mapped in (by_d, compile(by_d)):
            for _ in range(3):
                slopes = mapped(a, d)
                assert slopes[0].isnan().all() and slopes[2].isnan().all()
                torch.testing.assert_close(slopes[1], torch.ones(2, dtype=torch.float64))
        assert jacobian(found, 1)(a[0], d[0]).isnan().all()


@pytest.mark.parametrize("size", [2, 257])  # a dense Hessian, and conjugate gradients
def test_an_example_without_a_minimum_leaves_the_derivatives_of_the_others(size):
    many = torch.zeros(size, dtype=torch.float64)
    d = torch.tensor([1.0, float("nan"), -1.0], dtype=torch.float64)

    def least(d):
        return minimize(lambda x: torch.where(d > 0, (x - d).square(), d * x).sum(), many, max_steps=9).x[0]

    def fitted(d):
        return least_squares(lambda x: torch.where(d > 0, x - d, (-x).exp()), many, max_steps=6).x[0]

    for found in (least, fitted):
        for jacobian in (jacfwd, jacrev) if size == 2 else (jacrev,):
            slopes = vmap(jacobian(found))(d)
            assert slopes[1:].isnan().all() and abs(slopes[0] - 1) < 1e-6


def test_a_function_that_writes_to_its_argument_is_refused_and_x0_stays():
    x0 = start.clone()
    for call in (lambda: minimize(lambda x: x.mul_(2).sum(), x0), lambda: least_squares(lambda x: x.mul_(2), x0)):
        with pytest.raises(RuntimeError, match="the function writes to operand 0"):
            call()
    assert x0.equal(start)


def test_wrong_calls_say_what_to_do():
    def says(match, call):
        with pytest.raises((ValueError, TypeError), match=match):
            call()

    says("the start x0 is a list of 0 elements that holds no tensor", lambda: minimize(lambda x: x, []))
    says("the function returned a float", lambda: minimize(lambda x: 1.0, start))
    says("without dimensions", lambda: minimize(lambda x: x, start))
    says("method is 'bfgs'; it must be one of 'lbfgs', 'newton'", lambda: minimize(torch.sum, start, method="bfgs"))
    says("loss is 'l1'", lambda: least_squares(torch.sin, start, loss="l1"))
    says("lower is .* one number for all, or a tree like x0", lambda: least_squares(torch.sin, start, lower=[0, 1]))
    wide = torch.ones(2, 3, dtype=torch.float64)
    for bound, shape in ((wide.t(), "3, 2"), (wide[0], "3"), (wide.view(-1), "6")):
        says(rf"of shape .2, 3., it is of shape .{shape}.", lambda: least_squares(torch.sin, wide, upper=bound))
    says("memory is 2.5; it must be a whole number", lambda: minimize(torch.sum, start, memory=2.5))
