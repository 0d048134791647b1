"""Parts common to all views of differences between attention maps."""

from __future__ import annotations

from collections.abc import Iterable
from copy import copy
from dataclasses import replace
from typing import TYPE_CHECKING

from attnscope.comparison.map_differences import MapDifferences, WeightChange
from attnscope.document.columns import Column
from attnscope.document.grid.axes import KEY, QUERY, label
from attnscope.document.styles import AXIS_STYLES
from attnscope.models.heads.result import HeadRow
from attnscope.models.maps.result import AttentionMap, AttentionMaps
from attnscope.models.tokens import Token
from attnscope.units import counted

if TYPE_CHECKING:
    import numpy as np

MOST_TOKENS = 4
"""The most pairs of tokens that a heading names."""

SIDES = ("A", "B", "more in B", "less in B")
"""The maps that a page shows of each head."""


def tokens_text(table: MapDifferences) -> str:
    """Say where the tokens of two texts differ."""
    pairs = list(enumerate(zip(table.of_a.key_tokens, table.of_b.key_tokens, strict=True)))
    differ = [f"{i} {label(a.text)} → {label(b.text)}" for i, (a, b) in pairs if a.text != b.text]
    more = f" and {len(differ) - MOST_TOKENS} more" if len(differ) > MOST_TOKENS else ""
    return f"{counted(len(differ), 'other token')}: {', '.join(differ[:MOST_TOKENS])}{more}"


def leading(table: MapDifferences, rows: list[HeadRow], most: int) -> list[HeadRow]:
    """Return the first heads of a ranking that differ at all."""
    return [row for row in rows if row.values["change"]][:most]


def change_columns(table: MapDifferences, rows: Iterable[HeadRow], rank: int = 0) -> list[Column]:
    """Return columns with the weight of each head that changed most: query, key, and it in both.

    Args:
        table: the differences.
        rows: the heads.
        rank: 0: the weight that changed most; 1: the next; and so on.
    """
    lists = [table.strongest[row.layer, row.head] for row in rows]
    return _columns(table, [each[rank] if len(each) > rank else None for each in lists])


def strongest_columns(table: MapDifferences, rows: list[HeadRow]) -> list[Column]:
    """Return a table of the weights that changed most, several of each head."""
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
