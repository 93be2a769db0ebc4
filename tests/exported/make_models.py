#!/usr/bin/env python3
"""make_models.py FOLDER: exports the models that the tests read (families.py) into FOLDER, each as NAME.pt2, and what
Python's own modules and autograd give for them as NAME.pt, a dict of tensors:

  k.arg.i, k.out.i        arguments and results of example k, of three
  k.cot.i                 cotangents of the results: the loss is the sum of their products
  k.grad.i                gradients of the loss by argument i, where that is of floats
  k.param.NAME            the same by a parameter
  k.tan.i, k.jvp.i        directions of the arguments, and derivatives of result i along them
  k.hvp.i                 derivatives of the gradient by argument i along the directions
  n.batch.i, n.batch_out  the first argument, and the first result, for a batch of n

NAME.inference.pt2 is the same after run_decompositions(), and NAME.strict.pt2 what the strict exporter makes.

Some are also there in the layouts of older versions of torch, NAME.2_7.pt2 and NAME.2_8.pt2.

Then files that say what a reader has to do with signatures, buffers and weights, and with calls of operators that are
not LibTorch's own (custom.py)."""

import gc
import sys
import warnings
import zipfile
from functools import cache
from pathlib import Path

import torch
from custom import make_custom
from families import families
from torch import nn
from torch._export.serde.schema import SCHEMA_VERSION
from torch._export.serde.serialize import serialize
from torch._higher_order_ops.map import map as map_rows
from torch.autograd import forward_ad
from torch.export.pt2_archive._package import PT2ArchiveWriter
from torch.nn import functional as F
from torch.nn.attention import SDPBackend, sdpa_kernel
from zoo import zoo

EXAMPLES = 3
BATCHES = (0, 1, 7, 64)


def as_tuple(x):
    return x if isinstance(x, tuple) else (x,)


def gradients(of, by, **options):
    found = torch.autograd.grad(of, by, allow_unused=True, **options)
    return [torch.zeros_like(x) if g is None else g for x, g in zip(by, found)]


def forward(module, args, tangents):
    """Derivatives of the results along tangents of some arguments, by dual numbers."""
    with forward_ad.dual_level():
        duals = [forward_ad.make_dual(a.detach(), tangents[i]) if i in tangents else a for i, a in enumerate(args)]
        found = [forward_ad.unpack_dual(out) for out in as_tuple(module(*duals))]
        return [torch.zeros_like(f.primal) if f.tangent is None else f.tangent for f in found]


def example(module, draw):
    """What an example's file has, without the number."""
    saved = {}
    args = [a.requires_grad_() if a.is_floating_point() else a for a in draw()]
    differentiated = [(i, a) for i, a in enumerate(args) if a.requires_grad]
    by = [a for _, a in differentiated]
    outs = as_tuple(module(*args))
    cots = [torch.randn_like(out).detach().requires_grad_() for out in outs]
    loss = sum((out * cot).sum() for out, cot in zip(outs, cots))
    parameters = dict(module.named_parameters())
    for name, g in zip(parameters, gradients(loss, list(parameters.values()), retain_graph=True)):
        saved[f"param.{name}"] = g
    grads = gradients(loss, by, create_graph=True)
    tangents = [torch.randn_like(a) for a in by]
    inner = sum((g * t).sum() for g, t in zip(grads, tangents))
    try:
        pushed = forward(module, args, dict(zip((i for i, _ in differentiated), tangents)))
    except NotImplementedError:
        # The pullback is linear in the cotangents: its derivative by them, along tangents, is the pushforward.
        pushed = gradients(inner, cots, retain_graph=True)
    products = gradients(inner, by) if inner.requires_grad else [torch.zeros_like(a) for a in by]
    for i, a in enumerate(args):
        saved[f"arg.{i}"] = a
    for i, (out, cot, p) in enumerate(zip(outs, cots, pushed)):
        saved.update({f"out.{i}": out, f"cot.{i}": cot, f"jvp.{i}": p})
    for (i, _), g, t, h in zip(differentiated, grads, tangents, products):
        saved.update({f"grad.{i}": g, f"tan.{i}": t, f"hvp.{i}": h})
    return saved


def save(folder, name, module, args, kwargs=None, **options):
    with torch.no_grad():
        args = tuple(a.detach().clone() if isinstance(a, torch.Tensor) else a for a in args)
    program = torch.export.export(module, args, kwargs, **options)
    torch.export.save(program, folder / f"{name}.pt2")
    return program


@cache
def decompositions():
    """Those that run_decompositions() takes by itself, which looks for them at each call."""
    return torch.export.default_decompositions().materialize()


