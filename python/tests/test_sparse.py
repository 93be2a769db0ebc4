"""Sparse derivatives against torch.func's dense ones."""

import numpy as np
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
    expected = torch.func.jacrev(stencil)(some() + 0.3).cpu() != 0
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
    sparsity = torch_tower.jacobian_sparsity(lambda x: torch.topk(x, 9).values, torch.rand(9, dtype=torch.float64))
    assert sparsity.taken_for_dense == ["aten::topk"] and sparsity.num_entries == 81


def in_numpy(x: Tensor) -> Tensor:
    a = x.detach().numpy()
    return torch.from_numpy(a + np.sin(np.roll(a, 1)))


def written_out(x: Tensor) -> Tensor:
    return x + x.roll(1).sin()


class Opaque(torch.autograd.Function):
    @staticmethod
    def forward(x):
        return in_numpy(x)

    @staticmethod
    def setup_context(ctx, inputs, output):
        ctx.save_for_backward(*inputs)
        ctx.save_for_forward(*inputs)

    @staticmethod
    def backward(ctx, grad):
        (x,) = ctx.saved_tensors
        return grad + grad.roll(-1) * x.cos()

    @staticmethod
    def jvp(ctx, tangent):
        (x,) = ctx.saved_tensors
        return tangent + tangent.roll(1) * x.roll(1).cos()


@torch.library.custom_op("sparse_tests::opaque", mutates_args=())
def opaque(x: Tensor) -> Tensor:
    return in_numpy(x)


def _setup(ctx, inputs, output):
    ctx.save_for_backward(*inputs)


opaque.register_autograd(Opaque.backward, setup_context=_setup)
torch_tower.linear_backward(opaque)


def test_functions_and_operators_have_patterns_of_their_own():
    expected = torch_tower.jacobian_sparsity(written_out, some())
    for target, call in [(Opaque, Opaque.apply), (opaque, opaque)]:
        assert torch_tower.jacobian_sparsity(call, some()).num_entries == 81

        @torch_tower.register_sparsity(target)
        def _(x):
            return x + x.roll(1)

        found = torch_tower.jacobian_sparsity(call, some())
        assert not found.taken_for_dense and torch.equal(found.mask(), expected.mask())
        jacobian = torch_tower.sparse_jacobian(call, found)
        torch.testing.assert_close(jacobian(some()).to_dense(), torch.func.jacrev(written_out)(some()))
        second = [torch_tower.hessian_sparsity(lambda x: (f(x) ** 2).sum(), some()) for f in (call, written_out)]
        assert torch.equal(second[0].mask(), second[1].mask())
        rows = torch.stack([some(), some() + 1])
        found = torch_tower.jacobian_sparsity(torch_tower.vmap(call), rows)
        assert torch.equal(found.mask(), torch.block_diag(expected.mask(), expected.mask()).bool())


def test_loops_of_any_number_of_steps():
    def swept(x):
        return torch_tower.while_loop(
            lambda u: u.norm() > 1, lambda u: (u + torch.nn.functional.pad(u[:-1], (1, 0))) / 3, x
        )

    triangle = torch.ones(4, 4, dtype=torch.bool, device="cpu").tril()
    for scale in (0, 1, 100):
        x = scale * torch.ones(4, dtype=torch.float64)
        assert torch.equal(torch_tower.jacobian_sparsity(swept, x).mask(), triangle)


def test_a_pattern_of_too_many_entries_is_an_error():
    x = some(10)
    with pytest.raises(RuntimeError, match="would have 100 entries in 10 rows of 10, more than 99 .most_entries."):
        torch_tower.jacobian_sparsity(lambda v: v * v.sum(), x, most_entries=99)
    assert torch_tower.jacobian_sparsity(lambda v: v * v.sum(), x, most_entries=100).num_entries == 100
    with pytest.raises(RuntimeError, match="the results of aten::topk depend on"):
        torch_tower.hessian_sparsity(lambda v: v.topk(10).values.exp().sum(), x, most_entries=9)


def test_the_pattern_of_a_compiled_function_is_that_of_the_function():
    f = torch_tower.vmap(lambda v: torch.linalg.cross(v, v.flip(0)) * v.exp() + v.sin())
    x = torch.linspace(0, 1, 12, dtype=torch.float64).view(4, 3)
    compiled = torch_tower.jacobian_sparsity(torch_tower.compile(f), x)
    assert compiled.num_entries == torch_tower.jacobian_sparsity(f, x).num_entries
    assert not compiled.taken_for_dense


def test_wrong_calls_are_named():
    sparsity = torch_tower.jacobian_sparsity(stencil, some())
    with pytest.raises(ValueError, match="layout is 'torch.strided'"):
        torch_tower.sparse_jacobian(stencil, sparsity, layout=torch.strided)
    with pytest.raises(ValueError, match="the pattern has 9 columns"):
        torch_tower.sparse_jacobian(stencil, sparsity)(some(4))
    with pytest.raises(ValueError, match="blocks of 2 × 3 do not make up"):
        torch_tower.sparse_jacobian(stencil, sparsity, layout=torch.sparse_bsr, blocksize=(2, 3))


def test_values_decide_only_where_they_are_asked_to():
    def chosen(x):
        return x * x if x[0] > 0 else x * x.flip(0)

    x = torch.ones(4, dtype=torch.float64)
    with pytest.raises(RuntimeError, match="reads a value that depends on x"):
        torch_tower.jacobian_sparsity(chosen, x)
    assert torch.equal(
        torch_tower.jacobian_sparsity(chosen, x, values_decide=True).mask(), torch.eye(4, device="cpu").bool()
    )


BY_ROWS_OR_MATRICES = {
    "cross": lambda v: torch.linalg.cross(v.view(8, 3), v.view(8, 3).roll(1, 1)),
    "layer_norm": lambda v: torch.nn.functional.layer_norm(v.view(6, 4), (4,)),
    "cummax": lambda v: torch.cummax(v.view(6, 4), 1)[0],
    "inv": lambda v: torch.linalg.inv(torch.diag_embed(v.view(6, 4)) + 0.1),
    "det": lambda v: torch.linalg.det(torch.diag_embed(v.view(6, 4)) + 0.1),
    "glu": lambda v: torch.nn.functional.glu(v.view(6, 4)),
    "interpolate": lambda v: torch.nn.functional.interpolate(v.view(2, 2, 6), scale_factor=2, mode="linear"),
    "index_copy": lambda v: v.view(6, 4).index_copy(0, torch.tensor([1]), v.view(6, 4)[:1]),
    "embedding": lambda v: torch.nn.functional.embedding(torch.tensor([1, 2]), v.view(6, 4)),
    "var_mean": lambda v: torch.var_mean(v.view(6, 4), 1)[0],
}


@pytest.mark.parametrize("name", BY_ROWS_OR_MATRICES)
def test_patterns_of_rows_and_matrices_are_known_and_have_all_entries(name):
    f = BY_ROWS_OR_MATRICES[name]
    x = torch.rand(24, dtype=torch.float64) + 0.5
    flat = lambda v: f(v).flatten()
    pattern = torch_tower.jacobian_sparsity(flat, x)
    assert not pattern.taken_for_dense
    found = torch_tower.sparse_jacobian(flat, pattern)(x)
    torch.testing.assert_close(found.to_dense(), torch.func.jacrev(flat)(x))
