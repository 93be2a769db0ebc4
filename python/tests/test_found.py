"""Programs that once gave something else than without the transform, held against the loop or the plain call."""

import pytest
import torch
import torch.nn.functional as F
from torch_tower import grad, hessian, jacfwd, jacrev, jvp, linearize, vjp, vmap

D = torch.float64


def numbers(*shape):
    return torch.randn(*shape, dtype=D, generator=torch.Generator().manual_seed(sum(shape)))


def same(actual, expected):
    torch.testing.assert_close(actual, expected)


def looped(f, *batches):
    return torch.stack([f(*(b.clone() for b in example)) for example in zip(*batches)])


def test_attention_takes_masks_of_booleans_also_rows_without_any():
    q, k, v = numbers(2, 1, 3, 4), numbers(2, 1, 5, 4), numbers(2, 1, 6, 4)[:, :, 1:]
    mask = torch.tensor([[True, False, True, False, True], [False] * 5, [True] * 5])
    f = lambda q, mask: F.scaled_dot_product_attention(q, k[0], v[0], attn_mask=mask)
    weights = (q @ k[0].mT / 2).masked_fill(~mask, -torch.inf).softmax(-1).nan_to_num(0)
    same(vmap(f, in_dims=(0, None))(q, mask), weights @ v[0])
    same(vjp(lambda q: f(q, mask), q[0])[0], f(q[0], mask))
    ct = numbers(1, 3, 4)
    leaf = q[0].clone().requires_grad_()
    with torch.nn.attention.sdpa_kernel(torch.nn.attention.SDPBackend.MATH):
        same(vjp(lambda q: f(q, mask), q[0])[1](ct)[0], torch.autograd.grad(f(leaf, mask), leaf, ct)[0])


@pytest.mark.parametrize("options", [{"padding_idx": 1}, {"scale_grad_by_freq": True}])
@pytest.mark.parametrize("in_dims", [(None, 0), (0, None), (0, 0)])
def test_the_gradient_of_a_mapped_embedding_knows_padding_and_frequencies(options, in_dims):
    tables, indices = numbers(2, 5, 3), torch.tensor([[1, 1, 2, 3], [0, 0, 1, 4]])
    table = tables if in_dims[0] == 0 else tables[0]
    places = indices if in_dims[1] == 0 else indices[0]
    weight = numbers(2, 4, 3)
    one = lambda table, places: F.embedding(places, table, **options)
    whole = lambda table: (vmap(one, in_dims=in_dims)(table, places) * weight).sum()
    leaf = table.clone().requires_grad_()
    examples = [
        one(leaf if in_dims[0] is None else leaf[b], places if in_dims[1] is None else places[b]) for b in (0, 1)
    ]
    same(vmap(one, in_dims=in_dims)(table, places), torch.stack(examples).detach())
    same(grad(whole)(table), torch.autograd.grad((torch.stack(examples) * weight).sum(), leaf)[0])


def test_a_tangent_that_is_written_under_no_grad_keeps_its_history():
    def f(x):
        y = x * x
        with torch.no_grad():
            y.mul_(3.0)
        return (y * y).sum()

    x = torch.tensor([0.7], dtype=D)
    same(grad(lambda x: jvp(f, (x,), (torch.ones_like(x),))[1])(x), torch.tensor([17.64], dtype=D))


def test_gradients_through_eigenvectors_of_symmetric_matrices_are_symmetric():
    a, c = numbers(3, 3), numbers(3, 3)
    a = a + a.mT
    f = lambda a: (torch.linalg.eigh(a)[1] ** 2 * c).sum() + torch.linalg.eigh(a)[0].pow(2).sum()
    leaf = a.clone().requires_grad_()
    same(grad(f)(a), torch.autograd.grad(f(leaf), leaf)[0])
    second = hessian(f)(a).reshape(9, 9)
    same(second, second.mT)


def test_weight_norm_anywhere_and_twice():
    g, vs = torch.rand(3, 1, dtype=D) + 0.5, numbers(3, 4, 2)
    f = lambda v: torch._weight_norm(v, g, 0)
    same(vmap(f, in_dims=-1)(vs), torch.stack([f(v.contiguous()) for v in vs.unbind(-1)]))
    formula = lambda v: (v * (g / v.norm(dim=1, keepdim=True))).sin().sum()
    v = vs[..., 0]
    same(hessian(lambda v: f(v).sin().sum())(v), hessian(formula)(v))


