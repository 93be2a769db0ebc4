"""exported_models.py WATER.pt2 FOLDER: what bench/exported.cpp reads beside the example's model: the same model for a
batch in TorchScript, and 100 MB of weights in both forms."""

import sys
import warnings
from pathlib import Path

import torch

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "examples/exported_potential"))
from export import Water


class Batch(Water):
    """Energies of molecules, [n, 3, 3] to [n]."""

    def forward(self, places):
        arms = places[:, 1:] - places[:, :1]
        bonds = arms.square().sum(-1).sqrt()
        cosine = (arms[:, 0] * arms[:, 1]).sum(-1) / bonds.prod(-1)
        return self.of_features(bonds, torch.acos(cosine))


def main():
    water, folder = sys.argv[1], Path(sys.argv[2])
    warnings.simplefilter("ignore")
    model = Batch().double()
    model.load_state_dict(torch.export.load(water).state_dict)
    model.requires_grad_(False)
    torch.jit.trace(model, torch.randn(64, 3, 3).double()).save(folder / "water.ts")
    large = torch.nn.Linear(5000, 5000)
    x = torch.randn(1, 5000)
    torch.export.save(torch.export.export(large, (x,)), folder / "large.pt2")
    torch.jit.trace(large, x).save(folder / "large.ts")


if __name__ == "__main__":
    main()
