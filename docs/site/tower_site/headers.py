"""The public headers as pages: what they declare, in their order, with their comments.

The headers are read as text, declaration by declaration: they are formatted by clang-format, so a scanner that knows
brackets, strings and comments is enough, and keeps what a reader of the header sees: the order, the comment in front,
overloads that share one, the line.

    // …      at the head of the file: the introduction of the page
    /// …     in front of a declaration, or `///<` behind it: its documentation; overloads that follow without a blank
              line have it, too

What is in a namespace `detail`, private or protected is no part of the API. Neither is a specialization without a
comment on it or in it.
"""

import pathlib
import re
from dataclasses import dataclass, field

from . import comments

# Every public header has its place in one of these; a header without one is an error.
GROUPS = [
    ("Transforms", "transforms value_and_jacobian taylor differential_operator axes dynamic vmap_info substitution"),
    ("Values", "tree nn"),
    ("Control flow", "cond loops checkpoint"),
    ("Compiled functions", "compile graph native export_c"),
    ("Models that Python exported", "exported exported_tree"),
    (
        "Solvers and sparse derivatives",
        "linear_solve implicit sparse odeint least_squares block_least_squares minimize",
    ),
    ("Functions and operators with rules of their own", "function function_context custom_op higher_order decompose"),
    ("Processes", "mesh collectives"),
    ("Looking inside", "explain inspect coverage check_grads"),
    ("Everything else", "tower errors memory version"),
]


@dataclass
class Entity:
    kind: str  # a directive of Sphinx's C++ domain
    signature: str
    name: str  # with its scopes, as in tower::dynamic::vmap
    line: int
    last_line: int
    comment: list[str] = field(default_factory=list)
    members: list["Entity"] = field(default_factory=list)
    joined: bool = False  # the comment of the declaration before it is its own, too


@dataclass
class Header:
    name: str  # transforms
    path: str  # include/tower/transforms.h
    introduction: list[str]
    entities: list[Entity]
    includes: list[str]

    @property
    def page(self) -> str:
        return f"api/cpp/{self.name}"


@dataclass
class _Piece:
    """A declaration in the text: where its head, its body and its end are."""

    begin: int
    body: int | None
    end: int


def _skip_string(text: str, at: int) -> int:
    quote = text[at]
    at += 1
    while text[at] != quote:
        at += 2 if text[at] == "\\" else 1
    return at + 1


def _is_quote(text: str, at: int) -> bool:
    """A quote, and not one between the digits of a number."""
    return text[at] == '"' or (text[at] == "'" and not (at and text[at - 1].isalnum()))


def _matching(text: str, at: int) -> int:
    """Behind the bracket that closes the one at `at`."""
    depth = 0
    while True:
        if text.startswith("//", at):
            at = text.index("\n", at)
        elif _is_quote(text, at):
            at = _skip_string(text, at)
            continue
        elif text[at] in "({[":
            depth += 1
        elif text[at] in ")}]":
            depth -= 1
            if depth == 0:
                return at + 1
        at += 1


_TYPE_HEAD = re.compile(r"^(?:template\s*<.*?>\s*(?:requires.*?)?)?(?:class|struct|enum|union|namespace)\b", re.S)


def _piece(text: str, at: int, end: int) -> _Piece:
    """The declaration that begins at `at`."""
    begin = at
    body = None
    while at < end:
        if text.startswith("//", at):
            at = text.index("\n", at)
        elif _is_quote(text, at):
            at = _skip_string(text, at)
        elif text[at] in "([":
            at = _matching(text, at)
        elif text[at] == "{":
            requires = re.search(r"requires\s*(\([^()]*\))?\s*$", text[begin:at])
            close = _matching(text, at)
            if body is None and not requires:
                body = at
            behind = text[close:end].lstrip()[:1]
            at = close
            is_type = _TYPE_HEAD.match(text[begin : body or at])
            is_value = re.search(r" = ", re.sub(r"\(.*\)", "", text[begin : body or at], flags=re.S))
            if not requires and not is_type and not is_value and behind not in (";", ",", "{", "&", "|"):
                return _Piece(begin, body, at)
            if not requires and text[begin:body].lstrip().startswith("namespace"):
                return _Piece(begin, body, at)
        elif text[at] == ";":
            return _Piece(begin, body, at + 1)
        else:
            at += 1
    raise ValueError(f"no end of the declaration: {text[begin : begin + 80]!r}")


def _flat(text: str) -> str:
    text = re.sub(r"//.*", "", text)
    text = re.sub(r"\[\[.*?\]\]", "", text)
    return re.sub(r"\s+", " ", text).strip()


