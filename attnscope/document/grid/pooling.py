"""Pool grids to fewer cells: neighbouring tokens share a cell, which shows the largest of their weights.

Maps of long texts are pooled already. Their cells are pooled again if there is not enough space.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from itertools import groupby
from math import ceil
from typing import TYPE_CHECKING, Any, Protocol, TypeVar

from attnscope.document.grid.axes import AxisToken, label

if TYPE_CHECKING:
    import numpy as np

SHOWN = {"max": "the largest", "mean": "the mean"}
"""Descriptions of the two kinds of pooling."""


@dataclass(frozen=True)
class Pooling:
    """How the maps of a long text are pooled: neighbouring tokens share a cell."""

    shown: str  #: `max` or `mean`: how a cell of a map's `attention` is computed from its weights
    #: the positions pooled into each row, and into each column
    queries: list[range]
    keys: list[range]


class TokenGrid(Protocol):
    """The tokens along the two axes of a grid; the attributes are those of `AttentionMaps`."""

    @property
    def query_tokens(self) -> Sequence[AxisToken]: ...
    @property
    def key_tokens(self) -> Sequence[AxisToken]: ...
    @property
    def first_query(self) -> int: ...
    @property
    def pooling(self) -> Pooling | None: ...
    @property
    def left_out(self) -> Sequence[int]: ...


Grid = TypeVar("Grid", bound=TokenGrid)


def borders(tokens: Sequence[AxisToken]) -> list[int]:
    """Return the positions where a further text begins: in a pair, the second's first token."""
    return [run.start for run in _runs(tokens)][1:]


def groups(tokens: Sequence[AxisToken], most: int) -> list[range]:
    """Group neighbouring tokens into cells of equal size; return the positions of each group.

    No cell spans both texts of a pair, so that the last cell of a text may contain fewer tokens.
    """
    runs = _runs(tokens)
    if len(runs) > most:
        runs = [range(len(tokens))]
    size = max(1, ceil(len(tokens) / most))
    while sum(ceil(len(run) / size) for run in runs) > most:
        size += 1
    return [range(i, min(i + size, run.stop)) for run in runs for i in run[::size]]


def chunks(size: int, most: int) -> list[range]:
    """Split the positions 0 … `size` - 1 into at most `most` equal parts; the last may be smaller."""
    each = max(1, ceil(size / most))
    return [range(i, min(i + each, size)) for i in range(0, size, each)]


def positions(maps: TokenGrid) -> tuple[list[range], list[range]]:
    """Return the positions of the queries in each row of a map, and of the keys in each column."""
    if maps.pooling is not None:
        return maps.pooling.queries, maps.pooling.keys
    first, n_Q, n_K = maps.first_query, len(maps.query_tokens), len(maps.key_tokens)
    return [range(i, i + 1) for i in range(first, first + n_Q)], [range(i, i + 1) for i in range(n_K)]


def first_tokens(maps: TokenGrid) -> tuple[Sequence[AxisToken], Sequence[AxisToken]]:
    """Return the first query of each row of a map, and the first key of each column."""
    if maps.pooling is None:
        return maps.query_tokens, maps.key_tokens
    queries = [maps.query_tokens[cell.start - maps.first_query] for cell in maps.pooling.queries]
    return queries, [maps.key_tokens[cell.start] for cell in maps.pooling.keys]


def span(cells: Sequence[range], group: range) -> range:
    """Return the positions of the tokens in a group of cells."""
    return range(cells[group.start].start, cells[group[-1]].stop)


def of_cells(maps: Grid) -> Grid:
    """Return maps in which each pooled cell is one token, with positions and text: `12–15 the cat…`."""
    if maps.pooling is None:
        return maps
    queries, keys = (
        [_as_token(own, cell) for own, cell in zip(axis, cells, strict=True)]
        for axis, cells in zip(tokens_of_cells(maps), positions(maps), strict=True)
    )
    axes: dict[str, Any] = {"query_tokens": queries, "key_tokens": keys, "first_query": 0}
    notices = [*maps.notices, f"pooled to {pooling_text(maps)}."]  # type: ignore[attr-defined]
    return replace(maps, **axes, pooling=None, notices=notices)  # type: ignore[type-var]


def row_of(maps: TokenGrid, query: int) -> int:
    """Return the row of pooled maps that contains a query; without pooling, the query's position."""
    if maps.pooling is None:
        return query
    return next(row for row, cell in enumerate(maps.pooling.queries) if query in cell)


def pooling_text(maps: TokenGrid) -> str:
    """Describe the cells of a pooled map: how many there are, and what they show."""
    assert maps.pooling is not None
    rows, columns = len(maps.pooling.queries), len(maps.pooling.keys)
    n_Q, n_K = (max(map(len, axis)) for axis in positions(maps))
    if n_Q == n_K == 1:
        return f"{rows} × {columns} cells of one weight each"
    return f"{rows} × {columns} cells: {SHOWN[maps.pooling.shown]} of {n_Q} × {n_K} weights each"


