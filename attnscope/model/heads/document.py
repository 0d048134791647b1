"""The document of metrics of heads, and their page."""

from __future__ import annotations

from functools import partial
from typing import Any

from attnscope.base.units import counted
from attnscope.document.blocks import Block, Heading, Notices, Plot
from attnscope.document.json import plain
from attnscope.document.page.page import page_html
from attnscope.model.heads.drawing import HeadsDrawing
from attnscope.model.heads.figure import draw_metrics, drawn_metrics
from attnscope.model.heads.ranking import ranked, several_stacks, shown
from attnscope.model.heads.result import HeadMetrics
from attnscope.model.maps.drawing import beside_weights
from attnscope.model.maps.result import WEIGHTS, AttentionMaps


def document(table: HeadMetrics, *drawings: Block, plot: Plot | None = None) -> list[Block]:
    """Build the heading, the heads, further drawings, notices, and a figure, by default of the heads."""
    plot = plot or Plot(partial(draw_metrics, table=table, metrics=drawn_metrics(table)))
    return [heading(table), HeadsDrawing(table), *drawings, Notices(table.notices), plot]


def heading(table: HeadMetrics) -> Heading:
    """Build a title, and lines with the numbers of heads, what they are of, and remarks."""
    sizes = [
        f"{stack} " * several_stacks(table) + f"{counted(n_layer, 'layer')} × {counted(n_head, 'head')}"
        for stack, (n_layer, n_head) in table.layers.items()
    ]
    return Heading(table.title, [" · ".join([*sizes, *table.facts]), *table.remarks])


def record(table: HeadMetrics) -> dict[str, Any]:
    """Build the fields that all records of heads share, with the heads in the order that is shown."""
    return {
        "stacks": {
            stack: {"n_layer": n_layer, "n_head": n_head}
            for stack, (n_layer, n_head) in table.layers.items()
        },
        "metrics": table.metrics,
        "heads": [plain(table.record_of(row)) for row in shown(table)],
        "notices": table.notices,
    }


def page(table: HeadMetrics, *, beside: bool = False) -> str:
    """Return a page of the metrics, with the maps of the text that they were measured on.

    Small maps of a head in all stacks may stand side by side.
    """
    sort = next(iter(table.metrics), None) if table.signed and table.sort is None else table.sort
    first, *_ = ranked(table, sort, reverse=table.reverse)
    maps: list[AttentionMaps] = table.maps or []
    further, others = table.further_html, [each for each in maps if each.kind is not WEIGHTS]
    if others:
        weights = [each for each in maps if each.kind is WEIGHTS]
        maps, table = beside_weights(others, weights, table)
        maps = sorted(maps, key=lambda each: each.kind is not WEIGHTS)
    return page_html(
        maps,
        layer=first.layer,
        head=first.head,
        title=f"{table.title} · {table.of_page}",
        heads=table,
        metric=table.sort,
        beside=beside,
        further=further,
    )