def _without_initializers(head: str) -> str:
    """The head of a constructor without what it initializes members with."""
    depth = 0
    for at, letter in enumerate(head):
        depth += {"(": 1, ")": -1, "<": 1, ">": -1}.get(letter, 0)
        if depth == 0 and letter == ":" and head[at - 1] != ":" and head[at + 1] != ":":
            return head[:at].rstrip()
    return head


def _without_base(head: str) -> str:
    """The head of a class without bases that are no part of the API."""
    found = re.match(r"(.*?[^:]):([^:].*)$", head)
    return found[1].rstrip() if found and ("detail::" in found[2] or "private" in found[2]) else head


def _template(head: str) -> tuple[str, str]:
    """("template <…> requires …", the rest)."""
    prefix = ""
    while found := re.match(r"template\s*<", head):
        depth, at = 1, found.end()
        while depth:
            depth += {"<": 1, ">": -1, "(": 1, ")": -1}.get(head[at], 0)
            at += 1
        prefix += head[:at] + " "
        head = head[at:].lstrip()
        if found := re.match(r"requires\s*(?=\()", head):
            at = _matching(head, found.end())
        elif found := re.match(r"requires\s+[\w:]+\s*", head):
            at = found.end()
            if head[at : at + 1] == "<":
                depth = 1
                while depth:
                    at += 1
                    depth += {"<": 1, ">": -1}.get(head[at], 0)
                at += 1
        if head.startswith("requires"):
            prefix += head[:at] + " "
            head = head[at:].lstrip()
    return prefix, head


