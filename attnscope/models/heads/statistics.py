"""Adds up what is measured of heads, sequence by sequence: means, and how sure they are."""

from __future__ import annotations

from dataclasses import dataclass, field
from math import sqrt
from typing import TYPE_CHECKING

from attnscope.results.heads import HeadRow

if TYPE_CHECKING:
    import numpy as np

Key = tuple[str, int]
"""A stack's name and a layer's number."""


@dataclass
class Accumulator:
    """Sums over sequences, from which means and standard errors follow.

    A sequence has for each head and metric a sum y over its queries, and a number n of those that
    count. Kept are Σ1, Σn, Σy, Σn², Σny and Σy², over the sequences in which some query counts.

    Attributes:
        sums: for each layer `n_head n_metric 6`, numpy float64.
        layers: how many layers each stack has, and how many heads: by its name.
        heads: how many heads each layer has that attended.
        sequences, tokens: how many were read.
        cut: how many sequences were longer than the model takes.
        empty: how many more texts there were, without a token of their own.
        unknown: how many tokens the vocabulary does not have, and among how many; None: they were not
            counted, by an attnscope that saved the run before it did so.
    """

    sums: dict[Key, np.ndarray] = field(default_factory=dict)
    layers: dict[str, tuple[int, int]] = field(default_factory=dict)
    heads: dict[Key, int] = field(default_factory=dict)
    sequences: int = 0
    tokens: int = 0
    cut: int = 0
    empty: int = 0
    unknown: tuple[int, int] | None = (0, 0)

    def add(self, key: Key, totals: np.ndarray, counts: np.ndarray) -> None:
        """Add the sequences of a batch, for one layer.

        Args:
            key: the layer.
            totals: y, `n_batch n_head n_metric`, float64.
            counts: n, the same.
        """
        import numpy as np

        counted = (counts > 0).astype(counts.dtype)
        terms = [counted, counts, totals, counts**2, counts * totals, totals**2]
        sums = np.stack(terms, axis=-1).sum(axis=0)
        self.sums[key] = self.sums[key] + sums if key in self.sums else sums

    def merge(self, other: Accumulator) -> None:
        """Add what another one has summed up."""
        for key, sums in other.sums.items():
            self.sums[key] = self.sums[key] + sums if key in self.sums else sums
        self.layers |= other.layers
        self.heads |= other.heads
        self.sequences += other.sequences
        self.tokens += other.tokens
        self.cut += other.cut
        self.empty += other.empty
        own, others = self.unknown, other.unknown
        self.unknown = own and others and (own[0] + others[0], own[1] + others[1])

    def rows(self, metrics: list[str], of_stack: dict[str, list[str]]) -> list[HeadRow]:
        """The mean of each metric for each head, and its standard error.

        Args:
            metrics: all that are shown, in order.
            of_stack: those that were measured of each stack, in the order of the sums.
        """
        rows = []
        for (stack, layer), sums in sorted(self.sums.items(), key=lambda item: self._order(item[0])):
            for head, of_head in enumerate(sums):
                known = dict(zip(of_stack[stack], map(mean_and_error, of_head), strict=True))
                told = {name: known.get(name, (None, None)) for name in metrics}
                values = {name: mean for name, (mean, _) in told.items()}
                errors = {name: error for name, (_, error) in told.items()}
                rows.append(HeadRow(stack, layer, head, values, errors))
        return rows

    def _order(self, key: Key) -> tuple[int, int]:
        stack, layer = key
        return list(self.layers).index(stack), layer


def mean_and_error(sums: np.ndarray) -> tuple[float | None, float | None]:
    """A mean over queries, and its standard error.

    Queries of one sequence depend on each other: what is drawn are sequences, clusters of unequal
    sizes. The mean is the ratio m = Σy / Σn, and its variance c/(c−1) · Σ(y − m n)² / (Σn)², with c
    sequences.

    Args:
        sums: Σ1, Σn, Σy, Σn², Σny and Σy².

    Returns:
        None for the mean where no query counts; None for the error of fewer than two sequences.

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
