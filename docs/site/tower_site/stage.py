"""The folder that Sphinx reads, made of the repository.

    python -m tower_site.stage ROOT FOLDER

Documents keep the paths that they have in the repository, so that links from one to another hold. A link to a file that
is no page becomes one to the file's source (extension.py), a link to a public header one to its page.
"""

import os
import pathlib
import re
import shutil
import subprocess
import sys

from . import headers, packages

# Documents that are pages, where they exist, by their path in the repository.
GUIDE = [
    "docs/control_flow.md",
    "docs/compile.md",
    "docs/exported_models.md",
    "docs/c_libraries.md",
    "docs/solvers.md",
    "docs/ensembles.md",
    "docs/minimize.md",
    "docs/taylor_mode.md",
    "docs/custom_functions.md",
    "docs/custom_operators.md",
    "docs/higher_order_operators.md",
    "docs/processes.md",
    "docs/devices.md",
    "docs/looking_inside.md",
    "docs/pitfalls.md",
    "docs/process_wide.md",
    "python/README.md",
]
TUTORIALS = [
    "docs/first_steps.md",
    "docs/tutorials/first_program.md",
    "docs/tutorials/per_example_gradients.md",
    "docs/tutorials/pinn.md",
    "docs/tutorials/material_point.md",
    "docs/tutorials/fleet_of_orbits.md",
    "examples/custom_op/README.md",
]
OVERVIEW = ["README.md"]
NUMBERS = ["docs/benchmarks.md"]
HOW_IT_WORKS = ["docs/tour.md", "docs/tour_of_compile.md", "docs/coverage.md", "docs/conformance.md"]
TAKING_PART = [
    "CONTRIBUTING.md",
    "docs/adding_an_operator.md",
    "CHANGELOG.md",
    "SECURITY.md",
    "examples/data/README.md",
]


