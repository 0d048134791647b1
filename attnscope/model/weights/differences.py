"""How the weights of each head differ between two checkpoints."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from attnscope.base.text import shortened
from attnscope.base.units import listed
from attnscope.model.heads.result import Differences, HeadRow

if TYPE_CHECKING:
    from attnscope.model.maps.result import AttentionMaps


@dataclass(repr=False)
class HeadDifferences(Differences):
    """How the attention weights of each head differ between two checkpoints of one architecture.

    Each metric that is named after a matrix is its relative change, ‖B − A‖/‖A‖ in Frobenius norms:
    0 if it is equal bit for bit, infinite if A is 0 and B is not. `rank_…` is the rank of that change,
    as far as it exceeds what rounding could cause. See `attnscope.model.weights.layer_difference`.

    Attributes:
        a, b: the names that the user gave.
        adapter: the folder of the adapter that is merged into `b`, if any.
        dtypes: the dtypes in which the weights of `a` and of `b` are stored.
        metrics: name and meaning, in order.
        layers: by the stack's name, its number of layers and its number of heads.
        rows: the selected heads, ordered by stack, layer and head; they have no errors.
        notices: further sentences for the reader.
        sort: the metric by which views rank the heads, the largest first; None: in the order of `rows`.
        reverse: whether the smallest come first.
        top: how many heads views show; None: all.
        maps: None: weights have no attention maps.
    """

    schema = "differences"

    a: str
    b: str
    adapter: str | None
    dtypes: tuple[str, str]
    metrics: dict[str, str]
    layers: dict[str, tuple[int, int]]
    rows: list[HeadRow]
    notices: list[str] = field(default_factory=list)
    sort: str | None = None
    reverse: bool = False
    top: int | None = None
    maps: list[AttentionMaps] | None = field(default=None, repr=False, compare=False)

    @property
    def facts(self) -> list[str]:
        """Short facts about all of the metrics, for one line."""
        of_a, of_b = self.dtypes
        dtypes = of_a if of_a == of_b else f"{of_a} → {of_b}"
        return [dtypes, self.verdict(len(self.rows), len(self.changed))]

    @property
    def summary(self) -> str:
        """What it is, on one line, without its class."""
        return f"{shortened(self.title)}: {listed(self.facts)}"

    @property
    def unchanged_metrics(self) -> list[str]:
        """The weights, biases and circuits whose change is 0 in every head."""
        unchanged = [name for name in self.metrics if name not in self._differing]
        return [name for name in unchanged if not name.startswith("rank_")]

    @property
    def remarks(self) -> list[str]:
        """The names of what is equal, if anything differs."""
        names = self.unchanged_metrics if self.changed else []
        return [f"unchanged in every head: {', '.join(names)}"] if names else []

    def to_dict(self) -> dict[str, Any]:
        """Return `attnscope.differences/1`: the heads in the order in which they are shown."""
        from attnscope.model.heads.document import record

        return {
            "schema": "attnscope.differences/1",
            "a": self.a,
            "b": self.b,
            "adapter": self.adapter,
            "dtypes": list(self.dtypes),
            "changed": len(self.changed),
            **record(self),
        }
