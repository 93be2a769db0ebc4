"""Modules, parameters and tables that a transformed function makes, copies or loads itself: constants."""

import copy
import io
import pickle

import pytest
import torch
import torch.autograd.forward_ad as fwAD
from support import assert_same
from torch_tower import grad, jvp, vmap

x = torch.tensor([1.0, -1.0, 2.0])
weights = torch.tensor([1.0, 2.0, 3.0])


def expect_weighted(make):
    def f(x):
        return (make() * x * x).sum()

    assert_same(grad(f)(x), 2 * weights * x)
    assert_same(vmap(f)(torch.stack([x, 2 * x])), torch.tensor([15.0, 60.0]))
    assert_same(vmap(grad(f))(torch.stack([x, 2 * x])), torch.stack([2 * weights * x, 4 * weights * x]))
    assert_same(jvp(f, (x,), (x,))[1], torch.tensor(30.0))


def test_parameters():
    expect_weighted(lambda: torch.nn.Parameter(weights))
    expect_weighted(lambda: torch.nn.Parameter(torch.tensor([1.0, 2.0, 3.0])))
    expect_weighted(lambda: torch.tensor([1.0, 2.0, 3.0], requires_grad=True))
    expect_weighted(lambda: torch.tensor([1.0, 2.0, 3.0]).requires_grad_())


def test_modules():
    def f(x):
        net = torch.nn.Sequential(torch.nn.Linear(3, 4), torch.nn.LayerNorm(4), torch.nn.Linear(4, 1))
        assert all(p.requires_grad for p in net.parameters())
        return net(x).sum()

    assert grad(f)(x).shape == (3,)
    assert vmap(f, randomness="same")(torch.stack([x, x])).shape == (2,)
    assert jvp(f, (x,), (x,))[1].shape == ()


def test_copies_of_modules():
    layer = torch.nn.Linear(3, 1, bias=False)
    with torch.no_grad():
        layer.weight.copy_(weights)
    expect_weighted(lambda: copy.deepcopy(layer).weight[0])


def test_copies_of_plain_tensors():
    expect_weighted(lambda: copy.deepcopy(weights))
    expect_weighted(lambda: copy.deepcopy(torch.tensor([1.0, 2.0, 3.0])))


def test_loaded_and_unpickled_tensors():
    file = io.BytesIO()
    torch.save({"table": weights}, file)
    pickled = pickle.dumps(weights)

    def load():
        file.seek(0)
        return torch.load(file)["table"]

    expect_weighted(load)
    expect_weighted(lambda: pickle.loads(pickled))


def test_memory_given_to_a_tensor():
    expect_weighted(lambda: torch.empty(0).set_(weights))
    expect_weighted(lambda: torch.empty(0).set_(weights.untyped_storage(), 0, (3,), (1,)))


def test_torchscript_functions_before_and_after_training():
    def plain(x, w):
        h = (x * w).sin() + w.exp() * x
        return (h * h.sigmoid()).sum()

    script = torch.jit.script(plain)
    for trained in (False, True):
        for _ in range(4 if trained else 0):
            script(x, weights.clone().requires_grad_()).backward()
        for _ in range(3):
            assert_same(grad(lambda x: script(x, weights))(x), grad(lambda x: plain(x, weights))(x))
            assert_same(grad(script, argnums=1)(x, weights), grad(plain, argnums=1)(x, weights))
            batch = torch.stack([x, 2 * x])
            assert_same(vmap(script, (0, None))(batch, weights), vmap(plain, (0, None))(batch, weights))
            assert_same(
                jvp(lambda x: script(x, weights), (x,), (x,))[1], jvp(lambda x: plain(x, weights), (x,), (x,))[1]
            )


@pytest.mark.parametrize("transform", [vmap, grad, lambda f: lambda x: jvp(f, (x,), (x,))])
def test_forward_mode_of_torch_inside_is_refused(transform):
    def make(x):
        with fwAD.dual_level():
            return fwAD.unpack_dual(fwAD.make_dual(weights, weights).sin()).tangent.sum() * x.sum()

    def jacobian(x):
        return torch.autograd.functional.jacobian(torch.sin, x, strategy="forward-mode", vectorize=True).sum()

    def captured(x):
        return jacobian(weights) * x.sum()

    for f in (make, jacobian, captured):
        with pytest.raises(RuntimeError, match="forward mode.*jacfwd"):
            transform(f)(x)
