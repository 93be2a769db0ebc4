"""What is written inside of a transform reaches the caller's tensors, and results share memory as in torch.func."""

import pytest
import torch
from support import assert_same
from torch_tower import grad, hessian, jacfwd, jacrev, jvp, vjp, vmap

X = torch.linspace(0.5, 1.5, 3, dtype=torch.float64)


def test_results_that_are_arguments_or_views_of_them_share_their_memory():
    for run in (
        lambda f, x: vmap(f)(x),
        lambda f, x: vmap(vmap(f))(x),
        lambda f, x: torch.func.vmap(f)(x),
        lambda f, x: torch.func.vmap(torch.func.vmap(f))(x),
        lambda f, x: vjp(f, x)[0],  # torch.func refuses writes to these
        lambda f, x: jvp(f, (x,), (x.clone(),))[0],
        lambda f, x: vmap(lambda t: vjp(f, t)[0])(x),
    ):
        for f in (torch.Tensor.sin_, lambda t: t, lambda t: t.mul_(2).view_as(t), lambda t: t.unsqueeze(0)):
            x = torch.ones(2, 3, dtype=torch.float64)
            run(f, x).zero_()
            assert_same(x, torch.zeros(2, 3, dtype=torch.float64))
    x = X.clone()
    assert vmap(torch.Tensor.sin_)(x) is x


@pytest.mark.parametrize("derivative", [grad, jacrev, jacfwd])
def test_writes_to_arguments_that_are_not_differentiated_by(derivative):
    def f(w, state):
        loss = (w["a"] * state["mean"]).sum()
        state["mean"].mul_(w["a"])
        return loss

    state = {"mean": X.clone()}
    assert_same(derivative(f)({"a": 2 * X}, state), {"a": X})
    assert_same(state["mean"], 2 * X * X)
    state = {"mean": torch.stack([X, 2 * X])}
    per_example = vmap(derivative(f), in_dims=(None, 0))({"a": 2 * X}, state)
    assert_same(per_example, {"a": torch.stack([X, 2 * X])})
    assert_same(state["mean"], torch.stack([2 * X * X, 4 * X * X]))


def test_the_explicit_euler_loop_differentiates_under_other_transforms():
    def euler(mu, y):
        z = y.clone()
        for _ in range(3):
            rate = mu * z * z
            z -= 0.1 * rate
        return z.sum()

    def formula(mu, y):
        for _ in range(3):
            y = y - 0.1 * mu * y * y
        return y.sum()

    mu = torch.tensor(0.7, dtype=torch.float64)
    for run in (
        lambda f: vmap(grad(f), in_dims=(None, 0))(mu, torch.stack([X, 2 * X])),
        lambda f: grad(lambda y: grad(f)(mu, y))(X),
        lambda f: jacfwd(lambda y: grad(f)(mu, y))(X),
        lambda f: jvp(lambda y: grad(f)(mu, y), (X,), (X,))[1],
        lambda f: hessian(f, argnums=(0, 1))(mu, X),
        lambda f: vjp(lambda y: jacrev(f)(mu, y), X)[1](mu),
    ):
        assert_same(run(euler), run(formula))


def test_results_can_be_written_to():
    x = torch.stack([X, 2 * X])
    for f in (torch.zeros_like, lambda t: t.new_zeros(3), lambda t: torch.full_like(t, 0.0)):
        assert_same(vmap(f)(x).add_(1), torch.ones_like(x))
    model = torch.nn.Linear(3, 1).double()
    loss = lambda p, t: torch.func.functional_call(model, p, t).sum()
    gradients = vmap(grad(loss), in_dims=(None, 0))(dict(model.named_parameters()), x)
    assert_same(gradients["bias"].detach().mul_(0.1), torch.full((2, 1), 0.1, dtype=torch.float64))
    assert_same(gradients["weight"].detach().mul_(2), 2 * x.unsqueeze(1))
