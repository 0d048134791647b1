"""Collect pooled maps of a long text block by block, without ever holding a whole map.

The model runs once. Its attention is replaced by attnscope's, which computes a block of queries at a
time, and pools each block's weights before the next one overwrites them. Before that, a run on a few
tokens checks for each layer that this attention equals the model's own.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise
from math import ceil
from typing import TYPE_CHECKING, Any

from attnscope.base.errors import ModelError
from attnscope.base.spelling import spelled
from attnscope.document.grid.pooling import Pooling
from attnscope.document.grid.sinks import sink_positions
from attnscope.model.files.checkpoint import Checkpoint
from attnscope.model.heads.result import HeadRow
from attnscope.model.maps.capture import CollectedMaps, HeadSelection, Layer, MapCollector
from attnscope.model.maps.collect import add_notice, first_tokens, no_values, selected_stacks
from attnscope.model.maps.metrics import Measurement, head_row
from attnscope.model.maps.result import AttentionMap, AttentionMaps
from attnscope.model.run.attention_hook import AttentionCall, AttentionInputs, attending, observing
from attnscope.model.run.blockwise import FEW, Blockwise, Store, disagreement, discard, is_fused
from attnscope.model.run.eager import SOME, notice_of_masks, why_eager
from attnscope.model.run.forward import main_output, run
from attnscope.model.run.load import as_model_error, disable_cache
from attnscope.model.run.tokenize import Reading
from attnscope.model.run.tokens import Token
from attnscope.model.run.value_norms import ValueNorms, checked

if TYPE_CHECKING:
    import torch

    from attnscope.attention.blocks import Block
    from attnscope.model.maps.matrix_file import MapsFile


@dataclass(frozen=True)
class Pooled:
    """How the maps of a long text are pooled, and which parts are kept unpooled."""

    shown: str = "max"
    block_bytes: int = 2**24
    #: the position of a query whose row is kept unpooled.
    query: int | None = None
    top: int | None = None
    #: the heads whose row and strongest keys are kept; None: none.
    head: HeadSelection | None = None
    without_sink: bool = False
    #: the file of whole maps, in addition to the pooled ones; None: they are discarded.
    whole: MapsFile | None = None
    of_whole: HeadSelection | None = None
    #: the special tokens that end a text, if metrics are to be measured; None: they are not.
    separators: Collection[str] | None = None
    #: the norms of values by which weights are multiplied; None: they are not.
    norms: ValueNorms | None = None
    keep_weights: bool = False
    #: called after each block with the layer, the number of layers, and the share of queries that are
    #: done.
    watch: Callable[[int, int, float], None] | None = None


def collect_pooled(
    checkpoint: Checkpoint, model: Any, reading: Reading, selection: HeadSelection, pooled: Pooled
) -> CollectedMaps:
    """Run a model, and pool the maps of its heads during the run."""
    disable_cache(model)
    few = first_tokens(reading, FEW)
    trial = Pooler(MapCollector(checkpoint.name, model, few, HeadSelection(selection.stack)), pooled)
    with observing(model, trial.compare), as_model_error(checkpoint):
        run(model, few, logits=False)
    tested, stacks = trial.collector, selected_stacks(model, reading, selection)
    for reason in why_eager(checkpoint.name, stacks, tested.unexplained, tested.n_layer).values():
        if pooled.norms is not None:
            raise no_values(reason)
        raise ModelError(
            f"{reason}. Its maps come from its own eager attention, which computes them whole and"
            " cannot pool them.",
            hint=f"{spelled(pool='none')}, if memory suffices; or a shorter text without"
            f" {spelled('pool')}",
        )
    collector = MapCollector(
        checkpoint.name,
        model,
        reading,
        selection,
        norms=pooled.norms,
        keep_weights=pooled.keep_weights,
    )
    pooler = Pooler(collector, pooled, tested.layers)
    with checked(pooled.norms), attending(model, pooler.attend), as_model_error(checkpoint):
        output = run(model, reading, logits=False)
    result = pooler.collector.result(main_output(output))
    result.measured = pooler.measured
    some = first_tokens(reading, SOME)
    add_notice(result, pooled.norms.notice if pooled.norms else None)
    add_notice(result, notice_of_masks(checkpoint.name, model, lambda: run(model, some, logits=False)))
    return result


class Pooler:
    """Compute attention in place of a model, and pool the maps of the selected heads."""

    def __init__(
        self,
        collector: MapCollector,
        pooled: Pooled,
        layers: Mapping[tuple[str, int], int] | None = None,
    ) -> None:
        self.collector, self.pooled, self.layers = collector, pooled, layers or {}
        self._of_whole: list[tuple[int, int]] | None = None  # the layers and heads that are kept whole
        self.blockwise = Blockwise(pooled.block_bytes)
        self.measured: list[HeadRow] = []
        self._store = Store()

    def compare(self, call: AttentionCall) -> None:
        """Record if attnscope's attention differs from the output of a layer's own."""
        layer = self.collector.layer(call)
        if layer is None:
            return
        self.collector.add_layer(layer)
        difference = disagreement(call, layer.number, self.blockwise)
        if difference is not None:
            self.collector.unexplained[layer.stack] = difference

    def attend(self, inputs: AttentionInputs) -> torch.Tensor | None:
        """Compute one layer's attention; return None if its maps are not needed and its own will do."""
        layer = self.collector.layer(inputs)
        heads = [] if layer is None else self.collector.add_layer(layer)
        if layer is not None and heads:
            return self._pool(inputs, layer, heads)
        if is_fused(self.collector.model, inputs):
            return None
        return self.blockwise.attend(inputs, discard)

    def _pool(self, inputs: AttentionInputs, layer: Layer, heads: list[int]) -> torch.Tensor:
        """Compute one layer's attention, and add the pooled maps of its heads to the collector."""
        import torch

        maps, pooled = self.collector.maps[layer.stack], self.pooled
        first = maps.first_query
        if maps.pooling is None:
            queries = [range(first + cell.start, first + cell.stop) for cell in cells(maps.query_tokens)]
            maps.pooling = Pooling(pooled.shown, queries, cells(maps.key_tokens))
        dtype = torch.promote_types(inputs.query.dtype, torch.float32)
        like = torch.empty(0, dtype=dtype, device=inputs.query.device)
        norms = None if pooled.norms is None else pooled.norms.of(inputs)
        cell_pooler = CellPooler(heads, maps.pooling.queries, maps.pooling.keys, like)
        weight_pooler = None
        if layer.stack in self.collector.weights:
            self.collector.weights[layer.stack].pooling = maps.pooling
            weight_pooler = CellPooler(heads, maps.pooling.queries, maps.pooling.keys, like)
        rows = self._kept_rows(layer, maps)
        whole = self._heads_of_whole(layer, maps)
        measurement = None
        if pooled.separators is not None:
            measurement = Measurement(maps, layer.n_Q, pooled.separators, like, self._store)

        def on_block(block: Block) -> None:
            if measurement is not None:
                measurement.rows.add(block)
            if weight_pooler is not None:
                weight_pooler.add(block)
            if norms is not None:
                block.attention.mul_(norms[:, :, None, block.keys.start : block.keys.stop])
            cell_pooler.add(block)
            for of_head in rows.values():
                of_head.add(block)
            for head in whole:
                self._write(block, layer.number, head, first, layer.n_K)
            if pooled.watch is not None:
                pooled.watch(layer.number, layer.n_layer, block.queries.stop / layer.n_Q)

        collected = self.blockwise.attend(inputs, on_block)
        if pooled.norms is not None:
            pooled.norms.expect(inputs.path, collected)
        if measurement is not None:
            values = measurement.values()
            self.measured += [head_row(layer.stack, layer.number, head, values[head]) for head in heads]
        maps.maps += self._pooled_maps(layer, heads, cell_pooler, rows)
        if weight_pooler is not None:
            of_weights = self._pooled_maps(layer, heads, weight_pooler, {})
            self.collector.weights[layer.stack].maps += of_weights
        return collected

    def _kept_rows(self, layer: Layer, maps: AttentionMaps) -> dict[int, PooledRows]:
        """Return, by head, what keeps a query's row and the strongest keys of a layer, if requested."""
        pooled, rows = self.pooled, {}
        without = sink_positions(key.special for key in maps.key_tokens) if pooled.without_sink else []
        if pooled.head is not None:
            of, first = (layer.stack, layer.number, layer.n_head), maps.first_query
            for head in pooled.head.heads_of(*of, first=not maps.maps):
                rows[head] = PooledRows(head, first, layer.n_K, pooled.query, pooled.top, without)
        return rows

    def _pooled_maps(
        self, layer: Layer, heads: list[int], pooler: CellPooler, rows: dict[int, PooledRows]
    ) -> list[AttentionMap]:
        """Return the pooled maps of some heads of a layer, with the rows that are kept of them."""
        group = layer.n_head // layer.n_kv_head
        means, largest = (each.float().cpu().numpy() for each in (pooler.mean, pooler.max))
        maps = []
        for head, mean, most in zip(heads, means, largest, strict=True):
            shown = mean if self.pooled.shown == "mean" else most
            row, top = rows[head].result() if head in rows else (None, None)
            of_layer = (layer.number, head, head // group)
            maps.append(AttentionMap(*of_layer, shown, mean, most, row, top))
        return maps

    def _heads_of_whole(self, layer: Layer, maps: AttentionMaps) -> list[int]:
        """Return the heads of a layer whose whole maps are kept; begin the file at the first layer."""
        pooled = self.pooled
        if pooled.whole is None or pooled.of_whole is None or pooled.of_whole.stack != layer.stack:
            return []
        if self._of_whole is None:
            numbers = sorted(number for stack, number in self.layers if stack == layer.stack)
            self._of_whole = [
                (number, head)
                for number in numbers
                for head in pooled.of_whole.heads_of(
                    layer.stack,
                    number,
                    self.layers[layer.stack, number],
                    first=number == numbers[0],
                )
            ]
            if self._of_whole:
                shape = (len(maps.query_tokens), len(maps.key_tokens))
                pooled.whole.begin(self._of_whole, shape)
        return [head for number, head in self._of_whole if number == layer.number]

    def _write(self, block: Block, layer: int, head: int, first: int, n_K: int) -> None:
        """Write a block's rows of one head to the file, beginning with the first query to include."""
        import numpy as np

        start = max(first, block.queries.start)
        if start >= block.queries.stop:
            return
        weights = block.attention[0, head, start - block.queries.start :].float().cpu().numpy()
        rows = weights
        if len(block.keys) < n_K:  # keys that no query of the block can see
            rows = np.zeros((len(weights), n_K), dtype=np.float32)
            rows[:, block.keys.start : block.keys.stop] = weights
        assert self.pooled.whole is not None
        self.pooled.whole.write(layer, head, start - first, rows)


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
