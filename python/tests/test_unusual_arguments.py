"""Arguments of transforms that are more than a tensor, or less: containers that are tensors, tensors without values."""

import pytest
import torch
import torch_tower
from support import assert_same, randn
from torch_tower import grad, vmap


class Shared(torch.Tensor):
    """The same for all examples of its batch, whose size it knows."""

    batch = ()


def shared(tensor, batch):
    result = tensor.as_subclass(Shared)
    result.batch = batch
    return result


def take_example(value, dim):
    size = torch.empty(()).expand(value.batch)
    return [size], [dim], lambda _: shared(value, value.batch[:dim] + value.batch[dim + 1 :])


def make_batch(value, dim, batch_size):
    batch = (*value.batch[:dim], batch_size, *value.batch[dim:])
    return [value.as_subclass(torch.Tensor)], [None], lambda tensors: shared(tensors[0], batch)


torch_tower.register_container(Shared, take_example, make_batch)


def test_a_tensor_subclass_can_be_a_container():
    x, seen = shared(randn(7), (4, 3)), []

    def f(t):
        seen.append((type(t), t.batch, tuple(t.shape)))
        return t

    result = vmap(f)(x)
    assert seen == [(Shared, (3,), (7,))]
    assert type(result) is Shared and result.batch == (4, 3)
    assert_same(result.as_subclass(torch.Tensor), x.as_subclass(torch.Tensor))
    assert vmap(lambda t, y: t, out_dims=1)(x, randn(4)).batch == (3, 4)
    with pytest.raises(ValueError, match="differ in size"):
        vmap(lambda t, y: y)(x, randn(5))


@pytest.mark.parametrize("in_dims", [0, (None, 0)])
def test_uninitialized_parameters_are_refused(in_dims):
    lazy = torch.nn.LazyLinear(2)
    with pytest.raises(ValueError, match="uninitialized parameter.*Call the lazy module"):
        vmap(lambda p, x: x, in_dims)(dict(lazy.named_parameters()), randn(3))
    with pytest.raises(ValueError, match="uninitialized parameter"):
        grad(lambda p: p.sum())(lazy.weight)
