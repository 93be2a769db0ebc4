"""Taylor mode against torch.func's nested derivatives, and closed forms."""

import pytest
import torch
import torch.func
import torch_tower
from support import Cube, assert_same, randn


def f(p, x):
    return {"y": torch.tanh(p["w"] @ x) + p["b"], "z": (x.sum().exp() * p["b"].sum(),)}


def arguments():
    return {"w": randn(3, 2), "b": randn(3)}, randn(2)


def nested(order, func, x, v):
    """The k-th derivative of func(x + v t), by torch.func's nested jvp along t."""
    g = lambda t: func(x + v * t)
    for _ in range(order):
        g = (lambda g: lambda t: torch.func.jvp(g, (t,), (torch.ones_like(t),))[1])(g)
    return g(torch.zeros((), dtype=torch.float64))


def test_derivatives_of_trees():
    args, tangents = arguments(), arguments()
    found = torch_tower.derivatives_along(f, args, tangents, 3)
    assert_same(found[0], f(*args))
    along = lambda t: f({k: v + t * tangents[0][k] for k, v in args[0].items()}, args[1] + t * tangents[1])
    first = lambda t: torch.func.jvp(along, (t,), (torch.ones_like(t),))[1]
    second = lambda t: torch.func.jvp(first, (t,), (torch.ones_like(t),))[1]
    third = lambda t: torch.func.jvp(second, (t,), (torch.ones_like(t),))[1]
    zero = torch.zeros((), dtype=torch.float64)
    for k, derivative in enumerate((first, second, third), 1):
        assert_same(found[k], derivative(zero))


def test_jet_has_jaxs_signature_and_scaling():
    x, v, a = randn(3), randn(3), randn(3)
    y, (d1, d2) = torch_tower.jet(torch.sin, (x,), ((v, a),))
    assert_same((y, d1, d2), (x.sin(), x.cos() * v, x.cos() * a - x.sin() * v * v))
    y, (c1, c2) = torch_tower.jet(torch.sin, (x,), ((v, a / 2),), factorial_scaled=False)
    assert_same((c1, c2), (d1, d2 / 2))
    y, (d1, d2) = torch_tower.jet(lambda x, y: x * y, (x, v), ((a, None), (None, a)))
    assert_same((d1, d2), (a * v, x * a))


def test_jet_of_trees_has_lists_for_tensors():
    p, x = arguments()
    value, series = torch_tower.jet(f, (p, x), ([None, p], [x, None]))
    assert isinstance(series["y"], list) and len(series["z"][0]) == 2
    assert_same(value, f(p, x))
    assert_same(series["y"][0], torch.func.jvp(lambda x: f(p, x)["y"], (x,), (x,))[1])


def test_inside_and_around_the_other_transforms():
    x, v = randn(4, 3), randn(4, 3)
    g = lambda x: (x.sin() * x.prod()).exp()
    along = lambda x, v: torch_tower.derivatives_along(g, (x,), (v,), 4)[4]
    expected = torch.stack([nested(4, g, a, b) for a, b in zip(x, v)])
    assert_same(torch_tower.vmap(along)(x, v), expected)
    loss = lambda x: (torch_tower.laplacian(g)(x)[1] ** 2).sum()
    trace = lambda x: (torch.func.hessian(g)(x).diagonal(dim1=1, dim2=2).sum(-1) ** 2).sum()
    assert_same(torch_tower.vmap(torch_tower.grad(loss))(x), torch.func.vmap(torch.func.grad(trace))(x))


