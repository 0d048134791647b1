"""Parts common to all views of numbers of heads."""

from __future__ import annotations

from attnscope.comparison.map_differences import HeadDifferences, MapDifferences
from attnscope.document.page.page import page_html
from attnscope.models.heads.result import HeadMetrics, HeadTable
from attnscope.render.map_differences import by_side, tokens_text
from attnscope.render.ranking import ranked, several_stacks
from attnscope.units import counted


def heads_heading(table: HeadMetrics) -> list[str]:
    """Return a title, and lines with the numbers of heads, what they are of, and what is missing."""
    sizes = [
        f"{stack} " * several_stacks(table) + f"{counted(n_layer, 'layer')} × {counted(n_head, 'head')}"
        for stack, (n_layer, n_head) in table.layers.items()
    ]
    lines = [table.title, " · ".join([*sizes, *table.facts])]
    if isinstance(table, HeadTable) and table.partial:
        lines.append("partial: the run ended before the end of the corpus")
    if isinstance(table, HeadDifferences) and table.changed and table.unchanged_metrics:
        lines.append(f"unchanged in every head: {', '.join(table.unchanged_metrics)}")
    if isinstance(table, MapDifferences) and table.two_texts:
        lines.append(tokens_text(table))
    if isinstance(table, HeadTable) and table.skipped:
        lines.append(f"skipped: {counted(table.skipped, 'line')} without text")
    return lines


def heads_page(table: HeadMetrics) -> str:
    """Return a page of head metrics, with the maps of the text that they were measured on."""
    beside = isinstance(table, MapDifferences)
    if isinstance(table, MapDifferences):
        table = by_side(table)
    first, *_ = ranked(table, table.sort, reverse=table.reverse)
    return page_html(
        table.maps or [],
        layer=first.layer,
        head=first.head,
        title=f"{table.title} · heads",
        heads=table,
        metric=table.sort,
        beside=beside,
    )
