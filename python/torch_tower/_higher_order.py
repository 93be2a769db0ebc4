"""torch's higher-order operators (torch.cond, torch.ops.higher_order.*) inside Tower's transforms.

Such an operator takes functions among its arguments and finds what to do by dispatch key, in a table of its own. What
it finds at Tower's key is `call_inside`, put there when it is first called inside of a transform (`find_kernel`):

1. rules that were given to it by register_higher_order: it is then an operator of Tower's with those rules;
2. an autograd kernel of somebody's own: the torch.autograd.Function that it applies is one of Tower's operators;
3. of torch's own, control flow, which is Tower's, and what else has a meaning of its own (_torch_higher_order.py);
4. else its dense implementation, run with the transforms: it is made of operators.
"""

import sys
from functools import partial
from types import CodeType
from typing import Any, Callable, NamedTuple

import torch
from torch import Tensor
from torch._C import DispatchKey
from torch._functorch.autograd_function import VmapInfo
from torch._ops import HigherOrderOperator, resolve_key
from torch.utils._pytree import _broadcast_to_and_flatten, tree_flatten, tree_leaves

from . import _C
from ._containers import in_parts
from ._functions import LINEAR, SPARSITY, Rules, flat_out_dims, kernels, output_and_dims
from ._torch_higher_order import MEANINGS
from ._trees import Tree, what_is

KEY = torch._C._dispatch_key_parse(_C.dispatch_key)


# ---- what torch finds ------------------------------------------------------------------------------------------------


def find_kernel(key: DispatchKey) -> None:
    """Called where an operator found no kernel at `key` in its table, before it gives up."""
    if key != KEY:
        return
    op = sys._getframe(1).f_locals.get("op")  # of torch._ops.resolve_key
    if isinstance(op, HigherOrderOperator) and key not in op.py_kernels:
        op.py_impl(key)(partial(call_inside, op))


def call_at_once(op: HigherOrderOperator, *args, **kwargs) -> Any:
    """A call inside of a transform, before the operator's own `__call__`."""
    if torch._C._functorch.peek_interpreter_stack() is not None:
        return type(op).__call__(op, *args, **kwargs)
    return call_inside(op, *args, **kwargs)


def call_inside(op: HigherOrderOperator, *args, **kwargs) -> Any:
    rules = _rules.get(op)
    if not rules or not (rules.vjp or rules.jvp):
        autograd = None if op in kernels.below else _own_autograd(op)
        if autograd:
            with kernels.running((*kernels.below, op)):
                return autograd(*args, **kwargs)
    if rules and any(isinstance(leaf, Tensor) for leaf in tree_leaves((args, kwargs))):
        return _call_with_rules(op, rules, args, kwargs)
    if op in MEANINGS:
        return MEANINGS[op](*args, **kwargs)
    return _open(op, args, kwargs)


# py_autograd_impl's wrapper of the function that it was given, which is called where a tensor requires grad.
_MAYBE_AUTOGRAD = next(
    code
    for code in HigherOrderOperator.py_autograd_impl.__code__.co_consts
    if isinstance(code, CodeType) and code.co_name == "maybe_run_autograd"
)


def _own_autograd(op: HigherOrderOperator) -> Callable | None:
    """Its autograd kernel, unless that is one of torch's, which trace the functions that the operator was given."""
    kernel = op.py_kernels.get(DispatchKey.Autograd)
    if getattr(kernel, "__code__", None) is _MAYBE_AUTOGRAD:
        kernel = kernel.__closure__[_MAYBE_AUTOGRAD.co_freevars.index("fn")].cell_contents
    module = getattr(kernel, "__module__", None) or ""
    return None if kernel is None or module.partition(".")[0] == "torch" else kernel


def _open(op: HigherOrderOperator, args: tuple, kwargs: dict) -> Any:
    if op.name().startswith("triton_kernel_wrapper"):
        raise _error(op, args, kwargs, "it runs a Triton kernel, which reads memory")
    tensors = [leaf for leaf in tree_leaves((args, kwargs)) if isinstance(leaf, Tensor)]
    devices = {t.device.type for t in tensors} - {"cpu"} or {"cpu"}
    for device in devices:
        try:
            key = resolve_key(op, DispatchKey.__members__[torch._C._dispatch_key_for_device(device)])
        except NotImplementedError:
            continue
        if key in op.py_kernels:
            return op.py_kernels[key](*args, **kwargs)
    raise _error(op, args, kwargs, f"it has no dense implementation for {' or '.join(sorted(devices))}")


