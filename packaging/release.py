#!/usr/bin/env python3
"""Writes a version where the repository says which it is.

    packaging/release.py VERSION DATE       the header, the recipes, CITATION.cff, and the changelog's section
    packaging/release.py --notes VERSION    prints that section

The changelog is as keepachangelog.com has it: what is below "## [Unreleased]" gets the version and the date for its
heading, and an empty section takes its place. A first release may find its section there already.
"""

import re
import sys
from pathlib import Path

ROOT = Path(__file__).parents[1]
CHANGELOG = ROOT / "CHANGELOG.md"
UNRELEASED = re.compile(r"^## \[?Unreleased\]?[^\n]*\n", re.MULTILINE | re.IGNORECASE)


def heading(version: str) -> re.Pattern:
    return re.compile(rf"^## \[?{re.escape(version)}\]?(?= |$)[^\n]*\n", re.MULTILINE)


def below(text: str, start: int) -> str:
    """What stands between a heading, which ends at `start`, and the next one or the links at the end."""
    end = re.compile(r"^(## |\[[^\]]+\]: )", re.MULTILINE).search(text, start)
    return text[start : end.start() if end else len(text)].strip()


def in_changelog(text: str, version: str, date: str) -> str:
    unreleased = UNRELEASED.search(text)
    changes = below(text, unreleased.end()) if unreleased else ""
    written = heading(version).search(text)
    if written and changes:
        sys.exit(f"release: CHANGELOG.md has a section {version}, and changes that are not released beside it")
    if written:
        return text[: written.start()] + f"## [{version}] - {date}\n" + text[written.end() :]
    if not changes:
        sys.exit("release: CHANGELOG.md names no change that is not released")
    return text[: unreleased.end()] + f"\n## [{version}] - {date}\n" + text[unreleased.end() :]


def substitute(path: str, *changes: tuple[str, str]) -> None:
    file = ROOT / path
    text = file.read_text()
    for pattern, replacement in changes:
        text, found = re.subn(pattern, replacement, text, count=1, flags=re.MULTILINE)
        if not found:
            sys.exit(f"release: {path} has no {pattern}")
    file.write_text(text)


def write(version: str, date: str) -> None:
    CHANGELOG.write_text(in_changelog(CHANGELOG.read_text(), version, date))
    for name, number in zip(("MAJOR", "MINOR", "PATCH"), version.split(".")):
        substitute("include/tower/version.h", (rf"(TOWER_VERSION_{name}) \d+", rf"\1 {number}"))
    substitute("packaging/conda/recipe.yaml", (r'^  version: "[^"]*"', f'  version: "{version}"'))
    substitute("packaging/vcpkg/tower/vcpkg.json", (r'"version": "[^"]*"', f'"version": "{version}"'))
    if (ROOT / "CITATION.cff").exists():
        substitute(
            "CITATION.cff",
            (r"^version: .*$", f"version: {version}"),
            (r"^date-released: .*$", f'date-released: "{date}"'),
        )


def main() -> None:
    if sys.argv[1] == "--notes":
        text = CHANGELOG.read_text()
        print(below(text, heading(sys.argv[2]).search(text).end()))
    else:
        write(*sys.argv[1:])


if __name__ == "__main__":
    main()
