"""Measure every head of a model on batches of texts, without ever holding a whole map.

The model runs, but its attention is replaced by attnscope's, which computes a block of queries at a time
and measures each block's weights before the next one overwrites them. Before that, a run on a few tokens
checks for each layer that this attention equals the model's own. If it does not, or if the attention
cannot be captured, the model runs with eager attention, and the weights that it returns are measured.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import KW_ONLY, InitVar, dataclass, field
from typing import TYPE_CHECKING, Any

from attnscope.base.errors import ModelError, SizeError
from attnscope.base.spelling import spelled
from attnscope.base.units import bytes_text
from attnscope.model.files.checkpoint import Checkpoint
from attnscope.model.heads.batches import TextBatch
from attnscope.model.heads.metrics import AxisTokens, Metric, WeightRows, metrics_of
from attnscope.model.heads.statistics import Accumulator, Key
from attnscope.model.maps.collect import no_values
from attnscope.model.run.attention_hook import AttentionCall, AttentionInputs, attending, observing
from attnscope.model.run.blockwise import FEW, Blockwise, Store, disagreement, discard, is_fused
from attnscope.model.run.eager import (
    SOME,
    check_returned,
    notice_of_masks,
    notice_of_outputs,
    returned_maps,
    why_eager,
)
from attnscope.model.run.forward import main_output
from attnscope.model.run.forward import run as forward
from attnscope.model.run.layers import layer_of, stack_of, stacks_that_run, why_repeated
from attnscope.model.run.load import as_model_error, disable_cache, load_eager
from attnscope.model.run.validate import check_rows
from attnscope.model.run.value_norms import ValueNorms, checked

if TYPE_CHECKING:
    import torch


@dataclass(eq=False)
class HeadMeasurer:
    """Measure the heads of a model, a batch at a time; what is measured is as in a `Selection`."""

    checkpoint: Checkpoint
    model: Any
    metrics: Sequence[str]
    _: KW_ONLY
    layers: Collection[int] | None = None
    stack: str | None = None
    special: bool = True
    without_sink: bool = False
    weigh: str | None = None
    block_bytes: InitVar[int] = 2**24  #: the memory for a block of weights
    #: the bytes of numbers of pairs that may be kept for further layers with the same mask
    keep: InitVar[int] = 0
    #: heads, norms: known after `probe`
    heads: dict[Key, int] = field(default_factory=dict, init=False)
    n_layer: dict[str, int] = field(default_factory=dict, init=False)
    norms: ValueNorms | None = field(default=None, init=False)
    why_eager: str | None = field(default=None, init=False)
    #: a notice, if its default attention differs from its eager attention
    eager_notice: str | None = field(default=None, init=False)
    #: the bytes that whole maps may take with eager attention; None: no limit
    memory: int | None = field(default=None, init=False)
    _known: dict[Any, tuple[WeightRows, torch.Tensor | None]] = field(default_factory=dict, init=False)

    def __post_init__(self, block_bytes: int, keep: int) -> None:
        self.blockwise, self.store = Blockwise(block_bytes), Store(keep)
        disable_cache(self.model)

    def of_stack(self, stack: str) -> dict[str, Metric]:
        """Return the metrics that are defined for a stack, by name."""
        return metrics_of(stack, self.metrics)

    def measure(self, batch: TextBatch) -> Accumulator:
        """Run the model on a batch, and sum up the metrics of its heads."""
        n = sum(text.n_tokens for text in batch.texts)
        self._known.clear()
        self.store.forget()
        unknown, counted = (sum(text.unknown[i] for text in batch.texts) for i in range(2))
        accumulator = Accumulator(
            sequences=len(batch.texts),
            tokens=n,
            cut=sum(text.cut for text in batch.texts),
            unknown=(unknown, counted),
        )
        if self.why_eager is None:
            attend = attending(self.model, lambda inputs: self._attend(batch, accumulator, inputs))
            with checked(self.norms), attend, as_model_error(self.checkpoint):
                run(self.model, batch)
        else:
            self._measure_eager(batch, accumulator)
        return accumulator

    def probe(self, batch: TextBatch) -> None:
        """Check on a few tokens that attnscope's attention is the model's; if not, load it as eager."""
        unexplained: dict[str, str] = {}
        self.why_eager = None

        def compare(call: AttentionCall) -> None:
            stack = stack_of(call.path, self.model.config, cross=call.cross)
            number, self.n_layer[stack] = layer_of(self.model, stack, call.path, self.heads)
            if repeated := why_repeated(stack, number, self.heads):
                unexplained[stack] = repeated
            self.heads[stack, number] = call.n_head
            difference = disagreement(call, number, self.blockwise)
            if difference is not None:
                unexplained[stack] = difference

        with observing(self.model, compare), as_model_error(self.checkpoint):
            default = main_output(run(self.model, batch.first(FEW)))
        runs = stacks_that_run(self.model.config, picture=False, decodes=batch.target is not None)
        for reason in why_eager(self.checkpoint.name, runs, unexplained, self.n_layer).values():
            self.why_eager = reason
        if self.weigh is not None:
            if self.why_eager is not None:
                raise no_values(self.why_eager)
            few = batch.first(FEW)
            with as_model_error(self.checkpoint):
                self.norms = ValueNorms(self.checkpoint.name, self.model, lambda: run(self.model, few))
        if self.why_eager is not None:
            self.model = load_eager(self.checkpoint, self.model, instead=True)
            disable_cache(self.model)
            accumulator = self.measure(batch.first(FEW))
            self.heads = accumulator.heads
            self.n_layer = {stack: n_layer for stack, (n_layer, _) in accumulator.layers.items()}
            eager = main_output(run(self.model, batch.first(FEW)))
            self.eager_notice = notice_of_outputs(self.checkpoint.name, default, eager)
        else:
            some = batch.first(SOME)
            self.eager_notice = notice_of_masks(
                self.checkpoint.name, self.model, lambda: run(self.model, some)
            )

    def _attend(
        self, batch: TextBatch, accumulator: Accumulator, inputs: AttentionInputs
    ) -> torch.Tensor | None:
        """Compute one layer's attention and measure it; return None to call the model's own instead."""
        stack = stack_of(inputs.path, self.model.config, cross=inputs.cross)
        n_batch, n_head, n_Q, _ = inputs.query.shape
        place = layer_of(self.model, stack, inputs.path, accumulator.heads)
        if not self._select(accumulator, stack, *place, n_head):
            return None if is_fused(self.model, inputs) else self.blockwise.attend(inputs, discard)
        sizes = (n_batch, n_Q, inputs.key.shape[-2])
        query_side, key_side = self._sides(batch, stack, sizes, inputs.query.device)
        rows = self._rows(stack, query_side, key_side, inputs)
        collected = self.blockwise.attend(inputs, rows.add)
        if self.norms is not None:
            self.norms.expect(inputs.path, collected)
        self._check_finite(collected, place[0])
        self._add(accumulator, (stack, place[0]), rows)
        return collected

    def _select(
        self, accumulator: Accumulator, stack: str, number: int, n_layer: int, n_head: int
    ) -> bool:
        """Record that a layer has attention, and return whether it is selected."""
        accumulator.layers[stack] = (n_layer, max(n_head, accumulator.layers.get(stack, (0, 0))[1]))
        accumulator.heads[stack, number] = n_head
        return self.stack in (None, stack) and (self.layers is None or number in self.layers)

    def _sides(
        self, batch: TextBatch, stack: str, sizes: tuple[int, int, int], device: torch.device
    ) -> tuple[AxisTokens, AxisTokens]:
        """Return the tokens of a layer's queries and keys, on its device."""
        query_side, key_side = batch.source, batch.source
        if stack in ("decoder", "cross") and batch.target is not None:
            query_side = batch.target
            key_side = batch.source if stack == "cross" else batch.target
        known = (*query_side.ids.shape, key_side.ids.shape[1])
        if sizes != known:
            raise ModelError(
                f"{self.checkpoint.name} attends from {sizes[0]} × {sizes[1]} queries to"
                f" {sizes[2]} keys, but there are {known[0]} × {known[1]} and {known[2]} tokens:"
                " attnscope measures attention only among all tokens."
            )
        return query_side.to(device), key_side.to(device)

    def _rows(
        self,
        stack: str,
        query_side: AxisTokens,
        key_side: AxisTokens,
        inputs: AttentionInputs | None = None,
    ) -> WeightRows:
        """Return empty sums for the metrics of a stack.

        Layers with the same mask share the counts of visible keys, computed once in a batch.
        """
        metrics = self.of_stack(stack).values()
        positions = [metric.position for metric in metrics if metric.position is not None]
        pairs = [metric.pair for metric in metrics if metric.pair is not None]
        key = like = mask = None
        if inputs is not None:
            mask = inputs.mask
            place = None if mask is None else (mask.data_ptr(), mask.shape, mask.stride())
            key = (stack, inputs.causal, place, query_side.ids.device)
            like, _ = self._known.get(key, (None, None))
        rows = WeightRows(
            *(query_side, key_side, positions, pairs, like, self.store),
            without_sink=self.without_sink,
            norms=None if inputs is None or self.norms is None else self.norms.of(inputs),
        )
        if key is not None and like is None:
            self._known[key] = rows, mask  # while the mask is kept, no other one has its address
        return rows

    def _add(self, accumulator: Accumulator, key: Key, rows: WeightRows) -> None:
        """Sum up the metrics of a layer's queries."""
        import torch

        self._check_finite(rows.entropy, key[1])
        counts = (
            rows.query_side.real if self.special else rows.query_side.real & ~rows.query_side.special
        )
        precise = torch.float32 if rows.entropy.device.type == "mps" else torch.float64
        values = rows.entropy.new_empty(*rows.entropy.shape, 0)  # no metric is defined for the stack
        if metrics := self.of_stack(key[0]).values():
            values = torch.stack([metric.of(rows) for metric in metrics], dim=-1)
        valid = (
            ~values.isnan() & counts[:, None, :, None] & rows.counts[..., None]
        )  # [n_batch, n_head, n_Q, n_metric]
        totals = values.masked_fill_(~valid, 0).sum(dim=2, dtype=precise)
        n = valid.sum(dim=2, dtype=precise)
        accumulator.add(key, *(each.cpu().double().numpy() for each in (totals, n)))

    def _check_finite(self, computed: torch.Tensor, layer: int) -> None:
        """Raise a ModelError unless a sum of what a layer's attention computed is finite."""
        import torch

        if not bool(computed.sum(dtype=torch.float32).isfinite()):
            raise ModelError(
                f"the attention of {self.checkpoint.name} is not finite in layer {layer}.",
                hint=spelled(dtype="float32") if self.model.dtype == torch.float16 else None,
            )

    def _measure_eager(self, batch: TextBatch, accumulator: Accumulator) -> None:
        """Measure the weights that the model's own eager attention returns."""
        self._check_memory(batch)
        measured: set[str] = set()

        def take(call: AttentionCall) -> None:
            stack = stack_of(call.path, self.model.config, cross=call.cross)
            number, n_layer = layer_of(self.model, stack, call.path, accumulator.heads)
            if call.weights is not None and (stack, number) not in accumulator.heads:
                measured.add(stack)
                sinks = call.sinks is not None
                self._take(batch, accumulator, stack, number, n_layer, call.weights, sinks=sinks)

        with observing(self.model, take), as_model_error(self.checkpoint):
            run(self.model, batch)
        runs = stacks_that_run(self.model.config, picture=False, decodes=batch.target is not None)
        if set(runs) <= measured:
            return
        with as_model_error(self.checkpoint):
            output = run(self.model, batch, output_attentions=True)
        for stack, returned in returned_maps(
            self.checkpoint.name, output, self.model.config, picture=False
        ):
            if stack in measured:
                continue
            measured.add(stack)
            for number, attention in enumerate(returned):
                if attention is not None:
                    self._take(batch, accumulator, stack, number, len(returned), attention)
        check_returned(self.checkpoint.name, self.model, runs, measured)

    def _check_memory(self, batch: TextBatch) -> None:
        """Raise a SizeError if the maps of all heads do not fit into memory."""
        n = batch.longest
        needed = 4 * len(batch.texts) * n * n * sum(self.heads.values())
        if self.memory is not None and needed > self.memory:
            raise SizeError(
                f"{self.why_eager}. Its own eager attention computes whole maps, which take"
                f" {bytes_text(needed)} for {n:,} tokens, more than the limit of"
                f" {bytes_text(self.memory)}.",
                hint=f"a shorter text, or more {spelled('memory')}, if available",
            )

    def _take(
        self,
        batch: TextBatch,
        accumulator: Accumulator,
        stack: str,
        number: int,
        n_layer: int,
        weights: torch.Tensor,
        *,
        sinks: bool = False,
    ) -> None:
        """Measure a whole map of each head: `n_batch n_head n_Q n_K`."""
        from attnscope.attention.blocks import of_weights

        if not self._select(accumulator, stack, number, n_layer, weights.shape[1]):
            return
        n_batch, _, n_Q, n_K = weights.shape
        query_side, key_side = self._sides(batch, stack, (n_batch, n_Q, n_K), weights.device)
        kind = type(self.model).__name__
        check_rows(weights, self.checkpoint.name, kind, number, stack, sinks=sinks, real=query_side.real)
        rows = self._rows(stack, query_side, key_side)
        weights = weights.float()
        rows.add(of_weights(weights.clone() if self.without_sink else weights))
        self._add(accumulator, (stack, number), rows)


def run(model: Any, batch: TextBatch, **options: Any) -> Any:
    """Run a model on a batch, without computing logits where they can be left out."""
    return forward(model, batch.to(model.device), logits=False, **options)
