"""What the site has that Sphinx does not bring.

{source}`text <path:line>`   links the source of a file, which is a page of its own, with its lines
`tower::vmap`, `tower/tree.h`, `torch_tower.grad`, `src/core/level.h` in the text of documents are links, too
search.js                    an index of names and sections that works without a server (static/search-page.js)
"""

import html
import json
import pathlib
import re
from typing import Any, Iterator

from docutils import nodes
from pygments import highlight
from pygments.formatters import HtmlFormatter
from pygments.lexers import get_lexer_for_filename
from pygments.util import ClassNotFound
from sphinx import addnodes
from sphinx.application import Sphinx
from sphinx.util.docutils import SphinxDirective, SphinxRole

# Where files of the repository can be that the text names.
FOLDERS = ("include/", "src/", "tests/", "bench/", "examples/", "python/", "script/", "cmake/", "docs/")


class Source(nodes.Inline, nodes.TextElement):
    """A link to the source of a file."""


class SourceRole(SphinxRole):
    def run(self):
        found = re.fullmatch(r"(.*) <([^:>]+)(?::(\d+))?>", self.text, re.S)
        text, path, line = found.groups() if found else (self.text, self.text, None)
        return [source_link(self.env, text, path, line)], []


def source_link(env: Any, text: str, path: str, line: str | None = None, literal: bool = True) -> nodes.Node:
    if not (pathlib.Path(env.app.config.tower_root) / path).is_file():
        raise ValueError(f"there is no {path}")
    env.tower_sources.add(path)
    node = Source("", "", nodes.literal(text, text) if literal else nodes.Text(text))
    node["path"], node["line"] = path, line
    return node


def _url_of_source(path: str) -> str:
    return f"source/{path}.html"


def visit_source(self: Any, node: Source) -> None:
    from sphinx.util.osutil import relative_uri

    builder = self.builder
    url = relative_uri(builder.get_target_uri(builder.current_docname), _url_of_source(node["path"]))
    anchor = f"#L{node['line']}" if node["line"] else ""
    self.body.append(f'<a class="source reference internal" href="{url}{anchor}">')


def depart_source(self: Any, _: Source) -> None:
    self.body.append("</a>")


class Figure(SphinxDirective):
    """```{drawing} NAME: the figure docs/figures/draw makes of that name; what is in the block is its caption."""

    required_arguments = 1
    has_content = True

    def run(self):
        path = pathlib.Path(self.env.srcdir) / "figures" / f"{self.arguments[0]}.svg"
        self.env.note_dependency(str(path))
        drawn = path.read_text(encoding="utf-8")
        box = f'<div class="drawing" tabindex="0" role="group" aria-label="a figure">{drawn}</div>'
        caption = nodes.container(classes=["drawing-caption"])
        self.state.nested_parse(self.content, self.content_offset, caption)
        return [nodes.raw("", box, format="html"), *([caption] if self.content else [])]


# Names in the text


def link_names(app: Sphinx, doctree: nodes.document) -> None:
    """Literals that name something public, or a file, become links."""
    root = pathlib.Path(app.config.tower_root)
    for literal in list(doctree.findall(nodes.literal)):
        linked = (nodes.title, nodes.reference, addnodes.pending_xref, Source)
        if literal.get("classes") or any(isinstance(node, linked) for node in _parents(literal)):
            continue
        text = literal.astext()
        found = re.fullmatch(r"((?:tower::|torch_tower\.)[\w:.]+)(?:\(.*\))?(?:<.*>)?", text)
        path = text.partition(":")[0]
        if found:
            cpp = found[1].startswith("tower::")
            link = addnodes.pending_xref(
                "", refdomain="cpp" if cpp else "py", reftype="any" if cpp else "obj", reftarget=found[1], refwarn=False
            )
            if cpp:
                link["cpp:parent_key"] = None
            literal.replace_self(link)
            link += literal
        elif re.fullmatch(r"tower/\w+\.h", text) and (root / "include" / text).is_file():
            link = addnodes.pending_xref(
                "", refdomain="std", reftype="ref", reftarget=f"header-{text[6:-2]}", refexplicit=True, refwarn=True
            )
            literal.replace_self(link)
            link += literal
        elif path.startswith(FOLDERS) and re.fullmatch(r"[\w./-]+", path) and (root / path).is_file():
            literal.replace_self(source_link(app.env, text, path))


def _parents(node: nodes.Node) -> Iterator[nodes.Node]:
    while node := node.parent:
        yield node


def captions_of_quotes(app: Sphinx, doctree: nodes.document) -> None:
    """The caption of a quoted piece of a file is its path."""
    for caption in list(doctree.findall(nodes.caption)):
        path = caption.astext()
        if path.startswith(FOLDERS) and (pathlib.Path(app.config.tower_root) / path).is_file():
            caption.children = []
            caption += source_link(app.env, path, path)


def reachable(app: Sphinx, doctree: nodes.document) -> None:
    """Tables scroll by themselves where they are wide."""
    for table in list(doctree.findall(nodes.table)):
        box = nodes.container(classes=["table-box"])
        table.replace_self(box)
        box += table


# Pages of sources