def test_qr_without_q_under_two_vmaps():
    a = numbers(2, 3, 4, 3)
    same(vmap(vmap(lambda a: torch.linalg.qr(a, mode="r")[1]))(a), torch.linalg.qr(a, mode="r")[1])


def test_pixel_shuffle_of_a_batch_that_comes_last():
    x = numbers(2, 8, 2, 2, 3)
    f = lambda x: F.pixel_shuffle(x, 2)
    same(vmap(vmap(f, in_dims=-1))(x), f(x.movedim(-1, 1).contiguous()))


def test_a_mapped_number_selects_a_view():
    xs, places = torch.arange(6.0, dtype=D).view(2, 3), torch.tensor([0, 2])

    def writes(x, i):
        y = x * 2
        y[i].mul_(3)
        return y

    def negative(x, i):
        y = x * 2
        y[i - 3].mul_(3)
        return y

    def reads_late(x, i):
        part = x[i]
        x.mul_(10)
        return part

    def two(x, i):
        y = x.expand(3, 3).clone()
        y[i][i] = 7.0
        y[:, i] += 1
        return y

    for f in (writes, negative, reads_late, two):
        same(vmap(f)(xs.clone(), places), looped(f, xs, places))
    for f in (writes, two):
        loss = lambda x, i: (f(x, i) ** 2).sum()
        same(vmap(grad(loss))(xs, places), looped(grad(loss), xs, places))


class Dropped(torch.autograd.Function):
    @staticmethod
    def forward(x):
        return F.dropout(torch.from_numpy(x.numpy() * 2), 0.5)

    @staticmethod
    def setup_context(ctx, inputs, output):
        pass


@torch.library.custom_op("found::noisy", mutates_args=())
def noisy(x: torch.Tensor) -> torch.Tensor:
    return torch.as_tensor(x.numpy()) + torch.randn(x.shape)


@pytest.mark.parametrize("f", [Dropped.apply, noisy, lambda x: torch.distributions.Dirichlet(x).rsample()])
def test_draws_of_functions_and_operators_heed_randomness(f):
    x = torch.ones(3, 20)
    for _ in range(2):
        with pytest.raises(RuntimeError, match="draws random numbers"):
            vmap(f)(x)
        shared = vmap(f, randomness="same")(x)
        assert (shared == shared[0]).all()
        torch.manual_seed(0)
        different = vmap(f, randomness="different")(x)
        assert not (different[0] == different[1]).all()


def test_a_write_to_memory_that_another_argument_shares_is_refused():
    def f(p, q):
        p.mul_(2)
        return (q * 1).sum()

    a = torch.tensor([1.0, 2.0, 3.0])
    for call in (
        lambda: vmap(f)(a, a),
        lambda: vmap(f)(a, a[:]),
        lambda: vjp(f, a, a),
        lambda: jvp(f, (a[:2], a[1:]), (a[:2], a[1:])),
        lambda: grad(f)(a, a),
        lambda: vmap(grad(f))(a[:, None], a[:, None]),
    ):
        with pytest.raises(RuntimeError, match="shares memory with argument"):
            call()
    same(a, torch.tensor([1.0, 2.0, 3.0]))
    halves = torch.arange(4.0)
    same(vjp(f, halves[:2], halves[2:])[0], torch.tensor(5.0))
    same(halves, torch.tensor([0.0, 2.0, 2.0, 3.0]))


def test_tensors_from_python_numbers_take_tracked_values():
    def f(x):
        y = torch.tensor([0.0, 0.0, 0.0])
        y[0] = x[0] * x[1]
        return (y * x.new_tensor([1.0, 2.0, 3.0])).sum()

    x = torch.tensor([2.0, 3.0])
    same(grad(f)(x), torch.tensor([3.0, 2.0]))
    same(vmap(f)(torch.stack([x, 2 * x])), torch.tensor([6.0, 24.0]))
    same(jvp(f, (x,), (x,))[1], torch.tensor(12.0))


