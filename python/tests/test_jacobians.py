"""jacrev, jacfwd, value_and_jacobian and hessian against torch.func."""

import pytest
import torch
import torch.func
import torch_tower
from support import assert_same, randn

BOTH = torch_tower, torch.func


def f(p, x):
    return {"y": torch.tanh(p["w"] @ x) + p["b"], "z": (x.sum() * p["b"].sum(),)}


def arguments():
    return {"w": randn(3, 2), "b": randn(3)}, randn(2)


@pytest.mark.parametrize("argnums", [0, 1, (0,), (1, 0)])
@pytest.mark.parametrize("name", ["jacrev", "jacfwd", "hessian"])
def test_argnums_and_trees(name, argnums):
    args = arguments()
    ours, theirs = (getattr(lib, name)(f, argnums)(*args) for lib in BOTH)
    assert_same(ours, theirs)


@pytest.mark.parametrize("name", ["jacrev", "jacfwd"])
def test_aux(name):
    args = arguments()
    with_aux = lambda p, x: (f(p, x), {"x": x.exp()})
    ours, theirs = (getattr(lib, name)(with_aux, has_aux=True)(*args) for lib in BOTH)
    assert_same(ours, theirs)


@pytest.mark.parametrize("mode", ["reverse", "forward"])
@pytest.mark.parametrize("argnums", [0, 1, (1, 0)])
def test_value_beside_the_jacobian(mode, argnums):
    args = arguments()
    value, jacobian = torch_tower.value_and_jacobian(f, argnums, mode=mode, chunk_size=2, randomness="same")(*args)
    assert_same(value, f(*args))
    assert_same(jacobian, torch.func.jacrev(f, argnums)(*args))


@pytest.mark.parametrize("mode", ["reverse", "forward"])
def test_value_and_aux_beside_the_jacobian(mode):
    args = arguments()
    with_aux = lambda p, x: (f(p, x), {"x": x.exp(), "name": "f"})
    (value, aux), jacobian = torch_tower.value_and_jacobian(with_aux, mode=mode, has_aux=True)(*args)
    assert_same(value, f(*args))
    assert_same(aux, {"x": args[1].exp(), "name": "f"})
    assert_same(jacobian, torch.func.jacrev(f)(*args))


def test_value_and_jacobian_of_examples_and_differentiated():
    x = randn(5, 3)
    g = lambda x: x.sin().prod() * x
    both = torch_tower.value_and_jacobian(g, mode="forward")
    value, jacobian = torch_tower.vmap(both)(x)
    assert_same(value, torch.func.vmap(g)(x))
    assert_same(jacobian, torch.func.vmap(torch.func.jacrev(g))(x))
    of_value = torch_tower.grad(lambda x: both(x)[0].sum())(x[0])
    assert_same(of_value, torch.func.grad(lambda x: g(x).sum())(x[0]))


def test_modes_of_value_and_jacobian():
    with pytest.raises(ValueError, match="value_and_jacobian: mode is 'both'; it must be 'reverse' or 'forward'"):
        torch_tower.value_and_jacobian(f, mode="both")


def test_aux_of_a_hessian():
    x = randn(3)
    second, aux = torch_tower.hessian(lambda x: (x.prod(), {"x": x.exp(), "name": "prod"}), has_aux=True)(x)
    assert_same(second, torch.func.hessian(torch.prod)(x))
    assert_same(aux, {"x": x.exp(), "name": "prod"})


@pytest.mark.parametrize("chunk_size", [1, 2, 4, 100])
@pytest.mark.parametrize("name", ["jacrev", "jacfwd", "hessian"])
def test_chunks(name, chunk_size):
    args = arguments()
    ours = getattr(torch_tower, name)(f, (0, 1), chunk_size=chunk_size)(*args)
    assert_same(ours, getattr(torch.func, name)(f, (0, 1))(*args))


