#!/usr/bin/env python3
"""The functions of bench/native.cpp by jax.jit, called from Python on one CPU: `jax_functions.py FOLDER [NAME]` writes
FOLDER/jax_times, a line of microseconds and a row's name for each, and what they give as float64, FOLDER/jax_0, … in
the same order. FOLDER has the perceptron's weights and the material's points. Of NAME, only rows that have it in
theirs."""

import os
import pathlib
import sys
import time

os.sched_setaffinity(0, {min(os.sched_getaffinity(0))})
os.environ["XLA_FLAGS"] = "--xla_cpu_multi_thread_eigen=false"
sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[1]))

import numpy as np  # noqa: E402

from compile import libraries, rows  # noqa: E402

ROUNDS, SECONDS = 7, 0.2  # a round lasts about that long


def newton(folder, lib, points, of):
    """Ten corrections, a call each."""
    numbers = np.fromfile(folder / f"points_{points}")
    sizes = np.cumsum([7, 6, 1, 6]) * points
    x, strain, duration, stress, plastic = np.split(numbers, sizes)
    given = [strain.reshape(points, 6), duration, stress.reshape(points, 6), plastic]
    (row,) = (r for r in rows.newton(np.random.RandomState(7), points) if r.name.endswith(of))
    step = lib.compile(row.make(lib))
    given = [lib.array(g) for g in given]
    start = lib.array(x.reshape(points, 7))

    def corrections():
        x = start
        for _ in range(rows.CORRECTIONS):
            x, _ = step(x, *given)
        return [x]

    return corrections


def perceptron(folder, lib):
    weights, parts, first = np.fromfile(folder / "weights"), [], 0
    for shape in (64, 3), (64,), (64, 64), (64,), (64, 64), (64,), (3, 64), (3,):
        parts.append(lib.array(weights[first : first + np.prod(shape)].reshape(shape)))
        first += np.prod(shape)

    def network(x):
        for k in range(0, len(parts), 2):
            x = parts[k] @ x + parts[k + 1]
            x = lib.tanh(x) if k + 2 < len(parts) else x
        return x

    # By columns, as bench/native.cpp has them.
    f = lib.compile(lambda x: (network(x), lib.jacfwd(network)(x).T, lib.jacfwd(lib.jacfwd(network))(x).T))
    x = lib.array(np.array([0.3, -0.7, 0.5]))
    return lambda: f(x)


JOINTS = 7


def torques(lib, angles, speeds, accelerations):
    """As in arm.h."""

    def link(i):
        return 4 - 0.4 * i, 0.3 - 0.02 * i, 0.12 - 0.01 * i, [0.05 - 0.004 * i, 0.04 - 0.003 * i, 0.02 - 0.002 * i]

    def rotation(i):
        c, s, sign = lib.cos(angles[i]), lib.sin(angles[i]), 1.0 if i % 2 == 0 else -1.0
        return lib.array([[c, -s, 0.0], [0.0, 0.0, -sign], [sign * s, sign * c, 0.0]])

    def along(length):
        return lib.array([0, 0, length])

    cross, axis = lib.cross, along(1.0)
    turning = turning_more = offset = along(0.0)
    moving_more = along(9.81)
    turns, forces, moments = [], [], []
    for i in range(JOINTS):
        mass, length, centre, inertia = link(i)
        turn, own, centre, inertia = rotation(i), axis * speeds[i], along(centre), lib.array(inertia)
        moving_more = turn.T @ (moving_more + cross(turning_more, offset) + cross(turning, cross(turning, offset)))
        before = turn.T @ turning
        turning_more = turn.T @ turning_more + axis * accelerations[i] + cross(before, own)
        turning = before + own
        forces.append(mass * (moving_more + cross(turning_more, centre) + cross(turning, cross(turning, centre))))
        moments.append(inertia * turning_more + cross(turning, inertia * turning) + cross(centre, forces[-1]))
        turns.append(turn)
        offset = along(length)
    result, force, moment = [], None, None
    for i in reversed(range(JOINTS)):
        if force is None:
            force, moment = forces[i], moments[i]
        else:
            carried = turns[i + 1] @ force
            moment = moments[i] + turns[i + 1] @ moment + cross(along(link(i)[1]), carried)
            force = forces[i] + carried
        result.insert(0, moment[2])
    return lib.array(result)


def arm(folder, lib):
    state = lib.array(np.sin(1.3 * np.arange(1, 15)))
    accelerations = lib.array(np.cos(np.arange(1.0, 8.0)))

    def effort(z):
        return (torques(lib, z[:JOINTS], z[JOINTS:], accelerations) ** 2).sum() / 2

    f = lib.compile(lambda z: (lib.grad(effort)(z), lib.jacfwd(lib.grad(effort))(z)))
    return lambda: f(state)


def fastest(lib, call):
    """Microseconds of a call."""
    results = lib.ready(call())
    calls, best = 1, float("inf")
    for _ in range(ROUNDS):
        start = time.perf_counter()
        for _ in range(calls):
            lib.ready(call())
        seconds = (time.perf_counter() - start) / calls
        best, calls = min(best, seconds), max(1, int(SECONDS / seconds))
    return best * 1e6, results


def main():
    folder, wanted = pathlib.Path(sys.argv[1]), sys.argv[2] if len(sys.argv) > 2 else ""
    lib = libraries.Jax()
    lib.cos, lib.cross = lib.jax.numpy.cos, lib.jax.numpy.cross
    makers = {
        f"Newton, {points} point{'' if points == 1 else 's'}, {of}": (newton, points, of)
        for points in (1, 10_000)
        for of in ("jacfwd", "jacrev")
    }
    makers["perceptron, Jacobian, Hessian"] = (perceptron,)
    makers["arm, gradient and Hessian"] = (arm,)
    lines = []
    for name, (make, *of) in makers.items():
        if wanted not in name:
            continue
        microseconds, results = fastest(lib, make(folder, lib, *of))
        np.concatenate([np.ravel(r) for r in results]).astype(np.float64).tofile(folder / f"jax_{len(lines)}")
        lines.append(f"{microseconds} {name}\n")
    (folder / "jax_times").write_text("".join(lines))


if __name__ == "__main__":
    main()
