import torch
from torch_tower import jacfwd, vmap


def hand(angles):  # of one arm
    bent = angles.cumsum(0)
    return torch.stack([bent.cos().sum(), bent.sin().sum()])


arms = torch.tensor([[0.0, 0.5], [1.0, -1.0]])
print(vmap(jacfwd(hand))(arms))