def save_other_forms(folder, name, module, args, **options):
    program = torch.export.export(module, args, **options)
    torch.export.save(program.run_decompositions(decompositions()), folder / f"{name}.inference.pt2")
    torch.export.save(torch.export.export(module, args, strict=True, **options), folder / f"{name}.strict.pt2")


def save_as_before(folder, name, program):
    """In the layouts of older versions of torch, with what this one makes of a program: their schema's is 8, too."""
    parts = serialize(program)
    with zipfile.ZipFile(folder / f"{name}.2_7.pt2", "w") as archive:
        archive.writestr("serialized_exported_program.json", parts.exported_program)
        archive.writestr("serialized_state_dict.pt", parts.state_dict)
        archive.writestr("serialized_constants.pt", parts.constants)
        archive.writestr("serialized_example_inputs.pt", parts.example_inputs)
        archive.writestr("version", ".".join(str(n) for n in SCHEMA_VERSION))
        archive.writestr("extra_files/note", "read by nobody")
    with PT2ArchiveWriter(str(folder / f"{name}.2_8.pt2")) as archive:
        archive.write_bytes("models/model.json", parts.exported_program)
        archive.write_bytes("data/weights/model.pt", parts.state_dict)
        archive.write_bytes("data/constants/model.pt", parts.constants)
        archive.write_bytes("data/sample_inputs/model.pt", parts.example_inputs)


def save_tensors(folder, name, tensors):
    torch.save({key: t.detach().clone().contiguous() for key, t in tensors.items()}, folder / f"{name}.pt")


def make_family(folder, name, module, draw, batch):
    saved = {}
    for k in range(EXAMPLES):
        # Of the others the second derivative is missing.
        with sdpa_kernel(SDPBackend.MATH):
            saved.update({f"{k}.{key}": t for key, t in example(module, draw).items()})
    args = draw()
    shapes = tuple({batch: torch.export.Dim("batch")} if i == 0 else None for i in range(len(args)))
    shapes = None if batch is None else shapes
    save(folder, name, module, args, dynamic_shapes=shapes)
    save_other_forms(folder, name, module, args, dynamic_shapes=shapes)
    if batch is not None:
        for n in BATCHES:
            x = args[0][:1].expand(n, *args[0].shape[1:]) + torch.randn(n, *args[0].shape[1:])
            saved.update({f"{n}.batch": x, f"{n}.batch_out": as_tuple(module(x))[0]})
    save_tensors(folder, name, saved)


class Trees(nn.Module):
    def forward(self, x, pair, *, options, scale=2.0, mode="plus", nothing=None):
        y = x * scale + pair[0] * pair[1]
        if mode == "plus":
            y = y + options["a"]
        return {"sum": y, "rest": [x.shape[0], options["b"], None]}


class Training(nn.Module):
    def __init__(self):
        super().__init__()
        self.norm = nn.BatchNorm1d(3)
        self.register_buffer("own", torch.zeros(3), persistent=False)
        self.constant = torch.arange(3.0)

    def forward(self, x):
        self.own.add_(x.mean(0))
        return self.norm(x) + self.own + self.constant


class Shared(nn.Module):
    def __init__(self):
        super().__init__()
        both = torch.randn(4, 3)
        self.a = nn.Parameter(both[:2])
        self.b = nn.Parameter(both.t()[:, 1:])

    def forward(self, x):
        return (x @ self.a.t()).sum() + (self.b @ torch.ones(3, 1)).sum()


class Sizes(nn.Module):
    def forward(self, x, y):
        n, m = x.shape[0], y.shape[0]
        z = torch.cat([x, y]).reshape(3, -1, 2)
        return z.sum(0) * (n % 3) + (n * m) // 7 + torch.sym_float(n) / 2, y[: m - n]


class Writes(nn.Module):
    def forward(self, x):
        x.mul_(2)
        return x + 1


class Casts(nn.Module):
    def forward(self, x):
        return x.to(torch.float32).sum() + (x > 0).to(x.dtype).sum()


class Counts(nn.Module):
    def forward(self, x):
        n = x.nonzero().shape[0]
        torch._check(n <= x.shape[0])
        return torch.zeros(n) + x.sum()


class Products(nn.Module):
    def forward(self, rows, scale):
        return map_rows(lambda row, scale: row * scale, rows, scale)


class Autocast(nn.Module):
    def __init__(self):
        super().__init__()
        self.net = nn.Linear(3, 3)

    def forward(self, x):
        with torch.autocast("cpu", dtype=torch.bfloat16):
            y = self.net(x)
        return y.float() * 2


