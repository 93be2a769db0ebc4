"""Compiled functions in files. Oracle: the function itself."""

import os
import subprocess
import sys

import pytest
import torch
import torch_tower
from support import assert_same, randn
from torch_tower import compile, grad, load, vmap


def energy(x):
    return ((x * x + 0.3).log().sin() * x + x.exp()).sum()


def test_a_loaded_function_gives_what_the_function_gives(tmp_path):
    f = compile(vmap(energy))
    for n in (8, 16):
        f(randn(n, 3))
    f.save(tmp_path / "f")
    loaded = load(tmp_path / "f")
    for n in (8, 100, 1, 0):
        x = randn(n, 3)
        for _ in range(2):
            assert_same(loaded(x), f(x))
    x = randn(8, 3)
    assert_same(grad(lambda x: loaded(x).sum())(x), grad(lambda x: f(x).sum())(x))
    with torch.no_grad():
        assert_same(loaded(x), f(x))
    assert loaded.graphs() == 2
    loaded.save(tmp_path / "again")
    assert_same(load(tmp_path / "again")(x), f(x))


def test_in_another_process_without_llvm(tmp_path):
    x = randn(50, 3)
    f = compile(vmap(energy))
    for _ in range(2):
        f(x)
    if "kernel 0" not in f.report():
        pytest.skip("LLVM is not installed")
    f.save(tmp_path / "f")
    torch.save((x, f(x)), tmp_path / "data")
    code = (
        "import sys, torch, torch_tower\n"
        f"f = torch_tower.load({str(tmp_path / 'f')!r})\n"
        f"x, y = torch.load({str(tmp_path / 'data')!r})\n"
        "assert torch.allclose(f(x), y) and torch.allclose(f(x), y)\n"
        "assert 'kernel 0' in f.report()\n"
    )
    path = os.pathsep.join(p for p in sys.path if p)
    environment = {**os.environ, "TOWER_LLVM": "/nowhere/libLLVM.so", "PYTHONPATH": path}
    subprocess.run([sys.executable, "-c", code], check=True, env=environment)


def test_static_parts_and_structures_are_kept(tmp_path):
    @compile
    def f(x, scale, *, how="sum"):
        y = x["a"] * scale + x["b"]
        return {"y": y, "total": (getattr(y, how)(), how), "n": 3}

    calls = [(2, "sum"), (2.0, "sum"), (2, "mean"), (float("nan"), "sum")]
    x = {"a": randn(3), "b": randn(3)}
    for scale, how in calls:
        f(x, scale, how=how)
    f.save(tmp_path / "f")
    loaded = load(tmp_path / "f")
    for scale, how in calls:
        x = {"a": randn(3), "b": randn(3)}
        found, expected = loaded(x, scale, how=how), f(x, scale, how=how)
        assert found["n"] == 3 and found["total"][1] == how
        assert torch.allclose(found["y"], expected["y"], equal_nan=True)
        assert torch.allclose(found["total"][0], expected["total"][0], equal_nan=True)
    with pytest.raises(RuntimeError, match="no graph for arguments of this structure"):
        loaded(x, 3, how="sum")
    with pytest.raises(RuntimeError, match="no graph for arguments of this structure"):
        loaded(x["a"], 2)
    with pytest.raises(RuntimeError, match=r"no graph for arguments Double \[4\]"):
        loaded({"a": randn(4), "b": randn(4)}, 2, how="sum")


@pytest.mark.cpu("only the CPU's tensors are stored")
def test_captured_tensors_are_stored_by_value(tmp_path):
    module = torch.nn.Sequential(torch.nn.Linear(3, 4), torch.nn.Tanh(), torch.nn.Linear(4, 1)).double()
    f = compile(vmap(module))
    x = randn(5, 3)
    with torch.no_grad():
        f(x)
    f.save(tmp_path / "f")
    expected = module(x).detach()
    with torch.no_grad():
        for p in module.parameters():
            p.zero_()
        assert_same(load(tmp_path / "f")(x), expected)


def test_what_cannot_be_saved_is_refused(tmp_path):
    f = compile(lambda x: x + 1)
    with pytest.raises(ValueError, match="no graph yet"):
        f.save(tmp_path / "f")
    g = compile(lambda x, how: how(x))
    g(randn(2), lambda x: x.sin())
    with pytest.raises(TypeError, match="cannot be pickled"):
        g.save(tmp_path / "g")
    h = compile(lambda x: torch_tower.cond(x.sum() > 0, lambda y: y + torch.rand_like(y), torch.cos, x))
    h(randn(2))
    with pytest.raises(RuntimeError, match="cond"):
        h.save(tmp_path / "h")
    assert not list(tmp_path.iterdir())


def test_files_that_are_altered_are_refused(tmp_path):
    f = compile(energy)
    f(randn(3))
    f.save(tmp_path / "f")
    whole = (tmp_path / "f").read_bytes()
    for i in range(0, len(whole), len(whole) // 40):
        for altered in (whole[:i], whole[:i] + bytes([whole[i] ^ 1]) + whole[i + 1 :]):
            (tmp_path / "g").write_bytes(altered)
            with pytest.raises(ValueError, match="cannot be loaded"):
                load(tmp_path / "g")


def test_fast_arithmetic_contracts(tmp_path):
    def rest(x, y, z):
        return (x * y - z) * 2

    x, y = randn(1000), randn(1000)
    strict, fast = compile(rest), compile(rest, math="fast", cache=tmp_path)
    for _ in range(2):
        assert torch.equal(strict(x, y, x * y), torch.zeros_like(x))
        found = fast(x, y, x * y)
    assert found.abs().max() < 1e-14
    if "kernel 0" in fast.report():
        assert (found != 0).sum() > 100
        assert len(list(tmp_path.glob("*.kernel"))) == 1
    with pytest.raises(ValueError, match="strict"):
        compile(rest, math="exact")


def test_only_ordinary_files_are_written_and_read(tmp_path):
    import socket

    f = torch_tower.compile(lambda x: (x * 2).sin() + x)
    x = torch.rand(8, dtype=torch.float64)
    f(x)
    target, link, dangling = tmp_path / "target", tmp_path / "link", tmp_path / "dangling"
    f.save(target)
    os.symlink(target, link)
    os.symlink(tmp_path / "new", dangling)
    for path in (link, dangling):
        f.save(path)
        assert path.is_symlink() and path.resolve().is_file()
        assert torch.equal(torch_tower.load(path)(x), f(x))
    os.mkfifo(tmp_path / "pipe")
    (tmp_path / "folder").mkdir()
    with socket.socket(socket.AF_UNIX) as listening:
        here = os.getcwd()
        os.chdir(tmp_path)  # such a name may not be long
        listening.bind("socket")
        os.chdir(here)
        for name in ("pipe", "folder", "socket"):
            before = (tmp_path / name).stat().st_ino
            with pytest.raises(ValueError, match="save: .* cannot be written: it is (a folder|no ordinary file)"):
                f.save(tmp_path / name)
            with pytest.raises(ValueError, match="load: .* cannot be loaded: it"):
                torch_tower.load(tmp_path / name)
            assert (tmp_path / name).stat().st_ino == before
