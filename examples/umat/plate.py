#!/usr/bin/env python3
"""A plate with a hole in CalculiX, of the material of libUMAT.so and of CalculiX's own: `plate.py CCX FOLDER`
(script/umat_check calls it). Exits non-zero where they differ, or where equilibrium does not converge quadratically."""

import math
import os
import pathlib
import subprocess
import sys

RADIUS, HALF, THICKNESS = 1.0, 5.0, 0.5  # of a quarter of the plate, in mm
AROUND, OUTWARDS = 12, 10  # elements; one through the thickness
PULLED, INCREMENTS = 0.01, 5  # mm; of elastic and hardening plates, half as much elastic
YOUNG, POISSON, YIELD, SCALE = 200000.0, 0.3, 250.0, 0.002

CONTROLS = """*STEP, INC=100
*STATIC, DIRECT
{increment}, 1.
*CONTROLS, PARAMETERS=FIELD
{tolerance}, 1.
*BOUNDARY
PULLED, 1, 1, {pulled}
*NODE PRINT, NSET=ALL, FREQUENCY=1000
U
*EL PRINT, ELSET=PLATE, FREQUENCY=1000
S
*END STEP
"""


def mesh():
    """Nodes by layers of thickness, rings and angles, and elements of eight of them."""

    def place(ring, angle):
        turned = math.pi / 2 * angle / AROUND
        c, s = math.cos(turned), math.sin(turned)
        edge = HALF / max(c, s)
        r = RADIUS + (edge - RADIUS) * (ring / OUTWARDS) ** 1.5
        return r * c, r * s

    def number(layer, ring, angle):
        return 1 + angle + (AROUND + 1) * (ring + (OUTWARDS + 1) * layer)

    every = [(k, i, j) for k in (0, 1) for i in range(OUTWARDS + 1) for j in range(AROUND + 1)]
    nodes = {number(k, i, j): (*place(i, j), THICKNESS * k) for k, i, j in every}
    elements = []
    for i in range(OUTWARDS):
        for j in range(AROUND):
            around = [(i, j), (i + 1, j), (i + 1, j + 1), (i, j + 1)]
            elements.append([number(k, *corner) for k in (0, 1) for corner in around])
    return nodes, elements


def input_of(material, pulled, tolerance):
    nodes, elements = mesh()
    near = 1e-9
    sets = {
        "LEFT": [n for n, p in nodes.items() if abs(p[0]) < near],
        "BELOW": [n for n, p in nodes.items() if abs(p[1]) < near],
        "BEHIND": [n for n, p in nodes.items() if abs(p[2]) < near],
        "PULLED": [n for n, p in nodes.items() if abs(p[0] - HALF) < near],
        "ALL": list(nodes),
    }
    text = "*NODE\n" + "".join(f"{n}, {x:.12g}, {y:.12g}, {z:.12g}\n" for n, (x, y, z) in nodes.items())
    text += "*ELEMENT, TYPE=C3D8, ELSET=PLATE\n"
    text += "".join(f"{k + 1}, {', '.join(map(str, element))}\n" for k, element in enumerate(elements))
    for name, members in sets.items():
        text += f"*NSET, NSET={name}\n" + "".join(f"{n},\n" for n in members)
    text += material + "*BOUNDARY\nLEFT, 1, 1\nBELOW, 2, 2\nBEHIND, 3, 3\n"
    return text + CONTROLS.format(increment=1 / INCREMENTS, tolerance=tolerance, pulled=pulled)


def towers(yield_stress):
    name = "@ABAQUS_UMAT"  # the function umat_ of libUMAT.so
    return (
        f"*MATERIAL, NAME={name}\n*USER MATERIAL, CONSTANTS=4\n{YOUNG}, {POISSON}, {yield_stress}, {SCALE}\n"
        f"*DEPVAR\n1\n*SOLID SECTION, ELSET=PLATE, MATERIAL={name}\n"
    )


def calculixs(hardens):
    text = f"*MATERIAL, NAME=STEEL\n*ELASTIC\n{YOUNG}, {POISSON}\n"
    if hardens:
        # σ₀ √(1 + p / p₀), piecewise linear: near the beginning it bends most.
        plastic = [0.05 * (k / 180) ** 2 for k in range(181)]
        text += "*PLASTIC\n" + "".join(f"{YIELD * math.sqrt(1 + p / SCALE):.10g}, {p:.10g}\n" for p in plastic)
    return text + "*SOLID SECTION, ELSET=PLATE, MATERIAL=STEEL\n"


