"""vmap against the loop and torch.func."""

import sys
from collections import namedtuple

import pytest
import torch
import torch.func
import torch_tower
from support import assert_same, randn
from torch_tower import vmap

Pair = namedtuple("Pair", "a b")


@pytest.mark.parametrize("in_dims", [0, 1, -1, (0, 1), (None, 0), (1, None), (-2, -1)])
def test_in_dims(in_dims):
    x, y = randn(3, 3), randn(3, 3)

    def f(x, y):
        return x.sin() * y.flip(0)

    assert_same(vmap(f, in_dims)(x, y), torch.func.vmap(f, in_dims)(x, y))


@pytest.mark.parametrize("out_dims", [0, 1, -1, (0, 1), (2, -1)])
def test_out_dims(out_dims):
    x = randn(2, 3, 4)

    def f(x):
        return x.cumsum(0), x.t().exp()

    assert_same(vmap(f, out_dims=out_dims)(x), torch.func.vmap(f, out_dims=out_dims)(x))


def test_out_dims_of_one_tensor_may_be_a_tuple_of_one():
    x = randn(2, 3)
    assert_same(vmap(torch.sin, out_dims=(1,))(x), x.sin().t())


def test_trees_of_arguments_and_outputs():
    tree = {"x": [randn(3, 2), (randn(2, 3), 5)], "y": Pair(randn(3), None)}
    in_dims = ({"x": [0, (1, None)], "y": Pair(0, None)},)
    out_dims = {"p": Pair(1, 0), "q": None}

    def f(tree):
        (x, (z, five)), y = tree["x"], tree["y"]
        assert five == 5 and y.b is None
        return {"p": Pair(x * five + z, z * y.a), "q": "static"}

    assert_same(vmap(f, in_dims, out_dims)(tree), torch.func.vmap(f, in_dims, out_dims)(tree))


def test_in_dims_are_a_prefix_of_the_tree():
    tree = {"a": randn(2, 3), "b": [randn(4, 3), randn(3)]}

    def f(tree, y):
        return tree["a"] * tree["b"][1] + y, tree["b"][0].sum()

    in_dims = ({"a": 1, "b": -1}, None)
    y = randn(2)
    assert_same(vmap(f, in_dims)(tree, y), torch.func.vmap(f, in_dims)(tree, y))


def test_keyword_arguments_are_not_mapped():
    x, y = randn(3, 2), randn(3, 2)

    def f(x, *, y, scale=1.0):
        return x @ y.t() * scale

    assert_same(vmap(f)(x, y=y, scale=2.0), torch.func.vmap(f)(x, y=y, scale=2.0))


@pytest.mark.parametrize("chunk_size", [1, 2, 3, 7, 8, 100])
def test_chunks(chunk_size):
    x, y = randn(7, 3), randn(3, 7)

    def f(x, y):
        return {"dot": x @ y, "outer": x[:, None] * y}

    out_dims = {"dot": 0, "outer": 1}
    expected = torch.func.vmap(f, (0, 1), out_dims)(x, y)
    assert_same(vmap(f, (0, 1), out_dims, chunk_size=chunk_size)(x, y), expected)


def test_nested():
    x, y = randn(2, 3), randn(4, 3)
    f = vmap(vmap(torch.dot, (None, 0)), (0, None))
    assert_same(f(x, y), x @ y.t())


def test_randomness_same_is_one_draw_for_all():
    x = torch.zeros(5, 3)
    drawn = vmap(lambda x: x + torch.randn(3), randomness="same")(x)
    assert (drawn == drawn[0]).all() and drawn[0].ne(drawn[0][0]).any()


def test_randomness_different_is_a_draw_for_each():
    drawn = vmap(lambda x: x + torch.randn(3), randomness="different")(torch.zeros(5, 3))
    assert len(set(drawn[:, 0].tolist())) == 5


def test_randomness_is_an_error_unless_chosen():
    with pytest.raises(RuntimeError, match="draws random numbers"):
        vmap(torch.rand_like)(torch.zeros(3))
    with pytest.raises(RuntimeError, match="draws random numbers"):
        vmap(lambda x: x + torch.randn(3))(torch.zeros(5, 3))


