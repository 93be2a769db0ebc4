#!/usr/bin/env python3
"""The functions of bench/native.cpp in CasADi, as C: `casadi_functions.py FOLDER` writes newton.c, perceptron.c, arm.c
and system_N.c there, each with a function of that name. FOLDER/weights has the perceptron's weights, float64, row by
row."""

import pathlib
import sys

import casadi
import numpy as np

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[1]))
from compile.rows import Material  # noqa: E402


class Operators:
    """CasADi's under the names that rows have them by."""

    array = staticmethod(casadi.DM)
    dot, expm1, asinh, sqrt, where = casadi.dot, casadi.expm1, casadi.asinh, casadi.sqrt, casadi.if_else

    @staticmethod
    def hstack(parts):
        return casadi.vertcat(*parts)


def newton(name, material=Material):
    """A correction of a material point, and the residual's norm."""
    symbols = [casadi.SX.sym(symbol, size) for symbol, size in zip("x e t s p".split(), (7, 6, 1, 6, 1))]
    r = material(Operators).residual(*symbols)
    corrected = symbols[0] - casadi.solve(casadi.jacobian(r, symbols[0]), r)
    return casadi.Function(name, symbols, [corrected, casadi.norm_2(r)])


def perceptron(name, weights):
    """3-64-64-64-3 with tanh, its Jacobian, and its Hessian, three rows for each result."""
    x = casadi.MX.sym("x", 3)
    y, first = x, 0
    for rows, columns in (64, 3), (64, 64), (64, 64), (3, 64):
        matrix = weights[first : first + rows * columns].reshape(rows, columns)
        bias = weights[first + rows * columns : first + rows * (columns + 1)]
        first += rows * (columns + 1)
        y = casadi.DM(matrix) @ y + casadi.DM(bias)
        y = casadi.tanh(y) if rows == 64 else y
    jacobian = casadi.jacobian(y, x)
    return casadi.Function(name, [x], [y, jacobian, casadi.jacobian(jacobian, x)])


JOINTS = 7


def torques(angles, speeds, accelerations):
    """As in arm.h."""

    def link(i):
        return 4 - 0.4 * i, 0.3 - 0.02 * i, 0.12 - 0.01 * i, [0.05 - 0.004 * i, 0.04 - 0.003 * i, 0.02 - 0.002 * i]

    def rotation(i):
        c, s, sign = casadi.cos(angles[i]), casadi.sin(angles[i]), 1 if i % 2 == 0 else -1
        rows = [[c, -s, 0], [0, 0, -sign], [sign * s, sign * c, 0]]
        return casadi.vertcat(*(casadi.horzcat(*row) for row in rows))

    cross, axis = casadi.cross, casadi.DM([0, 0, 1])
    turning = turning_more = offset = casadi.DM([0, 0, 0])
    moving_more = casadi.DM([0, 0, 9.81])
    turns, forces, moments = [], [], []
    for i in range(JOINTS):
        mass, length, centre, inertia = link(i)
        turn, own = rotation(i), axis * speeds[i]
        moving_more = turn.T @ (moving_more + cross(turning_more, offset) + cross(turning, cross(turning, offset)))
        before = turn.T @ turning
        turning_more = turn.T @ turning_more + axis * accelerations[i] + cross(before, own)
        turning = before + own
        centre, inertia = casadi.DM([0, 0, centre]), casadi.DM(inertia)
        forces.append(mass * (moving_more + cross(turning_more, centre) + cross(turning, cross(turning, centre))))
        moments.append(inertia * turning_more + cross(turning, inertia * turning) + cross(centre, forces[-1]))
        turns.append(turn)
        offset = casadi.DM([0, 0, length])
    result, force, moment = [], None, None
    for i in reversed(range(JOINTS)):
        if force is None:
            force, moment = forces[i], moments[i]
        else:
            carried = turns[i + 1] @ force
            moment = moments[i] + turns[i + 1] @ moment + cross(casadi.DM([0, 0, link(i)[1]]), carried)
            force = forces[i] + carried
        result.insert(0, moment[2])
    return casadi.vertcat(*result)


def arm(name):
    """Gradient and Hessian, by angles and speeds, of half the squared torques."""
    state, accelerations = casadi.SX.sym("z", 2 * JOINTS), casadi.SX.sym("a", JOINTS)
    effort = casadi.sumsqr(torques(state[:JOINTS], state[JOINTS:], accelerations)) / 2
    hessian, gradient = casadi.hessian(effort, state)
    return casadi.Function(name, [state, accelerations], [gradient, casadi.densify(hessian)])


def system(name, size):
    """A dense system of equations, by the one linear solver for any matrix that CasADi writes as C."""
    matrix, sides = casadi.MX.sym("a", size, size), casadi.MX.sym("b", size)
    return casadi.Function(name, [matrix, sides], [casadi.solve(matrix, sides, "qr")])


def main():
    folder = pathlib.Path(sys.argv[1])
    weights = np.fromfile(folder / "weights")
    systems = [system(f"system_{size}", size) for size in (100, 300)]
    for function in newton("newton"), perceptron("perceptron", weights), arm("arm"), *systems:
        generator = casadi.CodeGenerator(f"{function.name()}.c")
        generator.add(function)
        generator.generate(f"{folder}/")


if __name__ == "__main__":
    main()
