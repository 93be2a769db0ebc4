"""Named axes and processes: against the same over the batch dimension, and one process with the whole batch."""

import re

import pytest
import torch
import torch_tower
from several import ROOT, of_several, run_in_processes
from torch_tower import grad, vmap

a_week = pytest.mark.weekly("of another number of processes")


def test_collectives_are_code_over_the_batch_dimension():
    x = torch.randn(4, 3, dtype=torch.float64)

    def f(e):
        total = torch_tower.psum({"e": e, "s": e.sin()}, "batch")
        moved = torch_tower.ppermute(e, "batch", [(0, 1), (1, 2), (2, 3), (3, 0)])
        index = torch_tower.axis_index("batch") / torch_tower.axis_size("batch")
        everyone = torch_tower.all_gather(e, "batch").cumsum(0)[-1]
        return total["e"] * total["s"] + moved - torch_tower.pmax(e, "batch") * index + everyone

    expected = x.sum(0) * x.sin().sum(0) + x.roll(1, 0) - x.amax(0) * torch.arange(4)[:, None] / 4 + x.sum(0)
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


@of_several
def test_processes_give_what_one_gives(tmp_path):
    lines = run_in_processes(2, PROGRAM, tmp_path)
    assert [line for line in lines if line.endswith("] well")] == ["[0] well", "[1] well"], lines


@of_several
@pytest.mark.parametrize("count", [pytest.param(1, marks=a_week), 2, pytest.param(3, marks=a_week)])
def test_the_documents_program_prints_what_it_says(count, tmp_path):
    page = (ROOT / "docs" / "processes.md").read_text()
    program, said = re.search(r"```python\n(.*?)```\n\n```text\n(.*?)```", page, re.DOTALL).groups()
    assert run_in_processes(count, program, tmp_path) == [f"[{rank}] {said.strip()}" for rank in range(count)]


@of_several
def test_who_loses_another_process_can_save_and_exit(tmp_path):
    program = """
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
    """
    lines = run_in_processes(3, program, tmp_path, status=128 + 9)
    assert lines == [f"[{r}] saved by Mesh({{'data': 3}}, rank={r}) True" for r in (0, 2)]
