"""Draw metrics of heads: ranked by one, or every metric at a glance; as grids of layers × heads."""

from __future__ import annotations

from dataclasses import dataclass
from math import isnan

from rich.console import Console
from rich.text import Text

from attnscope.base.text import printable
from attnscope.base.units import MISSING, counted
from attnscope.document.blocks import Drawing
from attnscope.document.columns import Column, shown_columns
from attnscope.document.html import rendered
from attnscope.document.markdown import markdown_table
from attnscope.document.terminal import print_columns, print_line
from attnscope.model.heads.grid import Grid, by_stack, print_grids
from attnscope.model.heads.ranking import head_columns, leader_columns, shown
from attnscope.model.heads.result import HeadMetrics, HeadRow, head_name

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
