"""Render the exception that traced code raised."""

from __future__ import annotations

from rich.text import Text

from attnscope.document.axes import dims_pieces, shape_pieces
from attnscope.document.styles import RED, WRONG
from attnscope.document.text import joined
from attnscope.observe.trace import Crash
from attnscope.text import printable


def crash_lines(crash: Crash) -> list[Text]:
    """Return lines that show the expression that failed, its operands, and which axes do not match."""
    lines = [Text(f"✗ line {crash.line}: {printable(crash.expression)}", WRONG)]
    texts = [printable(operand.text) for operand in crash.operands]
    width = max(map(len, texts), default=0)
    for operand, text in zip(crash.operands, texts, strict=True):
        axes = joined(dims_pieces(operand.dims))
        shape = joined(shape_pieces(operand.dims, operand.shape), "×")
        lines.append(Text.assemble(f"    {text:{width}}  ", shape, "  ", axes))
    lines += [Text(f"    {printable(crash.disagreement)}", "bold")] if crash.disagreement else []
    return [*lines, Text(f"    {printable(crash.error)}", RED)]
