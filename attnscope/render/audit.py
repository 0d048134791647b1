"""Parts common to all views of an audit."""

from __future__ import annotations

import os
from collections.abc import Iterator

from attnscope.render.columns import Column
from attnscope.render.influence import mask_sentences
from attnscope.render.styles import GOOD, WRONG
from attnscope.render.text import READABLE, shorten
from attnscope.results.audit import (
    BROKEN,
    HOLDS,
    NOT_APPLICABLE,
    UNDECIDED,
    Audit,
    Evidence,
    Property,
)
from attnscope.units import counted

VERDICTS = {
    HOLDS: ("✓ holds", GOOD),
    BROKEN: ("✗ broken", WRONG),
    UNDECIDED: ("? undecided", ""),
    NOT_APPLICABLE: ("– not applicable", "dim"),
}
"""The words and the style for what an audit says of a property."""


def heading(result: Audit) -> list[str]:
    """Return a title with the verdict, and a line with what ran."""
    runs = f"{result.n_forward:g} forward passes"
    return [
        f"audit of {result.name}: {verdict(result)}",
        f"{result.kind} · {counted(result.n_tokens, 'position')} · {result.dtype} · {runs}",
    ]


def verdict(result: Audit) -> str:
    """Return what is broken, or else how many properties hold, in words."""
    if result.broken:
        return f"{', '.join(each.name for each in result.broken)} broken"
    held = sum(each.status == HOLDS for each in result.properties)
    doubt = sum(each.status == UNDECIDED for each in result.properties)
    held_text = "1 property holds" if held == 1 else f"{held} properties hold"
    return held_text + (f", {doubt} undecided" if doubt else "")


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
    """Yield lines about why a property is broken: the first is about what moved."""
    found = each.evidence
    assert found is not None
    yield f"{each.name}: {each.found}"
    if each.source:
        yield f"why it should hold: {each.source}"
    if found.amount > 0:
        noise = f"; rounding: {found.rounding:.1g}" if found.rounding else ""
        yield f"moved by {found.amount:.2g} of the largest output{noise}"
    yield from _place(found)


def _place(found: Evidence) -> Iterator[str]:
    """Yield where it begins: the layer, and the line."""
    if found.layer is not None:
        yield f"first in layer {found.layer} ({found.path})"
    elif found.path:
        yield f"first {found.path}" if found.path.startswith("before") else f"first in {found.path}"
    if found.line is not None:
        expression = shorten(found.line.expression, READABLE)
        yield f"{os.path.basename(found.line.file)}:{found.line.line}: {expression}"
    if found.influence is not None:
        yield from mask_sentences(found.influence)
