"""Compiled functions that draw random numbers, or move generators themselves. Oracle: the function, uncompiled."""

import types

import pytest
import torch
from support import assert_same, randn
from torch_tower import compile, vmap, while_loop

pytestmark = pytest.mark.cpu("the generators are the CPU's")

outside = torch.Generator()
holder = types.SimpleNamespace(generator=torch.Generator())


def seeds(x):
    torch.manual_seed(3)
    return x + torch.randn(3)


def seeds_afterwards(x):
    y = x + torch.randn(3)
    torch.manual_seed(3)
    return y


def puts_back(x):
    with torch.random.fork_rng(devices=()):
        return x + torch.randn(3)


def seeds_what_it_captured(x):
    outside.manual_seed(3)
    return x + torch.randn(3, generator=outside)


def makes_one(x):
    return x + torch.randn(3, generator=torch.Generator().manual_seed(3))


def makes_one_outside_of_a_vmap(x):
    generator = torch.Generator().manual_seed(3)
    return vmap(lambda x: x + torch.randn((), generator=generator), randomness="different")(x)


REFUSED = {
    "moved a random number generator": (seeds, seeds_afterwards, puts_back, seeds_what_it_captured),
    "made inside of the function": (makes_one, makes_one_outside_of_a_vmap),
}


@pytest.mark.parametrize("words, f", [(words, f) for words in REFUSED for f in REFUSED[words]])
def test_what_seeds_itself_is_refused(words, f):
    with pytest.raises(RuntimeError, match=f"compile .*{words}"):
        compile(f)(randn(3))


DRAWS = {
    "captured": lambda x: x + torch.randn(3, generator=outside) * torch.rand(3),
    "of an attribute": lambda x: x + torch.randn(3, generator=holder.generator),
    "by default": lambda x: x + torch.randn(3, generator=torch.default_generator),
    "under vmap": vmap(lambda x: x + torch.randn((), generator=outside), randomness="different"),
    "in a loop": lambda x: while_loop(lambda y: y.sum() < 10, lambda y: y + torch.rand(3, dtype=y.dtype), x),
}


@pytest.mark.parametrize("name", DRAWS)
def test_numbers_and_what_is_drawn_next_are_those_of_the_function(name):
    f, x = DRAWS[name], randn(3)
    fast = compile(f)
    for seed in range(3):
        if seed == 2:
            holder.generator = torch.Generator()
        drawn = []
        for g in (fast, f):
            for generator in (outside, holder.generator, torch.default_generator):
                generator.manual_seed(seed)
            drawn.append((g(x), torch.rand(2), torch.rand(2, generator=outside)))
        assert_same(*drawn)


def test_a_generator_may_be_an_argument():
    fast, x = compile(lambda x, generator: x + torch.randn(3, generator=generator)), randn(3)
    for seed in range(3):
        outside.manual_seed(seed)
        found = fast(x, outside)
        outside.manual_seed(seed)
        assert_same(found, x + torch.randn(3, generator=outside))
