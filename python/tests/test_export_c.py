"""Compiled functions as C libraries, called by ctypes and by CasADi. Oracles: the function itself, LibTorch's autograd,
and CasADi's own symbols."""

import ctypes
import shutil
import subprocess

import numpy as np
import pytest
import torch
from support import assert_same
from torch_tower import compile, export_c, vmap

pytestmark = pytest.mark.cpu("a C library is for the CPU")

compiler = pytest.mark.skipif(shutil.which("cc") is None, reason="there is no C compiler")


def built(folder, name):
    path = folder / f"lib{name}.so"
    sources = [folder / f"{name}.c", folder / f"{name}_kernels.o"]
    subprocess.run(["cc", "-O2", "-shared", "-fPIC", *sources, "-o", path, "-lm"], check=True)
    return path


def exported(compiled, name, folder, **options):
    """Or a skip, where nothing is machine code."""
    if "kernel 0" not in compiled.report():
        pytest.skip("LLVM is not installed")
    export_c(compiled, name, folder=folder, **options)
    return built(folder, name)


def called_by_ctypes(path, name, n, arguments, results):
    library = ctypes.CDLL(str(path))
    work_bytes = library[f"{name}_work_bytes"]
    work_bytes.restype, work_bytes.argtypes = ctypes.c_int64, [ctypes.c_int64]

    def pointers(tensors):
        return (ctypes.c_void_p * len(tensors))(*(t.data_ptr() for t in tensors))

    work = ctypes.create_string_buffer(max(1, work_bytes(n)))
    return library[name](ctypes.c_int64(n), pointers(arguments), pointers(results), work)


def doubles(*sizes, seed=0):
    return torch.rand(*sizes, dtype=torch.float64, generator=torch.Generator().manual_seed(seed)) + 0.5


@compiler
@pytest.mark.parametrize("captured", ["constants", "arguments"])
def test_a_library_gives_what_the_function_gives_for_any_number_of_examples(tmp_path, captured):
    weight = doubles(3, 3)

    @compile
    @vmap
    def step(tree):
        x = tree["x"]
        return {"y": torch.linalg.solve(weight + torch.diag(x), tree["load"]), "norm": (weight @ x).norm()}

    for n in (5, 8, 5, 8):
        step({"x": doubles(n, 3), "load": doubles(n, 3, seed=1)})
    path = exported(step, "step", tmp_path, captured=captured)
    for n in (0, 1, 7, 100):
        x, load = doubles(n, 3, seed=2), doubles(n, 3, seed=3)
        expected = step({"x": x, "load": load})
        y, norm = torch.full((n, 3), 7.0, dtype=torch.float64), torch.full((n,), 7.0, dtype=torch.float64)
        arguments = [x, load] + ([weight] if captured == "arguments" else [])
        assert called_by_ctypes(path, "step", n, arguments, [y, norm]) == 0
        assert_same({"y": y, "norm": norm}, expected)
        assert torch.equal(y, expected["y"])


def test_it_is_for_another_machine_that_is_named(tmp_path):
    f = compile(lambda x: (x * x + 1).exp())
    f(doubles(4))
    if "kernel 0" not in f.report():
        pytest.skip("LLVM is not installed")
    export_c(f, "f", folder=tmp_path, target="aarch64", also=["s"])
    assert (tmp_path / "f_kernels.o").read_bytes()[18:20] == b"\xb7\x00"  # ELF's number of AArch64
    assert "fmla" in (tmp_path / "f_kernel0.s").read_text()


@compiler
def test_it_is_for_the_kind_of_arguments_that_were_used_last(tmp_path):
    @compile
    def f(x, scale):
        return x * scale + 1

    for scale in (2, 3, 2, 3):
        f(doubles(4), scale)
    for scale, x in ((3, doubles(4)), (2, doubles(4))):
        expected = f(x, scale)
        y = torch.zeros(4, dtype=torch.float64)
        folder = tmp_path / str(scale)
        assert called_by_ctypes(exported(f, "f", folder), "f", 1, [x], [y]) == 0
        assert torch.equal(y, expected)


def test_what_cannot_be_is_said_in_words_of_python(tmp_path):
    f = compile(lambda x: x * 2)
    with pytest.raises(TypeError, match="export_c: .* compile or load"):
        export_c(lambda x: x, "f", folder=tmp_path)
    with pytest.raises(RuntimeError, match="no graph yet"):
        export_c(f, "f", folder=tmp_path)
    f(doubles(3))
    with pytest.raises(ValueError, match='captured is "constants" or "arguments", not \'all\''):
        export_c(f, "f", folder=tmp_path, captured="all")
    with pytest.raises(ValueError, match='abi is "tower" or "casadi", not \'fortran\''):
        export_c(f, "f", folder=tmp_path, abi="fortran")
    with pytest.raises((RuntimeError, ValueError), match="there is no target 'riscv64'.*x86-64-v3.*aarch64"):
        export_c(f, "f", folder=tmp_path, target="riscv64")
    with pytest.raises((RuntimeError, ValueError), match="'bc' among also"):
        export_c(f, "f", folder=tmp_path, also=["s", "bc"])
    with pytest.raises((RuntimeError, ValueError), match="'while' cannot be the name"):
        export_c(f, "while", folder=tmp_path)


# ---- CasADi ----


@pytest.fixture
def casadi():
    return pytest.importorskip("casadi", reason="pip install --target .venv/packages casadi")


