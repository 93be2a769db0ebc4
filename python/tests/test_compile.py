"""torch.compile around transforms and inside of them."""

import pytest
import torch
import torch_tower
from support import assert_same, randn
from torch_tower import grad, hessian, jacrev, jvp, linearize, vjp, vmap


@pytest.fixture(autouse=True)
def fresh():
    torch._dynamo.reset()


def energy(x):
    return (x.sin() * x).sum()


CALLS = {
    "vmap": lambda x: vmap(torch.sin)(x),
    "grad": lambda x: grad(energy)(x),
    "vmap(grad)": lambda x: vmap(grad(lambda a: a.sin() * a))(x),
    "jacrev": lambda x: jacrev(torch.sin)(x),
    "hessian": lambda x: hessian(energy)(x),
    "jvp": lambda x: jvp(torch.sin, (x,), (x,))[1],
    "pullback": lambda x: vjp(torch.sin, x)[1](x)[0],
    "pushforward": lambda x: linearize(torch.sin, x)[1](x),
}


@pytest.mark.parametrize("name", CALLS)
def test_a_transform_breaks_the_graph_of_a_compiled_function(name):
    graphs = []

    def backend(module, inputs):
        graphs.append(module.code)
        return module.forward

    def f(x):
        return CALLS[name](x * 2) + x.sum()

    x = randn(3)
    assert_same(torch.compile(f, backend=backend)(x), f(x))
    assert len(graphs) == 2  # before and after: nothing of the transform is in a graph


@pytest.mark.parametrize("name", CALLS)
def test_with_fullgraph_it_is_an_error_that_says_so(name):
    with pytest.raises(torch._dynamo.exc.Unsupported, match="torch_tower: transforms are not compiled"):
        torch.compile(lambda x: CALLS[name](x) + 1, backend="eager", fullgraph=True)(randn(3))


def test_a_transformed_function_that_is_compiled_runs_as_it_is():
    x = randn(3)
    assert_same(torch.compile(vmap(torch.sin), backend="eager")(x), x.sin())
    with pytest.raises(RuntimeError, match="found no compiled frames"):
        torch.compile(vmap(torch.sin), backend="eager", fullgraph=True)(x)


@pytest.mark.parametrize("transform", [vmap, grad, jacrev, lambda f: lambda x: jvp(f, (x,), (x,))[1]])
def test_a_compiled_function_runs_eagerly_inside(transform):
    calls = []

    def backend(module, inputs):
        calls.append(module)
        return module.forward

    def f(x):
        return x.sin() * x

    x = torch.tensor(0.5) if transform is grad else randn(3)
    compiled = torch.compile(f, backend=backend)
    assert_same(transform(compiled)(x), transform(f)(x))
    assert_same(transform(lambda x: compiled(x) * 2)(x), transform(lambda x: f(x) * 2)(x))
    assert not calls
    assert_same(compiled(x), f(x))
    assert len(calls) == 1
    assert_same(transform(compiled)(x), transform(f)(x))  # what was compiled for plain tensors is not taken


def test_fullgraph_inside_is_an_error_that_says_where():
    compiled = torch.compile(torch.nn.Tanh(), backend="eager", fullgraph=True)
    with pytest.raises(RuntimeError, match="inside of a transform of torch_tower"):
        vmap(compiled)(randn(3))
    assert_same(compiled(torch.ones(2)), torch.ones(2).tanh())


def test_a_transform_of_a_compiled_function_is_not_taken_for_the_compiled_function():
    x = randn(3)
    f = vmap(grad(torch.compile(lambda a: a.sin(), backend="eager")))
    assert_same(torch.compile(lambda x: f(x) + 0, backend="eager")(x), x.cos())
    assert_same(torch.compile(f, backend="eager")(x), x.cos())


def test_explain_is_not_compiled(capsys):
    assert_same(
        torch.compile(torch_tower.explain(vmap(torch.sin)), backend="eager")(torch.ones(2)), torch.ones(2).sin()
    )
    assert "aten::sin" in capsys.readouterr().out
