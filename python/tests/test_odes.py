"""odeint and odeint_until. Oracles: closed forms; order conditions and published solutions stand in the C++ tests."""

import pytest
import torch
import torch_tower
from torch import Tensor
from torch_tower import OdeStatus, compile, grad, jacfwd, jacrev, odeint, odeint_until, vmap

ts = torch.tensor([0.0, 0.3, 0.8], dtype=torch.float64)
one = torch.ones((), dtype=torch.float64)


def swing(w: Tensor, y0: dict, **options):
    """A harmonic oscillator of frequency `w`."""

    def slope(t, y):
        return {"x": y["v"], "v": -w.square() * y["x"]}

    return odeint(slope, y0, ts, rtol=1e-6, atol=1e-6, **options)


def place(w: Tensor, **options) -> Tensor:
    return swing(w, {"x": one, "v": 0 * one}, **options).ys["x"]


@pytest.mark.parametrize("method", ["tsit5", "dopri5", "rodas5p"])
def test_states_are_trees_and_derivatives_by_what_is_captured_are_right(method):
    w = torch.tensor(2.0, dtype=torch.float64)
    found = swing(w, {"x": one, "v": 0 * one}, method=method)
    torch.testing.assert_close(found.ys["x"], (w * ts).cos(), atol=1e-5, rtol=0)
    torch.testing.assert_close(found.ys["v"], -w * (w * ts).sin(), atol=3e-5, rtol=0)
    assert isinstance(found, torch_tower.OdeSolution) and found.status == OdeStatus.reached and found.t == ts[2]
    assert found.steps.dtype == torch.int64 and found.rejected <= found.steps
    for jacobian in {"tsit5": (jacfwd, jacrev), "rodas5p": (jacfwd,)}.get(method, ()):
        by_w = jacobian(lambda w: place(w, method=method))(w)
        torch.testing.assert_close(by_w, -ts * (w * ts).sin(), atol=1e-4, rtol=0)
    if method == "tsit5":
        few = grad(lambda w: place(w, checkpoints=3)[2])(w)
        torch.testing.assert_close(few, -ts[2] * (w * ts[2]).sin(), atol=1e-4, rtol=0)


def test_tolerances_are_numbers_or_trees_like_the_state():
    w = torch.tensor(2.0, dtype=torch.float64)
    y0 = {"x": one, "v": 0 * one}

    def steps(**options):
        return odeint(lambda t, y: {"x": y["v"], "v": -w * y["x"]}, y0, [0.0, 3.0], **options).steps

    loose, tight = steps(rtol=0.0, atol=1e-4), steps(rtol=0, atol=1e-8, method="dop853")
    assert steps(rtol=0, atol=torch.tensor(1e-4)) == loose
    assert steps(rtol={"x": 0, "v": 0.0}, atol={"x": 1e-4, "v": 1e-4 * one}) == loose
    assert tight < steps(rtol=0, atol=1e-8)
    assert steps(rtol=0, atol={"x": 1e-4, "v": float("inf")}) != loose
    counts = vmap(lambda atol: steps(rtol=0, atol=atol))(torch.tensor([1e-4, 1e-10]))
    assert counts[0] == loose < counts[1]
    for wrong in ({"x": 1e-4}, [1e-4, 1e-4], {"x": "small", "v": 1}):
        with pytest.raises(ValueError, match="atol is .*; it must be a number, or a tree like the state y0"):
            steps(atol=wrong)


def test_systems_of_an_ensemble_have_their_own_steps_and_compile():
    ws = torch.tensor([0.1, 1.0, 8.0], dtype=torch.float64)
    many = vmap(lambda w: tuple(swing(w, {"x": one, "v": 0 * one})))
    ys, t, status, steps, rejected = many(ws)
    torch.testing.assert_close(ys["x"], (ws[:, None] * ts).cos(), atol=1e-4, rtol=0)
    assert (status == OdeStatus.reached).all() and steps[0] < steps[1] < steps[2]
    fast = compile(vmap(place))
    for _ in range(3):
        torch.testing.assert_close(fast(ws), ys["x"])


def test_a_system_that_does_not_arrive_says_why():
    # y' = y² has a pole at 1; times are a list of numbers here, and go backwards there.
    pole = odeint(lambda t, y: y * y, one, [0, 0.5, 2])
    assert pole.status in (OdeStatus.step_too_small, OdeStatus.not_finite) and abs(pole.t - 1) < 1e-4
    assert abs(pole.ys[1] - 2) < 1e-5 and pole.ys[2].isnan()
    few = odeint(lambda t, y: -y, one, [0, 5], max_steps=3, longest_step=0.5)
    assert few.status == OdeStatus.max_steps and few.steps == 3 and few.t <= 1.5
    assert odeint(lambda t, y: -y, one, [0, 2, 1]).status == OdeStatus.unordered_times
    assert odeint(lambda t, y: -y, one, [1, 0], step=0.125).steps == 8


