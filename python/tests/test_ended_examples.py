"""Steps of loops whose ended examples an operator refuses: they are left out, as in C++, and the others go on."""

import pytest
import torch
import torch_tower as tower

# A number that a kernel refuses loses other devices.
pytestmark = pytest.mark.cpu("wrong numbers lose a device")

MATRICES = torch.stack([torch.eye(2, dtype=torch.float64) * k + 0.1 for k in (2, 3, 4)])
COUNTS = torch.tensor([1, 2, 3])


def solves(a, n):
    """What an example that has ended would solve is singular."""

    def step(state):
        x, left = state
        return torch.linalg.solve(x, torch.eye(2, dtype=x.dtype)) * torch.where(left > 1, 1.0, 0.0), left - 1

    return tower.while_loop(lambda s: s[1] > 0, step, (a, n))[0]


def solves_by_hand(a, n):
    x = a
    for left in range(int(n), 0, -1):
        x = torch.linalg.solve(x, torch.eye(2, dtype=x.dtype)) * (1.0 if left > 1 else 0.0)
    return x


def picks(a, n):
    """Its index is out of range."""
    table = torch.arange(3.0, dtype=a.dtype)

    def step(state):
        k, sum = state
        return k + 1, sum * table.index_select(0, k.view(1))[0] + a.sum()

    return tower.while_loop(lambda s: s[0] < 3, step, (n - 1, a.sum()))[1]


def picks_by_hand(a, n):
    sum = a.sum()
    for k in range(int(n) - 1, 3):
        sum = sum * k + a.sum()
    return sum


def divides(a, n):
    """Its integer is divided by zero."""

    def step(state):
        left, sum = state
        return left - 1, sum * torch.div(7, left, rounding_mode="trunc") + a.sum()

    return tower.while_loop(lambda s: s[0] > 0, step, (n, a.sum()))[1]


def divides_by_hand(a, n):
    sum = a.sum()
    for left in range(int(n), 0, -1):
        sum = sum * (7 // left) + a.sum()
    return sum


PROGRAMS = [(solves, solves_by_hand), (picks, picks_by_hand), (divides, divides_by_hand)]


@pytest.mark.parametrize("program, by_hand", PROGRAMS, ids=lambda f: f.__name__)
@pytest.mark.parametrize("around", ["plain", "nested", "checkpoint"])
def test_an_ended_example_that_an_operator_refuses_is_left_out(program, by_hand, around):
    a = MATRICES.clone().requires_grad_()
    expected = torch.stack([by_hand(m, n) for m, n in zip(a, COUNTS)])
    weights = torch.linspace(1, 2, expected.numel(), dtype=torch.float64).view_as(expected)
    slopes = torch.autograd.grad((expected * weights).sum(), a)[0]

    run = {
        "plain": program,
        # Another body around it, through which the refusal must not go.
        "nested": lambda m, n: tower.fori_loop(0, 1, lambda _, s: program(m, n) + 0 * s, torch.zeros_like(expected[0])),
        "checkpoint": lambda m, n: tower.checkpoint(lambda x: program(x, n))(m),
    }[around]
    assert torch.allclose(tower.vmap(run)(MATRICES, COUNTS), expected.detach())
    loss = lambda m: (tower.vmap(run)(m, COUNTS) * weights).sum()
    assert torch.allclose(tower.grad(loss)(MATRICES), slopes)
    tangent = tower.jvp(loss, (MATRICES,), (torch.ones_like(MATRICES),))[1]
    assert torch.allclose(tangent, slopes.sum())


def test_what_the_operator_refuses_for_an_example_that_goes_on_is_raised_as_it_is():
    def step(state):
        return torch.linalg.solve(state, torch.eye(2, dtype=state.dtype)) * 0

    run = tower.vmap(lambda m, n: tower.while_loop(lambda s: s[0, 0] < n, step, m))
    with pytest.raises(torch.linalg.LinAlgError, match="singular") as raised:
        run(torch.zeros(3, 2, 2, dtype=torch.float64), torch.tensor([0.0, 1.0, 2.0]))
    assert any(entry.name == "step" for entry in raised.traceback)


def test_what_the_user_raises_in_a_step_is_raised_at_once():
    made = []

    def step(state):
        made.append(state)
        raise ValueError("mine")

    with pytest.raises(ValueError, match="mine"):
        tower.vmap(lambda n: tower.while_loop(lambda s: s > 1, step, n))(COUNTS)
    assert len(made) == 1
