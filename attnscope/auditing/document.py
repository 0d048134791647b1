"""The document of an audit."""

from __future__ import annotations

from functools import partial

from attnscope.auditing.drawing import EvidenceDrawing, data_of
from attnscope.auditing.figure import draw_audit
from attnscope.auditing.picture import evidence_lines, heading, pictures, subjects
from attnscope.auditing.result import (
    BROKEN,
    HOLDS,
    MEASURED,
    NOT_APPLICABLE,
    UNDECIDED,
    Audit,
)
from attnscope.document.blocks import Block, Notices, Plot, Table
from attnscope.document.columns import Column
from attnscope.document.page.document import document as page_document
from attnscope.document.styles import GOOD, WRONG

VERDICTS = {
    HOLDS: ("✓ holds", GOOD),
    BROKEN: ("✗ broken", WRONG),
    UNDECIDED: ("? undecided", ""),
    NOT_APPLICABLE: ("– not applicable", "dim"),
    MEASURED: ("measured", ""),
}
"""The words and the style for what an audit says of a property."""


def document(result: Audit) -> list[Block]:
    """Build a row for each property, and below it the evidence for those that are broken."""
    missing = "the influence of positions on each other was not measured"
    drawings = [
        EvidenceDrawing([] if each is None else list(evidence_lines(each)), influence, number)
        for number, (each, influence) in enumerate(subjects(result))
    ]
    plot = Plot(partial(draw_audit, result=result), missing="" if pictures(result) else missing)
    return [heading(result), Table(columns(result)), *drawings, Notices(result.notices), plot]


def page(result: Audit) -> str:
    """Return a page that explains each picture under the pointer."""
    data = [None if picture is None else data_of(picture) for _, picture in subjects(result)]
    title = f"{result.name} · audit"
    return page_document(title, result._repr_html_(), script="influence.js", data=data)


def columns(result: Audit) -> list[Column]:
    """Return the columns of the properties."""
    each = result.properties
    evidence = [one.evidence for one in each]
    found = [one.found or one.source for one in each]
    return [
        Column(
            "property", "property", [[(one.name, "bold")] for one in each], [one.name for one in each],
            essential=True, lead=True,
        ),
        Column(
            "", "status", [[VERDICTS[one.status]] for one in each], [one.status for one in each],
            essential=True,
        ),
        Column("found", "found", [[(text, "")] for text in found], found, flexible=True, below=True),
        Column("because", "source", [], [one.source for one in each]),
        Column("", "layer", [], [one and one.layer for one in evidence]),
        Column("", "path", [], [one and one.path for one in evidence]),
        Column("", "position", [], [one and one.position for one in evidence]),
        Column("", "amount", [], [one and one.amount for one in evidence]),
        Column("", "rounding", [], [one and one.rounding for one in evidence]),
        Column("", "file", [], [one and one.line and one.line.file for one in evidence]),
        Column("", "line", [], [one and one.line and one.line.line for one in evidence]),
        Column("", "outputs", [], ["; ".join(result.outputs)] * len(each)),
        Column("", "left_out", [], ["; ".join(result.left_out)] * len(each)),
    ]  # fmt: skip
