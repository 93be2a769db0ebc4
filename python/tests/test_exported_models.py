"""Exported models of odd signatures and graphs. Oracle: the modules themselves, with Python's own branches and loops,
and PyTorch's autograd."""

import pytest
import torch
import torch_tower
from torch.utils import _pytree as pytree
from torch_tower import compile, grad, jet, jvp, vmap

pytestmark = pytest.mark.cpu("weights are loaded to the CPU")
exporting = torch.compiler.is_exporting
AUTO = {0: torch.export.Dim.AUTO}


def rows(*shape):
    return torch.randn(*shape, dtype=torch.float64)


class Aliases(torch.nn.Module):
    """Results that are each other, an argument, views, and no tensors."""

    def forward(self, x, *, scale):
        y = x.sin() * scale
        return y, y, x, y.view(3, 1), [None, 5, "text", x[1:]]


class SizesOfTwo(torch.nn.Module):
    """The larger and the smaller of two sizes, and quotients of negative ones."""

    def forward(self, x, y):
        n, m = x.shape[0], y.shape[0]
        largest, least = torch.sym_max(n, m), torch.sym_min(n, m)
        whole = torch.zeros(largest, 3, dtype=x.dtype) + x.sum(0)
        return whole, x[:least] * y[:least], (n - m) // 2 + x.sum() * ((m - 2 * n) // 3), (n - m) % 5


class Writes(torch.nn.Module):
    """Writes to copies, through views and at places."""

    def forward(self, x, places):
        y = x.clone()
        y[1:].mul_(x[:-1])
        y[places] = x.sum() * y[0].clone()
        return y.sin()


class Waves(torch.nn.Module):
    def forward(self, x):
        z = torch.fft.rfft(x) * (1 + 2j)
        return z.real * z.abs(), torch.view_as_real(z * z.conj()).sum(-1), torch.fft.irfft(z * 1j, n=3)


class WholeNumbers(torch.nn.Module):
    """At the ends of 64 bits, and quotients of negative ones."""

    def forward(self, n, x):
        least = -9223372036854775807 - 1
        return n * 0 + 9223372036854775807, n * 0 + least, n // -2, n % -2, x * (n // -2).sum()


class BranchInBranch(torch.nn.Module):
    def forward(self, x):
        def inner(y):
            return choose(y[0] > 0.3, lambda v: v.exp(), lambda v: v * v, y)

        return choose(x.sum() > 0, inner, lambda v: v.cos() + v, x)


class BranchInScan(torch.nn.Module):
    def forward(self, xs):
        def step(carry, x):
            after = choose(carry.sum() > 0, lambda c, e: c * e + 1, lambda c, e: c + e.sin(), carry, x)
            return after, after.clone() * 2

        carry = torch.full((3,), 0.1, dtype=xs.dtype)
        if exporting():
            from torch._higher_order_ops.scan import scan

            return scan(step, carry, xs)
        outs = []
        for x in xs:
            carry, out = step(carry, x)
            outs.append(out)
        return carry, torch.stack(outs)


def choose(predicate, when_true, when_false, *operands):
    if exporting():
        return torch.cond(predicate, when_true, when_false, operands)
    return when_true(*operands) if predicate else when_false(*operands)


CASES = [
    # module, how arguments are drawn (of sizes, where these vary), keyword arguments, sizes
    (Aliases, lambda n: (rows(3),), {"scale": 2.5}, None),
    (SizesOfTwo, lambda n: (rows(n[0], 3), rows(n[1], 3)), {}, [(6, 4), (3, 8), (5, 2)]),
    (Writes, lambda n: (rows(4), torch.tensor([2, 3])), {}, None),
    (Waves, lambda n: (rows(3),), {}, None),
    (WholeNumbers, lambda n: (torch.tensor([1, -2, 3]), rows(3)), {}, None),
    (BranchInBranch, lambda n: (rows(3),), {}, None),
    (BranchInScan, lambda n: (rows(5, 3),), {}, None),
]


def same(got, expected):
    got, expected = pytree.tree_leaves(got), pytree.tree_leaves(expected)
    assert len(got) == len(expected)
    for g, e in zip(got, expected):
        if isinstance(e, torch.Tensor):
            torch.testing.assert_close(g, e)
        else:
            assert type(g) is type(e) and g == e


@pytest.mark.parametrize(("module", "draw", "kwargs", "sizes"), CASES, ids=[case[0].__name__ for case in CASES])
def test_it_is_the_module_under_all_transforms(tmp_path, module, draw, kwargs, sizes):
    torch.manual_seed(0)
    module = module()
    path = tmp_path / "model.pt2"
    first = draw(sizes[0] if sizes else None)
    shapes = tuple(AUTO for _ in first) if sizes else None
    torch.export.save(torch.export.export(module, first, kwargs, dynamic_shapes=shapes), path)
    model = torch_tower.load_exported(path)

    for args in [draw(n) for n in sizes or [None, None]]:
        same(model(*args, **kwargs), module(*args, **kwargs))
        place = next(i for i, a in enumerate(args) if a.is_floating_point())

        def loss(f, args=args, place=place):
            def of_one(x):
                leaves = pytree.tree_leaves(f(*args[:place], x, *args[place + 1 :], **kwargs))
                floats = [t for t in leaves if isinstance(t, torch.Tensor) and t.is_floating_point()]
                return sum(
                    (t * (torch.arange(t.numel()).reshape(t.shape) + k).cos()).sum() for k, t in enumerate(floats)
                )

            return of_one

        def derivatives(x, v):
            x = x.detach().requires_grad_()
            (gradient,) = torch.autograd.grad(loss(module)(x), x, create_graph=True)
            product = torch.zeros_like(x)
            if gradient.requires_grad:
                (product,) = torch.autograd.grad((gradient * v).sum(), x)
            return gradient.detach(), product

        x, v = args[place], torch.randn_like(args[place])
        gradient, product = derivatives(x, v)
        of_model = grad(loss(model))
        torch.testing.assert_close(of_model(x), gradient)
        torch.testing.assert_close(jvp(loss(model), (x,), (v,))[1], (gradient * v).sum())
        torch.testing.assert_close(jvp(of_model, (x,), (v,))[1], product)
        torch.testing.assert_close(grad(lambda y: (of_model(y) * v).sum())(x), product)
        series = jet(loss(model), (x,), ((v, torch.zeros_like(v)),))[1]
        torch.testing.assert_close(series[1], (product * v).sum())

        xs = torch.stack([x, 0.7 * x + 0.1, -x])
        expected = torch.stack([derivatives(x, v)[0] for x in xs])
        torch.testing.assert_close(vmap(of_model)(xs), expected)
        compiled = compile(vmap(of_model))
        for _ in range(2):
            torch.testing.assert_close(compiled(xs), expected)
        compiled.save(tmp_path / "compiled")
        torch.testing.assert_close(torch_tower.load(tmp_path / "compiled")(xs), expected)
