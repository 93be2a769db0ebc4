"""Every higher-order operator of torch inside of transforms: it works, or says why not and what to do."""

import importlib
import pkgutil

import pytest
import torch
import torch._higher_order_ops
import torch.func
from support import assert_same, randn
from torch._higher_order_ops.effects import new_token_tensor
from torch._higher_order_ops.flat_apply import func_to_graphable
from torch._higher_order_ops.foreach_map import foreach_map
from torch._higher_order_ops.wrap import InductorCompiledCallable
from torch.nn.attention.flex_attention import AuxRequest, create_block_mask, flex_attention
from torch.utils._pytree import tree_flatten
from torch_tower import grad, jvp, vmap

pytestmark = pytest.mark.filterwarnings("ignore:flex_attention called without", "ignore:.*torch.jit.script")

for module in pkgutil.iter_modules(torch._higher_order_ops.__path__):
    importlib.import_module(f"torch._higher_order_ops.{module.name}")
for name in ("torch._prims.rng_prims", "torch._export.wrappers", "torch._dynamo._trace_wrapped_higher_order_op"):
    importlib.import_module(name)


def product(a, b):
    return a.sin() * b


class Product(torch.autograd.Function):
    @staticmethod
    def forward(a, b):
        return product(a, b)

    @staticmethod
    def setup_context(ctx, inputs, output):
        ctx.save_for_backward(*inputs)

    @staticmethod
    def backward(ctx, g):
        a, b = ctx.saved_tensors
        return g * a.cos() * b, g * a.sin()


class Delegate:
    class original_module:  # noqa: N801 (torch's name)
        @staticmethod
        def module():
            return product


graph = torch.fx.symbolic_trace(product)
graph_of_one = torch.fx.symbolic_trace(lambda a, b: (product(a, b),))
forward_graph = torch.fx.symbolic_trace(lambda a, b: (product(a, b), [a, b]))
backward_graph = torch.fx.symbolic_trace(lambda ct, a, b: (ct * a.cos() * b, ct * a.sin()))
multiply = torch.ops.aten.mul.Tensor


def flat_product(op, a, b):
    flat, spec = tree_flatten(((a, b), {}))
    return op(func_to_graphable(product)[1], spec, *flat)


def attention(op, a, b):
    """Of one query and one key, attention is the value."""
    q, v = a.sin().view(1, 1, 1, 1), b.view(1, 1, 1, 1)
    no_mask = (1, 1, *([None] * 8), 128, 128, lambda b, h, i, j: torch.tensor(True))
    out, lse, _ = op(q, q, v, lambda s, b, h, i, j: s + a, no_mask, 1.0, {})
    assert lse.shape == (1, 1, 1)
    return out.view(()) * a.sin()


