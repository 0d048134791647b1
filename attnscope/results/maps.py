"""Attention maps: the weights that heads give to the tokens of one text or image."""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from attnscope.results.common import Check, Part, Result
from attnscope.results.heads import HeadTable
from attnscope.results.trace import Trace


@dataclass(frozen=True)
class Token:
    """One token of the sequence of queries or of keys.

    Attributes:
        text: as the tokenizer decodes it, including a leading space; `##` marks the continuation of a
            word in BERT's vocabulary; for an image patch, its row and column.
        segment: 0; in a pair of texts, 1 for tokens of the second.
        special: whether the tokenizer or the model added it: `[CLS]`, `</s>`.
        generated: whether the model generated it.
    """

    text: str
    segment: int = 0
    special: bool = False
    generated: bool = False


@dataclass(frozen=True)
class Picture:
    """The image that a vision model attended to.

    Attributes:
        rows, columns: the size of the grid of patches; their tokens come row by row.
        first: how many tokens come before the patches, such as `[CLS]`.
        png: the image after cropping and resizing for the model, as the bytes of a PNG file.
    """

    rows: int
    columns: int
    first: int
    png: bytes = field(repr=False)


@dataclass(frozen=True)
class Pooling:
    """How the maps of a long text are pooled: neighbouring tokens share a cell.

    Attributes:
        shown: `max` or `mean`: how a cell of a map's `attention` is computed from its weights.
        queries, keys: the positions pooled into each row, and into each column.
    """

    shown: str
    queries: list[range]
    keys: list[range]


@dataclass(repr=False)
class AttentionMap(Part):
    """The attention map of one head: the weight that each query gives to each key.

    Attributes:
        layer, head: counted from 0; `head` is a query head.
        kv_head: the key/value head that it reads; differs from `head` in grouped-query attention.
        attention: the weights after the softmax, `n_Q n_K`, numpy float32. Rows sum to 1,
            or to less if a learned sink takes a part. In a pooled map, one number for each cell.
        mean, max: in a pooled map, the mean and the maximum of each cell's weights; masked weights
            are included as 0.
        row: in a pooled map, the weights of the one selected query, `n_K`.
        top: in a pooled map, each query's keys of largest weight, and these weights, `n_Q k` each,
            if requested.
    """

    layer: int
    head: int
    kv_head: int
    attention: Any = field(repr=False, compare=False)
    mean: Any = field(default=None, repr=False, compare=False)
    max: Any = field(default=None, repr=False, compare=False)
    row: Any = field(default=None, repr=False, compare=False)
    top: tuple[Any, Any] | None = field(default=None, repr=False, compare=False)


@dataclass(repr=False)
class AttentionMaps(Result):
    """Attention maps of several heads in one stack of a model, for one text or image.

    Attributes:
        model: the name that the user gave.
        stack: the stack of layers: `self` if the model has only one; else `encoder`, `decoder` or
            `cross` (the decoder's queries, the encoder's keys), `text` or `vision`.
        n_layer, n_head, n_kv_head: the stack's numbers of layers, query heads and key/value heads.
        query_tokens, key_tokens: the tokens along the two axes of every map.
        maps: the selected heads, ordered by layer and then by head.
        picture: the image, for a vision model.
        first_query: the position of the first query in its sequence; the queries may be only the
            last tokens of it.
        pooling: which tokens share the cells of every map; None: the maps are not pooled.
        left_out: the positions of the sink's keys, which lists of the strongest keys and colour scales
            leave out, if requested.
        query: the position of the only query that is shown; None: all.
        top: how many of each query's strongest keys are shown in place of the map.
        checks: comparisons with the maps that the model itself returns; None if none were made.
        steps: the attention of one layer step by step, if requested.
        collected: for a page, the maps of every stack that it shows, including these.
        metrics: for a page, the metrics by which it ranks heads.
        whole_file: the file to which unpooled maps were written while they were computed, if any.
        notices: further sentences for the reader.
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
        """The map, if there is only one; None: there are several."""
        return self.maps[0] if len(self.maps) == 1 else None

    def __getitem__(self, place: tuple[int, int]) -> AttentionMap:
        """Return the map of one head by layer and head: `maps[layer, head]`.

        Raises:
            KeyError: it was not collected.
        """
        for each in self.maps:
            if (each.layer, each.head) == place:
                return each
        raise KeyError(place)
