"""The document of an audit."""

from __future__ import annotations

import math
from collections.abc import Iterator

from attnscope.auditing.drawing import EvidenceDrawing
from attnscope.auditing.picture import mask_sentences, subjects
from attnscope.auditing.result import BROKEN, HOLDS, NOT_APPLICABLE, UNDECIDED, Audit, Evidence, Property
from attnscope.document.blocks import Block, Heading, Notices, Table
from attnscope.document.columns import Column
from attnscope.document.styles import GOOD, WRONG
from attnscope.document.text import READABLE, shorten
from attnscope.units import counted

VERDICTS = {
    HOLDS: ("✓ holds", GOOD),
    BROKEN: ("✗ broken", WRONG),
    UNDECIDED: ("? undecided", ""),
    NOT_APPLICABLE: ("– not applicable", "dim"),
}
"""The words and the style for what an audit says of a property."""


def document(result: Audit) -> list[Block]:
    """Build a row for each property, and below it the evidence for those that are broken."""
    drawings = [
        EvidenceDrawing([] if each is None else list(evidence_lines(each)), influence, number)
        for number, (each, influence) in enumerate(subjects(result))
    ]
    return [heading(result), Table(columns(result)), *drawings, Notices(result.notices)]


def heading(result: Audit) -> Heading:
    """Build a title with the verdict, and a line with what ran."""
    runs = f"{result.n_forward:g} forward passes"
    what = f"{result.kind} · {counted(result.n_tokens, 'position')} · {result.dtype} · {runs}"
    return Heading(f"audit of {result.name}: {result.verdict}", [what])


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
    ]  # fmt: skip


def evidence_lines(each: Property) -> Iterator[str]:
    """Yield lines about why a property is broken: the first says what changed what."""
    found = each.evidence
    assert found is not None
    yield f"{each.name}: {each.found}"
    if each.source:
        yield f"why it should hold: {each.source}"
    if math.isinf(found.amount):
        yield "it is finite before the change or after it, and not both times"
    elif found.amount > 0:
        percent = 100 * found.amount
        amount = f"{percent:,.0f}" if percent >= 10 else f"{percent:.2g}"
        noise = f"; rounding: {100 * found.rounding:.1g} %" if found.rounding else ""
        yield f"the output changes by {amount} % of its largest value{noise}"
    yield from _place(found)


def _place(found: Evidence) -> Iterator[str]:
    """Yield where it begins: the layer, and the line."""
    if found.layer is not None:
        yield f"first in layer {found.layer} ({found.path})"
    elif found.path:
        yield f"first {found.path}" if found.path.startswith("before") else f"first in {found.path}"
    if found.line is not None:
        expression = shorten(found.line.expression, READABLE)
        yield f"{found.line.place}: {expression}"
    elif found.no_line:
        yield found.no_line
    if found.influence is not None:
        yield from mask_sentences(found.influence)
