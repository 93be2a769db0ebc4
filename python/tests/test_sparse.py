"""Sparse derivatives against torch.func's dense ones."""

import pytest
import torch
import torch_tower
from torch import Tensor


def stencil(x: Tensor) -> Tensor:
    wide = torch.nn.functional.pad(x, (1, 1))
    return x**3 + 2 * x - wide[:-2] - wide[2:].cos()


def some(n: int = 9) -> Tensor:
    return torch.linspace(-1, 1, n, dtype=torch.float64)


LAYOUTS = [torch.sparse_csr, torch.sparse_csc, torch.sparse_coo, torch.sparse_bsr]


@pytest.mark.parametrize("layout", LAYOUTS)
def test_the_jacobian_is_a_sparse_tensor_of_torch(layout):
    x = some()
    sparsity = torch_tower.jacobian_sparsity(stencil, x)
    assert sparsity.shape == (9, 9) and sparsity.num_entries == 25 and not sparsity.taken_for_dense
    jacobian = torch_tower.sparse_jacobian(stencil, sparsity, layout=layout, blocksize=(3, 3), chunk_size=2)
    assert jacobian.num_colours == 3 and jacobian.num_row_colours == 0
    found = jacobian(x + 0.3)
    assert found.layout == layout
    torch.testing.assert_close(found.to_dense(), torch.func.jacrev(stencil)(x + 0.3))


def test_patterns_are_those_of_matrices():
    pattern = torch_tower.jacobian_sparsity(stencil, some())
    expected = torch.func.jacrev(stencil)(some() + 0.3) != 0
    assert torch.equal(pattern.mask(), expected)
    assert torch.equal(torch_tower.Sparsity.of(expected.double().to_sparse_csr()).mask(), expected)
    assert torch.equal(pattern.transposed().mask(), expected.T)
    assert torch.equal(pattern.crow_indices(), expected.to_sparse_csr().crow_indices())
    assert torch.equal(pattern.col_indices(), expected.to_sparse_csr().col_indices())
    assert repr(pattern) == "Sparsity(9 × 9, 25 entries)"


def test_arguments_and_results_are_trees():
    def react(state):
        rate = state["a"] * state["b"][0] ** 2
        return stencil(state["a"]) - rate, [stencil(state["b"][0]) + rate]

    def on_vectors(v):
        first, (second,) = react({"a": v[:9], "b": (v[9:],)})
        return torch.cat([first, second])

    v = some(18)
    state = {"a": v[:9], "b": (v[9:],)}
    sparsity = torch_tower.jacobian_sparsity(react, state)
    jacobian = torch_tower.sparse_jacobian(react, sparsity)
    assert jacobian.num_colours < 8
    torch.testing.assert_close(jacobian(state).to_dense(), torch.func.jacrev(on_vectors)(v))


def test_the_hessian_of_an_arrow_takes_two_products():
    def energy(x):
        return (x[0] * x[1:].exp()).sum() + (x**4).sum()

    x = some(30)
    hessian = torch_tower.sparse_hessian(energy, torch_tower.hessian_sparsity(energy, x))
    assert hessian.num_colours == 2
    torch.testing.assert_close(hessian(x).to_dense(), torch.func.hessian(energy)(x))


def test_values_go_through_transforms():
    jacobian = torch_tower.sparse_jacobian(stencil, torch_tower.jacobian_sparsity(stencil, some()))
    batch = torch.stack([some(), some() * 2])
    values = torch_tower.vmap(jacobian.values)(batch)
    for x, entries in zip(batch, values):
        torch.testing.assert_close(jacobian.matrix(entries).to_dense(), torch.func.jacrev(stencil)(x))
    _, along = torch_tower.jvp(jacobian.values, (some(),), (torch.ones(9, dtype=torch.float64),))
    step = 1e-6
    torch.testing.assert_close(
        along, (jacobian.values(some() + step) - jacobian.values(some() - step)) / (2 * step), rtol=1e-7, atol=1e-7
    )
    with pytest.raises(RuntimeError, match=r"Take its values\(\)"):
        torch_tower.vmap(jacobian)(batch)


def test_what_is_not_known_is_named():
    sparsity = torch_tower.jacobian_sparsity(lambda x: torch.linalg.inv(x), torch.eye(3, dtype=torch.float64))
    assert sparsity.taken_for_dense == ["aten::linalg_inv_ex"] and sparsity.num_entries == 81


def test_wrong_calls_are_named():
    sparsity = torch_tower.jacobian_sparsity(stencil, some())
    with pytest.raises(ValueError, match="layout is 'torch.strided'"):
        torch_tower.sparse_jacobian(stencil, sparsity, layout=torch.strided)
    with pytest.raises(ValueError, match="the pattern has 9 columns"):
        torch_tower.sparse_jacobian(stencil, sparsity)(some(4))
    with pytest.raises(ValueError, match="blocks of 2 × 3 do not make up"):
        torch_tower.sparse_jacobian(stencil, sparsity, layout=torch.sparse_bsr, blocksize=(2, 3))
