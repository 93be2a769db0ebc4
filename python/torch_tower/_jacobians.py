"""jacrev, jacfwd, hessian."""

from typing import Callable

from . import _C
from ._compile import transformed, uncompiled
from ._derivatives import argnums_t
from ._trees import Arguments, Chosen, Outputs


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
            n = len(chosen.tensors)
            blocks = [chosen.unflatten(blocks[i : i + n]) for i in range(0, len(blocks), n)]
        result = outputs.like(blocks)
        return (result, outputs.aux.arrive(aux)) if has_aux else result

    return jacobian


def _check_chunk_size(transform: str, chunk_size: int | None) -> None:
    if chunk_size is not None and chunk_size <= 0:
        raise ValueError(f"{transform}: chunk_size is {chunk_size}; it must be positive or None.")


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
    _check_chunk_size("jacrev", chunk_size)
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
    _check_chunk_size("jacfwd", chunk_size)
    return _jacobian("jacfwd", 1, func, argnums, has_aux, chunk_size, randomness)


@uncompiled
def hessian(
    func: Callable, argnums: argnums_t = 0, *, has_aux: bool = False, chunk_size: int | None = None
) -> Callable:
    """The second derivatives of `func`, forward over reverse. The same as :func:`torch.func.hessian`.

    Each tensor of the result has the output's shape followed by those of the two arguments. `argnums`, `has_aux` and
    `chunk_size` are as in `jacrev`.
    """
    _check_chunk_size("hessian", chunk_size)
    return _jacobian("hessian", 2, func, argnums, has_aux, chunk_size, "error")
