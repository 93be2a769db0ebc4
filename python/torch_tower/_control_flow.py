"""cond, while_loop, fori_loop, scan, associative_scan, checkpoint."""

from typing import Any, Callable, NamedTuple, Sequence

import torch.utils.checkpoint
from torch import Tensor
from torch.utils._pytree import keystr, tree_unflatten
from torch.utils.checkpoint import CheckpointPolicy, create_selective_checkpoint_contexts

from . import _C
from ._compile import transformed, uncompiled
from ._containers import flatten, flatten_with_path
from ._kept import KeptFunction
from ._trees import Tree, check_whole, what_is

MaxStepsError = _C.MaxStepsError
MaxStepsError.__module__ = "torch_tower"
MaxStepsError.__doc__ = "The predicate of a while_loop still held after `max_steps` steps."


class LoopResult(NamedTuple):
    """What try_while_loop returns.

    `state`: the last one; `finished`, bool: whether the loop ended by its predicate, not by max_steps; `steps`, int64:
    how many there were.
    """

    state: Any
    finished: Tensor
    steps: Tensor


class _Same(Tree):
    """A tree that a function is given and returns again: the tensors in it change, the rest stays."""

    __slots__ = ("op", "what", "function", "single")

    def __init__(self, op: str, what: str, function: str):
        super().__init__()
        self.op, self.what, self.function = op, what, function  # for messages

    def depart(self, value: Any) -> list[Tensor]:
        self.single = type(value) is Tensor
        return super().depart(value)

    def arrive(self, values: list[Tensor]) -> Any:
        return values[0] if self.single else super().arrive(values)

    def leaves(self, value: Any) -> list[Tensor]:
        """The tensors of what the function returned."""
        if self.single and type(value) is Tensor:
            return [value]
        flat, spec = flatten(value)
        if spec != self.spec:
            raise ValueError(
                f"{self.op}: the {self.what} has the tree {self.spec}, but {self.function} returned {what_is(value)} "
                f"with the tree {spec}. Return the tree that was given."
            )
        tensors = []
        places = iter(self.positions)
        place = next(places, None)
        for i, (leaf, static) in enumerate(zip(flat, self.flat)):
            if i == place:
                if not isinstance(leaf, Tensor):
                    raise ValueError(
                        f"{self.op}: {self._name_of_leaf(i)} is a tensor, but {self.function} returned {leaf!r} for "
                        "it. Return a tensor."
                    )
                tensors.append(leaf)
                place = next(places, None)
            elif isinstance(leaf, Tensor) or not (leaf is static or leaf == static):
                returned = "a tensor" if isinstance(leaf, Tensor) else repr(leaf)
                raise ValueError(
                    f"{self.op}: {self._name_of_leaf(i)} is {static!r}, but {self.function} returned {returned} for "
                    "it. What is no tensor is the same in all steps: begin with a tensor for what changes."
                )
        return tensors

    def name(self, tensor: int) -> str:
        """How messages name a tensor: "state['x']"."""
        return self._name_of_leaf(self.positions[tensor])

    def _name_of_leaf(self, leaf: int) -> str:
        numbers = tree_unflatten(list(range(len(self.flat))), self.spec)
        return self.what + keystr(flatten_with_path(numbers)[leaf][0])


def _state(op: str, what: str, function: str, start: Any) -> tuple[_Same, list[Tensor]]:
    state = _Same(op, what, function)
    leaves = state.depart(start)
    if not leaves:
        raise ValueError(f"{op}: the {what} is {what_is(start)} that holds no tensor. Make what changes a tensor.")
    return state, leaves


def _check_checkpoints(op: str, checkpoints: int | str) -> None:
    if checkpoints in ("all", "automatic"):
        return
    if not isinstance(checkpoints, int) or isinstance(checkpoints, bool) or checkpoints < 1:
        raise ValueError(
            f"{op}: checkpoints is {checkpoints!r}; it must be 'all', 'automatic' or the number of states to keep, at "
            "least one."
        )


