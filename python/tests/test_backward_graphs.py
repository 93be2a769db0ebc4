"""Batched gradients through graphs that LibTorch's autograd recorded: vmap over torch.autograd.grad(y, x, v)."""

import pathlib
import re

import pytest
import torch
import torch.nn.functional as F
import torch_tower
import torchgen
from support import assert_same, randn
from torch_tower import vjp, vmap

aten = torch.ops.aten


def numbers(*shape, dtype=torch.float64):
    return torch.randn(*shape, dtype=dtype, generator=torch.Generator().manual_seed(sum(shape)))


@pytest.fixture
def no_loops():
    before = torch_tower.set_fallback_is_error(True)
    yield
    torch_tower.set_fallback_is_error(before)


TABLE, ROWS, STARTS = numbers(5, 3), torch.tensor([0, 4, 1, 1, 2, 3, 4]), torch.tensor([0, 2, 2, 5])


def _bags(mode, **options):
    def program(table, weights):
        weights = {"per_sample_weights": weights} if mode == "sum" else {}
        return F.embedding_bag(ROWS, table, STARTS, mode=mode, **weights, **options)

    return program, TABLE, numbers(7)


def _ctc(targets, lengths, zero_infinity=False):
    def program(x):
        return F.ctc_loss(x.log_softmax(-1), targets, (6, 5), lengths, reduction="none", zero_infinity=zero_infinity)

    return program, numbers(6, 2, 4)


def _lstm(bidirectional, batch_first):
    module = torch.nn.LSTM(3, 4, num_layers=2, bidirectional=bidirectional, batch_first=batch_first)
    parameters = [p.detach() for p in module.parameters()]
    names = [name for name, _ in module.named_parameters()]

    def program(x, *values):
        y, (h, c) = torch.func.functional_call(module, dict(zip(names, values)), (x,))
        return torch.cat([y.flatten(), 2 * h.flatten(), c.flatten()])

    return program, numbers(2, 5, 3, dtype=torch.float32), *parameters


def _fake_quantized(operator, *options):
    return lambda x, s, z: operator(x, s, z, *options, -3, 4, 0.5)


PROGRAMS = {
    "index_put": (
        lambda x, v: x.index_put((torch.tensor([0, 2, 0]),), v, accumulate=True),
        *(numbers(3, 2), numbers(3, 2)),
    ),
    "bags: sum": _bags("sum"),
    "bags: sum, padded": _bags("sum", padding_idx=1),
    "bags: mean by frequency": _bags("mean", scale_grad_by_freq=True),
    "bags: mean, padded": _bags("mean", padding_idx=4),
    "bags: max": _bags("max"),
    "bags: last offset": _bags("mean", include_last_offset=True),
    "ctc: rows": _ctc(torch.tensor([[1, 2, 1], [3, 3, 0]]), (3, 2)),
    "ctc: one after the other": _ctc(torch.tensor([1, 2, 1, 3, 3]), (3, 2)),
    "ctc: impossible": _ctc(torch.tensor([1, 1, 1, 1, 1, 3, 3]), (5, 2), zero_infinity=True),
    "masked softmax": (lambda x: aten._masked_softmax(x, torch.eye(3, 4) > 0, 1, 2), numbers(3, 4)),
    "weight norm": (lambda v, g: torch._weight_norm(v, g, 0), numbers(3, 4), numbers(3, 1)),
    "attention": (F.scaled_dot_product_attention, numbers(2, 2, 3, 4), numbers(2, 2, 5, 4), numbers(2, 2, 5, 4)),
    "causal attention": (
        lambda q, k, v: F.scaled_dot_product_attention(q, k, v, is_causal=True),
        *(numbers(1, 2, 4, 8, dtype=torch.float32) for _ in range(3)),
    ),
    "masked attention": (
        lambda q, k, v: F.scaled_dot_product_attention(q, k, v, attn_mask=numbers(3, 5)),
        *(numbers(2, 2, 3, 4), numbers(2, 2, 5, 4), numbers(2, 2, 5, 4)),
    ),
    "lstm": _lstm(False, True),
    "lstm in both directions": _lstm(True, False),
    "fake quantization": (
        _fake_quantized(aten._fake_quantize_learnable_per_tensor_affine),
        *(3 * numbers(3, 4, dtype=torch.float32), torch.tensor([0.4]), torch.tensor([0.7])),
    ),
    "fake quantization of channels": (
        _fake_quantized(aten._fake_quantize_learnable_per_channel_affine, 1),
        *(3 * numbers(2, 3, 2, dtype=torch.float32), torch.tensor([0.4, 0.8, 0.2]), torch.tensor([0.7, -1.2, 0.0])),
    ),
    "convolution's kernel": (
        lambda x, w, b: torch._C._nn.thnn_conv2d(x, w, (2, 2), b, 1, 1),
        *(numbers(2, 2, 4, 4), numbers(3, 2, 2, 2), numbers(3)),
    ),
    # The kernel is the CPU's.
    "grid sampler's kernel": (
        lambda x, grid: torch._grid_sampler_2d_cpu_fallback(x, grid, 0, 0, False),
        *(numbers(1, 2, 4, 4, dtype=torch.float32).cpu(), 0.3 * numbers(1, 3, 3, 2, dtype=torch.float32).cpu()),
    ),
    "resampling": (lambda x: aten._upsample_lanczos2d_aa(x, (3, 5), False), numbers(1, 2, 6, 4)),
}


