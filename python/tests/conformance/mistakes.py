"""Calls that are wrong, and whether a transform refuses what the plain call refuses.

A mistake is a call of an entry with something changed: a dimension more or less, another size, another dtype or device,
arguments swapped, a number out of range; or one of the database's own `error_inputs`. The oracle is the plain call:
under vmap (every tensor mapped, or one), vjp and jvp it throws where that throws, and gives a result of that shape and
dtype where that gives one.
"""

from __future__ import annotations

import dataclasses
import re
import warnings
from dataclasses import dataclass

import torch
from torch.utils import _pytree

from .samples import DEVICE, Call, plain_copy, seed

BATCH = 2
TAKES, REFUSES, OTHER = "takes", "refuses", "other"

# What Tower says where the examples' data decides: with equal examples there might be an answer.
_BY_DATA = re.compile("depends on the data|differs? between|raw memory|more elements than it has memory for|no number")

_DTYPES = (torch.int64, torch.bool, torch.complex64, torch.float64, torch.uint8)


# Calls that may kill the process without any transform: LibTorch reads past what it was given. Tower refuses.
_SHAPES = r"tensors? \d(?!: torch|: meta)"
_CRASHES = {
    "_batch_norm_with_update": _SHAPES,
    "_native_batch_norm_legit": _SHAPES,
    "_segment_reduce_lengths": "tensor 0: empty",
    "_segment_reduce_offsets": "tensor 0: empty",
    "linalg_ldl_solve": "tensor 2: two of it",
    "linalg_lstsq": "tensor 1: empty",
    "linalg_lstsq_grad_oriented": "tensor 1: empty",
    "lu_unpack": _SHAPES,
    "native_batch_norm": _SHAPES,
    "nn_functional_embedding_bag": "tensor 2: empty",
}

# LibTorch's backward pass corrupts the heap for some mistakes: it is no oracle of whether there is a derivative.
_CRASHING_BACKWARD = {"nn_functional_scaled_dot_product_attention"}

