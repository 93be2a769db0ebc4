"""torch.autograd.Function inside Tower's transforms: an operator whose rules are the class's methods.

A call becomes a higher-order operator. Its operands are the tensors among the arguments, and `Call` is what it carries
besides; `forward`, `setup_context`, `backward`, `jvp` and `vmap` are run on the values of the level that asks for them.
"""

import inspect
import threading
import weakref
from contextlib import contextmanager
from functools import partial
from itertools import islice
from types import CodeType
from typing import Any, Callable, NamedTuple

import torch
from torch import Tensor
from torch._functorch.autograd_function import VmapInfo
from torch.autograd.function import FunctionCtx, _is_setup_context_defined, once_differentiable
from torch.utils._pytree import _broadcast_to_and_flatten, tree_flatten, tree_unflatten

from . import _C
from ._containers import flatten
from ._trees import Tree, what_is


def _is_real_or_complex(dtype: torch.dtype) -> bool:
    return dtype.is_floating_point or dtype.is_complex


class Context(FunctionCtx):
    """The ctx of one call."""

    to_save: tuple = ()
    saved_for_forward: tuple | None = None
    non_differentiable: tuple = ()
    dirty_tensors: tuple = ()
    materialize_grads: bool = True
    needs_input_grad: tuple = ()

    @property
    def saved_tensors(self):
        return self.to_save

    @classmethod
    def of(cls, args: tuple) -> "Context":
        ctx = cls()
        ctx.needs_input_grad = tuple(isinstance(arg, Tensor) and _is_real_or_complex(arg.dtype) for arg in args)
        return ctx


_MARKS = (
    "to_save",
    "saved_for_forward",
    "non_differentiable",
    "materialize_grads",
    "needs_input_grad",
    "dirty_tensors",
)


class _Place(NamedTuple):
    """Where a tensor of a kept tree is in the list of residuals."""

    index: int


class _Like(NamedTuple):
    """What a tensor was: enough to make a zero in its place."""

    shape: torch.Size
    dtype: torch.dtype
    device: torch.device

    @classmethod
    def of(cls, t: Tensor) -> "_Like":
        return cls(t.shape, t.dtype, t.device)

    def zero(self) -> Tensor:
        return torch.zeros(self.shape, dtype=self.dtype, device=self.device)


class Saved:
    """What a ctx holds, without its tensors: these are the residuals of the operator, in the order of the places."""

    def __init__(self, ctx: Context, args: tuple, output: Any):
        self.tensors: list[Tensor] = []
        self.to_save = self._put(tuple(ctx.to_save))
        self.saved_for_forward = self._put(ctx.saved_for_forward)
        self.attributes = {k: self._put(v) for k, v in vars(ctx).items() if k not in _MARKS}
        self.materialize_grads = ctx.materialize_grads
        outputs = _listed(output)
        self.outputs = [_Like.of(t) if isinstance(t, Tensor) else None for t in outputs]
        self.counts = [len(_tensors_in(t)) for t in outputs]
        marked = {id(t) for t in ctx.non_differentiable}
        self.constant = [
            not isinstance(t, Tensor) or id(t) in marked or not _is_real_or_complex(t.dtype) for t in outputs
        ]
        self.inputs = [_Like.of(t) if isinstance(t, Tensor) else None for t in args]

    def _put(self, value: Any) -> tuple:
        flat, spec = flatten(value)
        for i, leaf in enumerate(flat):
            if isinstance(leaf, Tensor):
                flat[i] = _Place(len(self.tensors))
                self.tensors.append(leaf)
        return flat, spec

    def release(self) -> list[Tensor]:
        tensors, self.tensors = self.tensors, []
        return tensors

    def context(self, tensors: list[Tensor], *, forward: bool) -> Context:
        def take(kept: tuple) -> Any:
            flat, spec = kept
            return tree_unflatten([tensors[x.index] if isinstance(x, _Place) else x for x in flat], spec)

        ctx = Context()
        vars(ctx).update({k: take(v) for k, v in self.attributes.items()})
        ctx.to_save = take(self.to_save)
        ctx.saved_for_forward = take(self.saved_for_forward)
        if forward and ctx.saved_for_forward is not None:
            ctx.to_save = ctx.saved_for_forward
        ctx.materialize_grads = self.materialize_grads
        ctx.needs_input_grad = (True,) * len(self.inputs)
        return ctx


