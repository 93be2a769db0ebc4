"""Writes reference.csv: orbits around an oblate mass, for which there is no closed form, by SciPy's DOP853.

python3 reference.py > reference.csv
"""

import numpy as np
import scipy
from scipy.integrate import solve_ivp

OBLATENESS, DURATION = 0.01, 10.0


def slope(t, y):
    r2 = y[0] ** 2 + y[1] ** 2
    pull = r2**-1.5 * (1 + OBLATENESS / r2)
    return [y[2], y[3], -pull * y[0], -pull * y[1]]


print(f"# SciPy {scipy.__version__}, NumPy {np.__version__}: solve_ivp, DOP853, rtol 1e-13, atol 1e-14")
print("eccentricity,x,y,vx,vy")
for e in np.linspace(0, 0.6, 13):
    start = [1 - e, 0, 0, np.sqrt((1 + e) / (1 - e))]
    end = solve_ivp(slope, (0, DURATION), start, method="DOP853", rtol=1e-13, atol=1e-14).y[:, -1]
    print(",".join(f"{value:.15e}" for value in (e, *end)))
