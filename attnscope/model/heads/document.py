"""The document of metrics of heads, their page, and their drawing: ranked by one, or all at a glance."""

from __future__ import annotations

from dataclasses import dataclass
from functools import partial
from math import isnan
from typing import Any

from rich.console import Console
from rich.text import Text

from attnscope.base.text import printable
from attnscope.base.units import MISSING, counted
from attnscope.document.blocks import Block, Drawing, Heading, Notices, Plot
from attnscope.document.columns import Column, shown_columns
from attnscope.document.html import rendered
from attnscope.document.json import plain
from attnscope.document.markdown import markdown_table
from attnscope.document.page.page import page_html
from attnscope.document.terminal import print_columns, print_line
from attnscope.model.heads.figure import draw_metrics, drawn_metrics
from attnscope.model.heads.grid import Grid, by_stack, print_grids
from attnscope.model.heads.ranking import head_columns, leader_columns, ranked, several_stacks, shown
from attnscope.model.heads.result import HeadMetrics, HeadRow, head_name
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


FEW = 12
"""Up to this number, heads are listed in a table and not drawn as a grid; so are those of one layer."""

MOST_CELLS = 20_000
"""The most cells of all grids in HTML; of a larger table, as many metrics as fit."""

MOST_ROWS = 50
"""The most heads of a ranking in HTML."""


@dataclass(frozen=True)
class HeadsDrawing(Drawing):
    """The numbers of a table of heads.

    A terminal shows heads in a table and a grid of the metric that ranks them; unranked, a grid and the
    largest heads of each metric. HTML shows grids first. Markdown has a row for each head.
    """

    table: HeadMetrics

    def print(self, console: Console, *, wide: bool = False) -> None:
        """Print the ranking and its grid, or every metric at a glance."""
        table = self.table
        rows, sort = shown(table), table.sort
        ordered, few = sort is not None or table.top is not None, _are_few(table.rows)
        if ordered:
            print_line(console, Text(_order(table, rows), "dim"))
        if ordered or (few and table.shown_metrics):
            print_columns(head_columns(table, rows, sort), console, wide)
        if table.shown_metrics and not few and (sort is not None or not ordered):
            print_grids(table, console, table.shown_metrics if sort is None else [sort])
        if not ordered and table.shown_metrics:
            print_columns(leader_columns(table), console, wide)

    def html(self) -> str:
        """Return a grid for each metric, or for the one that ranks the heads; and the ranking below."""
        table = self.table
        metrics = table.shown_metrics if table.sort is None else [table.sort]
        n = max(1, MOST_CELLS // max(1, len(table.rows)))
        stacks = {}
        for stack, rows in by_stack(table).items():
            grids = [Grid.of(table, rows, name) for name in metrics[:n]]
            stacks[stack] = [(grid, _rows(grid)) for grid in grids if not grid.is_empty]
        ranking, more = _ranking(table)
        if left_out := metrics[n:]:
            names = ", ".join(left_out)
            more.append(f"without a grid: {names}; table.ranked({left_out[0]!r}) shows it")
        order = ""
        if table.sort is not None:
            meaning = printable(table.metrics[table.sort])
            order = f"by {table.sort}, the {first_of(table)} first: {meaning}"
        return rendered(
            TEMPLATE,
            stacks=stacks,
            ranking=ranking,
            order=order,
            more=list(map(printable, more)),
            signed=table.signed,
        )

    def markdown(self) -> list[str]:
        """Return a table with a row for each head, and the meanings of the metrics."""
        table = self.table
        meanings = "\n".join(f"- {name}: {meaning}" for name, meaning in table.metrics.items())
        return [markdown_table(head_columns(table, shown(table), table.sort)), meanings]


def _are_few(rows: list[HeadRow]) -> bool:
    return len(rows) <= FEW or len({(row.stack, row.layer) for row in rows}) == 1


def _order(table: HeadMetrics, rows: list[HeadRow]) -> str:
    """Describe which heads a table shows, and in which order."""
    which = counted(len(table.rows), "head")
    if len(rows) < len(table.rows):
        which = f"{len(rows):,} of {which}"
    if table.sort is None:
        return which
    at_the_top = first_of(table)
    return f"{which} by {table.sort}, the {at_the_top} at the top: {table.metrics[table.sort]}"


def first_of(table: HeadMetrics) -> str:
    """Say which heads come first in a ranking."""
    if table.signed:
        return "weakest" if table.reverse else "strongest"
    return "smallest" if table.reverse else "largest"


def _ranking(table: HeadMetrics) -> tuple[list[Column], list[str]]:
    """List the heads, or the first heads of each metric; and say how many heads are left out."""
    if not table.shown_metrics:
        return [], []
    if table.sort is None and table.top is None:
        return shown_columns(leader_columns(table)), []
    rows = shown(table)
    left_out = len(rows) - MOST_ROWS
    more = [f"… {counted(left_out, 'more head')}: table.to_pandas()"] if left_out > 0 else []
    return shown_columns(head_columns(table, rows[:MOST_ROWS], table.sort)), more


def _rows(grid: Grid) -> list[tuple[int, list[tuple[int, bool, str]]]]:
    """List the layers of a grid, and its cells.

    Each is a share of the largest value in per cent, whether it is negative, and a title.
    """
    known = [value for value in grid.values.flat if not isnan(value)]
    top = max((abs(value) if grid.signed else value for value in known), default=0.0)

    def cell(layer: int, head: int, value: float) -> tuple[int, bool, str]:
        below = grid.signed and value < 0
        size = abs(value) if grid.signed else value
        share = 0 if isnan(value) or top <= 0 else max(0, round(100 * size / top))
        title = f"{head_name(layer, head)}: {MISSING if isnan(value) else grid.text(value)}"
        return share, below, title

    return [
        (layer, [cell(layer, head, value) for head, value in zip(grid.heads, values, strict=True)])
        for layer, values in zip(grid.layers, grid.values.tolist(), strict=True)
    ]


TEMPLATE = """\
{% import "parts.html.j2" as parts %}
{% for stack, grids in stacks.items() %}
{% if stacks | length > 1 %}
<p class="title">{{ stack }} attention</p>
{% endif %}
<div class="grids">
{% for grid, rows in grids %}
<figure><figcaption><span class="bold">{{ grid.metric }}</span> <span class="soft">{{ grid.range() }}</span><br><span class="soft">{{ grid.leader() }}</span></figcaption>
<div class="grid" style="--columns:{{ grid.heads | length }}"><b></b>{% for head in grid.heads %}<b>{{ head }}</b>{% endfor %}
{% for layer, cells in rows %}<b>{{ layer }}</b>{% for level, below, title in cells %}<i {% if below %}class="below" {% endif %}style="--v:{{ level }}" title="{{ title }}"></i>{% endfor %}
{% endfor %}</div></figure>
{% endfor %}
</div>
{% endfor %}
<p class="soft">Rows are layers, columns are heads; L3 H11 is layer 3, head 11. {% if signed %}Each grid goes from 0 to the strongest of its column, above 0 in one colour and below 0 in the other.{% else %}Each grid goes from 0 to the largest of its metric.{% endif %} Point at a cell for its value.</p>
{% if order %}
<p class="soft">{{ order }}</p>
{% endif %}
{{ parts.table(ranking) }}
{{ parts.notices(more) }}
"""  # noqa: E501