class Run:
    def __init__(self, ccx, folder, name, material, pulled, tolerance=1e-6):
        (folder / f"{name}.inp").write_text(input_of(material, pulled, tolerance))
        environment = {**os.environ, "OMP_NUM_THREADS": "1"}
        paths = [str(folder), os.environ.get("LD_LIBRARY_PATH", "")]
        environment["LD_LIBRARY_PATH"] = ":".join(filter(None, paths))
        done = subprocess.run([ccx, name], cwd=folder, env=environment, capture_output=True, text=True)
        (folder / f"{name}.log").write_text(done.stdout + done.stderr)
        if done.returncode != 0 or "Job finished" not in done.stdout:
            sys.exit(f"CalculiX failed: {folder / name}.log")
        # Of each increment, the largest residual force after each iteration, in % of the mean force.
        self.residuals = []
        for numbers in map(str.split, (folder / f"{name}.cvg").read_text().splitlines()):
            if not numbers or not numbers[0].isdigit():
                continue
            if numbers[3] == "1":
                self.residuals.append([])
            self.residuals[-1].append(float(numbers[5]))
        self.displacements, self.stresses = self.read(folder / f"{name}.dat")

    @staticmethod
    def read(path):
        """The last displacements and stresses of a .dat file."""
        values, block = {}, None
        for line in path.read_text().splitlines():
            numbers = line.split()
            if line.lstrip().startswith(("displacements", "stresses")):
                block = values[numbers[0]] = []
            elif block is not None and numbers and numbers[0].isdigit():
                block.extend(map(float, numbers[1 if len(numbers) == 4 else 2 :]))
        return values["displacements"], values["stresses"]


def apart(a, b):
    return math.dist(a, b) / math.hypot(*b)


def is_quadratic(residuals, floor):
    """Whether residuals that are small, of the first, each fall to about the square of that; and how many there are."""
    falls = [(b / residuals[0], a / residuals[0]) for b, a in zip(residuals, residuals[1:]) if a > floor]
    falls = [(before, after) for before, after in falls if before < 0.2]
    return all(after < 10 * before**2 for before, after in falls), len(falls)


def main():
    ccx, folder = sys.argv[1], pathlib.Path(sys.argv[2]).resolve()
    failed = 0

    def check(holds, text):
        nonlocal failed
        failed += not holds
        print(f"{'ok' if holds else 'FAILED':>8}  {text}")

    elastic = Run(ccx, folder, "elastic_tower", towers(1e9), PULLED / 2)
    own = Run(ccx, folder, "elastic_calculix", calculixs(hardens=False), PULLED / 2)
    by_u, by_s = apart(elastic.displacements, own.displacements), apart(elastic.stresses, own.stresses)
    check(by_u < 1e-6 and by_s < 1e-6, f"elastic: displacements and stresses as CalculiX's own: {by_u:.1e}, {by_s:.1e}")

    plastic = Run(ccx, folder, "hardening_tower", towers(YIELD), PULLED * 2)
    own = Run(ccx, folder, "hardening_calculix", calculixs(hardens=True), PULLED * 2)
    by_u, by_s = apart(plastic.displacements, own.displacements), apart(plastic.stresses, own.stresses)
    largest = max(map(abs, plastic.stresses))
    check(largest > YIELD * 1.05, f"the plate flows: a stress of {largest:.0f} MPa")
    check(by_u < 1e-3 and by_s < 1e-3, f"hardening: as CalculiX's own, by a table of 180 lines: {by_u:.1e}, {by_s:.1e}")

    precise = Run(ccx, folder, "hardening_precise", towers(YIELD), PULLED * 2, tolerance=1e-11)
    print("\nlargest residual force after each iteration, in % of the mean force, by increments")
    seen = 0
    for k, residuals in enumerate(precise.residuals):
        print(f"{k + 1:>8} ", *(f"{r:.1e}" for r in residuals))
        quadratic, steps = is_quadratic(residuals, floor=1e-7)
        seen += steps
        check(quadratic, f"increment {k + 1} converges quadratically")
    check(seen > 0, f"{seen} iterations were held to that")
    return failed != 0


if __name__ == "__main__":
    sys.exit(main())