class _Kernels(threading.local):
    """The higher-order operators below whose autograd kernels this thread is: in such a kernel itself, and in
    the forward of a Function that it applied. There, the operator is called for its implementation."""

    below: tuple = ()

    @contextmanager
    def running(self, below: tuple):
        before, self.below = self.below, below
        try:
            yield
        finally:
            self.below = before


kernels = _Kernels()


def _run(function: Callable, args: tuple, below: tuple) -> Any:
    if below == kernels.below:
        return function(*args)
    with kernels.running(below):
        return function(*args)


class Call:
    """One call of a Function: its class, and its arguments and output without their tensors."""

    def __init__(self, cls: type, args: Tree, positions: list[int | None], count: int, writes: bool):
        self.cls = cls
        self.below = kernels.below
        self.args = args
        self.positions = positions  # for each operand, which argument it is; None: it is inside of one
        self.count = count  # of arguments
        self.writes = writes  # whether forward may write to operands: it then gets copies
        self.written: list[tuple[int, int]] = []  # operands that it wrote to, each with its place in the output
        self.output = Tree()

    def implement(self, method: Callable, *args) -> Any:
        return _run(method, args, self.below)

    def derive(self, method: Callable, *args) -> Any:
        return _run(method, args, below=())

    def lend(self, operands: list[Tensor]) -> tuple:
        """The arguments for an implementation."""
        return self.args.arrive([t.clone() for t in operands] if self.writes else operands)

    def note_written(self, ctx: "Context", args: tuple, output: Any) -> None:
        """What ctx.mark_dirty was told. `args` as the implementation got them."""
        if ctx.dirty_tensors and not self.writes:
            raise self.error("mark_dirty was called by a function that forward or setup_context calls. Call it there.")
        self.written = [self._place(t, args, output) for t in ctx.dirty_tensors]

    def _place(self, dirty: Tensor, args: tuple, output: Any) -> tuple[int, int]:
        operand = _index(_tensors_in(args), dirty)
        if operand is None:
            raise self.error("mark_dirty was given a tensor that is not an input.")
        place = _index(_tensors_in(output), dirty)
        if place is None:
            raise self.error(
                f"mark_dirty was given argument {self.positions[operand]}, which forward does not return. Return it."
            )
        return operand, place

    def error(self, text: str) -> RuntimeError:
        return RuntimeError(f"{self.cls.__name__}: {text}")


def _listed(value: Any) -> tuple:
    return tuple(value) if isinstance(value, (tuple, list)) else (value,)


def _tensors_in(value: Any) -> list[Tensor]:
    return [leaf for leaf in tree_flatten(value)[0] if isinstance(leaf, Tensor)]


def _index(tensors: list[Tensor], tensor: Tensor) -> int | None:
    return next((i for i, t in enumerate(tensors) if t is tensor), None)


def _by_argument(call: Call, values: list, absent: Any = None) -> list:
    """What belongs to the operands, by argument."""
    result = [absent] * call.count
    for position, value in zip(call.positions, values):
        if position is not None:
            result[position] = value
    return result


def _by_output(saved: Saved, values: list) -> list:
    """What belongs to the tensors of the output, by output: None or zeros where there is no derivative.

    As in torch, tensors inside of a container among the outputs have none.
    """
    values, result = iter(values), []
    for constant, count in zip(saved.constant, saved.counts):
        given = list(islice(values, count))
        result.append(None if constant else given[0])
    if saved.materialize_grads and any(value is not None for value in result):
        result = [
            like.zero() if value is None and like is not None else value for value, like in zip(result, saved.outputs)
        ]
    return result


