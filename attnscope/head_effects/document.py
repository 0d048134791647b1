"""The document of effects: the prediction first, then the heads, then what else adds to the logit."""

from __future__ import annotations

from collections.abc import Iterable
from math import isnan

from attnscope.document.blocks import Block, Table
from attnscope.document.columns import Column
from attnscope.head_effects.drawing import PositionsDrawing
from attnscope.head_effects.result import HeadEffects
from attnscope.models.heads.document import document as document_of_heads
from attnscope.models.heads.result import HeadRow
from attnscope.units import MISSING, number_text


def document(table: HeadEffects) -> list[Block]:
    """Build the heading, the heads, the parts of the logit, and notices."""
    more: list[Block] = [PositionsDrawing(table)] if table.positions else []
    if table.direct is not None:
        more.append(Table(part_columns(table)))
    return document_of_heads(table, *more)


def remarks(table: HeadEffects) -> list[str]:
    """Return lines about the prediction, the sums and the estimates."""
    answers = table.answer and f" {table.answer!r}" + (
        f" against {table.against!r}" if table.against else ""
    )
    lines = [f"{table.metric}{answers and ':'}{answers}: {number_text(table.baseline)}"]
    if table.corrupted is not None:
        lines[0] += f"; on the corrupted text {number_text(table.corrupted)}"
    if table.top_answers:
        best = ", ".join(f"{token!r} {share:.1%}" for token, share in table.top_answers)
        lines.append(f"the model's likeliest answers: {best}")
    if table.blocked is not None:
        lines.append(f"with all selected heads blocked: {number_text(table.blocked)}")
    if table.direct is not None:
        lines.append(
            f"direct effects of all heads sum to {number_text(table.direct.heads)}, and all parts to"
            f" {number_text(table.direct.value + table.direct.off)},"
            f" {_off(table.direct.off)} off the logit"
        )
    if table.correlation is not None:
        lines.append(
            f"first order, an estimate, correlates with the exact effects: {table.correlation:.3f}"
        )
    if table.partial:
        lines.append("partial: the run was interrupted")
    return lines


def _off(difference: float) -> str:
    """Format how far a sum is off; below a millionth, it is rounding."""
    return f"{abs(difference):.1g}" if abs(difference) >= 1e-6 else "less than 1e-06"


def part_columns(table: HeadEffects) -> list[Column]:
    """Return the columns of what adds to the residual stream beside heads."""
    assert table.direct is not None
    parts = {"all heads": table.direct.heads, **table.direct.parts}
    values = list(parts.values())
    return [
        Column("part", "part", [[(name, "bold")] for name in parts], list(parts), lead=True),
        Column("direct", "direct", [[(number_text(each), "")] for each in values], values, right=True),
    ]


def position_columns(table: HeadEffects, rows: Iterable[HeadRow]) -> list[Column]:
    """Return the columns of where each head is strongest: the position, and its token."""
    column = table.sort or next(iter(table.positions))
    places, tokens = [], []
    for row in rows:
        effects = table.at_places(row, column).tolist()
        known = [(abs(effect), -i) for i, effect in enumerate(effects) if not isnan(effect)]
        place = table.places[-max(known)[1]] if known else None
        places.append(place)
        at_token = place is not None and place < len(table.sequence)
        tokens.append(table.sequence[place].text if at_token and place is not None else "")
    cells = [[(MISSING if place is None else str(place), "")] for place in places]
    return [
        Column("at", "at", cells, places, right=True),
        Column("token", "token", [[(repr(each), "dim")] for each in tokens], tokens),
    ]
