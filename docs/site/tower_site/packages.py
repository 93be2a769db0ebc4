"""torch_tower as pages: the names of its __all__, with signatures and docstrings.

The sources are read, and nothing is imported: the site can be made where neither torch nor a build is. What the
extension brings (a few exceptions and functions) is read from the binding's C++, where its docstrings stand.
"""

import ast
import pathlib
import re
from dataclasses import dataclass, field

from . import comments

# Every public name has its place in one of these, by the module that it comes from; a module without one is an error.
GROUPS = [
    ("transforms", "Transforms", "_vmap _derivatives _jacobians _taylor"),
    ("modules", "Modules", "torch.func"),
    ("control_flow", "Control flow", "_control_flow"),
    ("compiled", "Compiled functions", "_compiled"),
    ("exported", "Exported models", "_exported"),
    ("solvers", "Solvers", "_solvers"),
    ("minima", "Fits and minima", "_minima _block_fits"),
    ("odes", "Differential equations", "_odes"),
    ("sparse", "Sparse derivatives", "_sparse"),
    ("functions", "Functions and operators of your own", "_functions _higher_order"),
    ("containers", "Containers and subclasses", "_containers"),
    ("processes", "Processes", "_processes"),
    ("looking_inside", "Looking inside", "_tools _questions"),
    ("memory", "Memory", "memory"),
]

# What is handed on from torch.func, with torch's signatures.
FROM_TORCH = {
    "functional_call": (
        "(module, parameter_and_buffer_dicts, args=None, kwargs=None, *, tie_weights=True, strict=False)"
    ),
    "stack_module_state": "(models)",
}


@dataclass
class Name:
    kind: str  # a directive of Sphinx's Python domain
    name: str  # as in Mesh.rank
    signature: str
    doc: list[str]
    path: str
    line: int
    members: list["Name"] = field(default_factory=list)
    options: list[str] = field(default_factory=list)


@dataclass
class Page:
    name: str
    title: str
    names: list[Name]
    introduction: list[str]

    @property
    def page(self) -> str:
        return f"api/python/{self.name}"


def _doc(node: ast.AST) -> list[str]:
    return (ast.get_docstring(node) or "").splitlines()


def _signature(node: ast.FunctionDef, method: bool) -> str:
    args = ast.parse(ast.unparse(node)).body[0].args
    if method and not any(isinstance(d, ast.Name) and d.id == "staticmethod" for d in node.decorator_list):
        (args.posonlyargs or args.args).pop(0)
    returns = f" -> {ast.unparse(node.returns)}" if node.returns else ""
    return f"({ast.unparse(args)}){returns}"


class _Package:
    def __init__(self, root: pathlib.Path):
        self.root = root
        self.folder = root / "python/torch_tower"
        self.trees: dict[str, ast.Module] = {}
        self.texts: dict[str, str] = {}
        self.binding = {path: path.read_text(encoding="utf-8") for path in sorted((root / "python/src").glob("*.cpp"))}

    def tree(self, module: str) -> ast.Module:
        if module not in self.trees:
            self.texts[module] = (self.folder / f"{module}.py").read_text(encoding="utf-8")
            self.trees[module] = ast.parse(self.texts[module])
        return self.trees[module]

    def path(self, module: str) -> str:
        return f"python/torch_tower/{module}.py"

    def find(self, module: str, name: str) -> Name:
        if module == "torch.func":
            said = [f"This is `torch.func.{name}` itself."]
            return Name("py:function", name, FROM_TORCH[name], said, self.path("__init__"), self.line("__init__", name))
        aliases = {}
        doc = []
        for node in self.tree(module).body:
            if isinstance(node, ast.FunctionDef) and node.name == name:
                return Name("py:function", name, _signature(node, False), _doc(node), self.path(module), node.lineno)
            if isinstance(node, ast.ClassDef) and node.name == name:
                return self.class_of(module, node)
            if isinstance(node, ast.Assign) and isinstance(node.targets[0], ast.Name) and node.targets[0].id == name:
                aliases[name] = node.lineno
            if (
                isinstance(node, ast.Assign)
                and ast.unparse(node.targets[0]) == f"{name}.__doc__"
                and isinstance(node.value, ast.Constant)
            ):
                doc = node.value.value.splitlines()
        if name in aliases:
            return self.of_the_extension(name, doc, self.path(module), aliases[name])
        return self.of_the_extension(name, doc, self.path(module), 1)

    def line(self, module: str, name: str) -> int:
        self.tree(module)
        return next(n for n, text in enumerate(self.texts[module].splitlines(), 1) if re.search(rf"\b{name}\b", text))

    def class_of(self, module: str, node: ast.ClassDef) -> Name:
        members = []
        made = Name("py:class", node.name, "", _doc(node), self.path(module), node.lineno, members)
        lines = self.texts[module].splitlines()
        bases = [ast.unparse(base) for base in node.bases]
        if any("Error" in base for base in bases):
            made.kind = "py:exception"
        for item in node.body:
            if isinstance(item, ast.FunctionDef):
                if item.name == "__init__" or (item.name.startswith("_") and item.name not in ("__call__",)):
                    continue
                decorators = [ast.unparse(d) for d in item.decorator_list]
                if "property" in decorators:
                    kind = f":type: {ast.unparse(item.returns)}" if item.returns else None
                    members.append(
                        Name(
                            "py:property", item.name, "", _doc(item), made.path, item.lineno, [], [kind] if kind else []
                        )
                    )
                else:
                    options = [":staticmethod:"] if "staticmethod" in decorators else []
                    members.append(
                        Name(
                            "py:method",
                            item.name,
                            _signature(item, True),
                            _doc(item),
                            made.path,
                            item.lineno,
                            [],
                            options,
                        )
                    )
            elif isinstance(item, ast.AnnAssign) and not item.target.id.startswith("_"):
                comment = lines[item.lineno - 1].partition("#")[2].strip()
                kind = f":type: {ast.unparse(item.annotation)}"
                members.append(
                    Name(
                        "py:attribute",
                        item.target.id,
                        "",
                        [comment] if comment else [],
                        made.path,
                        item.lineno,
                        [],
                        [kind],
                    )
                )
        return made

    def of_the_extension(self, name: str, doc: list[str], path: str, line: int) -> Name:
        """A function, class or exception of pybind11."""
        for source, text in self.binding.items():
            where = str(source.relative_to(self.root))
            if found := re.search(
                rf'module\.def\(\s*"{name}",\s*(?:&\w+|\[[^"]*?),'
                r'((?:\s*py::arg\("\w+"\)(?: = [^,]+)?,)*)\s*((?:"(?:[^"\\]|\\.)*"\s*)+)\)',
                text,
            ):
                arguments = re.findall(r'py::arg\("(\w+)"\)', found[1])
                said = "".join(re.findall(r'"((?:[^"\\]|\\.)*)"', found[2]))
                at = text.count("\n", 0, found.start()) + 1
                return Name("py:function", name, f"({', '.join(arguments)})", [said], where, at)
            if found := re.search(
                rf'py::class_<[^>]*>\(module, "{name}"(?:,\s*((?:"(?:[^"\\]|\\.)*"\s*)+))?\)(.*?);\n', text, re.S
            ):
                said = "".join(re.findall(r'"((?:[^"\\]|\\.)*)"', found[1] or ""))
                at = text.count("\n", 0, found.start()) + 1
                made = Name("py:class", name, "", doc or [said], where, at)
                for member in re.finditer(
                    r'\.(def|def_property_readonly)\(\s*"(\w+)"(.*?)(?=\n\s*\.def|\Z)', found[2], re.S
                ):
                    if member[2].startswith("__"):
                        continue
                    strings = re.findall(r'(?<!py::arg\()"((?:[^"\\]|\\.)*)"(?=\s*[")])', member[3])
                    is_method = member[1] == "def"
                    arguments = ", ".join(re.findall(r'py::arg\("(\w+)"\)', member[3]))
                    made.members.append(
                        Name(
                            "py:method" if is_method else "py:property",
                            member[2],
                            f"({arguments})" if is_method else "",
                            ["".join(strings)] if strings else [],
                            where,
                            at + found[0].count("\n", 0, found[0].find(f'"{member[2]}"')),
                        )
                    )
                return made
        return Name("py:exception", name, "", doc, path, line)


