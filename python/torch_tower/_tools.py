"""check_grads, coverage, explain: what Tower has beside the transforms."""

from typing import Callable, NamedTuple

from . import _C
from ._compile import transformed, uncompiled
from ._trees import Arguments, Outputs, check_tuple


@uncompiled
def check_grads(
    func: Callable,
    args: tuple,
    order: int = 1,
    modes: tuple[str, ...] = ("forward", "reverse"),
    *,
    step: float = 6e-6,
    relative: float = 1e-6,
    absolute: float = 1e-7,
) -> None:
    """Raises RuntimeError unless the derivatives of `func` at `args` agree with finite differences.

    For tests of your own rules and functions. All tensors are of dtype float64 or complex128, else ValueError.
    Derivatives up to `order` are checked, in the `modes` "forward" (jvp) and "reverse" (vjp). Differences are central,
    over steps of `step` in each element; accepted are errors of `relative` times the largest element of a derivative,
    and `absolute` times the largest of the output, or 1.
    """
    if unknown := set(modes) - {"forward", "reverse"}:
        raise ValueError(f"check_grads: modes has {sorted(unknown)}; modes are 'forward' and 'reverse'.")
    check_tuple("check_grads", "args", args)
    arguments = Arguments(args)
    _C.check_grads(
        arguments.function(func),
        Outputs("check_grads").depart,
        arguments.tensors,
        order,
        "forward" in modes,
        "reverse" in modes,
        step,
        relative,
        absolute,
    )


class CoverageRow(NamedTuple):
    """How one operator is served under one transform.

    `op`: "aten::add.Tensor"; `transform`: "vmap", "vjp" or "jvp"; `served`: "own rule", "decomposition", "loop",
    "LibTorch autograd", "no derivative", … (docs/coverage.md says what each is).
    """

    op: str
    transform: str
    served: str


def coverage() -> list[CoverageRow]:
    """A row for each operator that LibTorch knows and each transform: how it is served."""
    return [CoverageRow(*row) for row in _C.coverage()]


@uncompiled
def explain(func: Callable) -> Callable:
    """`func`, printing after each call which operators ran, at which level, by which rule, how often and how long.

    The result of the call is that of `func`. `explain(vmap(grad(loss)))(x, y)` explains a whole composition.
    """

    @transformed(func)
    def explained(*args, **kwargs):
        result, table = _C.explain(lambda: func(*args, **kwargs))
        print(table, end="")
        return result

    return explained


def set_fallback_is_error(yes: bool) -> bool:
    """Whether an operator without a batching rule is an error under vmap, instead of a loop with a warning.

    An error with `yes`. For the whole process; returns what was set before.
    """
    return _C.set_fallback_is_error(yes)
