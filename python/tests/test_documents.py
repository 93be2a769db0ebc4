"""The documents hang together: links lead somewhere, and one version stands everywhere."""

import re
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
DOCUMENTS = [
    file
    for pattern in ("*.md", "docs/*.md", "python/README.md", "examples/*/README.md", ".github/**/*.md")
    for file in sorted(ROOT.glob(pattern))
]
LINK = re.compile(r"(?<!!)\[(?:[^\[\]]|\[[^\]]*\])*\]\(([^()\s]+)\)")


def prose(file):
    """The text without fenced blocks and spans of code, whose brackets are no links."""
    text = re.sub(r"^```.*?^```$", "", file.read_text(encoding="utf-8"), flags=re.M | re.S)
    return re.sub(r"`[^`\n]*`", lambda code: re.sub(r"[\[\]()]", "", code[0]), text)


def anchors(file):
    """Of a heading as hosts of Markdown make them: letters, digits, - and _, spaces as -."""
    headings = re.findall(r"^#+ (.*)$", prose(file), re.M)
    return {re.sub(r"[^\w\- ]", "", heading.lower()).replace(" ", "-") for heading in headings}


@pytest.mark.parametrize("file", DOCUMENTS, ids=lambda file: str(file.relative_to(ROOT)))
def test_every_link_of_a_document_leads_to_a_file_and_to_a_heading_that_are_there(file):
    lost = []
    for link in LINK.findall(prose(file)):
        if re.match(r"\w+:", link):
            continue
        path, _, anchor = link.partition("#")
        target = (file.parent / path).resolve() if path else file
        if not target.exists() or (anchor and target.suffix == ".md" and anchor not in anchors(target)):
            lost.append(link)
    assert not lost


def test_the_readme_s_pictures_are_there():
    pictures = re.findall(r'(?:src|srcset)="([^"]+)"', (ROOT / "README.md").read_text(encoding="utf-8"))
    assert pictures and all((ROOT / picture).exists() for picture in pictures)


def test_citation_and_changelog_know_the_version_of_the_headers():
    numbers = re.findall(r"TOWER_VERSION_\w+ (\d+)", (ROOT / "include/tower/version.h").read_text())
    version = ".".join(numbers)
    assert f"\nversion: {version}\n" in (ROOT / "CITATION.cff").read_text()
    assert re.search(rf"^## \[{re.escape(version)}\]", (ROOT / "CHANGELOG.md").read_text(), re.M)
