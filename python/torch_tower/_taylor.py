"""jet, derivatives_along, laplacian, biharmonic, differential_operator, and estimates by random directions."""

from typing import Any, Callable, Sequence

from torch import Tensor

from . import _C
from ._compile import transformed, uncompiled
from ._containers import flatten
from ._derivatives import _differentiable, argnums_t
from ._trees import Arguments, Chosen, Outputs, check_chunk_size, check_tuple, check_whole, same_tree

_LIKE_PRIMALS = "Expected primals and series to have the same python structure"


@uncompiled
def jet(func: Callable, primals: tuple, series: tuple, factorial_scaled: bool = True) -> tuple:
    """(output of `func`, its derivatives along a curve): Taylor mode, for derivatives of any order.

    The same as `jax.experimental.jet.jet`. `primals` is the tuple of the arguments, and `series` has for each of them a
    list of K terms, trees like the argument (None: zero): its first to K-th derivative along the curve. Each tensor of
    the second result is a list of the output's K derivatives. Without `factorial_scaled` terms are coefficients of
    t, t², …, that is derivatives divided by k!, those given and those returned.
    """
    check_tuple("jet", "primals", primals)
    if not isinstance(series, (tuple, list)) or len(series) != len(primals):
        raise ValueError(
            f"jet: there are {len(primals)} primals, so series must be a tuple of {len(primals)} lists of terms."
        )
    orders = {len(terms) for terms in series}
    if len(orders) != 1 or 0 in orders:
        raise ValueError(f"jet: the primals have {sorted(orders)} terms; they must have the same number, at least one.")
    arguments = Arguments(primals)
    _differentiable("jet", "primals", arguments)
    specs = [flatten(primal)[1] for primal in primals]
    by_order = [
        [leaf for term, spec in zip(terms, specs) for leaf in _leaves_of_term(term, spec)] for terms in zip(*series)
    ]
    outputs = Outputs("jet")
    outs, derivatives = _C.jet(
        arguments.function(func), outputs.depart, arguments.tensors, by_order, not factorial_scaled
    )
    return outputs.arrive(outs), outputs.like([list(each) for each in zip(*derivatives)])


def _leaves_of_term(term: Any, spec: Any) -> list[Tensor | None]:
    if term is None:
        return [None] * spec.num_leaves
    return same_tree("jet", "series", term, "its primal", spec, _LIKE_PRIMALS)


@uncompiled
def derivatives_along(func: Callable, primals: tuple, tangents: tuple, order: int) -> list:
    """The output of `func` at `primals` and its first `order` derivatives along `tangents`: a list of order + 1 trees.

    `primals` is the tuple of the arguments, and `tangents` one like it, of the same shapes and dtypes (None: zero). The
    k-th is the k-th derivative of f(x + v t) by t at t = 0. ValueError where `order` is less than one.
    """
    check_tuple("derivatives_along", "primals", primals)
    check_tuple("derivatives_along", "tangents", tangents)
    check_whole("derivatives_along", order=order)
    if order < 1:
        raise ValueError(f"derivatives_along: order is {order}; it must be at least one.")
    arguments = Arguments(primals)
    _differentiable("derivatives_along", "primals", arguments)
    first = same_tree("derivatives_along", "tangents", tangents, "primals", flatten(primals)[1], _LIKE_PRIMALS)
    outputs = Outputs("derivatives_along")
    none = [None] * len(arguments.tensors)
    outs, derivatives = _C.jet(
        arguments.function(func), outputs.depart, arguments.tensors, [first, *[none] * (order - 1)], False
    )
    return [outputs.arrive(outs), *map(outputs.like, derivatives)]


def _applied(transform: str, func: Callable, argnums: argnums_t, args: tuple, kwargs: dict, *rest) -> Any:
    """What `_C`'s function of that name gives, as a tree."""
    arguments = Arguments(args, kwargs)
    chosen = Chosen(transform, arguments, argnums)
    outputs = Outputs(transform)
    result = getattr(_C, transform)(arguments.function(func), outputs.depart, arguments.tensors, chosen.tensors, *rest)
    if isinstance(result, tuple):
        return outputs.arrive(result[0]), outputs.like(result[1])
    return outputs.like(result)


def _directions(transform: str, directions: Any) -> list[Tensor]:
    given = [] if directions is None else flatten(directions)[0]
    if not all(isinstance(each, Tensor) for each in given):
        raise RuntimeError(
            f"{transform}: directions must be a tensor or a tree of tensors, like what is differentiated."
        )
    return given


@uncompiled
def laplacian(
    func: Callable,
    argnums: argnums_t = 0,
    *,
    directions: Any = None,
    chunk_size: int | None = None,
) -> Callable:
    """A function that returns (output of `func`, its Laplacian), without a Hessian.

    The Laplacian is a tree like the output: the sum of its second derivatives by all elements of the argument(s)
    `argnums`. `directions`, a tree like what is differentiated (a tuple for a tuple of `argnums`) of tensors with
    directions in front, asks for the sum of the second derivatives along these instead: the rows of a factor A of a
    matrix AᵀA weight by that, and random rows of unit variance give an estimate. At most `chunk_size` directions are
    followed at once. RuntimeError where what is differentiated is not real.
    """
    check_chunk_size("laplacian", chunk_size)

    @transformed(func)
    def value_and_laplacian(*args, **kwargs):
        return _applied("laplacian", func, argnums, args, kwargs, _directions("laplacian", directions), chunk_size)

    return value_and_laplacian


