"""What the entries of PyTorch's operator database are called with.

A sample of an entry becomes a `Call`: the operator as a function of its tensors alone, with several examples of those
tensors. The examples come from drawing the entry's samples again with other seeds, so they are as valid as the
database's own (positive definite matrices, indices in range) and differ from each other: identical examples would hide
that a transform mixes them. A database that seeds itself before each sample, as LibTorch 2.13's does, draws the same
again; then the examples are the sample's values nudged, or at other places.
"""

from __future__ import annotations

import functools
import itertools
import random
from dataclasses import dataclass, field

import numpy
import torch
from torch.testing._internal import common_methods_invocations, common_utils
from torch.testing._internal.opinfo import core, definitions
from torch.utils import _pytree

DEVICE = "cpu"
EXAMPLES = 6  # two levels of vmap: 2 x 3
CANDIDATES = 40  # samples of the database that are looked at
LARGEST = 20_000  # elements of a sample's largest tensor; larger ones are left out where there are others


def let_random_operators_draw():
    """The database seeds its random operators anew in each call; the checks of randomness need them to draw."""
    seeding = common_methods_invocations.wrapper_set_seed

    def drawing(op, *args, **kwargs):
        return op(*args, **kwargs)

    for module in (common_methods_invocations, core, *vars(definitions).values()):
        if getattr(module, "wrapper_set_seed", None) is seeding:
            module.wrapper_set_seed = drawing
    for entry in common_methods_invocations.op_db:
        if entry.gradcheck_wrapper is seeding:
            entry.gradcheck_wrapper = drawing


def seed_samples_cheaply():
    """The database seeds before each sample, all devices, for which LibTorch keeps the stack as text: 2 ms."""
    common_utils.set_rng_seed = lambda value=common_utils.SEED: seed(value)


@functools.cache
def entries():
    """Every entry that runs on the CPU, by name, with the dtype it is called with."""
    result = {}
    for entry in common_methods_invocations.op_db:
        supported = entry.supported_dtypes(DEVICE)
        wanted = (torch.float32, torch.int64, torch.complex64, torch.bool)
        dtype = next((dtype for dtype in wanted if dtype in supported), None)
        if dtype is not None:
            result[entry.formatted_name] = (entry, dtype)
    return result


def seed(value):
    torch.default_generator.manual_seed(value)  # torch.manual_seed prepares devices, too: 5 ms
    numpy.random.seed(value)
    random.seed(value)


def flat_outputs(value):
    """The tensors of a result, numbers as tensors, in order."""
    if isinstance(value, torch.Tensor):
        return [value]
    if isinstance(value, (bool, int, float, complex)):
        return [torch.as_tensor(value)]
    if isinstance(value, dict):
        value = value.values()
    elif not isinstance(value, (tuple, list)):
        return []
    return [tensor for item in value for tensor in flat_outputs(item)]


def plain_copy(tensor):
    """A tensor of its own with the same values and layout."""
    return tensor.detach().clone() if tensor.layout == torch.strided else tensor.detach()


@dataclass
class Call:
    """An operator with all its arguments fixed but the tensors."""

    entry: object
    sample: object
    leaves: list
    spec: object
    positions: list  # of the tensors among the leaves
    differentiable: list  # which of the tensors are, as places in an example
    examples: list = field(default_factory=list)  # each a list of tensors
    for_derivatives: bool = False
    clones: bool = False  # the operator writes to its arguments

    def arguments(self, tensors):
        leaves = list(self.leaves)
        for position, tensor in zip(self.positions, tensors, strict=True):
            leaves[position] = tensor.clone() if self.clones else tensor
        return _pytree.tree_unflatten(leaves, self.spec)

    def __call__(self, *tensors):
        first, args, kwargs = self.arguments(tensors)
        if not self.for_derivatives:
            return flat_outputs(self.entry.op(first, *args, **kwargs))
        result = self.entry.gradcheck_wrapper(self.entry.op, first, *args, **kwargs)
        return flat_outputs(self.sample.output_process_fn_grad(result))

    def in_place(self, *tensors):
        """What the in-place variant returns, and the tensor that it wrote to, which is a copy of the first."""
        first, args, kwargs = self.arguments(tensors)
        first = first.clone()
        return flat_outputs(self.entry.inplace_variant(first, *args, **kwargs)) + [first]

    def has_in_place(self):
        return self.entry.inplace_variant is not None and isinstance(self.sample.input, torch.Tensor)

    def describe(self):
        def show(leaf):
            return (
                f"{str(leaf.dtype).removeprefix('torch.')}{list(leaf.shape)}" if torch.is_tensor(leaf) else repr(leaf)
            )

        _, args, kwargs = tree = _pytree.tree_unflatten([show(leaf) for leaf in self.leaves], self.spec)
        words = [str(tree[0]), *map(str, args), *(f"{key}={value}" for key, value in kwargs.items())]
        return f"{self.entry.formatted_name}({', '.join(words)})"[:300]


def _draw(entry, dtype, for_derivatives, number):
    """The entry's samples with the seed `number`; more of them from its reference samples if they are few."""
    seed(1000 + number)

    def some_of(source):
        return list(itertools.islice(source(DEVICE, dtype, requires_grad=for_derivatives), CANDIDATES))

    samples = some_of(entry.sample_inputs)
    if len(samples) < 5:
        samples += some_of(entry.reference_inputs)
    return samples


def _draws(entry, dtype, for_derivatives):
    """EXAMPLES times the entry's samples. Where a second draw is like the first, as where the database itself seeds
    before each sample, it stands for the others."""
    draws = [_draw(entry, dtype, for_derivatives, number) for number in range(2)]
    if _alike(*draws):
        return [draws[0], *[draws[1]] * (EXAMPLES - 1)]
    return draws + [_draw(entry, dtype, for_derivatives, number) for number in range(2, EXAMPLES)]


