"""Collect the maps of heads while a model runs."""

from __future__ import annotations

from collections.abc import Collection, Iterator
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any, Literal

from attnscope.base.errors import ModelError
from attnscope.base.spelling import spelled
from attnscope.document.result import Check
from attnscope.model.files.indices import check_indices
from attnscope.model.heads.result import HeadRow
from attnscope.model.maps.result import ROLLOUT, VALUE_WEIGHTED, AttentionMap, AttentionMaps
from attnscope.model.run.attention_hook import AttentionCall, AttentionInputs
from attnscope.model.run.layers import STACKS, layer_of, stack_of, why_repeated
from attnscope.model.run.tokenize import Reading, patches
from attnscope.model.run.tokens import Token
from attnscope.model.run.validate import check_rows, weights_of
from attnscope.model.run.value_norms import ValueNorms

if TYPE_CHECKING:
    import torch

AT_ONCE = 2**26
"""The number of weights computed at once: 256 MiB of float32."""

WITH_SINKS = (
    "sinks take a part of the weights in each layer, so that rows of the rollout sum to less than 1."
)


@dataclass(frozen=True)
class HeadSelection:
    """A selection of heads by stack, layer index and head index."""

    #: `encoder`, `cross` and the like; None: every stack that runs.
    stack: str | None = None
    #: indices of layers; `first`: the first layer with attention; None: all.
    layers: Collection[int] | Literal["first"] | None = None
    #: indices of heads; None: all.
    heads: Collection[int] | None = None
    #: whether the layers' rollouts are collected in place of the maps of heads. All heads of the layers
    #: below are needed for these.
    rollout: bool = False

    def heads_of(self, stack: str, layer: int, n_head: int, *, first: bool = False) -> list[int]:
        """Return the selected heads of one layer.

        Args:
            stack, layer, n_head: the layer, and its number of heads.
        """
        selected = first if self.layers == "first" else self.layers is None or layer in self.layers
        if self.rollout:
            numbers = None if isinstance(self.layers, str) else self.layers
            last = layer if numbers is None else max(numbers)
            return list(range(n_head)) if self.stack == stack and layer <= last else []
        if self.stack not in (None, stack) or not selected:
            return []
        return [head for head in range(n_head) if self.heads is None or head in self.heads]


@dataclass
class CollectedMaps:
    """The maps of a run, and facts about the model."""

    stacks: list[AttentionMaps]
    output: torch.Tensor
    #: for every layer with attention, by stack and index, the number of its heads.
    layers: dict[tuple[str, int], int]
    #: the number of layers of each stack, with or without attention.
    n_layer: dict[str, int]
    #: the inputs and outputs of one layer's attention, if requested.
    call: AttentionCall | None = None
    #: the stacks whose maps come from the model's eager attention, with the reasons.
    eager: dict[str, str] = field(default_factory=dict)
    #: the metrics of heads measured during the run, if requested.
    measured: list[HeadRow] = field(default_factory=list)
    #: where these are value-weighted, the weights themselves, if requested.
    weights: list[AttentionMaps] = field(default_factory=list)
    #: where these are value-weighted, the check of what the output projections put out.
    projected: Check | None = None

    def check(self, model: str, stack: str, layers: Collection[int], heads: Collection[int]) -> None:
        """Raise a ModelError if a layer or head does not exist, or a layer has no attention."""
        if not any(each == stack for each, _ in self.layers):
            raise ModelError(f"{model} ran no {stack} attention, only {', '.join(self.n_layer)}.")
        check_indices(model, [stack], layers, heads, n_layer=self.n_layer, n_head=self.layers)


@dataclass(frozen=True)
class Layer:
    """The location and the sizes of one layer's attention."""

    stack: str
    number: int
    n_layer: int
    #: n_batch, n_head, n_kv_head, n_Q, n_K: the sizes of its attention.
    n_batch: int
    n_head: int
    n_kv_head: int
    n_Q: int  # noqa: N815 - the field's name
    n_K: int  # noqa: N815


class Rollout:
    """The attention rollout of one stack of layers, from the first layer up.

    How much of each input token reaches each token behind a layer.

    Source: Abnar & Zuidema 2020, "Quantifying Attention Flow in Transformers", whose rollout multiplies
    the maps of all layers: Ā_l is the mean over a layer's heads, ½(Ā_l + I) stands for it and the
    residual connection around it, and R_l = ½(Ā_l + I) R_{l−1}, beginning with R = I.
    """

    def __init__(self) -> None:
        self.n_layer = 0
        self._product: torch.Tensor | None = None  # R of the layers so far
        self._sum: torch.Tensor | None = None  # of the weights of the current layer's heads so far
        self._n_head = 0

    def add(self, attention: torch.Tensor, n_head: int) -> torch.Tensor | None:
        """Add some heads of the current layer; return R up to it, `n n`, when these are its last.

        Args:
            attention: the weights of these heads, `n_head n n`.
            n_head: the number of the layer's heads, all together.
        """
        import torch

        dtype = torch.promote_types(attention.dtype, torch.float32)
        part = attention.sum(dim=0, dtype=dtype)
        self._sum = part if self._sum is None else self._sum.add_(part)
        self._n_head += len(attention)
        if self._n_head < n_head:
            return None
        layer = self._sum.div_(2 * n_head)  # ½ Ā
        layer.diagonal().add_(0.5)
        self._product = layer if self._product is None else layer @ self._product
        self._sum, self._n_head, self.n_layer = None, 0, self.n_layer + 1
        return self._product


