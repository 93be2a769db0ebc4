"""Programs of the kinds that torch.func's documentation shows, written here. Each is run with both libraries."""

import types

import pytest
import torch
import torch.nn.functional as F
import torch_tower
from support import assert_same

LIBRARIES = {"torch_tower": torch_tower, "torch.func": torch.func}


class Digits(torch.nn.Module):
    """A small convolutional classifier."""

    def __init__(self):
        super().__init__()
        self.conv = torch.nn.Conv2d(1, 4, 3, stride=2)
        self.norm = torch.nn.GroupNorm(2, 4)
        self.out = torch.nn.Linear(4 * 3 * 3, 10)

    def forward(self, x):
        x = F.max_pool2d(F.relu(self.norm(self.conv(x))), 2, stride=1, padding=0)
        return F.log_softmax(self.out(x[..., :3, :3].flatten(1)), -1)


def per_sample_gradients(lib):
    """The gradient of each image's loss, clipped to norm 1, as private training needs them."""
    torch.manual_seed(1)
    net = Digits().double()
    params = {k: v.detach() for k, v in net.named_parameters()}
    images, labels = torch.randn(6, 1, 12, 12).double(), torch.randint(10, (6,))

    def loss(params, image, label):
        scores = lib.functional_call(net, params, (image.unsqueeze(0),))
        return F.nll_loss(scores, label.unsqueeze(0))

    gradients, values = lib.vmap(lib.grad_and_value(loss), in_dims=(None, 0, 0))(params, images, labels)
    norms = lib.vmap(lambda g: torch.stack([t.square().sum() for t in g.values()]).sum().sqrt())(gradients)
    clipped = {k: (g.flatten(1) * (1 / norms).clamp(max=1)[:, None]).mean(0) for k, g in gradients.items()}
    return gradients, values, clipped


def jacobians_and_hessians(lib):
    """Curvature of a network: Jacobians both ways, batched, and the Hessian as four compositions give it."""
    torch.manual_seed(2)
    weight, bias = torch.randn(3, 5).double(), torch.randn(3).double()
    x, batch = torch.randn(5).double(), torch.randn(4, 5).double()

    def predict(weight, bias, x):
        return torch.tanh(F.linear(x, weight, bias))

    by_rows = lib.jacrev(predict, argnums=(0, 1, 2))(weight, bias, x)
    by_columns = lib.jacfwd(predict, argnums=(0, 1, 2))(weight, bias, x)
    batched = lib.vmap(lib.jacrev(predict, argnums=2), in_dims=(None, None, 0))(weight, bias, batch)
    second = lib.hessian(predict, argnums=2)(weight, bias, x)
    rows_of_rows = lib.jacrev(lib.jacrev(predict, argnums=2), argnums=2)(weight, bias, x)
    batched_second = lib.vmap(lib.hessian(predict, argnums=2), in_dims=(None, None, 0))(weight, bias, batch)
    vector = torch.randn(5).double()
    product = lib.jvp(lib.grad(lambda x: predict(weight, bias, x).prod()), (x,), (vector,))[1]
    return by_rows, by_columns, batched, second, rows_of_rows, batched_second, product


def ensembling(lib):
    """Five networks at once, on one batch and on a batch for each."""
    torch.manual_seed(3)
    networks = [
        torch.nn.Sequential(torch.nn.Linear(4, 8), torch.nn.BatchNorm1d(8), torch.nn.GELU(), torch.nn.Linear(8, 3))
        for _ in range(5)
    ]
    for network in networks:
        network.double().eval()
        network[1].running_mean.normal_()
    params, buffers = lib.stack_module_state(networks)
    base = networks[0]

    def run(params, buffers, x):
        return lib.functional_call(base, (params, buffers), (x,))

    shared, own = torch.randn(7, 4).double(), torch.randn(5, 7, 4).double()
    on_one = lib.vmap(run, in_dims=(0, 0, None))(params, buffers, shared)
    on_own = lib.vmap(run)(params, buffers, own)
    dropout = lib.vmap(lambda x: F.dropout(x, 0.0, True), randomness="different")(own)
    one_by_one = torch.stack([network(shared) for network in networks])
    assert torch.allclose(on_one, one_by_one)
    return on_one.detach(), on_own.detach(), dropout


