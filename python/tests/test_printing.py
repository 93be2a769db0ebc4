"""What tensors inside a transform print."""

import pytest
import torch
import torch_tower
from support import assert_same
from torch_tower import grad, jvp, vmap

pytestmark = pytest.mark.cpu("the texts name no device")


def seen(transform, *args):
    texts = []

    def f(x):
        texts.append(repr(x))
        texts.append(str(x))
        return x.sum()

    transform(f)(*args)
    assert texts[0] == texts[1]
    return texts[0]


def test_a_batch():
    x = torch.tensor([1.0, 2.0])
    assert seen(vmap, x) == "BatchedTensor(level=1, bdim=0, value=tensor([1., 2.]))"


def test_where_the_batch_is():
    text = seen(lambda f: vmap(f, in_dims=1), torch.ones(1, 2))
    assert text == "BatchedTensor(level=1, bdim=1, value=tensor([[1., 1.]]))"


def test_a_taped_value():
    assert seen(grad, torch.tensor(1.0)) == "TapedTensor(level=1, value=tensor(1.))"


def test_a_dual():
    text = seen(lambda f: lambda x: jvp(f, (x,), (x + 1,)), torch.tensor(1.0))
    assert text == "DualTensor(level=1, value=tensor(1.), tangent=tensor(2.))"
    text = seen(lambda f: lambda x: jvp(f, (x,), (None,)), torch.tensor(1.0))
    assert text == "tensor(1.)"


def test_levels_inside_of_each_other():
    text = seen(lambda f: vmap(grad(f)), torch.tensor([1.0, 2.0]))
    assert text == "TapedTensor(level=2, value=BatchedTensor(level=1, bdim=0, value=tensor([1., 2.])))"


def test_what_takes_several_lines_is_indented():
    text = seen(vmap, torch.tensor([[1.0, 2.0], [3.0, 4.0]]))
    assert text == "BatchedTensor(\n  level=1,\n  bdim=0,\n  value=tensor([[1., 2.],\n          [3., 4.]])\n)"


def test_a_constant_and_a_tensor_from_outside_print_as_ever():
    outside, texts = torch.tensor([1.0, 2.0]), []

    def f(x):
        texts.extend([repr(torch.tensor([1.0, 2.0])), repr(outside), repr(outside * 1)])
        return x.sum()

    vmap(grad(f))(torch.ones(3))
    assert texts == ["tensor([1., 2.])"] * 3


def test_after_the_transform_it_says_so():
    kept = []
    grad(lambda x: kept.append(x) or x)(torch.tensor(1.0))
    assert repr(kept[0]) == "TapedTensor(level=1, value=tensor(1.), ended=True)"


def test_printing_does_not_disturb_the_transform():
    x = torch.ones(3)
    with torch.no_grad():
        assert_same(grad(lambda x: (repr(x), f"{x}", x.sum() * 2)[2])(x), torch.full((3,), 2.0))


def test_an_explanation_lists_what_ran(capsys):
    result = torch_tower.explain(vmap(grad(torch.sin)))(torch.zeros(2))
    assert_same(result, torch.ones(2))
    lines = capsys.readouterr().out.splitlines()
    assert any("grad (level 2)" in line and "aten::sin" in line for line in lines)
    assert any("vmap (level 1)" in line and "aten::cos" in line for line in lines)


def test_coverage_has_a_row_for_each_operator_and_transform():
    rows = torch_tower.coverage()
    by_key = {(row.op, row.transform): row.served for row in rows}
    assert len(by_key) == len(rows) > 3000
    assert by_key["aten::sin", "vmap"] == "family: pointwise"
