"""What is shown of differences between attention maps: the weights that changed most, and the maps."""

from __future__ import annotations

from collections.abc import Iterable
from copy import copy
from dataclasses import dataclass, replace
from itertools import zip_longest
from typing import TYPE_CHECKING

from rich.console import Console
from rich.text import Text

from attnscope.base.units import counted
from attnscope.document.blocks import Drawing
from attnscope.document.columns import Column
from attnscope.document.grid.axes import KEY, QUERY, label
from attnscope.document.grid.colours import ColourScale, print_picture_line
from attnscope.document.grid.heatmap import print_heatmap
from attnscope.document.grid.overview import (
    GAP,
    HEAD_STYLE,
    height_of,
    picture,
    side_by_side,
    small_map,
)
from attnscope.document.styles import AXIS_STYLES
from attnscope.document.terminal import print_columns, print_line
from attnscope.model.heads.ranking import place, ranked, shown
from attnscope.model.heads.result import HeadRow
from attnscope.model.maps.differences import MapDifferences, WeightChange
from attnscope.model.maps.result import AttentionMap, AttentionMaps
from attnscope.model.run.tokens import Token

if TYPE_CHECKING:
    import numpy as np

MOST_TOKENS = 4
"""The most pairs of tokens that a heading names."""

SIDES = ("A", "B", "more in B", "less in B")
"""The maps that are shown of each head."""

MOST_HEADS = 3
"""The most heads whose maps are shown."""

MOST_WIDTH = 18
"""The most characters of a map's width, where several are side by side."""


def tokens_text(table: MapDifferences) -> str:
    """Say where the tokens of two texts differ."""
    pairs = list(enumerate(zip(table.of_a.key_tokens, table.of_b.key_tokens, strict=True)))
    differ = [f"{i} {label(a.text)} → {label(b.text)}" for i, (a, b) in pairs if a.text != b.text]
    more = f" and {len(differ) - MOST_TOKENS} more" if len(differ) > MOST_TOKENS else ""
    return f"{counted(len(differ), 'other token')}: {', '.join(differ[:MOST_TOKENS])}{more}"


def change_columns(table: MapDifferences, rows: Iterable[HeadRow]) -> list[Column]:
    """List the weight of each head that changed most: its query, its key, and it in both."""
    lists = [table.strongest[row.layer, row.head] for row in rows]
    return _columns(table, [each[0] if each else None for each in lists])


def strongest_columns(table: MapDifferences, rows: list[HeadRow]) -> list[Column]:
    """List the weights that changed most, several of each head."""
    pairs = [(row, each) for row in rows for each in table.strongest[row.layer, row.head]]
    columns = []
    for key, style in (("layer", "bold"), ("head", AXIS_STYLES["n_head"])):
        cells = [[(str(getattr(row, key)), style)] for row, _ in pairs]
        columns.append(Column(key, key, cells, [], right=True, lead=True))
    return columns + _columns(table, [each for _, each in pairs])


def _columns(table: MapDifferences, changes: list[WeightChange | None]) -> list[Column]:
    def tokens(key: str, style: str) -> Column:
        raw = [None if each is None else getattr(each, key) for each in changes]
        cells = [
            [] if place is None else [(str(place), style), (_token(table, key, place), "")]
            for place in raw
        ]
        return Column(key, key, cells, raw)

    def weights(key: str) -> Column:
        raw = [None if each is None else getattr(each, key) for each in changes]
        cells = [[] if weight is None else [(f"{weight:.3f}", "")] for weight in raw]
        return Column(key.upper(), f"weight_{key}", cells, raw, right=True)

    signed = [None if each is None else each.b - each.a for each in changes]
    cells = [[] if each is None else [(f"{each:+.3f}", "bold")] for each in signed]
    difference = Column("B − A", "difference", cells, [], right=True)
    return [tokens("query", QUERY), tokens("key", KEY), weights("a"), weights("b"), difference]


def _token(table: MapDifferences, axis: str, place: int) -> str:
    """Return the token at a position; where the texts have different ones, both."""
    one, other = (_tokens(maps, axis)[place] for maps in (table.of_a, table.of_b))
    return label(one.text) if one.text == other.text else f"{label(one.text)} → {label(other.text)}"


def _tokens(maps: AttentionMaps, axis: str) -> dict[int, Token]:
    if axis == "key":
        return dict(enumerate(maps.key_tokens))
    return dict(enumerate(maps.query_tokens, start=maps.first_query))


