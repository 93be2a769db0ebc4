"""Importing the package changes nothing of torch: not what plain expressions give, and not what torch's names are."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
import torch
import torch_tower
from support import assert_same
from torch_tower import grad, vmap

HERE = Path(__file__).parent


def run(*arguments: str) -> str:
    """What another process prints, which has the paths of this one."""
    environment = os.environ | {"PYTHONPATH": os.pathsep.join(sys.path), "TORCH_COMPILE_DISABLE": "0"}
    return subprocess.run(
        [sys.executable, *arguments], env=environment, check=True, stdout=subprocess.PIPE, text=True
    ).stdout


def test_plain_expressions_give_what_they_give_without_the_import():
    program = str(HERE / "plain_expressions.py")
    without, with_import = json.loads(run(program)), json.loads(run(program, "--import"))
    assert len(without) > 1000
    assert with_import == without


SNAPSHOT = """
import sys, warnings
import torch, torch.func, torch.fx, torch.library, torch.overrides, torch.utils.checkpoint, torch.nested, torch.masked
import torch._functorch.apis, torch._functorch.eager_transforms

def attributes():
    found = {}
    for name, module in list(sys.modules.items()):
        if name.split(".")[0] != "torch" or not hasattr(module, "__dict__"):
            continue
        for key, value in list(vars(module).items()):
            found[name, key] = value
            if isinstance(value, type) and value.__module__.split(".")[0] == "torch":
                for attribute, of_class in list(vars(value).items()):
                    found[value, attribute] = of_class
    return found

before = attributes()
types = {key: type(value) for key, value in before.items()}
import torch_tower

@torch.library.custom_op("snapshot::twice", mutates_args=())
def twice(x: torch.Tensor) -> torch.Tensor:
    return x * 2

def f(x):
    repr(x)
    return (x[0] * x.new_tensor([1.0, 2.0])).sum()

with warnings.catch_warnings():
    warnings.simplefilter("ignore")
    torch_tower.vmap(f)(torch.ones(3, 2))
    torch_tower.jacrev(torch.sin)(torch.ones(2))
after = attributes()
print(len(before))
for key, value in before.items():
    if key not in after:
        print("gone", key)
    elif after[key] is not value or type(after[key]) is not types[key]:
        print("changed", key)
print("dynamo" if "torch._dynamo" in sys.modules else "no dynamo")
"""


def test_every_attribute_of_torch_is_the_object_that_it_was():
    count, *changes = run("-c", SNAPSHOT).splitlines()
    assert int(count) > 20000
    assert changes == ["no dynamo"]


PROCESS = """
import ctypes, locale, os, re, sys, warnings
import torch, torch.func

def environment():
    strings, variables = ctypes.POINTER(ctypes.c_char_p).in_dll(ctypes.CDLL(None), "environ"), []
    while strings[len(variables)]:
        variables.append(strings[len(variables)])
    return sorted(variables)

def state():
    with open("/proc/self/status") as file:
        status = dict(re.findall(r"(\\w+):\\s*(.*)", file.read()))
    smallest = torch.tensor(5e-324, dtype=torch.float64)
    return {
        "signal handlers": [status[kind] for kind in ("SigBlk", "SigIgn", "SigCgt")],
        "environment": environment(),
        "locale": locale.setlocale(locale.LC_ALL),
        "subnormal numbers": bool(smallest * 1 > 0),
        "threads for operators": (torch.get_num_threads(), torch.get_num_interop_threads()),
        "default type": torch.get_default_dtype(),
        "modes": (torch.is_grad_enabled(), torch.is_inference_mode_enabled(), torch.is_autocast_enabled("cpu")),
        "autocast's cache": torch.is_autocast_cache_enabled(),
        "autograd's threads": torch._C._is_multithreading_enabled(),
        "deterministic": torch.are_deterministic_algorithms_enabled(),
        "torchscript optimizes": torch._C._get_graph_executor_optimize(),
        "hooks": (sys.excepthook, sys.displayhook, sys.unraisablehook, list(sys.meta_path), list(sys.path_hooks)),
        "warnings": list(warnings.filters),
    }, status["Threads"]

def tell(when, before, after):
    for name in before:
        if before[name] != after[name]:
            print(when, "changed:", name, before[name], after[name])

state()
before, threads = state()
import torch_tower
imported, threads_then = state()
tell("the import", before, imported)
if threads_then != threads:
    print("the import changed: threads", threads, threads_then)