@pytest.mark.cpu("thousands of steps: a minute without kernels")
def test_a_system_that_does_not_arrive_has_nan_for_derivatives_and_leaves_the_others_theirs():
    # y' = k y² from 1: y(1) is 1 / (1 − k), with the derivative 1 / (1 − k)² by k, where k < 1. Else there is none.
    ks = torch.tensor([0.5, 3.0], dtype=torch.float64)

    def end(k: Tensor, times=(0.0, 1.0)) -> tuple:
        found = odeint(lambda t, y: k * y * y, one, list(times), rtol=1e-8, atol=1e-8)
        return found.ys[-1], found.status

    for times, derivative in (((0.0, 1.0), grad), ((0.0, 0.9, 1.0), jacfwd)):
        by_k = vmap(derivative(lambda k, times=times: end(k, times)[0]))
        for f in (by_k, *[compile(by_k)] * 3):
            found = f(ks)
            assert abs(found[0] - 4) < 1e-5 and found[1].isnan()

    def sound(scale: Tensor) -> Tensor:
        ends, status = vmap(end)(scale * ks)
        return torch.where(status == OdeStatus.reached, ends, 0.0).sum()

    for derivative in (grad, jacfwd):
        for f in (derivative(sound), *[compile(derivative(sound))] * 3):
            assert abs(f(one) - 0.5 * 4) < 1e-5


def test_an_event_ends_each_system_and_its_time_and_state_have_derivatives():
    def fall(height: Tensor) -> torch_tower.OdeEventSolution:
        def slope(t, y):
            return {"x": y["v"], "v": -9.81 + 0 * t}

        return odeint_until(slope, lambda t, y: y["x"], {"x": height, "v": 0 * height}, [0, 2])

    heights = torch.tensor([1.0, 4.0, 100.0], dtype=torch.float64)
    ys, t, y, status, steps, rejected = vmap(lambda h: tuple(fall(h)))(heights)
    landings = (2 * heights[:2] / 9.81).sqrt()
    torch.testing.assert_close(t, torch.cat([landings, torch.tensor([2.0], dtype=torch.float64)]))
    torch.testing.assert_close(y["v"], -9.81 * t)
    assert status.tolist() == [OdeStatus.event, OdeStatus.event, OdeStatus.reached]
    assert ys["x"][:, 1].isnan().tolist() == [True, True, False]
    for jacobian in (jacfwd, jacrev):
        by_height = jacobian(lambda h: fall(h).t)(heights[1])
        torch.testing.assert_close(by_height, 1 / (9.81 * landings[1]))


def climb(event, threshold=0.3 * one, times=ts, **options):
    """y = t from zero on, until `event` of y and the threshold."""
    zero = 0 * one
    return odeint_until(lambda t, y: one + 0 * y, lambda t, y: event(y, threshold), zero, times, **options)


@pytest.mark.parametrize(
    "event",
    [
        lambda y, at: (y - at).sign(),
        lambda y, at: (y - at) ** 3,
        lambda y, at: (at - y).relu(),
        lambda y, at: (y / at).floor() - 0.5,
    ],
)
def test_an_event_whose_value_has_no_slope_happens_where_its_sign_changes(event):
    for options in ({}, {"step": 0.8}):
        found = climb(event, times=torch.tensor([0, 0.1, 0.8], dtype=torch.float64), **options)
        assert found.status == OdeStatus.event and abs(found.t - 0.3) < 1e-15 and abs(found.y - 0.3) < 1e-15
        assert found.ys.isnan().tolist() == [False, False, True]


def test_an_event_without_slope_leaves_the_derivatives_of_other_systems():
    def mixed(threshold):
        return climb(lambda y, at: torch.where(at < 0.5, (y - at) ** 3, y - at), threshold).t

    thresholds = torch.tensor([0.3, 0.6, 0.7, 9.0], dtype=torch.float64)
    for jacobian in (jacfwd, jacrev):
        for mapped in (vmap(jacobian(mixed)), compile(vmap(jacobian(mixed)))):
            for _ in range(3):
                slopes = mapped(thresholds)
                assert slopes[0].isnan() or abs(slopes[0] - 1) < 1e-12
                assert (slopes[1:] - torch.tensor([1, 1, 0])).abs().max() < 1e-12