def _fit(call: Call, given: Any, like: _Like, what: str) -> Tensor | None:
    """A gradient or tangent as its tensor: summed where that was broadcast, of its dtype."""
    if given is None:
        return None
    if not isinstance(given, Tensor):
        raise call.error(f"{what} is a {type(given).__name__}; it must be a tensor, or None for zero.")
    if given.shape != like.shape:
        try:
            given = given.sum_to_size(like.shape)
        except RuntimeError:
            raise call.error(f"{what} has shape {tuple(given.shape)}, expected {tuple(like.shape)}.") from None
    return given if given.dtype == like.dtype else given.to(like.dtype)


def _forward(call, operands):
    args = call.lend(operands)
    output = call.implement(call.cls.forward, *args)
    if call.writes:
        ctx = Context.of(args)
        call.cls.setup_context(ctx, args, output)
        call.note_written(ctx, args, output)
    return call.output.depart(output)


def _save(call, operands, outs):
    operands = list(operands)
    for operand, place in call.written:
        operands[operand] = outs[place]
    args, output = call.args.arrive(operands), call.output.arrive(outs)
    ctx = Context.of(args)
    call.cls.setup_context(ctx, args, output)
    call.note_written(ctx, args, output)
    saved = Saved(ctx, args, output)
    return saved.release(), saved


def _forward_and_save(call, operands):
    """For a forward that takes the ctx."""
    args = call.lend(operands)
    ctx = Context.of(args)
    output = call.implement(call.cls.forward, ctx, *args)
    call.note_written(ctx, args, output)
    saved = Saved(ctx, args, output)
    return call.output.depart(output), (saved.release(), saved)


def _overrides(cls: type, method: str) -> bool:
    return getattr(cls, method) is not getattr(torch.autograd.Function, method)


def _backward_of(cls: type) -> Any:
    return cls.vjp if _overrides(cls, "vjp") else cls.backward


def _vjp(call, tensors, saved, cotangents, needs):
    if any(need and position is None for need, position in zip(needs, call.positions)):
        raise call.error(
            "a tensor inside of a container among its arguments is differentiated, but backward gives gradients of "
            "arguments only. Pass the tensor as an argument of its own."
        )
    ctx = saved.context(tensors, forward=False)
    ctx.needs_input_grad = tuple(_by_argument(call, needs, absent=False))
    grads = _by_output(saved, cotangents)
    if all(g is None for g in grads):
        return [None] * len(needs)
    backward = _backward_of(call.cls)
    given = _listed(call.derive(backward, ctx, *([grads] if call.cls.boxed_grads_call else grads)))
    if len(given) < call.count or any(g is not None for g in given[call.count :]):
        raise call.error(f"backward returned {len(given)} gradients, but forward has {call.count} arguments.")
    return [
        None
        if position is None or not need
        else _fit(call, given[position], saved.inputs[position], f"gradient {position}")
        for position, need in zip(call.positions, needs)
    ]


def _jvp(call, tensors, saved, tangents):
    ctx = saved.context(tensors, forward=True)
    if any(t is not None and position is None for t, position in zip(tangents, call.positions)):
        raise call.error(
            "a tensor inside of a container among its arguments is differentiated, but jvp takes tangents of "
            "arguments only. Pass the tensor as an argument of its own."
        )
    given = _by_argument(call, tangents)
    if saved.materialize_grads:
        given = [
            like.zero() if t is None and like is not None and _is_real_or_complex(like.dtype) else t
            for t, like in zip(given, saved.inputs)
        ]
    found = _listed(call.derive(call.cls.jvp, ctx, *given))
    if len(found) != len(saved.outputs):
        raise call.error(f"jvp returned {len(found)} tangents, but forward has {len(saved.outputs)} outputs.")
    result = []
    for k, (t, like, constant, count) in enumerate(zip(found, saved.outputs, saved.constant, saved.counts)):
        result += [None] * count if constant else [_fit(call, t, like, f"tangent {k}")]
    return result