class MapCollector:
    """Collect the maps of the selected heads while a model runs.

    Args:
        keep: a stack; the inputs and outputs of its first selected layer's attention are kept, too.
        norms: the norms of values by which weights are multiplied; None: they are not.
    """

    def __init__(
        self,
        name: str,
        model: Any,
        reading: Reading,
        selection: HeadSelection,
        keep: str | None = None,
        stacks: Collection[str] = STACKS,
        norms: ValueNorms | None = None,
        keep_weights: bool = False,
    ) -> None:
        self.name, self.model, self.reading, self.selection = name, model, reading, selection
        self.keep, self.stacks, self.norms, self.keep_weights = keep, stacks, norms, keep_weights
        self.maps: dict[str, AttentionMaps] = {}
        self.weights: dict[str, AttentionMaps] = {}
        self.rows: dict[str, list[int]] = {}  # the queries that are shown: all, or the generated ones
        self.layers: dict[tuple[str, int], int] = {}  # how many heads each layer has
        self.n_layer: dict[str, int] = {}
        self.call: AttentionCall | None = None
        self.unexplained: dict[str, str] = {}  # why, by stack
        self.rollout = Rollout()

    def compute(self, call: AttentionCall) -> None:
        """Compute the selected maps of one layer from the inputs of its attention."""
        layer = self.layer(call)
        if layer is None:
            return
        heads = self.add_layer(layer)
        norms = self.norms.of(call)[0] if self.norms is not None and heads else None
        for part in _parts(heads, layer.n_Q * layer.n_K):
            attention, difference, tolerance = weights_of(call, part)
            if not difference <= tolerance:
                self.unexplained[layer.stack] = (
                    f"in layer {layer.number} they differ by {difference:.2g}"
                )
            else:
                of_part = None if norms is None else norms[part]
                self._add(layer, part, attention, sinks=call.sinks is not None, norms=of_part)
        if self.norms is not None and heads:
            self.norms.expect(call.path, call.output)
        if heads and self.keep == layer.stack:
            self.call = self.call or call

    def collect(self, call: AttentionCall) -> None:
        """Collect the selected maps from the weights that a layer's own eager attention returned."""
        layer = self.layer(call)
        if layer is not None and layer.stack in self.stacks and call.weights is not None:
            heads = self.add_layer(layer)
            self._add(layer, heads, call.weights[0, heads], sinks=call.sinks is not None)

    def collect_map(self, stack: str, number: int, n_layer: int, attention: torch.Tensor | None) -> None:
        """Collect the selected maps from the weights that a model returned for one of its layers.

        Args:
            attention: `n_batch n_head n_Q n_K`; None: the layer has no attention.
        """
        if attention is None:
            return
        n_batch, n_head, n_Q, n_K = attention.shape
        layer = Layer(stack, number, n_layer, n_batch, n_head, n_head, n_Q, n_K)
        heads = self.add_layer(layer)
        self._add(layer, heads, attention[0, heads])

    def forget(self, stack: str) -> None:
        """Discard what was collected of a stack."""
        self.maps.pop(stack, None)
        self.n_layer.pop(stack, None)
        self.layers = {key: n for key, n in self.layers.items() if key[0] != stack}

    def result(self, output: torch.Tensor) -> CollectedMaps:
        """Return everything that was collected."""
        stacks = [self.maps[stack] for stack in STACKS if stack in self.maps]
        weights = [self.weights[maps.stack] for maps in stacks if maps.stack in self.weights]
        projected = None
        if self.norms is not None:
            of = self.norms
            projected = Check.within("Σ_h x_h W_O^h + b_O = the model's", of.difference, of.tolerance)
        return CollectedMaps(
            stacks,
            output,
            self.layers,
            self.n_layer,
            self.call,
            weights=weights,
            projected=projected,
        )

    def layer(self, inputs: AttentionInputs) -> Layer | None:
        """Return the layer of a call; None if it attends more than once, which is not supported."""
        stack = stack_of(inputs.path, self.model.config, cross=inputs.cross)
        number, n_layer = layer_of(self.model, stack, inputs.path, self.layers)
        if repeated := why_repeated(stack, number, self.layers):
            self.unexplained[stack] = repeated
            return None
        n_batch, n_head, n_Q, _ = inputs.query.shape
        _, n_kv_head, n_K, _ = inputs.key.shape
        return Layer(stack, number, n_layer, n_batch, n_head, n_kv_head, n_Q, n_K)

    def add_layer(self, layer: Layer) -> list[int]:
        """Record that a layer has attention, and return its selected heads."""
        stack, first = layer.stack, layer.stack not in self.n_layer
        self.layers[stack, layer.number] = layer.n_head
        self.n_layer[stack] = layer.n_layer
        heads = self.selection.heads_of(stack, layer.number, layer.n_head, first=first)
        if not heads:
            return []
        queries, keys = self._tokens(stack, "Q", layer.n_Q), self._tokens(stack, "K", layer.n_K)
        if (layer.n_batch, layer.n_Q, layer.n_K) != (1, len(queries), len(keys)):
            raise ModelError(
                f"{self.name} attends from {layer.n_batch} × {layer.n_Q} queries to {layer.n_K}"
                f" keys in layer {layer.number}, but there are {len(queries)} and {len(keys)}"
                " tokens: attnscope shows attention only among all tokens."
            )
        if stack not in self.maps:
            empty = self._empty(layer, queries, keys)
            self.maps[stack] = empty
            if self.selection.rollout:
                self.rollout = Rollout()
                self.maps[stack] = replace(empty, numbers=ROLLOUT.name)
            if self.norms is not None:
                self.maps[stack] = replace(empty, numbers=VALUE_WEIGHTED.name)
                if self.keep_weights:
                    self.weights[stack] = replace(empty, maps=[], notices=[])
        return heads

    def _empty(self, layer: Layer, queries: list[Token], keys: list[Token]) -> AttentionMaps:
        """Return a stack without maps; if tokens were generated, their queries are its only ones."""
        generated = [i for i, token in enumerate(queries) if token.generated]
        rows = self.rows[layer.stack] = generated or list(range(len(queries)))
        picture = self.reading.picture
        if picture:
            picture = replace(picture, first=len(keys) - picture.rows * picture.columns)
        return AttentionMaps(
            model=self.name,
            stack=layer.stack,
            n_layer=layer.n_layer,
            n_head=layer.n_head,
            n_kv_head=layer.n_kv_head,
            query_tokens=[queries[i] for i in rows],
            key_tokens=keys,
            maps=[],
            picture=picture,
            first_query=rows[0],
        )

    def _tokens(self, stack: str, which: str, n: int) -> list[Token]:
        """Return the tokens of a stack's queries or keys; those of an image are `n`."""
        if stack == "decoder" or (stack == "cross" and which == "Q"):
            return self.reading.target
        reading = self.reading
        if reading.picture:
            return patches(reading.picture, n, reading.most_added, reading.others)
        return self.reading.source

    def _add(
        self,
        layer: Layer,
        heads: list[int],
        attention: torch.Tensor,
        *,
        sinks: bool = False,
        norms: torch.Tensor | None = None,
    ) -> None:
        """Add the maps of some heads, `n_head n_Q n_K`, restricted to the rows that are shown.

        Args:
            norms: the norms of their values, `n_head n_K`, by which weights are multiplied; None: they
                are not.
        """
        if not heads:
            return
        if self.selection.rollout:
            self._roll_out(layer, attention, sinks=sinks)
            return
        rows = self.rows[layer.stack]
        attention = attention if len(rows) == layer.n_Q else attention[:, rows]
        kind = type(self.model).__name__
        check_rows(attention, self.name, kind, layer.number, layer.stack, sinks=sinks)
        weights = attention.float()
        if norms is not None:
            if layer.stack in self.weights:
                self._append(self.weights[layer.stack].maps, layer, heads, weights)
            weights = weights * norms[:, None].float()
        self._append(self.maps[layer.stack].maps, layer, heads, weights)

    def _roll_out(self, layer: Layer, attention: torch.Tensor, *, sinks: bool) -> None:
        """Add some heads of a layer to the rollout, and its map if a selected layer is complete."""
        maps, kind = self.maps[layer.stack], type(self.model).__name__
        check_rows(attention, self.name, kind, layer.number, layer.stack, sinks=sinks)
        if layer.number != self.rollout.n_layer:
            raise ModelError(
                f"layer {self.rollout.n_layer} of {self.name} has no attention, so that what passes"
                f" through it to layer {layer.number} is unknown to a rollout.",
                hint=f"without {spelled(rollout=True)}, the maps of heads",
            )
        product = self.rollout.add(attention, layer.n_head)
        layers = self.selection.layers
        if product is not None and (layers is None or layer.number in layers):
            rows = product[self.rows[layer.stack]]
            maps.maps.append(AttentionMap(layer.number, 0, 0, rows.float().cpu().numpy()))
        if sinks and WITH_SINKS not in maps.notices:
            maps.notices.append(WITH_SINKS)

    def _append(
        self, maps: list[AttentionMap], layer: Layer, heads: list[int], numbers: torch.Tensor
    ) -> None:
        """Append a map for each of some heads, `n_head n_Q n_K`."""
        group = layer.n_head // layer.n_kv_head
        for head, of_head in zip(heads, numbers.cpu().numpy(), strict=True):
            maps.append(AttentionMap(layer.number, head, head // group, of_head))


def _parts(heads: list[int], size: int) -> Iterator[list[int]]:
    """Yield groups of heads whose maps, of `size` weights each, are computed at once."""
    n = max(1, AT_ONCE // max(size, 1))
    for start in range(0, len(heads), n):
        yield heads[start : start + n]
