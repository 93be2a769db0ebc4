"""What errors say: in Python's words, what to do, and with torch.func's words where other libraries look for them."""

import pathlib
import re

import pytest
import torch
import torch_tower
from torch.autograd import Function
from torch_tower import check_grads, compile, grad, hvp, jacfwd, jacobian_sparsity, jvp, vjp, vmap

w = torch.ones(3, requires_grad=True)
x = torch.ones(2, 3)
scalar = torch.tensor(1.0)


class WithRule(Function):
    @staticmethod
    def forward(x):
        return x * 2

    @staticmethod
    def setup_context(ctx, inputs, output):
        pass


def returning(value):
    """A Function whose vmap rule returns this."""
    return type("Broken", (WithRule,), {"vmap": staticmethod(lambda info, in_dims, x: value(x))})


def written_to(x):
    x.mul_(2)
    return x * x


ADVICE = [
    (
        lambda: torch_tower.while_loop(lambda s: s < 3, abs, scalar, max_steps=2.5),
        "max_steps is 2.5; it must be a whole",
    ),
    (
        lambda: torch_tower.fori_loop(0, 2.5, lambda i, s: s, scalar),
        "fori_loop: upper is 2.5; it must be a whole number",
    ),
    (lambda: torch_tower.scan(lambda s: (s, s), scalar, length=2.5), "scan: length is 2.5; it must be a whole number"),
    (lambda: torch_tower.sparse_jacobian(torch.sin, x), "sparse_jacobian: the pattern is a Tensor. It is a Sparsity"),
    (lambda: jacfwd(torch.sin, chunk_size=2.5)(x[0]), "jacfwd: chunk_size is 2.5; it must be a whole number"),
    (lambda: torch_tower.derivatives_along(torch.sin, (x,), (x,), 1.5), "order is 1.5; it must be a whole number"),
    (lambda: torch_tower.cg(abs, x, max_steps="few"), "max_steps is 'few'; it must be a whole number"),
    (lambda: torch_tower.linear_solve(abs, x, symmetric="yes"), "symmetric is 'yes'; it must be True or False"),
    (lambda: vmap(lambda x: x + torch.randn(3))(x), 'randomness="different" draws for each example'),
    (lambda: jacfwd(lambda x: x + torch.randn(3))(x[0]), 'randomness="same" shares one draw'),
    (lambda: vmap(lambda x: x, (None,))(x), "every in_dim is None"),
    (lambda: vmap(torch.sin)(scalar), "in_dim 0 cannot be mapped. Leave its in_dim None"),
    (lambda: vmap(torch.sin, out_dims=None)(x), "its out_dim is None, which promises"),
    (lambda: vjp(lambda x: (x, x > 0), x)[1]((x, x)), "The cotangent must be None"),
    (lambda: grad(lambda x: (x * w).sum().backward() or x.sum())(x), "Call torch_tower.grad or torch_tower.vjp"),
    (lambda: vmap(lambda x: (x * w).sum().backward() or x)(x), "vmap (level 1): backward() or torch.autograd.grad"),
    (lambda: vmap(lambda x: torch.autograd.grad((x * w).sum(), w)[0])(x), "Call torch_tower.grad or torch_tower.vjp"),
    (lambda: jvp(lambda x: (x * w).sum().backward() or x, (x,), (x,)), "Call torch_tower.grad or torch_tower.vjp"),
    (lambda: grad(lambda x: ((x * 2).register_hook(abs), x.sum())[1])(x), "Use a torch.autograd.Function to change"),
    (lambda: vmap(returning(lambda x: x).apply)(x), "Broken: Expected the vmap staticmethod to have two returns"),
    (lambda: vmap(returning(lambda x: (x, 0, 0)).apply)(x), "It returned a tuple of 3 elements"),
    (lambda: vmap(returning(lambda x: (x, "0")).apply)(x), "out_dims has a str"),
    (lambda: jvp(torch.sin, scalar, scalar), "jvp: Expected primals to be a tuple"),
    (lambda: hvp(torch.sin, scalar, scalar), "hvp: Expected primals to be a tuple"),
    (lambda: check_grads(torch.sin, scalar), "check_grads: Expected args to be a tuple"),
    (lambda: vmap(lambda x: (x.sum().backward(), x)[1])(x), "vmap (level 1): backward() or torch.autograd.grad was"),
    (lambda: jvp(lambda x: torch.autograd.grad(x.sum(), x), (x,), (x,)), "Call torch_tower.grad or torch_tower.vjp"),
    (lambda: vmap(lambda x: x.requires_grad_())(x), "Make what is to be differentiated an argument of torch_tower"),
    (lambda: vmap(torch.nn.Parameter)(x), "vmap (level 1): a tensor of the transform was asked to require grad"),
    (lambda: vmap(lambda x: x.numpy())(x), "print(x) shows it"),
    (lambda: compile(lambda x: x * x.sum().item())(x), "Choose by torch_tower.cond or where()"),
    (lambda: jacobian_sparsity(lambda x: x if x.sum() > 0 else -x, x[0]), "torch_tower.cond or torch_tower.while_loop"),
    (lambda: grad(torch.sum, argnums=[0])(x), "an int or a tuple of ints. Write argnums=(0,)."),
    (lambda: jacfwd(written_to, randomness="different", chunk_size=1)(x[0].clone()), 'use randomness="same", which'),
    (lambda: vmap(lambda w: torch.nn.functional.embedding(torch.tensor([0]), w))(x), "'weight' must be 2-D"),
]


