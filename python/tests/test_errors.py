"""Exceptions through transforms, interrupts, threads and the GIL."""

import os
import signal
import subprocess
import sys
import threading
import time
import traceback
import warnings

import pytest
import torch
import torch_tower
from support import assert_same, randn
from torch_tower import grad, hessian, hvp, jacfwd, jacrev, jvp, linearize, vjp, vmap


class Boom(Exception):
    pass


CALLS = {
    "vmap": lambda f, x: vmap(f)(x),
    "vmap in chunks": lambda f, x: vmap(f, chunk_size=2)(x),
    "grad": lambda f, x: grad(f)(x),
    "vjp": lambda f, x: vjp(f, x),
    "jvp": lambda f, x: jvp(f, (x,), (x,)),
    "linearize": lambda f, x: linearize(f, x),
    "jacrev": lambda f, x: jacrev(f)(x),
    "jacfwd": lambda f, x: jacfwd(f)(x),
    "hessian": lambda f, x: hessian(f)(x),
    "hvp": lambda f, x: hvp(f, (x,), (x,)),
    "vmap(grad)": lambda f, x: vmap(grad(f))(x),
    "explain": lambda f, x: torch_tower.explain(f)(x),
    "check_grads": lambda f, x: torch_tower.check_grads(f, (x,)),
}


@pytest.mark.parametrize("name", CALLS)
def test_an_exception_keeps_its_type_arguments_and_traceback(name):
    def inner(x):
        x.sin()
        raise Boom("from the function", 3)

    with pytest.raises(Boom) as caught:
        CALLS[name](lambda x: inner(x), randn(4))
    assert caught.value.args == ("from the function", 3)
    assert [frame.name for frame in traceback.extract_tb(caught.value.__traceback__)][-2:] == ["<lambda>", "inner"]
    assert_same(vmap(grad(torch.sin))(torch.zeros(2)), torch.ones(2))


@pytest.mark.parametrize("kind", [KeyboardInterrupt, SystemExit, StopIteration, AssertionError, MemoryError])
def test_every_kind_of_exception_passes(kind):
    def f(x):
        raise kind

    with pytest.raises(kind):
        vmap(grad(f))(randn(3))


def test_errors_of_operators_can_be_caught_inside():
    def f(x):
        try:
            torch.mm(x, x)
        except RuntimeError:
            pass
        try:
            return x.sum() if x.sum() > 0 else -x.sum()
        except RuntimeError:
            return x.abs().sum()

    x = randn(3, 2)
    assert_same(vmap(grad(f))(x), x.sign())


def test_an_exception_in_an_inner_transform_leaves_the_outer_one_intact():
    def f(x):
        def g(y):
            (x * y).sum().backward
            raise Boom

        try:
            grad(g)(x)
        except Boom:
            pass
        return (x * x).sum()

    x = randn(3)
    assert_same(grad(f)(x), 2 * x)


def test_kinds_of_exceptions_of_operators_are_torchs():
    with pytest.raises(IndexError):
        vmap(lambda x: x[5])(randn(3, 2))
    with pytest.raises(TypeError):
        vmap(lambda x: torch.sin(x, x, x))(randn(3, 2))
    with pytest.raises(torch.linalg.LinAlgError):
        grad(lambda x: torch.linalg.inv(x).sum())(torch.zeros(2, 2))


@pytest.mark.parametrize(
    "read",
    [lambda x: x.numpy(), lambda x: x.data_ptr(), lambda x: x.untyped_storage().data_ptr()],
)
@pytest.mark.parametrize("name", ["vmap", "grad", "jvp"])
def test_raw_memory_is_refused_with_towers_words(name, read):
    def f(x):
        read(x)
        return x.sum()

    with pytest.raises(RuntimeError, match=r"\(level 1\): raw memory of a tensor that the transform tracks"):
        CALLS[name](f, randn(3, 2))


@pytest.mark.parametrize(
    "read",
    [
        lambda x: x.item(),
        lambda x: x.tolist(),
        lambda x: (x.expand(2, 3) > 1).tolist(),
        bool,
        float,
        int,
        lambda x: [0, 1][x.long()],
        lambda x: range(x.long()),
    ],
)
def test_numbers_of_a_batch_are_refused_with_towers_words(read):
    with pytest.raises(RuntimeError, match=r"vmap \(level 1\): .* differs between the examples"):
        vmap(lambda x: read(x))(torch.tensor([0.0, 1.0, 2.0]))


