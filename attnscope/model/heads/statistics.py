"""Accumulate metrics over sequences, and compute their means and standard errors."""

from __future__ import annotations

from dataclasses import dataclass, field
from math import sqrt
from typing import TYPE_CHECKING

from attnscope.model.heads.result import HeadRow

if TYPE_CHECKING:
    import numpy as np

Key = tuple[str, int]  #: a stack's name and a layer's index


@dataclass
class Accumulator:
    """Sums over sequences, from which means and standard errors follow.

    For each head and metric, a sequence has a sum y over its queries, and the number n of queries that
    count. The sums are Σ1, Σn, Σy, Σn², Σny and Σy², over the sequences in which some query counts.
    """

    #: `n_head n_metric 6` for each layer, numpy float64
    sums: dict[Key, np.ndarray] = field(default_factory=dict)
    #: the numbers of layers and heads of each stack
    layers: dict[str, tuple[int, int]] = field(default_factory=dict)
    #: the number of heads of each layer with attention
    heads: dict[Key, int] = field(default_factory=dict)
    sequences: int = 0
    tokens: int = 0
    cut: int = 0  #: the number of sequences that were truncated
    empty: int = 0  #: the number of further texts, without tokens
    #: the number of unknown tokens, and of all tokens except special ones
    unknown: tuple[int, int] = (0, 0)

    def add(self, key: Key, totals: np.ndarray, counts: np.ndarray) -> None:
        """Add the sequences of a batch, for one layer: y and n, `n_batch n_head n_metric` in float64."""
        import numpy as np

        counted = (counts > 0).astype(counts.dtype)
        terms = [counted, counts, totals, counts**2, counts * totals, totals**2]
        sums = np.stack(terms, axis=-1).sum(axis=0)
        self.sums[key] = self.sums[key] + sums if key in self.sums else sums

    def merge(self, other: Accumulator) -> None:
        """Add the sums of another accumulator."""
        for key, sums in other.sums.items():
            self.sums[key] = self.sums[key] + sums if key in self.sums else sums
        self.layers |= other.layers
        self.heads |= other.heads
        self.sequences += other.sequences
        self.tokens += other.tokens
        self.cut += other.cut
        self.empty += other.empty
        self.unknown = self.unknown[0] + other.unknown[0], self.unknown[1] + other.unknown[1]

    def rows(self, metrics: list[str], measured: dict[str, list[str]]) -> list[HeadRow]:
        """Return the mean of each metric for each head, and its standard error.

        `measured` has the metrics that were measured in each stack, in the order of the sums.
        """
        rows = []
        for (stack, layer), sums in sorted(self.sums.items(), key=lambda item: self._order(item[0])):
            for head, of_head in enumerate(sums):
                known = dict(zip(measured[stack], map(mean_and_error, of_head), strict=True))
                pairs = {name: known.get(name, (None, None)) for name in metrics}
                values = {name: mean for name, (mean, _) in pairs.items()}
                errors = {name: error for name, (_, error) in pairs.items()}
                rows.append(HeadRow(stack, layer, head, values, errors))
        return rows

    def _order(self, key: Key) -> tuple[int, int]:
        stack, layer = key
        return list(self.layers).index(stack), layer


def mean_and_error(sums: np.ndarray) -> tuple[float | None, float | None]:
    """Return a mean over queries, and its standard error, from Σ1, Σn, Σy, Σn², Σny and Σy².

    Queries of one sequence depend on each other: the sample is one of sequences, clusters of unequal
    sizes. The mean is the ratio m = Σy / Σn, and its variance c/(c−1) · Σ(y − m n)² / (Σn)², with c
    sequences. There is no mean if no query counts, and no error of fewer than two sequences.

    Source: Cochran 1977, "Sampling Techniques", equation 2.47 with section 9A.4 (ratio to size).
    """
    c, n, y, nn, ny, yy = sums.tolist()
    if n == 0:
        return None, None
    mean = y / n
    if c < 2:
        return mean, None
    squares = max(yy - 2 * mean * ny + mean**2 * nn, 0.0)
    return mean, sqrt(c / (c - 1) * squares) / n