def test_laplacian():
    p, x = arguments()
    value, sums = torch_tower.laplacian(f, 1)(p, x)
    assert_same(value, f(p, x))
    hessian = torch.func.hessian(f, 1)(p, x)
    assert_same(sums, {"y": hessian["y"].diagonal(dim1=1, dim2=2).sum(-1), "z": (hessian["z"][0].trace(),)})
    factor = randn(4, 2)
    weighted = torch_tower.laplacian(f, 1, directions=factor, chunk_size=3)(p, x)[1]["z"][0]
    assert_same(weighted, (factor.T @ factor * hessian["z"][0]).sum())
    g = lambda x: (-(x * x).sum()).exp()
    square = (x * x).sum()  # Δ exp(-r²) = (4r² - 2n) exp(-r²)
    assert_same(torch_tower.laplacian(g)(x)[1], (4 * square - 4) * g(x))
    # and once more: (16r⁴ - 64r² + 32) exp(-r²) in two dimensions
    assert_same(torch_tower.biharmonic(g)(x), (16 * square**2 - 64 * square + 32) * g(x))


def test_functions_with_rules_of_their_own_and_loops():
    x, v = randn(3), randn(3)
    found = torch_tower.derivatives_along(Cube.apply, (x,), (v,), 4)
    assert_same(found, [x**3, 3 * x * x * v, 6 * x * v * v, 6 * v**3, 0 * x])
    assert_same(torch_tower.laplacian(lambda x: Cube.apply(x).sum())(x)[1], 6 * x.sum())
    second = lambda x, v: torch_tower.derivatives_along(Cube.apply, (x,), (v,), 2)[2]
    assert_same(torch_tower.vmap(second)(x, v), 6 * x * v * v)
    assert_same(torch_tower.grad(lambda x: second(x, v).sum())(x), 6 * v * v)
    loop = lambda x: torch_tower.while_loop(lambda s: s.sum() < 10, lambda s: s * 1.5 + s.sin(), x)

    def unrolled(x):
        while x.sum() < 10:
            x = x * 1.5 + x.sin()
        return x

    x = x.abs() + 0.1
    along = torch_tower.derivatives_along(loop, (x,), (v,), 3)
    assert_same(along, [unrolled(x), *(nested(k, unrolled, x, v) for k in (1, 2, 3))])


def test_backward_goes_through_the_laplacian_of_a_module():
    module = torch.nn.Sequential(torch.nn.Linear(2, 8), torch.nn.GELU(), torch.nn.Linear(8, 1)).double()
    x = randn(2)
    f = lambda x: module(x).sum()
    (torch_tower.laplacian(f)(x)[1] ** 2).backward()
    weight = module[0].weight
    loss = lambda w: torch.func.hessian(lambda x: torch.func.functional_call(module, {"0.weight": w}, x).sum())(x)
    assert_same(weight.grad, torch.func.grad(lambda w: loss(w).trace() ** 2)(weight.detach()))


def test_compiled_functions():
    g = lambda x: (x.sin() * x.prod()).exp().sum()
    compiled = torch_tower.compile(lambda x: torch_tower.vmap(torch_tower.laplacian(g))(x)[1])
    for n in (4, 4, 7):
        x = randn(n, 3)
        assert_same(compiled(x), torch.func.vmap(torch.func.hessian(g))(x).diagonal(dim1=1, dim2=2).sum(-1))
    x, v = randn(3), randn(3)
    along = torch_tower.derivatives_along(torch_tower.compile(g), (x,), (v,), 3)
    assert_same(along[3], nested(3, g, x, v))


def test_differential_operators():
    a, b = 0.3, 1.7
    u = lambda p: torch.exp(-a * p["t"]) * torch.sin(b * p["x"][0]) * p["x"][1] ** 3
    p = {"t": randn(()), "x": randn(2)}
    heat = torch_tower.differential_operator([(1, (0,)), (-1.0, (1, 1)), (0.5, [2, 1, 2]), (2, ())])
    mixed = 3 * p["x"][1] * b * torch.exp(-a * p["t"]) * torch.cos(b * p["x"][0])
    assert_same(heat(u)(p), (b * b - a + 2) * u(p) + mixed)
    # Euler's equation, with coefficients that depend on the position.
    euler = lambda x: torch_tower.differential_operator([(x * x, (0, 0)), (x, (0,))])(lambda x: x**2.5)(x)
    xs = torch.linspace(0.5, 2, 4, dtype=torch.float64)
    assert_same(torch_tower.vmap(euler)(xs), 6.25 * xs**2.5)
    assert_same(torch_tower.grad(euler)(xs[0]), 6.25 * 2.5 * xs[0] ** 1.5)
    assert_same(torch_tower.compile(torch_tower.vmap(euler))(xs), 6.25 * xs**2.5)


