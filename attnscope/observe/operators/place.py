"""Where in the source a tensor is computed: the file, the line, the expression, and the variable."""

from __future__ import annotations

import ast
import linecache
import os
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cache
from itertools import islice
from types import FrameType

Span = tuple[int, int, int, int]
"""First and last line, and first and last column in bytes, as `code.co_positions` gives them."""


@dataclass(frozen=True)
class SourceExpression:
    """An expression in a source file.

    Attributes:
        file, line: its location; the line is 0 if it is unknown.
        text: the expression, on one line.
        variable: the name that it is assigned to, or None.
    """

    file: str
    line: int
    text: str
    variable: str | None


def place_of(frame: FrameType) -> SourceExpression:
    """Return the place of the expression that a frame evaluates."""
    code = frame.f_code
    span = next(islice(code.co_positions(), frame.f_lasti // 2, None), (None,) * 4)
    return _place(code.co_filename, frame.f_lineno, span)


def forget_places() -> None:
    """Forget what was read from source files, which may have changed."""
    linecache.checkcache()
    _place.cache_clear()
    _assigned.cache_clear()


@cache
def _place(file: str, line: int, span: tuple[int | None, ...]) -> SourceExpression:
    if None in span:
        return SourceExpression(file, line, linecache.getline(file, line).strip(), None)
    first, last, begin, end = (each or 0 for each in span)
    where: Span = (first, last, begin, end)
    return SourceExpression(file, first, _text(file, where), _assigned(file).get(where))


def _text(file: str, span: Span) -> str:
    """Return the text of a span on one line."""
    first, last, begin, end = span
    lines = [linecache.getline(file, number).encode() for number in range(first, last + 1)]
    if not any(lines):
        return ""
    lines[-1] = lines[-1][:end]
    lines[0] = lines[0][begin:]
    return " ".join(b" ".join(lines).decode(errors="replace").split())


@cache
def _assigned(file: str) -> dict[Span, str]:
    """Return the variables of a file by the span of the expression that each is assigned."""
    try:
        tree = ast.parse("".join(linecache.getlines(file)))
    except SyntaxError:
        return {}
    return {span: name for each in ast.walk(tree) for span, name in _assignments(each)}


def _assignments(node: ast.AST) -> Iterator[tuple[Span, str]]:
    """Yield the spans of values in an assignment, with the names that they get."""
    if isinstance(node, ast.Assign) and len(node.targets) == 1:
        yield from _pairs(node.targets[0], node.value)
    elif isinstance(node, ast.AnnAssign | ast.NamedExpr) and node.value is not None:
        yield from _pairs(node.target, node.value)
    elif isinstance(node, ast.AugAssign):
        yield _span(node), ast.unparse(node.target)
        yield _span(node.value), ast.unparse(node.target)


def _pairs(target: ast.expr, value: ast.expr) -> Iterator[tuple[Span, str]]:
    if isinstance(target, ast.Tuple) and isinstance(value, ast.Tuple):
        for each, part in zip(target.elts, value.elts, strict=False):
            yield from _pairs(each, part)
    elif isinstance(target, ast.Name | ast.Attribute):
        yield _span(value), ast.unparse(target)


def _span(node: ast.AST) -> Span:
    return node.lineno, node.end_lineno, node.col_offset, node.end_col_offset  # type: ignore[attr-defined]


LIBRARIES = ("torch", "einops", "functools.py", "contextlib.py")


@cache
def is_library(file: str) -> bool:
    """Check whether a file belongs to what user code computes with, rather than to that code."""
    import torch

    folder = os.path.dirname(os.path.dirname(torch.__file__))
    own = os.path.dirname(__file__)
    if file.startswith(("<frozen", own + os.sep)):
        return True
    if file.startswith(folder + os.sep):
        return file[len(folder) + 1 :].split(os.sep)[0] in LIBRARIES
    return os.path.basename(file) in LIBRARIES[2:]


def user_frame(frame: FrameType | None, caller: str = "") -> FrameType | None:
    """Return the innermost frame that is not a library's, at or above a frame.

    Args:
        frame: the frame.
        caller: the file that calls the code. If all frames below it are a library's, the code is that
            library's, and its innermost frame in a module or a function of torch is returned.
    """
    of_torch = None
    while frame is not None and is_library(frame.f_code.co_filename):
        if of_torch is None and f"torch{os.sep}nn{os.sep}" in frame.f_code.co_filename:
            of_torch = frame
        frame = frame.f_back
    is_caller = frame is not None and frame.f_code.co_filename == caller
    return of_torch if is_caller and of_torch is not None else frame