@pytest.mark.parametrize("case", range(len(ADVICE)))
def test_advice_is_pythons(case):
    call, words = ADVICE[case]
    with pytest.raises((RuntimeError, ValueError, TypeError), match=re.escape(words)) as caught:
        call()
    assert not re.search(r"tower::|torch::|\w+::\w+\}|pybind|NoGradGuard|undefined|empty", str(caught.value))


THEIRS = [
    (RuntimeError, lambda t: t.grad(torch.sum, has_aux=True)(x), r"\(output, aux\) if has_aux is True"),
    (
        RuntimeError,
        lambda t: t.vjp(torch.sum, x, has_aux=True),
        r"should be a tuple: \(output, aux\) if has_aux is True",
    ),
    (RuntimeError, lambda t: t.jvp(torch.sum, (x,), (x,), has_aux=True), r"\(output, aux\) if has_aux is True"),
    (RuntimeError, lambda t: t.jacrev(torch.sum, has_aux=True)(x), r"\(output, aux\) if has_aux is True"),
    (RuntimeError, lambda t: t.jacfwd(torch.sum, has_aux=True)(x), r"\(output, aux\) if has_aux is True"),
    (RuntimeError, lambda t: t.vjp(lambda x: 1.0, x), "got unsupported type <class 'float'>"),
    (RuntimeError, lambda t: t.jvp(lambda x: 1.0, (x,), (x,)), "got unsupported type <class 'float'>"),
    (
        RuntimeError,
        lambda t: t.jvp(torch.sin, x, x),
        "Expected primals to be a tuple. E.g. it should be valid to call f",
    ),
    (
        RuntimeError,
        lambda t: t.jvp(torch.sin, (x,), (x, x)),
        "Expected primals and tangents to have the same python structure",
    ),
    (
        RuntimeError,
        lambda t: t.vjp(torch.sin, x)[1]((x, x)),
        "Expected pytree structure of cotangents to be the same as pytree structure of outputs to the function",
    ),
    (RuntimeError, lambda t: t.grad(torch.sum, 2)(x), "Got argnum=2, but only 1 positional inputs"),
    (RuntimeError, lambda t: t.grad(torch.sum, ())(x), "argnums must be non-empty"),
    (RuntimeError, lambda t: t.grad(torch.sum, (0, 0))(x), "argnums elements must be unique, got"),
    (ValueError, lambda t: t.grad(torch.sum)(1.0), "Thing passed to transform API must be Tensor, got <class 'float'>"),
    (ValueError, lambda t: t.vmap(lambda x: 1.0)(x), "must only return Tensors, got type <class 'float'>"),
    (ValueError, lambda t: t.vmap(torch.mul)(x, 1.0), "please use None as the respective in_dim"),
    (ValueError, lambda t: t.vmap(torch.sin)(), "got no inputs"),
    (ValueError, lambda t: t.vmap(torch.sin, [0])(x), "to be int or a .potentially nested. tuple"),
    (ValueError, lambda t: t.vmap(torch.sin, (0, 0))(x), "is not compatible with the structure of"),
    (ValueError, lambda t: t.vmap(torch.sin, out_dims=(0, 0))(x), "is not compatible with the structure of"),
    (
        RuntimeError,
        lambda t: t.vmap(returning(lambda x: x).apply)(x),
        "Expected the vmap staticmethod to have two returns",
    ),
]


@pytest.mark.parametrize("case", range(len(THEIRS)))
@pytest.mark.parametrize("library", [torch_tower, torch.func], ids=["ours", "torch.func"])
def test_the_words_of_torch_func_are_in_ours(library, case):
    kind, call, words = THEIRS[case]
    with pytest.raises(kind, match=words):
        call(library)


SINGULAR = torch.stack([torch.eye(2), torch.eye(2), torch.ones(2, 2)])


