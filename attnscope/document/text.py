"""Format numbers, shapes and expressions for people."""

from __future__ import annotations

import re
from collections.abc import Iterable
from textwrap import wrap

from rich.text import Text

GAP = 2  # between two columns, and the indentation of a sentence below a row
READABLE = 80
"""The longest line of a sentence, unless the table above it is wider."""


def joined(pieces: Iterable[tuple[str, str]], joint: str = " ") -> Text:
    """Join pieces of text, each with its style, on one line."""
    text = Text()
    for i, (piece, style) in enumerate(pieces):
        text.append(joint if i else "", "dim").append(piece, style)
    return text


def wrapped(sentence: str, width: int | None) -> list[str]:
    """Wrap a sentence to lines of at most `width`; None: one line. An empty sentence has no lines."""
    if width is None:
        return [sentence] if sentence else []
    return wrap(sentence, width, break_on_hyphens=False)


def said_once(names: Iterable[str], sentences: Iterable[str]) -> list[str]:
    """Replace each sentence that was said of an earlier name by that name.

    >>> said_once(["Q_feat", "K_feat"], ["a linear layer", "a linear layer"])
    ['a linear layer', 'as Q_feat']
    """
    first: dict[str, str] = {}
    said = []
    for name, sentence in zip(names, sentences, strict=True):
        earlier = first.setdefault(sentence, name)
        said.append(f"as {earlier}" if sentence and earlier != name else sentence)
    return said


def folded(line: Text, width: int, joint: str) -> list[Text]:
    """Break a line between parts that `joint` separates, so that each part which fits remains whole."""
    ends = [match.end() for match in re.finditer(re.escape(joint), line.plain)]
    lines: list[Text] = []
    for part in line.divide(ends):
        if lines and (lines[-1] + part).cell_len - len(joint) * part.plain.endswith(joint) <= width:
            lines[-1].append_text(part)
        else:
            lines.append(part)
    for each in lines[:-1]:
        each.right_crop(len(joint))
    return lines


def shorten(expression: str, width: int) -> str:
    """Shorten an expression to `width` by replacing arguments with `…`, the longest first.

    >>> shorten("Q_feat.view(n_batch, n_Q, n_head, d_head).transpose(1, 2)", 40)
    'Q_feat.view(…).transpose(1, 2)'
    """
    while len(expression) > width:
        found = [m for m in re.finditer(r"\([^()]*\)", expression) if len(m[0]) > len("(…)")]
        if not found:
            break
        calls = [m for m in found if re.search(r"\w$", expression[: m.start()])]  # not a mere group
        longest = max(calls or found, key=lambda m: len(m[0]))
        expression = expression[: longest.start()] + "(…)" + expression[longest.end() :]
    return expression


def break_expression(expression: str, width: int) -> list[str]:
    """Break an expression into lines of at most `width`.

    It is broken at spaces and before methods, first at those outside parentheses.
    """
    pieces: list[str] = []
    for part in _outer_parts(expression):
        words = re.split(r"(?<= )", part) if len(part.rstrip()) > width else [part]
        for word in words:
            too_long = len(word.rstrip()) > width
            pieces += re.split(r"(?<=[\w)])(?=\.[A-Za-z_])", word) if too_long else [word]
    lines = [""]
    for piece in pieces:
        if lines[-1] and len(lines[-1] + piece.rstrip()) > width:
            lines.append("")
        lines[-1] += piece
    return [line.rstrip() for line in lines]


def _outer_parts(expression: str) -> list[str]:
    """Split an expression after each space and before each method outside parentheses."""
    parts, depth = [""], 0
    for i, letter in enumerate(expression):
        if depth == 0 and i and (expression[i - 1] == " " or expression[i - 1 : i + 1] == ")."):
            parts.append("")
        depth += (letter in "([{") - (letter in ")]}")
        parts[-1] += letter
    return parts


def can_show(text: str, encoding: str) -> bool:
    """Check whether an encoding has all characters of a text."""
    try:
        text.encode(encoding)
    except UnicodeEncodeError:
        return False
    return True
