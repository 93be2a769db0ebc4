#!/usr/bin/env python3
"""models.py FOLDER: makes what bench/exported.cpp measures, and times Python on it, in one thread.

potential.pt2      an energy of one molecule, as torch.export has it
one.ts, dense.ts   the same for a batch of molecules, as TorchScript has it, in two ways (Potential.sent)
large.pt2, .ts     a model with 100 MB of weights
expected.pt        molecules, their energies, forces and Hessians, and the seconds that Python takes for them
"""

import math
import sys
import time
import warnings
from pathlib import Path

import torch
from torch import nn

MOLECULES, ATOMS = 64, 10


class Potential(nn.Module):
    """Continuous filters of the distances between all atoms, in layers, as SchNet has them (Schütt et al. 2017): places
    [..., atoms, 3] and kinds [..., atoms] to an energy [...]."""

    def __init__(self, width=32, waves=16, layers=2, dense=False):
        super().__init__()
        self.dense = dense
        self.kinds = nn.Embedding(4, width)
        self.filters = nn.ModuleList(
            nn.Sequential(nn.Linear(waves, width), nn.Softplus(), nn.Linear(width, width)) for _ in range(layers)
        )
        self.before = nn.ModuleList(nn.Linear(width, width, bias=False) for _ in range(layers))
        self.after = nn.ModuleList(
            nn.Sequential(nn.Linear(width, width), nn.Softplus(), nn.Linear(width, width)) for _ in range(layers)
        )
        self.head = nn.Sequential(nn.Linear(width, width // 2), nn.Softplus(), nn.Linear(width // 2, 1))
        self.register_buffer("centres", torch.linspace(0, 5, waves))
        i, j = torch.triu_indices(ATOMS, ATOMS, 1)
        self.register_buffer("i", i)
        self.register_buffer("j", j)
        self.register_buffer("itself", torch.eye(ATOMS))

    def distance(self, places):
        if self.dense:
            return ((places.unsqueeze(-2) - places.unsqueeze(-3)).square().sum(-1) + self.itself).sqrt()
        return (places.index_select(-2, self.i) - places.index_select(-2, self.j)).square().sum(-1).sqrt()

    def sent(self, atoms, weight):
        """What atoms hear of others: a filter for each pair, which both use, or for each atom and all others."""
        if self.dense:
            return (weight * (1 - self.itself).unsqueeze(-1) * atoms.unsqueeze(-3)).sum(-2)
        return (
            torch.zeros_like(atoms)
            .index_add(-2, self.i, atoms.index_select(-2, self.j) * weight)
            .index_add(-2, self.j, atoms.index_select(-2, self.i) * weight)
        )

    def forward(self, places, kinds):
        distance = self.distance(places)
        waves = torch.exp(-10 * (distance.unsqueeze(-1) - self.centres).square())
        fades = (0.5 * (torch.cos(distance * (math.pi / 5)) + 1)).unsqueeze(-1)
        atoms = self.kinds(kinds)
        for net, before, after in zip(self.filters, self.before, self.after):
            atoms = atoms + after(self.sent(before(atoms), net(waves) * fades))
        return self.head(atoms).sum([-1, -2])


class Large(nn.Module):
    """100 MB of weights in four layers."""

    def __init__(self):
        super().__init__()
        self.layers = nn.ModuleList(nn.Linear(2500, 2500, bias=False) for _ in range(4))

    def forward(self, x):
        for layer in self.layers:
            x = torch.tanh(layer(x))
        return x


def molecules():
    """Atoms about 1.5 apart, on a grid that was shaken."""
    grid = torch.cartesian_prod(*[torch.arange(3.0)] * 3)[:ATOMS] * 1.5
    return grid + 0.15 * torch.randn(MOLECULES, ATOMS, 3), torch.randint(0, 4, (MOLECULES, ATOMS))


def with_gradient(model, places, kinds, create_graph=False):
    places = places.detach().requires_grad_()
    energies = model(places, kinds)
    (gradient,) = torch.autograd.grad(energies.sum(), places, create_graph=create_graph)
    return energies, gradient, places


def rows_of_hessian(model, places, kinds):
    """A pass for each row, of all molecules at once."""
    _, gradient, places = with_gradient(model, places, kinds, create_graph=True)
    rows = gradient.flatten(1)
    passes = [torch.autograd.grad(rows[:, k].sum(), places, retain_graph=True)[0] for k in range(rows.shape[1])]
    return torch.stack(passes, 1).reshape(*places.shape, *places.shape[1:])


def seconds(run, rounds=7):
    """The least processor time of several calls."""
    run()
    best = float("inf")
    for _ in range(rounds):
        began = time.process_time()
        run()
        best = min(best, time.process_time() - began)
    return best


def main():
    folder = Path(sys.argv[1])
    warnings.simplefilter("ignore")
    torch.set_num_threads(1)
    torch.manual_seed(0)
    one, dense = Potential().requires_grad_(False).eval(), Potential(dense=True).requires_grad_(False).eval()
    dense.load_state_dict(one.state_dict())
    places, kinds = molecules()
    torch.export.save(torch.export.export(one, (places[0], kinds[0])), folder / "potential.pt2")
    torch.jit.freeze(torch.jit.script(one)).save(folder / "one.ts")
    torch.jit.freeze(torch.jit.script(dense)).save(folder / "dense.ts")
    large = Large().requires_grad_(False).eval()
    torch.export.save(torch.export.export(large, (torch.randn(2, 2500),)), folder / "large.pt2")
    torch.jit.script(large).save(folder / "large.ts")

    both = torch.func.vmap(torch.func.grad_and_value(one))
    hessian = torch.func.vmap(torch.func.hessian(one))
    energies, gradient, _ = with_gradient(one, places, kinds)
    # float64 is what results are compared with.
    exact, exact_places = one.double(), places.double()
    energies, gradient, _ = with_gradient(exact, exact_places, kinds)
    expected = {
        "places": places,
        "kinds": kinds,
        "energies": energies.detach(),
        "forces": -gradient,
        "hessians": rows_of_hessian(exact, exact_places, kinds),
    }
    one.float()
    times = {
        "python.forces.autograd": min(seconds(lambda: with_gradient(m, places, kinds)) for m in (one, dense)),
        "python.forces.func": seconds(lambda: both(places, kinds)),
        "python.hessians.autograd": min(seconds(lambda: rows_of_hessian(m, places, kinds), 3) for m in (one, dense)),
        "python.hessians.func": seconds(lambda: hessian(places, kinds), 3),
    }
    expected.update({name: torch.tensor(value, dtype=torch.float64) for name, value in times.items()})
    torch.save(expected, folder / "expected.pt")


if __name__ == "__main__":
    main()