def _error(op: HigherOrderOperator, args: tuple, kwargs: dict, reason: str) -> NotImplementedError:
    return NotImplementedError(
        f"{_place(args, kwargs)}: {op.name()} is a higher-order operator without rules for transforms, and cannot be "
        f"opened: {reason}. Give it rules, torch_tower.register_higher_order(op, vmap=…, jvp=…, vjp=…), or register "
        "an implementation that is made of operators, op.py_impl(DispatchKey.CompositeExplicitAutograd)."
    )


def _place(args: tuple, kwargs: dict) -> str:
    """The innermost transform that a tensor of the arguments belongs to."""
    seen = [_C.inspect(leaf) for leaf in tree_leaves((args, kwargs)) if isinstance(leaf, Tensor)]
    levels = [(level, label) for _, label, level, *_ in filter(None, seen)]
    return "{1} (level {0})".format(*max(levels)) if levels else "inside a transform"


# ---- rules -----------------------------------------------------------------------------------------------------------


class _UserRules(NamedTuple):
    vmap: Callable | None
    jvp: Callable | None
    vjp: Callable | None


_rules: dict[HigherOrderOperator, _UserRules] = {}


def register_higher_order(
    op: HigherOrderOperator,
    *,
    vmap: Callable | None = None,
    jvp: Callable | None = None,
    vjp: Callable | None = None,
) -> HigherOrderOperator:
    """Rules of a `torch._ops.HigherOrderOperator` inside of Tower's transforms, at every level, however they nest.

    `inputs` is the tuple of the arguments, functions and numbers among them, and `output` what the call gave:

        vjp(inputs, output, cotangents)   the gradient of each argument, a tuple: None for zero and for what holds no
                                          tensor. `cotangents` is a tree like the output.
        jvp(inputs, output, tangents)     the tangent of the output, a tree like it. `tangents` is a tuple like inputs,
                                          with None for what is no tensor.
        vmap(info, in_dims, *inputs)      (outputs of the batch, out_dims), as of a torch.autograd.Function:
                                          info.batch_size, info.randomness; in_dims is a tuple like the inputs.

    Keyword arguments of the call are given to each by keyword. Rules are ordinary code, which is itself mapped and
    differentiated. Without `vmap` the dense implementation is mapped; without a derivative, that is differentiated;
    `jvp` serves reverse mode by transposition, and `vjp` forward mode if `linear_backward(op)` was declared. Rules that
    were given before are replaced; none at all takes them back.
    """
    if not isinstance(op, HigherOrderOperator):
        raise TypeError(
            f"register_higher_order: expected a torch._ops.HigherOrderOperator, got {what_is(op)}. Give rules to a "
            "torch.library.custom_op by its register_autograd and register_vmap."
        )
    _operators.pop(op, None)
    if vmap or jvp or vjp:
        _rules[op] = _UserRules(vmap, jvp, vjp)
    else:
        _rules.pop(op, None)
    return op


class _Call:
    """One call: its arguments and output without their tensors."""

    def __init__(self, op: HigherOrderOperator, rules: _UserRules):
        self.op, self.rules = op, rules
        self.args, self.output = Tree(), Tree()

    def inputs(self, tensors: list[Tensor]) -> tuple[tuple, dict]:
        return self.args.arrive(tensors)

    def saved(self, tensors: list[Tensor]) -> tuple[tuple, dict, Any]:
        """The arguments and the output from the operands and results, which are what is saved."""
        count = len(self.args.positions)
        return *self.inputs(tensors[:count]), self.output.arrive(tensors[count:])

    def error(self, text: str) -> RuntimeError:
        return RuntimeError(f"{self.op.name()}: {text}")


def _forward(call, operands):
    return call.output.depart(_open(call.op, *call.inputs(operands)))


def _or_zero(given: list, like: list[Tensor]) -> list:
    return [
        torch.zeros_like(t) if g is None and (t.is_floating_point() or t.is_complex()) else g
        for g, t in zip(given, like)
    ]


