"""Containers that know of a batch, and tensor subclasses with attributes, through transforms."""

import pytest
import torch
import torch_tower
from support import assert_same, randn
from torch.utils._pytree import register_pytree_node
from torch_tower import functional_call, grad, grad_and_value, jacfwd, jacrev, jvp, linearize, vjp, vmap

# ---- a container of our own ------------------------------------------------------------------------------------------


class Points:
    """Points in a plane, [*batch, 2] and [*batch], that know their batch."""

    def __init__(self, xy, weight, batch):
        assert xy.shape == (*batch, 2) and weight.shape == tuple(batch)
        self.xy, self.weight, self.batch = xy, weight, list(batch)

    def __mul__(self, factor):
        return Points(self.xy * factor, self.weight, self.batch)


def take_example(points, dim):
    dim %= len(points.batch)
    rest = points.batch[:dim] + points.batch[dim + 1 :]
    return (points.xy, points.weight), (dim, dim), lambda tensors: Points(*tensors, rest)


def make_batch(points, dim, batch_size):
    dim %= len(points.batch) + 1
    batch = [*points.batch[:dim], batch_size, *points.batch[dim:]]
    return (points.xy, points.weight), (dim, dim), lambda tensors: Points(*tensors, batch)


torch_tower.register_container(Points, take_example, make_batch)
register_pytree_node(Points, lambda p: ([p.xy, p.weight], p.batch), lambda ts, batch: Points(*ts, batch))


def points(*batch):
    return Points(randn(*batch, 2), randn(*batch), batch)


def norm(p):
    return (p.weight[..., None] * p.xy**2).sum((-1, -2))


def test_a_container_is_one_example_of_itself_under_vmap():
    seen = []

    def f(p):
        seen.append(p.batch)
        return norm(p)

    p = points(4, 3)
    assert_same(vmap(f)(p), norm(p))
    assert seen == [[3]]


@pytest.mark.parametrize("in_dim", [0, 1, -1])
@pytest.mark.parametrize("out_dim", [0, 1, -1])
def test_the_batch_of_a_container_is_put_where_out_dims_says(in_dim, out_dim):
    p = points(4, 3)
    result = vmap(lambda p: p * 2, in_dim, out_dim)(p)
    assert result.batch == list(p.weight.movedim(in_dim, out_dim).shape)
    assert_same(result.weight, p.weight.movedim(in_dim, out_dim))
    assert_same(result.xy, 2 * p.xy.movedim(in_dim % 2, out_dim % 2))


def test_containers_among_other_arguments_and_results():
    p, x = points(4, 3), randn(3, 4)
    f = lambda tree, q: ({"points": tree["points"] * tree["x"].sum()}, q.weight)
    result, weight = vmap(f, ({"points": 0, "x": 1}, None), ({"points": 1}, None))({"points": p, "x": x}, p)
    assert result["points"].batch == [3, 4]
    assert_same(result["points"].xy, (p.xy * x.sum(0)[:, None, None]).movedim(0, 1))
    assert_same(weight, p.weight)


def test_containers_in_chunks_and_in_nested_maps():
    p = points(4, 3)
    assert vmap(lambda p: p, chunk_size=3)(p).batch == [4, 3]
    inner = []
    result = vmap(vmap(lambda p: inner.append(p.batch) or p * 2))(p)
    assert inner == [[]] and result.batch == [4, 3]
    assert_same(result.xy, 2 * p.xy)


def test_a_container_that_is_not_mapped_comes_as_it_is():
    p = points(3)
    seen = []
    vmap(lambda x, p: seen.append(p.batch) or x, (0, None))(randn(2), p)
    assert seen == [[3]]


def test_a_mapped_container_cannot_leave_by_an_out_dim_of_none():
    with pytest.raises(ValueError, match="differs between examples"):
        vmap(lambda p: p, out_dims=None)(points(4, 3))


def test_derivatives_take_containers_as_trees():
    p, v = points(3), points(3)
    gradient = grad(norm)(p)
    assert gradient.batch == [3]
    assert_same(gradient.xy, 2 * p.weight[:, None] * p.xy)
    assert_same(grad_and_value(norm)(p)[1], norm(p))
    value, tangent = jvp(lambda p: p * 3, (p,), (v,))
    assert value.batch == tangent.batch == [3]
    assert_same(tangent.xy, 3 * v.xy)
    value, pullback = vjp(lambda p: p * 3, p)
    assert_same(pullback(v)[0].xy, 3 * v.xy)
    assert_same(linearize(lambda p: p * 3, p)[1](v).xy, 3 * v.xy)
    per_example = vmap(grad(norm))(points(4, 3))
    assert per_example.batch == [4, 3]


class Sub(Points):
    pass


def test_what_is_registered_holds_for_derived_classes():
    assert vmap(lambda p: p.weight)(Sub(randn(4, 2), randn(4), [4])).shape == (4,)


class Opaque:
    def __init__(self, x):
        self.x = x


