"""torch.library.custom_op inside Tower's transforms: register_autograd and register_vmap give its rules.

Each operator gets a kernel of its own at the dispatch key through which Tower sees operators. It calls a Function
(_functions.py) whose methods are what was registered for the operator.
"""

import weakref
from typing import Any

import torch
from torch import Tensor
from torch._library import custom_ops, utils
from torch._library.autograd import not_list_of_optional_tensor, not_list_of_tensor
from torch.utils._pytree import TreeSpec, tree_flatten, tree_unflatten

from . import _C
from ._functions import LINEAR, SPARSITY, apply, output_and_dims
from ._torch_operators import FORMULAS


class _Call:
    """The structure of one call's arguments and results, in which each tensor of a list stands for itself."""

    def __init__(self, opdef: custom_ops.CustomOpDef, args: tuple, kwargs: dict):
        self.opdef = opdef
        self.kwargs = kwargs
        self.flat, self.inputs = tree_flatten(args, is_leaf=not_list_of_tensor)
        self.writes = _written(opdef, args, kwargs, self.inputs)
        self.positional = sum(not a.kwarg_only for a in opdef._opoverload._schema.arguments)
        self.outputs: TreeSpec | None = None
        self.returns_tuple = True

    def arguments(self, flat: tuple) -> tuple:
        return tree_unflatten(list(flat), self.inputs)

    def depart(self, result: Any) -> tuple:
        self.returns_tuple = isinstance(result, tuple)
        flat, self.outputs = tree_flatten(result if self.returns_tuple else (result,), is_leaf=not_list_of_tensor)
        return tuple(flat)

    def arrive(self, flat: tuple) -> Any:
        result = tree_unflatten(list(flat), self.outputs)
        return result if self.returns_tuple else result[0]


def _written(opdef: custom_ops.CustomOpDef, args: tuple, kwargs: dict, inputs: TreeSpec) -> list[int]:
    """The positions of what the operator writes to (mutates_args), among the leaves of its arguments."""
    schema = opdef._opoverload._schema
    if not schema.is_mutable:
        return []
    written, leaf = [], 0
    for argument, given, spec in zip(schema.arguments, args, inputs.children()):
        if argument.is_write and given is not None:
            written += range(leaf, leaf + spec.num_leaves)
        leaf += spec.num_leaves
    for argument in schema.arguments:
        if argument.is_write and kwargs.get(argument.name) is not None:
            raise RuntimeError(
                f"{opdef._qualname} writes to '{argument.name}', which transforms cannot follow in a keyword-only "
                "argument. Let it be positional."
            )
    return written


def _copies(call: _Call, flat: tuple) -> list:
    """The leaves for an implementation, which may write to these."""
    flat = list(flat)
    for i in call.writes:
        flat[i] = flat[i].clone()
    return flat


def _run(opdef: custom_ops.CustomOpDef, args: tuple, kwargs: dict) -> Any:
    if not _C.inside_transform():
        return opdef._opoverload(*args, **kwargs)
    # The implementation itself: if it is made of operators, these are transformed.
    devices = {t.device.type for t in tree_flatten((args, kwargs))[0] if isinstance(t, Tensor)}
    for device in (*devices, None):
        if device in opdef._backend_fns:
            return opdef._backend_fns[device](*args, **kwargs)
    return opdef._init_fn(*args, **kwargs)


def _forward(call, *flat):
    """The results, then what was written to as it is now."""
    flat = _copies(call, flat)
    return call.depart(_run(call.opdef, call.arguments(flat), call.kwargs)) + tuple(flat[i] for i in call.writes)


def _setup_context(ctx, inputs, output):
    call, *flat = inputs
    ctx._tower_call = call
    setup = call.opdef._setup_context_fn
    if setup is None:
        return
    schema = call.opdef._opoverload._schema
    args, kwargs = utils.fill_defaults(schema, call.arguments(flat), call.kwargs)
    output = call.arrive(output)
    if utils.has_kwarg_only_args(schema):
        setup(ctx=ctx, inputs=args, keyword_only_inputs=kwargs, output=output)
    else:
        setup(ctx=ctx, inputs=args, output=output)


