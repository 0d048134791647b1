"""What the scale does to attention, at several widths."""

from __future__ import annotations

from dataclasses import dataclass, field

from attnscope.results.common import Finding, Result

MEASURES = {"variance": 1, "entropy": 2, "largest_weight": 3, "gradient_norm": 2}
"""What is measured, and how many decimals people read of it."""


@dataclass(frozen=True)
class ScalingRow:
    """What is measured of scores and of their softmax at one width, with the scale or without it.

    Attributes:
        d_K: the width of queries and keys.
        scaled: whether the scores were multiplied by 1/√d_K.
        variance: of all the scores (the population's: divided by n).
        entropy: of a row of weights, in nats; the mean over rows.
        largest_weight: of a row; the mean over rows.
        gradient_norm: the Frobenius norm of ∂attention/∂scores, of a row; the median over rows.
        gradient_norm_mean: the same; the mean over rows.
    """

    d_K: int  # noqa: N815 - the field's name
    scaled: bool
    variance: float
    entropy: float
    largest_weight: float
    gradient_norm: float
    gradient_norm_mean: float

    def text(self, measure: str) -> str:
        """One of `MEASURES`, as people read it."""
        return rounded(getattr(self, measure), MEASURES[measure])


def rounded(number: float, decimals: int) -> str:
    """A number to some decimals; to two digits, if these would show hardly anything of it."""
    small = abs(number) < 10**-decimals
    return f"{number:.2g}" if small else f"{number:.{decimals}f}"


@dataclass
class Scaling(Result):
    """What the scale does to attention, at several widths.

    Attributes:
        sizes: how many queries and keys there were: `{"n_batch": 64, "n_Q": 64, "n_K": 64}`.
        dtype: what scores and weights were computed in; they were measured in float64.
        seed: what queries and keys were drawn with, at each width anew.
        rows: two for each width, in the order asked for: without the scale, and with it.
        findings: what these numbers say.
    """

    sizes: dict[str, int]
    dtype: str
    seed: int
    rows: list[ScalingRow]
    findings: list[Finding] = field(default_factory=list)

    def __getitem__(self, place: tuple[int, bool]) -> ScalingRow:
        """What was measured at a width, and whether with the scale: `scaling[1024, False]`.

        Raises:
            KeyError: it was not measured.
        """
        for row in self.rows:
            if (row.d_K, row.scaled) == place:
                return row
        raise KeyError(place)
