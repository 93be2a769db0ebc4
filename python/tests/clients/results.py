"""What the two runs of one project's tests gave, and how they differ."""

import json
import re

TORCH, TOWER = "torch.func", "torch_tower"


def path(folder, library):
    return folder / f"{library}.jsonl"


def both(folder):
    return read(path(folder, TORCH)), read(path(folder, TOWER))


def read(file):
    """{test: {outcome, message, transforms}}; the last run of a test is the one that counts."""
    tests = {}
    for line in file.read_text().splitlines() if file.exists() else ():
        line = json.loads(line)
        name = line.pop("test")
        if line.get("outcome") == "begun":
            # Nothing follows if the test ends the process.
            tests[name] = {"outcome": "failed", "message": "the process ended in this test", "transforms": 0}
        else:
            tests[name].update(line)
    return tests


def passed(tests):
    return {name for name, test in tests.items() if test["outcome"] == "passed"}


def differences(theirs, ours):
    """{test: message} of what passes with torch.func and does not with Tower."""
    lost = sorted(passed(theirs) - passed(ours))
    return {name: _first_line(ours[name]["message"]) if name in ours else "was not run" for name in lost}


def _first_line(message):
    return next((line.strip() for line in message.splitlines() if line.strip()), "")


def pattern(names):
    """Matches the tests in these folders, files, classes and functions."""
    return "|".join(rf"{re.escape(name)}(?!\w)" for name in names) or "(?!)"


def reason(test, accepted):
    """Why a difference is accepted ({name: why}), or None."""
    return next((why for name, why in accepted.items() if re.match(pattern([name]), test)), None)
