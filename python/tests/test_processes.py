"""Named axes and processes: against the same over the batch dimension, and one process with the whole batch."""

import os
import pathlib
import re
import socket
import subprocess
import sys
import textwrap

import pytest
import torch
import torch_tower
from torch_tower import grad, vmap

LAUNCH = os.path.join(os.path.dirname(__file__), "..", "..", "script", "launch")


def test_collectives_are_code_over_the_batch_dimension():
    x = torch.randn(4, 3, dtype=torch.float64)

    def f(e):
        total = torch_tower.psum({"e": e, "s": e.sin()}, "batch")
        moved = torch_tower.ppermute(e, "batch", [(0, 1), (1, 2), (2, 3), (3, 0)])
        index = torch_tower.axis_index("batch") / torch_tower.axis_size("batch")
        everyone = torch_tower.all_gather(e, "batch").cumsum(0)[-1]
        return total["e"] * total["s"] + moved - torch_tower.pmax(e, "batch") * index + everyone

    expected = (x.sum(0) * x.sin().sum(0) + x.roll(1, 0) - x.amax(0) * torch.arange(4)[:, None] / 4 + x.sum(0))
    torch.testing.assert_close(vmap(f, axis="batch")(x), expected)


def test_gradients_inside_count_every_examples_loss():
    x = torch.tensor([1.0, 2.0, 5.0])
    inside = vmap(grad(lambda e: torch_tower.psum(e.square(), "batch")), axis="batch")
    torch.testing.assert_close(inside(x), 3 * 2 * x)


def test_an_axis_that_is_not_there_is_named():
    with pytest.raises(ValueError, match="psum: there is no axis 'model' here; the axes of running vmaps are 'data'"):
        vmap(lambda e: torch_tower.psum(e, "model"), axis="data")(torch.zeros(2))


PROGRAM = """
    import torch, torch.distributed as dist, torch_tower
    from torch_tower import grad, vmap

    def check(mesh):
        x, w = torch.linspace(-1, 1, 15, dtype=torch.float64).view(5, 3), torch.ones(3, dtype=torch.float64)
        def loss(across):
            one = lambda w, e: torch_tower.pmean(((w * e).sin().sum() - 1) ** 2, "data")
            return vmap(one, in_dims=(None, 0), out_dims=None, axis="data", across=across)
        part = torch_tower.part_of(mesh, "data", x)
        torch.testing.assert_close(grad(loss(mesh))(w, part), grad(loss(None))(w, x))
        torch.testing.assert_close(torch_tower.gather_across(mesh, "data", part), x)
        assert mesh.axes == {"data": 2}, mesh.axes

    check(torch_tower.Mesh.from_environment({"data": -1}, timeout=20))
    import os
    os.environ["MASTER_PORT"] = str(int(os.environ["MASTER_PORT"]) + 1)
    dist.init_process_group("gloo")
    check(torch_tower.Mesh.from_group(dist.group.WORLD, {"data": 2}, timeout=20))
    mesh = dist.init_device_mesh("cpu", (2,), mesh_dim_names=("data",))
    check(torch_tower.Mesh.from_device_mesh(mesh, timeout=20))
    dist.destroy_process_group()
    print("well")
"""


def reach_each_other() -> bool:
    """Not where there is no network at all, not even the loopback interface."""
    with socket.create_server(("127.0.0.1", 0)) as listener:
        try:
            socket.create_connection(listener.getsockname(), timeout=5).close()
        except OSError:
            return False
    return True


of_several = pytest.mark.skipif(not reach_each_other(), reason="no loopback interface, so processes cannot meet")


@of_several
def test_processes_give_what_one_gives(tmp_path):
    program = tmp_path / "program.py"
    program.write_text(textwrap.dedent(PROGRAM))
    ended = subprocess.run([sys.executable, LAUNCH, "-n", "2", sys.executable, str(program)], capture_output=True,
                           text=True, timeout=120)
    if "was built without" in ended.stdout:
        pytest.skip("Tower was built without c10d or gloo")
    assert ended.returncode == 0, ended.stdout + ended.stderr
    assert sorted(ended.stdout.splitlines()[-2:]) == ["[0] well", "[1] well"], ended.stdout


@of_several
def test_the_documents_program_prints_what_it_says(tmp_path):
    page = pathlib.Path(LAUNCH).parents[1] / "docs" / "processes.md"
    program, said = re.search(r"```python\n(.*?)```\n\n```text\n(.*?)```", page.read_text(), re.DOTALL).groups()
    path = tmp_path / "program.py"
    path.write_text(program)
    for count in (1, 2, 3):
        ended = subprocess.run(
            [LAUNCH, "-n", str(count), sys.executable, path], capture_output=True, text=True, timeout=120)
        assert ended.returncode == 0, ended.stdout + ended.stderr
        assert sorted(ended.stdout.splitlines()) == [f"[{rank}] {said.strip()}" for rank in range(count)]


def test_who_loses_another_process_can_save_and_exit(tmp_path):
    path = tmp_path / "program.py"
    path.write_text(textwrap.dedent("""
        import os, signal, torch, torch_tower
        mesh = torch_tower.Mesh.from_environment({"data": -1}, timeout=10)
        total = torch_tower.vmap(lambda x: torch_tower.psum(x, "data"), axis="data", across=mesh, out_dims=None)
        total(torch.ones(2))
        if mesh.rank == 1:
            os.kill(os.getpid(), signal.SIGKILL)
        try:
            total(torch.ones(2))
        except torch_tower.MeshError as error:
            print("saved by", mesh, "process 1" in str(error))
    """))
    ended = subprocess.run([LAUNCH, "-n", "3", sys.executable, path], capture_output=True, text=True, timeout=120)
    assert ended.returncode == 128 + 9, ended.stdout + ended.stderr
    assert sorted(ended.stdout.splitlines()) == [f"[{r}] saved by Mesh({{'data': 3}}, rank={r}) True" for r in (0, 2)]