def test_numbers_of_a_tracked_value_can_be_read():
    x = torch.tensor(2.0)
    assert_same(grad(lambda x: x * x if x > 1 else -x)(x), torch.tensor(4.0))
    assert_same(grad(lambda x: x * x.item())(x), torch.tensor(2.0))


LISTS = {
    "a matrix": lambda x: x,
    "a view": lambda x: x.T[1:],
    "one number": lambda x: x[0, 0],
    "nothing": lambda x: x[:, :0],
    "what is computed": lambda x: x * x,
    "integers": lambda x: x.long(),
    "truth values": lambda x: x > 2,
    "half": lambda x: x.half(),
    "bfloat16": lambda x: x.bfloat16(),
    "complex": lambda x: x.to(torch.complex64),
}
READ_INSIDE = {
    "grad": lambda F, f, x: F.grad(f)(x),
    "vjp": lambda F, f, x: F.vjp(f, x),
    "jvp": lambda F, f, x: F.jvp(f, (x,), (x,)),
    "grad(grad)": lambda F, f, x: F.grad(lambda x: F.grad(f)(x).sum())(x),
    "jvp(grad)": lambda F, f, x: F.jvp(F.grad(f), (x,), (x,)),
    "what vmap does not map": lambda F, f, x: F.grad(lambda x: F.vmap(lambda y: y + f(x))(x[0]).sum())(x),
}


@pytest.mark.parametrize("inside", READ_INSIDE)
@pytest.mark.parametrize("name", LISTS)
def test_lists_of_what_is_not_mapped_are_read_as_in_torch_func(name, inside):
    x = torch.tensor([[1.0, 2.5], [3.0, -4.0]])
    read = []

    def f(x):
        read.append(LISTS[name](x).tolist())
        return (x**3).sum()

    for F in (torch_tower, torch.func):
        READ_INSIDE[inside](F, f, x)
    assert read[0] == read[1] == LISTS[name](x).tolist()


def test_a_list_of_a_tracked_value_has_no_derivative():
    x = randn(3)
    assert_same(grad(lambda x: (torch.tensor(x.tolist()) * x).sum())(x.float()), x.float())


def test_a_list_of_a_batch_or_a_traced_value_is_refused_with_what_to_do_instead():
    with pytest.raises(RuntimeError, match=r"vmap \(level 1\): .* differs between the examples .* Use where"):
        vmap(lambda x: x.sum() * len(x.tolist()))(randn(3, 2))
    with pytest.raises(RuntimeError, match=r"vmap \(level 1\): .* differs between the examples"):
        vmap(grad(lambda x: x.sum() * x.tolist()[0]))(randn(3, 2))
    with pytest.raises(RuntimeError, match=r"compile \(level 1\): .* reads a value"):
        torch_tower.compile(lambda x: x * len(x.tolist()))(randn(3))


def test_a_tensor_used_after_its_transform_names_it():
    kept = []
    grad(lambda x: kept.append(x) or x.sum())(randn(3))
    with pytest.raises(RuntimeError, match=r"grad \(level 1\): .* after the grad that made it has ended"):
        kept[0] + 1


def test_recursion_too_deep_is_pythons_error():
    def f(x):
        return f(x) + x

    with pytest.raises(RecursionError):
        grad(f)(torch.tensor(1.0))


def test_a_warning_of_an_operator_is_pythons():
    with pytest.warns(UserWarning, match="std.*degrees of freedom"):
        vmap(lambda x: x.std(0))(randn(3, 1))


@pytest.mark.filterwarnings("error")
def test_a_warning_turned_into_an_error_passes():
    with pytest.raises(UserWarning, match="from the function"):
        vmap(lambda x: warnings.warn("from the function"))(randn(3))


# A shell's background jobs, and what they start, ignore SIGINT.
INTERRUPTED = """
import signal
signal.signal(signal.SIGINT, signal.default_int_handler)
import torch, torch_tower, sys
def f(x):
    print("running", flush=True)
    while True:
        x = x.sin()
try:
    torch_tower.vmap(torch_tower.grad(f))(torch.ones(3))
except KeyboardInterrupt:
    assert not torch_tower._C.inside_transform()
    assert torch.equal(torch_tower.grad(torch.sin)(torch.tensor(0.)), torch.tensor(1.))
    sys.exit(7)
"""