def test_tensor_methods_operators_and_indexing():
    x, i = randn(5, 4, 3), torch.tensor([[0, 2], [1, 1], [2, 0], [0, 0], [1, 2]])

    def f(x, i):
        y = x[1:, ::2] + x[0, None, :2] - 2 * x[..., -1:][1]
        y = y / (1 + x.abs().max()) @ x.new_ones(2, 3)
        return y[i], y.T.reshape(-1), (x > 0) & (x < 1), -(x**2), x.to(torch.float32), len(x), x.shape

    out_dims = (0, 0, 0, 0, 0, None, None)
    ours = vmap(f, out_dims=out_dims)(x, i)
    loop = [f(x[n], i[n]) for n in range(5)]
    for k in range(5):
        assert_same(ours[k], torch.stack([r[k] for r in loop]))
    assert ours[5] == 4 and ours[6] == (4, 3)


def test_in_place_writes_through_masks_slices_and_methods():
    x, mask = randn(5, 4), torch.rand(5, 4) > 0.5

    def f(x, mask):
        y = torch.zeros(4, dtype=x.dtype)
        y[1:3] = x[:2]
        y += x
        y[0].mul_(3)
        y[mask] = 7.0
        z = y.clone()
        z[-1:] = z[:1].exp_()
        return y, z

    assert_same(vmap(f)(x, mask), tuple(torch.stack(r) for r in zip(*(f(a, m) for a, m in zip(x, mask)))))


INDICES = [
    lambda i, j: i,
    lambda i, j: (i, j),
    lambda i, j: (slice(1, None), i),
    lambda i, j: (..., i),
    lambda i, j: (i, ..., j),
    lambda i, j: (None, i, slice(None), j),
    lambda i, j: (i, torch.tensor([1, 0, 1])),
    lambda i, j: (torch.tensor([True, False, True]), i),
    lambda i, j: ([0, 2], slice(None), j),
]


@pytest.mark.parametrize("index", INDICES)
def test_a_number_of_the_example_is_an_index(index):
    x, i, j = randn(5, 3, 3, 4), torch.tensor([0, 2, 1, -1, 0]), torch.tensor([1, 1, 0, 2, -3])
    loop = [x[n][index(i[n].item(), j[n].item())] for n in range(5)]
    assert_same(vmap(lambda x, i, j: x[index(i, j)])(x, i, j), torch.stack(loop))
    whole = vmap(lambda i, j: x[0][index(i, j)])(i, j)
    assert_same(whole, torch.stack([x[0][index(i[n].item(), j[n].item())] for n in range(5)]))


@pytest.mark.parametrize("index", INDICES)
def test_a_number_of_the_example_says_where_to_write(index):
    x, i, j = randn(5, 3, 3, 4), torch.tensor([0, 2, 1, -1, 0]), torch.tensor([1, 1, 0, 2, -3])

    def put(x, i, j):
        y = x.clone()
        y[index(i, j)] = x.sum()
        return y

    assert_same(vmap(put)(x, i, j), torch.stack([put(x[n], i[n].item(), j[n].item()) for n in range(5)]))
    gradient = torch_tower.grad(lambda x, i, j: put(x, i, j).prod())
    expected = [gradient(x[n], i[n].item(), j[n].item()) for n in range(5)]
    assert_same(vmap(gradient)(x, i, j), torch.stack(expected))


@pytest.mark.parametrize("value", [lambda x: 7.0, lambda x: x.sum(), lambda x: x[0]])
@pytest.mark.parametrize("place", [0, 1])
def test_a_mask_of_the_example_says_where_to_write(place, value):
    x, mask = randn(5, 3, 3), torch.rand(5, 3) > 0.5

    def put(x, mask):
        y = x.sin()
        given = value(x)
        if place == 1 and isinstance(given, torch.Tensor) and given.dim():
            given = given[:1].sum()
        y[(slice(None),) * place + (mask,)] = given
        return y

    assert_same(vmap(put)(x, mask), torch.stack([put(x[n], mask[n]) for n in range(5)]))
    gradient = torch_tower.grad(lambda x, mask: put(x, mask).square().sum())
    expected = [torch.func.grad(lambda x: put(x, mask[n]).square().sum())(x[n]) for n in range(5)]
    assert_same(vmap(gradient)(x, mask), torch.stack(expected))


def test_a_write_into_an_argument_is_the_callers():
    x = randn(3, 2)
    expected = x.cos()
    assert_same(vmap(lambda x: x.cos_())(x), expected)
    assert_same(x, expected)


def test_a_plain_number_returned_with_a_tensor_needs_an_out_dim_of_none():
    assert_same(vmap(lambda x: (x, 3), out_dims=(0, None))(randn(2))[1], 3)
    with pytest.raises(ValueError, match="it returned a int"):
        vmap(lambda x: (x, 3))(randn(2))


def test_modules_under_vmap():
    net = torch.nn.Sequential(torch.nn.Linear(4, 8), torch.nn.Tanh(), torch.nn.Linear(8, 2)).double()
    x = randn(5, 3, 4)
    assert_same(vmap(net)(x), net(x))


