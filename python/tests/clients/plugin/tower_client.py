"""A pytest plugin for the test suites of other projects: `pytest -p tower_client`.

CLIENT_LIBRARY=torch_tower puts Tower's transforms in the place of torch.func's, before anything of the project is
imported. Whatever the library, each test begins with the same seeds, and lines of JSON about it go to CLIENT_RESULTS.
CLIENT_CASES=n keeps n cases of each parametrized test, evenly spread; CLIENT_ONLY names a file with a JSON list of the
tests to run; CLIENT_LEFT_OUT is a pattern of those that are not; CLIENT_SECONDS is what a test may take.
"""

import functools
import itertools
import json
import os
import pathlib
import random
import re
import signal
import time

import functorch
import numpy
import pytest
import torch

NAMES = ("vmap", "grad", "grad_and_value", "vjp", "jvp", "linearize", "jacrev", "jacfwd", "hessian")
PLACES = (torch.func, functorch, torch)
RESULTS = pathlib.Path(os.environ["CLIENT_RESULTS"])
made = 0  # transforms, so far


def counted(transform):
    @functools.wraps(transform)
    def make(*args, **kwargs):
        global made
        made += 1
        return transform(*args, **kwargs)

    return make


def install(library):
    for name in NAMES:
        ours = counted(getattr(library, name))
        for place in PLACES:
            if hasattr(place, name):
                setattr(place, name, ours)


if torch.version.cuda is None:
    # PyPI's torchvision is built for CUDA: its operators do not load beside a CPU torch, and its import asks for these.
    for name in ("nms", "qnms"):
        torch.library.define(f"torchvision::{name}", "(Tensor dets, Tensor scores, float iou_threshold) -> Tensor")

if os.environ["CLIENT_LIBRARY"] == "torch_tower":
    import torch_tower

    install(torch_tower)
else:
    install(torch.func)


def name_of(nodeid):
    """The same in every run, also where a case is named after an object's address."""
    return re.sub("0x[0-9a-f]+", "0x", nodeid)


def pytest_collection_modifyitems(items):
    limit, left_out = int(os.environ["CLIENT_CASES"]), re.compile(os.environ["CLIENT_LEFT_OUT"])
    kept = []
    wanted = [item for item in items if not left_out.match(item.nodeid)]
    for _, cases in itertools.groupby(wanted, lambda item: item.nodeid.partition("[")[0]):
        cases = list(cases)
        step = max(1.0, len(cases) / limit)
        kept += [cases[int(i * step)] for i in range(min(limit, len(cases)))]
    if "CLIENT_ONLY" in os.environ:
        only = set(json.loads(pathlib.Path(os.environ["CLIENT_ONLY"]).read_text()))
        kept = [item for item in kept if name_of(item.nodeid) in only]
    items[:] = kept


@pytest.fixture(autouse=True)
def same_beginning():
    random.seed(0)
    numpy.random.seed(0)
    torch.manual_seed(0)


@pytest.hookimpl(wrapper=True)
def pytest_runtest_protocol(item):
    before, began = made, time.monotonic()
    record(test=name_of(item.nodeid), outcome="begun")
    outcome = yield
    record(test=name_of(item.nodeid), transforms=made - before, seconds=round(time.monotonic() - began, 1))
    return outcome


@pytest.hookimpl(wrapper=True)
def pytest_runtest_call():
    seconds = int(os.environ["CLIENT_SECONDS"])
    signal.signal(signal.SIGALRM, lambda *_: pytest.fail(f"not done after {seconds} seconds"))
    signal.alarm(seconds)
    try:
        return (yield)
    finally:
        signal.alarm(0)


def pytest_runtest_logreport(report):
    if report.when != "call" and report.passed:
        return
    crash = getattr(report.longrepr, "reprcrash", None) if report.failed else None
    record(test=name_of(report.nodeid), outcome=report.outcome, message=crash.message if crash else "")


def record(**line):
    with RESULTS.open("a") as file:
        print(json.dumps(line), file=file)
