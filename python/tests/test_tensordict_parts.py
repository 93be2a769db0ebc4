"""What is in a TensorDict besides tensors that lie side by side, under vmap: lazy stacks, values, unbatched tensors;
and the batch sizes of all of them in every transform."""

import pytest
import torch
from support import assert_same, randn
from torch.utils._pytree import tree_leaves
from torch_tower import checkpoint, compile, fori_loop, grad, hvp, jacrev, jvp, linearize, load, vjp, vmap

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


# ---- batch sizes that no shape tells ---------------------------------------------------------------------------------


@tensordict.tensorclass
class Counted:
    a: torch.Tensor
    count: torch.Tensor
    text: str


def count():
    return tensordict.UnbatchedTensor(torch.tensor(3.0))


def inside(td):
    return TensorDict({"n": td, "b": randn(*td.batch_size, 2)}, td.batch_size)


HOLDERS = {
    "a TensorDict": lambda n: TensorDict({"a": randn(n, 3), "count": count()}, [n]),
    "one of two dimensions": lambda n: TensorDict({"a": randn(n, 3), "count": count()}, [n, 3]),
    "a tensorclass": lambda n: Counted(a=randn(n, 3), count=count(), text="x", batch_size=[n]),
    "one inside of another": lambda n: inside(TensorDict({"a": randn(n, 3), "count": count()}, [n])),
    "a tensorclass in a TensorDict": lambda n: inside(Counted(a=randn(n, 3), count=count(), text="x", batch_size=[n])),
    "nothing else": lambda n: TensorDict({"count": count()}, [n]),
    "without it, with a value": lambda n: TensorDict({"a": randn(n, 3), "text": "x"}, [n]),
    "without it, empty inside": lambda n: TensorDict({"a": randn(n, 3), "empty": {}}, [n]),
    "without it, nothing": lambda n: TensorDict({}, [n]),
}


def sizes_of(value):
    """The batch sizes of all containers in one, by the keys that lead to them."""
    found = {"": tuple(value.batch_size)}
    for key, entry in value.items():
        if hasattr(entry, "batch_size") and not isinstance(entry, torch.Tensor):
            found |= {f"{key}.{name}": size for name, size in sizes_of(entry).items()}
    return found


COMPILED = {
    "compile": (compile, lambda f: f),
    "compile(compile)": (lambda f: compile(compile(f)), lambda f: f),
    "compile(vmap)": (lambda f: compile(vmap(f)), vmap),
    "vmap(compile)": (lambda f: vmap(compile(f)), vmap),
    "compile(vmap) to the end": (lambda f: compile(vmap(f, out_dims=-1)), lambda f: vmap(f, out_dims=-1)),
    "a tree": (lambda f: lambda t: compile(vmap(lambda tree: [f(tree["t"])]))({"t": t})[0], vmap),
    "compile(checkpoint)": (lambda f: compile(checkpoint(f)), lambda f: f),
}


@pytest.mark.parametrize("transform", COMPILED)
@pytest.mark.parametrize("name", HOLDERS)
def test_batch_sizes_are_those_without_compile_at_each_size(name, transform):
    seen = []

    def f(t):
        seen.append(sizes_of(t))
        return t.clone()

    compiled, plain = (make(f) for make in COMPILED[transform])
    for n in (4, 6, 2):
        x = HOLDERS[name](n)
        seen.clear()
        result = compiled(x)
        ours = list(seen)
        seen.clear()
        expected = plain(x)
        assert all(sizes == seen[0] for sizes in ours)
        assert type(result) is type(expected) and sizes_of(result) == sizes_of(expected)
        assert len(tree_leaves(result)) == len(tree_leaves(expected))
        for a, b in zip(sorted(result.keys()), sorted(expected.keys())):
            assert a == b and type(result.get(a)) is type(expected.get(a))
            if isinstance(expected.get(a), torch.Tensor):
                assert_same(result.get(a).as_subclass(torch.Tensor), expected.get(a).as_subclass(torch.Tensor))


def test_elements_of_a_lazy_stack_keep_an_unbatched_tensor():
    x = tensordict.lazy_stack([HOLDERS["a TensorDict"](4) for _ in range(2)], 0)
    seen = []
    f = lambda t: (seen.append([tuple(e.batch_size) for e in t.tensordicts]), t)[1]
    for result in (compile(f)(x), compile(vmap(f, 1, 1))(x)):
        assert is_lazy(result) and result.batch_size == (2, 4)
        for ours, theirs in zip(result.tensordicts, x.tensordicts):
            assert ours.batch_size == (4,) and isinstance(ours.get("count"), tensordict.UnbatchedTensor)
            assert_same(ours["a"], theirs["a"])
    assert seen == [[(4,), (4,)], [(), ()]]


