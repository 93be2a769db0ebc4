"""The least energy of Hylleraas' wave function, and the variance of its local energy, by quadrature.

    python3 reference.py

In s = r1 + r2, t = r2 - r1, u = r12 all integrals of an S state of helium have three dimensions (Bethe and Salpeter,
"Quantum Mechanics of One- and Two-Electron Atoms", 1957, section 32). Prints what main.cpp compares with.
"""

import math

import numpy as np
from numpy.polynomial.laguerre import laggauss
from numpy.polynomial.legendre import leggauss
from scipy.linalg import eigh
from scipy.optimize import minimize_scalar

# Terms s^i t^j u^k times exp(-zeta s).
TERMS = [(0, 0, 0), (0, 0, 1), (0, 2, 0)]


def nodes(zeta, radial, angular):
    """s, t, u and weights; s by Laguerre's rule for exp(-2 zeta s), u / s and t / u by Legendre's."""
    x, wx = laggauss(radial)
    y, wy = leggauss(angular)
    y, wy = (y + 1) / 2, wy / 2
    # More nodes where electrons meet the nucleus: u / s and t / u near one.
    y, wy = 1 - (1 - y) ** 3, wy * 3 * (1 - y) ** 2
    s, a, b = np.meshgrid(x / (2 * zeta), y, y, indexing="ij")
    u, t = a * s, a * b * s
    w = (wx / (2 * zeta))[:, None, None] * wy[:, None] * wy * s * u
    return s, t, u, w


def parts(term, zeta, s, t, u):
    """Without exp(-zeta s): the term, and its derivatives by s, t, u, ss, tt, uu, su, tu."""
    i, j, k = term

    def power(x, n, order):
        return math.perm(n, order) * x ** max(n - order, 0)

    def of(ds, dt, du):
        # (d/ds)^ds of s^i exp(-zeta s), by the binomial formula.
        along = sum(math.comb(ds, m) * power(s, i, m) * (-zeta) ** (ds - m) for m in range(ds + 1))
        return along * power(t, j, dt) * power(u, k, du)

    first = [(0, 0, 0), (1, 0, 0), (0, 1, 0), (0, 0, 1)]
    second = [(2, 0, 0), (0, 2, 0), (0, 0, 2), (1, 0, 1), (0, 1, 1)]
    return [of(*orders) for orders in first + second]


def ground_state(zeta):
    s, t, u, w = nodes(zeta, 24, 24)
    p = [parts(term, zeta, s, t, u) for term in TERMS]
    rho = s * s - t * t
    n = len(p)
    h, overlap = np.zeros((n, n)), np.zeros((n, n))
    for a in range(n):
        for b in range(n):
            f, fs, ft, fu = p[a][:4]
            g, gs, gt, gu = p[b][:4]
            kinetic = u * rho * (fs * gs + ft * gt + fu * gu)
            kinetic += s * (u * u - t * t) * (fu * gs + gu * fs) + t * (s * s - u * u) * (fu * gt + gu * ft)
            h[a, b] = np.sum(w * (kinetic + (rho - 8 * s * u) * f * g))
            overlap[a, b] = np.sum(w * u * rho * f * g)
    energies, vectors = eigh(h, overlap)
    return energies[0], vectors[:, 0] / vectors[0, 0]


def variance(zeta, c):
    s, t, u, w = nodes(zeta, 40, 120)
    f, fs, ft, fu, fss, ftt, fuu, fsu, ftu = (
        sum(ci * each for ci, each in zip(c, of)) for of in zip(*[parts(term, zeta, s, t, u) for term in TERMS])
    )
    rho = s * s - t * t
    half = fss + ftt + fuu + 4 * (s * fs - t * ft) / rho + 2 * fu / u
    half += 2 * (s * (u * u - t * t) * fsu + t * (s * s - u * u) * ftu) / (u * rho)
    local = (-half / f) - 8 * s / rho + 1 / u
    p = w * u * rho * f * f
    mean = np.sum(p * local) / np.sum(p)
    return mean, np.sum(p * (local - mean) ** 2) / np.sum(p)


best = minimize_scalar(
    lambda zeta: ground_state(zeta)[0], bounds=(1.5, 2.2), method="bounded", options={"xatol": 1e-10}
)
zeta = best.x
energy, c = ground_state(zeta)
mean, spread = variance(zeta, c)
print(f"zeta {zeta:.6f}, coefficients {c[1]:.6f} {c[2]:.6f}")
print(f"energy {energy:.8f}, as a mean of local energies {mean:.6f}; their variance {spread:.5f}")
