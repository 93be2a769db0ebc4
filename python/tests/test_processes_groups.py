"""Meshes of torch.distributed's groups, which have connections and a timeout of their own."""

from several import of_several, run_in_processes

HEAD = """
    import time, torch, torch.distributed as dist, torch_tower
    from torch_tower import Mesh, psum, vmap

    def total(mesh, axis, x):
        return vmap(lambda e: psum(e, axis), axis=axis, across=mesh, out_dims=None)(x)

    def refused(f):
        start = time.monotonic()
        try:
            f()
        except Exception as error:
            return type(error).__name__, str(error), time.monotonic() - start
        return "nothing", "", 0
"""


def all_well(count, source, folder):
    lines = run_in_processes(count, HEAD + source, folder)
    assert [line for line in lines if line.endswith("] well")] == [f"[{rank}] well" for rank in range(count)], lines


@of_several
def test_meshes_of_groups_are_their_own_for_every_way_to_make_a_group(tmp_path):
    all_well(
        4,
        """
    import os
    port = int(os.environ["MASTER_PORT"])
    for k, backend in enumerate(["gloo", "cpu:gloo"]):
        os.environ["MASTER_PORT"] = str(port + 1 + k)
        dist.init_process_group(backend)
        rank = dist.get_rank()
        x = torch.arange(4.0, dtype=torch.float64)
        grid = Mesh.from_group(dist.group.WORLD, {"a": -1, "b": 2}, timeout=20)
        assert grid.axes == {"a": 2, "b": 2}, grid.axes
        assert total(grid, "a", x[rank:rank + 1]) == x.view(2, 2).sum(0)[rank % 2]
        assert total(grid, "b", x[rank:rank + 1]) == x.view(2, 2).sum(1)[rank // 2]

        def fail(e):
            if rank == 1:
                raise RuntimeError("no more of this")
            return psum(e, "data")

        dims = dist.init_device_mesh("cpu", (4,), mesh_dim_names=("data",))
        for make in (lambda: Mesh.from_group(dist.group.WORLD, {"data": -1}, timeout=20),
                     lambda: Mesh.from_device_mesh(dims, timeout=20)):
            mesh = make()
            assert total(mesh, "data", x[rank:rank + 1]) == 6
            kind, text, seconds = refused(lambda: vmap(fail, axis="data", across=mesh)(x))
            if rank == 1:
                assert kind == "RuntimeError", (kind, text)
            else:
                assert kind == "MeshError" and "process 1 gave up" in text and seconds < 10, (kind, text, seconds)
        y = torch.ones(3)
        dist.all_reduce(y)  # the group goes on
        assert y.tolist() == [4, 4, 4]
        del grid, mesh  # they hold the group, whose threads end with it
        dist.destroy_process_group()
    print("well")
    """,
        tmp_path,
    )


@of_several
def test_a_mesh_of_a_group_keeps_its_own_timeout(tmp_path):
    all_well(
        2,
        """
    dist.init_process_group("gloo")
    rank = dist.get_rank()
    mesh = Mesh.from_group(dist.group.WORLD, {"data": -1}, timeout=2)
    total(mesh, "data", torch.ones(1))
    if rank == 1:
        time.sleep(6)
    else:
        kind, text, seconds = refused(lambda: total(mesh, "data", torch.ones(1)))
        assert kind == "MeshError" and "process 1 of the mesh did not answer" in text and seconds < 5, (text, seconds)
    if rank == 0:
        kind, text, seconds = refused(lambda: Mesh.from_group(dist.group.WORLD, {"other": -1}, timeout=1))
        assert kind == "MeshError" and "process 1 of 2 did not come" in text and seconds < 4, (text, seconds)
    dist.barrier()
    print("well")
    """,
        tmp_path,
    )


@of_several
def test_a_dtensor_is_refused_with_what_to_do(tmp_path):
    all_well(
        2,
        """
    from torch.distributed.tensor import Shard, distribute_tensor

    dist.init_process_group("gloo")
    dims = dist.init_device_mesh("cpu", (2,), mesh_dim_names=("data",))
    spread = distribute_tensor(torch.arange(4.0), dims, [Shard(0)])
    for f in (lambda mesh: total(mesh, "data", spread),
              lambda mesh: vmap(lambda e: torch_tower.all_gather(e, "data"), axis="data", across=mesh)(spread),
              lambda mesh: vmap(lambda e: torch_tower.pmax(e, "data"), axis="data", across=mesh)(spread),
              lambda mesh: torch_tower.sum_across(mesh, "data", spread),
              lambda mesh: torch_tower.gather_across(mesh, "data", spread)):
        kind, text, _ = refused(lambda: f(Mesh.from_group(dist.group.WORLD, {"data": -1}, timeout=20)))
        assert kind == "ValueError" and "DTensor: t.to_local()" in text, (kind, text)
    mesh = Mesh.from_group(dist.group.WORLD, {"data": -1}, timeout=20)
    assert total(mesh, "data", spread.to_local()) == 6
    print("well")
    """,
        tmp_path,
    )
