"""What is in a TensorDict besides tensors that lie side by side, under vmap: lazy stacks, values, unbatched tensors."""

import pytest
import torch
from support import assert_same, randn
from torch_tower import vmap

tensordict = pytest.importorskip("tensordict", reason="script/test does not install it")
TensorDict = tensordict.TensorDict


def lazy_stack(dim, **entries):
    """Two elements of batch size [3], stacked along `dim`."""
    return tensordict.LazyStackedTensorDict.lazy_stack(
        [TensorDict({"a": randn(3, 4), **{k: make(i) for k, make in entries.items()}}, [3]) for i in range(2)], dim
    )


def is_lazy(td):
    return isinstance(td, tensordict.LazyStackedTensorDict)


# ---- lazy stacks -----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("stack_dim", [0, 1])
@pytest.mark.parametrize("dim", [0, 1])
def test_a_lazy_stack_that_the_function_writes_to_and_returns_is_one_afterwards(stack_dim, dim):
    x, y = lazy_stack(stack_dim), lazy_stack(stack_dim)
    before = x["a"].clone()
    result = vmap(lambda x, y: x.set("a", x["a"] + y["a"]), dim, dim)(x, y)
    assert is_lazy(result) and result.stack_dim == stack_dim and result.batch_size == x.batch_size
    assert_same(result["a"], before + y["a"])
    assert_same(x["a"], before)  # set() is the example's


@pytest.mark.parametrize("dim", [0, 1])
def test_what_a_function_makes_of_a_lazy_stack_has_its_batch(dim):
    # torch.func gives [2, 2, 3] where the dimension of the stack is mapped.
    x = lazy_stack(0)
    result = vmap(lambda t: t * 2, dim, dim)(x)
    assert result.batch_size == (2, 3)
    assert_same(result["a"], x["a"] * 2)


@pytest.mark.parametrize("dim", [0, 1])
@pytest.mark.parametrize("out_dim", [0, 1])
def test_lazy_stacks_inside_of_a_tensordict(dim, out_dim):
    x = TensorDict({"l": lazy_stack(0)}, [2, 3])
    result = vmap(lambda t: t, dim, out_dim)(x)
    assert is_lazy(result["l"])
    assert_same(result["l", "a"], x["l", "a"].movedim(dim, out_dim))


def test_locks_and_names_of_lazy_stacks_are_kept():
    x = lazy_stack(0)
    x.names = ["s", "t"]
    x.lock_()
    for dim, inside in ((0, ["t"]), (1, ["s"])):
        seen = []

        def f(t):
            seen.append(t.names)
            with pytest.raises(RuntimeError, match="Cannot modify"):
                t.set("a", t["a"])
            return t

        assert vmap(f, dim)(x).is_locked
        assert seen == [inside]


def test_elements_of_different_shapes_are_mapped_along_other_dimensions_than_that_of_the_stack():
    x = lazy_stack(0, ragged=lambda i: randn(3, 2 + i))
    result = vmap(lambda t: t, 1, 1)(x)
    for ours, theirs in zip(result.tensordicts, x.tensordicts):
        assert_same(ours["ragged"], theirs["ragged"])
    with pytest.raises(ValueError, match="in_dim 0 of a LazyStackedTensorDict is the dimension of the stack"):
        vmap(lambda t: t)(x)


def test_an_example_has_the_entries_that_all_elements_have():
    x = tensordict.LazyStackedTensorDict.lazy_stack(
        [TensorDict({"a": randn(3), key: randn(3)}, [3]) for key in ("p", "q")], 0
    )
    result = vmap(lambda t: t.set("keys", torch.tensor(float(len(t.keys())))))(
        TensorDict({"x": x}, [2, 3])["x"].sum(-1)
    )
    assert_same(result["keys"], torch.ones(2))


# ---- values that are no tensors --------------------------------------------------------------------------------------


@pytest.mark.parametrize("lazily", [False, True])
def test_values_that_differ_between_examples_are_seen_whole_and_come_back(lazily):
    elements = [TensorDict({"a": randn(2), "text": text}, []) for text in ("x", "y")]
    td = tensordict.lazy_stack(elements, 0) if lazily else torch.stack(elements, 0)
    seen = []
    result = vmap(lambda t: (seen.append(t["text"]), t)[1])(td)
    assert list(seen[0]) == ["x", "y"]
    assert [result[i]["text"] for i in range(2)] == ["x", "y"]


def test_values_stacked_along_another_dimension_stay_where_they_belong():
    elements = [TensorDict({"a": randn(3), "text": text}, [3]) for text in ("x", "y")]
    result = vmap(lambda t: (list(t["text"]), t)[1], 1)(torch.stack(elements, 0))
    assert result.batch_size == (3, 2)
    assert [result[0, i]["text"] for i in range(2)] == ["x", "y"]


# ---- unbatched tensors -----------------------------------------------------------------------------------------------


def with_unbatched(data):
    return TensorDict({"a": randn(4, 3), "u": tensordict.UnbatchedTensor(data)}, [4, 3])


def assert_unbatched(result, data, batch_size):
    assert isinstance(result, tensordict.UnbatchedTensor) and result.batch_size == batch_size
    assert result.data_ptr() == data.data_ptr()


def test_an_unbatched_tensor_leaves_as_what_it_is():
    data = randn(7)
    assert_unbatched(vmap(lambda t: t["u"])(with_unbatched(data)), data, (4, 3))
    assert_unbatched(vmap(vmap(lambda t: t["u"]))(with_unbatched(data)), data, (4, 3))
    assert_unbatched(vmap(lambda t: t)(with_unbatched(data)).get("u"), data, (4, 3))
    assert_unbatched(vmap(lambda u: u)(tensordict.UnbatchedTensor(data, batch_size=[5])), data, (5,))


def test_what_is_computed_from_an_unbatched_tensor_and_a_mapped_one_is_mapped():
    data = randn(7)
    td = with_unbatched(data)
    result = vmap(lambda t: t["u"].sum() * t["a"])(td)
    assert type(result) is torch.Tensor
    assert_same(result, data.sum() * td["a"])
    made = vmap(lambda t: t.set("u", tensordict.UnbatchedTensor(t["a"] * 2)))(td)
    assert type(made.get("u")) is torch.Tensor
    assert_same(made["u"], td["a"] * 2)


# ---- none ------------------------------------------------------------------------------------------------------------


def test_a_tensordict_without_tensors_says_how_many_examples_there_are():
    assert vmap(lambda t: t)(TensorDict({}, [3])).batch_size == (3,)
    assert vmap(lambda t: t, 1, 1)(TensorDict({"text": "x"}, [3, 4])).batch_size == (3, 4)
    assert_same(vmap(lambda t: torch.ones(2))(TensorDict({}, [3])), torch.ones(3, 2))
    with pytest.raises(ValueError, match="differ in size"):
        vmap(lambda t, x: x)(TensorDict({}, [3]), randn(4))
