"""What script/clients counts: tests of a project that pass with torch.func and fail with Tower in its place."""

import sys

import pytest
from clients import report, results, setting
from clients.projects import Project
from clients.results import TORCH, TOWER

# Its programs start nine processes, and nothing that users see is made by it.
pytestmark = pytest.mark.weekly("of script/clients, a tool of ours")

TESTS = """
import os
import pytest
import torch
import torch._dynamo  # torch.func.grad does, which takes longer than a test may
from functorch import grad
from torch.func import vmap

def tower():
    return os.environ["CLIENT_LIBRARY"] == "torch_tower"

def test_that_passes():
    def f(x):
        assert torch._C._functorch.is_batchedtensor(x) != tower()
        return grad(torch.sin)(x)

    assert vmap(f)(torch.zeros(3)).sum() == 3

def test_of_internals():
    assert not tower(), "asks\\nan internal"

def test_left_out():
    pass

def test_that_always_fails():
    assert False

def test_that_needs_nothing_of_func():
    assert torch.rand(()) != 2

@pytest.mark.parametrize("i", range(9))
def test_of_many_cases(i):
    pass

def test_that_hangs():
    while tower():
        pass

@pytest.fixture
def prepared():
    assert not tower(), "in the setup"

def test_with_a_fixture(prepared):
    pass

def test_that_ends_the_process():
    if tower():
        os._exit(1)
"""


@pytest.fixture(scope="module")
def toy(tmp_path_factory):
    folder = tmp_path_factory.mktemp("clients")
    (folder / "tests" / "tests").mkdir(parents=True)
    (folder / "tests" / "tests" / "test_toy.py").write_text(TESTS)
    project = Project(
        "toy",
        "toy==1.0",
        "tests",
        repository="here",
        left_out={
            "tests/test_toy.py::test_that": "a name, not a beginning",
            "tests/test_toy.py::test_left_out": "it is",
        },
        accepted={"tests/test_toy.py::test_of_internals": "ours"},
    )
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("PYTHONPATH", ":".join(sys.path))
        for library in (TORCH, TOWER):
            setting.run(project, folder, library, cases=3, seconds=5)
    return project, folder


def test_tests_that_pass_with_torch_func_only_are_the_differences(toy):
    theirs, ours = results.both(toy[1])
    differences = {name.partition("::")[2]: text for name, text in results.differences(theirs, ours).items()}
    assert differences == {
        "test_of_internals": "AssertionError: asks",
        "test_that_hangs": "Failed: not done after 5 seconds",
        "test_with_a_fixture": "AssertionError: in the setup",
        "test_that_ends_the_process": "the process ended in this test",
    }


def test_a_project_is_tested_with_the_library_that_is_asked_for(toy):
    for tests in results.both(toy[1]):
        assert tests["tests/test_toy.py::test_that_passes"]["transforms"] == 2
        assert tests["tests/test_toy.py::test_that_needs_nothing_of_func"]["transforms"] == 0


def test_cases_are_kept_evenly(toy):
    kept = [name for name in results.both(toy[1])[0] if "many_cases" in name]
    assert [name[-2] for name in kept] == ["0", "3", "6"]


def test_what_is_left_out_is_named_as_a_whole(toy):
    names = results.both(toy[1])[0]
    assert "tests/test_toy.py::test_left_out" not in names
    assert "tests/test_toy.py::test_that_passes" in names


def test_the_table_tells_accepted_differences_from_failures(toy, capsys):
    project, folder = toy
    assert report.print_table([(project, *results.both(folder))]) == 1
    printed = capsys.readouterr().out
    assert "accepted: toy tests/test_toy.py::test_of_internals\n    AssertionError: asks\n    ours\n" in printed
    assert "FAILED: toy tests/test_toy.py::test_with_a_fixture\n    AssertionError: in the setup\n" in printed
    assert printed.splitlines()[-1] == "| toy 1.0 | 9 | 1 | 5 | 1 | 3 |"


def test_a_project_without_tests_is_a_line_of_the_table(capsys):
    project = Project("toy", "toy==1.0", "tests", repository="https://there", tag="v1")
    assert report.print_table([(project, {}, {})]) == 0
    assert "git clone --branch v1 https://there build/clients/checkouts/toy" in capsys.readouterr().out