def columns_left_out(maps: TokenGrid) -> list[bool]:
    """Return for each column of a map whether it contains a key that is left out."""
    left_out = set(maps.left_out)
    return [not left_out.isdisjoint(cell) for cell in positions(maps)[1]]


def smaller_without(
    maps: TokenGrid, attention: np.ndarray, rows: Sequence[range], columns: Sequence[range]
) -> tuple[np.ndarray, list[bool]]:
    """Pool a map as `smaller` does, ignoring columns that are left out.

    Return the cells, and for each of their columns whether it is left out: a column of maxima only if
    all columns pooled into it are; a column of means, if one of them is.
    """
    out = columns_left_out(maps)
    by_any = maps.pooling is not None and maps.pooling.shown == "mean"
    left_out = [(any if by_any else all)(out[column.start : column.stop]) for column in columns]
    if any(out):
        attention = attention.copy()
        for column, is_left_out in zip(columns, left_out, strict=True):
            if not is_left_out:
                attention[:, [key for key in column if out[key]]] = 0
    return smaller(maps, attention, rows, columns), left_out


LONGEST_NAME = 48
"""The most characters of a cell's name, including its positions."""

SINKS = 4
"""The most keys of the sink that are named."""


def left_out_text(maps: TokenGrid) -> str:
    """Name the keys that are left out: `without the sink: 0 [CLS], 12 [SEP]`; or return ""."""
    if not maps.left_out:
        return ""
    named = [f"{key} {label(maps.key_tokens[key].text)}" for key in maps.left_out[:SINKS]]
    more = len(maps.left_out) - len(named)
    return "without the sink: " + ", ".join(named) + (f" and {more} more" if more else "")


def smaller(
    maps: TokenGrid, attention: np.ndarray, rows: Sequence[range], columns: Sequence[range]
) -> np.ndarray:
    """Pool a map to fewer cells: by the maximum, or by the mean if it is already pooled by the mean.

    `rows` and `columns` are the groups that are merged, as `groups` returns them.
    """
    import numpy as np

    if maps.pooling is None or maps.pooling.shown == "max":
        return pooled(attention, rows, columns)
    n_Q, n_K = (np.array([len(cell) for cell in axis], "float32") for axis in positions(maps))
    starts_Q, starts_K = ([group.start for group in axis] for axis in (rows, columns))
    of_rows = np.add.reduceat(attention * n_Q[:, None], starts_Q, axis=0)
    sums = np.add.reduceat(of_rows * n_K, starts_K, axis=1)
    return sums / np.add.reduceat(n_Q, starts_Q)[:, None] / np.add.reduceat(n_K, starts_K)


def pooled(weights: np.ndarray, rows: Sequence[range], columns: Sequence[range]) -> np.ndarray:
    """Return the largest weight of each cell, `len(rows) len(columns)`, of groups as from `groups`."""
    import numpy as np

    if not weights.size:
        return np.zeros((len(rows), len(columns)), weights.dtype)
    of_rows = np.maximum.reduceat(weights, [row.start for row in rows], axis=0)
    return np.maximum.reduceat(of_rows, [column.start for column in columns], axis=1)


def tokens_of_cells(maps: TokenGrid) -> tuple[list[Sequence[AxisToken]], list[Sequence[AxisToken]]]:
    """Return the queries of each row of a map, and the keys of each column."""
    queries, keys = positions(maps)
    first = maps.first_query
    return (
        [maps.query_tokens[cell.start - first : cell.stop - first] for cell in queries],
        [maps.key_tokens[cell.start : cell.stop] for cell in keys],
    )


def cell_text(tokens: Sequence[AxisToken], cell: range) -> str:
    """Return the positions and the text of a cell's tokens: `12–15 the quick brown fox`."""
    ends = str(cell.start) if len(cell) == 1 else f"{cell[0]}–{cell[-1]}"
    return " ".join([ends, *(label(token.text) for token in tokens)])


def _as_token(tokens: Sequence[AxisToken], cell: range) -> AxisToken:
    """Return a token for a cell, with shortened text; it is special only if all of its tokens are."""
    text = cell_text(tokens, cell)
    if len(text) > LONGEST_NAME:
        text = text[: LONGEST_NAME - 1].rstrip() + "…"
    special = all(token.special for token in tokens)
    return replace(tokens[0], text=text, special=special)  # type: ignore[type-var]


def _runs(tokens: Sequence[AxisToken]) -> list[range]:
    """Return the positions of each text."""
    runs, start = [], 0
    for _, run in groupby(tokens, key=lambda token: token.segment):
        runs.append(range(start, start := start + len(list(run))))
    return runs
