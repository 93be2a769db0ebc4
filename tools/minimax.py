"""Coefficients of the polynomials in src/numbers (numbers/functions.h): python tools/minimax.py [words], with mpmath.

With words, of those whose names have them all.

Each is a weighted least-squares fit at Chebyshev's nodes, in 60 digits, which comes within a factor of about two of the
best polynomial. Coefficients are rounded one after the other, and those that follow are fitted to what is left."""

import struct
import sys

from mpmath import mp, mpf

mp.dps = 60


def single(c):
    return struct.unpack("f", struct.pack("f", c))[0]


def fit(function, degree, least, most, weight=lambda x: 1, first=(), rounded=float):
    """function(x) as a sum of coefficients times powers of x, and log2 of the greatest error times weight."""
    coefficients = [mpf(c) for c in first]

    def lacks(x):
        return function(x) - sum(c * x**k for k, c in enumerate(coefficients))

    while len(coefficients) <= degree:
        known, unknown = len(coefficients), degree + 1 - len(coefficients)
        count = 2 * unknown + 4
        nodes = [
            (least + most) / 2 + (most - least) / 2 * mp.cos((2 * i + 1) * mp.pi / (2 * count)) for i in range(count)
        ]
        powers, values = mp.matrix(count, unknown), mp.matrix(count, 1)
        for i, x in enumerate(nodes):
            for j in range(unknown):
                powers[i, j] = weight(x) * x ** (known + j)
            values[i] = weight(x) * lacks(x)
        coefficients.append(mpf(rounded(float(mp.lu_solve(powers.T * powers, powers.T * values)[0]))))
    places = [least + (most - least) * mpf(i) / 400 for i in range(401)]
    return [float(c) for c in coefficients], float(mp.log(max(abs(weight(x) * lacks(x)) for x in places), 2))


def show(what, *arguments, **named):
    if not all(word in what.split() for word in sys.argv[1:]):
        return
    coefficients, error = fit(*arguments, **named)
    print(f"{what}: 2^{error:.1f}\n  " + ", ".join(c.hex() for c in coefficients))


# Near zero, where formulas are 0 / 0, a few terms of the series.
def of_exp(r):  # (e^r - 1 - r) / r²
    return (mp.expm1(r) - r) / r**2 if abs(r) > 1e-15 else mpf(1) / 2 + r / 6 + r**2 / 24


def of_log(z):  # of s², where log((1 + s) / (1 - s)) = 2 s + s z of_log(z)
    s = mp.sqrt(z)
    return (2 * mp.atanh(s) / s - 2) / z if z > 1e-15 else mpf(2) / 3 + z * 2 / 5 + z**2 * 2 / 7


def of_log1p(f):  # where log(1 + f) = f + f² of_log1p(f)
    return (mp.log1p(f) - f) / f**2 if abs(f) > 1e-15 else mpf(-1) / 2 + f / 3 - f**2 / 4


def of_log_rest(z):
    return (of_log(z) - mpf(2) / 3) / z if z > 1e-15 else mpf(2) / 5 + z * 2 / 7 + z**2 * 2 / 9


def of_odd(function, third, fifth):  # of x², where function(x) = x + x³ of_odd(x²)
    return lambda z: (function(mp.sqrt(z)) / mp.sqrt(z) - 1) / z if z > 1e-15 else third + z * fifth


def of_cos(z):  # of x², where cos x = 1 - z / 2 + z² of_cos(z)
    return (mp.cos(mp.sqrt(z)) - 1 + z / 2) / z**2 if z > 1e-12 else mpf(1) / 24 - z / 720 + z**2 / 40320


def of_sin_rest(z):  # of x², where sin x = x - x³ / 6 + x⁵ of_sin_rest(z)
    if z < 1e-12:
        return mpf(1) / 120 - z / 5040
    return ((mp.sin(mp.sqrt(z)) / mp.sqrt(z) - 1) / z + mpf(1) / 6) / z


def of_exp2(r):  # (2^r - 1) / r
    return mp.expm1(r * mp.log(2)) / r if r else mp.log(2)


def of_sinh(z):  # of x², where sinh x = x + x³ of_sinh(z)
    return (mp.sinh(mp.sqrt(z)) / mp.sqrt(z) - 1) / z if z > 1e-15 else mpf(1) / 6 + z / 120


def of_cosh(z):  # of x², where cosh x = 1 + z of_cosh(z)
    return (mp.cosh(mp.sqrt(z)) - 1) / z if z > 1e-15 else mpf(1) / 2 + z / 24


def of_erf(z):  # of x², where erf x = x + x of_erf(z)
    slope = 2 / mp.sqrt(mp.pi)
    return mp.erf(mp.sqrt(z)) / mp.sqrt(z) - 1 if z > 1e-20 else slope - 1 - z * slope / 3


def erfcx(x):
    return mp.erfc(x) * mp.exp(x * x)