def output_and_dims(name: str, returned: Any) -> tuple:
    """What a vmap rule returned."""
    if not isinstance(returned, tuple) or len(returned) != 2:
        raise RuntimeError(
            f"{name}: Expected the vmap staticmethod to have two returns, an output and out_dims with pytree structure "
            f"compatible with the output: return (output, out_dims). It returned {what_is(returned)}."
        )
    for dim in tree_flatten(returned[1])[0]:
        if dim is not None and not isinstance(dim, int):
            raise RuntimeError(
                f"{name}: the vmap rule must return (output, out_dims), but out_dims has a {type(dim).__name__}; it "
                "must be an int, None or a tree of them."
            )
    return returned


def flat_out_dims(call: Any, rule: str, out_dims: Any) -> list:
    """Those of a call's output that `rule` returned, for each of its tensors."""
    flat = _broadcast_to_and_flatten(out_dims, call.output.spec)
    if flat is None:
        raise call.error(
            f"{rule} returned out_dims {out_dims}, which are not compatible with the structure of its output, "
            f"{call.output.spec}."
        )
    return [flat[i] for i in call.output.positions]


def _vmap(call, batch_size, randomness, in_dims, operands):
    args = call.lend(operands)
    dims = call.args.like(in_dims, static=None)
    output, out_dims = output_and_dims(
        call.cls.__name__, call.implement(call.cls.vmap, VmapInfo(batch_size, randomness), dims, *args)
    )
    if call.writes:
        _note_returned(call, args, output)
    return call.output.depart(output), flat_out_dims(call, "vmap", out_dims)


def _sparsity(call, operands):
    return call.output.depart(vars(call.cls)[SPARSITY](*call.args.arrive(operands)))


def _note_returned(call: Call, args: tuple, output: Any) -> None:
    """A vmap rule has no ctx to mark what it wrote to: these are the arguments that it returns."""
    ctx = Context()
    returned = _tensors_in(output)
    ctx.dirty_tensors = tuple(t for t in _tensors_in(args) if _index(returned, t) is not None)
    if not ctx.dirty_tensors:
        raise call.error("vmap must return the arguments that the function writes to (ctx.mark_dirty), like forward.")
    call.note_written(ctx, args, output)


class Rules(NamedTuple):
    """A rule gets the call first, then what tower/higher_order.h says. None: there is none."""

    forward: Any = None
    save: Any = None
    forward_and_save: Any = None
    vjp: Any = None
    jvp: Any = None
    vmap: Any = None
    sparsity: Any = None
    linear_vjp: bool = False
    generate_derivatives: bool = False


# Every function that once_differentiable returns runs this code.
_ONCE = once_differentiable(lambda ctx: None).__code__


def _backward_once(run, operands):
    return run(operands)


def _refuse(run, *_):
    raise RuntimeError(
        f"{run.__qualname__} is differentiated, but it is once_differentiable: its derivative is not known. Write a "
        "backward of differentiable operators without that mark."
    )


def _vjp_once(call, tensors, saved, cotangents, needs):
    """A backward that must not be differentiated is an operator whose derivatives are errors."""
    given, found = [*tensors, *cotangents], []
    present = [i for i, t in enumerate(given) if t is not None]

    def run(operands):
        full = [None] * len(given)
        for i, t in zip(present, operands):
            full[i] = t
        gradients = _vjp(call, full[: len(tensors)], saved, full[len(tensors) :], needs)
        found[:] = [g is not None for g in gradients]
        return [g for g in gradients if g is not None]

    run.__qualname__ = f"{call.cls.__name__}.backward"
    operator = _C.HigherOrderOperator(run.__qualname__, Rules(forward=_backward_once, vjp=_refuse, jvp=_refuse))
    outs = iter(operator([given[i] for i in present], run))
    return [next(outs) if there else None for there in found]


def _no_vjp(call, *_):
    raise NotImplementedError(f"{call.cls.__name__} is differentiated, but has no backward staticmethod.")


