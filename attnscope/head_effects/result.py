"""What each head of a model does to a prediction."""

from __future__ import annotations

from dataclasses import dataclass, field
from functools import cached_property
from typing import TYPE_CHECKING, Any, ClassVar

from attnscope.models.heads.result import HeadMetrics, HeadRow
from attnscope.models.maps.result import AttentionMaps
from attnscope.models.tokens import Token
from attnscope.text import shortened
from attnscope.units import counted, listed, number_text

if TYPE_CHECKING:
    from collections.abc import Iterable

    import numpy as np

    from attnscope.document.blocks import Block
    from attnscope.document.columns import Column


@dataclass(frozen=True)
class DirectSum:
    """The sum of direct effects of one prompt.

    Attributes:
        heads: that of all heads of all layers.
        parts: by name, what else adds to the residual stream: `embeddings`, `MLP 0`, …, `biases`.
        value: the logit, or difference of logits, that they sum to; before a final soft cap.
        off: the sum minus `value`.
    """

    heads: float
    parts: dict[str, float]
    value: float
    off: float


@dataclass(repr=False)
class HeadEffects(HeadMetrics):
    """What each head of a model does to a prediction.

    Attributes:
        model: the name that the user gave.
        metrics: the columns, in order, with their meanings.
        metric: what the effects are changes of, in words.
        baseline: the metric without a change; of several prompts, the mean.
        corrupted: the metric of the corrupted text, if there is one.
        answer, against: the answers as text, or "".
        top_answers: the model's likeliest answers, with their probabilities.
        prompts: how many prompts were run.
        tokens: how many tokens they have.
        layers: by the stack's name, its number of layers and its number of heads.
        rows: the selected heads, ordered by stack, layer and head.
        positions: for each column, the effects at each position, `n_head n_position` in the order of
            `rows`; NaN: not measured. Empty without `each_position`.
        places: the positions that these are of; by default all, from 0.
        sequence: the tokens of the text, if there is a single prompt.
        direct: the sum of direct effects, if they were computed.
        correlation: between `first order` and the exact column that it estimates.
        blocked: if keys were blocked, the change of the metric with all selected heads blocked.
        partial: whether the run was interrupted.
        notices: further sentences for the reader.
        sort, reverse, top: as in `HeadMetrics`.
        maps: the attention maps of the text, where they were collected for a page.
    """

    schema = "effects"
    powers: ClassVar[bool] = True
    signed: ClassVar[bool] = True

    model: str
    metrics: dict[str, str]
    metric: str
    baseline: float
    layers: dict[str, tuple[int, int]]
    rows: list[HeadRow]
    corrupted: float | None = None
    answer: str = ""
    against: str = ""
    top_answers: list[tuple[str, float]] = field(default_factory=list)
    prompts: int = 1
    tokens: int = 0
    positions: dict[str, np.ndarray] = field(default_factory=dict)
    places: list[int] = field(default_factory=list)
    sequence: list[Token] = field(default_factory=list)
    direct: DirectSum | None = None
    correlation: float | None = None
    blocked: float | None = None
    partial: bool = False
    notices: list[str] = field(default_factory=list)
    sort: str | None = None
    reverse: bool = False
    top: int | None = None
    maps: list[AttentionMaps] | None = field(default=None, repr=False, compare=False)
    why_no_maps: str | None = None

    def __post_init__(self) -> None:
        if self.positions and not self.places:  # all of them
            self.places = list(range(next(iter(self.positions.values())).shape[1]))

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
        """Whether there are several prompts, so that means have standard errors."""
        return self.prompts > 1

    @property
    def facts(self) -> list[str]:
        """Short facts about all of the effects, for one line."""
        prompts = [counted(self.prompts, "prompt")] if self.prompts > 1 else []
        return [*prompts, counted(self.tokens, "token")]

    @property
    def page_source(self) -> str:
        """What they were computed from, for a page."""
        return "; ".join([*self.remarks, *self.facts])

    @property
    def summary(self) -> str:
        """What it is, on one line, without its class."""
        parts = [counted(len(self.rows), "head"), f"{self.metric} {number_text(self.baseline)}"]
        return f"{shortened(self.model)}: {listed(parts)}"

    @property
    def remarks(self) -> list[str]:
        """The metric, the model's likeliest answers, and sums: what is read before the heads."""
        from attnscope.head_effects.document import remarks

        return remarks(self)

    def further_columns(self, rows: Iterable[HeadRow]) -> list[Column]:
        """List the position at which each head is strongest, if each was measured by itself."""
        from attnscope.head_effects.document import position_columns

        return position_columns(self, rows) if self.positions else []

    @cached_property
    def _indices(self) -> dict[tuple[str, int, int], int]:
        """The index of each head among the rows."""
        return {(row.stack, row.layer, row.head): index for index, row in enumerate(self.rows)}

    def at_places(self, row: HeadRow, column: str) -> np.ndarray:
        """Return a head's effects at each of `places`, `n_position`."""
        return self.positions[column][self._indices[row.stack, row.layer, row.head]]

    def record_of(self, row: HeadRow) -> dict[str, Any]:
        """Return the record of one head, with standard errors, and effects at each position."""
        record = super().record_of(row) | {"errors": row.errors}
        if self.positions:
            record["at"] = {name: self.at_places(row, name).tolist() for name in self.positions}
        return record

    def document(self) -> list[Block]:
        """Build the blocks of what is shown of the effects."""
        from attnscope.head_effects.document import document

        return document(self)

    def to_dict(self) -> dict[str, Any]:
        """Return `attnscope.effects/1`: the heads in the order in which they are shown."""
        from dataclasses import asdict

        from attnscope.document.json import plain
        from attnscope.models.heads.document import record

        names = ("model", "metric", "baseline", "corrupted", "answer", "against", "prompts", "tokens")
        facts = {name: getattr(self, name) for name in names}
        facts["top_answers"] = [
            {"token": token, "probability": share} for token, share in self.top_answers
        ]
        facts["direct"] = None if self.direct is None else asdict(self.direct)
        facts |= {name: getattr(self, name) for name in ("correlation", "blocked", "partial", "places")}
        facts["sequence"] = [token.text for token in self.sequence]
        return {"schema": "attnscope.effects/1", **plain(facts), **record(self)}
