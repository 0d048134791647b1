"""What heads look at in one text or picture."""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from attnscope.results.common import Check, Result
from attnscope.results.heads import HeadTable
from attnscope.results.trace import Trace


@dataclass(frozen=True)
class Token:
    """One position of a sequence that attends or is attended to.

    Attributes:
        text: as the tokenizer decodes it, a leading space included; `##` where a word goes on in
            BERT's way; of a patch of a picture its row and column.
        segment: 0; in a pair of texts, 1 for those of the second.
        special: whether the tokenizer, or the model, added it: `[CLS]`, `</s>`.
        generated: whether the model wrote it.
    """

    text: str
    segment: int = 0
    special: bool = False
    generated: bool = False


@dataclass(frozen=True)
class Picture:
    """What a vision model looked at.

    Attributes:
        rows, columns: how many patches; they are tokens in the order in which one reads.
        first: how many tokens come before them, such as `[CLS]`.
        png: the picture as the model got it, cut and scaled, as the bytes of a PNG file.
    """

    rows: int
    columns: int
    first: int
    png: bytes = field(repr=False)


@dataclass(frozen=True)
class Pooling:
    """How the maps of a long text are pooled: neighbours share a cell.

    Attributes:
        shown: `max` or `mean`: which of a cell's weights a map's `attention` is.
        queries, keys: the positions that share each row of cells, and each column.
    """

    shown: str
    queries: list[range]
    keys: list[range]


@dataclass
class AttentionMap:
    """What one head looks at: the weights that each query gives to each key.

    Attributes:
        layer, head: counted from 0; `head` is a query head.
        kv_head: the head of K and V that it reads: another number where they are shared.
        attention: the weights after the softmax, `n_Q n_K`, numpy float32. Rows sum to 1,
            or to less where a sink takes a part. Of a pooled map, a number for each cell.
        mean, max: of a pooled map, the mean and the largest of each cell's weights; what a query
            cannot see is 0 there, and counts.
        row: of a pooled map, the weights of the one query that was asked for, `n_K`.
        top: of a pooled map, the keys that each query looks at most, and their weights, `n_Q k`
            each; those that were asked for.
    """

    layer: int
    head: int
    kv_head: int
    attention: Any = field(repr=False, compare=False)
    mean: Any = field(default=None, repr=False, compare=False)
    max: Any = field(default=None, repr=False, compare=False)
    row: Any = field(default=None, repr=False, compare=False)
    top: tuple[Any, Any] | None = field(default=None, repr=False, compare=False)


@dataclass
class AttentionMaps(Result):
    """What several heads of one stack of a model look at, in one text or picture.

    Attributes:
        model: what the user called it.
        stack: whose layers they are: `self` where a model has one stack; else `encoder`,
            `decoder` or `cross` (the decoder's queries, the encoder's keys), `text` or `vision`.
        n_layer, n_head, n_kv_head: how many the stack has.
        query_tokens, key_tokens: who looks, and who is looked at: the axes of every map.
        maps: those that were asked for, by layer and then by head.
        picture: what a vision model looked at.
        first_query: the position of the first query in its sequence: the queries may be the last of it.
        pooling: which tokens share the cells of every map; None: each has cells of its own.
        left_out: the positions of the keys that lists of the strongest keys and scales of colours leave
            out, where that was asked for: those of the sink.
        query: the position of the only query that is shown; None: all.
        top: how many of each query's strongest keys are shown in place of the map.
        checks: comparisons with the model's own maps; None: none were made.
        steps: the attention of one layer step by step, where asked for.
        collected: where a page was asked for, all maps that it shows: of every stack those that were
            collected, these among them.
        metrics: where a page was asked for, how the heads measure, by which it ranks them.
        whole_file: the file that whole maps went into while they were computed, if one did.
        notices: what else a reader should know: sentences.
    """

    model: str
    stack: str
    n_layer: int
    n_head: int
    n_kv_head: int
    query_tokens: list[Token]
    key_tokens: list[Token]
    maps: list[AttentionMap]
    picture: Picture | None = None
    first_query: int = 0
    pooling: Pooling | None = None
    left_out: list[int] = field(default_factory=list)
    query: int | None = None
    top: int | None = None
    checks: list[Check] | None = None
    steps: Trace | None = field(default=None, repr=False)
    collected: list[AttentionMaps] | None = field(default=None, repr=False)
    metrics: HeadTable | None = field(default=None, repr=False)
    whole_file: Path | None = None
    notices: list[str] = field(default_factory=list)

    @property
    def one(self) -> AttentionMap | None:
        """The map of the only head that is there; None: there are several."""
        return self.maps[0] if len(self.maps) == 1 else None

    def __getitem__(self, place: tuple[int, int]) -> AttentionMap:
        """The map of one head, by its layer and its number: `maps[layer, head]`.

        Raises:
            KeyError: it was not collected.
        """
        for each in self.maps:
            if (each.layer, each.head) == place:
                return each
        raise KeyError(place)