# Entries that end otherwise than the plain call for some mistakes: by direction, the reason.
_BOOLEANS = "the formula subtracts, which LibTorch refuses for booleans; the kernel converts them first"
_OUT = "LibTorch resizes out=, with a warning that it will not; Tower refuses"
_EMPTY = "the kernel asks less of tensors without elements than its parts do"
_NO_DIMENSIONS = (
    "a tensor without dimensions on the CPU may meet other devices; where the kernel is stricter nobody looks"
)
_BIAS = "the kernel adds a bias of any dtype in its own; added for each example, it promotes"
_VECTORS = "where other has a dimension less and is no batch of vectors, LibTorch broadcasts its rows with batches"
OPEN = {
    "_segment_reduce_offsets": {
        TAKES: "whether offsets ascend is data, which the formula does not read",
        REFUSES: "an offset beyond the data is read by the formula, and not by the kernel",
    },
    "addmv": {OTHER: "LibTorch gives an empty product the shape of the addend", TAKES: _NO_DIMENSIONS},
    "as_strided_scatter": {REFUSES: "the kernel converts the written values; a batch of them is not converted"},
    "cat": {REFUSES: _OUT},
    "cdist": {OTHER: _EMPTY},
    "cholesky": {REFUSES: _EMPTY},
    "cummax": {REFUSES: "without dimensions the kernel does not look at the dtype"},
    "cummin": {REFUSES: "without dimensions the kernel does not look at the dtype"},
    "equal": {REFUSES: "tensors of different dtypes are compared, not refused, by LibTorch"},
    "gather": {REFUSES: _OUT},
    "histogram": {TAKES: "the formula needs no memory (meta)"},
    "histogramdd": {TAKES: "the formula needs no memory (meta)"},
    "index_add": {REFUSES: _EMPTY},
    "index_fill": {TAKES: f"{_NO_DIMENSIONS}; that a value overflows an integer is seen by the kernel alone"},
    "index_put": {TAKES: "an internal assertion of LibTorch fails, for an index that selects nothing"},
    "index_select": {REFUSES: _OUT},
    "kthvalue": {REFUSES: _OUT},
    "linspace_tensor_overload": {REFUSES: _BOOLEANS},
    "logspace_tensor_overload": {REFUSES: _BOOLEANS},
    "masked_cumprod": {REFUSES: "without dimensions the kernel does not look at the dtype"},
    "masked_cumsum": {REFUSES: "without dimensions the kernel does not look at the dtype"},
    "masked_logaddexp": {REFUSES: _BOOLEANS},
    "linalg_householder_product": {TAKES: "the formula needs no memory (meta)"},
    "linalg_lstsq": {REFUSES: _VECTORS},
    "linalg_lstsq_grad_oriented": {REFUSES: _VECTORS},
    "linalg_pinv_singular": {REFUSES: _EMPTY},
    "linalg_solve": {TAKES: "an internal assertion of LibTorch fails, for there are no values (meta)"},
    "linalg_tensorsolve": {TAKES: "an inverse of the made-up matrix does not exist for one example alone (meta)"},
    "masked_select": {REFUSES: _OUT, TAKES: "the formula needs no memory (meta)"},
    "mode": {REFUSES: "without dimensions the kernel does not look at the dtype"},
    "native_group_norm": {REFUSES: _EMPTY},
    "narrow": {TAKES: _NO_DIMENSIONS},
    "nn_functional_adaptive_avg_pool3d": {REFUSES: _EMPTY},
    "nn_functional_adaptive_max_pool1d": {REFUSES: _EMPTY},
    "nn_functional_adaptive_max_pool2d": {REFUSES: _EMPTY},
    "nn_functional_adaptive_max_pool3d": {REFUSES: _EMPTY},
    "nn_functional_conv3d": {OTHER: _BIAS, REFUSES: _BIAS},
    "nn_functional_conv_transpose1d": {OTHER: _BIAS, REFUSES: _BIAS},
    "nn_functional_conv_transpose2d": {OTHER: _BIAS, REFUSES: _BIAS},
    "nn_functional_ctc_loss": {
        REFUSES: "another path of LibTorch, for lengths of numbers, converts targets",
        TAKES: "whether the labels of all items add up is data",
    },
    "nn_functional_embedding_bag": {REFUSES: "LibTorch takes booleans and bytes for indices here"},
    "nn_functional_huber_loss": {REFUSES: _BOOLEANS},
    "nn_functional_linear_cross_entropy": {REFUSES: _EMPTY},
    "nn_functional_linear_cross_entropy_chunked": {
        TAKES: "the formula converts the input, as autocast would",
        REFUSES: "the fused operator does not compare the sizes; the formula does",
    },
    "nn_functional_linear_cross_entropy_chunked_none": {
        TAKES: "the formula converts the input, as autocast would",
        REFUSES: "the fused operator does not compare the sizes; the formula does",
    },
    "nn_functional_mse_loss": {REFUSES: _BOOLEANS},
    "nn_functional_pdist": {REFUSES: _EMPTY},
    "nn_functional_scaled_dot_product_attention": {
        OTHER: "fused kernels do not look at sizes that are empty",
        REFUSES: "fused kernels do not look at sizes that are empty",
    },
    "nn_functional_smooth_l1_loss": {REFUSES: _BOOLEANS},
    "nn_functional_soft_margin_loss": {REFUSES: "softplus does not take complex numbers, log and exp do"},
    "resize_": {TAKES: "a negative size is not looked at"},
    "roll": {REFUSES: "for an empty tensor LibTorch does not look at the dimension"},
    "_segment_reduce_lengths": {REFUSES: _EMPTY},
    "take": {REFUSES: _OUT},
    "topk": {OTHER: "the first none of a tensor without dimensions is a number to LibTorch"},
}


def _crashes(mistake):
    pattern = _CRASHES.get(mistake.call.entry.formatted_name)
    return pattern is not None and re.match(pattern, mistake.what) is not None


