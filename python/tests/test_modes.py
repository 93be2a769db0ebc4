"""Compiled functions of modules that go from training to evaluation and back. Oracle: the modules, uncompiled."""

import functools
import types

import pytest
import torch
from support import assert_same, randn
from torch_tower import compile, grad, load, vmap

scaled = torch.nn.Sequential(torch.nn.Linear(3, 3), torch.nn.Dropout(1.0)).double()


def by_global(x):
    return scaled(x)


def another(x):
    return by_global(x).sin()


def captured(x, *, model=scaled):
    return model(x).cos()


class Trainer:
    def __init__(self, model):
        self.parts = {"models": [model]}

    def loss(self, x):
        return self.parts["models"][0](x).square().sum()


FUNCTIONS = {
    "the module": scaled,
    "its method": scaled.forward,
    "a function of a global variable": by_global,
    "one that calls it": another,
    "a function inside": lambda x: vmap(lambda row: scaled(row))(x),
    "a default": captured,
    "a partial function": functools.partial(captured, model=scaled),
    "an object's method": Trainer(scaled).loss,
    "a transform": vmap(grad(Trainer(scaled).loss)),
    "a compiled function": compile(Trainer(scaled).loss),
}


@pytest.mark.parametrize("name", FUNCTIONS)
def test_a_graph_is_for_the_modes_of_the_modules(name):
    f = FUNCTIONS[name]
    fast, x = compile(f), randn(2, 3)
    for training in (False, True, False, True):
        scaled.train(training)
        for _ in range(2):
            assert_same(fast(x).detach(), f(x).detach())
    assert fast.graphs() == 2
    scaled[1].eval()  # a part of it alone
    assert_same(fast(x).detach(), f(x).detach())


def test_a_module_among_the_arguments_is_compared_with_its_mode():
    fast, x = compile(lambda model, x: model(x)), randn(2, 3)
    for training in (False, True, False):
        scaled.train(training)
        assert_same(fast(scaled, x).detach(), scaled(x).detach())
    assert fast.graphs() == 2


@pytest.mark.cpu("only the CPU's tensors are stored")
def test_a_saved_function_is_that_of_its_last_mode(tmp_path):
    fast, x = compile(by_global), randn(2, 3)
    for training in (True, False):
        scaled.train(training)
        fast(x)
    fast.save(tmp_path / "saved")
    assert_same(load(tmp_path / "saved")(x).detach(), scaled(x).detach())


class Absent:
    """As a web framework's stand-in for the request, where there is none."""

    @property
    def __class__(self):
        raise RuntimeError("there is no request")


def test_objects_of_which_nothing_is_known_are_left_alone():
    strange = types.SimpleNamespace(itself=None, data=list(range(5000)), code=compile, absent=Absent())
    strange.itself = strange
    fast, x = compile(lambda x: x * len(strange.data)), randn(3)
    for _ in range(2):
        assert_same(fast(x), x * 5000)
