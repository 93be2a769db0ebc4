"""What the plain call refuses, a batch of it refuses. (Every operator of the database: conformance/mistakes.py.)"""

import pytest
import torch
from torch.nn import functional
from torch_tower import vmap

ONES = torch.ones


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
    ],
)
def test_a_call_that_the_plain_operator_refuses_is_refused_under_vmap(function, arguments, in_dims):
    dims = in_dims if isinstance(in_dims, tuple) else (in_dims,) * len(arguments)
    one = [a if d is None else a.select(d, 0) for a, d in zip(arguments, dims)]
    with pytest.raises(Exception):
        function(*one)
    with pytest.raises(RuntimeError, match=r"of one example, vmap \(level \d+\): aten::"):
        vmap(function, dims)(*arguments)