def test_an_inner_gradient_of_a_function_that_writes_to_an_untracked_argument():
    def f(a):
        loss = (a * a).sum()
        a.mul_(2)
        return loss

    same(vmap(lambda s: s * grad(f)(torch.ones(3)))(torch.ones(2)), torch.full((2, 3), 2.0))


def test_functions_under_two_vmaps_wherever_their_batches_are():
    class Square(torch.autograd.Function):
        generate_vmap_rule = True

        @staticmethod
        def forward(x):
            return x * x

        @staticmethod
        def setup_context(ctx, inputs, output):
            ctx.save_for_backward(inputs[0])

        @staticmethod
        def backward(ctx, g):
            return 2 * g * ctx.saved_tensors[0]

    x = numbers(2, 3, 4)
    for inner in (0, 1):
        for outer in (0, 1, 2):
            f = lambda x: vmap(vmap(Square.apply, in_dims=inner), in_dims=outer)(x).sum()
            same(grad(f)(x), 2 * x)


def test_a_mask_of_the_outer_batch_under_an_inner_one():
    def f(x, mask):
        y = x * 2
        y[mask] = 0.5
        return y

    x, mask = numbers(3, 4), torch.tensor([[True, False, True, False], [False] * 4, [True] * 4])
    expected = torch.stack([torch.diag(2.0 * ~m) for m in mask]).to(D)
    same(vmap(jacrev(f))(x, mask), expected)
    same(vmap(jacfwd(f))(x, mask), expected)
    nested = vmap(lambda x, mask: vmap(f, in_dims=(0, None))(torch.stack([x, -x]), mask))
    same(nested(x, mask), torch.stack([looped(f, torch.stack([a, -a]), torch.stack([m, m])) for a, m in zip(x, mask)]))


def test_resolved_conjugates_are_copies():
    def base_written(z):
        w = z.conj().resolve_conj()
        z.zero_()
        return w

    def copy_written(z):
        w = z.conj().resolve_conj()
        w.mul_(5)
        return z * 1

    z = torch.complex(numbers(2, 3), numbers(2, 3) + 1)
    for f in (base_written, copy_written):
        same(vmap(f)(z.clone()), looped(f, z))
        same(vjp(f, z[0].clone())[0], f(z[0].clone()))


def test_pairs_are_viewed_as_complex_numbers_wherever_the_batch_is():
    x = numbers(3, 2, 4)
    f = lambda x: torch.view_as_complex(x * 1.0)
    same(vmap(f, in_dims=-1)(x), torch.stack([f(a.contiguous()) for a in x.unbind(-1)]))


def test_lists_whose_elements_share_memory_are_written_one_by_one():
    def f(x):
        y = x * 1
        torch._foreach_mul_([y, y[0:1]], [2.0, 3.0])
        torch._foreach_add_([y, y], 1.0)
        return y

    x = numbers(2, 3)
    same(vmap(f)(x), looped(f, x))
    same(grad(lambda x: f(x).sum())(x[0]), torch.tensor([6.0, 2.0, 2.0], dtype=D))


def test_a_value_of_size_one_along_a_mapped_mask_goes_to_all_its_places():
    def f(x, mask, v):
        y = x * 1
        y[:, mask] = v
        return y

    x, v = numbers(2, 2, 3), numbers(2, 2, 1)
    mask = torch.tensor([[True, False, True], [False, True, True]])
    same(vmap(f)(x, mask, v), looped(f, x, mask, v))
    mapped = vmap(grad(lambda x, mask, v: (f(x, mask, v) ** 2).sum(), argnums=(0, 2)))(x, mask, v)
    same(mapped[0], 2 * x * ~mask[:, None])
    same(mapped[1], 2 * v * mask.sum(1)[:, None, None])


def test_smoothed_cross_entropy_with_weights_and_mapped_targets():
    x, weight = numbers(5, 4, 3), numbers(3).abs()
    target = torch.arange(20).reshape(5, 4) % 3
    target[0, 1] = target[3, 0] = target[3, 2] = -100
    f = lambda x, target: F.cross_entropy(x, target, weight, label_smoothing=0.2)
    same(vmap(f)(x, target), looped(f, x, target))
    rows = [torch.func.grad(f)(*example) for example in zip(x, target)]
    same(vmap(grad(f))(x, target), torch.stack(rows))


