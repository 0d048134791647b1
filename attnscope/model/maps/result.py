"""Attention maps: the weights that heads give to the tokens of one text or image."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any, overload

from attnscope.base.errors import no_such_part
from attnscope.base.text import shortened
from attnscope.base.units import counted, listed
from attnscope.document.grid.pooling import Pooling
from attnscope.document.result import Check, Part, TensorResult, held_of, named, of_room
from attnscope.model.heads.result import HeadTable
from attnscope.model.run.tokens import Picture, Token
from attnscope.observe.trace import Trace

if TYPE_CHECKING:
    import numpy as np
    import pandas
    from matplotlib.axes import Axes

    from attnscope.document.tensor_file import Tensors


@dataclass(frozen=True)
class MapNumbers:
    """What the numbers of maps are, in words."""

    name: str
    label: str
    #: how they are computed and what they sum to; empty for the weights themselves.
    meaning: str
    #: whether they are shares of 1, as weights are.
    as_weights: bool = True
    #: whether a map is that of a head; else of all layers up to one.
    of_heads: bool = True


WEIGHTS = MapNumbers("weights", "weight", "")
"""The weights after the softmax."""

VALUE_WEIGHTED = MapNumbers(
    "value-weighted",
    "α‖v W_O‖",
    "value-weighted: weight α_ij times the norm ‖v_j W_O^h‖ of the key's value; rows do not sum to 1",
    as_weights=False,
)
"""Weights times the norms of values behind the output projection: `attnscope.model.run.value_norms`."""

ROLLOUT = MapNumbers(
    "rollout",
    "rollout",
    "rollout: R = ½(Ā + I) R of the layer below, with Ā the mean of a layer's heads; no head's weights",
    of_heads=False,
)
"""Products of maps over layers: `attnscope.model.maps.capture`."""

NUMBERS = {each.name: each for each in (WEIGHTS, VALUE_WEIGHTED, ROLLOUT)}
"""All kinds, by name."""

METADATA = "attnscope.maps"
"""The key of what a `.safetensors` file says of its maps: a part of the file format, not a module."""


@dataclass(repr=False)
class AttentionMap(Part):
    """The attention map of one head: the weight that each query gives to each key.

    Attributes:
        layer, head: counted from 0; `head` is a query head.
        kv_head: the key/value head that it reads; differs from `head` in grouped-query attention.
        attention: the weights after the softmax, `n_Q n_K`, numpy float32. Rows sum to 1,
            or to less if a learned sink takes a part. In a pooled map, one number for each cell. If
            `AttentionMaps.numbers` says so, other numbers than weights; also in the further arrays.
        mean, max: in a pooled map, the mean and the maximum of each cell's weights; masked weights
            are included as 0.
        row: in a pooled map, the weights of the one selected query, `n_K`.
        top: in a pooled map, each query's keys of largest weight, and these weights, `n_Q k` each,
            if requested.
        query_tokens, key_tokens: the tokens along both axes.
    """

    layer: int
    head: int
    kv_head: int
    attention: Any = field(repr=False, compare=False)
    mean: Any = field(default=None, repr=False, compare=False)
    max: Any = field(default=None, repr=False, compare=False)
    row: Any = field(default=None, repr=False, compare=False)
    top: tuple[Any, Any] | None = field(default=None, repr=False, compare=False)
    query_tokens: list[Token] | None = field(default=None, repr=False, compare=False)
    key_tokens: list[Token] | None = field(default=None, repr=False, compare=False)

    @property
    def summary(self) -> str:
        """What it is, on one line, without its class."""
        rows, columns = self.attention.shape
        pooled = ", pooled" if self.mean is not None else ""
        return f"layer {self.layer}, head {self.head}: {rows} × {columns} weights{pooled}"

    @property
    def arrays(self) -> dict[str, np.ndarray]:
        """The map by its name, `attention`; of a pooled one, further arrays."""
        further = {"mean": self.mean, "max": self.max, "row": self.row}
        return {"attention": self.attention, **{k: v for k, v in further.items() if v is not None}}

    @property
    def tokens(self) -> list[str]:
        """The texts of the keys."""
        return [token.text for token in self.key_tokens or ()]


@dataclass(repr=False)
class AttentionMaps(TensorResult):
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
        of_weights: for a page of other numbers, the weights of the same heads.
        metrics: for a page, the metrics by which it ranks heads.
        whole_file: the file to which unpooled maps were written while they were computed, if any.
        notices: further sentences for the reader.
        numbers: `weights`; or `value-weighted`: each weight α_ij times ‖v_j W_O^h‖, the norm of what the
            key's value adds to the layer's output; or `rollout`: a map for each layer, whose `head` is 0
            and stands for all heads.
    """

    schema = "maps"

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
    of_weights: list[AttentionMaps] = field(default_factory=list, repr=False)
    metrics: HeadTable | None = field(default=None, repr=False)
    whole_file: Path | None = None
    notices: list[str] = field(default_factory=list)
    numbers: str = WEIGHTS.name

    @property
    def summary(self) -> str:
        """What it is, on one line, without its class."""
        n_Q, n_K = len(self.query_tokens), len(self.key_tokens)
        queries = f"{n_Q:,} {'query' if n_Q == 1 else 'queries'} × {counted(n_K, 'key')}"
        pooling = self.pooling
        cells = "" if pooling is None else f"pooled to {len(pooling.queries)} × {len(pooling.keys)}"
        one, name = self.one, shortened(named(self.model, self.stack))
        kind = "" if self.kind is WEIGHTS else self.numbers
        heads = counted(len(self.maps), "head" if self.of_heads else "layer")
        if one is not None:
            heads = self.place_of(one).replace(" · ", ", ")
        return f"{name}: {listed([heads, kind, queries, cells, *held_of(self.checks)])}"

    @property
    def kind(self) -> MapNumbers:
        """What the numbers are, in words."""
        return NUMBERS[self.numbers]

    @property
    def of_heads(self) -> bool:
        """Whether each map is that of a head; else of all layers up to its own."""
        return self.kind.of_heads

    def place_of(self, map: AttentionMap) -> str:
        """Name the head of a map, or the layers up to its own."""
        return f"layer {map.layer} · head {map.head}" if self.of_heads else f"layers 0 to {map.layer}"

    @property
    def label(self) -> str:
        """One of the numbers, as an axis of colours names it: `weight`."""
        return self.kind.label

    @property
    def meaning(self) -> str:
        """How the numbers are computed and what they sum to; empty for weights."""
        return self.kind.meaning

    @property
    def unit(self) -> float | None:
        """The largest number, of which views show shares; None: numbers are shares of 1 already."""
        if self.kind.as_weights:
            return None
        import numpy as np

        largest = (float(np.nan_to_num(each.attention).max(initial=0)) for each in self.maps)
        return max(largest, default=0.0) or 1.0

    @property
    def size_text(self) -> str:
        """The numbers of queries and keys of a whole map."""
        return f"{len(self.query_tokens):,} × {len(self.key_tokens):,}"

    @property
    def one(self) -> AttentionMap | None:
        """The map, if there is only one; None: there are several."""
        return self.maps[0] if len(self.maps) == 1 else None

    def __post_init__(self) -> None:
        for each in self.maps:
            if each.key_tokens is None:
                each.query_tokens, each.key_tokens = self.query_tokens, self.key_tokens

    def __len__(self) -> int:
        return len(self.maps)

    def __iter__(self) -> Iterator[AttentionMap]:
        return iter(self.maps)

    @overload
    def __getitem__(self, place: tuple[int, int]) -> AttentionMap: ...
    @overload
    def __getitem__(self, place: int) -> dict[int, AttentionMap]: ...
    def __getitem__(self, place: tuple[int, int] | int) -> AttentionMap | dict[int, AttentionMap]:
        """Return the map of one head, `maps[layer, head]`, or those of a layer: `maps[layer][head]`.

        Raises:
            PartError: it was not collected; it is a KeyError.
        """
        found = {(each.layer, each.head): each for each in self.maps}
        if isinstance(place, tuple) and place in found:
            return found[place]
        heads = {head: each for (layer, head), each in found.items() if layer == place}
        if heads:
            return OfLayer(heads, place)
        if not isinstance(place, tuple):  # a layer
            raise no_such_part(place, [layer for layer, _ in found], "the layers of these maps")
        raise no_such_part(place, found, "these maps")

    def plot(
        self, axes: Axes | None = None, *, layer: int | None = None, head: int | None = None
    ) -> Axes:
        """Draw a map, or a grid of all, with matplotlib, and return its axes.

        Args:
            axes: where to draw a single map; None: in a new figure. All maps of one result have the same
                colours there, which a line below the map explains, so that they may stand side by side.
            layer, head: the map; both may be omitted if there is only one, or for a grid of all.

        Raises:
            OptionError: matplotlib is not installed, or a single map is to be named.
            PartError: there is no such map.
        """
        return of_room(AttentionMaps, "plot", "figure")(self, axes, layer, head)

    def page(self) -> str:
        """Return an interactive page of all maps that were collected for it, or of these alone."""
        return of_room(AttentionMaps, "maps_page", "drawing")(self)

    def to_dict(self) -> dict[str, Any]:
        """Return one head as `attnscope.map/1`, several as `attnscope.maps/1`; or one query of them."""
        return of_room(AttentionMaps, "record", "record")(self)

    def json_of(self, record: dict[str, Any]) -> str:
        """Return a record as a JSON document, with each row of weights on one line."""
        return of_room(AttentionMaps, "json_of", "record")(record)

    def csv(self) -> Iterator[str]:
        """Yield CSV: each query's strongest keys if these are shown, else the weights, row by row."""
        return of_room(AttentionMaps, "csv_lines", "record")(self)

    def tensors(self) -> Tensors:
        """Return the maps by their names in a file; pooled maps include all their arrays."""
        return of_room(AttentionMaps, "map_tensors", "matrix_file")(self)

    def metadata(self) -> dict[str, str] | None:
        """Describe the maps for a `.safetensors` file, beside their tensors."""
        return of_room(AttentionMaps, "map_metadata", "matrix_file")(self)

    def to_pandas(self) -> pandas.DataFrame:
        """Return a row for each head, query and key; for pooled maps, a row for each cell.

        Raises:
            OptionError: pandas is not installed.
        """
        return of_room(AttentionMaps, "frame", "record")(self)


class OfLayer(dict[int, AttentionMap]):
    """The maps of a layer, by head."""

    def __init__(self, heads: dict[int, AttentionMap], layer: object) -> None:
        super().__init__(heads)
        self.layer = layer

    def __missing__(self, head: object) -> AttentionMap:
        raise no_such_part(head, self, f"layer {self.layer} of these maps")