def source_pages(app: Sphinx) -> Iterator[tuple[str, dict[str, Any], str]]:
    root = pathlib.Path(app.config.tower_root)
    # The navigation is the same but for the way back to the front page: half of the time would go to making it anew.
    trees: dict[int, str] = {}

    def navigation(page: str) -> Any:
        def toctree(**options: Any) -> str:
            depth = page.count("/")
            if depth not in trees:
                trees[depth] = app.builder._get_local_toctree(page, **options)
            return trees[depth]

        return toctree

    for path in sorted(app.env.tower_sources | {str(p.relative_to(root)) for p in root.glob("include/tower/*.h")}):
        text = (root / path).read_text(encoding="utf-8", errors="replace")
        try:
            lexer = get_lexer_for_filename(path if "." in pathlib.Path(path).name else f"{path}.sh", stripnl=False)
        except ClassNotFound:
            lexer = get_lexer_for_filename("file.txt", stripnl=False)
        if path.endswith(".h"):
            lexer = get_lexer_for_filename("file.cpp", stripnl=False)
        lines = highlight(text, lexer, HtmlFormatter(nowrap=True)).rstrip("\n").split("\n")
        numbered = "\n".join(
            f'<span class="line" id="L{n}"><a class="number" href="#L{n}" aria-label="line {n}">{n}</a>{line}</span>'
            for n, line in enumerate(lines, 1)
        )
        name = html.escape(path)
        body = (
            f'<h1 class="source-title">{name}</h1>'
            f'<div class="highlight source-file" tabindex="0" role="region" aria-label="{name}">'
            f"<pre>{numbered}</pre></div>"
        )
        page = f"source/{path}"
        yield page, {"title": path, "body": body, "toctree": navigation(page)}, "page.html"


# Search


def index_of(app: Sphinx) -> list[dict[str, str]]:
    """An entry for each public name and each section."""
    names = {}  # by where they are
    for domain, language in (("cpp", "C++"), ("c", "C++"), ("py", "Python")):
        for name, _, kind, docname, anchor, _ in app.env.domains[domain].get_objects():
            if kind not in ("functionParam", "templateParam", "module", "templateTypeParam"):
                names[docname, anchor] = (name, f"{language} {kind}")
    entries: list[dict[str, str]] = []
    for docname in sorted(app.env.found_docs):
        doctree = app.env.get_doctree(docname)
        page = app.env.titles[docname].astext()
        url = app.builder.get_target_uri(docname)
        for desc in doctree.findall(addnodes.desc):
            said = next((p for p in desc[-1].children if isinstance(p, nodes.paragraph)), None)
            text = "" if said is None or "declared" in said["classes"] else said.astext()
            ids = [i for node in desc.children[:-1] for part in (node, *node.children) for i in _ids(part)]
            for anchor in dict.fromkeys(ids):
                if found := names.pop((docname, anchor), None):
                    entries.append({"n": found[0], "k": found[1], "u": f"{url}#{anchor}", "s": text, "p": page})
        for section in doctree.findall(nodes.section):
            text = " ".join(_text_of(section))
            top = isinstance(section.parent, nodes.document)
            anchor = "" if top else f"#{section['ids'][0]}"
            title = section.next_node(nodes.title).astext()
            entries.append({"t": title, "u": url + anchor, "s": re.sub(r"\s+", " ", text), "p": page})
    return entries


def _ids(node: nodes.Node) -> list[str]:
    return node.get("ids", []) if isinstance(node, nodes.Element) else []


def _text_of(section: nodes.section) -> Iterator[str]:
    """Text of a section that is not that of sections or names inside of it."""
    for child in section.children:
        if isinstance(child, (nodes.section, nodes.title, addnodes.desc, addnodes.index, addnodes.toctree)):
            continue
        if not isinstance(child, (nodes.raw, nodes.comment)) and "declared" not in child.get("classes", []):
            yield child.astext()


def write_index(app: Sphinx, error: Exception | None) -> None:
    if error or app.builder.format != "html":
        return
    entries = index_of(app)
    text = json.dumps(entries, ensure_ascii=False, separators=(",", ":"))
    (pathlib.Path(app.outdir) / "_static/search-index.js").write_text(f"window.towerIndex={text};\n", encoding="utf-8")


# What the theme and Sphinx leave to be said to those who do not see the page.
REPAIRS = [
    (re.compile(r'<aside class="sidebar-drawer">'), '<aside class="sidebar-drawer" aria-label="Site">'),
    (re.compile(r'<aside class="toc-drawer( no-toc)?">'), r'<aside class="toc-drawer\1" aria-label="On this page">'),
    (re.compile(r'(<p class="caption" role="heading")>'), r'\1 aria-level="2">'),
    # Parameters of a long signature, a line each, are no list of definitions.
    (re.compile(r"<dl>\s*((?:<dd>.*?</dd>\s*)+)</dl>", re.S), r'<span class="parameters">\1</span>'),
]


def repair(app: Sphinx, error: Exception | None) -> None:
    if error or app.builder.format != "html":
        return
    for path in pathlib.Path(app.outdir).rglob("*.html"):
        text = path.read_text(encoding="utf-8")
        for pattern, replacement in REPAIRS:
            text = pattern.sub(replacement, text)
        text = re.sub(
            r'<span class="parameters">.*?</span>\s*(?=<span class="sig-paren">)',
            lambda found: found[0].replace("<dd>", '<span class="parameter">').replace("</dd>", "</span>"),
            text,
            flags=re.S,
        )
        path.write_text(text, encoding="utf-8")


def begin(app: Sphinx) -> None:
    app.builder.search = False  # ours is instead of Sphinx's, whose summaries are fetched from a server
    app.env.tower_sources = set()


def setup(app: Sphinx) -> dict[str, Any]:
    app.add_config_value("tower_root", "", "env")
    app.add_node(Source, html=(visit_source, depart_source))
    app.add_role("source", SourceRole())
    app.add_directive("drawing", Figure)
    app.connect("builder-inited", begin)
    app.connect("doctree-read", captions_of_quotes)
    app.connect("doctree-read", link_names)
    app.connect("doctree-read", reachable)
    app.connect("html-collect-pages", source_pages)
    app.connect("build-finished", write_index)
    app.connect("build-finished", repair)
    return {"version": "1", "parallel_read_safe": False, "parallel_write_safe": True}