def test_a_function_of_a_batch_size_that_no_tensor_tells_is_compiled_for_each():
    compiled = compile(lambda t: torch.ones(t.batch_size))
    mapped = compile(vmap(lambda t: torch.ones(2)))
    for n in (3, 5, 3):
        assert_same(compiled(TensorDict({}, [n])), torch.ones(n))
        assert_same(mapped(TensorDict({"count": count()}, [n])), torch.ones(n, 2))
    inner = compile(lambda t: torch.ones(t["n"].batch_size) * t["a"].sum())
    for n in (2, 7):
        assert inner(TensorDict({"a": randn(4, 3), "n": TensorDict({}, [4, n])}, [4])).shape == (4, n)


def weighted():
    return TensorDict({"a": randn(4, 3), "u": tensordict.UnbatchedTensor(randn(3))}, [4])


def energy(t):
    assert t.batch_size in ((4,), ())
    return (t["a"] ** 2 * t["u"].sin()).sum().as_subclass(torch.Tensor)


def energy_of(a, u):
    return (a**2 * u.sin()).sum()


DERIVATIVES = {
    "grad": lambda f, x, v: grad(f)(x),
    "compile(grad)": lambda f, x, v: compile(grad(f))(x),
    "grad(compile)": lambda f, x, v: grad(compile(f))(x),
    "vjp": lambda f, x, v: vjp(f, x)[1](torch.tensor(1.0).double())[0],
    "hvp": lambda f, x, v: hvp(f, (x,), (v,))[0][0],
    "jacrev of a scalar": lambda f, x, v: jacrev(f)(x),
}


@pytest.mark.parametrize("name", DERIVATIVES)
def test_derivatives_by_an_unbatched_tensor_are_unbatched_and_right(name):
    x, v = weighted(), weighted()
    a, u = x["a"].clone().requires_grad_(), x["u"].as_subclass(torch.Tensor).clone().requires_grad_()
    by_a, by_u = torch.autograd.grad(energy_of(a, u), (a, u))
    result = DERIVATIVES[name](energy, x, v)
    assert result.batch_size == (4,) and isinstance(result.get("u"), tensordict.UnbatchedTensor)
    assert_same(result["a"], by_a)
    assert_same(result["u"].as_subclass(torch.Tensor), by_u)


def test_derivatives_of_each_example_by_an_unbatched_tensor_are_a_batch():
    x = weighted()
    rows = torch.stack([x["a"][i] ** 2 * x["u"].as_subclass(torch.Tensor).cos() for i in range(4)])
    for transform in (vmap(grad(energy)), compile(vmap(grad(energy))), vmap(compile(grad(energy)))):
        result = transform(x)
        assert result.batch_size == (4,) and type(result.get("u")) is torch.Tensor
        assert_same(result["u"], rows)


def test_tangents_and_jacobians_of_containers_with_an_unbatched_tensor():
    x, v = weighted(), weighted()
    twice = lambda t: t.apply(lambda x: x * 2)
    for tangent in (jvp(twice, (x,), (v,))[1], linearize(twice, x)[1](v), vjp(twice, x)[1](v)[0]):
        assert tangent.batch_size == (4,) and isinstance(tangent.get("u"), tensordict.UnbatchedTensor)
        assert_same(tangent["u"].as_subclass(torch.Tensor), 2 * v["u"].as_subclass(torch.Tensor))
    by_rows = lambda t: (t["a"] * t["u"]).sum(-1).as_subclass(torch.Tensor)
    jacobian, expected = jacrev(by_rows)(x), torch.func.jacrev(by_rows)(x)
    assert jacobian.batch_size == expected.batch_size
    for key in ("a", "u"):
        assert_same(jacobian[key], expected[key])


def test_a_loop_carries_a_container_with_an_unbatched_tensor_and_names_its_entries():
    x = weighted()
    result = fori_loop(0, 3, lambda i, t: t.set("a", t["a"] + 1), x)
    assert result.batch_size == (4,)
    assert_same(result["a"], x["a"] + 3)
    with pytest.raises(Exception, match=r"\['u'\]"):
        fori_loop(0, 3, lambda i, t: t.set("u", tensordict.UnbatchedTensor(randn(5))), x)


def test_a_saved_function_knows_batch_sizes_that_no_tensor_tells(tmp_path):
    made = {n: TensorDict({"a": randn(n, 3), "text": "x"}, [n]) for n in (4, 6)}
    compiled = compile(vmap(lambda t: t.clone()))
    for td in made.values():
        compiled(td)
    compiled.save(tmp_path / "f")
    loaded = load(tmp_path / "f")
    for n, td in made.items():
        assert loaded(td).batch_size == (n,)