# name: sin(a) b by the operator
PROGRAMS = {
    "_export_tracepoint": lambda op, a, b: product(*op(a, b, kind="module_call_inputs", path="p")),
    "associative_scan": lambda op, a, b: op(lambda u, v: u * v, [torch.stack([a.sin(), b])], ())[0][1],
    "autograd_function_apply": lambda op, a, b: op(
        forward_graph, backward_graph, a, b, non_differentiable_idx=[], saved_for_backward_idx=[0, 1]
    ),
    "cond": lambda op, a, b: op(b > a, graph, lambda a, b: b * a.sin(), (a, b)),
    "control_deps": lambda op, a, b: op((a,), graph, a, b),
    "custom_function_call": lambda op, a, b: op(Product, a, b),
    "dynamo_bypassing_wrapper": lambda op, a, b: op(lambda f: f, graph, a, b),
    "executorch_call_delegate": lambda op, a, b: op(Delegate, a, b),
    "flat_apply": flat_product,
    "flex_attention": attention,
    "foreach_map": lambda op, a, b: foreach_map(torch.mul, [a.sin()], [b])[0],
    "hints_wrapper": lambda op, a, b: op(product, (a, b), {}, {"hint": 1}),
    "inductor_compiled_code": lambda op, a, b: op(InductorCompiledCallable(lambda all: product(*all)), [a, b]),
    "invoke_leaf_function": lambda op, a, b: op(product, product, tree_flatten(((a, b), {}))[1], "", a, b),
    "invoke_quant": lambda op, a, b: op(graph, a, b),
    "invoke_quant_packed": lambda op, a, b: op(graph, a, b),
    "invoke_subgraph": lambda op, a, b: op(graph_of_one, "name", a, b)[0],
    "local_map_hop": lambda op, a, b: op(graph_of_one, a, b)[0],
    "map_impl": lambda op, a, b: op(product, [torch.stack([b, a])], [b])[1],
    "out_dtype": lambda op, a, b: op(multiply, torch.float64, a.sin(), b),
    "print": lambda op, a, b: (op("{}", 3), product(a, b))[1],
    "run_and_save_rng_state": lambda op, a, b: op(multiply, a.sin(), b)[1],
    "run_const_graph": lambda op, a, b: op(graph, (a, b)),
    "run_with_rng_state": lambda op, a, b: op(torch.get_rng_state(), multiply, a.sin(), b),
    "scan": lambda op, a, b: op(lambda c, x: [c * x, c], [a.sin()], [torch.stack([b, b * 0 + 1])], ())[0],
    "strict_mode": lambda op, a, b: op(product, (a, b)),
    "tag_activation_checkpoint": lambda op, a, b: op(graph, a, b, use_reentrant=False),
    "trace_wrapped": lambda op, a, b: op(a, b, fn=product),
    "while_loop": lambda op, a, b: op(lambda i, u, v: i < 1, lambda i, u, v: (i + 1, u * v), (0, a.sin()), (b,))[1],
    "while_loop_stack_output": lambda op, a, b: op(
        lambda i, u, v: i < 1, lambda i, u, v: (i + 1, u * v), (torch.tensor(0), a.sin()), (b,)
    )[1][0],
    "with_effects": lambda op, a, b: op(new_token_tensor(), multiply, a.sin(), b)[1],
    "wrap": lambda op, a, b: op(product, a, b),
    "wrap_activation_checkpoint": lambda op, a, b: op(graph, a, b, use_reentrant=False),
    "wrap_with_autocast": lambda op, a, b: op("cpu", None, False, None, product, a, b),
    "wrap_with_set_grad_enabled": lambda op, a, b: op(True, product, a, b),
}

REFUSED = {
    "aoti_call_delegate": (lambda op, a, b: op(product, graph, [], [a, b]), "Unexpected lowered_module type"),
    "auto_functionalized": (
        lambda op, a, b: op(torch.ops.test_torch_higher_order.double_.default, x=a),
        "double_ would write into a tensor of .* has no functional form",
    ),
    "auto_functionalized_v2": (
        lambda op, a, b: op(torch.ops.test_torch_higher_order.double_.default, _x_base_index=0, _all_bases=[a]),
        "double_ would write into a tensor of .* has no functional form",
    ),
    "call_torchbind": (lambda op, a, b: op(None, "method", a), "Unsupported first arg type"),
    "flex_attention_backward": (
        lambda op, a, b: op(
            *[t.float().view(1, 1, 1, 1) for t in (a, b)],
            *[t.view(1, 1, 1, 1) for t in (a, a, b, b)],
            *[product] * 2,
            (),
            1.0,
            {},
            (),
            (),
        ),
        "mixed query, key, and value dtype",
    ),
    "graphsafe_run_with_rng_state": (
        lambda op, a, b: op(multiply, a, b, rng_state=None),
        "graphsafe_run_with_rng_state is a higher-order operator without rules .* for cpu.*register_higher_order",
    ),
    "inline_asm_elementwise": (
        lambda op, a, b: op(a, b, asm_str="", constraints="", dtype=torch.float32),
        "only supports CUDA tensors",
    ),
    "register_hook": (lambda op, a, b: op(a, lambda g: g), "registered a hook on a tensor inside of the transform"),
    "run_dtensor_rng_op": (
        lambda op, a, b: op(torch.get_rng_state(), 0, multiply, a, b),
        "run_dtensor_rng_op is a higher-order operator without rules .* for cpu.*register_higher_order",
    ),
    "triton_kernel_wrapper_functional": (
        lambda op, a, b: op(
            kernel_idx=0, constant_args_idx=0, grid=[], tma_descriptor_metadata={}, kwargs={"a": a}, tensors_to_clone=[]
        ),
        "triton_kernel_wrapper_functional .* runs a Triton kernel, which reads memory.*register_higher_order",
    ),
    "triton_kernel_wrapper_mutation": (
        lambda op, a, b: op(kernel_idx=0, constant_args_idx=0, grid=[], tma_descriptor_metadata={}, kwargs={"a": a}),
        "triton_kernel_wrapper_mutation .* runs a Triton kernel, which reads memory.*register_higher_order",
    ),
}

