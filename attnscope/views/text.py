"""Numbers and expressions as people read them."""

from __future__ import annotations

import re


def number_text(number: float | None) -> str:
    """A value to four significant digits."""
    return "–" if number is None else f"{number:.4g}"


def shape_text(shape: tuple[int, ...]) -> str:
    """A shape: `3×30×128`; a scalar's is `scalar`."""
    return "×".join(map(str, shape)) or "scalar"


def shorten(expression: str, width: int) -> str:
    """An expression whose arguments give way, longest first, until it fits into `width`.

    >>> shorten("Q_feat.view(n_batch, n_Q, n_head, d_head).transpose(1, 2)", 40)
    'Q_feat.view(…).transpose(1, 2)'
    """
    while len(expression) > width:
        arguments = [m for m in re.findall(r"\([^()]*\)", expression) if len(m) > len("(…)")]
        if not arguments:
            break
        expression = expression.replace(max(arguments, key=len), "(…)", 1)
    return expression


def break_expression(expression: str, width: int) -> list[str]:
    """An expression on several lines of at most `width`, broken at spaces, else before `.method`."""
    pieces: list[str] = []
    for word in re.split(r"(?<= )", expression):
        too_long = len(word.rstrip()) > width
        pieces += re.split(r"(?<=[\w)])(?=\.[A-Za-z_])", word) if too_long else [word]
    lines = [""]
    for piece in pieces:
        if lines[-1] and len(lines[-1] + piece.rstrip()) > width:
            lines.append("")
        lines[-1] += piece
    return [line.rstrip() for line in lines]
