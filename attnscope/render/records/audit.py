"""Audits as Markdown and CSV."""

from __future__ import annotations

from attnscope.render.audit import columns, evidence_lines, heading
from attnscope.render.records.tables import csv_table, markdown, markdown_table
from attnscope.results.audit import Audit
from attnscope.text import printable


def csv_text(result: Audit) -> str:
    """Return a line for each property."""
    return csv_table(columns(result))


def markdown_text(result: Audit, *, wide: bool = False) -> str:
    """Return the properties as a table, and below it the evidence."""
    parts = [markdown_table(columns(result), wide)]
    for each in result.broken:
        first, *others = [printable(line) for line in evidence_lines(each)]
        parts.append("\n".join([f"- {first}", *(f"  - {line}" for line in others)]))
    return markdown(heading(result), *parts, *result.notices)