@pytest.mark.parametrize("here", [signal.default_int_handler, signal.SIG_IGN], ids=["foreground", "background"])
def test_ctrl_c_interrupts_a_transformed_function(here):
    before = signal.signal(signal.SIGINT, here)
    try:
        process = subprocess.Popen([sys.executable, "-c", INTERRUPTED], stdout=subprocess.PIPE, text=True)
    finally:
        signal.signal(signal.SIGINT, before)
    assert process.stdout.readline() == "running\n"
    time.sleep(0.1)
    process.send_signal(signal.SIGINT)
    assert process.wait(60) == 7


def test_transforms_on_several_threads_do_not_meet():
    barrier, failures = threading.Barrier(4), []

    def work(seed):
        try:
            x = torch.full((3, 2), float(seed))
            barrier.wait()
            for _ in range(50):
                assert_same(vmap(grad(lambda x: (x**3).sum()))(x), 3 * x**2)
                assert_same(hessian(lambda x: (x**3).sum())(x[0]), (6 * x[0]).diag())
        except BaseException as error:  # noqa: BLE001
            failures.append(error)

    threads = [threading.Thread(target=work, args=(seed,)) for seed in range(1, 5)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not failures


def test_a_tensor_handed_to_another_thread_is_refused():
    refusals = []

    def f(x):
        def use():
            try:
                x.sin()
            except RuntimeError as error:
                refusals.append(str(error))

        thread = threading.Thread(target=use)
        thread.start()
        thread.join()
        return x.sum()

    grad(f)(randn(3))
    assert "on another thread" in refusals[0]


def test_other_threads_run_while_a_transform_computes():
    progress, done = [], threading.Event()

    def count():
        while not done.is_set():
            progress.append(time.perf_counter())
            time.sleep(0.001)

    thread = threading.Thread(target=count)
    thread.start()
    x = torch.randn(400, 400)
    _, pullback = vjp(lambda x: torch.linalg.matrix_exp(x / 100), x)
    start = time.perf_counter()
    pullback(x)
    end = time.perf_counter()
    done.set()
    thread.join()
    during = sum(start < t < end for t in progress)
    assert during >= min(5, (end - start) / 0.02)


@pytest.mark.cpu("LibTorch's engine has a thread for each other device")
def test_python_code_in_libtorchs_autograd_runs_inside_a_pullback():
    ran = []

    class Hooked(torch.autograd.Function):
        @staticmethod
        def forward(ctx, x):
            return x * 2

        @staticmethod
        def backward(ctx, g):
            ran.append(threading.get_ident())
            return g * 2

    w = randn(3).requires_grad_()
    twice = Hooked.apply(w)
    result = grad(lambda x: (x * twice).sum())(randn(3))
    result.sum().backward()
    assert ran and all(ident == threading.get_ident() for ident in ran)
    assert_same(w.grad, torch.full((3,), 2.0).double())


WRONG_BUILD = """
import importlib.machinery, torch
{change}
import torch_tower
"""


@pytest.mark.parametrize(
    "change, found, version",
    [
        ('torch.__version__ = "1.2.3+cpu"', "but torch 1.2.3+cpu", "1.2.3"),
        ("torch.compiled_with_cxx11_abi = lambda: False", "(C++11 ABI: False) is installed", None),
        (
            'importlib.machinery.EXTENSION_SUFFIXES = [".cpython-399-x86_64-linux-gnu.so"]',
            "but this Python loads *.cpython-399-x86_64-linux-gnu.so",
            None,
        ),
    ],
)
def test_another_torch_or_python_than_it_was_built_for_is_refused_with_the_wheel_to_take(change, found, version):
    program = WRONG_BUILD.format(change=change)
    run = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, env=os.environ)
    assert run.returncode != 0
    own = torch.__version__.split("+")[0]
    assert f"ImportError: This torch_tower {torch_tower.__version__} was built for torch {own}" in run.stderr
    assert found in run.stderr
    wheel = f"{torch_tower.__version__}+torch{version or own}"
    assert f'the wheel torch_tower-{wheel} (pip install "torch_tower=={wheel}")' in run.stderr
