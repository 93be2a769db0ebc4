#!/usr/bin/env python3
"""Writes problem.txt, a small problem in the form of Bundle Adjustment in the Large, and reference.csv.

Cameras in a ring look at marks on the walls of a tower, each at those on the walls that face it, with noise of half a
pixel; where they start is off. The reference is the cost that SciPy's least_squares comes to by
MINPACK, half of the sum of squares. Needs NumPy and SciPy.
"""

import pathlib

import numpy as np
from scipy.optimize import least_squares

CAMERAS, MARKS, NOISE = 16, 160, 0.5
HERE = pathlib.Path(__file__).parent


def rotated(axis, points):
    angle = np.linalg.norm(axis, axis=1, keepdims=True)
    unit = axis / angle
    along = (unit * points).sum(1, keepdims=True)
    return points * np.cos(angle) + np.cross(unit, points) * np.sin(angle) + unit * along * (1 - np.cos(angle))


def projected(cameras, points):
    moved = rotated(cameras[:, :3], points) + cameras[:, 3:6]
    flat = -moved[:, :2] / moved[:, 2:]
    square = (flat**2).sum(1, keepdims=True)
    return cameras[:, 6:7] * (1 + square * (cameras[:, 7:8] + cameras[:, 8:9] * square)) * flat


def tower(random):
    """Marks, and which way their walls face: eight walls of a tower that gets narrower, seen from above a star."""
    side = random.integers(0, 8, MARKS)
    height, along = random.uniform(-2, 2, MARKS), random.uniform(-0.5, 0.5, MARKS)
    facing = 2 * np.pi / 8 * (side + 0.5)
    normal = np.stack([np.cos(facing), 0 * facing, np.sin(facing)], 1)
    across = np.stack([-np.sin(facing), 0 * facing, np.cos(facing)], 1)
    size = (1.6 - 0.3 * height)[:, None]
    upwards = np.stack([0 * height, height, 0 * height], 1)
    return size * normal * (1 + 0.3 * (side % 2))[:, None] + size * along[:, None] * across + upwards, normal


def ring(random):
    """Cameras around it. One at distance d, turned by the angle a about the second axis, looks to the middle."""
    angle = 2 * np.pi * np.arange(CAMERAS) / CAMERAS + 0.1
    zero = np.zeros(CAMERAS)
    distance = random.uniform(8, 10, CAMERAS)
    rows = [zero, -angle, zero, zero, zero, -distance, zero + 800, zero - 0.05, zero + 0.01]
    return np.stack(rows, 1) + 0.02 * random.standard_normal((CAMERAS, 9)) * [1, 1, 1, 5, 5, 0, 50, 0.1, 0.1]


def main():
    random = np.random.default_rng(7)
    (marks, normals), cameras = tower(random), ring(random)
    centres = -rotated(-cameras[:, :3], cameras[:, 3:6])
    towards = centres[:, None] - marks
    faces = (towards * normals).sum(2) / np.linalg.norm(towards, axis=2) > 0.35
    camera_of, mark_of = np.nonzero(faces)
    seen = projected(cameras[camera_of], marks[mark_of]) + NOISE * random.standard_normal((len(camera_of), 2))
    seen = seen.round(3)
    off = np.array([0.01, 0.01, 0.01, 0.1, 0.1, 0.1, 5, 0.01, 0.005])
    start = (cameras + off * random.standard_normal(cameras.shape)).round(6)
    marks = (marks + 0.1 * random.standard_normal(marks.shape)).round(6)
    lines = [f"{CAMERAS} {MARKS} {len(seen)}"]
    lines += [f"{c} {m} {u:g} {v:g}" for c, m, (u, v) in zip(camera_of, mark_of, seen)]
    lines += [f"{value:.6g}" for value in np.concatenate([start.ravel(), marks.ravel()])]
    (HERE / "problem.txt").write_text("\n".join(lines) + "\n")

    start, marks = (np.array([float(f"{v:.6g}") for v in t.ravel()]).reshape(t.shape) for t in (start, marks))
    seen = np.array([float(f"{v:g}") for v in seen.ravel()]).reshape(seen.shape)

    def residuals(x):
        all_cameras, points = x[: 9 * CAMERAS].reshape(-1, 9), x[9 * CAMERAS :].reshape(-1, 3)
        return (projected(all_cameras[camera_of], points[mark_of]) - seen).ravel()

    fit = least_squares(
        residuals,
        np.concatenate([start.ravel(), marks.ravel()]),
        method="lm",
        x_scale="jac",
        ftol=1e-14,
        xtol=1e-14,
        gtol=1e-14,
        max_nfev=200_000,
    )
    (HERE / "reference.csv").write_text(f"cost,{fit.cost:.12g}\n")
    print(f"{len(seen)} observations; cost {fit.cost:.12g} after {fit.nfev} evaluations: {fit.message}")


if __name__ == "__main__":
    main()
