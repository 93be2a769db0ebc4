"""Functions that Python defines, mapped across two processes: they give what one process gives on the whole batch."""

from several import of_several, run_in_processes

# Each is a loss of shared parameters and of an example.
PROGRAM = """
    import torch, torch_tower
    from torch import nn
    from torch_tower import grad, hessian, jacfwd, jvp, vmap

    class Cube(torch.autograd.Function):
        generate_vmap_rule = True

        @staticmethod
        def forward(x):
            return x * x * x

        @staticmethod
        def setup_context(ctx, inputs, output):
            ctx.save_for_backward(*inputs)
            ctx.save_for_forward(*inputs)

        @staticmethod
        def backward(ctx, cotangent):
            (x,) = ctx.saved_tensors
            return 3 * x * x * cotangent

        @staticmethod
        def jvp(ctx, tangent):
            (x,) = ctx.saved_tensors
            return 3 * x * x * tangent

    def custom(name, mapped):
        @torch.library.custom_op("tower_processes::" + name, mutates_args=())
        def op(x: torch.Tensor, w: torch.Tensor) -> torch.Tensor:
            return torch.from_numpy((x * w.sin()).detach().numpy().copy())

        def backward(ctx, cotangent):
            x, w = ctx.saved_tensors
            return cotangent * w.sin(), cotangent * x * w.cos()

        op.register_autograd(backward, setup_context=lambda ctx, inputs, output: ctx.save_for_backward(*inputs))
        if mapped:
            @op.register_vmap
            def rule(info, in_dims, x, w):
                x = x.movedim(in_dims[0], 0) if in_dims[0] is not None else x.expand(info.batch_size, *x.shape)
                w = w.movedim(in_dims[1], 0) if in_dims[1] is not None else w.expand(info.batch_size, *w.shape)
                return op(x, w), 0
        return op

    looped, mapped = custom("looped", False), custom("mapped", True)
    net = nn.Sequential(nn.Linear(3, 4), nn.Tanh(), nn.LayerNorm(4), nn.Linear(4, 3)).double()
    torch.manual_seed(3)
    params = {name: torch.randn_like(p) for name, p in net.named_parameters()}
    w, x = torch.linspace(0.5, 1.5, 3, dtype=torch.float64), torch.linspace(-1, 1, 15, dtype=torch.float64).view(5, 3)

    losses = {
        "autograd.Function": (w, lambda w, e: (Cube.apply(w * e) + Cube.apply(w)).sum()),
        "autograd.Function of what is shared": (w, lambda w, e: (Cube.apply(w) * e).sum()),
        "custom operator": (w, lambda w, e: looped(e, w).square().sum()),
        "custom operator with a vmap rule": (w, lambda w, e: mapped(e, w).square().sum()),
        "module": (params, lambda p, e: torch_tower.functional_call(net, p, (e,)).square().sum()),
        "torch.func's functional_call": (params, lambda p, e: torch.func.functional_call(net, p, (e,)).sin().sum()),
    }

    def same(actual, expected, part):
        if isinstance(expected, dict):
            for name in expected:
                same(actual[name], expected[name], part)
        else:
            torch.testing.assert_close(actual, part(expected))

    mesh = torch_tower.Mesh.from_environment({"data": -1}, timeout=20)
    first = lambda t: torch_tower.part_of(mesh, "data", t)
    every = lambda t: t
    compared = 0
    for name, (shared, loss) in losses.items():
        def over(f, out_dims, across):
            return vmap(f, in_dims=(None, 0), out_dims=out_dims, axis="data", across=across)

        total = lambda p, e: torch_tower.pmean(loss(p, e), "data")
        forward = "custom operator" not in name  # they have no rule for it
        programs = {
            "values": (first, lambda across: over(loss, 0, across)),
            "gradients of each example": (first, lambda across: over(grad(loss), 0, across)),
            "gradients inside of the mean": (first, lambda across: over(grad(total), 0, across)),
            "gradient around": (every, lambda across: grad(over(total, None, across))),
            "gradient around, compiled": (every, lambda across: torch_tower.compile(grad(over(total, None, across)))),
        }
        if forward:
            along = shared
            programs["jvp around"] = (every, lambda across: lambda p, e: jvp(
                lambda q: over(total, None, across)(q, e), (p,), (along,))[1])
            programs["jvp of the gradient around"] = (every, lambda across: lambda p, e: jvp(
                lambda q: grad(over(total, None, across))(q, e), (p,), (along,))[1])
        for what, (part, program) in programs.items():
            try:
                expected = program(None)(shared, x)
            except Exception as error:
                raise RuntimeError(f"{name}, {what}, in one process") from error
            try:
                same(program(mesh)(shared, first(x)), expected, part)
            except Exception as error:
                raise RuntimeError(f"{name}, {what}") from error
            compared += 1
    print(compared, "well")
"""


@of_several
def test_functions_of_all_kinds_give_what_they_give_in_one_process(tmp_path):
    lines = run_in_processes(2, PROGRAM, tmp_path)
    assert [line for line in lines if line.endswith(" well")] == ["[0] 38 well", "[1] 38 well"], lines