class BySize(nn.Module):
    def forward(self, x):
        return torch.cond(x.shape[0] > 3, lambda x: x.sin(), lambda x: x.cos(), (x,))


class Lists(nn.Module):
    def forward(self, x):
        ordered, places = x.sort(-1)
        return ordered.split([1, 2], -1)[1].sum(), x.max(0).values, places


class Times(nn.Module):
    def forward(self, x, n):
        return x * n + x.shape[0]


class ByParity(nn.Module):
    """A branch of Python's, of which the exporter takes one."""

    def forward(self, x, pair):
        return x.sin() if (x.shape[0] + pair[1].shape[0]) % 2 == 0 else x.cos()


class Dropout(nn.Module):
    def forward(self, x):
        return F.dropout(x, 0.5, True)


def make_subgraphs(folder):
    """What is not of a family: branches by sizes, lists of results, modes, random numbers."""
    x = torch.randn(4, 3)
    save(folder, "products", Products(), (x, x[0]))
    save(folder, "dropout", Dropout(), (x,))
    save(folder, "by_size", BySize(), (x,), dynamic_shapes=({0: torch.export.Dim("n", min=1, max=9)},))
    module = Autocast().requires_grad_(False)
    save(folder, "autocast", module, (x,))
    save_tensors(folder, "autocast", {"arg": x, "out": module(x)})
    save(folder, "lists", Lists(), (x,))
    auto = {0: torch.export.Dim.DYNAMIC}
    save(folder, "by_parity", ByParity(), (x, (x[1:], torch.randn(6, 3))), dynamic_shapes=(auto, (auto, auto)))
    save(folder, "times", Times(), (x, 3), dynamic_shapes=(None, torch.export.Dim.DYNAMIC))


def make_others(folder):
    x = torch.randn(4, 3)
    dim = torch.export.Dim
    # Different tensors: of one that is given twice, the exporter makes one argument.
    auto = {0: dim.AUTO}
    kwargs = {"options": {"a": x + 3, "b": x - 1}, "scale": 2.0, "mode": "plus", "nothing": None}
    shapes = {"options": {"a": auto, "b": auto}, "scale": None, "mode": None, "nothing": None}
    save(folder, "trees", Trees(), (x, (x + 1, x + 2)), kwargs,
         dynamic_shapes={"x": auto, "pair": (auto, auto), **shapes})  # fmt: skip

    for name, decompose in (("training", False), ("training_inference_ir", True)):
        module = Training()
        program = torch.export.export(module, (x,))
        if decompose:
            program = program.run_decompositions(decompositions())
        torch.export.save(program, folder / f"{name}.pt2")
        save_as_before(folder, name, program)
        saved = {"arg": x}
        for k in range(2):
            saved[f"{k}.out"] = module(x)
            saved.update({f"{k}.buffer.{key}": b.clone() for key, b in module.named_buffers()})
        save_tensors(folder, name, saved)

    module = Shared()
    save_as_before(folder, "shared", save(folder, "shared", module, (x,)))
    save_tensors(folder, "shared", {"arg": x, "out": module(x), "a": module.a, "b": module.b})

    n = dim("n", min=3, max=20)
    module, saved = Sizes(), {}
    save(folder, "sizes", module, (torch.randn(4, 2), torch.randn(8, 2)), dynamic_shapes=({0: n}, {0: 2 * n}))
    for k in (4, 6, 20):
        a, b = torch.randn(k, 2), torch.randn(2 * k, 2)
        out, rest = module(a, b)
        saved.update({f"{k}.a": a, f"{k}.b": b, f"{k}.out": out, f"{k}.rest": rest})
    save_tensors(folder, "sizes", saved)

    save(folder, "writes", Writes(), (x,))
    save(folder, "casts", Casts(), (x.double(),))
    save(folder, "counts", Counts(), (torch.tensor([1.0, 0, 2]),))


def main():
    folder = Path(sys.argv[1])
    warnings.simplefilter("ignore")
    # To look through what torch has in memory takes long, and all of this is gone in half a minute.
    gc.disable()
    torch.manual_seed(0)
    torch.set_default_dtype(torch.float64)
    installed, absent = zoo()
    for name in installed:
        (folder / f"{name}.absent").unlink(missing_ok=True)
    for name, why in absent.items():
        (folder / f"{name}.absent").write_text(why)
    for name, (module, draw, batch) in (families() | installed).items():
        try:
            make_family(folder, name, module, draw, batch)
        except Exception as e:
            raise RuntimeError(f"the family {name} could not be exported") from e
    torch.set_default_dtype(torch.float32)
    make_others(folder)
    make_subgraphs(folder)
    make_custom(folder, save, save_tensors)


if __name__ == "__main__":
    main()
