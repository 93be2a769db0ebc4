"""script/in_processes, with a program that prints GoogleTest's lines, and with pytest."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

pytestmark = pytest.mark.cpu("programs of its own")
SCRIPT = Path(__file__).parents[2] / "script/in_processes"

SUITE = """
import fnmatch, os, signal, sys, time

if "--gtest_list_tests" in sys.argv:
    print("Suite.", *sys.argv[1].split(), sep="\\n  ")
    sys.exit()
patterns = sys.argv[-1].removeprefix("--gtest_filter=").split(":")
for name in sys.argv[1].split():
    if not any(fnmatch.fnmatchcase("Suite." + name, pattern) for pattern in patterns):
        continue
    print("[ RUN      ] Suite." + name, flush=True)
    kind = "      OK"
    if name == "dies":
        os.kill(os.getpid(), signal.SIGKILL)
    if name == "loses_the_device":
        print("the device is lost", flush=True)
        os._exit(70)
    if name == "hangs":
        time.sleep(600)
    if name.startswith("fails"):
        print("a_test.cpp:3: Failure\\n" + str(len(name)) + " is not 4")
        kind = " FAILED "
    if name == "skips":
        print("a_test.cpp:3: Skipped\\nno GPU")
        kind = " SKIPPED"
    print("[ " + kind + " ] Suite." + name + " (1 ms)", flush=True)
print("on cuda:0: 3 calls ran, 2 of 1 operators were left out, as LibTorch cannot run them there, and 1 "
      "with wrong values, which would lose a GPU:")
print("  gru in place, 2 times: because")
"""


def in_processes(*command, processes=2, cwd=None):
    # Of the tests around it, these know nothing.
    environment = {name: value for name, value in os.environ.items() if not name.startswith(("PYTEST_", "TOWER_"))}
    environment["PYTHONPATH"] = os.pathsep.join(filter(None, sys.path))
    done = subprocess.run(
        [sys.executable, SCRIPT, "--processes", str(processes), "--silence", "20", *command],
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        env=environment,
        cwd=cwd,
    )
    return done.returncode, done.stdout


def suite(tests, **how):
    return in_processes(sys.executable, "-c", SUITE, tests, **how)


def test_all_tests_of_a_good_suite_run():
    status, said = suite("one two lab::cube vmap(vmap)/3 skips")
    assert status == 0, said
    assert "left out, 1 tests: no GPU" in said
    assert "4 passed, 0 failed, 0 died, 1 left out, 0 not run, of 5" in said


MANY = """
import sys

names = [f"test_{i}_" + 100 * "x" for i in range(3000)]
if "--gtest_list_tests" in sys.argv:
    print("Suite.", *names, sep="\\n  ")
    sys.exit()
chosen = set(sys.argv[-1].removeprefix("--gtest_filter=").split(":"))
for name in names:
    if "Suite." + name in chosen:
        print("[ RUN      ] Suite." + name)
        print("[       OK ] Suite." + name + " (1 ms)")
"""


@pytest.mark.parametrize("processes", [1, 2])
def test_the_names_of_many_tests_are_no_longer_than_an_argument_may_be(processes):
    status, said = in_processes(sys.executable, "-c", MANY, processes=processes)
    assert status == 0, said
    assert "3000 passed, 0 failed, 0 died, 0 left out, 0 not run, of 3000" in said


@pytest.mark.parametrize("processes", [1, 3])
def test_a_test_that_ends_its_process_costs_itself(processes):
    status, said = suite("a dies b loses_the_device c d e f g h i j", processes=processes)
    assert status == 1
    assert "DIED Suite.dies: ended by SIGKILL" in said
    assert "DIED Suite.loses_the_device: exit status 70: the device is lost" in said
    assert "10 passed, 0 failed, 2 died, 0 left out, 0 not run, of 12" in said


def test_a_test_that_hangs_is_ended_and_named():
    status, said = in_processes("--silence", "2", sys.executable, "-c", SUITE, "a hangs b", processes=1)
    assert status == 1
    assert "DIED Suite.hangs: hung: nothing was heard for 2 s" in said
    assert "2 passed, 0 failed, 1 died" in said


def test_failures_of_one_reason_are_told_together():
    names = [f"fails{'_' * i}" for i in range(7)]
    status, said = suite(" ".join(["a", *names]))
    assert status == 1
    assert said.count("FAILED Suite.fails") == 5
    assert "7 times: N is not N" in said
    assert all(f"Suite.{name}" in said for name in names)
    assert "1 passed, 7 failed" in said


def test_calls_that_the_device_cannot_run_are_added_up():
    _, said = suite("a b c d e f g h i", processes=1)  # more than one process takes
    assert "6 plain calls ran on the device; 2 with wrong values, which would lose a GPU, were left out" in said
    assert "and 4 that it cannot run:\n  gru in place, 4 times: because" in said


def test_a_program_that_does_not_start_passes_nothing():
    status, said = in_processes(sys.executable, "-c", "raise SystemExit(3)")
    assert status == 1
    assert "no test is listed" in said


def test_processes_that_come_to_no_test_are_started_once_more(tmp_path):
    once = (
        "import os, sys\n"
        f"if not sys.argv[-1].startswith('--gtest_list'):\n  if not os.path.exists({str(tmp_path / 'x')!r}):\n"
    )
    once += f"    open({str(tmp_path / 'x')!r}, 'w')\n    os._exit(3)\n"
    status, said = in_processes(sys.executable, "-c", once + SUITE, "a", processes=1)
    assert status == 0, said
    status, said = in_processes(
        sys.executable, "-c", SUITE.replace("patterns =", "sys.exit('no memory')\npatterns ="), "a b"
    )
    assert status == 1
    assert "NOT RUN Suite.a: exit status 1: no memory" in said
    assert "0 passed, 0 failed, 0 died, 0 left out, 2 not run, of 2" in said


def test_pytest_runs_in_processes_too(tmp_path):
    (tmp_path / "test_it.py").write_text(
        "import os, pytest\n"
        "@pytest.mark.parametrize('name', ['one', 'with a blank'])\n"
        "def test_good(name): pass\n"
        "def test_bad(): assert 1 + 1 == 3\n"
        "def test_gone(): os._exit(70)\n"
        "def test_left(): pytest.skip('no NumPy')\n"
        "@pytest.fixture\n"
        "def broken():\n"
        "    yield\n"
        "    raise ValueError('afterwards')\n"
        "def test_broken(broken): pass\n"
    )
    status, said = in_processes(sys.executable, "-m", "pytest", "-c", "/dev/null", "--rootdir", ".", cwd=tmp_path)
    assert status == 1
    assert "test_bad: assert (1 + 1) == 3" in said
    assert "test_gone: exit status 70" in said
    assert "test_broken: ValueError: afterwards" in said
    assert "no NumPy" in said
    assert "2 passed, 2 failed, 1 died, 1 left out, 0 not run, of 6" in said


def test_a_file_that_cannot_be_imported_is_no_file_without_tests(tmp_path):
    (tmp_path / "test_good.py").write_text("def test_good(): pass\n")
    (tmp_path / "test_broken.py").write_text("import no_such_module\n")
    status, said = in_processes(sys.executable, "-m", "pytest", "-c", "/dev/null", "--rootdir", ".", cwd=tmp_path)
    assert status == 1
    assert "the tests cannot be listed" in said and "No module named 'no_such_module'" in said