def of_erfc(q):  # of (x − 4) / (x + 4), where erfc x = e^(−x²) (middle_of_erfc + of_erfc(q)) / (1 + 2 x)
    x = 4 * (1 + q) / (1 - q)
    return (1 + 2 * x) * erfcx(x) - middle_of_erfc


middle_of_erfc = mpf(float.fromhex("0x1.3ba5916e9fd7fp+0"))


def of_erfc_single(t):  # of 1 / (1 + x / 2), where erfc x = e^(−x²) t of_erfc(t)
    return erfcx(2 / t - 2) / t


def of_lgamma(u):  # where lgamma(2 + u) = u (1 − γ + u ((ζ(2) − 1) / 2 + u of_lgamma(u)))
    if abs(u) < 1e-12:
        return (1 - mp.zeta(3)) / 3 + u * (mp.zeta(4) - 1) / 4
    return ((mp.loggamma(2 + u) / u - (1 - mp.euler)) / u - (mp.zeta(2) - 1) / 2) / u


def of_stirling(w):  # of 1 / x², where lgamma x = (x − ½) (log x − 1) + (log 2π − 1) / 2 + of_stirling(w) / x
    if w == 0:
        return mpf(1) / 12
    x = 1 / mp.sqrt(w)
    return x * (mp.loggamma(x) - (x - mpf(1) / 2) * (mp.log(x) - 1) - (mp.log(2 * mp.pi) - 1) / 2)


half = mpf("0.5001")
half_log = mp.log(2) / 2 * mpf("1.0001")
show("exp", of_exp, 9, -half_log, half_log, lambda r: r * r)
show("exp as a sum of two", of_exp, 10, -half_log, half_log, lambda r: r * r, (0.5,))
show("exp, float32 in float64", of_exp, 5, -half_log, half_log, lambda r: r * r)
show("exp, float32", of_exp, 4, -half_log, half_log, lambda r: r * r)
greatest = ((mp.sqrt(2) - 1) / (mp.sqrt(2) + 1)) ** 2 * mpf("1.0001")
show("log", of_log, 6, mpf(0), greatest, lambda z: z / 2)
show("log, float32 in float64", of_log, 3, mpf(0), greatest, lambda z: z / 2)
show("log, float32", of_log, 2, mpf(0), greatest, lambda z: z / 2)
show("log1p, float32", of_log1p, 9, -half / 2, half, lambda f: f, (-0.5,), rounded=single)
show("log in pow", of_log_rest, 7, mpf(0), greatest, lambda z: z * z / 2)
eighth = (mp.pi / 4) ** 2 * mpf("1.001")
sin, asin, atan = (
    of_odd(mp.sin, mpf(-1) / 6, mpf(1) / 120),
    of_odd(mp.asin, mpf(1) / 6, mpf(3) / 40),
    of_odd(mp.atan, mpf(-1) / 3, mpf(1) / 5),
)
show("sin", sin, 5, mpf(0), eighth, lambda z: z)
show("sin, float32 in float64", sin, 2, mpf(0), eighth, lambda z: z)
show("cos", of_cos, 5, mpf(0), eighth, lambda z: z * z)
show("cos, float32 in float64", of_cos, 2, mpf(0), eighth, lambda z: z * z)
show("sin in lgamma", of_sin_rest, 6, mpf(0), eighth, lambda z: z**2)
show("cos in lgamma", of_cos, 6, mpf(0), eighth, lambda z: z**2)
show("atan", atan, 20, mpf(0), mpf(1), lambda z: z)
show("asin", asin, 12, mpf(0), mpf(1) / 4, lambda z: z)
show("sin of half a turn, float32 in float64", sin, 4, mpf(0), (mp.pi / 2) ** 2, lambda z: z)
show("atan, float32", atan, 8, mpf(0), mpf(1), lambda z: z, rounded=single)
show("asin, float32", asin, 4, mpf(0), mpf(1) / 4, lambda z: z, rounded=single)
show("exp2, float32", of_exp2, 5, -half, half, lambda r: r, rounded=single)
show("sinh, float32 in float64", of_sinh, 2, mpf(0), half_log**2, lambda z: z)
show("cosh, float32 in float64", of_cosh, 3, mpf(0), half_log**2, lambda z: z)
show("erf", of_erf, 12, mpf(0), mpf(1))
show("erf, float32 in float64", of_erf, 6, mpf(0), mpf(1))
show("erfc", of_erfc, 22, (mpf("0.64") - 4) / (mpf("0.64") + 4), (mpf("27.5") - 4) / (mpf("27.5") + 4))
show("erfc, float32 in float64", of_erfc_single, 8, 1 / mpf(6), mpf(2) / 3)
show("lgamma", of_lgamma, 16, -half, half, lambda u: u**2)
show("lgamma from 6", of_stirling, 9, mpf(0), mpf(1) / 36)
