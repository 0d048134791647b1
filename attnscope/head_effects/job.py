"""Measure effects on one prompt or several: load the model, read the prompts, and make a table."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any

import numpy as np
import torch

from attnscope.checkpoints.checkpoint import Checkpoint
from attnscope.errors import ModelError, OptionError
from attnscope.head_effects.columns import (
    COLUMNS,
    FIRST_ORDER,
    FIRST_ORDER_PATCHED,
    MEAN,
    PATCHED,
    ZERO,
)
from attnscope.head_effects.corpus import read_prompts
from attnscope.head_effects.measure import EffectMeasurer, EffectSelection, PromptEffects
from attnscope.head_effects.options import EffectRun, PredictionOptions, PromptOptions
from attnscope.head_effects.prompt import MeasuredPrompt, PromptReader, Request
from attnscope.head_effects.result import DirectSum, HeadEffects
from attnscope.models.decode import give_target
from attnscope.models.heads.result import IN_A_PAGE, HeadRow
from attnscope.models.layers import STACKS
from attnscope.models.load import (
    disable_cache,
    load_config,
    load_model,
    load_tokenizer,
    tokenizer_of,
)
from attnscope.models.maps.collect import bytes_of_maps, collect_maps, norms_of_values
from attnscope.models.options import ReadOptions
from attnscope.models.read_inputs import read_inputs
from attnscope.models.tokenize import Reading, check_reads
from attnscope.models.weights_fit import check_weights_fit
from attnscope.process import interrupt
from attnscope.process.budget import memory_budget
from attnscope.process.devices import check_device
from attnscope.process.progress import Progress, stage, without_garbage_collection


class EffectJob:
    """Measure effects on one prompt or several.

    Args:
        checkpoint: the model's checkpoint.
        inputs, request, selection, run: the options.
        device: the device to run on.
        progress: called with the progress of the work.
    """

    def __init__(
        self,
        checkpoint: Checkpoint,
        inputs: PromptOptions,
        request: PredictionOptions,
        selection: EffectSelection,
        run: EffectRun,
        device: str,
        progress: Progress,
    ) -> None:
        self.checkpoint, self.inputs, self.request = checkpoint, inputs, request
        self.selection, self.run, self.device, self.progress = selection, run, device, progress
        self._interrupted = False
        self.reading: Reading | None = None

    @torch.inference_mode(mode=False)
    def table(self, prompts: Sequence[str | Mapping[str, Any]] | None) -> HeadEffects:
        """Measure the effects, and return their table."""
        several = prompts is not None or self.inputs.corpus is not None
        fields_by_name: list[tuple[str, dict[str, Any]]] = [("--text", {})]
        if several:
            fields_by_name = read_prompts(self.inputs.corpus if prompts is None else prompts)  # type: ignore
        with stage(self.progress, f"loading {self.checkpoint.name} …"), without_garbage_collection():
            model, self.reader = self._load()
        with stage(self.progress, f"reading {self.checkpoint.name}'s prompts …"):
            read = [self._prompt(self.reader, name, fields) for name, fields in fields_by_name]
        _check_alike([name for name, _ in fields_by_name], read)
        measurer = self._measurer(model)
        found: list[PromptEffects] = []
        with self._reported(), interrupt.noted(self._interrupt):
            if several and self._measures_means(read):
                measurer.means = _means(measurer, read)
            for number, prompt in enumerate(read):
                self._base, self._part = number / len(read), 1 / len(read)
                measured = measurer.measure(prompt)
                if found and self._interrupted:
                    break  # an unfinished prompt would weigh less in some heads
                found.append(measured)
        return self._collected(read, found)

    def _measures_means(self, prompts: Sequence[MeasuredPrompt]) -> bool:
        corrupted = any(each.measurements[0].corrupted is not None for each in prompts)
        return MEAN in self.selection.columns_of(corrupted=corrupted)

    def _interrupt(self) -> None:
        self._interrupted = True

    @contextmanager
    def _reported(self) -> Iterator[None]:
        """Report the progress of the runs, and its end."""
        self._base, self._part = 0.0, 1.0
        try:
            yield
        finally:
            self.progress(None)

    def _report(self, done: int, n_changes: int) -> None:
        share = self._base + self._part * done / max(n_changes, 1)
        self.progress(f"running {self.checkpoint.name} without a head …", min(share, 1.0))

    def _load(self) -> tuple[Any, PromptReader]:
        """Load the model and its tokenizer."""
        config = load_config(self.checkpoint)
        check_reads(self.checkpoint, config, "text")
        check_device(self.device)
        has_ids = self.inputs.ids is not None
        tokenizer = (tokenizer_of if has_ids else load_tokenizer)(self.checkpoint)
        check_weights_fit(self.checkpoint, config, self.run.dtype, self.device)
        model = load_model(self.checkpoint, config, dtype=self.run.dtype, device=self.device)
        disable_cache(model)
        return model, PromptReader(self.checkpoint, model, tokenizer)

    def _prompt(self, reader: PromptReader, name: str, fields: Mapping[str, Any]) -> MeasuredPrompt:
        """Read one prompt: the options', or one of a corpus."""
        inputs, request, config = self.inputs, self.request, reader.model.config
        common: dict[str, Any] = {"truncate": inputs.truncate}
        if fields:
            common["target"] = fields.get("target")
            source = {key: fields[key] for key in ("ids", "text") if key in fields}
            answers = {key: fields.get(key) for key in ("answer", "against", "corrupt")}
            answers |= {"metric": request.metric, "position": request.position}
        else:
            common["target"] = inputs.target
            source = {each: getattr(inputs, each) for each in ("text", "file", "ids", "tokens")}
            answers = {each: getattr(request, each) for each in ("answer", "against", "metric")}
            answers |= {"position": request.position, "corrupt": inputs.corrupt}
            name = next(f"--{each}" for each, value in source.items() if value is not None)
        reading = read_inputs(ReadOptions(**source, **common), self.checkpoint, config)
        corrupted, corrupt = None, answers["corrupt"]
        if corrupt is not None:
            by_ids = inputs.ids is not None or "ids" in fields or not isinstance(corrupt, str)
            other: dict[str, Any] = {"ids" if by_ids else "text": corrupt}
            corrupted = read_inputs(ReadOptions(**other, **common), self.checkpoint, config)
            corrupted.to(str(reader.model.device))
        reading.to(str(reader.model.device))
        self.reading = None if fields else reading
        return reader.read(reading, Request(**answers, name=name), corrupted)

    def _measurer(self, model: Any) -> EffectMeasurer:
        """Return a measurer for the model, within the limit of memory."""
        self.model = model
        memory = memory_budget(self.run.memory, str(model.device))
        return EffectMeasurer(
            self.checkpoint, model, self.selection, memory, self._report, lambda: self._interrupted
        )

    def _collected(
        self, prompts: Sequence[MeasuredPrompt], found: Sequence[PromptEffects]
    ) -> HeadEffects:
        """Return the table: means over prompts, with standard errors."""
        first, selection = found[0], self.selection
        corrupted = first.corrupted is not None
        measured = [name for name in COLUMNS if name in first.values]
        layers = sorted(first.layers, key=lambda each: (STACKS.index(each.stack), each.number))
        keys = [
            (layer.stack, layer.number, head) for layer in layers for head in selection.heads_of(layer)
        ]
        arrays = {name: _array(found, name, keys) for name in measured}
        rows = []
        for index, (stack, layer, head) in enumerate(keys):
            totals = {name: _strongest(array[:, index]) for name, array in arrays.items()}
            means = {name: float(each.mean()) for name, each in totals.items()}
            n = len(found)
            errors = {
                name: None if n < 2 else float(each.std(ddof=1) / n**0.5)
                for name, each in totals.items()
            }
            values = {name: None if np.isnan(each) else each for name, each in means.items()}
            rows.append(HeadRow(stack, layer, head, values, errors))
        stacks = {row.stack for row in rows}
        meanings = {name: COLUMNS[name] for name in measured}
        if corrupted and FIRST_ORDER in meanings:
            meanings[FIRST_ORDER] = FIRST_ORDER_PATCHED
        notices = [notice for prompt in prompts for notice in prompt.notices]
        notices += [notice for effects in found for notice in effects.notices]
        prompt = prompts[0]
        table = HeadEffects(
            model=self.checkpoint.name,
            metrics=meanings,
            metric=prompt.meaning,
            baseline=sum(each.baseline for each in found) / len(found),
            layers={
                layer.stack: (
                    layer.n_layer,
                    max(each.n_head for each in layers if each.stack == layer.stack),
                )
                for layer in layers
                if layer.stack in stacks
            },
            rows=rows,
            corrupted=_mean([each.corrupted for each in found]),
            prompts=len(found),
            tokens=sum(len(each.source) + len(each.target) for each in prompts[: len(found)]),
            blocked=_mean([each.blocked for each in found]),
            partial=self._interrupted,
            notices=list(dict.fromkeys(notices)),
        )
        if len(prompts) == 1:
            table.answer, table.against, table.sequence = prompt.answer, prompt.against, prompt.source
            table.top_answers = self.reader.top_of(prompt, first.prediction)
        if selection.each_position:
            table.places = first.places
            table.positions = {name: array[0] for name, array in arrays.items()}
        if first.direct is not None and len(found) == 1:
            of_heads = sum(float(each.sum()) for each in first.direct.heads)
            off = first.direct.total - first.direct.value
            table.direct = DirectSum(of_heads, first.direct.parts, first.direct.value, off)
        table.correlation = _correlation(rows, PATCHED if corrupted else ZERO)
        return table

    def maps(self) -> tuple[list[Any], str | None]:
        """Collect the maps of a single text's heads for a page; or explain why there are none.

        Value-weighted maps stand beside them, unless the model's values behind W_O are unknown.
        """
        if self.reading is None:
            return [], "each prompt has its own maps"
        selected = self.selection.heads
        n_weight = 2 * bytes_of_maps(self.model.config, self.reading, selected) // 4
        if n_weight > IN_A_PAGE:
            return [], f"they have {n_weight:,} weights, and a page holds at most {IN_A_PAGE:,}"
        if self.model.config.is_encoder_decoder:
            if not self.reading.labels:
                return [], "the decoder has no --target"
            give_target(self.checkpoint, self.model, self.reading)
        read = (self.checkpoint, self.model, self.reading)
        with stage(self.progress, "collecting maps …"):
            try:
                norms = norms_of_values(*read)
                collected = collect_maps(*read, selected, norms=norms, keep_weights=True)
            except ModelError:
                return collect_maps(*read, selected).stacks, None
        return [*collected.weights, *collected.stacks], None