def test_what_is_neither_a_tree_nor_registered_is_refused():
    with pytest.raises(ValueError, match="register_container"):
        vmap(lambda o: o.x)(Opaque(randn(3)))
    with pytest.raises(ValueError, match="register_container"):
        vmap(lambda x: Opaque(x))(randn(3))
    with pytest.raises(ValueError, match="holds a Opaque, but only tensors"):
        grad(lambda o: o.x.sum())(Opaque(randn(3)))
    assert_same(vmap(lambda x, o: x * o.x, (0, None))(randn(3).fill_(1), Opaque(2)), torch.full((3,), 2.0).double())


class Wrong:
    pass


def test_a_registration_that_does_not_fit_is_named():
    torch_tower.register_container(Wrong, lambda w, dim: ((1, 2), (dim,), None), None)
    with pytest.raises(TypeError, match="registered for the container Wrong"):
        vmap(lambda w: w)(Wrong())


# ---- a tensor subclass of our own ------------------------------------------------------------------------------------


class Length(torch.Tensor):
    unit = "none"


def with_unit(tensor, unit):
    result = tensor.as_subclass(Length)
    result.unit = unit
    return result


torch_tower.register_tensor_subclass(Length, lambda like, tensor: with_unit(tensor, like.unit))


def doubled(x):
    assert type(x) is Length and x.unit == "m"
    return with_unit((x * 2).as_subclass(torch.Tensor), "cm")


TAKES = {
    "vmap": lambda f, x: vmap(f)(x),
    "vmap in a tree": lambda f, x: vmap(lambda t: f(t["x"]))({"x": x}),
    "vmap of what is not mapped": lambda f, x: vmap(lambda x, y: f(x), (None, 0), None)(x, randn(2)),
    "jvp": lambda f, x: jvp(f, (x,), (torch.ones_like(x).as_subclass(torch.Tensor),))[0],
    "vjp": lambda f, x: vjp(f, x)[0],
    "linearize": lambda f, x: linearize(f, x)[0],
    "vmap(vmap)": lambda f, x: vmap(vmap(f))(with_unit(x[:, None], "m")),
    "aux": lambda f, x: grad(lambda x: (x.as_subclass(torch.Tensor).sum(), f(x)), has_aux=True)(x)[1],
}


@pytest.mark.parametrize("name", TAKES)
def test_a_registered_subclass_stays_what_it_is(name):
    x = with_unit(randn(3), "m")
    result = TAKES[name](doubled, x)
    assert type(result) is Length and result.unit == "cm"
    assert_same(result.as_subclass(torch.Tensor).flatten(), 2 * x.as_subclass(torch.Tensor))


def test_derivatives_of_a_subclass_are_plain_tensors():
    x = with_unit(randn(3), "m")
    plain = x.as_subclass(torch.Tensor)
    f = lambda x: doubled(x).as_subclass(torch.Tensor).square()
    for derivative in (jacrev(f)(x), jacfwd(f)(x), jacrev(lambda x: with_unit(f(x), "m"))(x)):
        assert type(derivative) is torch.Tensor
        assert_same(derivative, (8 * plain).diag())
    gradient = grad(lambda x: f(x).sum())(x)
    assert type(gradient) is torch.Tensor
    assert_same(gradient, 8 * plain)
    assert type(jvp(doubled, (x,), (x,))[1]) is torch.Tensor
    assert type(linearize(doubled, x)[1](x)) is torch.Tensor


def test_a_subclass_that_is_not_registered_becomes_a_plain_tensor():
    class Plain(torch.Tensor):
        pass

    assert type(vmap(lambda x: x.as_subclass(torch.Tensor))(randn(3).as_subclass(Plain))) is torch.Tensor
    assert_same(vmap(lambda x: x * 2)(torch.nn.Parameter(torch.ones(3))), torch.full((3,), 2.0))


# ---- tensordict: the oracle is torch.func, into which tensordict hooks itself ----------------------------------------

NOT_THERE = "script/test does not install it"


@pytest.fixture
def tensordict():
    return pytest.importorskip("tensordict", reason=NOT_THERE)


def nested(tensordict, **options):
    inner = tensordict.TensorDict({"b": randn(3, 4, 5)}, [3, 4, 5])
    return tensordict.TensorDict({"a": randn(3, 4, 2), "n": inner, "text": "hello"}, [3, 4], **options)


def assert_same_tensordict(ours, theirs):
    assert type(ours) is type(theirs)
    assert ours.batch_size == theirs.batch_size and ours.names == theirs.names and ours.is_locked == theirs.is_locked
    assert set(ours.keys()) == set(theirs.keys())
    for key, value in theirs.items():
        if hasattr(value, "batch_size"):
            assert_same_tensordict(ours.get(key), value)
        elif isinstance(value, torch.Tensor):
            assert_same(ours.get(key), value)
        else:
            assert ours[key] == value