@pytest.mark.parametrize(
    "function, words",
    [
        (lambda a: torch_tower.linear_solve(lambda x: a @ x, torch.ones(2)), "singular"),
        (lambda a: torch.linalg.solve(a, torch.ones(2)), "singular"),
        (torch.linalg.inv, "singular"),
        (lambda a: torch.linalg.cholesky(a - 1), "not positive-definite"),
    ],
)
@pytest.mark.parametrize("transform", [vmap, lambda f: vmap(grad(lambda a: f(a).sum())), lambda f: compile(vmap(f))])
def test_a_matrix_without_inverse_is_named_by_its_place_in_the_batch(transform, function, words):
    with pytest.raises(torch.linalg.LinAlgError, match=rf"Batch element [02]\).*{words}"):
        transform(function)(SINGULAR)


FUNCTIONAL = [
    lambda x: torch.autograd.functional.jacobian(torch.sin, x),
    lambda x: torch.autograd.functional.hessian(lambda x: x.sin().sum(), x),
    lambda x: torch.autograd.functional.vjp(torch.sin, x, x)[1],
    lambda x: torch.autograd.functional.jvp(torch.sin, x, x)[1],
    lambda x: torch.autograd.functional.jacobian(lambda y: y * x, torch.ones(3)),
]


@pytest.mark.parametrize("case", range(len(FUNCTIONAL)))
@pytest.mark.parametrize(
    "transform", [vmap, compile, lambda f: grad(lambda x: f(x).sum()), lambda f: lambda x: jvp(f, (x,), (x,))]
)
def test_torch_autograd_functional_inside_is_refused_and_never_zero(transform, case):
    given = x if transform is vmap else x[0]
    words = r"\(level 1\): .*torch\.autograd\.functional.*an argument of torch_tower\.grad"
    with pytest.raises(RuntimeError, match=words):
        transform(FUNCTIONAL[case])(given)


@pytest.mark.parametrize("optimizer", [torch.optim.SGD, torch.optim.Adam, torch.optim.AdamW, torch.optim.RMSprop])
def test_a_step_of_an_optimizer_inside_is_that_of_plain_code(optimizer):
    def stepped(x):
        parameter = torch.nn.Parameter(torch.ones(3))
        parameter.grad = x * 2
        optimizer([parameter], lr=0.1).step()
        return parameter.detach() * x

    expected = torch.stack([stepped(row.clone()) for row in x * torch.tensor([[1.0], [-2.0]])])
    rows = x * torch.tensor([[1.0], [-2.0]])
    torch.testing.assert_close(vmap(stepped)(rows), expected)
    torch.testing.assert_close(compile(vmap(stepped))(rows), expected)
    torch.testing.assert_close(jvp(stepped, (rows[1],), (rows[1],))[0], expected[1])


def test_an_optimizer_that_asks_for_a_backward_pass_inside_hears_what_to_call():
    def train(x):
        parameter = torch.nn.Parameter(torch.ones(3))
        (parameter * x).sum().backward()

    for transform in (vmap, grad, compile):
        with pytest.raises(RuntimeError, match=r"\(level 1\): backward\(\) or torch.autograd.grad .* torch_tower.grad"):
            transform(train)(x if transform is vmap else x[0])


@pytest.mark.parametrize("make", [torch.tensor, torch.as_tensor])
def test_a_list_of_numbers_of_a_transform_makes_a_tensor_or_says_why_not(make):
    f = lambda x: (make([[x[0], 2.0], [x[1], x[2].double()]]) * x.sum()).sum()
    given = torch.tensor([3.0, 4.0, 5.0])
    torch.testing.assert_close(grad(f)(given), torch.full((3,), 14.0))
    mixed = lambda x: make([x[0], x[1].double()])
    assert jvp(mixed, (given,), (given,))[0].dtype == mixed(given).dtype
    with pytest.raises(RuntimeError, match=r"vmap \(level 1\): .* differs between the examples"):
        vmap(f)(x)


def test_shapes_that_count_the_batch_are_said_to():
    with pytest.raises(RuntimeError, match=r"of all examples together, vmap \(level 1\): aten::add.Tensor"):
        vmap(lambda x: x + torch.ones(4))(x)


ONE = {"RANK": "0", "WORLD_SIZE": "1", "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": "1"}
MESHES = [
    ({"RANK": None}, {"data": -1}, "Mesh.from_environment: the variable RANK is not set"),
    ({"RANK": "one"}, {"data": -1}, "Mesh.from_environment: RANK is 'one', which is no number"),
    ({"RANK": "7"}, {"data": -1}, "Mesh.from_environment: RANK is 7, but there are 1 processes"),
    ({"MASTER_PORT": "70000"}, {"data": -1}, "Mesh.from_environment: MASTER_PORT is 70000, and the most is 65535"),
    ({}, {}, 'it has no axes. Name at least one, such as "data" of size -1'),
    ({}, {"data": 2}, "the axes (data 2) do not fit 1 processes"),
    ({}, {"data": 0}, "axis 'data' has size 0"),
    ({"RANK": "1", "WORLD_SIZE": "2"}, {"data": -1}, "Mesh.from_environment (process 1 of 2 at 127.0.0.1:1)"),
]