@uncompiled
def cond(predicate: Tensor | bool, true_branch: Callable, false_branch: Callable, *operands) -> Any:
    """`true_branch(*operands)` where `predicate` is not zero, else `false_branch(*operands)`.

    The predicate is a tensor of one element, or a bool.
    Where the predicate is the same for all examples of every surrounding vmap, and outside of transforms, only the
    branch taken is run, as by an `if`. Where it differs both are run, and each example takes its own results and
    derivatives: nothing of the other branch gets into either. Both must then return trees that differ in the values of
    their tensors only, and write to nothing. Tensors that a branch captures are as good as operands.
    """
    if not isinstance(predicate, Tensor):
        return true_branch(*operands) if predicate else false_branch(*operands)
    given, results = Tree(), {}
    tensors = given.depart(operands)

    def branch(which: bool, function: KeptFunction) -> Callable:
        def run(tensors):
            result = Tree()
            outs = result.depart(function(*given.arrive(tensors)))
            results[which] = result
            return outs

        return run

    with KeptFunction(true_branch) as when_true, KeptFunction(false_branch) as when_false:
        outs = _C.cond(predicate, branch(True, when_true), branch(False, when_false), tensors)
    taken = results[True] if True in results else results[False]
    if len(results) == 2 and (results[False].spec != taken.spec or results[False].flat != taken.flat):
        raise ValueError(
            f"cond: the predicate differs between examples, but true_branch returned the tree {taken.spec} and "
            f"false_branch {results[False].spec}, or what is no tensor in them differs. Both must return the same: "
            "make what differs a tensor."
        )
    return taken.arrive(outs)


@uncompiled
def while_loop(
    predicate: Callable,
    body: Callable,
    start: Any,
    *,
    max_steps: int | None = None,
    checkpoints: int | str = "all",
    compact: bool | float = False,
) -> Any:
    """The first state, of start, body(start), body(body(start)), …, for which `predicate(state)` is false.

    A state is a tree of tensors: shapes, dtypes and what is no tensor stay. The predicate returns a bool, or a bool
    tensor of one element. Under vmap each example makes its own number of steps: steps are run while there is an
    example that goes on, and those that have ended keep their state, whatever a further step would do to it, also in
    derivatives. Reverse mode needs no bound.

    More than `max_steps` steps of an example raise MaxStepsError. `checkpoints` says of how many steps the state is
    kept for the backward pass, which computes what is between them again: "all" (the fastest), a number, or
    "automatic", few enough that no step is computed again more than four times.

    Where at most the part `compact` of a batch goes on, from 0 (never) to 1 or True (from the first example that has
    ended), the others are left out of the computation.
    """
    return _while_loop("while_loop", predicate, body, start, max_steps, checkpoints, compact)[0]


@uncompiled
def try_while_loop(
    predicate: Callable,
    body: Callable,
    start: Any,
    *,
    max_steps: int | None = None,
    checkpoints: int | str = "all",
    compact: bool | float = False,
) -> LoopResult:
    """while_loop that says, in place of an error at `max_steps`, of each example whether it ended, and its steps.

    Arguments are those of `while_loop`.
    """
    return LoopResult(*_while_loop("try_while_loop", predicate, body, start, max_steps, checkpoints, compact))


@uncompiled
def _while_loop(
    op: str,
    predicate: Callable,
    body: Callable,
    start: Any,
    max_steps: int | None,
    checkpoints: int | str,
    compact: bool | float,
) -> tuple:
    _check_checkpoints(op, checkpoints)
    if max_steps is not None:
        check_whole(op, max_steps=max_steps)
    state, leaves = _state(op, "state", "the body", start)
    with KeptFunction(predicate) as holds, KeptFunction(body) as step:

        def goes_on(tensors):
            result = holds(state.arrive(tensors))
            if not isinstance(result, (bool, Tensor)):
                raise ValueError(f"{op}: the predicate returned {result!r}; it must return a bool or a bool tensor.")
            return result

        last = _C.while_loop(
            goes_on,
            lambda tensors: state.leaves(step(state.arrive(tensors))),
            leaves,
            max_steps,
            checkpoints,
            compact,
            op == "try_while_loop",
            state.name,
        )
    return state.arrive(last[: len(leaves)]), *last[len(leaves) :]


@uncompiled
def fori_loop(lower: int, upper: int, body: Callable, start: Any, *, checkpoints: int | str = "all") -> Any:
    """`body(upper - 1, … body(lower, start))`; the index is an int.

    States and `checkpoints` are as in `while_loop`.
    """
    _check_checkpoints("fori_loop", checkpoints)
    check_whole("fori_loop", lower=lower, upper=upper)
    state, leaves = _state("fori_loop", "state", "the body", start)
    with KeptFunction(body) as step:
        last = _C.fori_loop(
            lower,
            upper,
            lambda index, tensors: state.leaves(step(index, state.arrive(tensors))),
            leaves,
            checkpoints,
            state.name,
        )
    return state.arrive(last)


