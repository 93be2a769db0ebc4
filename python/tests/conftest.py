import os

import pytest
import torch
import torch_tower


@pytest.fixture(autouse=True)
def on_device():
    """TOWER_TEST_DEVICE=cuda: what a test makes without naming a device is there."""
    if name := os.environ.get("TOWER_TEST_DEVICE"):
        with torch.device(name):
            yield
    else:
        yield


@pytest.fixture(autouse=True)
def reproducible():
    torch.manual_seed(0)


@pytest.fixture(autouse=True)
def intact():
    """After every test, whatever it threw, plain tensors are plain again."""
    yield
    assert not torch_tower._C.inside_transform()
    assert not torch_tower._C.is_wrapper(torch.ones(2))