def _backward(ctx, *grads):
    call = ctx._tower_call
    needs = call.arguments(ctx.needs_input_grad[1:])
    ctx.needs_input_grad = needs + (False,) * (call.positional - len(needs))
    given = call.opdef._backward_fn(ctx, *tree_unflatten(list(grads), call.outputs))
    given = given if isinstance(given, tuple) else (given,)
    # Arguments that were left at their defaults are none of the call's.
    count = call.inputs.num_children
    if len(given) > count and all(g is None for g in given[count:]):
        given = given[:count]
    # No gradients for a list are no gradient for any of its tensors.
    given = (
        tuple(
            [None] * spec.num_leaves if g is None and spec.type is list else g
            for g, spec in zip(given, call.inputs.children())
        )
        + given[count:]
    )
    flat, spec = tree_flatten(given, is_leaf=not_list_of_optional_tensor)
    if spec != call.inputs:
        raise RuntimeError(
            f"{call.opdef._qualname}: backward returned gradients with the structure {spec}, but the arguments have "
            f"{call.inputs}."
        )
    return None, *flat


def _vmap(info, in_dims, call, *flat):
    flat, in_dims = _copies(call, flat), list(in_dims[1:])
    for i in call.writes:
        if in_dims[i] is None:  # the rule may write what differs between the examples
            flat[i], in_dims[i] = flat[i].expand(info.batch_size, *flat[i].shape).clone(), 0
    result, out_dims = output_and_dims(
        call.opdef._qualname,
        call.opdef._vmap_fn(info, call.arguments(in_dims), *call.arguments(flat), **call.kwargs),
    )
    results = call.depart(result)
    if not isinstance(out_dims, tuple):
        out_dims = (out_dims,) * call.outputs.num_children
    dims = []
    for dim, spec in zip(out_dims, call.outputs.children()):
        dims += dim if isinstance(dim, list) else [dim] * spec.num_leaves
    return results + tuple(flat[i] for i in call.writes), (*dims, *(in_dims[i] for i in call.writes))


def _sparsity(call, *flat):
    results = getattr(call.opdef, SPARSITY)(*call.arguments(flat), **call.kwargs)
    return call.depart(results) + tuple(flat[i] for i in call.writes)


_functions: dict[tuple, type] = {}


def _function_of(opdef: custom_ops.CustomOpDef) -> type:
    """The Function with those methods that have a registration now."""
    linear, sparse = getattr(opdef, LINEAR, False), hasattr(opdef, SPARSITY)
    key = opdef._qualname, opdef._backward_fn is not None, opdef._vmap_fn is not None, linear, sparse
    if key not in _functions:
        methods = {"forward": _forward, "setup_context": _setup_context}
        if opdef._backward_fn is not None:
            methods["backward"] = _backward
        if opdef._vmap_fn is not None:
            methods["vmap"] = _vmap
        body = {name: staticmethod(method) for name, method in methods.items()} | {LINEAR: linear}
        if sparse:
            body[SPARSITY] = _sparsity
        _functions[key] = type(opdef._qualname, (torch.autograd.Function,), body)
    return _functions[key]


def _register(opdef: custom_ops.CustomOpDef) -> None:
    schema = opdef._opoverload._schema
    if not schema.is_mutable and not utils.is_functional_schema(schema):
        return  # a view

    def kernel(*args, **kwargs):
        call = _Call(opdef, args, kwargs)
        outs = apply(_function_of(opdef), (call, *call.flat))
        results = len(outs) - len(call.writes)
        for i, written in zip(call.writes, outs[results:]):
            call.flat[i].copy_(written)
        return call.arrive(outs[:results])

    opdef._lib.impl(opdef._name, FORMULAS.get(opdef._qualname, kernel), _C.dispatch_key)


_registered: "weakref.WeakSet[custom_ops.CustomOpDef]" = weakref.WeakSet()


def register_new() -> None:
    """Registers such a kernel for each operator that has none yet."""
    for opdef in list(custom_ops.OPDEFS.values()):
        if opdef not in _registered:
            _registered.add(opdef)
            _register(opdef)
