"""jacrev, jacfwd, value_and_jacobian, hessian."""

from typing import Callable

from . import _C
from ._compile import transformed, uncompiled
from ._derivatives import argnums_t
from ._trees import Arguments, Chosen, Outputs, check_chunk_size


@uncompiled
def _jacobian(transform: str, order: int, func: Callable, argnums: argnums_t, has_aux: bool, *options) -> Callable:
    """`func`'s derivatives of this order by `_C.transform`: the output's tree of the arguments' tree (of the same)."""
    run = getattr(_C, transform)

    @transformed(func)
    def jacobian(*args, **kwargs):
        arguments = Arguments(args, kwargs)
        chosen = Chosen(transform, arguments, argnums)
        outputs = Outputs(transform, has_aux)
        blocks, aux = run(
            arguments.function(func), outputs.depart, arguments.tensors, chosen.tensors, has_aux, *options
        )
        for _ in range(order):
            blocks = _by_arguments(chosen, blocks)
        result = outputs.like(blocks)
        return (result, outputs.aux.arrive(aux)) if has_aux else result

    return jacobian


def _by_arguments(chosen: Chosen, blocks: list) -> list:
    """Blocks for each of the chosen tensors in turn, as trees like the arguments."""
    n = len(chosen.tensors)
    return [chosen.unflatten(blocks[i : i + n]) for i in range(0, len(blocks), n)]


@uncompiled
def jacrev(
    func: Callable,
    argnums: argnums_t = 0,
    *,
    has_aux: bool = False,
    chunk_size: int | None = None,
    _preallocate_and_copy: bool = False,
) -> Callable:
    """The Jacobian of `func` with respect to the argument(s) `argnums`, by rows: reverse mode.

    The same as :func:`torch.func.jacrev`: each output of `func` becomes a tree like the argument (a tuple of such for
    a tuple of `argnums`), whose tensors have the output's shape followed by the argument's. At most `chunk_size` rows
    are computed at once. With `has_aux` the function returns (output, aux), and its Jacobian is (Jacobian, aux).
    RuntimeError where an output or argument is of integers, or an output is complex and an argument real.
    """
    del _preallocate_and_copy  # how torch.func joins chunks
    check_chunk_size("jacrev", chunk_size)
    return _jacobian("jacrev", 1, func, argnums, has_aux, chunk_size, "same")


@uncompiled
def jacfwd(
    func: Callable,
    argnums: argnums_t = 0,
    has_aux: bool = False,
    *,
    randomness: str = "error",
    chunk_size: int | None = None,
) -> Callable:
    """The Jacobian by columns: forward mode. The same as :func:`torch.func.jacfwd`; other arguments are as in `jacrev`.

    `randomness` says what a random operator in `func` means: its draws differ between columns or are the same.
    """
    check_chunk_size("jacfwd", chunk_size)
    return _jacobian("jacfwd", 1, func, argnums, has_aux, chunk_size, randomness)


@uncompiled
def value_and_jacobian(
    func: Callable,
    argnums: argnums_t = 0,
    *,
    mode: str = "reverse",
    has_aux: bool = False,
    chunk_size: int | None = None,
    randomness: str = "error",
) -> Callable:
    """The output of `func` and its Jacobian: (output, Jacobian), or ((output, aux), Jacobian) with `has_aux`.

    The Jacobian is that of `jacrev`, or with `mode="forward"` that of `jacfwd`: by the argument(s) `argnums`, at most
    `chunk_size` rows or columns at a time. `randomness`, forward: as in `jacfwd`.
    """
    name = "value_and_jacobian"
    if mode not in ("reverse", "forward"):
        raise ValueError(f"{name}: mode is {mode!r}; it must be 'reverse' or 'forward'.")
    check_chunk_size(name, chunk_size)
    forward = mode == "forward"

    @transformed(func)
    def value_and_blocks(*args, **kwargs):
        arguments = Arguments(args, kwargs)
        chosen = Chosen(name, arguments, argnums)
        outputs = Outputs(name, has_aux)
        values, blocks = _C.value_and_jacobian(
            arguments.function(func),
            outputs.depart,
            arguments.tensors,
            chosen.tensors,
            has_aux,
            forward,
            chunk_size,
            randomness if forward else "same",
        )
        jacobian = outputs.like(_by_arguments(chosen, blocks))
        number = len(blocks) // len(chosen.tensors)
        value = outputs.arrive(values[:number])
        return ((value, outputs.aux.arrive(values[number:])) if has_aux else value), jacobian

    return value_and_blocks


@uncompiled
def hessian(
    func: Callable, argnums: argnums_t = 0, *, has_aux: bool = False, chunk_size: int | None = None
) -> Callable:
    """The second derivatives of `func`, forward over reverse. The same as :func:`torch.func.hessian`.

    Each tensor of the result has the output's shape followed by those of the two arguments. `argnums`, `has_aux` and
    `chunk_size` are as in `jacrev`.
    """
    check_chunk_size("hessian", chunk_size)
    return _jacobian("hessian", 2, func, argnums, has_aux, chunk_size, "error")
