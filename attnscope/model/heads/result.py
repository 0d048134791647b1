"""Metrics of a model's attention heads."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from copy import copy
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, ClassVar, Self, overload

from attnscope.base.errors import no_such_attribute, no_such_part
from attnscope.base.text import shortened
from attnscope.base.units import MISSING, counted, few, listed, number_text
from attnscope.document.result import Part, Result, of_room

if TYPE_CHECKING:
    import numpy as np
    from matplotlib.figure import Figure

    from attnscope.document.columns import Column
    from attnscope.model.maps.result import AttentionMaps


IN_A_PAGE = 2**25  #: the most weights of a page, in the maps of all heads together


def head_name(layer: int, head: int) -> str:
    """Return the short name of a head, as the literature writes it, which no one reads as a number.

    >>> head_name(3, 7)
    'L3 H7'
    """
    return f"L{layer} H{head}"


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

    @property
    def summary(self) -> str:
        """What it is, on one line, without its class."""
        stack = "" if self.stack == "self" else f"{self.stack} "
        values = [
            f"{name} {MISSING if value is None else number_text(value)}"
            for name, value in self.values.items()
        ]
        return f"{stack}layer {self.layer}, head {self.head}: {few(values)}"

    def __getitem__(self, metric: str) -> float | None:
        """Return the value of a metric: `row["previous"]`.

        Raises:
            PartError: it was not measured; it is a KeyError.
        """
        if metric not in self.values:
            raise no_such_part(metric, self.values, "this row")
        return self.values[metric]

    def __getattr__(self, metric: str) -> float | None:
        """Return the value of a metric: `row.previous`."""
        values = self.__dict__.get("values", {})
        if metric in values:
            return values[metric]
        raise no_such_attribute(metric, values, "a row")


class HeadMetrics(Result):
    """Base class of results with several numbers for each head, which share their views.

    Attributes:
        metrics: the metrics, in order: name and meaning.
        layers: by the stack's name, its number of layers and its number of heads.
        rows: the selected heads, ordered by stack, layer and head.
        notices: further sentences for the reader.
        sort: the metric by which views rank the heads, the largest first; None: in the order of `rows`.
        reverse: whether the smallest come first.
        top: how many heads views show; None: all.
        maps: attention maps to be shown on a page beside the metrics.
        powers: whether views write small numbers with powers of ten, since they are not nearly zero.
        signed: whether numbers below 0 are as strong as those above, so that views rank and colour
            heads by the size of a number.
        what: what the numbers are, in one word.
        of_page: what a page shows, in its title.
        without: what a head has that pictures show as missing.
    """

    model: str
    metrics: dict[str, str]
    layers: dict[str, tuple[int, int]]
    rows: list[HeadRow]
    notices: list[str]
    sort: str | None
    reverse: bool
    top: int | None
    maps: list[AttentionMaps] | None
    powers: ClassVar[bool] = False
    signed: ClassVar[bool] = False
    what: ClassVar[str] = "metrics"
    of_page: ClassVar[str] = "heads"
    without: ClassVar[str] = "no value"

    @property
    def facts(self) -> list[str]:
        """Short facts about all of the metrics, for one line."""
        raise NotImplementedError

    @property
    def page_source(self) -> str:
        """What they were computed from, for a page."""
        return f"metrics: {', '.join(self.facts)}"

    @property
    def title(self) -> str:
        """A name for all of them: the model's."""
        return self.model

    @property
    def models(self) -> list[str]:
        """The names that users gave to the models in it."""
        return [self.model]

    @property
    def has_errors(self) -> bool:
        """Whether values have standard errors."""
        return False

    @property
    def shown_metrics(self) -> list[str]:
        """The metrics that views for people show."""
        return list(self.metrics)

    @property
    def remarks(self) -> list[str]:
        """Sentences for the heading."""
        return []

    def _check_metrics(self, names: Sequence[str]) -> None:
        """Raise a PartError if there is no metric of one of these names."""
        for name in names:
            if name not in self.metrics:
                raise no_such_part(name, self.metrics, "this table")

    def figure_lines(self, metrics: Sequence[str]) -> list[str]:
        """List what a figure of some metrics says below its title.

        Raises:
            PartError: there is no such metric.
        """
        self._check_metrics(metrics)
        return [f"{name}: {self.metrics[name]}" for name in metrics] if len(metrics) == 1 else []

    def drawn(self, row: HeadRow, metric: str) -> float | None:
        """Return the value of a head that pictures show; None: it has none."""
        return row.values[metric]

    @property
    def further_html(self) -> str:
        """A further drawing of its page, as HTML."""
        return ""

    def further_columns(self, rows: Iterable[HeadRow]) -> list[Column]:
        """List columns that a table of some heads has beside their metrics."""
        return []

    def record_of(self, row: HeadRow) -> dict[str, Any]:
        """Return the record of one head."""
        return {"stack": row.stack, "layer": row.layer, "head": row.head, **row.values}

    def table(self) -> list[Column]:
        """Return a row for each head that is shown, with its values and their standard errors."""
        return of_room(HeadMetrics, "table", "ranking")(self)

    def page(self) -> str:
        """Return a page of the metrics, with the maps of the text that they were measured on."""
        return of_room(HeadMetrics, "page")(self)

    def __len__(self) -> int:
        return len(self.rows)

    def __iter__(self) -> Iterator[HeadRow]:
        return iter(self.rows)

    @overload
    def __getitem__(self, place: tuple[int, int] | tuple[str, int, int]) -> HeadRow: ...
    @overload
    def __getitem__(self, place: str | tuple[str, str]) -> np.ndarray: ...
    def __getitem__(self, place: Any) -> Any:
        """Return one head, or a metric of all.

        `table[3, 7]` is head 7 of layer 3, and `table["decoder", 3, 7]` that of a stack.
        `table["entropy"]` is an array, `n_layer n_head`, with NaN where nothing was measured; of several
        stacks, `table["decoder", "entropy"]`.

        Raises:
            PartError: it is not in the table, or several stacks have it; it is a KeyError.
        """
        if isinstance(place, str):
            place = (next(iter(self.layers)), place) if len(self.layers) == 1 else (None, place)
        if not isinstance(place, tuple) or len(place) not in (2, 3):
            raise no_such_part(place, ["[layer, head]", "[metric]"], "a table")
        if len(place) == 2 and isinstance(place[-1], str):
            return self._array(*place)
        *stack, layer, head = place
        found = [
            row
            for row in self.rows
            if (row.layer, row.head) == (layer, head) and row.stack in (stack or self.layers)
        ]
        if len(found) != 1:
            known = [(row.stack, row.layer, row.head) for row in self.rows]
            single = len(self.layers) == 1
            raise no_such_part(place, [each[1:] if single else each for each in known], "this table")
        return found[0]

    def _array(self, stack: str | None, metric: str) -> np.ndarray:
        """Return a metric of all heads of a stack, `n_layer n_head`."""
        import numpy as np

        self._check_metrics([metric])
        if stack not in self.layers:
            pairs = [(each, metric) for each in self.layers]
            raise no_such_part(metric if stack is None else (stack, metric), pairs, "this table")
        array = np.full(self.layers[stack], np.nan)
        for row in self.rows:
            value = row.values.get(metric)
            if row.stack == stack and value is not None:
                array[row.layer, row.head] = value
        return array

    def ranked(self, sort: str, *, reverse: bool = False, top: int | None = None) -> Self:
        """Return the same heads, ranked in views by a metric.

        Args:
            sort: the metric.
            reverse: the smallest first, instead of the largest.
            top: show so many heads only.

        Raises:
            OptionError: an argument is not what it must be.
            KeyError: there is no such metric.
        """
        self._check_metrics([sort])
        ranked = copy(self)
        ranked.sort, ranked.reverse, ranked.top = sort, reverse, top
        return ranked

    def plot(self, metrics: Sequence[str] | None = None) -> Figure:
        """Draw metrics of all heads with matplotlib, as `save("heads.png")` does, and return the figure.

        Args:
            metrics: their names; None: the one that ranks the heads, else all that are shown.

        Raises:
            OptionError: matplotlib is not installed, or there is no metric.
            PartError: there is no such metric.
        """
        return of_room(HeadMetrics, "plot", "figure")(self, metrics)


