"""What the results say: docs/conformance.md, the work list, and the gate that holds a fast run against the document."""

from __future__ import annotations

import json
import re
from collections import defaultdict

from .backends import COMPILED, PEER, TOWER
from .rows import ROWS

NUMBERS = {row.name: number for number, row in enumerate(ROWS, start=1)}
RANK = {"untested": 0, "ok": 0, "loop": 1, "random": 1, "data": 2, "error": 2, "wrong": 3}

# The sections of the document that list Tower's cells which are not simply ok.
SECTIONS = {
    "wrong": ("Wrong answers", "There may be none; `script/conformance` fails on one."),
    "error": ("Errors", "Most rows first. Of several messages the first is quoted."),
    "data": (
        "Where an error is the only right answer",
        "The result's size, or a number for the program to branch on, would differ from example to example. These are "
        "counted as errors above.",
    ),
    "loop": ("Through the loop", "The operator runs once for each example, with a warning that names it."),
    "random": (
        "With a randomness flag",
        "Refused until `vmap` is told `randomness='different'` or `'same'`; then shapes, equality of draws and means "
        "are as they should be.",
    ),
}


def load(folder):
    """All results: {(entry, row, backend): result}. An error that is right has the outcome "data"."""
    cells = {}
    for path in sorted(folder.glob("*.json")):
        for key, result in json.loads(path.read_text()).items():
            row, backend = key.split("|")
            if result["outcome"] == "error" and result["data_dependent"]:
                result["outcome"] = "data"
            cells[path.stem, row, backend] = result
    return cells


def forget(folder, names, rows, backends):
    """Drops the results of the cells that are about to be run."""
    keys = {f"{row.name}|{backend.name}" for row in rows for backend in backends}
    for name in names:
        path = folder / f"{name}.json"
        if path.exists():
            kept = {key: result for key, result in json.loads(path.read_text()).items() if key not in keys}
            path.write_text(json.dumps(kept, indent=1, sort_keys=True))


def _counts(cells, row, backend):
    counts = defaultdict(int)
    for (_, name, library), result in cells.items():
        if name == row and library == backend:
            counts[result["outcome"]] += 1
    counts["tested"] = sum(counts.values()) - counts["untested"]
    return counts


def _by_operator(cells, backend, outcome):
    """[(operator, row numbers, first text, operators looped over)], most rows first."""
    found = defaultdict(lambda: [[], "", set()])
    for (entry, row, library), result in cells.items():
        if library == backend and result["outcome"] == outcome:
            rows, text, looped = found[entry]
            rows.append(NUMBERS[row])
            found[entry][1] = text or result["text"]
            looped.update(result["looped"])
    listed = [(entry, sorted(rows), text, sorted(looped)) for entry, (rows, text, looped) in found.items()]
    return sorted(listed, key=lambda item: (-len(item[1]), item[0]))


def _table(title, lines, right=()):
    rule = ["--:" if k in right else "---" for k in range(len(title))]
    return "\n".join("| " + " | ".join(map(str, line)) + " |" for line in [title, rule, *lines])


def _quoted(text, length=150):
    """A message's first sentence or so, for a table."""
    text = re.sub(r"^\w+\(.*?\): (?=\w)", "", text)  # the call's arguments
    text = text.replace("|", "\\|").replace("<", "&lt;").replace("*", "\\*")
    return text if len(text) <= length else text[: length - 1].rstrip() + "…"


def _totals(cells):
    lines = []
    for row in ROWS:
        line = [NUMBERS[row.name], f"`{row.name}`" if "," not in row.name and " " not in row.name else row.name]
        for backend in (TOWER, PEER):
            counts = _counts(cells, row.name, backend)
            line += [counts["tested"], counts["ok"], counts["loop"], counts["random"]]
            line += [counts["error"] + counts["data"], counts["wrong"]]
        lines.append(line)
    columns = ["tested", "ok", "loop", "flag", "error", "wrong"]
    title = ["", "row", "Tower: tested", *columns[1:], "torch.func: tested", *columns[1:]]
    return _table(title, lines, range(2, 14))


