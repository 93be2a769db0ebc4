"""Linear systems and implicit functions. Oracles: torch.linalg.solve, closed forms, torch.func of unrolled loops."""

import pytest
import torch
import torch_tower
from torch import Tensor


def matrix(n: int = 4) -> Tensor:
    torch.manual_seed(1)
    half = torch.randn(n, n, dtype=torch.float64)
    return half @ half.T + n * torch.eye(n, dtype=torch.float64)


def vector(n: int = 4) -> Tensor:
    return torch.linspace(-1, 2, n, dtype=torch.float64)


@pytest.mark.parametrize("method", ["automatic", "dense", "cg", "bicgstab", "gmres"])
def test_linear_solve_solves_and_what_is_captured_has_its_derivatives(method):
    a, b = matrix(), vector()

    def solve(a, b):
        return torch_tower.linear_solve(lambda v: a @ v, b, method=method, symmetric=method == "cg")

    torch.testing.assert_close(solve(a, b), torch.linalg.solve(a, b))
    for argnum in (0, 1):
        expected = torch.func.jacrev(torch.linalg.solve, argnum)(a, b)
        if method == "cg" and argnum == 0:
            continue  # A is symmetric, and so is what its solver is differentiated along
        torch.testing.assert_close(torch_tower.jacrev(solve, argnum)(a, b), expected)
        torch.testing.assert_close(torch_tower.jacfwd(solve, argnum)(a, b), expected)


def test_iterative_methods_report_on_each_example_and_take_trees():
    diagonals = torch.tensor([[1.0, 1, 1], [1, 2, 3], [1, 1, 5]], dtype=torch.float64)

    def solve(method, diagonal):
        b = {"u": torch.ones(2, dtype=torch.float64), "v": [torch.ones((), dtype=torch.float64)]}
        return method(lambda x: {"u": diagonal[:2] * x["u"], "v": [diagonal[2] * x["v"][0]]}, b, tolerance=1e-12)

    for method in (torch_tower.cg, torch_tower.bicgstab, torch_tower.gmres):
        found = torch_tower.vmap(lambda d: tuple(solve(method, d)))(diagonals)
        x, converged, steps, residual = found
        torch.testing.assert_close(x["u"], 1 / diagonals[:, :2])
        torch.testing.assert_close(x["v"][0], 1 / diagonals[:, 2])
        assert converged.all() and steps.dtype == torch.int64 and residual.max() < 1e-10
        assert isinstance(solve(method, diagonals[0]), torch_tower.IterativeSolution)


def test_preconditioner_and_start_are_heeded():
    a, b = matrix(20), vector(20)
    plain = torch_tower.cg(lambda v: a @ v, b)
    inverse = a.inverse()
    assert torch_tower.cg(lambda v: a @ v, b, preconditioner=lambda v: inverse @ v).steps <= 2 < plain.steps
    assert torch_tower.cg(lambda v: a @ v, b, start=plain.x).steps == 0


def test_no_convergence_is_an_error_or_reported():
    a, b = matrix(20), vector(20)
    with pytest.raises(torch_tower.NoConvergenceError, match="cg"):
        torch_tower.cg(lambda v: a @ v, b, max_steps=1)
    assert not torch_tower.cg(lambda v: a @ v, b, max_steps=1, on_no_convergence="report").converged


def test_a_solver_of_ones_own_is_given_the_function_and_b():
    a, b = matrix(), vector()
    calls = []

    def solve(apply, b):
        calls.append(b)
        columns = torch.stack([apply(e) for e in torch.eye(4, dtype=torch.float64)], 1)
        return torch.linalg.solve(columns, b)

    def solution(b):
        return torch_tower.linear_solve(lambda v: a @ v, b, solve=solve, symmetric=True).sum()

    torch.testing.assert_close(torch_tower.grad(solution)(b), torch.linalg.solve(a, torch.ones_like(b)))
    assert len(calls) == 2


