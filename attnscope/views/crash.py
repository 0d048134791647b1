"""Why the code failed, for people."""

from __future__ import annotations

from rich.text import Text

from attnscope.results import Crash
from attnscope.views.columns import dims_pieces, shape_pieces
from attnscope.views.text import joined


def crash_lines(crash: Crash) -> list[Text]:
    """Where and why the code failed: the expression, its operands, and which axes disagree."""
    lines = [Text(f"✗ line {crash.line}: {crash.expression}", "bold red")]
    width = max((len(operand.text) for operand in crash.operands), default=0)
    for operand in crash.operands:
        axes = joined(dims_pieces(operand.dims))
        shape = joined(shape_pieces(operand.dims, operand.shape), "×")
        lines.append(Text.assemble(f"    {operand.text:{width}}  ", shape, "  ", axes))
    lines += [Text(f"    {crash.disagreement}", "bold")] if crash.disagreement else []
    return [*lines, Text(f"    {crash.error}", "red")]
