import os
import re

import pytest
import torch
import torch_tower
from support import REFUSED_KERNEL

# TOWER_TEST_DEVICE=cuda: what a test makes without naming a device is there.
DEVICE = os.environ.get("TOWER_TEST_DEVICE") or "cpu"
if DEVICE.startswith("apart"):
    import apart

    apart.install()
if DEVICE != "cpu":
    torch.set_default_device(DEVICE)


# What the device, or NumPy beside it, says of what it does not have.
LACKING = re.compile(
    r"can't convert \S+ device type tensor to numpy|Could not run '\S+' with arguments from the '\S+' backend"
    r"|missing kernel for \S+|\S+_overrideable"
)


def device_says():
    """What the device says of its work, once it has been waited for."""
    try:
        torch.accelerator.synchronize()
    except RuntimeError as error:
        return str(error).splitlines()[0]


@pytest.hookimpl(wrapper=True)
def pytest_runtest_teardown(item):
    yield
    # A GPU on which a kernel failed refuses everything from then on: that is no failure of the tests after it.
    if DEVICE != "cpu" and (said := device_says()):
        if device_says():
            pytest.exit(f"{item.nodeid} lost the device: {said}", returncode=70)
        pytest.fail(f"said late: {said}")


def pytest_configure(config):
    config.addinivalue_line("filterwarnings", f"error:{REFUSED_KERNEL}")
    config.addinivalue_line("markers", "cpu(why): the test is about the CPU alone")
    config.addinivalue_line("markers", "weekly(why): the test is run where all are, with TOWER_WHOLE=1")


def pytest_runtest_setup(item):
    if DEVICE != "cpu" and (mark := item.get_closest_marker("cpu")):
        pytest.skip(f"the CPU's: {mark.args[0]}")
    if "TOWER_WHOLE" not in os.environ and (mark := item.get_closest_marker("weekly")):
        pytest.skip(f"once a week: {mark.args[0]}")


@pytest.hookimpl(wrapper=True)
def pytest_runtest_call(item):
    try:
        return (yield)
    except (TypeError, RuntimeError) as error:
        if DEVICE != "cpu" and LACKING.search(str(error)):
            pytest.skip(f"{DEVICE} cannot: {str(error).splitlines()[0][:160]}")
        raise


@pytest.fixture(autouse=True)
def reproducible():
    torch.manual_seed(0)


@pytest.fixture(autouse=True)
def intact():
    """After every test, whatever it threw, plain tensors are plain again."""
    yield
    assert not torch_tower._C.inside_transform()
    assert not torch_tower._C.is_wrapper(torch.ones(2))
