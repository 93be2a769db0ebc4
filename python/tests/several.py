"""Programs that run in several processes."""

import pathlib
import re
import socket
import subprocess
import sys
import textwrap

import pytest

ROOT = pathlib.Path(__file__).resolve().parents[2]


def reach_each_other() -> bool:
    """Not where there is no network at all, not even the loopback interface."""
    with socket.create_server(("127.0.0.1", 0)) as listener:
        try:
            socket.create_connection(listener.getsockname(), timeout=5).close()
        except OSError:
            return False
    return True


of_several = pytest.mark.skipif(not reach_each_other(), reason="no loopback interface, so processes cannot meet")


def run_in_processes(count, source, folder, status=0):
    """The lines that a program printed, sorted, each behind its process's number; it exits with `status`. LibTorch's
    warnings are left out: where no names are known, c10d warns of that."""
    program = folder / "program.py"
    program.write_text(textwrap.dedent(source))
    ended = subprocess.run(
        [sys.executable, ROOT / "script" / "launch", "-n", str(count), sys.executable, program],
        capture_output=True,
        text=True,
        timeout=120,
    )
    if "was built without" in ended.stdout:
        pytest.skip("Tower was built without c10d or gloo")
    assert ended.returncode == status, ended.stdout + ended.stderr
    return sorted(line for line in ended.stdout.splitlines() if not re.match(r"\[\d+\] \[W\d", line))
