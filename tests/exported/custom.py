"""Models with calls that have another call in them: of custom operators that write to their arguments, that are called
for what they do, of a dtype, of a part that is compiled by itself. The tests register the same operators in C++. What
the models should give is computed with LibTorch's operators, where they are not exported."""

import torch
from torch import nn
from torch._higher_order_ops.hints_wrap import hints_wrapper
from torch._higher_order_ops.invoke_subgraph import mark_compile_region

exporting = torch.compiler.is_exporting


def define_operators():
    """The library, which has to be kept."""
    library = torch.library.Library("exported_lab", "FRAGMENT")
    library.define("bond(Tensor x, float k) -> Tensor")
    library.define("add_to(Tensor x, Tensor(a!) y, float scale=1.0) -> Tensor")
    library.define("set_all(Tensor x, Tensor(a!)[] ys) -> ()")
    library.define("absent(Tensor x) -> Tensor")
    for name, of in (
        ("bond", lambda x, k: torch.empty_like(x)),
        ("add_to", lambda x, y, scale=1.0: x.new_empty(())),
        ("set_all", lambda x, ys: None),
        ("absent", lambda x: torch.empty_like(x)),
    ):
        library.impl(name, lambda *_: 1 / 0, "CPU")
        torch.library.register_fake(f"exported_lab::{name}", of, lib=library)
    return library


def add_to(x, y, scale=1.0):
    if exporting():
        return torch.ops.exported_lab.add_to(x, y, scale)
    y.add_(x, alpha=scale)
    return x.sum()


class Bonds(nn.Module):
    def forward(self, x):
        if exporting():
            return torch.ops.exported_lab.bond(x, 1.5).sum()
        return ((1.5 * x).sin() * x).sum()


class Writes(nn.Module):
    """A tensor, a row of one, a part of one, a list, and a buffer are written to."""

    def __init__(self):
        super().__init__()
        self.register_buffer("total", torch.zeros(3))

    def forward(self, x):
        whole, rows, part = torch.zeros_like(x), torch.ones(2, 3, dtype=x.dtype), torch.zeros(6, dtype=x.dtype)
        sum = add_to(x * x, whole, 2.0)
        add_to(x[0].sin(), rows[1])
        add_to(x[1].cos(), part[2:5], -1.0)
        a, b = torch.zeros_like(x), torch.zeros_like(x)
        if exporting():
            torch.ops.exported_lab.set_all(x.exp(), [a, b])
        else:
            a, b = x.exp(), x.exp()
        add_to(x[2], self.total)
        return whole * sum + rows.square().sum() + part.sum() * part[3] + a * b + self.total


class Absent(nn.Module):
    def forward(self, x):
        return torch.ops.exported_lab.absent(x)


class Says(nn.Module):
    def forward(self, x):
        y = x * 2
        torch.ops.aten._print("tower was here")
        return y + 1


class Prints(nn.Module):
    def forward(self, x):
        torch._higher_order_ops.print("x is {}", x)
        return x + 1


class Wide(nn.Module):
    def forward(self, a, b, x):
        if exporting():
            out_dtype = torch.ops.higher_order.out_dtype
            product = out_dtype(torch.ops.aten.mm.default, torch.int32, a, b)
            return product, out_dtype(torch.ops.aten.mul.Scalar, torch.float64, x, 0.1)
        return a.to(torch.int32) @ b.to(torch.int32), x.double() * 0.1


class Hinted(nn.Module):
    def forward(self, x):
        def body(x):
            return x.sin() * 2

        return hints_wrapper(body, (x,), {}, hints={"pace": "slow"}) if exporting() else body(x)


@mark_compile_region
def region(x, y):
    return x.sin() * y


class Regions(nn.Module):
    def forward(self, x):
        if exporting():
            return region(region(x, x + 1), x) + 1
        return (x.sin() * (x + 1)).sin() * x + 1


def make_custom(folder, save, save_tensors):
    library = define_operators()
    x = torch.randn(4, 3, dtype=torch.float64)
    save(folder, "absent", Absent(), (x,))

    def save_both(name, module, options=None):
        save(folder, name, module, (x,), **(options or {}))
        program = torch.export.export(module, (x,), **(options or {}))
        torch.export.save(program.run_decompositions(), folder / f"{name}_inference_ir.pt2")
        by = x.clone().requires_grad_()
        out = module(by)
        cotangent = torch.randn_like(out)
        (gradient,) = torch.autograd.grad((out * cotangent).sum(), by)
        save_tensors(folder, name, {"arg": x, "out": out, "cot": cotangent, "grad": gradient})

    save_both("bonds", Bonds())
    save_both("writes_custom", Writes().double())
    save_both("says", Says())
    save_both("hinted", Hinted(), {"strict": True})
    save_both("regions", Regions(), {"strict": True})
    save(folder, "prints", Prints(), (x,))
    a, b = torch.randint(-128, 128, (4, 3), dtype=torch.int8), torch.randint(-128, 128, (3, 2), dtype=torch.int8)
    single = x.float()
    save(folder, "wide", Wide(), (a, b, single))
    product, scaled = Wide()(a, b, single)
    save_tensors(folder, "wide", {"a": a, "b": b, "x": single, "product": product, "scaled": scaled})
    return library
