"""Compiled functions on several Python threads. Each program runs in a process of its own, for threads that wait for
each other cannot be ended."""

import subprocess
import sys
import textwrap

import pytest

PRELUDE = """
import sys, threading, time
import torch
from torch_tower import compile, grad, vmap

sys.setswitchinterval(1e-5)
failed = []

def on_threads(*functions):
    def run(f):
        try:
            f()
        except BaseException as error:
            failed.append(error)
    threads = [threading.Thread(target=run, args=(f,)) for f in functions]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    if failed:
        raise failed[0]

def equal(a, b):
    torch.testing.assert_close(a, b)
"""

PROGRAMS = {
    "how many graphs there are, while others are traced": """
        # Trees of results are compared, in Python, where two graphs may be of one family.
        f = compile(lambda x: {"y": (x * 2).sin(), "how": "sin"})
        done = threading.Event()
        def trace():
            try:
                for size in range(1, 40):
                    for rows in (size, size + 50):
                        x = torch.ones(rows, size, dtype=torch.float64)
                        equal(f(x)["y"], (x * 2).sin())
            finally:
                done.set()
        def ask():
            while not done.is_set():
                assert f.graphs() >= 0
        on_threads(trace, ask, ask)
        """,
    "keys whose comparison lets other threads run": """
        class Scale:
            def __init__(self, value):
                self.value = value
            def __eq__(self, other):
                time.sleep(0)
                return isinstance(other, Scale) and self.value == other.value
        traced = []
        @compile
        def f(x, scale):
            traced.append(scale.value)
            return x * scale.value
        x = torch.ones(3)
        def call(first):
            for i in range(120):
                value = (first * 7 + i * (first + 1)) % 20
                equal(f(x, Scale(value)), x * value)
        on_threads(*[lambda first=first: call(first) for first in range(4)])
        # Nothing was lost: all are known.
        count = len(traced)
        for value in range(20):
            f(x, Scale(value))
        assert len(traced) == count, (len(traced), count)
        assert f.graphs() >= 20
        """,
    "keys whose comparison calls the function": """
        class Scale:
            depth = 0
            def __init__(self, value):
                self.value = value
            def __eq__(self, other):
                if Scale.depth < 2:
                    Scale.depth += 1
                    equal(f(x, Scale(self.value + 1)), x * (self.value + 1))
                    Scale.depth -= 1
                return isinstance(other, Scale) and self.value == other.value
        x = torch.ones(3)
        f = compile(lambda x, scale: x * scale.value)
        for _ in range(3):
            for value in range(3):
                equal(f(x, Scale(value)), x * value)
        """,
    "what goes with a graph calls the function": """
        class Scale:
            def __init__(self, value):
                self.value = value
            def __eq__(self, other):
                return isinstance(other, Scale) and self.value == other.value
            def __del__(self):
                if self.value > 0:
                    equal(f(x, Scale(0)), x * 0)
        x = torch.ones(3)
        f = compile(lambda x, scale: x * scale.value)
        for value in range(1, 80):
            equal(f(x, Scale(value)), x * value)
        """,
    "graphs, images, reports and files": """
        import tempfile
        from torch_tower import load
        energy = lambda x: ((x * x + 0.3).log().sin() * x + x.exp()).sum()
        f = compile(energy)
        mapped = compile(lambda x, how: {"g": vmap(grad(energy))(x), "how": how})
        folder = tempfile.mkdtemp()
        def work(thread):
            for i in range(15):
                size = 1 + (i * 5 + thread * 3) % 11
                x = torch.rand(size, 3, dtype=torch.float64)
                equal(f(x), energy(x))
                how = "abc"[(i + thread) % 3]
                found = mapped(x, how)
                equal(found["g"], vmap(grad(energy))(x))
                assert found["how"] == how
                equal(grad(f)(x), grad(energy)(x))
                equal(vmap(f)(x), vmap(energy)(x))
                if i % 5 == thread:
                    assert f.graphs() > 0 and f.report() + mapped.report()
                    f.save(f"{folder}/{thread}")
                    equal(load(f"{folder}/{thread}")(x), energy(x))
        on_threads(*[lambda thread=thread: work(thread) for thread in range(4)])
        """,
}


@pytest.mark.parametrize("name", PROGRAMS)
def test_threads_do_not_wait_for_each_other(name):
    program = PRELUDE + textwrap.dedent(PROGRAMS[name])
    ended = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, timeout=120)
    assert ended.returncode == 0, ended.stderr
