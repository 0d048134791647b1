"""Collect the maps of heads while a model runs."""

from __future__ import annotations

from collections.abc import Collection, Iterator
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any, Literal

from attnscope.checkpoints.indices import check_indices
from attnscope.document.result import Check
from attnscope.errors import ModelError
from attnscope.models.attention_hook import AttentionCall, AttentionInputs
from attnscope.models.heads.result import HeadRow
from attnscope.models.layers import STACKS, layer_of, stack_of, why_repeated
from attnscope.models.maps.numbers import ROLLOUT, VALUE_WEIGHTED
from attnscope.models.maps.result import AttentionMap, AttentionMaps
from attnscope.models.maps.rollout import Rollout
from attnscope.models.tokenize import Reading, patches
from attnscope.models.tokens import Token
from attnscope.models.tolerance import weights_of
from attnscope.models.validate import check_rows
from attnscope.models.value_norms import ValueNorms

if TYPE_CHECKING:
    import torch

AT_ONCE = 2**26
"""The number of weights computed at once: 256 MiB of float32."""

WITH_SINKS = (
    "sinks take a part of the weights in each layer, so that rows of the rollout sum to less than 1."
)


@dataclass(frozen=True)
class HeadSelection:
    """A selection of heads by stack, layer index and head index.

    Attributes:
        stack: `encoder`, `cross` and the like; None: every stack that runs.
        layers: indices of layers; `first`: the first layer with attention; None: all.
        heads: indices of heads; None: all.
        rollout: whether the layers' rollouts are collected in place of the maps of heads. All heads of
            the layers below are needed for these.
    """

    stack: str | None = None
    layers: Collection[int] | Literal["first"] | None = None
    heads: Collection[int] | None = None
    rollout: bool = False

    def heads_of(self, stack: str, layer: int, n_head: int, *, first: bool = False) -> list[int]:
        """Return the selected heads of one layer.

        Args:
            stack, layer, n_head: the layer, and its number of heads.
            first: whether it is the first layer of its stack with attention.
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
    """The maps of a run, and facts about the model.

    Attributes:
        stacks: the selected maps of each stack.
        projected: where these are value-weighted, the check of what the output projections put out.
        weights: where these are value-weighted, the weights themselves, if requested.
        output: the model's logits, or else its last hidden states.
        layers: for every layer with attention, by stack and index, the number of its heads.
        n_layer: the number of layers of each stack, with or without attention.
        call: the inputs and outputs of one layer's attention, if requested.
        measured: the metrics of heads measured during the run, if requested.
        eager: the stacks whose maps come from the model's eager attention, with the reasons.
    """

    stacks: list[AttentionMaps]
    output: torch.Tensor
    layers: dict[tuple[str, int], int]
    n_layer: dict[str, int]
    call: AttentionCall | None = None
    eager: dict[str, str] = field(default_factory=dict)
    measured: list[HeadRow] = field(default_factory=list)
    weights: list[AttentionMaps] = field(default_factory=list)
    projected: Check | None = None

    def check(self, model: str, stack: str, layers: Collection[int], heads: Collection[int]) -> None:
        """Raise a ModelError if a layer or head does not exist, or a layer has no attention."""
        if not any(each == stack for each, _ in self.layers):
            raise ModelError(f"{model} ran no {stack} attention, only {', '.join(self.n_layer)}.")
        check_indices(model, [stack], layers, heads, n_layer=self.n_layer, n_head=self.layers)


@dataclass(frozen=True)
class Layer:
    """The location and the sizes of one layer's attention.

    Attributes:
        stack, number: the layer's stack and index.
        n_layer: the number of layers of the stack.
        n_batch, n_head, n_kv_head, n_Q, n_K: the sizes of its attention.
    """

    stack: str
    number: int
    n_layer: int
    n_batch: int
    n_head: int
    n_kv_head: int
    n_Q: int  # noqa: N815 - the field's name
    n_K: int  # noqa: N815


class MapCollector:
    """Collect the maps of the selected heads while a model runs.

    Args:
        name: the model's name as the user gave it.
        model: as transformers loads it.
        reading: its inputs.
        selection: the heads to collect.
        keep: a stack; the inputs and outputs of its first selected layer's attention are kept, too.
        stacks: the stacks whose returned weights are collected.
        norms: the norms of values by which weights are multiplied; None: they are not.
        keep_weights: whether the weights themselves are collected, too.
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
            stack, number: the layer's stack and index.
            n_layer: the number of layers of the stack.
            attention: `n_batch n_head n_Q n_K`; None: the layer has no attention.

        Raises:
            ModelError: they are not weights, or do not cover all pairs of tokens.
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
        """Record that a layer has attention, and return its selected heads.

        Raises:
            ModelError: its attention does not cover all pairs of tokens.
        """
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
            layer, heads: the layer, and which of its heads.
            attention: their weights.
            sinks: whether the layer has sinks.
            norms: the norms of their values, `n_head n_K`, by which weights are multiplied; None: they
                are not.

        Raises:
            ModelError: they are not weights.
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
        """Add some heads of a layer to the rollout, and its map if a selected layer is complete.

        Raises:
            ModelError: they are not weights; or a layer below has no attention.
        """
        maps, kind = self.maps[layer.stack], type(self.model).__name__
        check_rows(attention, self.name, kind, layer.number, layer.stack, sinks=sinks)
        if layer.number != self.rollout.n_layer:
            raise ModelError(
                f"layer {self.rollout.n_layer} of {self.name} has no attention, so that what passes"
                f" through it to layer {layer.number} is unknown to a rollout.",
                hint="without --rollout, the maps of heads",
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