def _check_alike(names: Sequence[str], prompts: Sequence[MeasuredPrompt]) -> None:
    """Raise an OptionError if prompts have different metrics, of which there is no mean."""
    first = prompts[0]
    for name, prompt in zip(names, prompts, strict=True):
        if prompt.meaning != first.meaning:
            raise OptionError(
                f"{names[0]} has the metric {first.kind}, and {name} {prompt.kind}: {prompt.meaning}.",
                hint="--metric log-probability; and --against in all lines, or in none",
            )
        if (prompt.measurements[0].corrupted is None) != (first.measurements[0].corrupted is None):
            raise OptionError(f"{names[0]} and {name} differ: one has a corrupted text, the other none.")


def _means(
    measurer: EffectMeasurer, prompts: Sequence[MeasuredPrompt]
) -> dict[tuple[str, int], torch.Tensor]:
    """Return the mean output of each layer's heads over all positions of all prompts, `n_head d_V`."""
    sums: dict[tuple[str, int], torch.Tensor] = {}
    counts: dict[tuple[str, int], int] = {}
    for prompt in prompts:
        baseline = measurer.baseline(prompt.measurements[0])
        for layer, output in zip(baseline.layers, baseline.outputs, strict=True):
            key = (layer.stack, layer.number)
            total = output.to(torch.promote_types(output.dtype, torch.float32)).sum(dim=0)
            sums[key] = sums[key] + total if key in sums else total
            counts[key] = counts.get(key, 0) + len(output)
    return {key: total / counts[key] for key, total in sums.items()}