@pytest.mark.parametrize(
    "compose", [("jacfwd", "jacfwd"), ("jacrev", "jacrev"), ("jacrev", "jacfwd"), ("jacfwd", "jacrev")]
)
def test_second_derivatives_by_every_composition(compose):
    x = randn(4)
    g = lambda x: x.sin().prod() * x
    outer, inner = (getattr(torch_tower, name) for name in compose)
    assert_same(outer(inner(g))(x), torch.func.hessian(g)(x))


@pytest.mark.parametrize("name", ["jacrev", "jacfwd", "hessian"])
def test_batched(name):
    x = randn(5, 3)
    g = lambda x: x.cumprod(0).sin()
    ours = torch_tower.vmap(getattr(torch_tower, name)(g))(x)
    transform = getattr(torch.func, name)
    assert_same(ours, torch.stack([transform(g)(row) for row in x]))


def test_randomness_of_jacfwd():
    x = torch.ones(3)
    g = lambda x: x * torch.randn(3)
    with pytest.raises(RuntimeError, match="draws random numbers"):
        torch_tower.jacfwd(g)(x)
    torch.manual_seed(1)
    expected = torch.randn(3)
    torch.manual_seed(1)
    assert_same(torch_tower.jacfwd(g, randomness="same")(x), expected.diag())
    torch.manual_seed(1)
    assert_same(torch_tower.jacrev(g)(x), expected.diag())


@pytest.mark.parametrize("chunk_size", [None, 2])
def test_a_draw_that_is_the_same_for_all_columns_is_drawn_once(chunk_size):
    x, y = randn(3), randn(3)

    def g(x, y):
        drawn = torch.randn(3, dtype=x.dtype)
        return (x * drawn).sum() * y * drawn, drawn

    def value(x, y):
        return g(x, y)[0]

    torch.manual_seed(1)
    expected = torch.func.jacrev(value, (0, 1))(x, y)
    torch.manual_seed(1)
    ours, drawn = torch_tower.jacfwd(g, (0, 1), has_aux=True, randomness="same", chunk_size=chunk_size)(x, y)
    assert_same(ours, expected)
    torch.manual_seed(1)
    assert_same(drawn, torch.randn(3, dtype=x.dtype))


@pytest.mark.parametrize(
    ("call", "kind", "text"),
    [
        (lambda x: torch_tower.jacrev(torch.sin, chunk_size=0)(x), ValueError, "chunk_size is 0"),
        (lambda x: torch_tower.jacfwd(torch.sin, chunk_size=-1)(x), ValueError, "chunk_size is -1"),
        (lambda x: torch_tower.jacfwd(torch.sin, randomness="no")(x), ValueError, "randomness is 'no'"),
        (lambda x: torch_tower.jacrev(lambda x: 3)(x), RuntimeError, "it returned a int"),
        (lambda x: torch_tower.jacrev(lambda x: (x, "a"))(x), RuntimeError, "with a str in it"),
        (lambda x: torch_tower.jacrev(torch.argmax)(x), RuntimeError, "output 0 is Long"),
        (lambda x: torch_tower.hessian(torch.sum, 3)(x), RuntimeError, "argnums has 3"),
    ],
)
def test_what_is_refused_says_why(call, kind, text):
    with pytest.raises(kind, match=text):
        call(randn(3))


def test_rows_one_by_one_are_computed_without_vmap():
    class Branching(torch.autograd.Function):
        @staticmethod
        def forward(ctx, x):
            ctx.save_for_backward(x)
            return x.square()

        @staticmethod
        def backward(ctx, grad):
            (x,) = ctx.saved_tensors
            return 2 * x * grad if grad[0].item() == 1 else torch.from_numpy(2 * x.numpy() * grad.numpy())

    x = randn(3)
    with pytest.raises(RuntimeError, match=r"item\(\)"):
        torch_tower.jacrev(Branching.apply)(x)
    assert_same(torch_tower.jacrev(Branching.apply, chunk_size=1)(x), torch.diag(2 * x))
    assert_same(torch_tower.jacrev(torch.sin, chunk_size=1)(x[:0]), x.new_empty(0, 0))

    def tree(x):
        return x.sum(), {"a": x.sin()}

    assert_same(torch_tower.jacrev(tree, chunk_size=1)(x), torch_tower.jacrev(tree)(x))
