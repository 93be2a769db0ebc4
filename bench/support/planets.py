"""The outer Solar System for 100 years by Taylor series of order 20: Tower's integrator (that of examples/planets, in
Python) and heyoka's. Units: astronomical, years of 365 days, the Sun's mass."""

import math
import pathlib
import sys

import numpy as np
import torch
import torch_tower as tower

sys.path.append(str(pathlib.Path(__file__).parents[2] / "examples/planets"))
from solar_system import BODIES, GRAVITY, MASSES, start  # noqa: E402

YEARS, ORDER = 100.0, 20
MOST_OF_ENERGY = 1e-14


def beginnings(count):
    """Positions and velocities, [count, 2, bodies, 3], each within a hundredth of where the bodies were."""
    return start() * (1 + 0.01 * np.random.default_rng(1).uniform(-1, 1, (count, 2, BODIES, 3)))


def energy(y):
    total = 0.5 * np.einsum("b,nbc,nbc->n", MASSES, y[:, 1], y[:, 1])
    for i in range(BODIES):
        for j in range(i + 1, BODIES):
            total -= GRAVITY * MASSES[i] * MASSES[j] / np.linalg.norm(y[:, 0, i] - y[:, 0, j], axis=-1)
    return total


def keeps_energy(before, after):
    change = np.abs(energy(after) / energy(before) - 1).max()
    if not change < MOST_OF_ENERGY:
        raise AssertionError(f"energy changes by {change:.1e}")
    return after


# ---- Tower -----------------------------------------------------------------------------------------------------------


def around(t, places):
    return torch.cat([t[places:], t[:places]])


def slope(y):
    """y' of y = (positions, velocities): each pair of bodies once, as examples/planets/solar_system.h has it."""
    x, weight = y[0], GRAVITY * torch.from_numpy(MASSES)[:, None]
    d = torch.cat([around(x, 1) - x, around(x, 2) - x, x[3:] - x[:3]])
    pull = (d * d).sum(1, keepdim=True).pow(-1.5) * d
    following, second, facing = pull[:6], pull[6:12], pull[12:]
    accelerations = (
        around(weight, 1) * following
        - around(weight * following, 5)
        + around(weight, 2) * second
        - around(weight * second, 4)
        + torch.cat([weight[3:] * facing, -(weight[:3] * facing)])
    )
    return torch.stack([y[1], accelerations])


def step(state):
    y, left = state
    series = [slope(y)]
    while len(series) < ORDER:
        slopes = tower.jet(slope, (y,), (series,), factorial_scaled=False)[1]
        series.append(slopes[-1] / (len(slopes) + 1))
    size = y.abs().amax()
    radii = [(size / series[k - 1].abs().amax()).pow(1 / k) for k in (ORDER - 1, ORDER)]
    h = torch.minimum(torch.minimum(*radii) * math.exp(-2 - 0.7 / (ORDER - 1)), left)
    change = series[-1]
    for term in reversed(series[:-1]):
        change = term + h * change
    return y + h * change, left - h


def by_tower(count):
    """A compiled call, of any number of systems by the time it is returned."""

    def fly(y, years):
        return tower.while_loop(lambda s: s[1] > 0, step, (y, years), max_steps=100_000)[0]

    fly_all = tower.compile(tower.vmap(fly, in_dims=(0, None)), math="fast")
    for few in (8, 16, 8):
        fly_all(torch.from_numpy(beginnings(few)), torch.tensor(1.0, dtype=torch.float64))
    before = beginnings(count)
    given, years = torch.from_numpy(before), torch.tensor(YEARS, dtype=torch.float64)
    keeps_energy(before, fly_all(given, years).numpy())
    return lambda: fly_all(given, years)


# ---- heyoka ----------------------------------------------------------------------------------------------------------


def by_heyoka(count):
    """In its batch mode, with code of loops (compact mode), which is the faster here."""
    import heyoka

    lanes = heyoka.recommended_simd_size()
    system = heyoka.model.nbody(BODIES, masses=MASSES, Gconst=GRAVITY)
    flight = heyoka.taylor_adaptive_batch(system, np.zeros((6 * BODIES, lanes)), compact_mode=True)
    before = beginnings(count)
    states = before.transpose(0, 2, 1, 3).reshape(count // lanes, lanes, 6 * BODIES).transpose(0, 2, 1).copy()

    def run():
        ends = np.empty_like(states)
        for state, end in zip(states, ends):
            flight.state[:] = state
            flight.set_time(0.0)
            flight.propagate_until(YEARS)
            end[:] = flight.state
        return ends.transpose(0, 2, 1).reshape(count, BODIES, 2, 3).transpose(0, 2, 1, 3)

    keeps_energy(before, run())
    return run