def _leaves(call: _Call, rule: str, given: Any, like: Tree, what: str) -> list:
    """The tensors of a tree like another; None stands for a whole subtree of zeros."""
    given = in_parts(given)
    found = _broadcast_to_and_flatten(given, like.spec)  # a None stands for all below
    if found is None or len(_tensors(found)) != len(_tensors(given)):
        tree = tree_flatten(given)[1]
        raise call.error(f"its {rule} rule returned {what_is(given)} with the tree {tree}, but {what}.")
    for i, leaf in enumerate(found):
        if leaf is not None and (i not in like.positions or not isinstance(leaf, Tensor)):
            raise call.error(f"its {rule} rule returned a {type(leaf).__name__} for what is no tensor, or for one.")
    return [found[i] for i in like.positions]


def _vjp(call, tensors, _, cotangents, needs):
    args, kwargs, output = call.saved(tensors)
    results = tensors[len(call.args.positions) :]
    given = call.rules.vjp(args, output, call.output.like(_or_zero(cotangents, results), static=None), **kwargs)
    if not isinstance(given, tuple) or len(given) != len(args):
        raise call.error(
            f"its vjp rule must return a tuple with the gradient of each of the {len(args)} args, but it returned "
            f"{what_is(given)}."
        )
    gradients = _leaves(call, "vjp", (given, {name: None for name in kwargs}), call.args, "the arguments have another")
    in_keywords = len([leaf for leaf in tree_leaves(kwargs) if isinstance(leaf, Tensor)])
    if any(needs[len(needs) - in_keywords :]):
        raise call.error(
            "a tensor given by keyword is differentiated, of which vjp gives no gradient. Pass it by position."
        )
    return gradients


def _jvp(call, tensors, _, tangents):
    args, kwargs, output = call.saved(tensors)
    operands = tensors[: len(call.args.positions)]
    directions, in_keywords = call.args.like(_or_zero(tangents, operands), static=None)
    if any(t is not None for t in tangents[len(tangents) - len(_tensors(in_keywords)) :]):
        raise call.error("a tensor given by keyword has a tangent, which jvp is not given. Pass it by position.")
    given = call.rules.jvp(args, output, directions, **kwargs)
    return _leaves(call, "jvp", given, call.output, f"the output has {call.output.spec}")


def _tensors(tree: Any) -> list[Tensor]:
    return [leaf for leaf in tree_leaves(tree) if isinstance(leaf, Tensor)]


def _vmap(call, batch_size, randomness, in_dims, operands):
    args, kwargs = call.inputs(operands)
    dims, in_keywords = call.args.like(in_dims, static=None)
    if any(dim is not None for dim in tree_leaves(in_keywords)):
        raise call.error("a tensor given by keyword is mapped, of which vmap is not told. Pass it by position.")
    name = call.op.name()
    output, out_dims = output_and_dims(name, call.rules.vmap(VmapInfo(batch_size, randomness), dims, *args, **kwargs))
    return call.output.depart(output), flat_out_dims(call, "its vmap rule", out_dims)


def _sparsity(call, operands):
    args, kwargs = call.inputs(operands)
    return call.output.depart(getattr(call.op, SPARSITY)(*args, **kwargs))


_operators: dict[HigherOrderOperator, tuple] = {}


def _operator_of(op: HigherOrderOperator, rules: _UserRules) -> Any:
    """The operator of Tower's, with what is declared of `op` by now."""
    declared = bool(getattr(op, LINEAR, False)), hasattr(op, SPARSITY)
    if op not in _operators or _operators[op][0] != declared:
        methods = Rules(
            forward=_forward,
            vjp=_vjp if rules.vjp else None,
            jvp=_jvp if rules.jvp else None,
            vmap=_vmap if rules.vmap else None,
            sparsity=_sparsity if declared[1] else None,
            linear_vjp=declared[0],
            generate_derivatives=not (rules.vjp or rules.jvp),
        )
        _operators[op] = declared, _C.HigherOrderOperator(op.name(), methods)
    return _operators[op][1]


def _call_with_rules(op: HigherOrderOperator, rules: _UserRules, args: tuple, kwargs: dict) -> Any:
    call = _Call(op, rules)
    operands = call.args.depart((args, kwargs))
    return call.output.arrive(_operator_of(op, rules)(operands, call))