class _Reader:
    def __init__(self, path: pathlib.Path):
        self.text = path.read_text(encoding="utf-8")
        self.path = path
        self.declared: dict[str, Entity] = {}  # templates that are declared with a comment, and not defined yet

    def line_of(self, at: int) -> int:
        return self.text.count("\n", 0, at) + 1

    def introduction(self) -> list[str]:
        lines = []
        for line in self.text.splitlines():
            if not line.startswith("//"):
                break
            lines.append(re.sub(r"^// ?", "", line))
        return lines

    def scope(self, begin: int, end: int, name: str, kind: str) -> list[Entity]:
        """The declarations between two places, of the namespace or class `name`."""
        text = self.text
        entities: list[Entity] = []
        comment: list[str] = []
        fresh = True  # a blank line, or a comment, before what follows
        public = kind != "class"
        at = begin
        while True:
            found = re.compile(r"\s*").match(text, at, end)
            if text.count("\n", at, found.end()) > 1:
                comment, fresh = [], True
            at = found.end()
            if at >= end:
                return entities
            if text.startswith("//", at):
                stop = text.index("\n", at)
                line = text[at:stop]
                if line.startswith("///<"):
                    if entities:
                        entities[-1].comment.append(line[4:].strip())
                elif line.startswith("///"):
                    comment.append(re.sub(r"^/// ?", "", line))
                    fresh = True
                elif not text[text.rfind("\n", 0, at) + 1 : at].strip():
                    fresh = True
                at = stop
                continue
            if text[at] == "#":
                while True:
                    stop = text.index("\n", at)
                    goes_on = text[stop - 1] == "\\"
                    defined = re.match(r"#define (TOWER_\w+(?:\([^)]*\))?)", text[at:stop])
                    if defined and kind == "file":
                        line = self.line_of(at)
                        entities.append(Entity("c:macro", defined[1], defined[1].split("(")[0], line, line, comment))
                        comment = []
                    at = stop + 1
                    if not goes_on:
                        break
                continue
            access = re.compile(r"(public|protected|private)\s*:(?!:)").match(text, at, end)
            if access:
                public = access[1] == "public"
                comment, fresh = [], True
                at = access.end()
                continue
            if text[at] == ";":
                at += 1
                continue
            piece = _piece(text, at, end)
            at = piece.end
            if public:
                for entity in self.entity(piece, name, kind, comment):
                    if any((entity.kind, entity.signature) == (other.kind, other.signature) for other in entities):
                        continue  # declared before, and defined here
                    entity.joined = bool(
                        not comment
                        and not fresh
                        and entities
                        and entity.name == entities[-1].name
                        and not entity.members
                    )
                    entities.append(entity)
            comment, fresh = [], False

    def entity(self, piece: _Piece, scope: str, scope_kind: str, comment: list[str]) -> list[Entity]:
        text = self.text
        head = _flat(text[piece.begin : piece.body if piece.body is not None else piece.end])
        head = head.rstrip(";").rstrip()
        inside = (piece.body + 1, piece.end - 1) if piece.body is not None else (0, 0)
        if piece.body is not None and text[piece.end - 1] == ";":
            inside = (piece.body + 1, text.rindex("}", piece.body, piece.end))
        line, last = self.line_of(piece.begin), self.line_of(piece.end)

        def made(kind: str, signature: str, name: str, members: list[Entity] = ()) -> list[Entity]:
            full = f"{scope}::{name}" if scope else name
            return [Entity(kind, signature, full, line, last, comment, list(members))]

        if found := re.match(r"(?:inline )?namespace\s*([\w:]*)$", head):
            if not found[1] or "detail" in found[1].split("::") or not found[1].startswith("tower") and not scope:
                return []
            inner = f"{scope}::{found[1]}" if scope else found[1]
            return self.scope(*inside, inner, "namespace")
        prefix, rest = _template(head)
        if not rest:
            raise ValueError(f"{self.path}:{line}: not understood: {head!r}")
        if re.match(r"(friend|static_assert|extern|using namespace|typedef)\b", rest):
            return []
        if found := re.match(r"(class|struct|union|enum(?: class| struct)?)\s+(.*)$", rest):
            kind, tail = found[1], _without_base(found[2])
            name = re.match(r"[\w:]+", tail)[0]
            if piece.body is None:
                if not comment:
                    return []  # declared here, and defined elsewhere
                self.declared[f"{scope}::{name}"] = made(f"cpp:{kind}", prefix + tail, name)[0]
                return [self.declared[f"{scope}::{name}"]]
            if tail.startswith(f"{name}<") and not comment:
                members = self.scope(*inside, f"{scope}::{name}", kind)
                # What a template that is only declared has is what its one specialization has.
                if primary := self.declared.pop(f"{scope}::{name}", None):
                    primary.members = members
                if primary or not any(member.comment for member in members):
                    return []
                return made(f"cpp:{kind}", prefix + tail, name, members)
            if kind.startswith("enum"):
                directive = "cpp:enum-class" if " " in kind else "cpp:enum"
                return made(directive, tail, name, self.enumerators(*inside, f"{scope}::{name}"))
            return made(f"cpp:{kind}", prefix + tail, name, self.scope(*inside, f"{scope}::{name}", kind))
        if found := re.match(r"using\s+(\w+)\s*=\s*(.*)$", rest, re.S):
            target = _flat(text[piece.begin : piece.end]).rstrip(";").split("=", 1)[1].strip()
            shown = f" = {target}" if len(target) <= 100 else ""
            return made("cpp:type", f"{prefix}{found[1]}{shown}", found[1])
        if re.match(r"using\b", rest):
            return []
        if found := re.match(r"concept\s+(\w+)", rest):
            return made("cpp:concept", prefix + found[1], found[1])
        rest = re.sub(
            r"^(?:inline|static|constexpr|virtual|explicit|friend)\b\s*(?=.*\b(?:inline|constexpr)\b)", "", rest
        )
        call = re.search(r"(~?\w+|operator\s*(?:\(\)|\[\]|[^\s(\w]+|\w[\w:<> ]*))\s*\(", self.without_arguments(rest))
        if call and not re.match(r"[^(]*?[^=!<>]=[^=]", re.split(r"\boperator\b", rest)[0].split("(")[0] + " "):
            name = re.sub(r"\s+", "", call[1]) if call[1].startswith("operator") else call[1]
            if (name.startswith("~") or "= delete" in rest) and not comment:
                return []
            signature = _without_initializers(rest) if piece.body is not None or ":" in rest else rest
            signature = re.sub(r"\binline\b\s*", "", signature)
            if piece.body is None:
                signature = rest
            return made("cpp:function", prefix + re.sub(r"^\s*inline\s+", "", signature), name)
        full = _flat(text[piece.begin : piece.end]).rstrip(";").strip()
        prefix, rest = _template(full)
        found = re.match(r"(.*?[\s&*>])(\w+)\s*(?:=(?!=)\s*(.*)|(\{.*\}))?$", rest, re.S)
        if not found:
            raise ValueError(f"{self.path}:{line}: not understood: {rest!r}")
        value = found[3] if found[3] is not None else ""
        kept = f" = {value}" if value and len(value) < 40 else ""
        kind = "cpp:var" if scope_kind in ("namespace", "file") else "cpp:member"
        return made(kind, prefix + re.sub(r"\binline\s+", "", found[1]) + found[2] + kept, found[2])

    @staticmethod
    def without_arguments(text: str) -> str:
        """Without what stands between angle brackets of types, where a parenthesis begins no arguments."""
        while True:
            shorter = re.sub(r"(?<!operator)(?<!operator<)<[^<>]*>", "", text)
            if shorter == text:
                return text
            text = shorter

    def enumerators(self, begin: int, end: int, scope: str) -> list[Entity]:
        entities = []
        for found in re.finditer(r"^\s*(\w+)[^,\n/]*,?[ \t]*(?:///< ?(.*))?$", self.text[begin:end], re.M):
            line = self.line_of(begin + found.start(1))
            comment = [found[2]] if found[2] else []
            entities.append(Entity("cpp:enumerator", found[1], f"{scope}::{found[1]}", line, line, comment))
        if not entities:
            for found in re.finditer(r"\w+", self.text[begin:end]):
                line = self.line_of(begin)
                entities.append(Entity("cpp:enumerator", found[0], f"{scope}::{found[0]}", line, line))
        return entities

    def read(self) -> list[Entity]:
        return self.scope(0, len(self.text), "", "file")