def _operator_of(cls: type) -> Any:
    if _overrides(cls, "vmap") and cls.generate_vmap_rule:
        raise RuntimeError(f"{cls.__name__} has a vmap staticmethod and generate_vmap_rule=True; only one can hold.")
    if _overrides(cls, "backward") and _overrides(cls, "vjp"):
        raise RuntimeError(f"{cls.__name__} has a backward and a vjp staticmethod; they are the same, so give one.")
    once = getattr(_backward_of(cls), "__code__", None) is _ONCE
    if _overrides(cls, "backward") or _overrides(cls, "vjp"):
        backward = _vjp_once if once else _vjp
    else:
        backward = None if _overrides(cls, "jvp") else _no_vjp
    rules = Rules(
        vjp=backward,
        jvp=_jvp if _overrides(cls, "jvp") else None,
        vmap=_vmap if _overrides(cls, "vmap") else None,
        sparsity=_sparsity if SPARSITY in vars(cls) else None,
        linear_vjp=vars(cls).get(LINEAR, False),
    )
    if _is_setup_context_defined(cls.setup_context):
        rules = rules._replace(forward=_forward, save=_save)
    else:
        rules = rules._replace(forward_and_save=_forward_and_save)
    return _C.HigherOrderOperator(cls.__name__, rules)


def _mentions(code: CodeType, name: str) -> bool:
    return name in code.co_names or any(isinstance(c, CodeType) and _mentions(c, name) for c in code.co_consts)


def _may_write(cls: type) -> bool:
    """What forward writes to is known when it has: so whether it may is read off the code."""
    codes = [getattr(inspect.unwrap(method), "__code__", None) for method in (cls.forward, cls.setup_context)]
    return any(code is not None and _mentions(code, "mark_dirty") for code in codes)


LINEAR = "_tower_linear_backward"


def linear_backward(target: Any) -> Any:
    """Declares that the backward of `target` is linear in the gradients.

    `target` is a Function, a custom_op or a higher-order operator. There is no clipping and no noise in it. It then
    serves forward mode as well, where there is no jvp. Returns what it was given:

        @linear_backward
        class Cube(torch.autograd.Function): ...
    """
    setattr(target, LINEAR, True)
    _operators.pop(target, None)
    return target


SPARSITY = "_tower_sparsity"


def register_sparsity(target: Any, func: Callable | None = None) -> Any:
    """What sparsity patterns follow in place of `target`, a Function or custom_op, which are dense without it.

    `func` is made of operators; its results have the shapes of the target's and depend on all that those depend on:

        @register_sparsity(Stencil)
        def _(u, h):
            return u + u.roll(1) + u.roll(-1)
    """
    if func is None:
        return partial(register_sparsity, target)
    setattr(target, SPARSITY, func)
    _operators.pop(target, None)
    return func


# Each with whether it may write to its arguments.
_operators: "weakref.WeakKeyDictionary[type, tuple[Any, bool]]" = weakref.WeakKeyDictionary()


def apply(cls: type, args: tuple, kwargs: dict | None = None) -> Any:
    """`cls.apply(*args, **kwargs)` inside a transform."""
    kwargs = kwargs or {}
    if _is_setup_context_defined(cls.setup_context) and (kwargs or getattr(cls.forward, "__defaults__", True)):
        bound = inspect.signature(cls.forward).bind(*args, **kwargs)
        bound.apply_defaults()
        args, kwargs = bound.args, bound.kwargs
    if kwargs:
        raise TypeError(f"{cls.__name__}.apply takes no keyword arguments: {', '.join(kwargs)}")
    found = _operators.get(cls)
    if found is None:
        found = _operators[cls] = _operator_of(cls), _may_write(cls)
    operator, writes = found
    tree = Tree()
    operands = tree.depart(args)
    positions = []
    for i, arg in enumerate(args):
        if isinstance(arg, Tensor):
            positions.append(i)
        else:
            positions += [None for leaf in tree_flatten(arg)[0] if isinstance(leaf, Tensor)]
    call = Call(cls, tree, positions, len(args), writes)
    if not call.writes:
        return call.output.arrive(operator(operands, call))
    # LibTorch's autograd keeps operands, and refuses to go back to those that were written to since.
    outs = operator([t.clone() if t.requires_grad and not _C.is_wrapper(t) else t for t in operands], call)
    for operand, place in call.written:
        operands[operand].copy_(outs[place])
        outs[place] = operands[operand]
    return call.output.arrive(outs)