def _alike(left, right):
    """Whether two draws have the same values, in all that may be chosen."""
    tensors = [[_tensors(sample) for sample in draw if _is_small(sample)] for draw in (left, right)]
    return list(map(len, tensors[0])) == list(map(len, tensors[1])) and all(
        _equal(a, b) for one, other in zip(*tensors) for a, b in zip(one, other)
    )


def _tensors(sample):
    return [leaf for leaf in _pytree.tree_leaves((sample.input, sample.args, sample.kwargs)) if torch.is_tensor(leaf)]


def _signature(sample):
    """Samples of one signature are alike; the choice takes one of each first."""
    leaves, spec = _pytree.tree_flatten((sample.input, sample.args, sample.kwargs))
    return str(spec), tuple(
        (leaf.dim(), leaf.numel() == 0, leaf.dtype) if torch.is_tensor(leaf) else (type(leaf), str(leaf)[:20])
        for leaf in leaves
    )


def _is_small(sample):
    return all(tensor.numel() <= LARGEST for tensor in _tensors(sample))


def _usable(sample, for_derivatives):
    tensors = _tensors(sample)
    if not _is_small(sample):
        return False
    if not for_derivatives:
        return True
    floating = [tensor for tensor in tensors if tensor.is_floating_point() or tensor.is_complex()]
    return any(t.requires_grad for t in floating) and all(
        t.isfinite().all() for t in floating if t.layout == torch.strided
    )


def _choose(samples, count, for_derivatives):
    """The indices of `count` samples that differ; the first of a larger choice are those of a smaller one."""
    usable = [i for i, sample in enumerate(samples) if _usable(sample, for_derivatives)]
    groups = {}
    for i in usable:
        groups.setdefault(_signature(samples[i]), []).append(i)
    # The first of the groups, then from the end and the middle: databases list like samples side by side.
    order = [member for layer in itertools.zip_longest(*groups.values()) for member in layer if member is not None]
    distinct = order[: len(groups)]
    spread = []
    while distinct:
        spread.append(distinct.pop(0))
        if distinct:
            spread.append(distinct.pop())
        if distinct:
            spread.append(distinct.pop(len(distinct) // 2))
    return (spread + order[len(groups) :])[:count]


def _nudged(tensor, by):
    """Other values near those of a tensor that every draw has alike."""
    if tensor.layout != torch.strided:
        return tensor
    if tensor.is_floating_point() or tensor.is_complex():
        return tensor * (1 + 0.03125 * by)
    return tensor


def _examples(call, draws, index):
    """The tensors of the sample `index` in each draw; where a draw's do not fit, those of the first draw, nudged."""
    first = [leaf.detach() for leaf in _tensors(draws[0][index])]
    examples = [first]
    for number, draw in enumerate(draws[1:], start=1):
        drawn = [leaf.detach() for leaf in _tensors(draw[index])] if index < len(draw) else []
        fits = len(drawn) == len(first) and all(
            a.shape == b.shape and a.dtype == b.dtype and a.layout == b.layout for a, b in zip(drawn, first)
        )
        if not fits:
            drawn = first
        same = [_equal(a, b) for a, b in zip(first, drawn)]
        nudged = [_nudged(b, number) if equal else b for b, equal in zip(drawn, same)]
        examples.append(nudged if any(same) and _runs(call, nudged) else drawn)
    if all(_equal(a, b) for a, b in zip(first, examples[1])):
        examples = [first] + [_rolled(call, first, number) for number in range(1, len(draws))]
    return [[plain_copy(tensor) for tensor in example] for example in examples]


def _equal(a, b):
    return a.layout != torch.strided or (a.shape == b.shape and torch.allclose(a, b, rtol=0, atol=0, equal_nan=True))


def _rolled(call, tensors, by):
    """For samples all of whose values are fixed: the same values at other places, if the operator takes them."""
    rolled = [t.flatten().roll(by).view(t.shape) if t.layout == torch.strided else t for t in tensors]
    return rolled if _runs(call, rolled) else tensors


def _runs(call, tensors):
    try:
        call(*(plain_copy(tensor) for tensor in tensors))
    except Exception:  # whatever the operator says against these values
        return False
    return True


def calls(entry, dtype, count, for_derivatives=False):
    """`count` calls of the entry. Samples that the operator itself refuses are left out."""
    draws = _draws(entry, dtype, for_derivatives)
    result = []
    for index in _choose(draws[0], CANDIDATES, for_derivatives):
        sample = draws[0][index]
        leaves, spec = _pytree.tree_flatten((sample.input, sample.args, sample.kwargs))
        positions = [i for i, leaf in enumerate(leaves) if torch.is_tensor(leaf)]
        differentiable = [k for k, i in enumerate(positions) if leaves[i].requires_grad]
        leaves = [leaf.detach() if torch.is_tensor(leaf) else leaf for leaf in leaves]
        call = Call(entry, sample, leaves, spec, positions, differentiable, for_derivatives=for_derivatives)
        tensors = [plain_copy(leaves[i]) for i in positions]
        if not _runs(call, [plain_copy(tensor) for tensor in tensors]):
            continue
        # Some that write do not say so by the version.
        versions = [tensor._version for tensor in tensors]
        call(*tensors)
        call.clones = versions != [tensor._version for tensor in tensors] or not all(
            _equal(tensor, leaves[i]) for tensor, i in zip(tensors, positions)
        )
        call.examples = _examples(call, draws, index)
        result.append(call)
        if len(result) == count:
            break
    return result