def residuals(x, p):
    """Of a chain of masses, and its energy: sparse, and used below in words of torch and of CasADi alike."""
    left, right = x[:-1], x[1:]
    return left * left * right - p[0] * right, (x - p[1]).square().square().sum()


@compiler
def test_casadi_has_the_functions_derivatives_with_their_patterns(tmp_path, casadi):
    chain = compile(residuals)
    x, p = doubles(12), doubles(2, seed=1)
    for _ in range(2):
        chain(x, p)
    path = exported(chain, "chain", tmp_path, abi="casadi", argument_names=["x", "p"], result_names=["g", "e"])
    f = casadi.external("chain", str(path))
    assert f.name_in() == ["x", "p"] and f.name_out() == ["g", "e"]

    sym = [casadi.SX.sym("x", 12), casadi.SX.sym("p", 2)]
    left, right = sym[0][:-1], sym[0][1:]
    own = casadi.Function(
        "own",
        sym,
        [left * left * right - sym[1][0] * right, casadi.sumsqr((sym[0] - sym[1][1]) ** 2)],
        ["x", "p"],
        ["g", "e"],
    )
    at = [x.numpy(), p.numpy()]
    for found, expected in zip(f(*at), own(*at)):
        assert abs(found - expected).full().max() < 1e-13

    # Through a call in an expression, as a user has it: what CasADi makes of jac_, fwd1_, adj1_ and jac_adj1_chain.
    def derivatives(function):
        x, p = casadi.MX.sym("x", 12), casadi.MX.sym("p", 2)
        weights = casadi.MX.sym("w", 11)
        g, e = function(x, p)
        lagrangian = e + casadi.dot(weights, g)
        hessian, gradient = casadi.hessian(lagrangian, x)
        results = [casadi.jacobian(g, x), casadi.jacobian(g, p), gradient, hessian]
        results.append(casadi.jtimes(g, x, casadi.DM(range(12))))
        results.append(casadi.jtimes(g, casadi.vertcat(x), casadi.DM(range(11)), True))
        return casadi.Function("derivatives", [x, p, weights], results)

    weights = doubles(11, seed=2).numpy()
    for found, expected in zip(derivatives(f)(*at, weights), derivatives(own)(*at, weights)):
        assert abs(found - expected).full().max() < 1e-12
        assert found.sparsity() == expected.sparsity()


@compiler
def test_casadi_has_dense_derivatives_of_matrices_as_autograd_has_them(tmp_path, casadi):
    def products(a, b):
        return torch.linalg.solve(a, b @ a + b), (a * a).sum()

    compiled = compile(products)
    a, b = doubles(3, 3) + 3 * torch.eye(3, dtype=torch.float64), doubles(3, 3, seed=1)
    for _ in range(2):
        compiled(a, b)
    f = casadi.external("products", str(exported(compiled, "products", tmp_path, abi="casadi")))
    at = [a.numpy(), b.numpy()]
    assert torch.allclose(torch.tensor(f(*at)[0].full()), products(a, b)[0], rtol=1e-13, atol=1e-13)
    blocks = f.jacobian()(*at, 0, 0)
    for k, expected in enumerate(torch.autograd.functional.jacobian(lambda a, b: products(a, b)[0], (a, b))):
        expected = expected.permute(1, 0, 3, 2).reshape(9, 9)  # elements of matrices, column by column
        assert torch.allclose(torch.tensor(blocks[k].full()), expected, rtol=1e-11, atol=1e-12), k


@compiler
def test_ipopt_takes_as_many_steps_as_with_casadis_own_symbols(tmp_path, casadi):
    """Stages of a car that brakes late: minimal effort, with dynamics as constraints, a stage a call."""

    def stage(state, control):
        position, speed = state[0], state[1]
        drag = 0.1 * speed * speed * speed.sign()
        following = torch.stack([position + 0.1 * speed, speed + 0.1 * (control[0] - drag)])
        return following, control[0] * control[0] + 0.01 * speed * speed

    def symbols(state, control):
        drag = 0.1 * state[1] * state[1] * casadi.sign(state[1])
        following = casadi.vertcat(state[0] + 0.1 * state[1], state[1] + 0.1 * (control - drag))
        return following, control**2 + 0.01 * state[1] ** 2

    compiled = compile(stage)
    for _ in range(2):
        compiled(doubles(2), doubles(1))
    external = casadi.external("stage", str(exported(compiled, "stage", tmp_path, abi="casadi")))
    sym = [casadi.SX.sym("s", 2), casadi.SX.sym("u")]
    own = casadi.Function("own", sym, symbols(*sym))

    def solved(function, n=20):
        opti = casadi.Opti()
        states, controls = opti.variable(2, n + 1), opti.variable(1, n)
        cost = 0
        for k in range(n):
            following, of_stage = function(states[:, k], controls[:, k])
            opti.subject_to(states[:, k + 1] == following)
            cost += of_stage
        opti.subject_to(states[:, 0] == casadi.DM([0, 1]))
        opti.subject_to(states[:, n] == casadi.DM([2, 0]))
        opti.subject_to(opti.bounded(-2, controls, 2))
        opti.minimize(cost)
        opti.set_initial(states[1, :], 1)
        opti.solver("ipopt", {"print_time": False}, {"print_level": 0, "tol": 1e-10})
        solution = opti.solve()
        return solution.value(states), solution.value(controls), solution.value(cost), solution.stats()["iter_count"]

    found, expected = solved(external), solved(own)
    for a, b in zip(found[:3], expected[:3]):
        assert np.abs(a - b).max() < 1e-8
    assert found[3] == expected[3]
