"""is_batched and is_tracked."""

import pytest
import torch
from support import randn
from torch_tower import grad, is_batched, is_tracked, jvp, linearize, vjp, vmap


def answers(*tensors):
    return [(is_batched(t), is_tracked(t)) for t in tensors]


def test_plain_tensors_and_constants_are_neither():
    x, seen = randn(3), []
    seen += answers(x)
    vmap(grad(lambda y: seen.extend(answers(x, torch.ones(2), x * 2)) or y))(x)
    assert seen == [(False, False)] * 4


@pytest.mark.parametrize(
    ("transform", "expected"),
    [
        (lambda f, x: vmap(f)(x), (True, False)),
        (lambda f, x: grad(lambda x: f(x).sum())(x), (False, True)),
        (lambda f, x: vjp(f, x), (False, True)),
        (lambda f, x: jvp(f, (x,), (x,)), (False, True)),
        (lambda f, x: linearize(f, x), (False, True)),
        (lambda f, x: vmap(grad(f))(x), (True, True)),
        (lambda f, x: jvp(vmap(f), (x,), (x,)), (True, True)),
    ],
)
def test_each_transform_answers_for_what_it_follows_and_hides_nothing(transform, expected):
    seen = []
    transform(lambda x: seen.append(answers(x, x.sin() * 2)) or x, randn(3))
    assert seen == [[expected, expected]]


def test_an_inner_transform_leaves_the_answers_of_outer_tensors():
    seen = []
    vmap(lambda x: grad(lambda y: seen.extend(answers(x, y, x * y)) or y)(torch.tensor(1.0)) * x)(randn(3))
    assert seen == [(True, False), (False, True), (True, True)]


def test_detached_tensors_are_not_tracked_and_writes_count():
    seen = []

    def f(x):
        made = torch.zeros(2, dtype=x.dtype)
        seen.append(is_batched(made))
        made[0] = x
        seen.append(is_batched(made))
        return made.sum()

    vmap(f)(randn(3))
    grad(lambda x: seen.append(is_tracked(x.detach())) or x)(torch.tensor(1.0))
    assert seen == [False, True, False]


def test_only_tensors_are_asked_about():
    for ask in (is_batched, is_tracked):
        with pytest.raises(TypeError):
            ask(3)