def _changed_tensors(tensor):
    """A tensor with one thing changed: (what, tensor)."""
    yield "unsqueezed", tensor.unsqueeze(0)
    yield "two of it", torch.stack([tensor, tensor])
    if tensor.dim():
        yield "first of it", tensor.select(0, 0) if tensor.size(0) else tensor.sum(0)
    if tensor.dim() > 1:
        yield "last column", tensor.select(-1, -1) if tensor.size(-1) else tensor.sum(-1)
    for d in sorted({0, max(tensor.dim() - 1, 0), max(tensor.dim() - 2, 0)}) if tensor.dim() else ():
        yield f"one more along {d}", torch.cat([tensor, tensor.narrow(d, 0, min(1, tensor.size(d)))], d)
        if tensor.size(d) > 1:
            yield f"size one along {d}", tensor.narrow(d, 0, 1)
        if tensor.size(d) > 0:
            yield f"empty along {d}", tensor.narrow(d, 0, 0)
    for dtype in _DTYPES:
        if dtype != tensor.dtype:
            real = tensor.is_complex() and not dtype.is_complex
            yield str(dtype), (tensor.real if real else tensor).to(dtype)
    yield "meta", tensor.to("meta")


@dataclass
class ErrorInput(Call):
    """A call of which the database says that it throws."""

    regex: str = ""


@dataclass
class Mistake:
    """A call of an entry with arguments of its own."""

    what: str
    call: Call
    tensors: list

    def copies(self):
        return [plain_copy(tensor) for tensor in self.tensors]

    def describe(self):
        return f"{self.call.describe()}, {self.what}"


def mistakes(call):
    """What can be wrong with a call."""
    tensors = call.examples[0]
    if isinstance(call, ErrorInput):
        yield Mistake(f"error input: {call.regex}", call, tensors)
        return
    for k, tensor in enumerate(tensors):
        for what, changed in _changed_tensors(tensor):
            yield Mistake(f"tensor {k}: {what}", call, [*tensors[:k], changed, *tensors[k + 1 :]])
    for k in range(len(tensors) - 1):
        a, b = tensors[k : k + 2]
        if a.shape != b.shape or a.dtype != b.dtype:
            yield Mistake(f"tensors {k} and {k + 1} swapped", call, [*tensors[:k], b, a, *tensors[k + 2 :]])
    ranks = [tensor.dim() for tensor in tensors]
    for i, leaf in enumerate(call.leaves):
        if i not in call.positions and type(leaf) is int:
            for number in dict.fromkeys((leaf + 1, leaf - 1, max(ranks), -1 - max(ranks), -100)):
                leaves = [*call.leaves[:i], number, *call.leaves[i + 1 :]]
                yield Mistake(f"{leaf} became {number}", dataclasses.replace(call, leaves=leaves), tensors)


def calls(entry, good):
    """The calls to make mistakes in: good ones, and those that the database knows to throw."""
    found = [call for call in good if call.positions]
    for error in entry.error_inputs(DEVICE) if entry.error_inputs_func else ():
        sample = error.sample_input
        leaves, spec = _pytree.tree_flatten((sample.input, sample.args, sample.kwargs))
        positions = [i for i, leaf in enumerate(leaves) if torch.is_tensor(leaf)]
        if positions:
            call = ErrorInput(entry, sample, leaves, spec, positions, [], clones=True, regex=error.error_regex)
            call.examples = [[leaves[i].detach() for i in positions]]
            found.append(call)
    return [call for call in found if all(t.layout == torch.strided for t in call.examples[0])]


def _outcome(function):
    """What `function()` gives or throws: (results, error)."""
    seed(0)
    try:
        return function(), None
    except Exception as error:
        return None, error


def _text(error):
    return f"{type(error).__name__}: {error}".split("\n")[0][:160]


def _signature(results):
    return [(tuple(result.shape), result.dtype) for result in results]