class Stage:
    def __init__(self, root: pathlib.Path, folder: pathlib.Path):
        self.root, self.folder = root, folder
        placed = OVERVIEW + NUMBERS + GUIDE + TUTORIALS + HOW_IT_WORKS + TAKING_PART
        documents = (str(path.relative_to(root)) for path in sorted((root / "docs").glob("*.md")))
        self.guide = GUIDE + [path for path in documents if path not in placed]
        self.pages = {path for path in placed + self.guide if (root / path).exists()}

    def write(self, path: str, text: str) -> None:
        target = self.folder / path
        target.parent.mkdir(parents=True, exist_ok=True)
        if not target.exists() or target.read_text(encoding="utf-8") != text:
            target.write_text(text, encoding="utf-8")

    def entries(self, paths: list[str]) -> str:
        """Those of the documents that there are, as entries of a navigation."""
        named = {
            "python/README.md": "From Python",
            "README.md": "Overview",
            "docs/benchmarks.md": "Benchmarks, as tables",
            "examples/custom_op/README.md": "A custom operator",
        }
        there = [path for path in paths if path in self.pages]
        return "\n".join(f"{named[path]} </{path}>" if path in named else f"/{path}" for path in there)

    # Links and fences

    def link(self, document: str, text: str, target: str) -> str:
        """A Markdown link from a document, as one that the site can follow."""
        if re.match(r"[a-z]+:|#|/", target):
            return f"[{text}]({target})"
        path, _, anchor = target.partition("#")
        path = os.path.normpath(os.path.join(os.path.dirname(document), path))
        if path in self.pages:
            return f"[{text}]({target})"
        where = self.root / path
        if where.is_dir() and f"{path}/README.md" in self.pages:
            return f"[{text}]({target.rstrip('/')}/README.md)"
        if found := re.fullmatch(r"include/tower/(\w+)\.h", path):
            return f"[{text}](/api/cpp/{found[1]}.rst)"
        if where.is_dir():
            return text
        if where.is_file():
            return "{source}`" + text.replace("`", "") + f" <{path}>`"
        raise SystemExit(f"{document}: a link to {target}, which is not there")

    def document(self, path: str) -> str:
        """A document of the repository as a page."""
        text = (self.root / path).read_text(encoding="utf-8")
        if path == "README.md":
            text = re.sub(r"^# .*$", "# Overview", text, count=1, flags=re.M)
        result: list[str] = []
        prose: list[str] = []
        fence = None
        output = False

        def end_prose() -> None:
            """Links may go over the end of a line."""
            text = "\n".join(prose)
            link = lambda found: self.link(path, found[1], found[2])  # noqa: E731
            if prose:
                result.append(re.sub(r"(?<!!)\[([^\[\]]+)\]\(([^()\s]+)\)", link, text))
            prose.clear()

        for line in text.splitlines():
            opening = re.match(r"(```+)(\w*) ?(.*)$", line)
            if fence is None and opening:
                end_prose()
                fence = opening[1]
                language, kind = opening[2] or "text", opening[3].strip()
                result.append(f"{fence}{{code-block}} {language}")
                if kind.startswith("quote="):
                    result.append(f":caption: {kind[6:]}")
                if language == "text" and output:
                    result.append(":class: output")
                result += [":force:", ""]
                output = language == "cpp"
            elif fence is not None:
                if line.rstrip() == fence:
                    fence = None
                result.append(line)
            else:
                output = output and not line.strip()
                prose.append(line)
        end_prose()
        for picture in re.findall(r'(?:src|srcset)="([^":]+)"|!\[[^\]]*\]\(([^():\s]+)\)', "\n".join(result)):
            self.picture(os.path.normpath(os.path.join(os.path.dirname(path), picture[0] or picture[1])))
        return "\n".join(result) + "\n"

    def picture(self, path: str) -> None:
        """A file that a document shows, where HTML and where Sphinx looks for it."""
        for folder in (self.folder, self.folder / "extra"):
            (folder / path).parent.mkdir(parents=True, exist_ok=True)
            shutil.copyfile(self.root / path, folder / path)

    # The whole

    def toctree(self, caption: str, entries: list[str], depth: int = 1) -> str:
        lines = [f":caption: {caption}"] if caption else []
        body = "\n".join([*lines, ":hidden:", f":maxdepth: {depth}", "", *entries])
        return f"```{{toctree}}\n{body}\n```\n"

    def first_program(self) -> tuple[str, str]:
        """The first program of the README, and what it prints."""
        text = (self.root / "README.md").read_text(encoding="utf-8")
        code = re.search(r"^```cpp\n(.*?)^```\n", text, re.M | re.S)
        printed = code and re.compile(r"^```text\n(.*?)^```\n", re.M | re.S).search(text, code.end())
        if not printed:
            raise SystemExit("README.md: no program that is followed by what it prints, for the front page")
        return code[1], printed[1]

    def run(self) -> None:
        site = self.root / "docs/site"
        (self.folder / "extra").mkdir(parents=True, exist_ok=True)
        for path in sorted(self.pages):
            self.write(path, self.document(path))
        for path in sorted((site / "pages").rglob("*.md")):
            text = path.read_text(encoding="utf-8")
            code, printed = self.first_program() if path.name == "index.md" else ("", "")
            for name, value in {
                "OVERVIEW": self.entries(OVERVIEW),
                "NUMBERS": self.entries(NUMBERS),
                "GUIDE": self.entries(self.guide),
                "TUTORIALS": self.entries(TUTORIALS),
                "HOW_IT_WORKS": self.entries(HOW_IT_WORKS),
                "TAKING_PART": self.entries(TAKING_PART),
                "PROGRAM": code.rstrip(),
                "PRINTED": printed.rstrip(),
            }.items():
                text = text.replace(f"@{name}@", value)
            self.write(str(path.relative_to(site / "pages")), text)
        self.api()
        subprocess.run([sys.executable, self.root / "docs/figures/draw", self.folder / "figures"], check=True)

    def api(self) -> None:
        all_headers = headers.read_all(self.root)
        link = headers.links_to(all_headers)
        by_name = {header.name: header for header in all_headers}
        out = [
            "# C++ API",
            "",
            "Everything that is public, header by header. What is in a namespace `detail` is not.",
            "",
        ]
        for title, names in headers.GROUPS:
            out += [f"## {title}", "", ":::{rst-class} api-index", ":::", "", "| header | |", "|---|---|"]
            for name in names.split():
                header = by_name[name]
                shown = list(dict.fromkeys(e.name for e in header.entities if "operator" not in e.name))
                code = ", ".join(
                    f"{{cpp:any}}`{n.removeprefix('tower::')} <{n}>`" if not n.isupper() else f"`{n}`" for n in shown
                )
                if not shown:
                    code = "includes the other headers" if header.includes else ""
                out.append(f"| [{name}.h]({name}.rst) | {code} |")
            out += ["", self.toctree("", [f"{name}.rst" for name in names.split()])]
            for name in names.split():
                self.write(f"{by_name[name].page}.rst", headers.page_of(by_name[name], link))
        self.write("api/cpp/index.md", "\n".join(out))

        pages = packages.read(self.root)
        link = packages.links_to(pages)
        out = [
            "# Python API",
            "",
            "```{py:module} torch_tower",
            "```",
            "",
            "The names of `torch_tower`. Those of `torch.func` have its signatures and meaning; what differs is in",
            "[its guide](/python/README.md#what-differs-from-torch-func).",
            "",
        ]
        for page in pages:
            shown = ", ".join(f"{{py:obj}}`{n.name} <torch_tower.{n.name}>`" for n in page.names)
            out += [f"## {page.title}", "", f"[All of it on one page]({page.name}.rst): {shown}", ""]
            self.write(f"{page.page}.rst", packages.page_of(page, link))
        out.append(self.toctree("", [f"{page.name}.rst" for page in pages]))
        self.write("api/python/index.md", "\n".join(out))


def main() -> None:
    root, folder = (pathlib.Path(each).resolve() for each in sys.argv[1:3])
    if folder.exists():
        shutil.rmtree(folder)
    Stage(root, folder).run()


if __name__ == "__main__":
    main()
