"""What the site holds: links that lead somewhere, every public name, every comment, the numbers that were measured."""

import ast
import html
import html.parser
import json
import os
import re
import sys
import urllib.parse
import zlib

import pytest
from conftest import ROOT, SITE, pages


class Seen(html.parser.HTMLParser):
    """The ids of a page, what it links, what it loads, and its text."""

    def __init__(self):
        super().__init__()
        self.ids, self.links, self.loads, self.text = set(), [], [], []
        self.silent = 0
        self.open_links, self.nested = 0, []

    def handle_starttag(self, tag, attributes):
        given = dict(attributes)
        self.silent += tag in ("script", "style")
        if "id" in given:
            self.ids.add(given["id"])
        if tag == "a":
            self.nested += [given.get("href")] if self.open_links else []
            self.open_links += 1
        if tag == "a" and "name" in given:
            self.ids.add(given["name"])
        if tag == "a" and given.get("href"):
            self.links.append(given["href"])
        if tag in ("script", "img", "iframe", "source") and given.get("src"):
            self.loads.append(given["src"])
        if tag == "link" and given.get("rel") not in ("index", "search", "next", "prev", "canonical"):
            self.loads.append(given["href"])

    def handle_endtag(self, tag):
        self.silent -= tag in ("script", "style")
        self.open_links -= tag == "a"

    def handle_data(self, data):
        if not self.silent:
            self.text.append(data)


@pytest.fixture(scope="module")
def seen():
    every = {}
    for path in pages(sources=True):
        every[path] = Seen()
        every[path].feed((SITE / path).read_text(encoding="utf-8"))
    return every


@pytest.fixture(scope="module")
def text(seen):
    """The text of all pages but those of sources, without spaces."""
    return squeezed(" ".join("".join(page.text) for path, page in seen.items() if not path.startswith("source/")))


def squeezed(words):
    """Without what the two ways to write a text differ in: spaces, quotes that became curly."""
    words = words.replace("“", '"').replace("”", '"').replace("’", "'").replace("‘", "'").replace("`", "")
    words = words.replace("…", "...").replace("–", "--").replace("—", "---").replace("---", "-").replace("--", "-")
    return re.sub(r"\s+", "", words)


def test_every_link_leads_to_a_page_and_an_anchor_that_are_there(seen):
    broken = []
    for path, page in seen.items():
        for link in page.links + page.loads:
            address = urllib.parse.urlsplit(link)
            if address.scheme:
                continue
            target = (
                os.path.normpath(os.path.join(os.path.dirname(path), urllib.parse.unquote(address.path)))
                if address.path
                else path
            )
            if not (SITE / target).is_file():
                broken.append(f"{path}: {link}")
            elif address.fragment and target in seen and urllib.parse.unquote(address.fragment) not in seen[target].ids:
                broken.append(f"{path}: {link} (no such anchor)")
    assert not broken, "\n".join(sorted(set(broken))[:40])


def test_no_link_is_inside_of_another(seen):
    """A browser takes them apart, and leaves one without words."""
    assert not [(path, link) for path, page in seen.items() for link in page.nested]


def test_nothing_is_loaded_from_elsewhere(seen):
    assert not [
        (path, load) for path, page in seen.items() for load in page.loads if urllib.parse.urlsplit(load).netloc
    ]


def test_every_page_is_reached_from_the_front_page(seen):
    reached, waiting = {"index.html"}, ["index.html"]
    while waiting:
        path = waiting.pop()
        for link in seen[path].links:
            address = urllib.parse.urlsplit(link)
            target = os.path.normpath(os.path.join(os.path.dirname(path), address.path))
            if not address.scheme and address.path and target in seen and target not in reached:
                reached.add(target)
                waiting.append(target)
    assert set(seen) - reached <= {"search.html", "py-modindex.html"}


def objects():
    """The names of the reference, as other sites would link them."""
    inventory = (SITE / "objects.inv").read_bytes()
    lines = zlib.decompress(inventory.split(b"zlib.\n", 1)[1]).decode().splitlines()
    return {(found[2], found[1]) for line in lines if (found := re.match(r"(.+?) (\w+):\S+ -?\d+ ", line))}


def test_every_name_of_torch_tower_is_in_the_reference():
    tree = ast.parse((ROOT / "python/torch_tower/__init__.py").read_text(encoding="utf-8"))
    public = next(
        ast.literal_eval(n.value)
        for n in tree.body
        if isinstance(n, ast.Assign) and ast.unparse(n.targets[0]) == "__all__"
    )
    there = objects()
    missing = [name for name in public if name != "memory" and ("py", f"torch_tower.{name}") not in there]
    assert len(public) > 60 and not missing