@pytest.mark.parametrize("times", [[0, 0, 1], [0, 0, 0, 0.5, 1], [1, 1, 0.5], [1, 1], [1, 1, 1]])
def test_times_that_are_one_have_the_derivatives_of_the_solution(times):
    def solution(times):
        return odeint(lambda t, y: 1 - t * y, 2 * one, times, rtol=1e-8, atol=1e-8).ys

    times = torch.tensor(times, dtype=torch.float64)
    # A change of the first time goes along with the flow, whose derivative is that of y' = −t y.
    expected = torch.diag(1 - times * solution(times))
    expected[:, 0] -= (1 - 2 * times[0]) * (0.5 * (times[0] ** 2 - times**2)).exp()
    for jacobian in (jacfwd, jacrev):
        torch.testing.assert_close(jacobian(solution)(times), expected, atol=1e-6, rtol=0)


def test_the_second_derivative_by_a_time_that_is_the_first_is_that_of_the_solution():
    times = lambda a: torch.stack([0 * one, a, one])
    second = jacfwd(jacrev(lambda a: odeint(lambda t, y: -y, 2 * one, times(a)).ys[1]))(0 * one)
    assert abs(second - 2) < 1e-3


def waves(y0, p, times, **options):
    """y' = p y cos t, of a tree with two tensors: y = y0 exp(p (sin t − sin t₀))."""

    def slope(t, y):
        return {"a": p * y["a"] * t.cos(), "b": -p * y["b"] * t.cos()}

    found = odeint(slope, {"a": y0, "b": y0[:1]}, times, rtol=1e-9, atol=1e-9, **options)
    return torch.cat([found.ys["a"], found.ys["b"]], 1)


def closed_waves(y0, p, times):
    growth = (p * (times.sin() - times[0].sin()))[:, None]
    return torch.cat([y0 * growth.exp(), y0[:1] * (-growth).exp()], 1)


y0s = torch.tensor([0.7, -1.2], dtype=torch.float64)
waved = (y0s, torch.tensor(1.3, dtype=torch.float64), torch.tensor([0.2, 0.5, 0.5, 1.7], dtype=torch.float64))


@pytest.mark.parametrize("method", ["tsit5", "dop853", "rodas5p"])
def test_the_continuous_adjoint_has_the_derivatives_of_the_solution(method):
    def sum_of(solution):
        weights = torch.linspace(0.5, 2, 12, dtype=torch.float64).view(4, 3)
        return lambda *given: (weights * solution(*given)).sum()

    adjoint = sum_of(lambda *given: waves(*given, method=method, adjoint="continuous"))
    expected = grad(sum_of(closed_waves), (0, 1, 2))(*waved)
    found = grad(adjoint, (0, 1, 2))(*waved)
    for by, right in zip(found, expected):
        torch.testing.assert_close(by, right, atol=1e-6, rtol=0)
    backwards = (*waved[:2], waved[2].flip(0))
    for by, right in zip(grad(adjoint, (0, 1, 2))(*backwards), grad(sum_of(closed_waves), (0, 1, 2))(*backwards)):
        torch.testing.assert_close(by, right, atol=1e-6, rtol=0)
    if method == "tsit5":
        # They are not those of the steps, to which they are equal to the tolerance alone.
        of_steps = grad(sum_of(lambda *given: waves(*given, method=method)), (0, 1, 2))(*waved)
        assert 0 < (found[1] - of_steps[1]).abs() < 1e-6


def test_the_continuous_adjoint_nests_and_compiles():
    y0, p, times = waved

    def value(p, solution=lambda *given: waves(*given, adjoint="continuous")):
        return solution(y0, p, times)[1:].sum()

    def right(p):
        return value(p, closed_waves)

    torch.testing.assert_close(jacfwd(value)(p), jacfwd(right)(p), atol=1e-6, rtol=0)
    for second in (lambda f: jacfwd(grad(f)), lambda f: grad(grad(f))):
        torch.testing.assert_close(second(value)(p), second(right)(p), atol=1e-5, rtol=0)
    ps = torch.tensor([0.1, 1.3, -0.4], dtype=torch.float64)
    slopes, fast = vmap(grad(right))(ps), compile(vmap(grad(value)))
    torch.testing.assert_close(vmap(grad(value))(ps), slopes, atol=1e-6, rtol=0)
    torch.testing.assert_close(grad(lambda ps: vmap(value)(ps).sum())(ps), slopes, atol=1e-6, rtol=0)
    for _ in range(3):
        torch.testing.assert_close(fast(ps), slopes, atol=1e-6, rtol=0)
    leaf = p.clone().requires_grad_()
    with pytest.raises(
        RuntimeError, match="odeint: the right-hand side uses a tensor that it captured and that requires"
    ):
        value(leaf)


