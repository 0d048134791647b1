"""Metrics of a model's attention heads."""

from __future__ import annotations

from copy import copy
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, ClassVar, Self

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


class HeadMetrics(Result):
    """Base class of results with several numbers for each head, which share their views.

    Attributes:
        title: a name for all of them.
        models: the names that users gave to the models in it.
        metrics: the metrics, in order: name and meaning.
        layers: by the stack's name, its number of layers and its number of heads.
        rows: the selected heads, ordered by stack, layer and head.
        notices: further sentences for the reader.
        sort: the metric by which views rank the heads, the largest first; None: in the order of `rows`.
        reverse: whether the smallest come first.
        top: how many heads views show; None: all.
        maps: attention maps to be shown on a page beside the metrics.
        shown_metrics: the metrics that views for people show.
        has_errors: whether values have standard errors.
        powers: whether views write small numbers with powers of ten, since they are not nearly zero.
    """

    metrics: dict[str, str]
    layers: dict[str, tuple[int, int]]
    rows: list[HeadRow]
    notices: list[str]
    sort: str | None
    reverse: bool
    top: int | None
    maps: list[AttentionMaps] | None
    powers: ClassVar[bool] = False

    @property
    def title(self) -> str:
        """A name for all of them."""
        raise NotImplementedError

    @property
    def models(self) -> list[str]:
        """The names that users gave to the models in it."""
        raise NotImplementedError

    @property
    def has_errors(self) -> bool:
        """Whether values have standard errors."""
        return False

    @property
    def shown_metrics(self) -> list[str]:
        """The metrics that views for people show."""
        return list(self.metrics)

    def __getitem__(self, place: tuple[int, int] | tuple[str, int, int]) -> HeadRow:
        """Return one head: `table[3, 7]` is head 7 of layer 3, `table["decoder", 3, 7]` that of a stack.

        Raises:
            KeyError: it is not in the table, or several stacks have it.
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

    def ranked(self, sort: str, *, reverse: bool = False, top: int | None = None) -> Self:
        """Return the same heads, ranked in views by a metric.

        Args:
            sort: the metric.
            reverse: the smallest first, instead of the largest.
            top: show so many heads only.

        Raises:
            KeyError: there is no such metric.
        """
        if sort not in self.metrics:
            raise KeyError(sort)
        ranked = copy(self)
        ranked.sort, ranked.reverse, ranked.top = sort, reverse, top
        return ranked


@dataclass(repr=False)
class HeadTable(HeadMetrics):
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

    @property
    def title(self) -> str:
        """The model's name."""
        return self.model

    @property
    def models(self) -> list[str]:
        """The model's name."""
        return [self.model]

    @property
    def has_errors(self) -> bool:
        """Whether there are several sequences, so that means have standard errors."""
        return self.sequences > 1
