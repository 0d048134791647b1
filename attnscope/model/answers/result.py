"""What a model read while it wrote an answer."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any, ClassVar

from attnscope.base.text import shortened
from attnscope.base.units import counted, listed
from attnscope.document.result import Check, TensorResult, of_room
from attnscope.model.answers.prompt import PatchedPicture, Segment
from attnscope.model.run.tokens import Token

if TYPE_CHECKING:
    import numpy as np

    from attnscope.document.blocks import Block
    from attnscope.document.columns import Column
    from attnscope.document.tensor_file import Tensors
    from attnscope.model.answers.audio.alignment import SpeechAlignment
    from attnscope.model.answers.audio.listen import FrameTimes
    from attnscope.model.answers.audio.recording import Sound
    from attnscope.model.answers.replay.recorded import RecordedAnswer


@dataclass(repr=False)
class Answer(TensorResult):
    """What a model read while it wrote an answer: a row of weights for each token of the answer.

    The row that wrote the token at position t is that of query t − 1: the last position of the prompt
    wrote the first token.

    Attributes:
        model: the name that the user gave.
        stack: the stack of layers: `self`, `text`, `decoder` or `cross`.
        n_layer, n_head: the sizes of the stack.
        tokens: the keys: of the prompt, followed by those of the answer; of `cross`, what the encoder
            read.
        written: the tokens of the answer.
        ids: their ids.
        recorded: what an engine recorded of them, if it wrote them.
        first: the position of the first of them.
        queries: the position of the query of each row: t − 1, or t for rows of reading.
        layers, heads: the indices that are pooled; every layer with attention, unless some are
            selected.
        pool: how layers and heads are pooled: `mean` or `max`.
        weights: the pooled weights, `n_row n_K` in float32; 0 for keys that come later.
        sums: for each layer, head, row and segment, the sum of the weights,
            `n_layer n_head n_row n_segment` in float32, in the order of `layers` and `heads`. NaN: a
            layer does not see the rows' tokens as keys.
        segment_rows: for each layer, head and segment, the mean of its tokens' own rows, summed over
            segments: `n_layer n_head n_segment n_segment` in float32, of queries and of keys. NaN: a
            layer has fewer heads, or no query is of the segment. None: not collected.
        segments: named parts of the keys. The last may be `answer`.
        pictures: the pictures among the keys.
        sinks: positions that are left out of colours: the first token, and patches that all rows read.
        log_probabilities: of each token of the answer, natural logarithm; None: not known.
        of_layers: the weights of each layer, pooled over heads, `n_layer n_row n_K`, for pages; None:
            not collected.
        times: of cross-attention to a recording, when its frames are; None: of others.
        recording: of cross-attention to a recording, its sound; None: of others.
        alignment: of an answer to a recording, when its words were said; None: of others, or not known.
        by_segment: whether the sums over segments are shown.
        query: the row that is shown alone; None: all.
        checks: comparisons with the model's own attention.
        notices: further sentences for the reader.
    """

    schema: ClassVar[str] = "answer"
    dims: ClassVar[dict[str, tuple[str, ...]]] = {
        "weights": ("n_row", "n_K"),
        "sums": ("n_layer", "n_head", "n_row", "n_segment"),
        "segment_rows": ("n_layer", "n_head", "n_segment", "n_segment"),
    }

    model: str
    stack: str
    n_layer: int
    n_head: int
    tokens: list[Token]
    written: list[Token]
    first: int
    queries: list[int]
    layers: list[int]
    heads: list[int]
    pool: str
    weights: np.ndarray
    sums: np.ndarray
    segments: list[Segment]
    pictures: list[PatchedPicture] = field(default_factory=list)
    sinks: list[int] = field(default_factory=list)
    log_probabilities: list[float] | None = None
    of_layers: np.ndarray | None = field(default=None, compare=False)
    times: FrameTimes | None = None
    alignment: SpeechAlignment | None = None
    by_segment: bool = False
    query: int | None = None
    checks: list[Check] | None = None
    notices: list[str] = field(default_factory=list)
    ids: list[int] = field(default_factory=list)
    recorded: RecordedAnswer | None = None
    segment_rows: np.ndarray | None = None
    recording: Sound | None = field(default=None, compare=False)

    @property
    def summary(self) -> str:
        """What it is, on one line, without its class."""
        parts = [counted(len(self.written), "token"), counted(len(self.segments), "segment")]
        return f"{shortened(self.model)}: {listed(parts)}"

    def alone(self) -> Answer:
        """Return the answer with the row of `query` alone; without a query, the answer itself."""
        if self.query is None:
            return self
        row = slice(self.query, self.query + 1)
        times = self.alignment
        return replace(
            self,
            written=self.written[row],
            first=self.first + self.query,
            queries=self.queries[row],
            weights=self.weights[row],
            sums=self.sums[:, :, row],
            of_layers=None if self.of_layers is None else self.of_layers[:, row],
            log_probabilities=self.log_probabilities and self.log_probabilities[row],
            ids=self.ids[row],
            recorded=None if self.recorded is None else self.recorded.of_rows(row),
            alignment=None if times is None else replace(times, seconds=times.seconds[row]),
            query=0,
        )

    def tensors(self) -> Tensors:
        """Return the pooled weights and the sums over segments."""
        arrays = {"weights": self.weights, "sums": self.sums, "segment_rows": self.segment_rows}
        return {name: (array, "float32") for name, array in arrays.items() if array is not None}

    def document(self) -> list[Block]:
        """Build the blocks of what is shown of the answer."""
        return of_room(Answer, "document", "shown")(self)

    def to_dict(self) -> dict[str, Any]:
        """Return `attnscope.answer/1`."""
        return of_room(Answer, "record")(self)

    def json_of(self, record: dict[str, Any]) -> str:
        """Return a record of it as a JSON document, with each row of numbers on one line."""
        from attnscope.document.json import compact_json

        return compact_json(record)

    def page(self) -> str:
        """Return the interactive page, which `--page` writes."""
        return of_room(Answer, "answer_page", "page")(self)

    def table(self) -> list[Column]:
        """Return the columns that CSV and pandas contain.

        A row for each token and patch, with the patch's box and weight; without pictures, or by
        segment, a row for each token and segment, with its share of the weight.
        """
        return of_room(Answer, "table")(self)
