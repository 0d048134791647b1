"""What differs between the heads of two models: what differences of weights and of maps share."""

from __future__ import annotations

from typing import ClassVar

from attnscope.models.heads.result import HeadMetrics, HeadRow
from attnscope.units import counted


class Differences(HeadMetrics):
    """Base class of what differs between heads: metrics that are 0 where nothing does.

    Attributes:
        a, b: the names that the user gave to the models.
        adapter: the folder of the adapter that is merged into `b`, if any.
        changed: the heads with any difference.
    """

    powers: ClassVar[bool] = True
    a: str
    b: str
    adapter: str | None

    @property
    def title(self) -> str:
        """Both names: `a → b`."""
        adapted = "" if self.adapter is None else f" + {self.adapter}"
        return f"{self.a} → {self.b}{adapted}"

    @property
    def models(self) -> list[str]:
        """The names of both, and of the adapter."""
        return [self.a, self.b, *([] if self.adapter is None else [self.adapter])]

    @property
    def shown_metrics(self) -> list[str]:
        """The metrics that are not 0 in every head, and the one that ranks them."""
        return [name for name in self.metrics if name in self._differing or name == self.sort]

    @property
    def changed(self) -> list[HeadRow]:
        """The heads with any difference."""
        return [row for row in self.rows if any(value != 0 for value in row.values.values())]

    @staticmethod
    def verdict(n: int, n_changed: int, what: str = "head") -> str:
        """Say how many of n heads differ, or that all of what was compared is equal."""
        if not n_changed:
            return f"{counted(n, what)} equal bit for bit"
        return f"{n_changed:,} of {counted(n, 'head')} differ" + ("s" if n_changed == 1 else "")

    @property
    def _differing(self) -> set[str]:
        return {name for row in self.rows for name, value in row.values.items() if value != 0}
