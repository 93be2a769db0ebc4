"""BlockLeastSquares. Oracles: closed forms, dense solutions."""

import pytest
import torch
import torch_tower
from torch_tower import BlockLeastSquares, FitStatus, FitTerm, FitUnknowns, grad, jacfwd, jacrev, vmap

pytestmark = pytest.mark.cpu("fits of blocks are for the CPU")

f64 = {"dtype": torch.float64}
# Four places on a line; distances between all pairs, and the first is held.
truth = torch.tensor([[0.0], [1.0], [3.0], [4.5]], **f64)
left = torch.tensor([0, 0, 0, 1, 1, 2])
right = torch.tensor([1, 2, 3, 2, 3, 3])
first = torch.tensor([True, False, False, False])
seen = truth[right] - truth[left] + 0.1 * torch.sin(torch.arange(6.0, **f64)).unsqueeze(1)


def difference(a, b, distance):
    return b - a - distance


def chain(data=seen, **options):
    places = FitUnknowns(torch.zeros(4, 1, **f64), held=first)
    return BlockLeastSquares([places], [FitTerm(difference, [(0, left), (0, right)], [data])], **options)


def matrix():
    rows = torch.zeros(6, 4, **f64)
    rows[torch.arange(6), right] = 1
    rows[torch.arange(6), left] -= 1
    return rows[:, 1:]


@pytest.mark.parametrize("method", ["levenberg_marquardt", "dogleg"])
def test_a_fit_is_that_of_the_dense_matrix_and_so_are_its_derivatives(method):
    solve = chain(method=method, first_damping=1e-12, covariance=True)
    assert solve.num_unknowns == 4 and solve.factored[0] == 4
    fit = solve()
    expected = torch.linalg.lstsq(matrix(), seen).solution
    assert isinstance(fit, torch_tower.BlockFit) and fit.status <= FitStatus.small_step
    torch.testing.assert_close(fit.x[0][1:], expected)
    assert fit.x[0][0] == 0
    variance = 2 * fit.cost / 3 * torch.linalg.inv(matrix().T @ matrix()).diagonal()
    torch.testing.assert_close(fit.covariance[0][1:, 0, 0], variance)
    by_data = jacrev(lambda d: solve(d).x[0][1:, 0])(seen)[:, :, 0]
    torch.testing.assert_close(by_data, torch.linalg.pinv(matrix()), atol=1e-8, rtol=0)
    many = vmap(lambda d: solve(d).x[0])(torch.stack([seen, 2 * seen]))
    torch.testing.assert_close(many[1], 2 * many[0], atol=1e-8, rtol=0)
    leaf = seen.clone().requires_grad_()
    solve(leaf).x[0].sum().backward()
    torch.testing.assert_close(leaf.grad[:, 0], torch.linalg.pinv(matrix()).sum(0), atol=1e-8, rtol=0)


@pytest.mark.parametrize("solver", ["cholesky", "qr", "conjugate_gradients"])
def test_bounds_hold_whatever_solves_for_the_steps(solver):
    places = FitUnknowns(torch.zeros(4, 1, **f64), held=first, upper=torch.tensor([3.5], **f64))
    options = {"solver": solver, "cg_tolerance": 1e-3, "ftol": 1e-13, "xtol": 1e-13, "gtol": 1e-13}
    fit = BlockLeastSquares([places], [FitTerm(difference, [(0, left), (0, right)], [seen])], **options)()
    # The last is at the bound, and the others are the fit to it.
    assert fit.x[0][3] == 3.5
    rest = seen - 3.5 * matrix()[:, 2:]
    torch.testing.assert_close(fit.x[0][1:3], torch.linalg.lstsq(matrix()[:, :2], rest).solution)
    costs = []
    chain(progress=lambda step, cost: costs.append((step, cost)))()
    assert [step for step, _ in costs] == list(range(len(costs))) and costs[-1][1] < costs[0][1]


def test_retracted_unknowns_stay_on_the_circle_and_losses_forgive():
    def retract(x, d):
        c, s = d[0].cos(), d[0].sin()
        return torch.stack([c * x[0] - s * x[1], s * x[0] + c * x[1]])

    towards = torch.tensor([[0.6, 0.8], [0.6, 0.8], [0.6, 0.8], [-1.0, 0.0]], **f64)
    start = torch.tensor([[1.0, 0.0]], **f64)

    def fit(**loss):
        term = FitTerm(lambda x, d: x - d, [(0, torch.zeros(4, dtype=torch.int64))], [towards], **loss)
        return BlockLeastSquares([FitUnknowns(start, retract, 1)], [term], ftol=0, xtol=0)().x[0][0]

    mean = towards.sum(0) / towards.sum(0).norm()
    torch.testing.assert_close(fit(), mean, atol=1e-6, rtol=0)
    assert abs(fit().norm() - 1) < 1e-12
    assert (fit(loss="cauchy", scale=0.05) - towards[0]).norm() < 0.01 < (mean - towards[0]).norm()


