"""What the plain call refuses, a batch of it refuses. (Every operator of the database: conformance/mistakes.py.)"""

import pytest
import torch
from torch.nn import functional
from torch_tower import vmap

ONES = torch.ones

# The texts are those of the CPU's kernels, and numbers that a kernel looks at lose other devices.
pytestmark = pytest.mark.cpu("the texts are those of the CPU's kernels, and wrong numbers lose a device")


@pytest.mark.parametrize(
    "function, arguments, in_dims",
    [
        (torch.mm, (ONES(2, 2), ONES(2, 2)), (0, None)),
        (torch.mv, (ONES(2, 2, 2, 2), ONES(2)), (0, None)),
        (torch.dot, (ONES(3, 2, 2), ONES(3, 2)), 0),
        (torch.bmm, (ONES(2, 1, 2, 2), ONES(3, 2, 2)), (0, None)),
        (torch.addmm, (ONES(2, 2), ONES(3, 2, 2).long(), ONES(2, 2)), (None, 0, None)),
        (torch.addmv, (ONES(2).double(), ONES(3, 2, 2), ONES(2)), (None, 0, None)),
        (lambda w: functional.embedding(torch.tensor([0]), w), (ONES(2, 3),), 0),
        (lambda w: functional.embedding(torch.tensor([0]), w), (ONES(2, 3, 4, 5),), 0),
        (lambda v: ONES(3).masked_fill(ONES(3).bool(), v), (ONES(2, 3),), 0),
        (lambda x: x.masked_scatter(ONES(3).byte(), ONES(3)), (ONES(2, 3),), 0),
        (lambda x: torch._chunk_cat([x, ONES(3)], 0, 1), (ONES(2, 0),), 0),
        (lambda x, y: functional.nll_loss(x, y, ONES(4)), (ONES(2, 5, 3), ONES(2, 5).long()), 0),
        (lambda x, y: functional.nll_loss(x, y, ONES(4)), (ONES(2, 5, 3, 4, 4), ONES(2, 5, 4, 4).long()), 0),
        (lambda x, y: functional.nll_loss(x, y, ONES(3).double()), (ONES(2, 5, 3), ONES(2, 5).long()), 0),
        (functional.multi_margin_loss, (ONES(2, 1, 3).half(), ONES(2, 1).long()), 0),
        (lambda x: torch.native_group_norm(x, None, None, -1, 4, 3, 2, 1e-5), (ONES(2, 2, 4, 3),), 0),
        (lambda x: torch.linalg.matrix_power(x, 2), (ONES(2, 1, 1).bool(),), 0),
        (functional.mse_loss, (ONES(2, 3).long(), ONES(2, 3).long()), 0),
        (
            lambda x, w: torch.convolution(x, w, None, [], [0], [1], False, [0], 1),
            (ONES(2, 1, 1, 3), ONES(1, 1, 2)),
            (0, None),
        ),
        (lambda x, q: torch.quantile(x, q), (ONES(2, 3), torch.tensor([1.5, 0.5])), 0),
        (lambda x: torch.ops.aten.scatter.reduce(x, 0, ONES(1).long(), ONES(1), reduce="mean"), (ONES(2, 3),), 0),
        (lambda x: x.squeeze((0, 0)), (ONES(2, 1, 1),), 0),
        (lambda x: x.as_strided((-1,), (1,)), (ONES(2, 3),), 0),
        (lambda x, y: torch.cdist(x, y, p=-1.0), (ONES(2, 3, 3), ONES(2, 3, 3)), 0),
        (lambda x: torch.isin(x, 1), (ONES(2, 3).bool(),), 0),
        (lambda x: torch.histogram(x, 3), (ONES(2, 3).half(),), 0),
    ],
)
def test_a_call_that_the_plain_operator_refuses_is_refused_under_vmap(function, arguments, in_dims):
    dims = in_dims if isinstance(in_dims, tuple) else (in_dims,) * len(arguments)
    one = [a if d is None else a.select(d, 0) for a, d in zip(arguments, dims)]
    with pytest.raises(Exception):
        function(*one)
    with pytest.raises(RuntimeError, match=r"of one example, vmap \(level \d+\): aten::"):
        vmap(function, dims)(*arguments)


def test_labels_of_other_ranks_than_their_items_are_refused():
    with pytest.raises(RuntimeError, match=r"inconsistent target size: \[3\] for input of size: \[1, 3\]"):
        vmap(functional.multilabel_margin_loss)(ONES(2, 1, 3), ONES(2, 3).long())
    with pytest.raises(RuntimeError, match="out of bounds"):
        vmap(functional.multilabel_margin_loss)(ONES(2, 3), torch.tensor([[0, -1, 1], [0, -1, 9]]))


def test_what_the_plain_operator_makes_of_unlike_types_a_batch_of_it_makes():
    whole = torch.arange(8).view(2, 4)
    assert vmap(lambda b: torch.searchsorted(b, 0.5))(whole).tolist() == [torch.searchsorted(b, 0.5) for b in whole]
    assert vmap(lambda b: torch.bucketize(2.5, b))(whole).tolist() == [torch.bucketize(2.5, b) for b in whole]
    none = torch.zeros(0, dtype=torch.complex64)
    assert vmap(lambda x: torch.cat([none, x], 1))(ONES(2, 3, 3)).dtype == torch.cat([none, ONES(3, 3)], 1).dtype


def test_what_lu_unpack_is_not_asked_for_is_empty_for_each_example():
    lu, pivots = torch.linalg.lu_factor(torch.eye(3) + 1)
    batch = torch.stack([lu, lu])
    for given in ({"unpack_data": False}, {"unpack_pivots": False}):
        plain = torch.lu_unpack(lu, pivots, **given)
        mapped = vmap(lambda lu: torch.lu_unpack(lu, pivots, **given))(batch)
        assert [tuple(t.shape) for t in mapped] == [(2, *t.shape) for t in plain]