def sides(table: MapDifferences, rows: Iterable[HeadRow] | None = None) -> list[AttentionMaps]:
    """Return the maps of A, of B, and what is more and what is less in B, of some heads or of all.

    In the latter two, tokens that differ are `one → other`.
    """
    import numpy as np

    places = None if rows is None else {(row.layer, row.head) for row in rows}
    pairs = [
        (a, b)
        for a, b in zip(table.of_a.maps, table.of_b.maps, strict=True)
        if places is None or (a.layer, a.head) in places
    ]

    def with_maps(maps: AttentionMaps, name: str, attention: list[np.ndarray]) -> AttentionMaps:
        own = [
            AttentionMap(a.layer, a.head, a.kv_head, each)
            for (a, _), each in zip(pairs, attention, strict=True)
        ]
        return replace(maps, stack=name, maps=own, notices=[], checks=None)

    both = replace(
        table.of_b,
        model=table.of_b.model if table.two_texts else f"{table.a} → {table.b}",
        query_tokens=_merged(table.of_a.query_tokens, table.of_b.query_tokens),
        key_tokens=_merged(table.of_a.key_tokens, table.of_b.key_tokens),
    )
    return [
        with_maps(table.of_a, SIDES[0], [a.attention for a, _ in pairs]),
        with_maps(table.of_b, SIDES[1], [b.attention for _, b in pairs]),
        with_maps(both, SIDES[2], [np.maximum(b.attention - a.attention, 0) for a, b in pairs]),
        with_maps(both, SIDES[3], [np.maximum(a.attention - b.attention, 0) for a, b in pairs]),
    ]


def _merged(a: list[Token], b: list[Token]) -> list[Token]:
    return [
        one if one.text == other.text else replace(one, text=f"{label(one.text)} → {label(other.text)}")
        for one, other in zip(a, b, strict=True)
    ]


def by_side(table: MapDifferences) -> MapDifferences:
    """Return a table for a page, in which A, B and their differences are stacks with the same rows."""
    paged = copy(table)
    paged.maps = sides(table)
    paged.sort = table.sort or next(iter(table.metrics))
    [sizes] = table.layers.values()
    paged.layers = dict.fromkeys(SIDES, sizes)
    paged.rows = [replace(row, stack=side) for side in SIDES for row in table.rows]
    return paged


# On a terminal.


@dataclass(frozen=True)
class ChangedMaps(Drawing):
    """The maps of the heads that differ most, and the weights in them that changed most.

    A single head's maps are printed one below the other, as large as possible; those of several heads
    side by side.
    """

    table: MapDifferences

    def print(self, console: Console, *, wide: bool = False) -> None:
        """Print the maps, and a table of the weights."""
        table = self.table
        rows = ranked(table, "change") if table.sort is None else shown(table)
        rows = [row for row in rows if row.values["change"]][:MOST_HEADS]
        if not rows:
            return
        print_line(console, Text())
        if len(table.rows) == 1:
            for maps in sides(table):
                print_line(console, Text(maps.stack, "bold"))
                print_heatmap(maps, maps.maps[0].attention, console)
                print_line(console, Text())
        else:
            _print_pictures(table, rows, console)
        print_line(console, Text("the weights that changed most", "dim"))
        print_columns(strongest_columns(table, rows), console, wide)


def _print_pictures(table: MapDifferences, rows: list[HeadRow], console: Console) -> None:
    """Print small maps: a row for each head, and a column for A, for B and for the differences.

    A and B share a scale, and so do the differences, which may be much smaller.
    """
    import numpy as np

    names = [place(table, row).split() for row in rows]  # a word a line leaves more room for maps
    indent = max(len(word) for name in (["head"], *names) for word in name) + GAP
    room = (console.width - indent + GAP) // len(SIDES) - GAP
    width = max(len(max(SIDES, key=len)), min(MOST_WIDTH, room))
    high = height_of(width, ColourScale.of(console, np.zeros(0)))
    columns = sides(table, rows)
    small = {
        (maps.stack, each.layer, each.head): small_map(maps, each.attention, width, high)
        for maps in columns
        for each in maps.maps
    }
    tops = dict.fromkeys(SIDES, 0.0)
    for (side, *_), each in small.items():
        tops[side] = max(tops[side], float(np.nan_to_num(each).max(initial=0)))
    both, differences = SIDES[:2], SIDES[2:]
    scales = {
        side: ColourScale.of(console, np.array([tops[each] for each in sides_of_scale]))
        for sides_of_scale in (both, differences)
        for side in sides_of_scale
    }
    heading = Text("head".ljust(indent), "dim")
    for side in SIDES:
        heading.append(side.ljust(width + GAP), "bold")
    heading.rstrip()
    print_line(console, heading)
    for row, name in zip(rows, names, strict=True):
        pictures = [picture(small[side, row.layer, row.head], width, scales[side]) for side in SIDES]
        for word, line in zip_longest(name, side_by_side(pictures, width)):
            whole = Text(word or "", HEAD_STYLE)
            whole.append(" " * (indent - whole.cell_len)).append_text(line or Text())
            print_picture_line(console, scales[both[0]], whole)
    for which, side in (("A, B", both[0]), ("more, less", differences[0])):
        print_line(console, scales[side].legend(console.width).append(f"  {which}", "dim"))
    print_line(console, Text())