def _array(found: Sequence[PromptEffects], column: str, keys: Sequence[Any]) -> Any:
    """Return the effects of one column, `n_prompt n_head n_position`; shares are divided."""
    arrays = []
    for each in found:
        of_heads = each.values.get(column, {})
        longest = max((len(effects) for effects in of_heads.values()), default=1)
        rows = [of_heads.get(key, [None] * longest) for key in keys]
        array = np.array(rows, dtype=float)
        if each.corrupted is not None and column in (PATCHED, FIRST_ORDER):
            difference = each.baseline - each.corrupted
            array = array / difference if difference else array * np.nan
        arrays.append(array)
    return np.stack(arrays)


def _strongest(effects: np.ndarray) -> np.ndarray:
    """Return the effect at the strongest position, or the only one, of `n_prompt n_position`."""
    known = np.nan_to_num(np.abs(effects), nan=-1.0)
    return np.take_along_axis(effects, known.argmax(axis=-1)[:, None], axis=-1)[:, 0]


def _mean(values: Sequence[float | None]) -> float | None:
    """Return the mean of numbers that all prompts have, or none has."""
    known = [value for value in values if value is not None]
    return sum(known) / len(known) if known else None


def _correlation(rows: Sequence[HeadRow], exact: str) -> float | None:
    """Return Pearson's correlation of the estimates and the exact effects; None: it is undefined."""
    pairs = [(row.values.get(FIRST_ORDER), row.values.get(exact)) for row in rows]
    known = [(a, b) for a, b in pairs if a is not None and b is not None]
    if len(known) < 3:
        return None
    array = np.array(known)
    if not array.std(axis=0).all():
        return None
    return float(np.corrcoef(array.T)[0, 1])
