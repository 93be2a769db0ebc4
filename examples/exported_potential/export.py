#!/usr/bin/env python3
"""export.py [FILE]: makes water.pt2, an energy of a water molecule by its atoms' places (ångström, electronvolt).

A small network of the two bond lengths and the angle between them, which is fitted to an analytic energy: Morse bonds
and a harmonic angle, with constants near those of the molecule's spectrum. It stands for a potential that somebody
trained on quantum chemistry: what comes after, in C++, does not know what the network was fitted to."""

import math
import sys
from pathlib import Path

import torch
from torch import nn

BOND, ANGLE = 0.9572, math.radians(104.52)


def reference(bonds, angle):
    """Morse's potential of depth 4.8 eV and width 2.2 / Å, and a spring of 3.2 eV / rad²."""
    stretch = 4.8 * (1 - torch.exp(-2.2 * (bonds - BOND))).square().sum(-1)
    return stretch + 1.6 * (angle - ANGLE).square()


class Water(nn.Module):
    """Oxygen first, then two hydrogens: [3, 3] to an energy, the same for all rotations and for exchanged hydrogens."""

    def __init__(self):
        super().__init__()
        self.net = nn.Sequential(nn.Linear(3, 24), nn.Tanh(), nn.Linear(24, 24), nn.Tanh(), nn.Linear(24, 1))

    def features(self, bonds, angle):
        a, b = bonds.unbind(-1)
        return torch.stack([5 * (a + b - 2 * BOND), 20 * (a - b).square(), 2 * (angle - ANGLE)], -1)

    def of_features(self, bonds, angle):
        features = self.features(bonds, angle)
        return features.square().sum(-1) * 0.05 + self.net(features).squeeze(-1)

    def forward(self, places):
        arms = places[1:] - places[0]
        bonds = arms.square().sum(-1).sqrt()
        cosine = (arms[0] * arms[1]).sum() / bonds.prod()
        return self.of_features(bonds, torch.acos(cosine))


def fitted():
    torch.manual_seed(0)
    torch.set_default_dtype(torch.float64)
    model = Water()
    steps = 3000
    optimizer = torch.optim.Adam(model.parameters(), 1e-2)
    schedule = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, steps)
    for _ in range(steps):
        bonds = BOND + 0.12 * torch.randn(256, 2)
        angle = ANGLE + 0.25 * torch.randn(256)
        error = model.of_features(bonds, angle) - reference(bonds, angle)
        optimizer.zero_grad()
        error.square().mean().backward()
        optimizer.step()
        schedule.step()
    print(f"fitted to {1000 * error.square().mean().sqrt():.1f} meV")
    return model.requires_grad_(False)


def main():
    file = Path(sys.argv[1]) if len(sys.argv) > 1 else Path(__file__).with_name("water.pt2")
    torch.export.save(torch.export.export(fitted(), (torch.randn(3, 3),)), file)
    print(f"{file}: {file.stat().st_size} bytes")


if __name__ == "__main__":
    main()