def test_what_is_not_mapped_may_require_grad():
    w = randn(3).requires_grad_()
    x = randn(4, 3)
    vmap(lambda x: (w * x).sum().sin())(x).sum().backward()
    assert_same(w.grad, (x @ w.detach()).cos() @ x)


def test_batches_of_size_zero_and_one():
    for n in (0, 1):
        x = randn(n, 3)
        assert_same(vmap(lambda x: x.sum() * x)(x), x.sum(1, keepdim=True) * x)


@pytest.mark.parametrize(
    ("call", "kind", "text"),
    [
        (lambda x: vmap(torch.sin, randomness="some")(x), ValueError, "randomness is 'some'"),
        (lambda x: vmap(torch.sin, chunk_size=0)(x), ValueError, "chunk_size is 0"),
        (lambda x: vmap(torch.sin, out_dims="0")(x), ValueError, "out_dims has a str"),
        (lambda x: vmap(torch.sin, out_dims=3)(x), ValueError, "out_dim 3 of output 0 is out of range"),
        (lambda x: vmap(torch.sin, out_dims=None)(x), ValueError, "differs between examples"),
        (lambda x: vmap(torch.sin, out_dims=(0, 0))(x), ValueError, "out_dims has structure"),
        (lambda x: vmap(torch.sin)(), ValueError, "without positional arguments"),
        (lambda x: vmap(torch.sin, [0])(x), ValueError, "in_dims is a list"),
        (lambda x: vmap(torch.add, (0, 0, 0))(x, x), ValueError, "in_dims has structure"),
        (lambda x: vmap(torch.sin, ("0",))(x), ValueError, "in_dims has a str"),
        (lambda x: vmap(torch.sin, 2)(x), ValueError, "in_dim 2 of argument 0 is out of range"),
        (lambda x: vmap(torch.sin, (None,))(x), ValueError, "nothing to map"),
        (lambda x: vmap(torch.sin)(x[0, 0]), ValueError, "argument 0 is a scalar tensor"),
        (lambda x: vmap(torch.mul)(x, 2.0), ValueError, "in_dim 0 is that of a float"),
        (
            lambda x: vmap(torch.add)(x, x.t()),
            ValueError,
            "argument 0 has size 2 along dimension 0, argument 1 has size 3",
        ),
        (
            lambda x: vmap(lambda p, x: x, ({"w": 1}, 0))({"w": x}, x),
            ValueError,
            r"argument 0\['w'\] has size 3 along dimension 1",
        ),
        (lambda x: vmap(lambda x: x.item())(x[0]), RuntimeError, "reads one number out of a tensor"),
        (lambda x: vmap(lambda x: x if x > 0 else -x)(x[0]), RuntimeError, "differs between the examples"),
        (
            lambda x: vmap(torch.nonzero)(torch.tensor([[0, 1], [1, 1]])),
            RuntimeError,
            "how many elements it finds depends on the data",
        ),
    ],
)
def test_what_is_refused_says_why(call, kind, text):
    with pytest.raises(kind, match=text):
        call(randn(2, 3))


def test_the_loop_fallback_warns_in_python_and_can_be_an_error():
    loops = [row.op for row in torch_tower.coverage() if row.transform == "vmap" and row.served == "loop"]
    assert loops
    assert torch_tower.set_fallback_is_error(True) is False
    assert torch_tower.set_fallback_is_error(False) is True


def test_what_operators_demand_is_asked_of_no_shape_function_in_python():
    # torch puts functions in Python in place of LibTorch's; the first call of one imports symbolic shapes.
    asked = []

    def watch(frame, event, _):
        if frame.f_code.co_filename.endswith("_meta_registrations.py"):
            asked.append(frame.f_code.co_name)

    index = torch.tensor([0, 1])
    functions = [
        torch.linalg.svd,
        torch.linalg.qr,
        torch.linalg.lu,
        lambda a: torch.linalg.lu_solve(*torch.linalg.lu_factor(a), a),
        lambda a: torch.lu_unpack(*torch.linalg.lu_factor(a)),
        lambda a: torch.triangular_solve(a, a),
        lambda a: a.index_copy(0, index, a),
        lambda a: a.index_add(0, index, a),
        lambda a: a.index_reduce(0, index, a, "amax"),
    ]
    for function in functions:
        sys.setprofile(watch)
        try:
            vmap(function)(torch.eye(2).expand(3, 2, 2) + 1)
        finally:
            sys.setprofile(None)
        assert not asked
