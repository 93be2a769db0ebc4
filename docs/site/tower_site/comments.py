"""Comments of headers and docstrings, which are plain text, as reStructuredText.

Paragraphs; "- " begins an item of a list; what is indented by two or more is code; `x` is code, or a link where `x` is
a public name.
"""

import re
from typing import Callable

Link = Callable[[str], str | None]  # from a name to the role that links it


def inline(text: str, link: Link) -> str:
    """`text`, of one paragraph."""
    parts = []
    place = 0
    for found in re.finditer(r":\w+:`([^`]+)`|``([^`]+)``|`([^`]+)`", text):
        parts.append(_escaped(text[place : found.start()]))
        code = found[1] or found[2] or found[3]
        parts.append(link(code) or f"``{code}``")
        place = found.end()
        # reStructuredText wants something that is no letter behind inline markup.
        if place < len(text) and text[place].isalnum():
            parts.append("\\ ")
    parts.append(_escaped(text[place:]))
    return "".join(parts)


def _escaped(text: str) -> str:
    return re.sub(r"([\\*`|]|_(?!\w))", r"\\\1", text)


def blocks_of(lines: list[str]) -> list[tuple[str, list[str]]]:
    """("text" | "code" | "item", lines) for each block of a comment."""
    blocks: list[tuple[str, list[str]]] = []
    open_block = False
    for line in lines:
        if not line.strip():
            if blocks and blocks[-1][0] == "code":
                blocks[-1][1].append("")
            open_block = False
            continue
        indent = len(line) - len(line.lstrip())
        kind = blocks[-1][0] if blocks else None
        if re.match(r" ? ?- ", line):
            blocks.append(("item", [line.lstrip()[2:]]))
        elif open_block and kind == "item" and indent >= 2:
            blocks[-1][1].append(line.strip())
        elif indent >= 2:
            if kind == "code":
                blocks[-1][1].append(line)
            else:
                blocks.append(("code", [line]))
        elif open_block and kind == "text":
            blocks[-1][1].append(line.strip())
        else:
            blocks.append(("text", [line.strip()]))
        open_block = True
    return blocks


def restructured(lines: list[str], link: Link, language: str) -> list[str]:
    """A comment as lines of reStructuredText; `language` is that of the code in it."""
    result: list[str] = []
    for kind, block in blocks_of(lines):
        if kind == "text":
            result += [inline(" ".join(block), link), ""]
        elif kind == "item":
            result += ["- " + inline(" ".join(block), link), ""]
        else:
            while not block[-1]:
                block.pop()
            margin = min(len(line) - len(line.lstrip()) for line in block if line)
            result += [f".. code-block:: {language}", "   :force:", ""]
            result += [("   " + line[margin:]).rstrip() for line in block]
            result += [""]
    return result


def first_sentence(lines: list[str]) -> str:
    """Of a comment, without markup: what a search shows beside a name."""
    for kind, block in blocks_of(lines):
        if kind == "text":
            text = re.sub(r":\w+:(?=`)|`", "", " ".join(block))
            return re.split(r"(?<=[.:;!?]) ", text)[0].rstrip(":;")
    return ""
