"""The cache of temporaries, from Python: it fills, is bounded, and is given back."""

import torch
import torch_tower
from torch_tower import memory


def transform():
    x = torch.rand(1 << 16)
    return torch_tower.grad(lambda x: x.sin().exp().sum())(x)


def test_temporaries_are_kept_and_given_back():
    transform()
    held = memory.memory_cached()
    assert held >= 4 << 16
    assert memory.release_memory() == held
    assert memory.memory_cached() == 0


def test_the_limit_switches_it_off():
    limit = memory.memory_limit()
    try:
        memory.set_memory_limit(0)
        assert memory.memory_limit() == 0
        result = transform()
        assert memory.memory_cached() == 0
    finally:
        memory.set_memory_limit(limit)
    assert result.numel() == 1 << 16