def _tracked(tensors):
    return [k for k, tensor in enumerate(tensors) if tensor.is_floating_point() or tensor.is_complex()]


def _of_tracked(function, tensors, tracked):
    def of(*own):
        everything = list(tensors)
        for k, tensor in zip(tracked, own):
            everything[k] = tensor
        return tuple(function(*everything))

    return of


def _mappings(mistake):
    count = len(mistake.tensors)
    yield set(range(count))
    if count > 1:
        yield from ({k} for k in range(min(count, 3)))


def _vmapped(backend, mistake, mapped):
    tensors = mistake.copies()
    in_dims = tuple(0 if k in mapped else None for k in range(len(tensors)))
    batches = [torch.stack([t] * BATCH) if k in mapped else t for k, t in enumerate(tensors)]
    with backend.drawing("different"):
        return backend.vmap(lambda *own: tuple(mistake.call(*own)), in_dims)(*batches)


def _libtorch_differentiates(mistake):
    tensors = mistake.copies()
    tracked = _tracked(tensors)
    for k in tracked:
        tensors[k].requires_grad_()
    results = [result for result in mistake.call(*tensors) if result.requires_grad]
    cotangents = [torch.ones_like(result) for result in results]
    torch.autograd.grad(results, [tensors[k] for k in tracked], cotangents, allow_unused=True)
    return bool(results)


def _against(name, mistake, plain, refused, results, error, batch=()):
    """What is wrong with the end of a call under a transform: (direction, text), or None."""
    if refused:
        return None if error else (TAKES, f"{name} gives {_signature(results)}, the plain call {_text(refused)}")
    if error:
        # LibTorch lets a tensor without dimensions be on another device; one of each example's own has dimensions.
        fair = not mistake.what.endswith("meta") and not _BY_DATA.search(str(error))
        return (REFUSES, f"{name} throws {_text(error)}, the plain call gives {_signature(plain)}") if fair else None
    expected = [((*batch, *shape), dtype) for shape, dtype in _signature(plain)]
    if _signature(results) != expected:
        return OTHER, f"{name} gives {_signature(results)}, expected {expected}"
    return None


def differences(backend, mistake):
    """Where a mistake does not end under a transform as the plain call ends: (direction, text)."""
    plain, refused = _outcome(lambda: mistake.call(*mistake.copies()))
    if plain == []:
        return
    if isinstance(refused, torch.linalg.LinAlgError):
        return  # the values decide, which a tensor on another device may not have
    for mapped in _mappings(mistake):
        results, error = _outcome(lambda: _vmapped(backend, mistake, mapped))
        if found := _against(f"vmap over {sorted(mapped)}", mistake, plain, refused, results, error, (BATCH,)):
            yield found
    tensors = mistake.copies()
    tracked = _tracked(tensors)
    if not tracked:
        return
    own = [tensors[k] for k in tracked]
    function = _of_tracked(mistake.call, tensors, tracked)
    for name, transform in (
        ("vjp", lambda: backend.vjp(function, *own)[0]),
        ("jvp", lambda: backend.jvp(function, tuple(own), tuple(torch.ones_like(t) for t in own))[0]),
    ):
        results, error = _outcome(transform)
        found = _against(name, mistake, plain, refused, results, error)
        if found and error:
            no_oracle = mistake.call.entry.formatted_name in _CRASHING_BACKWARD
            if no_oracle or not _outcome(lambda: _libtorch_differentiates(mistake))[0]:
                continue  # LibTorch has no derivative either
        if found:
            yield found


def differences_of(backend, call):
    """The differences that no reason is known for, as a text; empty if there are none."""
    known = OPEN.get(call.entry.formatted_name, {})
    found = []
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        for mistake in mistakes(call):
            if _crashes(mistake):
                continue
            for direction, text in differences(backend, mistake):
                if direction not in known:
                    found.append(f"{mistake.what}: {text}")
    return f"{len(found)} differences, such as {found[0]}" if found else ""
