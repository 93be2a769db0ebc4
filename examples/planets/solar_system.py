"""The outer Solar System of solar_system.h, for the programs beside it that hold heyoka against the example."""

import pathlib
import re

import numpy as np

BODIES = 6
GRAVITY = 0.01720209895**2 * 365**2
MASSES = np.array([1.00000597682, 1 / 1047.355, 1 / 3501.6, 1 / 22869.0, 1 / 19314.0, 7.4074074e-09])


def start():
    """Positions and velocities, [2, bodies, 3]; the centre of mass is at rest, at 0."""
    header = pathlib.Path(__file__).with_suffix(".h").read_text(encoding="utf-8")
    numbers = re.search(r"day =.*?\{(.*?)\},", header, re.S).group(1)
    day = np.array([float(each) for each in re.findall(r"[-+]?\d+\.\d+e[-+]\d+", numbers)]).reshape(2, BODIES, 3)
    y = np.stack([day[0], day[1] * 365])
    return y - np.einsum("b,kbc->kc", MASSES, y)[:, None] / MASSES.sum()
