"""Measure heads on the maps of one text, for a page that ranks them.

The metrics are those of `measurer`, over all queries that are shown: computed from whole maps, or from
the blocks of weights that are pooled.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from typing import TYPE_CHECKING

from attnscope.document.grid.sinks import sink_keys
from attnscope.model.heads.metrics import CROSS, METRICS, AxisTokens, Metric, WeightRows
from attnscope.model.heads.result import HeadRow, HeadTable
from attnscope.model.maps.result import AttentionMaps
from attnscope.model.run.blockwise import Store
from attnscope.model.run.tokens import Token

if TYPE_CHECKING:
    import torch

OF_TEXTS = ("entropy", "largest", "first", "separator", "self", "previous", "next", "distance")
"""The metrics of heads that attend to tokens of text, by their names in METRICS."""

OF_PICTURES = ("entropy", "largest", "first", "self")
"""The same for images, whose patches are not a sequence."""

N_PAIRS = sum(METRICS[name].pair is not None for name in OF_TEXTS)
"""The number of these metrics that need numbers of each pair of a query and a key."""


class Measurement:
    """The metrics of the heads of one layer.

    Args:
        n_Q: the number of the layer's queries, including those that do not count.
        separators: the texts of special tokens that end a text, such as `[SEP]`.
    """

    def __init__(
        self,
        maps: AttentionMaps,
        n_Q: int,
        separators: Collection[str],
        like: torch.Tensor,
        store: Store | None = None,
    ) -> None:
        self.metrics = metrics_of(maps)
        self.first = maps.first_query
        # In self-attention, the first queries may not be shown: their tokens are those of the keys.
        queries = maps.query_tokens if maps.stack == "cross" else maps.key_tokens[:n_Q]
        metrics = self.metrics.values()
        self.rows = WeightRows(
            _side(queries, n_Q, separators, like),
            _side(maps.key_tokens, len(maps.key_tokens), separators, like),
            [metric.position for metric in metrics if metric.position is not None],
            [metric.pair for metric in metrics if metric.pair is not None],
            store=store,
        )

    def values(self) -> list[dict[str, float | None]]:
        """Return the mean of each metric for each head, over the queries that count, or None."""
        import torch

        counts = self.rows.i >= self.first
        means = {}
        for name, metric in self.metrics.items():
            of_queries = metric.of(self.rows)[0][:, counts].to("cpu", torch.float64)  # [n_head, n_Q]
            means[name] = of_queries.nanmean(dim=-1).tolist()
        n_head = self.rows.entropy.shape[1]
        return [
            {name: each[head] if each[head] == each[head] else None for name, each in means.items()}
            for head in range(n_head)
        ]


def metrics_of(maps: AttentionMaps) -> dict[str, Metric]:
    """Return the metrics that are defined for a stack, by name."""
    known = CROSS if maps.stack == "cross" else METRICS
    names = OF_TEXTS if maps.picture is None else OF_PICTURES
    return {name: known[name] for name in names if name in known}


def measure(maps: AttentionMaps, separators: Collection[str]) -> list[HeadRow]:
    """Measure the heads of whole maps."""
    import numpy as np
    import torch

    from attnscope.attention.blocks import of_weights

    rows = []
    first, n_Q = maps.first_query, len(maps.query_tokens)
    for layer in sorted({each.layer for each in maps.maps}):
        of_layer = [each for each in maps.maps if each.layer == layer]
        weights = torch.from_numpy(np.stack([each.attention for each in of_layer]))[None]
        measured = Measurement(maps, first + n_Q, separators, weights)
        measured.rows.add(of_weights(weights, range(first, first + n_Q)))
        values = measured.values()
        rows += [
            head_row(maps.stack, layer, each.head, of_head)
            for each, of_head in zip(of_layer, values, strict=True)
        ]
    return rows


def head_row(stack: str, layer: int, head: int, values: dict[str, float | None]) -> HeadRow:
    """Return the row of a head that was measured on one text: there are no standard errors."""
    return HeadRow(stack, layer, head, values, dict.fromkeys(values))


def table(stacks: Sequence[AttentionMaps], rows: list[HeadRow]) -> HeadTable:
    """Return the table of the heads of some stacks."""
    names = list(dict.fromkeys(name for maps in stacks for name in metrics_of(maps)))
    tokens = sum(
        {maps.stack: len(maps.query_tokens) for maps in stacks if maps.stack != "cross"}.values()
    )
    layers = {maps.stack: (maps.n_layer, maps.n_head) for maps in stacks}
    metrics = {name: METRICS[name].meaning for name in names}
    return HeadTable(stacks[0].model, metrics, 1, tokens, layers, rows)


def _side(
    tokens: Sequence[Token], n: int, separators: Collection[str], like: torch.Tensor
) -> AxisTokens:
    """Return the properties of tokens that these metrics need; none compares tokens by their ids."""
    import torch

    def flags(of: list[bool]) -> torch.Tensor:
        return torch.tensor([of + [False] * (n - len(of))], device=like.device)

    special = [token.special for token in tokens]
    ends = [token.special and token.text in separators for token in tokens]
    ids = torch.arange(n, device=like.device)[None]
    nothing = flags([False] * len(tokens))
    return AxisTokens(ids, ~nothing, flags(special), flags(ends), nothing, flags(sink_keys(special)))