@dataclass(repr=False)
class HeadTable(HeadMetrics):
    """Metrics of a model's heads, averaged over one text or many.

    Attributes:
        model: the name that the user gave.
        metrics: the metrics that were measured, in order: name and meaning; see
            `attnscope.model.heads.metrics`.
        sequences, tokens: how many were read, without padding.
        layers: by the stack's name, its number of layers and its number of heads.
        rows: the selected heads, ordered by stack, layer and head.
        partial: whether the run ended before the end of the corpus.
        skipped: how many lines contained no text.
        without_sink: whether sinks were left out and the weights of the other keys rescaled to sum to 1.
        weigh: `value`: weights were multiplied by the norms of their keys' values, ‖v_j W_O^h‖, and
            rescaled to sum to 1; None: they are the model's.
        notices: further sentences for the reader.
        sort: the metric by which views rank the heads, the largest first; None: in the order of `rows`.
        reverse: whether the smallest come first.
        top: how many heads views show; None: all.
        maps: the attention maps of the text, where they were collected for a page.
        why_no_maps: why a page has no maps, where they were requested.
        unsaved: the error of writing the run's checkpoint, where the last attempt failed.
    """

    schema = "heads"

    model: str
    metrics: dict[str, str]
    sequences: int
    tokens: int
    layers: dict[str, tuple[int, int]]
    rows: list[HeadRow]
    partial: bool = False
    skipped: int = 0
    without_sink: bool = False
    weigh: str | None = None
    notices: list[str] = field(default_factory=list)
    sort: str | None = None
    reverse: bool = False
    top: int | None = None
    maps: list[AttentionMaps] | None = field(default=None, repr=False, compare=False)
    why_no_maps: str | None = None
    unsaved: Exception | None = field(default=None, repr=False, compare=False)

    @property
    def facts(self) -> list[str]:
        """Short facts about all of the metrics, for one line."""
        return [counted(self.sequences, "sequence"), counted(self.tokens, "token")]

    @property
    def page_source(self) -> str:
        """What they were computed from, for a page."""
        source = f"metrics: means over {', '.join(self.facts)}"
        if self.weigh is not None:
            source += ", of weights times ‖v W_O‖" + ("; maps show the weights" if self.maps else "")
        source += ", the beginning of a corpus that was not read completely" if self.partial else ""
        return source + (f"; {counted(self.skipped, 'line')} skipped" if self.skipped else "")

    @property
    def summary(self) -> str:
        """What it is, on one line, without its class."""
        parts = [counted(len(self.rows), "head"), counted(len(self.metrics), "metric")]
        parts += [counted(self.sequences, "sequence"), counted(self.tokens, "token")]
        parts += ["partial"] if self.partial else []
        return f"{shortened(self.model)}: {listed(parts)}"

    @property
    def remarks(self) -> list[str]:
        """What is missing."""
        lines = ["partial: the run ended before the end of the corpus"] if self.partial else []
        skipped = [f"skipped: {counted(self.skipped, 'line')} without text"] if self.skipped else []
        return lines + skipped

    def record_of(self, row: HeadRow) -> dict[str, Any]:
        """Return the record of one head, with standard errors."""
        return super().record_of(row) | {"errors": row.errors}

    def to_dict(self) -> dict[str, Any]:
        """Return `attnscope.heads/1`: the heads in the order in which they are shown."""
        names = ("model", "tokens", "sequences", "partial", "skipped", "without_sink", "weigh")
        facts = {name: getattr(self, name) for name in names}
        return {"schema": "attnscope.heads/1", **facts, **of_room(HeadTable, "record")(self)}

    @property
    def has_errors(self) -> bool:
        """Whether there are several sequences, so that means have standard errors."""
        return self.sequences > 1


class Differences(HeadMetrics):
    """Base class of what differs between heads: metrics that are 0 where nothing does."""

    powers: ClassVar[bool] = True
    # a, b: the names that the user gave to the models
    a: str
    b: str
    adapter: str | None  #: the folder of the adapter that is merged into `b`, if any

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