def meta_learning(lib):
    """MAML: the gradient through two steps of gradient descent on each of several tasks."""
    torch.manual_seed(4)
    net = torch.nn.Sequential(torch.nn.Linear(1, 12), torch.nn.Tanh(), torch.nn.Linear(12, 1)).double()
    params = {k: v.detach() for k, v in net.named_parameters()}
    amplitude, phase = torch.rand(5).double() * 4 + 1, torch.rand(5).double() * 3

    def mean_squared_error(params, x, y):
        return F.mse_loss(lib.functional_call(net, params, (x,)), y)

    def loss_of_task(params, amplitude, phase, x_support, x_query):
        inner = params
        for _ in range(2):
            gradients = lib.grad(mean_squared_error)(inner, x_support, amplitude * torch.sin(x_support + phase))
            inner = {k: inner[k] - 0.05 * gradients[k] for k in inner}
        return mean_squared_error(inner, x_query, amplitude * torch.sin(x_query + phase))

    def loss(params, x_support, x_query):
        losses = lib.vmap(loss_of_task, in_dims=(None, 0, 0, 0, 0))(params, amplitude, phase, x_support, x_query)
        return losses.mean(), losses

    x_support, x_query = torch.randn(5, 10, 1).double(), torch.randn(5, 8, 1).double()
    return lib.grad(loss, has_aux=True)(params, x_support, x_query)


def directional_derivatives(lib):
    """How a pendulum's motion depends on its first state and length, along directions, without a Jacobian."""
    torch.manual_seed(5)

    def move(state, parameters):
        for _ in range(8):
            angle, speed = state["angle"], state["speed"]
            speed = speed - 0.1 * (9.81 / parameters["length"]) * torch.sin(angle) - 0.01 * speed * speed.abs()
            state = {"angle": angle + 0.1 * speed, "speed": speed}
        return state, torch.cos(state["angle"])

    state = {"angle": torch.tensor(0.5).double(), "speed": torch.tensor(-0.2).double()}
    parameters = {"length": torch.tensor(2.0).double()}
    direction = (
        {"angle": torch.tensor(1.0).double(), "speed": torch.tensor(0.0).double()},
        {"length": torch.tensor(0.3).double()},
    )
    out, along = lib.jvp(move, (state, parameters), direction)
    angles = torch.randn(6).double()

    def sensitivity(angle, push):
        derivative = lib.jvp(lambda a: move({**state, "angle": a}, parameters)[1], (angle,), (push,))
        return derivative, lib.jvp(lambda a: lib.jvp(torch.sin, (a,), (push,))[1], (angle,), (push,))[1]

    over_angles = lib.vmap(sensitivity, in_dims=(0, None))(angles, torch.tensor(2.0).double())
    value, push_forward = lib.linearize(lambda a: move({**state, "angle": a}, parameters)[1], state["angle"])
    return out, along, over_angles, value, push_forward(torch.tensor(1.5).double())


@pytest.mark.parametrize(
    "program", [per_sample_gradients, jacobians_and_hessians, ensembling, meta_learning, directional_derivatives]
)
def test_a_program_of_torch_func_runs_after_changing_the_import(program):
    ours, theirs = (program(lib) for lib in LIBRARIES.values())
    assert_same(ours, theirs)


def test_only_the_import_changes():
    source = "from {} import vmap, grad, jacrev, hessian\nresult = vmap(hessian(f))(x), vmap(jacrev(grad(f)))(x)\n"
    results = []
    for library in LIBRARIES:
        module = types.ModuleType("program")
        torch.manual_seed(6)
        module.f, module.x = (lambda x: x.sin().prod()), torch.randn(4, 3).double()
        exec(source.format(library), vars(module))
        results.append(module.result)
    assert_same(*results)
