"""A metric of all heads as a grid of layers and heads."""

from __future__ import annotations

from dataclasses import dataclass
from math import isnan
from typing import TYPE_CHECKING

from attnscope.render.ranking import decimals, is_known
from attnscope.results.heads import HeadRow, HeadTable

if TYPE_CHECKING:
    import numpy as np


@dataclass(frozen=True)
class Grid:
    """One metric of the heads of one stack, each at its place.

    Attributes:
        metric: its name.
        layers, heads: the numbers of those that there are.
        values: `layers heads`; NaN where there is no head, or no value.
        decimals: how many of them values are shown with.
    """

    metric: str
    layers: list[int]
    heads: list[int]
    values: np.ndarray
    decimals: int

    @classmethod
    def of(cls, rows: list[HeadRow], metric: str) -> Grid:
        """The grid of some heads of one stack."""
        import numpy as np

        layers, heads = sorted({row.layer for row in rows}), sorted({row.head for row in rows})
        values = np.full((len(layers), len(heads)), np.nan)
        for row in rows:
            if is_known(value := row.values[metric]):
                values[layers.index(row.layer), heads.index(row.head)] = value
        return cls(metric, layers, heads, values, decimals(values.ravel().tolist(), DIGITS))

    @property
    def missing(self) -> int:
        """How many places have no value."""
        return sum(map(isnan, self.values.flat))

    @property
    def is_empty(self) -> bool:
        """Whether none has one."""
        return self.missing == self.values.size

    def text(self, value: float) -> str:
        """A value, with as many decimals as every other."""
        return f"{value:.{self.decimals}f}"

    def range(self, dash: str = "–") -> str:
        """The smallest and the largest value."""
        import numpy as np

        return f"{self.text(np.nanmin(self.values))}{dash}{self.text(np.nanmax(self.values))}"

    def leader(self) -> str:
        """Which head has the largest value; of equals, the first."""
        import numpy as np

        layer, head = np.unravel_index(np.nanargmax(self.values), self.values.shape)
        value = self.text(self.values[layer, head])
        return f"largest {value} in {self.layers[layer]}.{self.heads[head]}"


def by_stack(table: HeadTable) -> dict[str, list[HeadRow]]:
    """The heads of each stack that has any, in the order of the stacks."""
    rows = {stack: [row for row in table.rows if row.stack == stack] for stack in table.layers}
    return {stack: own for stack, own in rows.items() if own}


DIGITS = 2  # of a grid's largest value
