"""Where in the source a tensor is computed: the file, the line, the expression, and the variable."""

from __future__ import annotations

import ast
import linecache
import os
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cache, lru_cache
from itertools import islice
from types import CodeType, FrameType

Span = tuple[int, int, int, int]
"""First and last line, and first and last column in bytes, as `code.co_positions` gives them."""


@dataclass(frozen=True)
class SourceExpression:
    """An expression in a source file."""

    file: str  #: its location; the line is 0 if it is unknown
    line: int
    text: str  #: the expression, on one line
    variable: str | None  #: the name that it is assigned to, or None


def place_of(frame: FrameType) -> SourceExpression:
    """Return the place of the expression that a frame evaluates."""
    return place_of_call((frame.f_code, frame.f_lasti, frame.f_lineno))


Call = tuple[CodeType, int, int]
"""A call that has not returned: the code, its instruction, and its line."""


def calls_around(frame: FrameType, caller: str) -> tuple[Call, ...]:
    """Note the calls of a user's files that a frame is evaluated for, the innermost first.

    Args:
        caller: the file that calls the code, where they end.
    """
    found = []
    outer = frame.f_back
    while outer is not None and outer.f_code.co_filename != caller:
        if not is_library(outer.f_code.co_filename):
            found.append((outer.f_code, outer.f_lasti, outer.f_lineno))
        outer = outer.f_back
    return tuple(found)


def place_of_call(call: Call) -> SourceExpression:
    """Return the place of a call that was noted."""
    code, instruction, line = call
    span = next(islice(code.co_positions(), instruction // 2, None), (None,) * 4)
    return _place(code.co_filename, line, span)


def forget_places() -> None:
    """Forget what was read from source files, which may have changed."""
    linecache.checkcache()
    _place.cache_clear()
    _assigned.cache_clear()
    function_at.cache_clear()


@cache
def function_at(file: str, line: int) -> str:
    """Return the innermost function around a line, without its comments and places; empty: none."""
    tree = _tree(file)
    around = [
        each
        for each in (ast.walk(tree) if tree is not None else ())
        if isinstance(each, ast.FunctionDef) and each.lineno <= line <= (each.end_lineno or 0)
    ]
    return ast.dump(max(around, key=lambda each: each.lineno)) if around else ""


def _tree(file: str) -> ast.Module | None:
    """Return the syntax tree of a file; None if it is not Python."""
    try:
        return parsed("".join(linecache.getlines(file)))
    except SyntaxError:
        return None


@lru_cache(maxsize=16)
def parsed(source: str) -> ast.Module:
    """Parse a file's text, which several runs may ask for."""
    return ast.parse(source)


@cache
def _place(file: str, line: int, span: tuple[int | None, ...]) -> SourceExpression:
    if None in span:
        return SourceExpression(file, line, linecache.getline(file, line).strip(), None)
    first, last, begin, end = (each or 0 for each in span)
    where: Span = (first, last, begin, end)
    return SourceExpression(file, first, text_of(file, where), _assigned(file).get(where))


def text_of(file: str, span: Span) -> str:
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
    tree = _tree(file)
    if tree is None:
        return {}
    return {span: name for each in ast.walk(tree) for span, name in _assignments(each)}


def _assignments(node: ast.AST) -> Iterator[tuple[Span, str]]:
    """Yield the spans of values in an assignment, with the names that they get."""
    if isinstance(node, ast.Assign) and len(node.targets) == 1:
        yield from _pairs(node.targets[0], node.value)
    elif isinstance(node, ast.AnnAssign | ast.NamedExpr) and node.value is not None:
        yield from _pairs(node.target, node.value)
    elif isinstance(node, ast.AugAssign):
        yield span_of(node), ast.unparse(node.target)
        yield span_of(node.value), ast.unparse(node.target)


def _pairs(target: ast.expr, value: ast.expr) -> Iterator[tuple[Span, str]]:
    if isinstance(target, ast.Tuple) and isinstance(value, ast.Tuple):
        for each, part in zip(target.elts, value.elts, strict=False):
            yield from _pairs(each, part)
    elif isinstance(target, ast.Name | ast.Attribute):
        yield span_of(value), ast.unparse(target)


def span_of(node: ast.AST) -> Span:
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
        caller: the file that calls the code. If all frames below it are a library's, the code is that
            library's, and its innermost frame in a module or a function of torch is returned.
    """
    of_torch, calls = None, ""
    while frame is not None and is_library(frame.f_code.co_filename):
        is_of_nn = f"torch{os.sep}nn{os.sep}" in frame.f_code.co_filename
        if of_torch is None and is_of_nn and calls != "handle_torch_function":  # which passes a call on
            of_torch = frame
        calls = frame.f_code.co_name
        frame = frame.f_back
    is_caller = frame is not None and frame.f_code.co_filename == caller
    return of_torch if is_caller and of_torch is not None else frame
