#!/usr/bin/env python3
"""An optimal control problem of 50 stages, which CasADi's Ipopt solves: an arm of two joints, swung up within a second.
Its stage, a step of Runge-Kutta's method and what it costs, is Tower's exported function, or CasADi's own expression:
in CasADi's virtual machine, or as C, by gcc with -O3 -march=native. `script/bench native/nlp.py [ROUNDS]`; it fails
where solutions differ. What it prints is the least of the rounds."""

import pathlib
import subprocess
import sys
import tempfile
import time

import casadi
import numpy as np
import torch
from torch_tower import compile, export_c

STAGES, STEP = 50, 0.02
GRAVITY, LENGTHS, MASSES = 9.81, (0.5, 0.4), (2.0, 1.5)


def accelerations(sin, cos, angles, speeds, torques):
    """Of two links with their masses at the ends; `angles` from the vertical, the second from the first link."""
    (l1, l2), (m1, m2) = LENGTHS, MASSES
    (q1, q2), (w1, w2), (t1, t2) = angles, speeds, torques
    c2, s2 = cos(q2), sin(q2)
    a = (m1 + m2) * l1**2 + m2 * l2**2 + 2 * m2 * l1 * l2 * c2
    b = m2 * l2**2 + m2 * l1 * l2 * c2
    d = m2 * l2**2
    h = m2 * l1 * l2 * s2
    lifted = m2 * GRAVITY * l2 * sin(q1 + q2)
    r1 = t1 + h * (2 * w1 * w2 + w2 * w2) - (m1 + m2) * GRAVITY * l1 * sin(q1) - lifted
    r2 = t2 - h * w1 * w1 - lifted
    determinant = a * d - b * b
    return (d * r1 - b * r2) / determinant, (a * r2 - b * r1) / determinant


def stage(sin, cos, join, state, torques):
    """The state after a step, and what the stage costs."""

    def rate(z):
        return join([z[2], z[3], *accelerations(sin, cos, (z[0], z[1]), (z[2], z[3]), (torques[0], torques[1]))])

    k1 = rate(state)
    k2 = rate(state + STEP / 2 * k1)
    k3 = rate(state + STEP / 2 * k2)
    k4 = rate(state + STEP * k3)
    cost = STEP * (torques[0] * torques[0] + torques[1] * torques[1]) / 100
    return state + STEP / 6 * (k1 + 2 * k2 + 2 * k3 + k4), cost


def of_tower(folder):
    """The stage as an external function, and how long it took to make it."""
    start = time.perf_counter()
    f = compile(lambda x, u: stage(torch.sin, torch.cos, torch.stack, x, u))
    f(torch.rand(4, dtype=torch.float64), torch.rand(2, dtype=torch.float64))
    export_c(f, "stage", folder=folder, abi="casadi", argument_names=["x", "u"], result_names=["next", "cost"])
    command = "cc -O2 -shared -fPIC stage.c stage_kernels.o -o libstage.so -lm"
    subprocess.run(command.split(), cwd=folder, check=True)
    return casadi.external("stage", str(folder / "libstage.so")), time.perf_counter() - start


def of_casadi():
    x, u = casadi.SX.sym("x", 4), casadi.SX.sym("u", 2)
    return casadi.Function("stage", [x, u], stage(casadi.sin, casadi.cos, lambda z: casadi.vertcat(*z), x, u))


def solver_of(f, options):
    """From hanging to standing, both at rest: states and torques of all stages are unknown."""
    states, torques = casadi.MX.sym("x", 4, STAGES + 1), casadi.MX.sym("u", 2, STAGES)
    following, costs = f.map(STAGES)(states[:, :-1], torques)
    gaps = casadi.vec(following - states[:, 1:])
    problem = {
        "x": casadi.veccat(states, torques),
        "f": casadi.sum2(costs),
        "g": casadi.vertcat(states[:, 0], states[:, -1] - casadi.DM([np.pi, 0, 0, 0]), gaps),
    }
    ipopt = {"ipopt.print_level": 0, "print_time": 0, "record_time": True, "ipopt.sb": "yes"}
    return casadi.nlpsol("arm", "ipopt", problem, {**ipopt, **options})


def solved(solver):
    """The solution, the iterations, seconds in evaluations of the problem's functions, and all seconds."""
    start_states = np.linspace([0, 0, 0, 0], [np.pi, 0, 0, 0], STAGES + 1).T
    first = np.concatenate([start_states.T.ravel(), np.zeros(2 * STAGES)])
    start = time.perf_counter()
    solution = solver(x0=first, lbg=0, ubg=0)
    seconds = time.perf_counter() - start
    stats = solver.stats()
    assert stats["success"], stats["return_status"]
    evaluations = sum(t for name, t in stats.items() if name.startswith("t_proc_nlp_"))
    return np.array(solution["x"]).ravel(), stats["iter_count"], evaluations, seconds


def main():
    rounds = int(sys.argv[1]) if len(sys.argv) > 1 else 10
    with tempfile.TemporaryDirectory() as name:
        external, made = of_tower(pathlib.Path(name))
        shell = {"compiler": "gcc", "flags": ["-O3", "-march=native"]}
        start = time.perf_counter()
        as_c = solver_of(of_casadi(), {"jit": True, "compiler": "shell", "jit_options": shell})
        built = time.perf_counter() - start
        solvers = {
            "Tower's function": (solver_of(external, {}), made),
            "CasADi": (solver_of(of_casadi(), {}), 0.0),
            "CasADi, as C": (as_c, built),
        }
        results = {kind: [] for kind in solvers}
        for _ in range(rounds):
            for kind, (solver, _) in solvers.items():
                results[kind].append(solved(solver))
    expected = results["CasADi"][0]
    print("stage                evaluations, ms    all, ms    iterations    made in, s")
    for kind, runs in results.items():
        difference = np.abs(runs[0][0] - expected[0]).max()
        assert difference < 1e-6, f"{kind} DIFFERS by {difference:.1e}"
        evaluations, seconds = min(r[2] for r in runs), min(r[3] for r in runs)
        print(f"{kind:20s}{1e3 * evaluations:16.2f}{1e3 * seconds:11.2f}{runs[0][1]:14d}{solvers[kind][1]:14.2f}")
    least = {kind: min(r[2] for r in runs) for kind, runs in results.items()}
    tower = least["Tower's function"]
    print(f"evaluations, Tower : CasADi {tower / least['CasADi']:.2f}, : as C {tower / least['CasADi, as C']:.2f}")


if __name__ == "__main__":
    main()
