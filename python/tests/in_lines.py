"""A plugin of pytest's: each test prints GoogleTest's lines, which script/in_processes reads.

pytest -qq --no-summary -p in_lines
"""

import pytest

outcomes, seconds = {}, {}


def pytest_report_teststatus(report):
    return report.outcome, "", ""


def pytest_collection_finish(session):
    if session.config.option.collectonly:
        for item in session.items:
            print(f"[ LISTED   ] {item.nodeid}", flush=True)


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
