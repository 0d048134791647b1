"""Arrange a metric of all heads as a grid of layers × heads."""

from __future__ import annotations

from dataclasses import dataclass
from math import isnan
from typing import TYPE_CHECKING

from attnscope.models.heads.result import HeadMetrics, HeadRow, head_name
from attnscope.render.ranking import NumberFormat, decimals, is_known

if TYPE_CHECKING:
    import numpy as np


@dataclass(frozen=True)
class Grid:
    """One metric of the heads of one stack.

    Attributes:
        metric: the metric's name.
        layers, heads: the indices of rows and columns.
        values: `layers heads`; NaN if there is no such head, or it has no value.
        text: formats a value.
    """

    metric: str
    layers: list[int]
    heads: list[int]
    values: np.ndarray
    text: NumberFormat

    @classmethod
    def of(cls, rows: list[HeadRow], metric: str, *, powers: bool = False) -> Grid:
        """Arrange heads of one stack in a grid.

        Args:
            rows: the heads.
            metric: the metric's name.
            powers: whether small numbers are written with powers of ten.
        """
        import numpy as np

        layers, heads = sorted({row.layer for row in rows}), sorted({row.head for row in rows})
        values = np.full((len(layers), len(heads)), np.nan)
        for row in rows:
            if is_known(value := row.values[metric]):
                values[layers.index(row.layer), heads.index(row.head)] = value
        known = [value for row in rows if is_known(value := row.values[metric])]
        whole = powers and all(isinstance(value, int) for value in known)
        places = 0 if whole else decimals(known, DIGITS)
        return cls(metric, layers, heads, values, NumberFormat(places, powers and not whole))

    @property
    def missing(self) -> int:
        """The number of entries without a value."""
        return sum(map(isnan, self.values.flat))

    @property
    def is_empty(self) -> bool:
        """Whether no entry has a value."""
        return self.missing == self.values.size

    def range(self, dash: str = "–") -> str:
        """Format the smallest and the largest value as a range."""
        import numpy as np

        return f"{self.text(np.nanmin(self.values))}{dash}{self.text(np.nanmax(self.values))}"

    def leader(self) -> str:
        """Name the head with the largest value, the first of equals."""
        import numpy as np

        layer, head = np.unravel_index(np.nanargmax(self.values), self.values.shape)
        value = self.text(self.values[layer, head])
        return f"largest {value} in {head_name(self.layers[layer], self.heads[head])}"


def by_stack(table: HeadMetrics) -> dict[str, list[HeadRow]]:
    """Group heads by stack, in the order of the stacks; stacks without heads are left out."""
    rows = {stack: [row for row in table.rows if row.stack == stack] for stack in table.layers}
    return {stack: own for stack, own in rows.items() if own}


DIGITS = 2  # of a grid's largest value
