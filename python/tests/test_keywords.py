"""Tensors that are given by keyword: arguments, which are neither mapped nor differentiated."""

import pytest
import torch
from support import assert_same, randn
from torch_tower import grad, grad_and_value, hessian, jacfwd, jacrev, vmap

TRANSFORMS = {
    "grad": lambda f: grad(lambda x, **kw: f(x, **kw).sum()),
    "grad_and_value": lambda f: lambda x, **kw: grad_and_value(lambda x, **kw: f(x, **kw).sum())(x, **kw)[0],
    "jacrev": lambda f: jacrev(lambda x, **kw: f(x, **kw).sum()),
    "jacfwd": lambda f: jacfwd(lambda x, **kw: f(x, **kw).sum()),
    "hessian": lambda f: lambda x, **kw: hessian(lambda x, **kw: f(x, **kw).sum())(x, **kw).sum(0),
}


@pytest.mark.parametrize("name", TRANSFORMS)
def test_what_a_function_writes_to_them_reaches_the_caller(name):
    def f(x, *, last, scale):
        last.copy_(x * 3)
        return scale * x**2

    x, last, scale = randn(3), torch.zeros(3, dtype=torch.double), 2
    result = TRANSFORMS[name](f)(x, last=last, scale=scale)
    assert_same(last, 3 * x)
    assert_same(result, torch.full_like(x, 4) if name == "hessian" else 4 * x)


def test_what_was_read_before_a_write_keeps_its_value():
    def f(x, *, state):
        y = (x * state).sum()
        state.mul_(x)
        return y + (state**2).sum()

    x, state = randn(3), randn(3)
    start = state.clone()
    result = grad(f)(x, state=state)
    assert_same(state, start * x)
    assert_same(result, start + 2 * start**2 * x)  # of x * start + (start * x)**2


def test_under_vmap_they_are_not_mapped():
    count, table = torch.zeros(()), randn(4)

    def f(x, *, count, table):
        count.add_(1)
        assert table.shape == (4,)
        return x * table

    x = randn(3)
    assert_same(vmap(f)(x, count=count, table=table), x[:, None] * table)
    assert_same(vmap(f, chunk_size=2)(x, count=count, table=table), x[:, None] * table)
    assert count == 3  # once for each chunk
    with pytest.raises(RuntimeError, match="vmap.*add_"):
        vmap(lambda x, *, total: total.add_(x))(x, total=torch.zeros((), dtype=torch.double))


def test_they_go_through_nested_transforms():
    def f(x, *, seen):
        seen.copy_(x.detach() * 2)
        return (x**3).sum()

    x, seen = randn(3), torch.zeros(3, dtype=torch.double)
    outer = lambda x, *, seen: grad(f)(x, seen=seen).sum()
    assert_same(grad(outer)(x, seen=seen), 6 * x)
    assert_same(seen, 2 * x)


def test_negative_argnums_count_positional_arguments():
    f = lambda x, y, *, z: (x * y**2 * z).sum()
    x, y, z = randn(3), randn(3), randn(3)
    assert_same(grad(f, argnums=-1)(x, y, z=z), 2 * x * y * z)
    with pytest.raises(RuntimeError, match="only 2 positional inputs"):
        grad(f, argnums=2)(x, y, z=z)


def test_containers_are_handed_through():
    notes, made = {"scale": torch.full((3,), 2.0).double()}, []

    def f(x, *, notes, made):
        notes["seen"] = True
        made.append(1)
        return (x * notes["scale"]).sum()

    assert_same(grad(f)(randn(3), notes=notes, made=made), notes["scale"])
    assert notes["seen"] and made == [1]
    assert_same(vmap(f)(torch.ones(2, 3).double(), notes=notes, made=made), torch.full((2,), 6.0).double())


def test_a_tensor_in_a_message_is_named_by_its_keyword():
    from torch_tower._trees import Arguments

    arguments = Arguments(({"a": randn(1)}, randn(2)), {"flag": True, "mask": randn(3)})
    assert [arguments.name(i) for i in range(3)] == ["argument 0['a']", "argument 1", "argument mask"]
