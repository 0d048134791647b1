"""Metrics of a model's attention heads."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING

from attnscope.results.common import Part, Result

if TYPE_CHECKING:
    from attnscope.results.maps import AttentionMaps


@dataclass(frozen=True, repr=False)
class HeadRow(Part):
    """The metrics of one head.

    Attributes:
        stack: the stack that its layer belongs to, as in `AttentionMaps`.
        layer, head: counted from 0; `head` is a query head.
        values: by the metric's name, its mean over the queries that it is defined for; None if there
            are no such queries.
        errors: by the metric's name, the standard error of that mean, clustered by sequence; None for a
            single sequence.
    """

    stack: str
    layer: int
    head: int
    values: dict[str, float | None]
    errors: dict[str, float | None]


@dataclass(repr=False)
class HeadTable(Result):
    """Metrics of a model's heads, averaged over one text or many.

    Attributes:
        model: the name that the user gave.
        metrics: the metrics that were measured, in order: name and meaning; see
            `attnscope.models.heads.metrics`.
        sequences, tokens: how many were read, without padding.
        layers: by the stack's name, its number of layers and its number of heads.
        rows: the selected heads, ordered by stack, layer and head.
        partial: whether the run ended before the end of the corpus.
        skipped: how many lines contained no text.
        without_sink: whether sinks were left out and the weights of the other keys rescaled to sum to 1.
        notices: further sentences for the reader.
        sort: the metric by which views rank the heads, the largest first; None: in the order of `rows`.
        reverse: whether the smallest come first.
        top: how many heads views show; None: all.
        maps: the attention maps of the text, where they were collected for a page.
        why_no_maps: why a page has no maps, where they were requested.
        unsaved: the error of writing the run's checkpoint, where the last attempt failed.
    """

    model: str
    metrics: dict[str, str]
    sequences: int
    tokens: int
    layers: dict[str, tuple[int, int]]
    rows: list[HeadRow]
    partial: bool = False
    skipped: int = 0
    without_sink: bool = False
    notices: list[str] = field(default_factory=list)
    sort: str | None = None
    reverse: bool = False
    top: int | None = None
    maps: list[AttentionMaps] | None = field(default=None, repr=False, compare=False)
    why_no_maps: str | None = None
    unsaved: Exception | None = field(default=None, repr=False, compare=False)

    def __getitem__(self, place: tuple[int, int] | tuple[str, int, int]) -> HeadRow:
        """Return one head: `table[3, 7]` is head 7 of layer 3, `table["decoder", 3, 7]` that of a stack.

        Raises:
            KeyError: it was not measured, or several stacks have it.
        """
        *stack, layer, head = place
        found = [
            row
            for row in self.rows
            if (row.layer, row.head) == (layer, head) and row.stack in (stack or self.layers)
        ]
        if len(found) != 1:
            raise KeyError(place)
        return found[0]

    def ranked(self, sort: str, *, reverse: bool = False, top: int | None = None) -> HeadTable:
        """Return the same heads, ranked in views by a metric.

        Args:
            sort: the metric.
            reverse: the smallest first, instead of the largest.
            top: show so many heads only.

        Raises:
            KeyError: it was not measured.
        """
        if sort not in self.metrics:
            raise KeyError(sort)
        return replace(self, sort=sort, reverse=reverse, top=top)