def newton(p):
    x = torch.zeros_like(p["c"])
    for _ in range(50):
        x = x - (x**3 + p["a"] * x - p["c"]) / (3 * x**2 + p["a"])
    return {"x": x}


def residual(x, p):
    return {"x": x["x"] ** 3 + p["a"] * x["x"] - p["c"]}


def test_implicit_root_is_differentiated_by_its_equation_in_every_mode():
    def found(a, c):
        solver = lambda p: {"x": newton({k: v.detach() for k, v in p.items()})["x"].clone()}  # noqa: E731
        return torch_tower.implicit_root(residual, solver)({"a": a, "c": c})["x"]

    def unrolled(a, c):
        return newton({"a": a, "c": c})["x"]

    a, c = torch.tensor(1.5, dtype=torch.float64), vector(3)
    torch.testing.assert_close(found(a, c), unrolled(a, c))
    for argnum in (0, 1):
        for mine, other in [
            (torch_tower.jacrev, torch.func.jacrev),
            (torch_tower.jacfwd, torch.func.jacfwd),
            (torch_tower.hessian, torch.func.hessian),
        ]:
            torch.testing.assert_close(mine(found, argnum)(a, c), other(unrolled, argnum)(a, c))
    batch = torch.stack([c, c + 1])
    torch.testing.assert_close(
        torch_tower.vmap(torch_tower.jacrev(found), (None, 0))(a, batch),
        torch.stack([torch.func.jacrev(unrolled)(a, one) for one in batch]),
    )


def test_a_solver_may_ask_for_numbers():
    def by_numbers(a):
        x = 1.0
        for _ in range(60):
            x = 1 + a.item() / x
        return torch.tensor(x, dtype=torch.float64)

    golden = torch_tower.fixed_point(lambda x, a: 1 + a / x, by_numbers, per_example=True)
    a = torch.tensor([1.0, 2.0], dtype=torch.float64)
    torch.testing.assert_close(torch_tower.vmap(golden)(a), (1 + torch.sqrt(1 + 4 * a)) / 2)
    torch.testing.assert_close(torch_tower.vmap(torch_tower.grad(golden))(a), 1 / torch.sqrt(1 + 4 * a))


def test_implicit_root_takes_options_for_its_linear_systems():
    a, calls = matrix(6), []

    def preconditioner(x, b):
        calls.append(x)
        return lambda v: v / a.diagonal()

    solve = torch_tower.implicit_root(
        lambda x, b: a @ x - b,
        lambda b: torch.linalg.solve(a, b),
        linear={"method": "gmres", "tolerance": 1e-12},
        preconditioner=preconditioner,
    )
    torch.testing.assert_close(torch_tower.jacrev(solve)(vector(6)), a.inverse())
    assert calls


def test_backward_goes_through_the_equation():
    c = vector(3).requires_grad_()
    a = torch.tensor(1.5, dtype=torch.float64)
    torch_tower.implicit_root(residual, newton)({"a": a, "c": c})["x"].sum().backward()
    x = newton({"a": a, "c": c.detach()})["x"]
    torch.testing.assert_close(c.grad, 1 / (3 * x**2 + a))


def test_wrong_calls_are_named():
    a, b = matrix(), vector()
    with pytest.raises(ValueError, match="method is 'lu'; it must be one of 'automatic', 'dense'"):
        torch_tower.linear_solve(lambda v: a @ v, b, method="lu")
    with pytest.raises(TypeError, match="linear_solve: there is no option 'tol'"):
        torch_tower.linear_solve(lambda v: a @ v, b, tol=1)
    with pytest.raises(ValueError, match="linear_solve: the function is not linear"):
        torch_tower.linear_solve(lambda v: a @ v + 1, b)
    with pytest.raises(ValueError, match="implicit_root: the solution has the tree"):
        torch_tower.implicit_root(lambda x, b: (x, x), lambda b: b)(b)
    with pytest.raises(ValueError, match="implicit_root: the residual gave"):
        torch_tower.implicit_root(lambda x, b: x[:2], lambda b: b)(b)