torch_tower.vmap(torch_tower.grad(lambda x: (x.sin() * x).sum()))(torch.ones(3, 2))
torch_tower.compile(torch_tower.vmap(lambda x: x.sin() * x))(torch.ones(3, 2))
tell("a transform", before, state()[0])
print("done")
"""


def test_importing_and_running_leave_the_process_as_it_was():
    assert run("-c", PROCESS).splitlines() == ["done"]


def test_a_build_says_that_cmake_finds_no_library_in_it():
    # What a wheel prints is held by tests/package.
    told = subprocess.run(
        [sys.executable, "-m", "torch_tower", "--cmake-prefix-path"],
        env=os.environ | {"PYTHONPATH": os.pathsep.join(sys.path)},
        capture_output=True,
        text=True,
    )
    assert told.returncode == 1 and told.stdout == ""
    assert f"{Path(torch_tower.__file__).parent} has no C++ library" in told.stderr


class Marked(torch.Tensor):
    """Made after the import."""


def test_a_class_made_after_the_import_is_indexed_by_mapped_numbers_as_torchs_own():
    table = torch.arange(6.0).reshape(3, 2)
    expected = table[[2, 0]]
    for made in (table, table.as_subclass(Marked)):
        assert_same(vmap(lambda i: made[i] * 1, 0)(torch.tensor([2, 0])).as_subclass(torch.Tensor), expected)


def test_who_replaces_a_method_of_tensors_gets_its_own_inside_of_a_transform(monkeypatch):
    monkeypatch.setattr(torch.Tensor, "__repr__", lambda self: "theirs")
    monkeypatch.setattr(torch.Tensor, "numpy", lambda self: "theirs")
    texts = []
    vmap(lambda x: (texts.extend([repr(x), str([x]), x.numpy()]), x)[1])(torch.ones(2))
    assert texts == ["theirs", "[theirs]", "theirs"]


@pytest.mark.cpu("the texts name no device")
def test_replaced_printing_can_be_taken_back(monkeypatch):
    with monkeypatch.context() as patch:
        patch.setattr(torch.Tensor, "__repr__", lambda self: "theirs")
    texts = []
    vmap(lambda x: (texts.extend([repr(x), str(x), str([x])[1:-1]]), x)[1])(torch.ones(2))
    assert texts == ["BatchedTensor(level=1, bdim=0, value=tensor([1., 1.]))"] * 3


def test_replaced_indexing_can_be_taken_back():
    # In a process of its own: by CPython a class whose __getitem__ was replaced is a sequence ever after, which
    # torch.tensor takes a tensor for, then.
    program = """
import torch
from torch_tower import vmap
own = torch.Tensor.__getitem__
pick = vmap(lambda i: torch.arange(3.0)[i])
torch.Tensor.__getitem__ = lambda self, index: self * 0
assert pick(torch.tensor([2, 0])).tolist() == [[0, 0, 0], [0, 0, 0]]
torch.Tensor.__getitem__ = own
assert pick(torch.tensor([2, 0])).tolist() == [2, 0]
"""
    run("-c", program)


@pytest.mark.parametrize("method", ["__getitem__", "__setitem__"])
def test_explicit_calls_of_the_indexing_methods_know_mapped_numbers(method):
    def f(x, i):
        if method == "__getitem__":
            return torch.Tensor.__getitem__(x, i)
        x = x.clone()
        x.__setitem__(i, 5.0)
        return x

    x, i = torch.arange(6.0).reshape(2, 3), torch.tensor([2, 0])
    assert_same(vmap(f)(x, i), torch.stack([f(a, int(b)) for a, b in zip(x, i)]))


def test_a_subclass_with_a_torch_function_hears_of_mapped_numbers():
    heard = []

    class Hearing(torch.Tensor):
        @classmethod
        def __torch_function__(cls, func, types, args=(), kwargs=None):
            heard.append(func)
            return super().__torch_function__(func, types, args, kwargs or {})

    table = torch.arange(3.0).as_subclass(Hearing)
    vmap(lambda i: table[i].as_subclass(torch.Tensor))(torch.tensor([2, 0]))
    assert torch.Tensor.__getitem__ in heard


def test_a_custom_operator_defined_inside_is_known_to_the_next_transform():
    def f(x):
        @torch.library.custom_op("test_import::cubed", mutates_args=())
        def cubed(x: torch.Tensor) -> torch.Tensor:
            return x**3

        cubed.register_autograd(
            lambda ctx, g: g * 3 * ctx.saved_tensors[0] ** 2,
            setup_context=lambda ctx, inputs, output: ctx.save_for_backward(inputs[0]),
        )
        return grad(lambda y: grad(cubed)(y))(x)

    x = torch.tensor(2.0)
    assert_same(f(x), 6 * x)
    assert_same(grad(f)(x), torch.tensor(6.0))