@pytest.mark.parametrize("case", range(len(MESHES)))
def test_what_is_wrong_with_a_mesh_is_said_in_pythons_words(monkeypatch, case):
    changed, axes, words = MESHES[case]
    for name, value in {**ONE, **changed}.items():
        monkeypatch.delenv(name, raising=False) if value is None else monkeypatch.setenv(name, value)
    with pytest.raises(torch_tower.MeshError) as caught:
        torch_tower.Mesh.from_environment(axes, timeout=1)
    text = str(caught.value)
    if "distributed engine" not in text:  # LibTorch, or Tower, was built without
        assert words in text
    assert text.startswith("Mesh") and "::" not in text and "MeshOptions" not in text


def solved_together(x):
    return torch_tower.linear_solve(lambda y: torch_tower.psum(y, "a"), x, method="dense")


NAMED = [
    (lambda: vmap(lambda x: torch_tower.psum(x, "data"))(x), "Give one a name, by its option axis."),
    (lambda: torch_tower.scan(lambda c, x: (c, c), x[0]), "say with length"),
    (lambda: vmap(solved_together, axis="a")(x), "solve by the method gmres"),
]


@pytest.mark.parametrize("case", range(len(NAMED)))
def test_options_are_called_as_in_python(case):
    call, words = NAMED[case]
    with pytest.raises((RuntimeError, ValueError), match=re.escape(words)) as caught:
        call()
    assert not re.search(r"\{\.| \.[a-z]|\w::\w", str(caught.value).replace("aten::", ""))


# A comment, a character, or a text, of a C++ source.
TOKEN = re.compile(r"//[^\n]*|/\*.*?\*/|'(?:[^'\\\n]|\\.)+'|\"((?:[^\"\\\n]|\\.)*)\"", re.DOTALL)
OWN = "product|part|blocks|contraction|kernel|moves|rows_by_index|short_sums|systems"
OPERATORS = rf"aten|prims|mylib|tower::(?:(?:{OWN})\b|$)"
OF_CPP = re.compile(
    rf"(?<![\w:])(?!{OPERATORS})\w+::|\w\.h\b|nullopt|constexpr|\{{(?:\.|\{{\\)|[ (]\.[a-z]"
    r"|\b[A-Z]\w*(?:Options|Guard)\b"
)
# Texts that only programs in C++ hear, of types of C++, or of a class of C++ that somebody wrote.
ONLY_CPP = {
    "compile/export_c.cpp",  # C's keywords, and names of headers
    "compile/casadi_function.cpp",  # C
    "compile/export_casadi.cpp",
    "operators/function.cpp",  # tower::Function
    "transforms/axes.cpp",
    "transforms/tree.cpp",
    "core/libtorch_functions.cpp",  # torch::autograd::Function
}


def texts_of(source):
    """The texts of a C++ source, but for the names of files that it includes, and the lines that they are in."""
    for found in TOKEN.finditer(source):
        line = source.count("\n", 0, found.start()) + 1
        if found[1] is not None and not source.splitlines()[line - 1].lstrip().startswith("#"):
            yield line, found[1]


def names_of_cpp(folder):
    for path in sorted(folder.rglob("*")):
        name = str(path.relative_to(folder))
        if path.suffix in (".cpp", ".h") and name not in ONLY_CPP:
            yield from (f"{name}:{line}: {text}" for line, text in texts_of(path.read_text()) if OF_CPP.search(text))


def test_texts_of_the_sources_have_no_names_that_only_one_language_has(tmp_path):
    """What reads otherwise in Python is in include/tower/detail/spellings.h; what Python never hears is listed."""
    root = pathlib.Path(__file__).resolve().parents[2]
    assert list(names_of_cpp(root / "src")) == [] == list(names_of_cpp(root / "python" / "src"))

    source = r"""
#include "tower/mesh.h"  // "std::move"
f("Call tower::grad", '"', "aten::sin", "aten::sin of at::Tensor");
g("pass {.axis = \\"data\\"}", "set MeshOptions, or "
  "use .compact (tower/loops.h)", "v.h or .5 and tower::kernel");
"""
    (tmp_path / "some.cpp").write_text(source)
    assert [found.split(":")[1] for found in names_of_cpp(tmp_path)] == ["3", "3", "4", "4", "5", "5"]
