"""Parts common to all views of head metrics."""

from __future__ import annotations

from attnscope.render.ranking import several_stacks
from attnscope.results.heads import HeadTable
from attnscope.units import counted


def heads_heading(table: HeadTable) -> list[str]:
    """Return a title, and lines with the numbers of heads and tokens, and with what is missing."""
    sizes = [
        f"{stack} " * several_stacks(table) + f"{counted(n_layer, 'layer')} × {counted(n_head, 'head')}"
        for stack, (n_layer, n_head) in table.layers.items()
    ]
    read = [counted(table.sequences, "sequence"), counted(table.tokens, "token")]
    lines = [table.model, " · ".join([*sizes, *read])]
    if table.partial:
        lines.append("partial: the run ended before the end of the corpus")
    if table.skipped:
        lines.append(f"skipped: {counted(table.skipped, 'line')} without text")
    return lines
