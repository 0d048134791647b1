"""The document of effects: the prediction first, then the heads, then what else adds to the logit."""

from __future__ import annotations

from attnscope.document.blocks import Block, Table
from attnscope.document.columns import Column
from attnscope.head_effects.result import HeadEffects
from attnscope.models.heads.document import document as document_of_heads
from attnscope.units import number_text


def document(table: HeadEffects) -> list[Block]:
    """Build the heading, the heads, the parts of the logit, and notices."""
    parts = [] if table.direct is None else [Table(part_columns(table))]
    return document_of_heads(table, *parts)


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
            f" {abs(table.direct.off):.1g} off the logit"
        )
    if table.correlation is not None:
        lines.append(
            f"first order, an estimate, correlates with the exact effects: {table.correlation:.3f}"
        )
    if table.partial:
        lines.append("partial: the run was interrupted")
    return lines


def part_columns(table: HeadEffects) -> list[Column]:
    """Return the columns of what adds to the residual stream beside heads."""
    assert table.direct is not None
    parts = {"all heads": table.direct.heads, **table.direct.parts}
    values = list(parts.values())
    return [
        Column("part", "part", [[(name, "bold")] for name in parts], list(parts), lead=True),
        Column("direct", "direct", [[(number_text(each), "")] for each in values], values, right=True),
    ]
