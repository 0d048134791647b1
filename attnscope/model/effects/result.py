"""What each head of a model does to a prediction."""

from __future__ import annotations

from dataclasses import dataclass, field
from functools import cached_property
from typing import TYPE_CHECKING, Any, ClassVar

from attnscope.base.errors import no_such_part
from attnscope.base.text import shortened
from attnscope.base.units import counted, listed, number_text
from attnscope.document.result import of_room
from attnscope.model.heads.result import HeadMetrics, HeadRow
from attnscope.model.maps.result import AttentionMaps
from attnscope.model.run.tokens import Token

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    import numpy as np

    from attnscope.document.columns import Column


@dataclass(frozen=True)
class DirectSum:
    """The sum of direct effects of one prompt.

    Attributes:
        heads: that of all heads of all layers.
        parts: by name, what else adds to the residual stream: `embeddings`, `MLP 0`, …, `biases`.
        value: the logit, or difference of logits, that they sum to; before a final soft cap.
        off: the sum minus `value`.
        capped: whether there is a soft cap.
    """

    heads: float
    parts: dict[str, float]
    value: float
    off: float
    capped: bool = False


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
        dtype: the dtype in which the model ran.
        resolution: by column, the size that an effect must exceed to be more than what rounding to 16
            bits makes; empty if the model has more bits.
        notices: further sentences for the reader.
        sort, reverse, top: as in `HeadMetrics`.
        maps: the attention maps of the text, where they were collected for a page.
    """

    schema = "effects"
    signed: ClassVar[bool] = True
    what: ClassVar[str] = "effects"
    of_page: ClassVar[str] = "effects of heads"

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
    dtype: str = ""
    resolution: dict[str, float] = field(default_factory=dict)
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
    def without(self) -> str:  # type: ignore[override]
        """What a head has that pictures show as missing."""
        return "no effect above the resolution" if self.resolution else "no value"

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
        """What they were computed from, for a page, whose maps have the number of tokens."""
        return "; ".join([*self.remarks, *([] if self.maps else self.facts)])

    @property
    def summary(self) -> str:
        """What it is, on one line, without its class."""
        parts = [counted(len(self.rows), "head"), f"{self.metric} {number_text(self.baseline)}"]
        return f"{shortened(self.model)}: {listed(parts)}"

    @property
    def remarks(self) -> list[str]:
        """The metric, the model's likeliest answers, and sums: what is read before the heads."""
        return of_room(HeadEffects, "remarks")(self)

    def further_columns(self, rows: Iterable[HeadRow]) -> list[Column]:
        """List where each head is strongest, if positions were measured, and what may be rounding."""
        return of_room(HeadEffects, "further_columns")(self, list(rows))

    def figure_lines(self, metrics: Sequence[str]) -> list[str]:
        """List what a figure says below its title: the metric, and what its columns are.

        Raises:
            PartError: there is no such metric.
        """
        self._check_metrics(metrics)
        return of_room(HeadEffects, "figure_lines")(self, metrics)

    def drawn(self, row: HeadRow, metric: str) -> float | None:
        """Return a head's effect, unless rounding may have made it."""
        return None if metric in self.unresolved(row) else row.values[metric]

    @property
    def further_html(self) -> str:
        """The effects at each position, as HTML."""
        return of_room(HeadEffects, "PositionsDrawing", "drawing")(self).html() if self.positions else ""

    def unresolved(self, row: HeadRow) -> list[str]:
        """List the columns in which a head's effect is not larger than what rounding makes."""
        return [
            name
            for name, size in self.resolution.items()
            if (value := row.values[name]) is not None and abs(value) <= size
        ]

    @cached_property
    def _indices(self) -> dict[tuple[str, int, int], int]:
        """The index of each head among the rows."""
        return {(row.stack, row.layer, row.head): index for index, row in enumerate(self.rows)}

    def at_places(self, row: HeadRow, column: str) -> np.ndarray:
        """Return a head's effects at each of `places`, `n_position`.

        Raises:
            PartError: they were not measured at positions, or the row is none of these.
        """
        if column not in self.positions:
            raise no_such_part(column, self.positions, "the effects at each position")
        if (row.stack, row.layer, row.head) not in self._indices:
            raise no_such_part(f"layer {row.layer}, head {row.head}", (), "these effects")
        return self.positions[column][self._indices[row.stack, row.layer, row.head]]

    def token(self, place: int) -> str:
        """Return the token at a position; "" if it is not known."""
        return self.sequence[place].text if place < len(self.sequence) else ""

    def record_of(self, row: HeadRow) -> dict[str, Any]:
        """Return the record of one head, with standard errors, and effects at each position."""
        record = super().record_of(row) | {"errors": row.errors}
        if self.resolution:
            record["unresolved"] = self.unresolved(row)
        if self.positions:
            record["at"] = {name: self.at_places(row, name).tolist() for name in self.positions}
        return record

    def table(self) -> list[Column]:
        """Return a row for each head that is shown; with `each_position`, for each of its positions."""
        return of_room(HeadEffects, "columns_of_positions")(self) if self.positions else super().table()

    def to_dict(self) -> dict[str, Any]:
        """Return `attnscope.effects/1`: the heads in the order in which they are shown."""
        from dataclasses import asdict

        from attnscope.document.json import plain
        from attnscope.model.heads.document import record

        names = ("model", "metric", "baseline", "corrupted", "answer", "against", "prompts", "tokens")
        facts = {name: getattr(self, name) for name in names}
        facts["top_answers"] = [
            {"token": token, "probability": share} for token, share in self.top_answers
        ]
        facts["direct"] = None if self.direct is None else asdict(self.direct)
        more = ("correlation", "blocked", "partial", "dtype", "resolution", "places")
        facts |= {name: getattr(self, name) for name in more}
        facts["sequence"] = [token.text for token in self.sequence]
        return {"schema": "attnscope.effects/1", **plain(facts), **record(self)}
