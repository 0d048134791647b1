"""Long axes on few cells: neighbouring tokens share a cell, which shows the largest of their weights."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import groupby
from math import ceil
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import numpy as np

    from attnscope.results import Token


def borders(tokens: Sequence[Token]) -> list[int]:
    """The positions at which another text begins: in a pair of texts one, the second's first token."""
    return [run.start for run in _runs(tokens)][1:]


def groups(tokens: Sequence[Token], most: int) -> list[range]:
    """The positions of tokens that share a cell: neighbours, equally many in each cell.

    A cell belongs to one text of a pair, so that the last cell of a text may hold fewer tokens.

    Args:
        tokens: an axis of a map.
        most: how many cells there is room for, at least 1.
    """
    runs = _runs(tokens)
    if len(runs) > most:
        runs = [range(len(tokens))]
    size = max(1, ceil(len(tokens) / most))
    while sum(ceil(len(run) / size) for run in runs) > most:
        size += 1
    return [range(i, min(i + size, run.stop)) for run in runs for i in run[::size]]


def chunks(size: int, most: int) -> list[range]:
    """The positions 0 … `size` - 1 in at most `most` equal parts; the last may be smaller."""
    each = max(1, ceil(size / most))
    return [range(i, min(i + each, size)) for i in range(0, size, each)]


def pooled(weights: np.ndarray, rows: Sequence[range], columns: Sequence[range]) -> np.ndarray:
    """The largest weight of each cell.

    Args:
        weights: `n_Q n_K`.
        rows: the queries of each row of cells, as `groups` has them.
        columns: the keys of each column of cells.

    Returns:
        `len(rows) len(columns)`.
    """
    import numpy as np

    if not weights.size:
        return np.zeros((len(rows), len(columns)), weights.dtype)
    of_rows = np.maximum.reduceat(weights, [row.start for row in rows], axis=0)
    return np.maximum.reduceat(of_rows, [column.start for column in columns], axis=1)


def _runs(tokens: Sequence[Token]) -> list[range]:
    """The positions of each text."""
    runs, start = [], 0
    for _, run in groupby(tokens, key=lambda token: token.segment):
        runs.append(range(start, start := start + len(list(run))))
    return runs
