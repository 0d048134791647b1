"""Audits as Markdown and CSV."""

from __future__ import annotations

from collections.abc import Iterator

from attnscope.render.audit import columns, evidence_lines, heading
from attnscope.render.influence_picture import Frame, picture
from attnscope.render.mask_picture import PLAIN
from attnscope.render.records.tables import csv_table, markdown, markdown_table
from attnscope.results.audit import Audit, Influence
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
        if each.evidence is not None and each.evidence.influence is not None:
            parts.append("\n".join(["```", *_picture(each.evidence.influence), "```"]))
    return markdown(heading(result), *parts, *result.notices)


FRAME = Frame(width=140, rows=120, scale=PLAIN)
"""The room for a picture in a document."""


def _picture(influence: Influence) -> Iterator[str]:
    """Yield the lines of a picture."""
    parts, sentences = picture(influence, FRAME)
    for title, lines in parts:
        yield printable(title)
        yield from (line.plain.rstrip() for line in lines)
    yield from (sentence.plain for sentence in sentences)
