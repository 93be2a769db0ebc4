"""What those of torch's higher-order operators are inside Tower's transforms that are not simply what they run.

cond, while_loop, scan and associative_scan are Tower's. torch's public functions hand these operators trees that they
took apart, with functions that put them together again, and count on torch.compile to give the results their trees.
Inside of a transform nothing is compiled, so that is done here.
"""

from functools import partial
from typing import Any, Callable, Sequence

import torch
from torch import Tensor
from torch._higher_order_ops.associative_scan import wrap_combine_fn_flat as combine_leaves
from torch._higher_order_ops.invoke_leaf_function import unflatten_args_with_modules
from torch._higher_order_ops.scan import wrap_combine_fn_flat as step_leaves
from torch.utils._pytree import TreeSpec, tree_leaves, tree_unflatten

from . import _C, _control_flow
from ._trees import what_is


def _cond(pred: Any, true_fn: Callable, false_fn: Callable, operands: Sequence = ()) -> Any:
    return _control_flow.cond(pred, true_fn, false_fn, *operands)


# ---- while_loop ------------------------------------------------------------------------------------------------------


def _while_loop(
    cond_fn: Callable, body_fn: Callable, carried: Sequence, additional: Sequence = (), *, mutated_arg_indices: str = ""
) -> Any:
    """Numbers among what is carried stay numbers while the predicate's value is known, as in torch's loop; where it is
    that of each example, or of a compiled function, they go on as tensors."""
    del mutated_arg_indices  # a body that writes to what it is given is refused by the loop
    start = state = tuple(carried)

    def goes_on(state: tuple) -> Any:
        return cond_fn(*state, *additional)

    def step(state: tuple) -> tuple:
        leaves = tree_leaves(body_fn(*state, *additional))
        if len(leaves) != len(start):
            raise ValueError(
                f"while_loop: the body returned {len(leaves)} values, but {len(start)} "
                f"{'is' if len(start) == 1 else 'are'} carried. Return as many."
            )
        return tuple(leaves)

    unrolled = any(not isinstance(value, Tensor) for value in state)
    while unrolled and _is_known(going := goes_on(state)):
        if not going:
            break
        state = step(state)
    else:
        state = _loop(goes_on, step, state)
    result = [value.clone() if any(value is s for s in start if isinstance(s, Tensor)) else value for value in state]
    spec = _carried_spec(body_fn)
    return tuple(result) if spec is None else tree_unflatten(result, spec)


def _loop(goes_on: Callable, step: Callable, state: tuple) -> tuple:
    device = next((value.device for value in state if isinstance(value, Tensor)), None)
    start = tuple(_as_tensor(value, device) for value in state)
    last = _control_flow.while_loop(
        goes_on, lambda state: tuple(_as_tensor(value, device) for value in step(state)), start
    )
    return tuple(
        now.item() if not isinstance(then, Tensor) and _is_known(now) else now for then, now in zip(state, last)
    )


def _as_tensor(value: Any, device: torch.device | None) -> Tensor:
    return value if isinstance(value, Tensor) else torch.tensor(value, device=device)


def _is_known(value: Any) -> bool:
    """Whether code can ask for the value: it is not that of each example, nor one of a graph that is being traced."""
    while isinstance(value, Tensor) and (seen := _C.inspect(value)):
        transform, _, _, _, constant, inner, _, batch_dim = seen
        if not constant and (transform == "trace" or batch_dim is not None):
            return False
        value = inner
    return True


def _carried_spec(body_fn: Callable) -> TreeSpec | None:
    """The tree of what is carried, which torch's public function gave to the body that it made of the user's."""
    if getattr(body_fn, "__qualname__", "") != "while_loop.<locals>.flat_body_fn":
        return None
    cells = dict(zip(body_fn.__code__.co_freevars, body_fn.__closure__))
    return cells["in_spec"].cell_contents.child(0)


# ---- scans -----------------------------------------------------------------------------------------------------------