@uncompiled
def scan(
    step: Callable,
    start: Any,
    inputs: Any = None,
    *,
    length: int | None = None,
    reverse: bool = False,
    checkpoints: int | str = "all",
) -> tuple:
    """(the last carry, the outputs of all steps), where `step(carry, element)` returns (next carry, output).

    `start` is the first carry, a tree of which shapes, dtypes and what is no tensor stay. `inputs` is a tree whose
    tensors are taken apart along their first dimension, an element for each step; outputs are trees, which are stacked.
    Without inputs there are `length` steps, and `step` takes the carry alone. With `reverse` it goes from the last
    input to the first, and outputs have the places of their inputs. `checkpoints` is as in `while_loop`.
    """
    _check_checkpoints("scan", checkpoints)
    if length is not None:
        check_whole("scan", length=length)
    carry, leaves = _state("scan", "carry", "the step", start)
    element = Tree()
    elements = [] if inputs is None else element.depart(inputs)
    if not elements and length is None:
        raise ValueError("scan: there are no inputs; say with length= how many steps there are.")
    outputs = []

    def output_leaves(output: Any) -> list[Tensor]:
        if outputs:
            return outputs[0].leaves(output)
        outputs.append(_Same("scan", "output", "the step"))
        return outputs[0].depart(output)

    with KeptFunction(step) as function:

        def run(carried, given):
            state = carry.arrive(carried)
            result = function(state) if inputs is None else function(state, element.arrive(given))
            if not isinstance(result, tuple) or len(result) != 2:
                raise ValueError(f"scan: the step must return (next carry, output), but it returned {what_is(result)}.")
            return carry.leaves(result[0]), output_leaves(result[1])

        last, stacked = _C.scan(run, leaves, elements, length, reverse, checkpoints, carry.name)
    return carry.arrive(last), outputs[0].arrive(stacked)


@uncompiled
def associative_scan(combine: Callable, elements: Any, dim: int = 0, *, reverse: bool = False) -> Any:
    """All prefixes e0, e0∘e1, e0∘e1∘e2, … of the elements of a tree of tensors along `dim`.

    `combine(a, b)` takes two elements and returns one. It is mapped, must be associative, and is called O(log n)
    times. With `reverse`, from the last element to the first.
    """
    check_whole("associative_scan", dim=dim)
    tree, leaves = _state("associative_scan", "element", "combine", elements)
    result = _C.associative_scan(
        lambda a, b: tree.leaves(combine(tree.arrive(a), tree.arrive(b))), leaves, dim, reverse
    )
    return tree.arrive(result)


@uncompiled
def checkpoint(
    func: Callable,
    *,
    keep: Sequence[str] = (),
    keep_names: Sequence[str] = (),
    policy: Callable[[str, list[Tensor]], bool] | None = None,
) -> Callable:
    """`func`, whose intermediate values are not kept for the backward pass but computed again in it.

    `checkpoint(f)(*args)` is what `torch.utils.checkpoint.checkpoint(f, *args, use_reentrant=False)` is to LibTorch's
    autograd, and it is that outside of transforms. Inside, it holds for derivatives of any order, under vmap, and in
    itself. Random numbers are drawn again as they were. Tensors that `func` captures are as good as arguments; other
    variables have for the second evaluation the values that they had at the first.

    Some values can be kept all the same: results of the operators `keep`, such as "aten::mm", values with names (see
    checkpoint_name) among `keep_names`, and results of calls for which `policy(operator, results)` is true. Outside of
    transforms `keep` alone is heeded.
    """
    keep, keep_names = list(keep), list(keep_names)

    @transformed(func)
    def checkpointed(*args, **kwargs):
        with KeptFunction(func) as function:
            if not _C.inside_transform():
                return torch.utils.checkpoint.checkpoint(
                    function, *args, use_reentrant=False, **({"context_fn": _contexts(keep)} if keep else {}), **kwargs
                )
            given, result = Tree(), Tree()
            operands = given.depart((args, kwargs))

            def run(tensors):
                args, kwargs = given.arrive(tensors)
                return result.depart(function(*args, **kwargs))

            return result.arrive(_C.checkpoint(run, operands, keep, keep_names, policy))

    return checkpointed


def _contexts(keep: list[str]) -> Callable:
    """What torch.utils.checkpoint calls a context_fn."""

    def policy(ctx, op, *args, **kwargs):
        name = op.name()
        kept = name in keep or name.partition(".")[0] in keep
        return CheckpointPolicy.MUST_SAVE if kept else CheckpointPolicy.PREFER_RECOMPUTE

    return lambda: create_selective_checkpoint_contexts(policy)


def checkpoint_name(tensor: Tensor, name: str) -> Tensor:
    """`tensor`, which checkpoints around this code keep if `name` is among their `keep_names`."""
    return _C.checkpoint_name(tensor, name)
