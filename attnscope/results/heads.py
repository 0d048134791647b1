"""How the heads of a model attend, in numbers."""

from __future__ import annotations

from dataclasses import dataclass, field

from attnscope.results.common import Result


@dataclass(frozen=True)
class HeadRow:
    """How one head attends, in numbers.

    Attributes:
        stack: whose layer it is in, as in `AttentionMaps`.
        layer, head: counted from 0; `head` is a query head.
        values: the mean of each metric over all queries that count for it, by the metric's name; None
            where no query does.
        errors: its standard error, with every sequence a cluster of queries; None for one sequence.
    """

    stack: str
    layer: int
    head: int
    values: dict[str, float | None]
    errors: dict[str, float | None]


@dataclass
class HeadTable(Result):
    """How the heads of a model attend, over one text or many.

    Attributes:
        model: what the user called it.
        metrics: what was measured: name and meaning, in order; see `attnscope.models.heads.metrics`.
        sequences, tokens: how many were read, padding not counted.
        layers: how many layers each stack has, and how many heads: by the stack's name.
        rows: the heads that were asked for, by stack, layer and head.
        partial: whether the run ended before the corpus did.
        skipped: how many lines were no text.
        without_sink: whether the weights are those to other keys than sinks, which then sum to 1.
        notices: what else a reader should know: sentences.
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