ONE = torch.ones((), dtype=D)
SQUARE = torch.tensor([[1.0, 2.0], [3.0, 4.0]], dtype=D)


def test_a_view_of_an_outer_tensor_is_returned_as_its_base_is_now():
    def scaled(w, x):
        total = w.sum()
        view = total.view(())
        total.mul_(x)
        return view

    def row(w, x):
        copy = w.clone()
        view = copy[0]
        copy.mul_(x)
        return view

    def expanded(w, y):
        wide = w.clone().expand(2, 2, 2)
        wide[0].add_(1)
        return wide * y

    same(grad(lambda w: grad(lambda x: scaled(w, x))(ONE))(SQUARE), torch.ones_like(SQUARE))
    same(vmap(lambda w: grad(lambda x: scaled(w, x))(ONE))(SQUARE[None]), torch.tensor([10.0], dtype=D))
    for jacobian in (jacrev, jacfwd):
        same(vmap(lambda w: jacobian(lambda x: row(w, x))(ONE))(SQUARE[None]), SQUARE[:1])
    tangent = lambda w: jvp(lambda x: row(w, x), (ONE,), (ONE,))[1].sum()
    same(grad(tangent)(SQUARE), torch.tensor([[1.0, 1.0], [0.0, 0.0]], dtype=D))
    xs = torch.ones(2, dtype=D)
    rows = lambda w: vmap(lambda x: row(w, x))(xs).sum()
    same(grad(rows)(SQUARE), torch.tensor([[2.0, 2.0], [0.0, 0.0]], dtype=D))
    out = vmap(vmap(expanded, (None, 0)), (0, None))(SQUARE[None], xs)
    same(out, (SQUARE + 1).expand(1, 2, 2, 2, 2))


def test_memory_by_address_of_an_outer_tensor_is_a_view_inside_an_inner_transform():
    def without_diagonal(y, w):
        copy = w.clone()
        copy.fill_diagonal_(0)
        return copy.sum() * y

    off_diagonal = torch.tensor([[0.0, 1.0], [1.0, 0.0]], dtype=D)
    ys = torch.ones(2, dtype=D)
    same(grad(lambda w: vmap(lambda y: without_diagonal(y, w))(ys).sum())(SQUARE), 2 * off_diagonal)
    same(grad(lambda w: grad(lambda y: without_diagonal(y, w))(ONE))(SQUARE), off_diagonal)

    def after(w):
        w = w.clone()
        inner = lambda y: (w.as_strided((2,), (1,)).mul_(2) * y[:2]).sum()
        return grad(inner)(torch.ones(3, dtype=D)) + w

    vector = torch.tensor([1.0, 2.0, 3.0], dtype=D)
    same(grad(lambda w: after(w).sum())(vector), torch.tensor([4.0, 4.0, 1.0], dtype=D))
    of_argument = lambda w: grad(lambda y: (w.as_strided((2,), (1,)).mul_(2) * y[:2]).sum())(torch.ones(3, dtype=D))
    same(vmap(of_argument)(torch.ones(2, 3, dtype=D)), torch.tensor([[2.0, 2.0, 0.0]] * 2, dtype=D))


@pytest.mark.parametrize("change", ["unsqueeze_(0)", "squeeze_()", "t_()", "swapaxes_(0, 1)"])
def test_a_shape_changed_in_place_under_no_grad_keeps_the_history(change):
    def f(x):
        y = x * x
        with torch.no_grad():
            eval("y." + change, {"y": y})
        return (y * torch.arange(4.0, dtype=D).reshape(y.shape)).sum()

    weights = torch.arange(4.0, dtype=D).reshape(2, 2)
    weights = weights.T if change[0] in "t" or "swap" in change else weights
    same(grad(f)(SQUARE), 2 * SQUARE * weights)
    same(grad(lambda x: vmap(f)(x).sum())(SQUARE[None]), (2 * SQUARE * weights)[None])


