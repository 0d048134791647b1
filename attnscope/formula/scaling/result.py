"""Measurements of attention with and without the scale 1/√d_K, at several widths."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from attnscope.base.errors import no_such_part
from attnscope.base.units import few, listed
from attnscope.document.result import Finding, Part, Result, of_room

if TYPE_CHECKING:
    from attnscope.document.blocks import Block
    from attnscope.document.columns import Column

MEASURES = {"variance": 1, "entropy": 2, "largest_weight": 3, "gradient_norm": 2}
"""The measured quantities, and the number of decimals in tables for people."""


@dataclass(frozen=True, repr=False)
class ScalingRow(Part):
    """Statistics of the scores and of their softmax at one width, with or without the scale.

    Attributes:
        d_K: the width of queries and keys.
        scaled: whether the scores were multiplied by 1/√d_K.
        variance: the variance of all scores (of the population: divided by n).
        entropy: the entropy of a row of weights, in nats; mean over rows.
        largest_weight: the largest weight of a row; mean over rows.
        gradient_norm: the Frobenius norm of ∂attention/∂scores for a row; median over rows.
        gradient_norm_mean: the same norm; mean over rows.
    """

    d_K: int  # noqa: N815 - the field's name
    scaled: bool
    variance: float
    entropy: float
    largest_weight: float
    gradient_norm: float
    gradient_norm_mean: float

    @property
    def summary(self) -> str:
        """What it is, on one line, without its class."""
        numbers = [f"variance {self.text('variance')}", f"entropy {self.text('entropy')}"]
        numbers += [f"largest weight {self.text('largest_weight')}"]
        return f"d_K {self.d_K}, {'with' if self.scaled else 'without'} 1/√d_K: {listed(numbers)}"

    def text(self, measure: str) -> str:
        """Format one of `MEASURES` for people.

        Raises:
            PartError: there is no such measure.
        """
        if measure not in MEASURES:
            raise no_such_part(measure, MEASURES, "a row of the experiment")
        return rounded(getattr(self, measure), MEASURES[measure])


def rounded(number: float, decimals: int) -> str:
    """Round to some decimals, or to two significant digits if the number is smaller than the last."""
    small = abs(number) < 10**-decimals
    return f"{number:.2g}" if small else f"{number:.{decimals}f}"


@dataclass(repr=False)
class Scaling(Result):
    """The effect of the scale on attention, measured at several widths.

    Attributes:
        sizes: the numbers of sequences, queries and keys: `{"n_batch": 64, "n_Q": 64, "n_K": 64}`.
        dtype: the dtype of scores and weights; the statistics are computed in float64.
        seed: the seed of the random queries and keys, which is set again for each width.
        rows: two for each width, in the order of the request: without the scale, and with it.
        findings: conclusions from these numbers.
        draw: the distribution of queries and keys: `normal`, or `uniform` in [0, 1).
    """

    schema = "scaling"

    sizes: dict[str, int]
    dtype: str
    seed: int
    rows: list[ScalingRow]
    findings: list[Finding] = field(default_factory=list)
    draw: str = "normal"

    @property
    def summary(self) -> str:
        """What it is, on one line, without its class."""
        widths = dict.fromkeys(str(row.d_K) for row in self.rows)
        draw = "" if self.draw == "normal" else f"{self.draw}, "
        return f"d_K {few(list(widths))}: with and without 1/√d_K, {draw}{self.dtype}, seed {self.seed}"

    def document(self, *, bars: bool = True) -> list[Block]:
        """Build the table, what its columns mean, bars on a terminal, and the conclusions."""
        return of_room(Scaling, "document")(self, bars=bars)

    def table(self) -> list[Column]:
        """Return a column for each quantity, with two rows for each width."""
        return of_room(Scaling, "columns")(self)

    def __getitem__(self, place: tuple[int, bool]) -> ScalingRow:
        """Return the row of a width, with or without the scale: `scaling[1024, False]`.

        Raises:
            KeyError: it was not measured.
        """
        for row in self.rows:
            if (row.d_K, row.scaled) == place:
                return row
        raise no_such_part(place, [(row.d_K, row.scaled) for row in self.rows], "this experiment")
