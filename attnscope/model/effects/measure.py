"""Measure the effects of a model's heads on one prompt."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Any

import torch

from attnscope.base.errors import ModelError, OptionError, SizeError
from attnscope.base.spelling import spelled
from attnscope.base.units import bytes_text
from attnscope.model.effects.baseline import Baseline
from attnscope.model.effects.direct import DirectEffects, NotAdditiveError, direct_effects
from attnscope.model.effects.exact import (
    BlockedKeys,
    Change,
    blocked_at_once,
    blocked_effects,
    changes_of,
    exact_effects,
    mean_output,
    parse_blocks,
    replaced_effects,
    resolution_of,
    rounds,
)
from attnscope.model.effects.head_outputs import AttendingLayer, HeadOutputs
from attnscope.model.effects.metric import Inputs, PredictionMetric
from attnscope.model.effects.options import BLOCKED, DIRECT, FIRST_ORDER, MEAN, PATCHED, ZERO, Kind
from attnscope.model.effects.prompt import MeasuredPrompt, MeasuredRun
from attnscope.model.files.checkpoint import Checkpoint
from attnscope.model.maps.capture import HeadSelection
from attnscope.model.run.layers import check_selected
from attnscope.model.run.load import as_model_error
from attnscope.model.run.memory_plan import needs_of, tokens_text
from attnscope.model.run.tokens import parse_positions

Key = tuple[str, int, int]  #: a head: its stack, its layer and its index
FEW = 8  #: the most tokens of the run that finds the output projections
TOKENS_AT_ONCE = {"cpu": 2048, "cuda": 65536}  #: the tokens of a batch beyond which it gets no faster


@dataclass(frozen=True)
class EffectSelection:
    """The selected columns, heads and positions."""

    columns: list[str] | None  #: the names of the columns; None: all that apply
    heads: HeadSelection
    #: at, block: positions and blocks, as a user writes them
    at: str | None
    block: str | None
    each_position: bool  #: whether each position is changed by itself

    def heads_of(self, layer: AttendingLayer) -> list[int]:
        """Return the selected heads of a layer."""
        return self.heads.heads_of(layer.stack, layer.number, layer.n_head)

    def check(self, model: str, layers: Sequence[AttendingLayer]) -> None:
        """Raise an AttnscopeError if a model has no such stack, layer or head."""
        n_layer = {layer.stack: layer.n_layer for layer in layers}
        n_head = {(layer.stack, layer.number): layer.n_head for layer in layers}
        heads = self.heads
        assert not isinstance(heads.layers, str)
        selected = (heads.stack, heads.layers or [], heads.heads or [])
        check_selected(model, *selected, n_layer=n_layer, n_head=n_head)
        by_position = {"at": self.at, "each_position": self.each_position, "block": self.block}
        name = next((each for each, value in by_position.items() if value), None)
        if name and self.heads.stack is None and len(n_layer) > 1:
            raise OptionError(
                f"{spelled(name)} needs a stack: the positions of {' and '.join(n_layer)} differ.",
                hint=spelled(stack=next(iter(n_layer))),
            )

    def columns_of(self, *, corrupted: bool) -> list[str]:
        """Return the columns to measure, if the model and the metric allow all of them."""
        if self.columns is not None:
            return self.columns
        if self.block is not None:
            return [BLOCKED]
        if corrupted:
            return [PATCHED, FIRST_ORDER]
        return [ZERO, DIRECT, FIRST_ORDER] if self.each_position else [ZERO, MEAN, DIRECT, FIRST_ORDER]


@dataclass
class PromptEffects:
    """The effects of heads on one prompt."""

    #: baseline, corrupted: the metric on the prompt, and on its corrupted text
    baseline: float = 0.0
    corrupted: float | None = None
    #: the part of the prediction that the metric reads, of the prompt itself
    prediction: torch.Tensor = field(default_factory=lambda: torch.empty(0))
    layers: list[AttendingLayer] = field(default_factory=list)
    #: by column and head, the effect at each position that is changed by itself, or at all of them
    #: together; shares are not yet divided
    values: dict[str, dict[Key, list[float | None]]] = field(default_factory=dict)
    places: list[int] = field(default_factory=list)  #: the positions of these
    direct: DirectEffects | None = None
    blocked: float | None = None  #: the change of the metric with all selected heads blocked
    #: by column, what rounding to 16 bits changes; empty if the model has more bits
    resolution: dict[str, float] = field(default_factory=dict)
    notices: list[str] = field(default_factory=list)

    def add(self, other: PromptEffects, sign: int) -> None:
        """Add the effects on another sequence, or subtract them."""
        self.baseline += sign * other.baseline
        if other.corrupted is not None:
            self.corrupted = (self.corrupted or 0.0) + sign * other.corrupted
        if other.blocked is not None:
            self.blocked = (self.blocked or 0.0) + sign * other.blocked
        if sign > 0:
            self.prediction = other.prediction
        self.layers, self.places, self.direct = other.layers, other.places, other.direct
        for column, size in other.resolution.items():
            self.resolution[column] = self.resolution.get(column, 0.0) + size
        self.notices += [each for each in other.notices if each not in self.notices]
        for column, of_heads in other.values.items():
            own = self.values.setdefault(column, {})
            for key, effects in of_heads.items():
                before = own.get(key, [0.0] * len(effects))
                own[key] = [
                    None if a is None or b is None else a + sign * b
                    for a, b in zip(before, effects, strict=True)
                ]


@dataclass(eq=False)
class EffectMeasurer:
    """Measure effects of the selected heads of a model."""

    checkpoint: Checkpoint
    model: Any
    selection: EffectSelection
    memory: int  #: the bytes that a run may take beside the weights
    report: Callable[[int, int], None]  #: called with the number of changes that were measured, of all
    stopped: Callable[[], bool]
    _heads: HeadOutputs | None = field(default=None, init=False)
    #: for each layer, the mean output of its heads over a corpus, `n_head d_V`; None: the mean over the
    #: prompt itself
    means: Mapping[tuple[str, int], torch.Tensor] | None = field(default=None, init=False)

    def measure(self, prompt: MeasuredPrompt) -> PromptEffects:
        """Measure the effects on a prompt."""
        total = PromptEffects()
        for measurement in prompt.measurements:
            total.add(self._measure(prompt, measurement), measurement.sign)
        return total

    def baseline(
        self, measurement: MeasuredRun, inputs: Inputs | None = None, *, with_gradients: bool = False
    ) -> Baseline:
        """Run the model on a sequence, or on other inputs with the same metric."""
        checkpoint, model, metric = self.checkpoint, self.model, measurement.metric
        inputs = measurement.inputs if inputs is None else inputs
        if self._heads is None:
            few = {name: each[:, :FEW] for name, each in inputs.items()}
            with as_model_error(checkpoint):
                self._heads = HeadOutputs(checkpoint, model, lambda **more: model(**few, **more))
            self.selection.check(checkpoint.name, self._heads.layers)
            if self.selection.block is not None and not self._heads.registered:
                raise ModelError(
                    f"{checkpoint.name} does not call attention through transformers' registry, so that"
                    " keys cannot be hidden from its queries: it has no column blocked.",
                    hint=f"{spelled(columns='zero,mean,direct')}, without {spelled('block')}",
                )
        if with_gradients:
            self._check_gradient(inputs, metric)
        return Baseline(checkpoint, model, self._heads, inputs, metric, with_gradients=with_gradients)

    def _measure(self, prompt: MeasuredPrompt, measurement: MeasuredRun) -> PromptEffects:
        """Measure the effects on one sequence."""
        other = measurement.corrupted
        columns = self.selection.columns_of(corrupted=other is not None)
        estimated = FIRST_ORDER in columns and self._has_gradient(prompt)
        clean = self.baseline(measurement, with_gradients=estimated and other is None)
        effects = PromptEffects(clean.value, prediction=clean.prediction, layers=clean.layers)
        corrupted = None
        if other is not None:
            corrupted = self.baseline(measurement, other, with_gradients=estimated)
            effects.corrupted = corrupted.value
        work = self._work(clean, prompt)
        exact = [name for name in columns if name in (ZERO, MEAN, PATCHED, BLOCKED)]
        n_changes = len(exact) * sum(len(changes) for _, changes in work)
        done = 0

        def advance(n: int) -> bool:
            nonlocal done
            done += n
            self.report(done, n_changes)
            return not self.stopped()

        if DIRECT in columns:
            self._add_direct(effects, clean, work)
        if FIRST_ORDER in columns:
            self._add_first_order(effects, clean, corrupted, work)
        for column in exact:
            run = corrupted if column == PATCHED and corrupted is not None else clean
            n_row = self._rows(run, work, blocks=column == BLOCKED)
            if rounds(self.model):
                effects.resolution[column] = resolution_of(run, n_row)
            for index, changes in work:
                if column == BLOCKED:
                    blocks = self._blocks(clean.layers, prompt)
                    measure = partial(blocked_effects, run, index, blocks)
                else:
                    others = self._others(column, clean, index)
                    measure = partial(replaced_effects, run, index, others)
                found = exact_effects(changes, measure, n_row, advance)
                self._keep(effects, column, run.layers[index], changes, found)
                if self.stopped():
                    return effects
        if BLOCKED in columns:
            blocks = self._blocks(clean.layers, prompt)
            heads = {index: [each.head for each in changes] for index, changes in work}
            effects.blocked = blocked_at_once(clean, blocks, heads)
            effects.notices += [] if blocks.notice is None else [blocks.notice]
        return effects

    def _work(self, baseline: Baseline, prompt: MeasuredPrompt) -> list[tuple[int, list[Change]]]:
        """List the layers with selected heads, by index, and the changes in each."""
        selection, work = self.selection, []
        for index, layer in enumerate(baseline.layers):
            heads = selection.heads_of(layer)
            if not heads:
                continue
            tokens = prompt.tokens_of(layer.stack)
            at = None if selection.at is None else parse_positions(selection.at, tokens, "at")
            n_position = len(baseline.outputs[index])
            if len(prompt.measurements) > 1:  # what follows differs between the answers
                n_position = min(n_position, prompt.n_shared)
            work.append((index, changes_of(heads, at, selection.each_position, n_position)))
        return work

    def _others(self, column: str, clean: Baseline, index: int) -> torch.Tensor:
        """Return the outputs that replace those of a layer's heads, `n_Q n_head d_V`."""
        own, layer = clean.outputs[index], clean.layers[index]
        if column == ZERO:
            return torch.zeros_like(own)
        if column == PATCHED:
            return own
        if self.means is None:
            return mean_output(own)
        return self.means[layer.stack, layer.number].expand_as(own)

    def _add_direct(
        self, effects: PromptEffects, clean: Baseline, work: Sequence[tuple[int, list[Change]]]
    ) -> None:
        """Add direct effects; if they are undefined, raise an error or say why."""
        try:
            effects.direct = direct_effects(self.checkpoint, self.model, clean)
        except NotAdditiveError as error:
            if self.selection.columns is not None:
                raise ModelError(
                    f"{self.checkpoint.name} has no direct effects: {error}.",
                    hint=spelled(columns="zero,mean"),
                ) from error
            effects.notices.append(f"there are no direct effects: {error}.")
            return
        for index, changes in work:
            own = effects.direct.heads[index]
            self._keep(effects, DIRECT, clean.layers[index], changes, _sums(own, changes))

    def _has_gradient(self, prompt: MeasuredPrompt) -> bool:
        """Check that a metric has a gradient that is not 0 everywhere."""
        if prompt.kind is not Kind.DISTANCE:
            return True
        if self.selection.columns is not None:
            raise OptionError(
                "first order is a gradient, and that of a distance from the same embedding is 0.",
                hint=f"{spelled(answer='another text')}; or {spelled(columns='zero,mean')}",
            )
        return False

    def _add_first_order(
        self,
        effects: PromptEffects,
        clean: Baseline,
        corrupted: Baseline | None,
        work: Sequence[tuple[int, list[Change]]],
    ) -> None:
        """Add estimates of all heads from one gradient: attribution patching.

        Source: Nanda (2023), "Attribution Patching"; Kramár et al. (2024), "AtP*: An efficient and
        scalable method for localizing LLM behaviour to components", equation 4
        """
        run = clean if corrupted is None else corrupted
        if not run.gradients:
            effects.notices.append(
                "there is no first order: the gradient of a distance from the same embedding is 0."
            )
            return
        for index, changes in work:
            own = run.outputs[index]
            others = torch.zeros_like(own) if corrupted is None else clean.outputs[index]
            precise = torch.promote_types(own.dtype, torch.float32)
            change = others.to(precise) - own.to(precise)
            changed = (change * run.gradients[index].to(precise)).sum(dim=-1)  # [n_Q, n_head]
            self._keep(effects, FIRST_ORDER, run.layers[index], changes, _sums(changed, changes))

    def _blocks(self, layers: Sequence[AttendingLayer], prompt: MeasuredPrompt) -> BlockedKeys:
        """Return the blocked pairs of queries and keys."""
        stack = self.selection.heads.stack or layers[0].stack
        queries = prompt.tokens_of(stack)
        keys = prompt.source if stack == "cross" else queries
        return BlockedKeys(parse_blocks(self.selection.block or "", keys, queries))

    def _keep(
        self,
        effects: PromptEffects,
        column: str,
        layer: AttendingLayer,
        changes: Sequence[Change],
        found: Sequence[float | None],
    ) -> None:
        """Keep the effects of a layer's changes."""
        of_heads = effects.values.setdefault(column, {})
        places: dict[int, list[int]] = {}
        for change, effect in zip(changes, found, strict=True):
            key = (layer.stack, layer.number, change.head)
            of_heads.setdefault(key, []).append(effect)
            places.setdefault(change.head, []).extend(change.positions or ())
        if self.selection.each_position:
            effects.places = next(iter(places.values()))

    # Memory.

    def _rows(self, run: Baseline, work: Sequence[tuple[int, list[Change]]], *, blocks: bool) -> int:
        """Return how many sequences fit into a batch."""
        n_token, row = self._bytes_of_a_row(run.inputs, run.metric)
        if blocks:
            n_head = max(layer.n_head for layer in run.layers)
            row += 3 * self.model.dtype.itemsize * n_head * n_token**2
        if run.prefix is not None and any(
            run.first_computed(change.positions) for _, changes in work for change in changes
        ):
            row += 2 * run.prefix.n_bytes
        kept = run.states.n_bytes + sum(each.nbytes for each in run.outputs)
        fits = (self.memory - kept) // row
        if fits < 1:
            raise SizeError(
                f"{self.checkpoint.name} needs {bytes_text(row + kept)} for {tokens_text(1, n_token)}"
                f" besides its weights, but its limit is {bytes_text(self.memory)}.",
                hint=f"a shorter text; or more {spelled('memory')}, if available",
            )
        most = TOKENS_AT_ONCE["cuda" if self.model.device.type == "cuda" else "cpu"]
        return int(max(1, min(fits, most // n_token)))

    def _bytes_of_a_row(self, inputs: Inputs, metric: PredictionMetric) -> tuple[int, int]:
        """Return the number of tokens of a sequence, and the bytes that a run of it takes."""
        config, itemsize = self.model.config, self.model.dtype.itemsize
        n_token = max(each.shape[1] for each in inputs.values() if each.dim() > 1)
        needs = needs_of(config, itemsize, 1, n_token)
        n_logit = len(metric.positions or [0]) * (config.get_text_config().vocab_size or 0)
        row = needs.activations + needs.masks + 4 * 4 * n_logit
        if config._attn_implementation == "eager":
            n_head = 1 if self._heads is None else max(each.n_head for each in self._heads.layers)
            row += 3 * itemsize * n_head * n_token**2
        return n_token, row

    def _check_gradient(self, inputs: Inputs, metric: PredictionMetric) -> None:
        """Raise a SizeError unless the activations of all layers fit into memory."""
        assert self._heads is not None
        n_token, row = self._bytes_of_a_row(inputs, metric)
        needed = 2 * row * len(self._heads.layers)
        if needed > self.memory:
            raise SizeError(
                f"the gradient of {self.checkpoint.name} takes about {bytes_text(needed)} for"
                f" {tokens_text(1, n_token)}, but the limit is {bytes_text(self.memory)}.",
                hint=f"{spelled(columns='zero')}, which takes less; or a shorter text, or a"
                f" higher {spelled('memory')}",
            )


def _sums(of_positions: torch.Tensor, changes: Sequence[Change]) -> list[float]:
    """Return the sum over the positions of each change of a number at each position, `n_Q n_head`."""
    table = of_positions.double().cpu()
    return [
        float(table[slice(None) if each.positions is None else list(each.positions), each.head].sum())
        for each in changes
    ]