def test_a_view_of_the_same_shape_is_another_tensor():
    def constant(view):
        def f(x):
            y = x.t()
            with torch.no_grad():
                c = view(y)
            assert c is not y
            return (c * y).sum()

        return f

    for view in (lambda y: y.reshape(y.shape), lambda y: y.view_as(y), lambda y: y.reshape(2, -1)):
        f = constant(view)
        same(grad(f)(SQUARE), SQUARE)
        same(vmap(grad(f))(SQUARE[None]), SQUARE[None])
        same(grad(lambda x: vmap(f)(x).sum())(SQUARE[None]), SQUARE[None])

    def tangent_of(x):
        def f(x):
            with torch.no_grad():
                c = x.view_as(x)
            return c.sin().sum()

        return jvp(f, (x,), (torch.ones_like(x),))[1]

    same(grad(tangent_of)(SQUARE), torch.zeros_like(SQUARE))


def test_an_argument_of_an_inner_map_is_written_to_under_no_grad():
    def stepped(x):
        with torch.no_grad():
            x.mul_(2)
        return x * 1

    def kept(x):
        detached = x.detach()
        x.mul_(2)
        return x * detached

    same(grad(lambda x: vmap(stepped)(x).sum())(SQUARE.clone()), torch.ones_like(SQUARE))
    same(grad(lambda x: vmap(kept)(x).sum())(SQUARE.clone()), 4 * SQUARE)


def test_inside_of_a_torch_func_transform_it_is_refused_and_the_other_way_round_it_works():
    cube = lambda x: (x**3).sum()
    x = numbers(3)
    for outer in (
        lambda: torch.func.grad(lambda u: grad(cube)(u).sum())(x),
        lambda: torch.func.vmap(lambda u: grad(lambda w: (w * u).pow(2).sum())(x))(numbers(2, 3)),
        lambda: torch.func.jvp(grad(cube), (x,), (x,)),
        lambda: torch.func.vmap(lambda u: jvp(lambda w: w * u, (x,), (x,)))(numbers(2, 3)),
        lambda: vmap(torch.func.vmap(lambda u: grad(cube)(u)))(numbers(2, 4, 3)),
    ):
        with pytest.raises(RuntimeError, match="inside of a function that torch.func transforms"):
            outer()
    same(grad(lambda u: torch.func.vmap(lambda e: e**3)(u).sum())(x), 3 * x**2)
    same(vmap(torch.func.vmap(torch.sin))(numbers(2, 3)), numbers(2, 3).sin())
    same(torch.func.grad(cube)(x), 3 * x**2)


def test_a_checkpoint_computes_what_its_function_computes():
    a, b = numbers(4), numbers(4).cos()
    run = torch.utils.checkpoint.checkpoint
    captured = lambda p: run(lambda q: (q * p).sin(), a, use_reentrant=True).sum()
    argument = lambda p: run(lambda q: (q * a).sin(), p, use_reentrant=True).sum()
    for f in (captured, argument):
        same(grad(f)(b), (a * b).cos() * a)
        same(vmap(grad(f))(torch.stack([b, 2 * b])), torch.stack([(a * b).cos() * a, (2 * a * b).cos() * a]))
        same(jvp(f, (b,), (b,))[1], ((a * b).cos() * a * b).sum())


def test_linearize_ignores_no_grad_as_jvp_does():
    def f(x):
        with torch.no_grad():
            n = x * x
            y = x * 1
            y.mul_(n)
        return x * n + y

    x = numbers(3)
    same(jvp(f, (x,), (x,))[1], 6 * x**3)
    same(linearize(f, x)[1](x), 6 * x**3)
    same(vmap(lambda x: linearize(f, x)[1](x))(torch.stack([x, 2 * x])), torch.stack([6 * x**3, 48 * x**3]))
    detached = lambda x: x * x.detach()
    same(linearize(detached, x)[1](x), x * x)


def test_arguments_of_a_custom_operator_left_at_their_defaults():
    @torch.library.custom_op("torch_tower_found::scaled", mutates_args=())
    def scaled(x: torch.Tensor, y: torch.Tensor, k: float = 2.0) -> torch.Tensor:
        return torch.from_numpy(x.numpy() * y.numpy() * k)

    needs = []

    def setup(ctx, inputs, output):
        ctx.save_for_backward(*inputs[:2])
        ctx.k = inputs[2]

    def backward(ctx, g):
        needs.append(len(ctx.needs_input_grad))
        x, y = ctx.saved_tensors
        return g * y * ctx.k, g * x * ctx.k, None

    scaled.register_autograd(backward, setup_context=setup)
    x = numbers(4)
    same(grad(lambda w: scaled(w, w).sum())(x), 4 * x)
    same(grad(lambda w: scaled(w, w, 2.0).sum())(x), 4 * x)
    same(grad(lambda w: scaled(w, w, 3.0).sum())(x), 6 * x)
    assert set(needs) == {3}


