"""Pool the maps of long texts while they are computed: a block of queries at a time, never all."""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Iterator, Sequence
from itertools import pairwise
from math import ceil
from typing import TYPE_CHECKING, Any

from attnscope.model.run.tokens import Token

if TYPE_CHECKING:
    import torch

    from attnscope.attention.blocks import Block

MAX_CELLS = 256
"""The most rows and columns of cells in a pooled map."""


def cells(tokens: Sequence[Token], most: int = MAX_CELLS) -> list[range]:
    """Group neighbouring tokens of one text into cells of equal size, except the last of each text."""
    n = len(tokens)
    starts = [i for i in range(1, n) if tokens[i].segment != tokens[i - 1].segment]
    size = 1 if n <= most else ceil(n / (most - len(starts)))
    return [
        range(i, min(i + size, end))
        for start, end in pairwise([0, *starts, n])
        for i in range(start, end, size)
    ]


class CellPooler:
    """Pool the weights of some heads of one layer, block by block in order.

    For the current row of cells, only the sum and the largest weight of each key are kept; after its
    last query, they are pooled over the keys of each cell.

    Args:
        queries: the positions pooled into each row; the first may be later than the layer's first query.
        keys: the positions pooled into each column; together, all keys.

    Attributes:
        mean, max: the mean and the largest weight of each cell, `n_head len(queries) len(keys)`. Masked
            weights are included as 0.
    """

    def __init__(
        self, heads: list[int], queries: list[range], keys: list[range], like: torch.Tensor
    ) -> None:
        import torch

        n_K = keys[-1].stop
        self.heads, self.queries, self.keys = heads, queries, keys
        self.mean = like.new_zeros(len(heads), len(queries), len(keys))
        self.max = torch.zeros_like(self.mean)
        self._sum = like.new_zeros(len(heads), n_K + 1)  # the last is no key's, and stays 0
        self._largest = torch.zeros_like(self._sum)
        longest = max(map(len, keys))
        padded = [[*cell, *[n_K] * (longest - len(cell))] for cell in keys]
        self._of_cell = torch.tensor(padded, device=like.device)

    def add(self, block: Block) -> None:
        """Pool a block's weights."""
        import torch

        attention = block.attention[0]
        if len(self.heads) < len(attention):
            attention = attention[self.heads]
        keys = slice(block.keys.start, block.keys.stop)
        for number, rows in self._parts(block.queries):
            part = attention[:, rows]  # [n_head, rows, keys]
            self._sum[:, keys] += part.sum(dim=1)
            self._largest[:, keys] = torch.maximum(self._largest[:, keys], part.amax(dim=1))
            if block.queries.start + rows.stop == self.queries[number].stop:
                self._finish(number)

    def _parts(self, queries: range) -> Iterator[tuple[int, slice]]:
        """Yield the rows of cells that a block overlaps, with the block's rows in each."""
        first = max(0, bisect_right(self.queries, queries.start, key=lambda cell: cell.start) - 1)
        for number in range(first, len(self.queries)):
            cell = self.queries[number]
            start, stop = max(cell.start, queries.start), min(cell.stop, queries.stop)
            if cell.start >= queries.stop:
                return
            yield number, slice(start - queries.start, stop - queries.start)

    def _finish(self, number: int) -> None:
        """Pool a completed row of cells over the keys of each cell, and reset for the next row."""
        import torch

        n = len(self.queries[number]) * torch.tensor([len(cell) for cell in self.keys]).to(self._sum)
        self.mean[:, number] = self._sum[:, self._of_cell].sum(dim=-1) / n
        self.max[:, number] = self._largest[:, self._of_cell].amax(dim=-1)
        self._sum.zero_()
        self._largest.zero_()


class PooledRows:
    """Keep one query's weights, and each query's strongest keys, of one head, block by block.

    Args:
        n_K: the number of keys.
    """

    def __init__(
        self,
        head: int,
        first: int,
        n_K: int,
        query: int | None,
        top: int | None,
        without: Sequence[int] = (),
    ) -> None:
        self.head, self.first, self.n_K = head, first, n_K
        self.query, self.top, self.without = query, top, list(without)
        self.row: torch.Tensor | None = None
        self.strongest: list[tuple[torch.Tensor, torch.Tensor]] = []

    def result(self) -> tuple[Any, Any]:
        """Return the query's weights, `n_K`; each query's strongest keys and weights, `n_Q k` each.

        All are numpy; None, unless requested.
        """
        import torch

        row = None if self.row is None else self.row.float().cpu().numpy()
        if not self.strongest:
            return row, None
        keys, weights = (torch.cat(each).cpu() for each in zip(*self.strongest, strict=True))
        return row, (keys.numpy(), weights.float().numpy())

    def add(self, block: Block) -> None:
        """Keep the requested weights of a block."""
        import torch
        from torch.nn.functional import pad

        queries = range(max(self.first, block.queries.start), block.queries.stop)
        with_query = self.query is not None and self.query in queries
        if not queries or not (with_query or self.top):
            return
        weights = block.attention[0, self.head, queries.start - block.queries.start :]
        weights = pad(weights, (block.keys.start, self.n_K - block.keys.stop))  # [rows, n_K]
        if with_query:
            self.row = weights[self.query - queries.start].clone()  # type: ignore[operator]
        if self.top:
            without = torch.tensor(self.without, dtype=torch.long, device=weights.device)
            weights = weights.index_fill(-1, without, float("-inf"))
            self.strongest.append(strongest(weights, min(self.top, self.n_K - len(self.without))))


def strongest(weights: torch.Tensor, k: int) -> tuple[torch.Tensor, torch.Tensor]:
    """Return the k largest weights of each row, the largest first; of equals, the smaller position.

    Args:
        weights: `n_Q n_K`; those that are not a number come last.
        k: the number of weights; fewer, if there are fewer keys.

    Returns:
        Their keys and the weights, `n_Q k`.
    """
    import torch

    k = min(k, weights.shape[-1])
    if k == 0:
        return weights.new_empty(len(weights), 0, dtype=torch.long), weights[:, :0]
    ranked = weights.nan_to_num(nan=-1.0)
    least = torch.topk(ranked, k).values[:, -1:]
    larger, equal = ranked > least, ranked == least
    missing = k - larger.sum(dim=-1, keepdim=True)  # the number of equals to take, from the left
    keys = (larger | (equal & (equal.cumsum(dim=-1) <= missing))).nonzero()[:, 1].view(-1, k)
    order = ranked.gather(-1, keys).argsort(dim=-1, descending=True, stable=True)
    keys = keys.gather(-1, order)
    return keys, weights.gather(-1, keys)