@uncompiled
def biharmonic(func: Callable, argnums: argnums_t = 0) -> Callable:
    """The Laplacian of the Laplacian of `func` by the elements of the argument(s) `argnums`: a tree like the output."""

    @transformed(func)
    def applied(*args, **kwargs):
        return _applied("biharmonic", func, argnums, args, kwargs)

    return applied


@uncompiled
def differential_operator(
    terms: Sequence[tuple[float | Tensor, Sequence[int]]],
    argnums: argnums_t = 0,
    *,
    normal_directions: Any = None,
    chunk_size: int | None = None,
) -> Callable:
    """The linear differential operator that is the sum of `terms`: it takes a function and gives another one.

    A term is a coefficient and the elements that are differentiated by, counted through all tensors of the argument(s)
    `argnums` in turn, each as often as it is named: `[(1, (0,)), (-0.1, (1, 1))]` is ∂₀ - 0.1 ∂₁²; `()` is the function
    itself. A coefficient is a number or a real tensor without dimensions, which may depend on the position. The result
    is a tree like the function's output. `normal_directions`, a tree like what is differentiated (a tuple for a tuple
    of `argnums`) of tensors with directions in front, independent standard normal numbers, estimates terms of order two
    and more by them. At most `chunk_size` directions are followed at once. TypeError and ValueError where a term is not
    such a pair; RuntimeError where it names no element, or is of an order above twelve.
    """
    check_chunk_size("differential_operator", chunk_size)
    numbers, tensors, by = [], [], []
    for k, term in enumerate(terms):
        if not isinstance(term, (tuple, list)) or len(term) != 2 or not isinstance(term[1], (tuple, list)):
            raise TypeError(
                f"differential_operator: term {k} is {term!r}; it must be a pair of a coefficient and a tuple of the "
                "elements that are differentiated by."
            )
        coefficient, elements = term
        if not all(isinstance(each, int) for each in elements):
            raise TypeError(f"differential_operator: term {k} is by {elements!r}; elements are named by ints.")
        if isinstance(coefficient, (bool, complex)) or not isinstance(coefficient, (int, float, Tensor)):
            raise TypeError(
                f"differential_operator: the coefficient of term {k} is a {type(coefficient).__name__}; it must be a "
                "real number, or a tensor of one."
            )
        is_tensor = isinstance(coefficient, Tensor)
        numbers.append(0.0 if is_tensor else float(coefficient))
        tensors.append(coefficient if is_tensor else None)
        by.append(list(elements))

    def of(func: Callable) -> Callable:
        @transformed(func)
        def applied(*args, **kwargs):
            return _applied(
                "differential_operator",
                func,
                argnums,
                args,
                kwargs,
                numbers,
                tensors,
                by,
                _directions("differential_operator", normal_directions),
                chunk_size,
            )

        return applied

    return of


@uncompiled
def stochastic_laplacian(
    func: Callable, directions: Any, argnums: argnums_t = 0, *, chunk_size: int | None = None
) -> Callable:
    """A function that returns (output of `func`, an estimate of its Laplacian): Hutchinson's.

    The estimate is the mean of the second derivatives along `directions`, a tree like the argument(s) `argnums` (a
    tuple for a tuple) of tensors with directions in front. Of random ones with unit covariance, such as signs or
    standard normal numbers, its mean is the Laplacian. At most `chunk_size` directions are followed at once.
    """
    check_chunk_size("stochastic_laplacian", chunk_size)

    @transformed(func)
    def value_and_estimate(*args, **kwargs):
        return _applied(
            "stochastic_laplacian",
            func,
            argnums,
            args,
            kwargs,
            _directions("stochastic_laplacian", directions),
            chunk_size,
        )

    return value_and_estimate


@uncompiled
def stochastic_biharmonic(
    func: Callable, directions: Any, argnums: argnums_t = 0, *, chunk_size: int | None = None
) -> Callable:
    """A function that returns an estimate of the Laplacian of the Laplacian of `func`: a tree like the output.

    It is a third of the mean of the fourth derivatives along `directions`, a tree like the argument(s) `argnums` (a
    tuple for a tuple) of tensors with directions in front, which are to be standard normal: of random signs the mean is
    another. At most `chunk_size` directions are followed at once.
    """
    check_chunk_size("stochastic_biharmonic", chunk_size)

    @transformed(func)
    def estimate(*args, **kwargs):
        return _applied(
            "stochastic_biharmonic",
            func,
            argnums,
            args,
            kwargs,
            _directions("stochastic_biharmonic", directions),
            chunk_size,
        )

    return estimate