@pytest.mark.parametrize("name", PROGRAMS)
def test_a_batch_of_gradients_through_a_graph_is_the_loop_over_them(name, no_loops):
    program, *inputs = PROGRAMS[name]
    inputs = [x.clone().requires_grad_() for x in inputs]
    y = program(*inputs)

    def gradients(v):
        found = torch.autograd.grad(y, inputs, v, retain_graph=True, allow_unused=True)
        return tuple(torch.zeros_like(x) if g is None else g for g, x in zip(found, inputs))

    for place in (0, y.dim()):
        vs = torch.stack([numbers(k, *y.shape)[0].to(y) for k in (1, 2, 3)], place)
        batch = vmap(gradients, in_dims=place)(vs)
        loop = [torch.stack(column) for column in zip(*(gradients(v) for v in vs.unbind(place)))]
        for actual, expected in zip(batch, loop, strict=True):
            torch.testing.assert_close(actual, expected)
        assert any(bool(g.any()) for g in loop)


def _gradient_of_bags(by_frequency=False, sparse=False):
    bags, sizes = torch.tensor([0, 0, 1, 1, 1]), torch.tensor([2, 3])
    starts = torch.tensor([0, 2])
    return lambda g: aten._embedding_bag_backward(
        g, torch.tensor([0, 3, 3, 1, 3]), starts, bags, sizes, sizes, 4, by_frequency, 0, sparse, None
    )


def test_gradients_of_bags_that_have_no_derivative_or_no_dense_form_say_so():
    with pytest.raises(RuntimeError, match="scale_grad_by_freq has no derivative.*Transform embedding_bag itself"):
        vjp(_gradient_of_bags(by_frequency=True), numbers(2, 3))
    with pytest.raises(RuntimeError, match="sparse gradients are not supported by transforms. Use sparse = false"):
        vmap(_gradient_of_bags(sparse=True))(numbers(3, 2, 3))
    function = _gradient_of_bags()
    torch.testing.assert_close(vjp(function, numbers(2, 3))[0], function(numbers(2, 3)))


# What transforms refuse: tensors of other kinds, and parts of LibTorch that other libraries fill in.
ELSEWHERE = re.compile("nested|sparse|mkldnn|overrideable|coalesced|^indices$|^values$|^to_padded_tensor$")


def test_every_operator_of_a_backward_formula_that_a_dense_tensor_can_reach_has_a_batching_rule():
    formulas = pathlib.Path(torchgen.__file__).parent / "packaged" / "autograd" / "derivatives.yaml"
    text = re.sub(r'not_implemented\(".*?"\)', "", formulas.read_text())
    lines = [line.split(":", 1)[1] for line in text.splitlines() if re.match(r"\s+[\w, ]+: ", line)]
    called = {name.removesuffix("_symint") for name in re.findall(r"\w+", "\n".join(lines))}
    assert {"mm", "_ctc_loss_backward", "sigmoid_backward", "linear_backward"} <= called

    def has_kernel(operator):
        kinds = ("CPU", "CompositeExplicitAutograd", "CompositeExplicitAutogradNonFunctional")
        return any(torch._C._dispatch_has_kernel_for_dispatch_key(operator, kind) for kind in kinds)

    rows = [row for row in torch_tower.coverage() if row.transform == "vmap" and row.served == "loop"]
    looped = {row.op for row in rows if row.op.removeprefix("aten::").split(".")[0] in called and has_kernel(row.op)}
    assert {op for op in looped if not ELSEWHERE.search(op.removeprefix("aten::"))} == set()


def test_the_gradient_of_a_bias_without_a_weight():
    x, bias = randn(4, 3).requires_grad_(), randn(3).requires_grad_()
    y = torch.native_layer_norm(x, (3,), None, bias, 1e-5)[0]
    directions = randn(5, 4, 3)

    def pullback(v):
        return torch.autograd.grad(y, (x, bias), v, retain_graph=True)

    assert_same(vmap(pullback)(directions), tuple(torch.stack(g) for g in zip(*map(pullback, directions))))