def test_estimates_by_directions():
    x, vs = randn(3), randn(4, 3)
    g = lambda x: (x.sin() * x.prod()).exp()
    h = torch.func.hessian(lambda x: g(x).sum())(x)
    value, estimate = torch_tower.stochastic_laplacian(lambda x: g(x).sum(), vs)(x)
    assert_same(value, g(x).sum())
    assert_same(estimate, torch.einsum("si,ij,sj->s", vs, h, vs).mean())
    fourth = torch.stack([nested(4, g, x, v) for v in vs]).mean(0) / 3
    assert_same(torch_tower.stochastic_biharmonic(g, vs, chunk_size=3)(x), fourth)
    # Of x₀x₁ the mixed derivative is one: the estimate is v₀v₁ · ½ (v·∂)² x₀x₁.
    mixed = torch_tower.differential_operator([(1, (0, 1))], normal_directions=vs)(lambda x: x[0] * x[1])
    assert_same(mixed(x), (vs[:, 0] * vs[:, 1]).square().mean())


@pytest.mark.parametrize(
    "call, message",
    [
        (lambda x: torch_tower.jet(torch.sin, x, (x,)), "jet: Expected primals to be a tuple"),
        (lambda x: torch_tower.jet(torch.sin, (x,), ()), "1 primals, so series must be a tuple of 1 lists"),
        (lambda x: torch_tower.jet(torch.sin, (x,), ([],)), "at least one"),
        (lambda x: torch_tower.jet(torch.sin, (x,), ([x, (x,)],)), "The series must have the tree of its primal"),
        (lambda x: torch_tower.jet(torch.sin, (x,), ([x[:1]],)), "expected the shape of"),
        (lambda x: torch_tower.derivatives_along(torch.sin, (x,), (x,), 0), "order is 0; it must be at least one"),
        (lambda x: torch_tower.laplacian(torch.sin)(x.long()), "derivatives exist only for floating point"),
        (lambda x: torch_tower.laplacian(torch.sin)(x.cfloat()), "Pass real and imaginary part"),
        (lambda x: torch_tower.laplacian(torch.sin, chunk_size=0), "chunk_size is 0"),
        (lambda x: torch_tower.laplacian(torch.sin, directions=1)(x), "directions must be a tensor or a tree"),
        (lambda x: torch_tower.laplacian(torch.sin, directions=x)(x), "expected the shape of"),
        (lambda x: torch_tower.differential_operator([1]), "term 0 is 1; it must be a pair"),
        (lambda x: torch_tower.differential_operator([(1, ("x",))]), "elements are named by ints"),
        (lambda x: torch_tower.differential_operator([(1j, (0,))]), "coefficient of term 0 is a complex"),
        (lambda x: torch_tower.differential_operator([(x, (0,))])(torch.sin)(x), "must be a real number without"),
        (lambda x: torch_tower.differential_operator([(1, (3,))])(torch.sin)(x), "there are 3 elements"),
        (lambda x: torch_tower.stochastic_laplacian(torch.sin, x[:0])(x), "stochastic_laplacian: "),
        (lambda x: torch_tower.stochastic_biharmonic(torch.sin, [1])(x), "stochastic_biharmonic: directions must be"),
    ],
)
def test_what_does_not_fit_is_an_error(call, message):
    with pytest.raises((RuntimeError, TypeError, ValueError), match=None) as found:
        call(randn(3))
    assert message in str(found.value)
