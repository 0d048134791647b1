"""Comparisons as Markdown and CSV."""

from __future__ import annotations

from attnscope.render.comparison import (
    after,
    columns,
    divergence_lines,
    gradient_columns,
    heading,
    weight_columns,
)
from attnscope.render.records.tables import csv_table, markdown, markdown_table
from attnscope.results.comparison import Comparison
from attnscope.text import printable


def csv_text(result: Comparison) -> str:
    """Return a line for each tensor."""
    return csv_table(columns(result))


def markdown_text(result: Comparison, *, wide: bool = False) -> str:
    """Return the tensors as a table, and below it where the two part."""
    parts = [markdown_table(columns(result), wide)]
    if result.gradients:
        parts.append(markdown_table(gradient_columns(result.gradients)))
    if result.weights:
        parts.append(markdown_table(weight_columns(result.weights)))
    for each in result.divergences or []:
        first, *others = [printable(text) for _, text in divergence_lines(result, each)]
        parts.append("\n".join([f"- {first}", *(f"  - {line}" for line in others)]))
    parts += [text for text in [after(result), *result.notices] if text]
    return markdown(heading(result), *parts)