def read(path: pathlib.Path, root: pathlib.Path) -> Header:
    reader = _Reader(path)
    includes = re.findall(r'#include "tower/(\w+)\.h"', reader.text)
    return Header(path.stem, str(path.relative_to(root)), reader.introduction(), reader.read(), includes)


def read_all(root: pathlib.Path) -> list[Header]:
    headers = [read(path, root) for path in sorted((root / "include/tower").glob("*.h"))]
    placed = [name for _, names in GROUPS for name in names.split()]
    missing = {header.name for header in headers} ^ set(placed)
    if missing or len(placed) != len(set(placed)):
        raise SystemExit(f"docs/site/tower_site/headers.py: GROUPS and include/tower/ differ in {sorted(missing)}")
    return headers


def all_entities(entities: list[Entity]):
    for entity in entities:
        yield entity
        yield from all_entities(entity.members)


def links_to(headers: list[Header]) -> comments.Link:
    """From a name in a comment to a link, where it is one of the API."""
    names: dict[str, str] = {}
    for header in headers:
        for entity in header.entities:
            short = entity.name.rsplit("::", 1)[1] if "::" in entity.name else entity.name
            names.setdefault(entity.name, entity.name)
            if entity.kind != "c:macro" and not entity.name.startswith("tower::dynamic::"):
                names[short] = entity.name
            for member in all_entities(entity.members):
                names.setdefault(member.name, member.name)
                names.setdefault(member.name.removeprefix("tower::"), member.name)

    def link(code: str) -> str | None:
        bare = re.sub(r"\(.*\)$", "", code).removeprefix("tower::")
        target = names.get(bare) or names.get(f"tower::{bare}")
        return f":cpp:any:`{code} <{target}>`" if target and "TOWER_" not in target else None

    return link


def _entity_page(header: Header, entities: list[Entity], link: comments.Link, margin: str, out: list[str]) -> None:
    at = 0
    while at < len(entities):
        entity = entities[at]
        group = [entity]
        while at + len(group) < len(entities) and entities[at + len(group)].joined and not entity.members:
            group.append(entities[at + len(group)])
        at += len(group)
        begin = f"{margin}.. {entity.kind}:: "
        out.append(begin + entity.signature)
        out += [" " * len(begin) + other.signature for other in group[1:]]
        out.append("")
        inside = margin + "   "
        lines = comments.restructured(entity.comment, link, "cpp")
        out += [(inside + line).rstrip() for line in lines]
        if entity.kind != "cpp:enumerator" and margin == "":
            where = f"{header.path}:{entity.line}"
            out += [
                f"{inside}.. rst-class:: declared",
                "",
                f"{inside}:source:`{header.path}:{entity.line} <{where}>`",
                "",
            ]
        _entity_page(header, entity.members, link, inside, out)


def page_of(header: Header, link: comments.Link) -> str:
    title = f"tower/{header.name}.h"
    out = [f".. _header-{header.name}:", "", title, "=" * len(title), ""]
    out += [".. code-block:: cpp", "", f"   #include <tower/{header.name}.h>", ""]
    out += comments.restructured(header.introduction, link, "cpp")
    scope = None
    for namespace, entities in _by_namespace(header.entities):
        if namespace != scope:
            out += [f".. cpp:namespace:: {namespace or 'NULL'}", ""]
            if namespace.count("::"):
                heading = f"namespace {namespace}"
                out += [heading, "-" * len(heading), ""]
            scope = namespace
        _entity_page(header, entities, link, "", out)
    if not header.entities and header.includes:
        out += ["It includes", ""]
        out += [f"- :ref:`tower/{name}.h <header-{name}>`" for name in header.includes]
        out += [""]
    out += [".. rst-class:: declared", "", f"The header: :source:`{header.path} <{header.path}>`", ""]
    return "\n".join(out)


def _by_namespace(entities: list[Entity]) -> list[tuple[str, list[Entity]]]:
    result: list[tuple[str, list[Entity]]] = []
    for entity in entities:
        namespace = entity.name.rpartition("::")[0] if entity.kind != "c:macro" else ""
        if result and result[-1][0] == namespace:
            result[-1][1].append(entity)
        else:
            result.append((namespace, [entity]))
    return result