def test_jacobians_between_real_and_complex_numbers_are_given_by_the_mode_that_sees_them_whole():
    turned = lambda a: torch.exp(1j * a)
    a = numbers(2)
    same(jacfwd(turned)(a), torch.diag(1j * turned(a)))
    with pytest.raises(RuntimeError, match="jacrev: output 0 .*Use jacfwd"):
        jacrev(turned)(a)
    length = lambda z: (z.abs() ** 2).sum()
    z = torch.complex(numbers(2), numbers(2).cos())
    same(jacrev(length)(z), 2 * z)
    with pytest.raises(RuntimeError, match="jacfwd: output 0 .*Use jacrev"):
        jacfwd(length)(z)


@pytest.mark.parametrize("dtype", [torch.int64, torch.int32])
def test_spaces_between_mapped_ends_are_rounded_as_torch_rounds(dtype):
    starts = torch.tensor([-2.5, 0.5, 9.9])
    for f in (
        lambda s: torch.linspace(s, 3, 5, dtype=dtype),
        lambda s: torch.linspace(-3, s, 8, dtype=dtype),
        lambda s: torch.linspace(s, 3, 1, dtype=dtype),
        lambda s: torch.logspace(s / 4, 3, 5, dtype=dtype),
        lambda s: torch.logspace(3, s / 4, 6, dtype=dtype),
    ):
        same(vmap(f)(starts), looped(f, starts))


def test_the_info_of_a_solve_has_no_dimension_too_many():
    a, b = numbers(2, 5, 5) + 4 * torch.eye(5), numbers(3, 5)
    for rhs in (b, numbers(3, 5, 2)):
        solution, info = vmap(lambda a: vmap(lambda v: torch.linalg.solve_ex(a, v))(rhs))(a)
        assert info.shape == (2, 3)
        same(solution[1, 2], torch.linalg.solve(a[1], rhs[2]))


def test_running_sums_in_place_keep_their_dtype():
    x = torch.arange(6, dtype=torch.int32).reshape(2, 3)
    for f in (lambda v: v.clone().cumsum_(0), lambda v: v.clone().cumprod_(0)):
        same(vmap(f)(x), looped(f, x))


@pytest.mark.parametrize(
    "function, x, derivatives",  # of mpmath, with 120 digits
    [
        (
            torch.special.log_ndtr,
            -100,
            [100.00999800099926, -0.99990005995005174, 1.9976029958623432e-6, 5.988020963e-8],
        ),
        (torch.special.log_ndtr, -19, [19.052343949197503, -0.99727492377014597, 0.000282218326806725, 4.3607326e-5]),
        (torch.special.log_ndtr, -0.5, [1.14107777036806, -0.731519592844121, 0.162603925176123, 0.103011870060514]),
        (
            torch.special.erfcx,
            100,
            [-5.6410497625993185e-5, 1.1280407802288336e-6, -3.3834458206016956e-8, 1.35304017e-9],
        ),
        (torch.special.erfcx, 14, [-0.0028567648893957, 0.00040504039735694, -8.5928431588e-5, 2.42462997e-5]),
        (torch.special.erfcx, 2, [-0.106796461853490, 0.083605505207053, -0.092763826585746, 0.13057772489933]),
    ],
)
def test_derivatives_in_the_tails_of_the_normal_distribution_have_their_digits(function, x, derivatives):
    x = torch.tensor(float(x), dtype=D)
    for order, expected in enumerate(derivatives):
        function = grad(function)
        precision = (1e-13, 1e-11, 1e-8, 1e-6)[order]
        assert abs(function(x) / expected - 1) < precision, order


@pytest.mark.parametrize("function", [F.elu, F.selu, F.celu])
def test_second_derivatives_at_nan_are_nan(function):
    x = torch.tensor([float("nan"), -1.0, 0.0, 2.0], dtype=D)
    second = vmap(grad(grad(function)))(x)
    assert second.isnan().tolist() == [True, False, False, False] and second[2:].tolist() == [0, 0]
