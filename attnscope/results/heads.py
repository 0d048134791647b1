"""Metrics of a model's attention heads."""

from __future__ import annotations

from dataclasses import dataclass, field

from attnscope.results.common import Result


@dataclass(frozen=True)
class HeadRow:
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


@dataclass
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