def test_residuals_factor_matrices_of_unknowns_and_of_data():
    each = torch.arange(3)
    matrices = torch.eye(2, **f64) * torch.tensor([1.0, 2.0, 4.0], **f64).view(3, 1, 1) + 0.25
    inverse = FitTerm(lambda x, y: torch.linalg.inv(x) - y, [(0, each)], [matrices])
    fit = BlockLeastSquares([FitUnknowns(torch.eye(2, **f64).repeat(3, 1, 1))], [inverse])()
    torch.testing.assert_close(fit.x[0], torch.linalg.inv(matrices), atol=1e-6, rtol=0)

    def weighed(x, y, covariance):  # each of one unknown: the mean by their information
        return torch.linalg.solve_triangular(torch.linalg.cholesky(covariance), (x - y).unsqueeze(1), upper=False)

    y, whose = torch.arange(6.0, **f64).view(3, 2).sin(), torch.zeros(3, dtype=torch.int64)
    mean = BlockLeastSquares([FitUnknowns(y[:1])], [FitTerm(weighed, [(0, whose)], [y, matrices])])
    information = torch.linalg.inv(matrices)
    expected = torch.linalg.solve(information.sum(0), (information @ y.unsqueeze(2)).sum(0))[:, 0]
    torch.testing.assert_close(mean().x[0][0], expected, atol=1e-7, rtol=0)
    slope = vmap(jacrev(lambda y: mean(y, matrices).x[0][0]))(torch.stack([y, 2 * y]))[1]
    torch.testing.assert_close(slope, (torch.linalg.inv(information.sum(0)) @ information).movedim(0, 1))


def test_what_is_held_stays_to_the_last_bit_where_retractions_round():
    def retract(x, d):
        y = x + torch.cat([d, d[:1] * 0]) * torch.tensor([1.0, 1.0, 0.5], **f64)
        return y / y.norm()

    start = torch.nn.functional.normalize(torch.arange(30.0, **f64).cos().view(10, 3), dim=1)
    held = torch.arange(10) % 2 == 0
    term = FitTerm(lambda x, y: x - y, [(0, torch.arange(10))], [start.flip(0)])
    fit = BlockLeastSquares([FitUnknowns(start, retract, 2, held)], [term])()
    assert torch.equal(fit.x[0][held], start[held]) and not torch.equal(fit.x[0][~held], start[~held])


def test_wrong_calls_say_what_to_do():
    def says(match, call):
        with pytest.raises((ValueError, TypeError, RuntimeError), match=match):
            call()

    says("method is 'newton'; it must be one of 'levenberg_marquardt', 'dogleg'", lambda: chain(method="newton"))
    says("takes two of the unknowns 0, which are to be eliminated first", lambda: chain(eliminate=0))
    says("eliminate is -1", lambda: chain(eliminate=-1))
    says("data of term 0 are .*and it has 6 blocks", lambda: chain(seen[:5]))
    says("data 0 are", lambda: chain()(seen[:5]))

    def retracted(retract):
        return lambda: BlockLeastSquares(
            [FitUnknowns(truth, retract, 1)], [FitTerm(difference, [(0, left)] * 2, [seen])]
        )

    says(
        r"retract of the unknowns 0 gives Double \[1, 1\], and one of them is Double",
        retracted(lambda x, d: (x + d)[None]),
    )
    says("retract of the unknowns 0 gives Float", retracted(lambda x, d: (x + d).float()))

    def held(start):
        term = FitTerm(difference, [(0, left), (0, right)], [seen])
        return BlockLeastSquares([FitUnknowns(start, held=first)], [term])().x[0].sum()

    assert held(truth).isfinite()
    for derivative in (grad(held), jacfwd(held), lambda x: held(x.clone().requires_grad_())):
        says("a derivative by where the unknowns 0 start would be lost", lambda of=derivative: of(truth))
    vmap(held)(torch.stack([truth, truth]))

    def captures(scale):
        term = FitTerm(lambda x, d: scale * x - d, [(0, left)], [seen])
        return BlockLeastSquares([FitUnknowns(truth)], [term])().x[0].sum()

    says("captured a tensor of a transform", lambda: grad(captures)(torch.ones((), **f64)))
