"""Random programs of folds, moves and look-ups along any dimension, in other orders, compiled against eager."""

import random

import pytest
import torch
import torch_tower as tt

PROGRAMS, SEEDS = 12, 5
SHAPES = [(3, 4, 50), (7, 64), (5, 20, 16), (40, 3, 12), (300, 32), (2, 3, 200), (600,), (128, 20)]
STEPS = {
    "mul": lambda x, d, index: x * x.sin(),
    "mean": lambda x, d, index: x.mean(d),
    "sum": lambda x, d, index: x.sum(d) * 0.1,
    "center": lambda x, d, index: x - x.mean(d, keepdim=True),
    "softmax": lambda x, d, index: torch.softmax(x, d),
    "amax": lambda x, d, index: x - x.amax(d, keepdim=True),
    "var": lambda x, d, index: x * x.var(d, keepdim=True, correction=0),
    "norm": lambda x, d, index: x / (1 + (x * x).sum(d, keepdim=True).sqrt()),
    "cat": lambda x, d, index: torch.cat([x, x * 2], d),
    "roll": lambda x, d, index: x.roll(1, d),
    "pad": lambda x, d, index: torch.nn.functional.pad(x, (1, 2)),
    "flip": lambda x, d, index: x.flip(d),
    "index": lambda x, d, index: x.index_select(d, index % x.shape[d]),
    "turn": lambda x, d, index: x.transpose(0, -1),
    "cumsum": lambda x, d, index: x.cumsum(d) * 0.2,
}


def program(draw):
    steps = [(draw.choice(list(STEPS)), draw.randint(0, 2)) for _ in range(draw.randint(2, 7))]

    def f(x, index):
        for name, d in steps:
            if x.dim() > 0:
                x = STEPS[name](x, d % x.dim(), index)
        return x

    return f, steps


def gradient(f):
    return lambda x, index: tt.grad(lambda x: f(x, index).sin().sum())(x)


@pytest.mark.parametrize("seed", range(SEEDS))
def test_programs_compute_what_they_compute_uncompiled(seed):
    draw = random.Random(seed)
    torch.manual_seed(seed)
    for _ in range(PROGRAMS):
        f, steps = program(draw)
        x = torch.randn(*draw.choice(SHAPES), dtype=torch.float64)
        x = x.transpose(0, -1) if draw.random() < 0.4 else x
        index = torch.randint(0, 100, (draw.choice([3, 9, 40]),))
        for how, g, dim in (
            ("plain", f, None),
            ("vmap", tt.vmap(f, in_dims=(0, None)), 0),
            ("grad", gradient(f), None),
            ("vmap(grad)", tt.vmap(gradient(f), in_dims=(-1, None)), -1),
        ):
            given = x if dim is None else torch.stack([x, x * 0.5], dim)
            expected, compiled = g(given, index), tt.compile(g)
            compiled(given, index)
            for _ in range(2):
                torch.testing.assert_close(
                    compiled(given, index), expected, rtol=1e-8, atol=1e-10, msg=lambda m: f"{how} of {steps}: {m}"
                )