def _given_to(combine_fn: Callable, wrapper: Callable) -> dict | None:
    """What torch's public function told the function that it made of the user's."""
    if isinstance(combine_fn, partial) and combine_fn.func is wrapper:
        return combine_fn.keywords
    return None


def _scan(combine_fn: Callable, init: Sequence, xs: Sequence, additional_inputs: Sequence = ()) -> Any:
    trees = _given_to(combine_fn, step_leaves)
    if trees is not None:
        user = trees["combine_fn"]
        return _control_flow.scan(
            lambda carry, element: _pair(user(carry, element)),
            tree_unflatten(list(init), trees["spec_init"]),
            tree_unflatten(list(xs), trees["spec_xs"]),
        )

    def step(carry: tuple, element: tuple) -> tuple:
        leaves = tree_leaves(combine_fn(*carry, *element, *additional_inputs))
        return tuple(leaves[: len(init)]), tuple(leaves[len(init) :])

    carry, outputs = _control_flow.scan(step, tuple(init), tuple(xs))
    return *carry, *outputs


def _pair(result: Any) -> tuple:
    if not isinstance(result, (tuple, list)) or len(result) != 2:
        raise ValueError(f"scan: combine_fn must return (next carry, output), but it returned {what_is(result)}.")
    return tuple(result)


def _associative_scan(combine_fn: Callable, xs: Sequence, additional_inputs: Sequence = ()) -> Any:
    trees = _given_to(combine_fn, combine_leaves)
    if trees is not None:
        return _control_flow.associative_scan(trees["combine_fn"], tree_unflatten(list(xs), trees["spec"]))

    def combine(a: tuple, b: tuple) -> tuple:
        return tuple(tree_leaves(combine_fn(*a, *b, *additional_inputs)))

    return _control_flow.associative_scan(combine, tuple(xs))


# ---- operators that hide their derivatives ---------------------------------------------------------------------------


def _autograd_function_apply(fwd: Callable, bwd: Callable, *args, **kwargs) -> Any:
    """A torch.autograd.Function as torch.compile captures it: `fwd` also returns what `bwd` needs."""
    dirty, constant = kwargs.get("dirty_idx") or (), kwargs["non_differentiable_idx"]
    if dirty:
        raise NotImplementedError(
            "autograd_function_apply: the captured Function writes to its arguments (ctx.mark_dirty), which transforms "
            "do not follow in a captured graph. Call the Function itself."
        )

    class Captured(torch.autograd.Function):
        @staticmethod
        def forward(ctx, *args):
            output, ctx.saved = torch.fx.Interpreter(fwd).run(*args)
            outputs = output if isinstance(output, (tuple, list)) else (output,)
            ctx.mark_non_differentiable(*(outputs[i] for i in constant))
            return output

        @staticmethod
        def backward(ctx, *grads):
            return torch.fx.Interpreter(bwd).run(*grads, *ctx.saved)

    return Captured.apply(*args)


def _invoke_leaf_function(
    real_fn: Callable, fake_fn: Callable, input_spec: TreeSpec, mutated: str, *flat_args, requires_grad_indices=""
) -> Any:
    """The dense implementation detaches the arguments; torch's autograd kernel puts their derivatives back."""
    del fake_fn, mutated, requires_grad_indices
    with unflatten_args_with_modules(flat_args, input_spec) as (args, kwargs):
        return real_fn(*args, **kwargs)


# These are called without a look at torch's own checks: of cond, because it takes trees from torch.compile alone; of
# autograd_function_apply, because it finds no kernel by a key.
AT_ONCE = torch.ops.higher_order.cond, torch.ops.higher_order.autograd_function_apply

MEANINGS = {
    torch.ops.higher_order.cond: _cond,
    torch.ops.higher_order.while_loop: _while_loop,
    torch.ops.higher_order.scan: _scan,
    torch.ops.higher_order.associative_scan: _associative_scan,
    torch.ops.higher_order.autograd_function_apply: _autograd_function_apply,
    torch.ops.higher_order.invoke_leaf_function: _invoke_leaf_function,
}
