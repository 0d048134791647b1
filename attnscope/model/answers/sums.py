"""Sum and pool rows of weights as they are computed, so that none is kept of each head."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from attnscope.model.answers.prompt import Segment
from attnscope.model.run.written_rows import WrittenRows

if TYPE_CHECKING:
    import numpy as np
    import torch

FEW = 4  #: the number of rows from which patches can be found that all of them read
TIMES_MEAN = 10  #: a patch is a sink if every row reads it more than 10 times as much as the mean patch


class RowSums:
    """The pooled weights of rows, and for each head their sums over segments.

    `n_row` and `n_K` are the most rows and keys, and the last segment may be longer than the text turns
    out to be. The weights of each layer, and the mean rows of segments, are kept on request; with these,
    rows of the prompt may be added.
    """

    def __init__(
        self,
        first_query: int,
        n_row: int,
        n_K: int,
        segments: Sequence[Segment],
        pool: str,
        *,
        of_layers: bool = False,
        of_segments: bool = False,
    ) -> None:
        import torch

        self.first_query, self.pool = first_query, pool
        self.n_row, self.n_K = n_row, n_K
        self.belongs = torch.zeros(n_K, len(segments))  # n_K n_segment
        for column, segment in enumerate(segments):
            for first, end in segment.spans:
                self.belongs[first:end, column] = 1
        self.pooled = torch.zeros(n_row, n_K)
        self.layers: dict[int, torch.Tensor] | None = {} if of_layers else None
        self.sums: dict[tuple[int, int], torch.Tensor] = {}  # by layer and head, n_row n_segment
        self.segment_rows = SegmentRows(self.belongs) if of_segments else None

    def add(self, rows: WrittenRows) -> None:
        """Add the weights of some heads of a layer."""
        import torch

        if self.segment_rows is not None:
            self.segment_rows.add(rows)
        if rows.queries[-1] < self.first_query:  # of the prompt
            return
        first = rows.queries[0] - self.first_query
        of_rows = slice(first, first + len(rows.queries))
        of_keys = slice(rows.first_key, rows.first_key + rows.weights.shape[2])
        weights = rows.weights.cpu()
        sums = weights @ self.belongs[of_keys]  # n_head n_row n_segment
        for head, of_head in zip(rows.heads, sums, strict=True):
            key = rows.layer, head
            if key not in self.sums:
                self.sums[key] = torch.full((self.n_row, sums.shape[2]), torch.nan)
            self.sums[key][of_rows] = of_head
        targets = [self.pooled]
        if self.layers is not None:
            if rows.layer not in self.layers:
                self.layers[rows.layer] = torch.zeros(self.n_row, self.n_K)
            targets.append(self.layers[rows.layer])
        for target in targets:
            part = target[of_rows, of_keys]
            if self.pool == "max":
                torch.maximum(part, weights.amax(0), out=part)
            else:
                part += weights.sum(0)

    def numbers(self, n_row: int, n_K: int) -> tuple[np.ndarray, np.ndarray, np.ndarray | None]:
        """Return the pooled weights, the sums, and the weights of each layer, of a text that is written.

        They are `n_row n_K`; `n_layer n_head n_row n_segment`, NaN where a layer has fewer heads; and
        `n_layer n_row n_K`, or None.
        """
        import numpy as np

        layers = sorted({layer for layer, _ in self.sums})
        sums = by_layer_and_head({key: each[:n_row] for key, each in self.sums.items()})
        scale = 1 if self.pool == "max" else 1 / len(self.sums)
        pooled = (self.pooled[:n_row, :n_K] * scale).numpy()
        if self.layers is None:
            return pooled, sums, None
        n_head = {layer: sum(other == layer for other, _ in self.sums) for layer in layers}
        of_layers = np.stack(
            [
                self.layers[layer][:n_row, :n_K].numpy() / (1 if self.pool == "max" else n_head[layer])
                for layer in layers
            ]
        )
        return pooled, sums, of_layers


class SegmentRows:
    """For each head, the mean row of each segment, summed over segments."""

    def __init__(self, belongs: torch.Tensor) -> None:
        self.belongs = belongs
        self.sums: dict[tuple[int, int], torch.Tensor] = {}  # by layer and head, n_segment n_segment
        self.counts: dict[tuple[int, int], torch.Tensor] = {}  # of the rows in these sums, n_segment

    def add(self, rows: WrittenRows) -> None:
        """Add the weights of some heads of a layer."""
        of_rows = self.belongs[rows.queries].double()  # n_row n_segment
        of_keys = self.belongs[rows.first_key : rows.first_key + rows.weights.shape[2]]
        sums = of_rows.T @ (rows.weights.cpu() @ of_keys).double()  # n_head n_segment n_segment
        for head, of_head in zip(rows.heads, sums, strict=True):
            key = rows.layer, head
            self.sums[key] = self.sums.get(key, 0) + of_head
            self.counts[key] = self.counts.get(key, 0) + of_rows.sum(0)

    def numbers(self) -> np.ndarray:
        """Return the means, `n_layer n_head n_segment n_segment` in float32: of queries, of keys.

        NaN where a layer has fewer heads, and where no token of a segment has a query.
        """
        means = {key: sums / self.counts[key][:, None] for key, sums in self.sums.items()}
        return by_layer_and_head(means)


def by_layer_and_head(of_heads: dict[tuple[int, int], torch.Tensor]) -> np.ndarray:
    """Return arrays of one shape, by layer and head, as one: `n_layer n_head …` in float32.

    NaN where a layer has fewer heads.
    """
    import numpy as np

    layers, heads = (sorted({*indices}) for indices in zip(*of_heads, strict=True))
    shape = next(iter(of_heads.values())).shape
    whole = np.full((len(layers), len(heads), *shape), np.nan, dtype=np.float32)
    for (layer, head), each in of_heads.items():
        whole[layers.index(layer), heads.index(head)] = each.numpy()
    return whole


def sink_patches(weights: np.ndarray, positions: Sequence[int]) -> list[int]:
    """Return the patches that every row reads more than 10 times as much as the mean patch.

    Such patches say little of the picture: models park weight on them (Darcet et al. 2024, "Vision
    Transformers Need Registers"; Kang et al. 2025, "See What You Are Told: Visual Attention Sink in
    Large Multimodal Models", who find them by their hidden states). Of fewer than 4 rows, none is
    found. The weights are `n_row n_K`.
    """
    import numpy as np

    if len(weights) < FEW or not len(positions):
        return []
    of_patches = weights[:, list(positions)]
    high = of_patches > TIMES_MEAN * of_patches.mean(1, keepdims=True)
    return np.asarray(positions)[high.all(0)].tolist()
