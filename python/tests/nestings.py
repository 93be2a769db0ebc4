"""Programs f(x, w) of two tensors in every nesting of transforms, and the same by hand: torch.func's derivatives of one
example, and a loop over the examples."""

import itertools

import torch
from torch.utils._pytree import tree_map


def nestings(depth):
    """Of vmap, jvp and vjp, the outermost first, as words: "v", "vj", …"""
    return ["".join(kinds) for n in range(1, depth + 1) for kinds in itertools.product("vjr", repeat=n)]


def nest(f, kinds, lib, map_examples, inside=0):
    """`f(x, w)` under transforms of `lib`, the outermost first in `kinds`: vmap, jvp, vjp. It has `inside` already."""
    for depth, kind in enumerate(reversed(kinds), inside):
        f = {"v": map_examples, "j": along, "r": back}[kind](f, lib, 0.3 + depth)
    return f


def along(f, lib, phase):
    return lambda x, w: lib.jvp(f, (x, w), (torch.cos(x.detach() * 0 + phase), torch.sin(w.detach() * 0 + phase)))[1]


def back(f, lib, phase):
    def gradients(x, w):
        out, pullback = lib.vjp(f, x, w)
        a, b = pullback(tree_map(lambda t: torch.cos(torch.zeros_like(t) + phase), out))
        return a + 2 * b

    return gradients


def by_vmap(f, lib, phase):
    return lib.vmap(f)


def by_loop(f, lib, phase):
    return lambda x, w: torch.stack([f(a, b) for a, b in zip(x, w)])