def test_what_examples_and_documents_call_is_in_the_reference():
    """Names that a reader meets in code: an oracle that is not the headers' reader."""
    there = {name for domain, name in objects() if domain == "cpp"}
    used = set()
    for folder, ending in (("examples", "*.h"), ("examples", "*.cpp"), ("docs", "*.md"), ("tests/install", "*.cpp")):
        for path in (ROOT / folder).rglob(ending):
            code = path.read_text(encoding="utf-8")
            if ending == "*.md":
                code = "\n".join(re.findall(r"^```cpp\b(?! quote).*?\n(.*?)^```", code, re.M | re.S))
            used |= set(re.findall(r"\btower::(\w+)", code))
    inside = {"detail", "dynamic", "frontend", "records", "compiler", "core"}
    # What the pages about the library's inside name.
    internal = {
        name for name in used if re.search(rf"\b(class|struct|namespace) {name}\b|\b{name}\(", sources_inside())
    }
    missing = {name for name in used - inside if f"tower::{name}" not in there} - (internal - public_words())
    assert len(used) > 60 and not missing, sorted(missing)


def sources_inside():
    return "\n".join(path.read_text(encoding="utf-8") for path in (ROOT / "src").rglob("*.h"))


def public_words():
    return set(
        re.findall(r"\w+", "\n".join(p.read_text(encoding="utf-8") for p in (ROOT / "include/tower").glob("*.h")))
    )


def test_every_comment_of_the_headers_is_on_the_site(text):
    """What is in front of public declarations; those of `detail`, and of what is private, are not for users."""
    lost = []
    count = 0
    for path in sorted((ROOT / "include/tower").glob("*.h")):
        lines = path.read_text(encoding="utf-8").splitlines()
        detail = private = False
        for number, line in enumerate(lines, 1):
            if re.match(r"namespace (\w+::)*detail\b.*\{", line):
                detail = True
            if re.match(r"\}  // namespace (\w+::)*detail", line):
                detail = False
            if re.match(r" (private|protected):", line):
                private = True
            if re.match(r"\};| public:", line):
                private = False
            comment = re.search(r"///<? ?(.*)$", line)
            if comment and not detail and not private:
                count += 1
                if squeezed(comment[1]) not in text:
                    lost.append(f"{path.name}:{number}: {comment[1]}")
    assert count > 300 and not lost, "\n".join(lost)


def luminance(colour):
    parts = [int(colour[i : i + 2], 16) / 255 for i in (1, 3, 5)]
    linear = [p / 12.92 if p <= 0.04045 else ((p + 0.055) / 1.055) ** 2.4 for p in parts]
    return 0.2126 * linear[0] + 0.7152 * linear[1] + 0.0722 * linear[2]


def contrast(a, b):
    bright, dark = sorted((luminance(a), luminance(b)), reverse=True)
    return (bright + 0.05) / (dark + 0.05)


def test_figures_can_be_read_in_light_and_dark():
    """Contrasts by WCAG: 4.5 for what is written, in every colour that words are written in."""
    sys.path.insert(0, str(ROOT / "docs/figures"))
    import svg

    for k in (0, 1):
        for name in ("ink", "faint", "c0", "c1", "c2", "c3", "c4"):
            assert contrast(svg.COLOURS[name][k], svg.COLOURS["ground"][k]) >= 4.5, (name, k)
    for path in (SITE / "../source/figures").glob("*.svg"):
        text = path.read_text(encoding="utf-8")
        assert re.search(r'role="img" aria-label="[^"]+"', text) and "prefers-color-scheme:dark" in text, path


def test_figures_show_the_numbers_that_the_documents_have():
    for path in sorted((ROOT / "docs/figures/data").glob("*.json")):
        data = json.loads(path.read_text(encoding="utf-8"))
        assert data["command"].startswith("script/")
        assert (ROOT / data["command"].split()[0]).is_file()
        if "document" not in data:
            continue
        words = (ROOT / data["document"]).read_text(encoding="utf-8").replace(",", "")
        for row in data["rows"]:
            for value in row["values"]:
                scaled = (
                    [value] if value is None or data["unit"] != "ms" else [value, value * 1e3, value * 1e6, value / 1e3]
                )
                if value is not None:
                    shown = {f"{v:.6g}" for v in scaled} | {f"{v:.1f}" for v in scaled} | {f"{v:.2f}" for v in scaled}
                    assert any(re.search(rf"(?<![\d.]){re.escape(s)}(?![\d])", words) for s in shown), (path.name, row)
