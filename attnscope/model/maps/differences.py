"""How differently each head attends in two models, or to two texts."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from attnscope.base.text import shortened
from attnscope.base.units import counted, listed
from attnscope.document.result import Part, of_room
from attnscope.model.heads.result import Differences, HeadRow

if TYPE_CHECKING:
    from attnscope.document.blocks import Block
    from attnscope.document.columns import Column
    from attnscope.model.maps.result import AttentionMaps


@dataclass(frozen=True, repr=False)
class WeightChange(Part):
    """The weight that a query gives to a key in A and in B."""

    query: int
    key: int
    a: float
    b: float

    @property
    def summary(self) -> str:
        """What it is, on one line, without its class."""
        return f"query {self.query}, key {self.key}: {self.a:.3f} → {self.b:.3f}"


@dataclass(repr=False)
class MapDifferences(Differences):
    """How differently each head attends in two models, or to two texts of equal length.

    The difference of two rows of weights is their total variation distance ½·Σ|b − a|: the part of a
    query's weight that goes to other keys, from 0 to 1.

    Attributes:
        a, b: the names that the user gave to the models; they are equal for two texts.
        adapter: the folder of the adapter that is merged into `b`, if any.
        of_a, of_b: the attention maps of all selected heads, in the same order.
        metrics: name and meaning: `change`, the mean over the queries, and `largest`, the largest of
            them.
        layers: by the stack's name, its number of layers and its number of heads.
        rows: the selected heads, ordered by layer and head; they have no errors.
        strongest: for each head, by layer and head, the weights that changed most, the largest first.
        notices: further sentences for the reader.
        sort: the metric by which views rank the heads, the largest first; None: in the order of `rows`.
        reverse: whether the smallest come first.
        top: how many heads views show; None: all.
        maps: None: pages show `of_a` and `of_b`.
    """

    schema = "map_differences"

    a: str
    b: str
    adapter: str | None
    of_a: AttentionMaps = field(repr=False, compare=False)
    of_b: AttentionMaps = field(repr=False, compare=False)
    metrics: dict[str, str]
    layers: dict[str, tuple[int, int]]
    rows: list[HeadRow]
    strongest: dict[tuple[int, int], list[WeightChange]]
    notices: list[str] = field(default_factory=list)
    sort: str | None = None
    reverse: bool = False
    top: int | None = None
    maps: list[AttentionMaps] | None = field(default=None, repr=False, compare=False)

    @property
    def facts(self) -> list[str]:
        """Short facts about all of the metrics, for one line."""
        n, n_changed = (
            len({(row.layer, row.head) for row in rows}) for rows in (self.rows, self.changed)
        )  # on a page, several rows are of the same head
        verdict = self.verdict(n, n_changed, "map")
        n_Q, n_K = len(self.of_a.query_tokens), len(self.of_a.key_tokens)
        tokens = (
            counted(n_K, "token") if n_Q == n_K else f"{counted(n_Q, 'query')}, {counted(n_K, 'key')}"
        )
        return [tokens, verdict]

    @property
    def summary(self) -> str:
        """What it is, on one line, without its class."""
        return f"{shortened(self.title)}: {listed(self.facts)}"

    @property
    def title(self) -> str:
        """Both models, or the model of the two texts."""
        return f"{self.a}: text A → text B" if self.two_texts else super().title

    @property
    def remarks(self) -> list[str]:
        """Where the tokens of two texts differ."""
        return [of_room(MapDifferences, "tokens_text", "changed_maps")(self)] if self.two_texts else []

    def further_columns(self, rows: Iterable[HeadRow]) -> list[Column]:
        """List the weight that changed most in each of some heads."""
        return of_room(MapDifferences, "change_columns", "changed_maps")(self, rows)

    def document(self) -> list[Block]:
        """Build the blocks: a terminal shows the maps of the heads that differ most, too."""
        from attnscope.document.blocks import Only
        from attnscope.model.heads.document import document

        return document(
            self, Only(of_room(MapDifferences, "ChangedMaps", "changed_maps")(self), html=False)
        )

    def record_of(self, row: HeadRow) -> dict[str, Any]:
        """Return the record of one head, with the weights that changed most."""
        return super().record_of(row) | {"strongest": self.strongest[row.layer, row.head]}

    def to_dict(self) -> dict[str, Any]:
        """Return `attnscope.map_differences/1`: the heads in the order in which they are shown."""
        from attnscope.model.heads.document import record

        texts = (self.of_a, self.of_b)
        return {
            "schema": "attnscope.map_differences/1",
            "a": self.a,
            "b": self.b,
            "adapter": self.adapter,
            "queries": [[token.text for token in each.query_tokens] for each in texts],
            "keys": [[token.text for token in each.key_tokens] for each in texts],
            "first_query": self.of_a.first_query,
            "changed": len(self.changed),
            **record(self),
        }

    def page(self) -> str:
        """Return a page with the maps of A and of B, and what is more and what is less in B."""
        from attnscope.model.heads.document import page

        return page(of_room(MapDifferences, "by_side", "changed_maps")(self), beside=True)

    @property
    def two_texts(self) -> bool:
        """Whether the tokens differ, not the models."""
        one, other = self.of_a, self.of_b
        return (one.query_tokens, one.key_tokens) != (other.query_tokens, other.key_tokens)
