"""A plugin of pytest's: each test prints GoogleTest's lines, which script/in_processes reads.

pytest -qq --no-summary -p in_lines [--batches]

With --batches: for each line of the standard input, a list of tests' names in JSON, a process that runs those is
forked from this one, which has imported and collected all that was named. After each a line "[ ENDED    ] N": the
process's exit status, or, of one that a signal ended, the signal's number with a minus. The line `null` asks for a
line "[ LISTED   ] …" with all names.
"""

import gc
import json
import os

import pytest

outcomes, seconds = {}, {}
asked = os.dup(0)  # what pytest captures of a test has nothing to read


def pytest_addoption(parser):
    parser.addoption("--batches", action="store_true", help="the tests of each line of the standard input")


def pytest_collectreport(report):
    if report.failed:
        print(report.longreprtext, flush=True)


@pytest.hookimpl(tryfirst=True)
def pytest_runtestloop(session):
    if not session.config.option.batches or session.testsfailed:
        return None
    gc.freeze()  # no child is to look at it, and so to copy it
    with open(asked) as batches:
        for names in map(json.loads, batches):
            if names is None:
                print(f"[ LISTED   ] {json.dumps([item.nodeid for item in session.items])}", flush=True)
                continue
            child = os.fork()
            if child == 0:
                wanted = set(names)
                session.items = [item for item in session.items if item.nodeid in wanted]
                return None  # and goes on as if these had been collected
            ended = os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
            print(f"[ ENDED    ] {ended}", flush=True)
    return True


def pytest_report_teststatus(report):
    return report.outcome, "", ""


def pytest_runtest_logstart(nodeid):
    print(f"\n[ RUN      ] {nodeid}", flush=True)


def pytest_runtest_logreport(report):
    seconds[report.nodeid] = seconds.get(report.nodeid, 0) + report.duration
    kind = {"passed": "      OK", "failed": " FAILED ", "skipped": " SKIPPED"}[report.outcome]
    if report.failed or outcomes.get(report.nodeid, "      OK") == "      OK":
        outcomes[report.nodeid] = kind
    if report.failed:
        # What was thrown comes first, where it was thrown after it.
        crash = getattr(report.longrepr, "reprcrash", None)
        print(crash.message if crash else "", report.longreprtext, sep="\n", flush=True)
    elif report.skipped:
        print(report.longrepr[2] if isinstance(report.longrepr, tuple) else report.longreprtext, flush=True)


@pytest.hookimpl(trylast=True)
def pytest_runtest_logfinish(nodeid):
    print(f"[ {outcomes.pop(nodeid)} ] {nodeid} ({1000 * seconds.pop(nodeid):.0f} ms)", flush=True)
