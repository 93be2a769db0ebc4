"""grad, grad_and_value, vjp, jvp, linearize, hvp."""

from typing import Any, Callable

from torch import Tensor

from . import _C
from ._compile import transformed, uncompiled
from ._containers import flatten
from ._trees import Arguments, Chosen, Outputs, check_tuple, same_tree

argnums_t = int | tuple[int, ...]


class _Loss(Outputs):
    """What the function of `grad` returns."""

    __slots__ = ()

    def _tensors(self, value: Any) -> list[Tensor]:
        if not isinstance(value, Tensor):
            raise RuntimeError(
                f"{self.transform}: the function must return a scalar tensor, but it returned a {type(value).__name__}."
            )
        return [value]


@uncompiled
def grad(func: Callable, argnums: argnums_t = 0, has_aux: bool = False) -> Callable:
    """The gradient of `func`, which returns a scalar tensor, with respect to the argument(s) `argnums`.

    The same as :func:`torch.func.grad`. `argnums` is an int, or a tuple of them for a tuple of gradients, each a tree
    like the argument. With `has_aux` the function returns (loss, aux), and its gradient (gradient, aux). RuntimeError
    where the function returns no real scalar, or an argument holds integers.
    """

    @transformed(func)
    def gradient(*args, **kwargs):
        arguments = Arguments(args, kwargs)
        chosen = Chosen("grad", arguments, argnums)
        outputs = _Loss("grad", has_aux)
        grads, aux = _C.grad(arguments.function(func), outputs.depart, arguments.tensors, chosen.tensors, has_aux)
        result = chosen.unflatten(grads)
        return (result, outputs.aux.arrive(aux)) if has_aux else result

    return gradient


@uncompiled
def grad_and_value(func: Callable, argnums: argnums_t = 0, has_aux: bool = False) -> Callable:
    """The gradient of `func`, and the value: (gradient, value), or (gradient, (value, aux)) with `has_aux`.

    The same as :func:`torch.func.grad_and_value`. `argnums` is as in `grad`.
    """

    @transformed(func)
    def gradient_and_value(*args, **kwargs):
        arguments = Arguments(args, kwargs)
        chosen = Chosen("grad_and_value", arguments, argnums)
        outputs = _Loss("grad_and_value", has_aux)
        grads, (value, *aux) = _C.grad_and_value(
            arguments.function(func), outputs.depart, arguments.tensors, chosen.tensors, has_aux
        )
        return chosen.unflatten(grads), (value, outputs.aux.arrive(aux)) if has_aux else value

    return gradient_and_value


def _differentiable(transform: str, what: str, arguments: Arguments) -> None:
    """vjp, jvp and linearize differentiate with respect to all of their primals."""
    if not arguments.all_tensors:
        for leaf in arguments.flat:
            if not isinstance(leaf, Tensor):
                raise ValueError(
                    f"{transform}: {what} must be tensors or trees of them; found a {type(leaf).__name__}."
                )
    if not arguments.tensors:
        raise RuntimeError(f"{transform}: {what} hold no tensor, so there is nothing to differentiate with respect to.")


@uncompiled
def vjp(func: Callable, *primals, has_aux: bool = False) -> tuple:
    """(output of `func` at the `primals`, pullback), or (output, pullback, aux) with `has_aux`.

    The same as :func:`torch.func.vjp`. The pullback takes a tree of cotangents like the output (None: zero) and gives
    the tuple of the primals' cotangents, any number of times, also inside other transforms.
    """
    arguments = Arguments(primals)
    _differentiable("vjp", "primals", arguments)
    outputs = Outputs("vjp", has_aux)
    outs, linear, aux = _C.vjp(arguments.function(func), outputs.depart, arguments.tensors, has_aux)
    spec, shape = outputs.spec, arguments.shape

    def pullback(cotangents: Any, retain_graph: bool = True, create_graph: bool | None = None) -> tuple:
        del retain_graph, create_graph  # the tape stays, and is differentiable
        return shape.unflatten(linear(same_tree("vjp", "cotangents", cotangents, "the output", spec, _LIKE_OUTPUTS)))

    result = outputs.arrive(outs)
    return (result, pullback, outputs.aux.arrive(aux)) if has_aux else (result, pullback)


_LIKE_OUTPUTS = "Expected pytree structure of cotangents to be the same as pytree structure of outputs to the function"
_LIKE_PRIMALS = "Expected primals and tangents to have the same python structure"


def _directions(transform: str, tangents: Any, primals: tuple, arguments: Arguments) -> list[Tensor | None]:
    """The leaves of the tangents, which are a tuple like the primals."""
    if isinstance(tangents, tuple) and len(tangents) == len(primals) and arguments.all_tensors:
        if all(isinstance(t, Tensor) or t is None for t in tangents):
            return list(tangents)
    return same_tree(transform, "tangents", tangents, "primals", flatten(primals)[1], _LIKE_PRIMALS)


@uncompiled
def jvp(func: Callable, primals: tuple, tangents: tuple, *, strict: bool = False, has_aux: bool = False) -> tuple:
    """(output of `func`, derivative of the output along `tangents`), or (output, derivative, aux) with `has_aux`.

    The same as :func:`torch.func.jvp`. `primals` is the tuple of the arguments, and `tangents` one like it, of the same
    shapes and dtypes, else ValueError. A tangent may be None: zero. With `strict`, an output that does not depend on
    the primals is an error.
    """
    check_tuple("jvp", "primals", primals)
    arguments = Arguments(primals)
    tangents = _directions("jvp", tangents, primals, arguments)
    _differentiable("jvp", "primals", arguments)
    outputs = Outputs("jvp", has_aux)
    outs, out_tangents, aux = _C.jvp(
        arguments.function(func), outputs.depart, arguments.tensors, tangents, strict, has_aux
    )
    result = outputs.arrive(outs), outputs.like(out_tangents)
    return (*result, outputs.aux.arrive(aux)) if has_aux else result


@uncompiled
def linearize(func: Callable, *primals) -> tuple:
    """(output at the `primals`, pushforward).

    The same as :func:`torch.func.linearize`. The pushforward takes tangents like the primals and gives the output's
    derivative. `func` runs once; the pushforward replays what it recorded.
    """
    arguments = Arguments(primals)
    _differentiable("linearize", "primals", arguments)
    outputs = Outputs("linearize")
    outs, linear = _C.linearize(arguments.function(func), outputs.depart, arguments.tensors)
    spec = flatten(primals)[1]

    def pushforward(*tangents) -> Any:
        return outputs.like(linear(same_tree("linearize", "tangents", tangents, "the primals", spec, _LIKE_PRIMALS)))

    return outputs.arrive(outs), pushforward


@uncompiled
def hvp(func: Callable, primals: tuple, tangents: tuple) -> tuple:
    """(gradient, Hessian-vector product) of `func`, which returns a scalar tensor: two tuples like the primals.

    The product is the derivative of the gradient at `primals`, the tuple of the arguments, along `tangents`, one like
    it.
    """
    check_tuple("hvp", "primals", primals)
    arguments = Arguments(primals)
    tangents = _directions("hvp", tangents, primals, arguments)
    _differentiable("hvp", "primals", arguments)
    grads, products = _C.hvp(arguments.function(func), _Loss("hvp").depart, arguments.tensors, tangents)
    return arguments.shape.unflatten(grads), arguments.shape.unflatten(products)