MAPS = {
    "as it is": (lambda t: t, {}),
    "a sum": (lambda t: t.select("a", "n").sum(-1), {}),
    "a product": (lambda t: t.select("a", "n").apply(lambda x: x * 2), {}),
    "from the last dimension": (lambda t: t, {"in_dims": -1}),
    "to another dimension": (lambda t: t, {"out_dims": 1}),
    "an entry": (lambda t: t.set("c", t["a"].sum(-1)), {}),
}


@pytest.mark.parametrize("name", MAPS)
@pytest.mark.parametrize("options", [{}, {"names": ["x", "y"]}, {"lock": True}])
def test_tensordicts_are_mapped_as_torch_func_maps_them(tensordict, name, options):
    f, dims = MAPS[name]
    td = nested(tensordict, **options)
    if options.get("lock") and name == "an entry":
        f = lambda t: t.unlock_()
    assert_same_tensordict(vmap(f, **dims)(td.copy()), torch.func.vmap(f, **dims)(td.copy()))


def test_a_function_sees_the_batch_size_of_one_example(tensordict):
    td, seen = nested(tensordict), []
    vmap(lambda t: seen.append((t.batch_size, t["n"].batch_size, t["text"])) or t["a"])(td)
    vmap(vmap(lambda t: seen.append((t.batch_size, t["n"].batch_size, t["text"])) or t["a"]))(td)
    assert seen == [((4,), (4, 5), "hello"), ((), (5,), "hello")]


def test_derivatives_keep_the_batch_size(tensordict):
    td = nested(tensordict).select("a", "n")

    def loss(t):
        assert t.batch_size == td.batch_size
        return (t["a"] ** 2).sum() + (t["n", "b"] ** 3).sum()

    gradient = grad(loss)(td)
    assert_same_tensordict(gradient, torch.func.grad(loss)(td))
    assert_same_tensordict(vjp(lambda t: t * 2, td)[1](td)[0], td * 2)
    assert_same_tensordict(jvp(lambda t: t * 2, (td,), (td,))[1], td * 2)
    rows = lambda t: t["a"].sum((0, 1))
    assert_same_tensordict(jacrev(rows)(td), torch.func.jacrev(rows)(td))


def test_tensorclasses_lazy_stacks_and_parameters(tensordict):
    @tensordict.tensorclass
    class Data:
        a: torch.Tensor
        text: str

    data = vmap(lambda d: Data(a=d.a * 2, text=d.text, batch_size=d.batch_size))(
        Data(a=torch.ones(3, 2), text="x", batch_size=[3])
    )
    assert type(data) is Data and data.batch_size == (3,) and data.text == "x"
    assert_same(data.a, torch.full((3, 2), 2.0))
    stack = tensordict.lazy_stack([tensordict.TensorDict({"a": torch.full((4,), float(i))}, [4]) for i in range(2)], 1)
    for dim in (0, 1):
        result = vmap(lambda t: t * 2, in_dims=dim, out_dims=dim)(stack)
        assert result.batch_size == (4, 2)
        assert_same(result["a"], stack["a"] * 2)
    module = torch.nn.Linear(2, 1)
    params = tensordict.TensorDict.from_modules(*[torch.nn.Linear(2, 1) for _ in range(3)])
    x = torch.randn(5, 2)
    results = vmap(lambda p, x: functional_call(module, dict(p), (x,)), (0, None))(params, x)
    assert_same(results[1], functional_call(module, dict(params[1]), (x,)))


def test_dimensions_that_a_tensordict_does_not_have_are_refused(tensordict):
    with pytest.raises(ValueError, match=r"in_dim 0 of a TensorDict is out of range: its batch_size is \[\]"):
        vmap(lambda t: t)(tensordict.TensorDict({"a": torch.ones(3)}, []))
    with pytest.raises(ValueError, match="out_dim 2 of a TensorDict is out of range"):
        vmap(lambda t: t, out_dims=2)(tensordict.TensorDict({"a": torch.ones(3)}, [3]))


# ---- pypose ----------------------------------------------------------------------------------------------------------


def test_lie_tensors_stay_lie_tensors():
    pp = pytest.importorskip("pypose", reason=NOT_THERE)
    poses, at = pp.randn_SE3(3, dtype=torch.float64), randn(3, 3)

    def act(pose, x):
        assert isinstance(pose, pp.LieTensor) and pose.ltype is pp.SE3_type
        return pose.Act(x)

    assert_same(vmap(act)(poses, at), act(poses, at))
    inverse = vmap(lambda pose: pose.Inv())(poses)
    assert inverse.ltype is pp.SE3_type
    assert_same(inverse.tensor(), poses.Inv().tensor())
    jacobian = jacrev(act)(poses, at)
    assert type(jacobian) is torch.Tensor
    assert_same(jacobian, pp.func.jacrev(act)(poses, at))
    gradients = vmap(grad(lambda pose, x: act(pose, x).sum()))(poses, at)
    assert_same(gradients, jacobian.sum(1)[range(3), range(3)])
