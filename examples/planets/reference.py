"""Writes reference.csv: where the outer Solar System is after 100 years, by heyoka.

python3 reference.py > reference.csv
"""

import pathlib
import re

import heyoka
import numpy as np

text = (pathlib.Path(__file__).parent / "solar_system.h").read_text()
numbers = re.search(r"day =.*?\{(.*?)\},", text, re.S).group(1)
day = np.array([float(n) for n in re.findall(r"[-+]?\d+\.\d+e[-+]\d+", numbers)]).reshape(2, 6, 3)
masses = np.array([1.00000597682, 1 / 1047.355, 1 / 3501.6, 1 / 22869.0, 1 / 19314.0, 7.4074074e-09])
y = np.stack([day[0], day[1] * 365])
y -= np.einsum("b,kbc->kc", masses, y)[:, None] / masses.sum()
system = heyoka.model.nbody(6, masses=masses, Gconst=0.01720209895**2 * 365**2)
flight = heyoka.taylor_adaptive(system, np.concatenate([y[0], y[1]], axis=1).ravel(), compact_mode=True)
flight.propagate_until(100.0)

print(f"# heyoka {heyoka.__version__}, taylor_adaptive: position and velocity of each body")
print("x,y,z,vx,vy,vz")
for body in flight.state.reshape(6, 6):
    print(",".join(f"{number:.16e}" for number in body))
