"""Compiled functions that find other tensors, modules and functions than when they were traced. Oracle: uncompiled."""

import types
import warnings

import pytest
import torch
from support import assert_same, randn
from torch_tower import compile, grad, vmap

held = types.ModuleType("held")  # a module of Python's
weight = randn(3, 3)


def network():
    parts = [torch.nn.Linear(3, 3), torch.nn.BatchNorm1d(3), torch.nn.Sequential(torch.nn.Linear(3, 3))]
    return torch.nn.Sequential(*parts).double().eval()


class OfOneParameter(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.weight = torch.nn.Parameter(randn(3, 3))
        self.scale = randn(3)  # no buffer
        self.parts = [torch.nn.Linear(3, 3).double()]  # not registered

    def forward(self, x):
        return self.parts[0](x @ self.weight) * self.scale


def replace(name, of):
    return lambda net: setattr(net.get_submodule(of) if of else net, name, torch.nn.Parameter(randn(3, 3)))


CHANGES = {
    "a parameter": replace("weight", "0"),
    "that of a part": replace("weight", "2.0"),
    "a part": lambda net: net.__setitem__(0, torch.nn.Linear(3, 3).double()),
    "one more": lambda net: net.append(torch.nn.Tanh()),
    "one less": lambda net: net.__delitem__(2),
    "a buffer": lambda net: setattr(net[1], "running_mean", randn(3)),
    "what is loaded": lambda net: net.load_state_dict({k: v + 1 for k, v in network().state_dict().items()}),
    "what is assigned": lambda net: net.load_state_dict(network().state_dict(), assign=True),
    "values": lambda net: torch.nn.init.normal_(net[0].weight),
    ".data": lambda net: setattr(net[0].weight, "data", randn(3, 3)),
    "no gradients": lambda net: net.requires_grad_(False),
    "a hook": lambda net: net[0].register_forward_hook(lambda module, given, out: out * 2),
    "a hook before": lambda net: net[0].register_forward_pre_hook(lambda module, given: (given[0] * 2,)),
    "forward": lambda net: setattr(net[0], "forward", torch.sin),
    "a norm of weights": lambda net: torch.nn.utils.parametrizations.weight_norm(net[0]),
}


@pytest.mark.parametrize("change", CHANGES)
def test_a_compiled_function_sees_what_has_become_of_its_modules(change):
    net, x = network(), randn(2, 3)
    functions = {f: compile(f) for f in (net, vmap(grad(lambda x: net(x[None]).sum())))}
    by_argument = compile(lambda module, x: module(x))
    for _ in range(3):
        for f, fast in functions.items():
            assert_same(fast(x), f(x))
        assert_same(by_argument(net, x), net(x))
        CHANGES[change](net)
        if change in ("one less", "a norm of weights"):
            CHANGES[change] = lambda net: None


def test_a_module_in_float32_is_another_than_in_float64():
    net, x = network(), randn(2, 3)
    fast = compile(lambda x: net(x))
    for dtype in (torch.float64, torch.float32, torch.float64):
        net.to(dtype)
        for _ in range(2):
            assert_same(fast(x.to(dtype)), net(x.to(dtype)))


def test_tensors_and_modules_that_are_attributes_alone_are_seen():
    net, x = OfOneParameter(), randn(2, 3)
    fast = compile(net)
    for change in range(4):
        assert_same(fast(x), net(x))
        if change == 0:
            net.scale = randn(3)
        elif change == 1:
            net.parts[0] = torch.nn.Linear(3, 3).double()
        else:
            net.parts = [torch.nn.Linear(3, 3).double()]
    assert fast.graphs() == 4


def test_variables_that_hold_other_tensors_are_seen():
    global weight
    captured, inside = randn(3), {"list": [randn(3)], "count": 0}
    held.weight = randn(3)

    def helper(x):
        return x * captured

    def f(x):
        return helper(x @ weight) + held.weight * inside["list"][0]

    fast, x = compile(f), randn(2, 3)
    for change in range(7):
        assert_same(fast(x), f(x))
        inside["count"] += 1  # a number is not looked at
        if change == 0:
            weight = randn(3, 3)
        elif change == 1:
            captured = randn(3)
        elif change == 2:
            held.weight = randn(3)
        elif change == 3:
            inside["list"][0] = randn(3)
        elif change == 4:
            inside["list"] = [randn(3)]
        elif change == 5:

            def helper(x):
                return x + captured

    assert fast.graphs() == 7


def test_what_stood_there_before_has_its_graph_still():
    net, x = network(), randn(2, 3)
    fast, states = compile(lambda x: net(x)), [network(), network()]
    for k in (0, 1, 0, 1, 0):
        net[0] = states[k][0]
        assert_same(fast(x), net(x))
    assert fast.graphs() == 2


def test_functional_call_around_a_compiled_method_gives_its_tensors_to_it():
    class Net(torch.nn.Module):
        def __init__(self):
            super().__init__()
            self.inner = network()
            self.fast = compile(lambda x: self.inner(x).sin())

        def forward(self, x):
            return self.fast(x)

    net, x = Net(), randn(2, 3)
    plain = lambda given: torch.func.functional_call(net.inner, {k[6:]: v for k, v in given.items()}, (x,)).sin()
    for _ in range(3):
        given = {name: randn(*p.shape) for name, p in net.named_parameters()}
        ours = lambda given: torch.func.functional_call(net, given, (x,))
        assert_same(net(x), net.inner(x).sin())
        assert_same(ours(given), plain(given))
        for transform in (grad, torch.func.grad):
            assert_same(
                transform(lambda given: ours(given).sum())(given), torch.func.grad(lambda g: plain(g).sum())(given)
            )
        assert_same(compile(ours)(given), plain(given))


def test_a_tensor_that_the_function_reads_and_replaces_is_an_error():
    state = [randn(3)]

    def f(x):
        state[0] = state[0] * x
        return state[0] + 1

    fast, x = compile(f), randn(3)
    fast(x)
    with pytest.raises(RuntimeError, match="ended"):
        fast(x)


def test_a_tensor_that_the_function_replaces_and_does_not_read_is_its_own_affair():
    seen = types.SimpleNamespace(last=randn(3), note=None)

    def f(x):
        seen.last = seen.note = x * 2
        return x.sin()

    fast, x = compile(f), randn(3)
    for _ in range(4):
        assert_same(fast(x), x.sin())
    assert fast.graphs() == 1


def test_who_replaces_a_tensor_at_each_call_is_told():
    kept = [randn(3)]
    fast = compile(lambda x: x * kept[0])
    with warnings.catch_warnings(record=True) as told:
        warnings.simplefilter("always")
        for _ in range(40):
            kept[0] = randn(3)
            assert_same(fast(kept[0]), kept[0] ** 2)
    assert [str(w.message)[:60] for w in told] == ["compile(<lambda>): a function was traced 32 times because mo"]
    assert fast.graphs() <= 8