def document(cells, versions, count):
    reasons = {entry: result["data_dependent"] for (entry, _, _), result in cells.items() if result["data_dependent"]}
    text = f"""# Conformance

Written by `script/conformance`; do not edit. Every CPU entry of `op_db`, PyTorch's own operator database, goes through
fifteen rows of transforms, in Tower {versions[TOWER]} (through the Python package `torch_tower`) and in torch.func
{versions[PEER]}, measured by one harness in one run: {count} samples of each entry where it has so many, examples that
differ from each other, single precision for values and double for derivatives. Judges are the loop over the examples,
LibTorch's autograd, adjointness, and where those disagree finite differences. The outcome of an entry is that of the
worst of its samples. "Loop": right, one example at a time. "Flag": right once `vmap` is told what random numbers mean.
In rows 10 to 13 the inner `vjp` is that of the library, too; in row 14 the graph is autograd's own, and only its
backward pass is under the `vmap`. In row 15 samples are made wrong (ranks, sizes, dtypes, devices, numbers, and the
database's own `error_inputs`): a transform throws where the plain call throws, and only there;
`python/tests/conformance/mistakes.py` lists exceptions and why. Where autograd gives nan or infinity and finite
differences do not converge, there is no derivative, and nobody is judged. Entries without a derivative, an in-place
variant or an oracle are not counted in the rows that need one.

{_totals(cells)}

What follows is about Tower; the numbers are those of the rows above.
"""
    for outcome, (title, words) in SECTIONS.items():
        listed = _by_operator(cells, TOWER, outcome)
        text += f"\n## {title}\n\n{words}\n\n"
        if not listed:
            text += "None.\n"
            continue
        lines = []
        for entry, rows, message, looped in listed:
            note = ", ".join(f"`{op}`" for op in looped) if outcome == "loop" else _quoted(message)
            if outcome == "data":
                note = reasons[entry]
            lines.append([f"`{entry}`", ", ".join(map(str, rows)), note])
        text += _table(["entry", "rows", "operator" if outcome == "loop" else ""], lines) + "\n"
    text += "\n## Wrong answers of torch.func\n\n"
    lines = [[f"`{e}`", ", ".join(map(str, rows)), _quoted(t)] for e, rows, t, _ in _by_operator(cells, PEER, "wrong")]
    return text + (_table(["entry", "rows", ""], lines) if lines else "None.") + "\n"


_CELL = re.compile(r"^\| `([^`]+)` \| ([\d, ]+) \|")


def committed(path):
    """{(entry, row): outcome} of Tower's cells that the document lists; all others are ok."""
    titles = {title: outcome for outcome, (title, _) in SECTIONS.items()}
    names = {number: name for name, number in NUMBERS.items()}
    outcome, listed = None, {}
    for line in path.read_text().splitlines() if path.exists() else []:
        if line.startswith("## "):
            outcome = titles.get(line[3:])
        elif outcome and (match := _CELL.match(line)):
            for number in match[2].split(","):
                listed[match[1], names[int(number)]] = outcome
    return listed


def _work_list(cells):
    print("\nOperators to work on (rows affected):")
    for outcome in ("wrong", "error", "loop"):
        for entry, rows, text, looped in _by_operator(cells, TOWER, outcome):
            print(f"  {len(rows):2} {outcome:5} {entry}: {', '.join(looped) if outcome == 'loop' else text[:300]}")


def _gate(cells, listed, library):
    """Every cell of Tower against the document: no worse, and never a wrong answer. The number of cells that fail.

    Of the wrong calls the document lists the entries in which some are taken or refused otherwise. What reads values is
    refused by a compiled function.
    """
    of_calls = {row.name for row in ROWS if row.transform == "mistakes"}
    failed, refused = 0, []
    for (entry, row, backend), result in cells.items():
        if backend != library:
            continue
        before = listed.get((entry, row), "ok")
        if library == COMPILED and result["outcome"] == "data":
            refused.append(entry)
            continue
        wrong = result["outcome"] == "wrong" and row not in of_calls
        if wrong or RANK[result["outcome"]] > RANK[before]:
            failed += 1
            print(f"FAILED: {entry}, {row}: {result['outcome']}, was {before}: {result['text'] or result['looped']}")
    total = sum(backend == library for _, _, backend in cells)
    if refused:
        print(f"{len(refused)} refused, as they read values: {', '.join(sorted(set(refused)))}")
    print(f"{total - failed} passed, {failed} failed")
    return failed


def conclude(folder, path, fast, versions, count):
    """Prints and writes what a run gave; the exit status."""
    cells = load(folder)
    libraries = {backend for _, _, backend in cells}
    if fast or libraries == {COMPILED}:
        return 1 if _gate(cells, committed(path), COMPILED if COMPILED in libraries else TOWER) else 0
    _work_list(cells)
    text = document(cells, versions, count)
    if libraries == {TOWER, PEER}:
        path.write_text(text)
        print(f"\nWrote {path.name}")
    else:
        print(text)
    return 1 if any(c["outcome"] == "wrong" for (_, _, backend), c in cells.items() if backend == TOWER) else 0