def test_where_a_system_does_not_arrive_the_continuous_adjoint_is_nan():
    def end(y0):  # y' = y² has a pole at 1 / y0
        return odeint(lambda t, y: y * y, y0, [0.0, 0.5], adjoint="continuous").ys[1]

    slopes = vmap(grad(end))(torch.tensor([1.0, 3.0], dtype=torch.float64))
    assert abs(slopes[0] - 4) < 1e-4 and slopes[1].isnan()
    with pytest.raises(ValueError, match="adjoint is 'exact'; it must be one of 'steps', 'continuous'"):
        odeint(lambda t, y: -y, one, ts, adjoint="exact")


@pytest.mark.cpu("of kernels, which are the CPU's, and what is without")
def test_derivatives_are_along_the_steps_that_were_made_whoever_makes_them_again():
    # Errors near those of rounding choose the steps: a rule that made others would be off by 1e-5 and more.
    matrix = torch.tensor([[-0.4, 0.9], [-0.7, 0.1]], dtype=torch.double)
    start, times = torch.tensor([1.0, -0.5], dtype=torch.double), torch.tensor([0, 0.2, 2.2], dtype=torch.double)

    def states(a):
        return odeint(lambda t, y: a @ y, start, times, method="rodas5p", rtol=1e-10, atol=1e-9).ys

    def solution(a):
        return torch.stack([torch.linalg.matrix_exp(a * t) @ start for t in times])

    weights = torch.linspace(-1, 2, 6, dtype=torch.double).view(3, 2)
    expected = torch.func.grad(lambda a: (solution(a) * weights).sum())(matrix)
    fast = compile(states)
    functions = {
        "plain": grad(lambda a: (states(a) * weights).sum()),
        "compiled": compile(grad(lambda a: (states(a) * weights).sum())),
        "of a compiled one": grad(lambda a: (fast(a) * weights).sum()),
        "in forward mode": compile(lambda a: (jacfwd(states)(a) * weights[..., None, None]).sum((0, 1))),
        "of a compiled one, in forward mode": lambda a: (jacfwd(fast)(a) * weights[..., None, None]).sum((0, 1)),
        "of a compiled one, mapped": lambda a: vmap(grad(lambda a: (fast(a) * weights).sum()))(a[None])[0],
    }
    for name, gradient in functions.items():
        for _ in range(3):
            error = (gradient(matrix) - expected).abs().max()
            assert error < 1e-8, name


def test_functions_that_write_to_their_state_are_refused_and_the_callers_tensors_stay():
    state, times = torch.ones(2, dtype=torch.float64), torch.tensor([0.0, 1.0], dtype=torch.float64)
    refused = pytest.raises(RuntimeError, match="writes to the time or the state that it is given")
    falling = lambda t, y: y.neg_()
    for call in (
        lambda: odeint(falling, state, times),
        lambda: odeint(lambda t, y: t.neg_() * y, state, times),
        lambda: vmap(lambda y: odeint(falling, y, times).ys)(state),
        lambda: jacrev(lambda y: odeint(falling, y, times).ys)(state),
        lambda: compile(lambda y: odeint(falling, y, times).ys)(state),
        lambda: odeint_until(lambda t, y: -y, lambda t, y: y.sub_(0.5)[0], state, times),
    ):
        with refused:
            call()
    assert state.tolist() == [1, 1] and times.tolist() == [0, 1]
    assert odeint(lambda t, y: y.clone().neg_(), state, times).status == OdeStatus.reached


def test_wrong_calls_say_what_to_do():
    def says(match, f=lambda t, y: -y, y0=one, times=ts, **options):
        with pytest.raises((ValueError, TypeError), match=match):
            odeint(f, y0, times, **options)

    says("the state y0 is a list of 0 elements that holds no tensor", y0=[])
    says("ts is Double \\[\\]. It is the times, of one dimension", times=one)
    says("state y0 is a tensor, but the right-hand side returned 1.0 for it", f=lambda t, y: 1.0)
    says("the right-hand side gave Double \\[2\\]", f=lambda t, y: ts[:2])
    says("method is 'euler'; it must be one of 'tsit5', 'dopri5', 'dop853', 'rodas5p'", method="euler")
    says("step is -1", step=-1)
    says("checkpoints is 0", checkpoints=0)
    says("max_steps is 10.5; it must be a whole number", max_steps=10.5)
    says("rtol is 'small'; it must be a number", rtol="small")
    for event, words in ((lambda t, y: 1.0, "the event returned a float"), (lambda t, y: ts, "the event gave Double")):
        with pytest.raises((ValueError, TypeError), match=words):
            odeint_until(lambda t, y: -y, event, one, ts)
    with pytest.raises(ValueError, match="crossing is 'up'; it must be one of 'any', 'rising', 'falling'"):
        odeint_until(lambda t, y: -y, lambda t, y: y, one, ts, crossing="up")