def read(root: pathlib.Path) -> list[Page]:
    package = _Package(root)
    top = package.tree("__init__")
    public, origin = [], {}
    for node in top.body:
        if isinstance(node, ast.Assign) and ast.unparse(node.targets[0]) == "__all__":
            public = ast.literal_eval(node.value)
        if isinstance(node, ast.ImportFrom):
            for alias in node.names:
                module = node.module or alias.name
                if node.level == 0 and module != "torch.func":
                    continue
                origin[alias.asname or alias.name] = module
    pages = []
    for name, title, modules in GROUPS:
        names: list[Name] = []
        introduction: list[str] = []
        for module in modules.split():
            if module == "memory":
                node = next(
                    n
                    for n in package.tree("memory").body
                    if isinstance(n, ast.Assign) and ast.unparse(n.targets[0]) == "__all__"
                )
                introduction = _doc(package.tree("memory"))
                for each in ast.literal_eval(node.value):
                    found = package.find("memory", each)
                    found.name = f"memory.{each}"
                    names.append(found)
            else:
                here = [each for each in public if origin.get(each) == module]
                names += sorted((package.find(module, each) for each in here), key=lambda n: (n.path, n.line))
        pages.append(Page(name, title, names, introduction))
    left = set(public) - {each.name for page in pages for each in page.names} - {"memory"}
    if left:
        raise SystemExit(f"docs/site/tower_site/packages.py: GROUPS have no place for {sorted(left)}")
    return pages


def links_to(pages: list[Page]) -> comments.Link:
    names = {}
    for page in pages:
        for name in page.names:
            names[name.name] = f"torch_tower.{name.name}"
            for member in name.members:
                names[f"{name.name}.{member.name}"] = f"torch_tower.{name.name}.{member.name}"

    def link(code: str) -> str | None:
        bare = re.sub(r"\(.*\)$", "", code).removeprefix("torch_tower.")
        return f":py:obj:`{code} <{names[bare]}>`" if bare in names else None

    return link


def _write(name: Name, link: comments.Link, margin: str, out: list[str]) -> None:
    out += [f"{margin}.. {name.kind}:: {name.name}{name.signature}"]
    inside = margin + "   "
    out += [inside + option for option in name.options] + [""]
    out += [(inside + line).rstrip() for line in comments.restructured(name.doc, link, "python")]
    for member in name.members:
        _write(member, link, inside, out)
    if not margin:
        out += [
            f"{inside}.. rst-class:: declared",
            "",
            f"{inside}:source:`{name.path}:{name.line} <{name.path}:{name.line}>`",
            "",
        ]


def page_of(page: Page, link: comments.Link) -> str:
    out = [page.title, "=" * len(page.title), "", ".. py:module:: torch_tower", "   :no-index:", ""]
    out += [".. py:currentmodule:: torch_tower", ""]
    out += comments.restructured(page.introduction, link, "python")
    for name in page.names:
        _write(name, link, "", out)
    return "\n".join(out)
