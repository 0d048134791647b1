"""Shapes in docstrings: `:param Q: [n_batch, n_Q, d_feat]`, and the styles of Google and NumPy."""

from __future__ import annotations

import ast
import re
from collections.abc import Collection, Container, Iterator
from dataclasses import dataclass

from attnscope.code.trace.comments.parse import Claim, Shape, shapes_in_prose
from attnscope.code.trace.comments.places import Code, Function

RETURNED = ""
"""The name of the entry about the returned value."""

_FIELD = re.compile(r"[:@](?:param|parameter|arg|argument|type)\s+(?:[^:]*\s)?\*{0,2}(\w+)\s*:")
_RETURN_FIELD = re.compile(r"[:@]r(?:eturns?|type)\s*:")
_HEADER = re.compile(r"(?:Returns?|Outputs?)\s*:?\s*$|Returns?\s*:")
_NAMES = re.compile(r"(?:[-*•]\s+)?\*{0,2}(\w+(?:\s*,\s*\w+)*)\s*(\((?:[^()]|\([^()]*\))*\))?\s*:(?!:)")


@dataclass(frozen=True)
class Entry:
    """What a docstring says about an argument, or about the returned value."""

    line: int  #: its first line in the file
    names: tuple[str, ...]  #: the arguments; names of returned values; or `RETURNED`
    text: str

    def claim(self, known: Container[str]) -> tuple[Claim | None, bool]:
        """Return the shapes that it claims, one of which is to be true, and whether some are unclear."""
        shapes, unclear = shapes_in_prose(self.text, known)
        loose = [
            Shape(each.text, each.axes, each.entries, frozenset(range(len(each.axes))))
            for each in shapes
        ]
        return (Claim(self.names, tuple(loose)) if loose else None), unclear


def entries_of(function: Function, code: Code, names: Collection[str]) -> Iterator[Entry]:
    """Yield the entries of a function's docstring."""
    lines = _docstring_lines(function, code)
    begun: list[tuple[int, int, tuple[str, ...], list[str]]] = []  # line, indentation, names, text
    for number, line in lines:
        indent, text = len(line) - len(line.lstrip()), line.strip()
        found = _entry_start(text, names)
        if found is not None:
            begun.append((number, indent, found[0], [found[1]]))
        elif begun:
            _, outer, about, so_far = begun[-1]
            is_rule = bool(re.fullmatch(r"-{3,}", text))
            is_block = about == (RETURNED,) and "".join(so_far).strip("- ") == ""
            if is_rule or (text and (indent > outer or is_block)):
                so_far.append(text)
            elif text or not is_block:
                begun.append((number, -1, (), []))  # the end of the entry
    for number, _, about, texts in begun:
        if about:
            yield Entry(number, about, " ".join(texts).replace("---", "").strip())


def _entry_start(text: str, names: Collection[str]) -> tuple[tuple[str, ...], str] | None:
    """Read the names that an entry is about, if a line begins one, and the rest of the line."""
    for pattern in (_RETURN_FIELD, _HEADER):
        if match := pattern.match(text):
            return (RETURNED,), text[match.end() :]
    if match := _FIELD.match(text):
        return ((match[1],), text[match.end() :]) if match[1] in names else ((), "")
    if match := _NAMES.match(text):
        about = tuple(name.strip() for name in match[1].split(","))
        if set(about) <= set(names):
            return about, f"{(match[2] or '').strip('()')} {text[match.end() :]}"
    return None


def _docstring_lines(function: Function, code: Code) -> list[tuple[int, str]]:
    """Return the numbered lines of a docstring as they stand in the file, without its quotes."""
    if ast.get_docstring(function.node, clean=False) is None:
        return []
    node = function.node.body[0]
    first, last = node.lineno, node.end_lineno or node.lineno
    lines = [line.rstrip("\r\n").expandtabs() for line in code.lines[first - 1 : last]]
    lines[-1] = re.sub(r"(\"\"\"|'''|\"|')[^\"']*$", "", lines[-1])
    lines[0] = re.sub(r"^(\s*)[rRuU]?(\"\"\"|'''|\"|')", r"\1", lines[0])
    return list(enumerate(lines, start=first))