library = torch.library.Library("test_torch_higher_order", "DEF")
library.define("double_(Tensor(a!) x) -> ()")
library.impl("double_", lambda x: x.mul_(2), "CPU")

OPERATORS = {
    name: op for name, op in torch._ops._higher_order_ops.items() if type(op).__module__.partition(".")[0] == "torch"
}


def test_the_tables_have_every_operator_of_torch():
    assert OPERATORS.keys() - PROGRAMS.keys() - REFUSED.keys() == set()


@pytest.mark.cpu("some are for the CPU alone")
@pytest.mark.parametrize("name", sorted(OPERATORS.keys() & PROGRAMS.keys()))
def test_an_operator_has_its_value_and_derivatives_for_each_example(name):
    f = lambda a, b: PROGRAMS[name](OPERATORS[name], a, b)
    a, b = randn(3), randn(3)
    assert_same(vmap(f)(a, b), product(a, b))
    mixed = lambda a, b: grad(lambda a: grad(f, 1)(a, b))(a)
    assert_same(vmap(mixed)(a, b), a.cos())
    if name not in ("autograd_function_apply", "custom_function_call"):  # whose rule is a backward
        assert_same(vmap(lambda a, b: jvp(f, (a, b), (b, a))[1])(a, b), a.cos() * b * b + a.sin() * a)


@pytest.mark.cpu("some messages name the device")
@pytest.mark.parametrize("name", sorted(OPERATORS.keys() & REFUSED.keys()))
def test_an_operator_that_is_refused_says_why(name):
    program, words = REFUSED[name]
    with pytest.raises((RuntimeError, ValueError, NotImplementedError), match=words):
        vmap(grad(lambda a, b: program(OPERATORS[name], a, b)))(randn(3), randn(3))


def test_a_captured_autograd_function_keeps_its_backward_in_every_order():
    tenfold = torch.fx.symbolic_trace(lambda ct, a, b: (10 * ct * a.cos() * b, 10 * ct * a.sin()))
    op = torch.ops.higher_order.autograd_function_apply
    f = lambda a, b: op(forward_graph, tenfold, a, b, non_differentiable_idx=[], saved_for_backward_idx=[])
    a, b = randn(3), randn(3)
    assert_same(vmap(grad(f))(a, b), 10 * a.cos() * b)
    assert_same(vmap(grad(grad(f)))(a, b), -10 * a.sin() * b)
    assert_same(grad(lambda a: vmap(grad(f))(a, b).sum())(a), -10 * a.sin() * b)


@pytest.mark.cpu("of flex_attention by CPU kernels")
def test_flex_attention_is_mapped_with_captured_scores_and_masks():
    q, k, v, bias = randn(3, 1, 2, 5, 4), randn(3, 1, 2, 6, 4), randn(1, 2, 6, 4), randn(3, 5, 6)
    mask = create_block_mask(lambda b, h, i, j: i >= j, None, None, 5, 6, device="cpu")

    def attend(q, k, bias):
        score = lambda s, b, h, i, j: s + bias[i, j]
        out, aux = flex_attention(q, k, v, score_mod=score, block_mask=mask, return_aux=AuxRequest(lse=True))
        return out, aux.lse

    def by_hand(q, k, bias):
        scores = q @ k.mT / 2 + bias
        scores = scores.masked_fill(~torch.ones(5, 6).tril().bool(), -torch.inf)
        return scores.softmax(-1) @ v, scores.logsumexp(-1)

    expected = torch.func.vmap(by_hand)(q, k, bias)
    assert_same(vmap(attend)(q, k, bias), expected)

    t = randn(3)
    warmer = vmap(lambda q, t: flex_attention(q, k[0], v, score_mod=lambda s, b, h, i, j: s * t.exp()))
    warmer_by_hand = torch.func.vmap(lambda q, t: (q @ k[0].mT / 2 * t.exp()).softmax(-1) @ v)
    tangents = randn(*q.shape), randn(3)
    assert_same(jvp(warmer, (q, t), tangents), torch.func.jvp(warmer_by_hand, (q, t), tangents))
    # torch's own check.
    with pytest.raises(NotImplementedError, match="FlexAttention does not support backward on CPU"):
        grad(lambda q: attend(q, k[0], bias[0])[0].sum())(q[0])
