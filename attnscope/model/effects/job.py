"""Measure effects on one prompt or several: load the model, read the prompts, and make a table."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any

import numpy as np
import torch

from attnscope.base.errors import AttnscopeError, ModelError, OptionError
from attnscope.base.process import interrupt
from attnscope.base.process.progress import stage
from attnscope.model.effects.averages import SHARES, MeasuredColumn
from attnscope.model.effects.columns import (
    COLUMNS,
    FIRST_ORDER,
    FIRST_ORDER_PATCHED,
    MEAN,
    MEAN_OF_MANY,
    PATCHED,
    PATCHED_OF_MANY,
    STRONGEST,
    ZERO,
)
from attnscope.model.effects.exact import rounds
from attnscope.model.effects.measure import EffectMeasurer, EffectSelection, PromptEffects
from attnscope.model.effects.options import Kind, PredictionOptions, PromptOptions
from attnscope.model.effects.prompt import (
    FIELDS,
    MeasuredPrompt,
    PromptReader,
    Request,
    read_prompts,
)
from attnscope.model.effects.result import DirectSum, HeadEffects
from attnscope.model.heads.result import IN_A_PAGE, HeadRow
from attnscope.model.maps.collect import bytes_of_maps, collect_maps, norms_of_values
from attnscope.model.run.decode import give_target
from attnscope.model.run.layers import STACKS
from attnscope.model.run.load import (
    disable_cache,
    load_tokenizer,
    narrow_dtype,
    tokenizer_of,
)
from attnscope.model.run.open import OpenedModel
from attnscope.model.run.options import ReadOptions
from attnscope.model.run.read_inputs import read_inputs
from attnscope.model.run.tokenize import Reading, check_reads


class EffectJob:
    """Measure effects on one prompt or several."""

    def __init__(
        self,
        opened: OpenedModel,
        inputs: PromptOptions,
        request: PredictionOptions,
        selection: EffectSelection,
    ) -> None:
        self.opened, self.checkpoint = opened, opened.checkpoint
        self.inputs, self.request, self.selection = inputs, request, selection
        self.progress = opened.progress
        self._interrupted = False
        self.reading: Reading | None = None
        self.is_corpus = False
        self.notices: list[str] = []

    @torch.inference_mode(mode=False)
    def table(self, prompts: Sequence[str | Mapping[str, Any]] | None) -> HeadEffects:
        """Measure the effects, and return their table."""
        several = self.is_corpus = prompts is not None or self.inputs.corpus is not None
        fields_by_name: list[tuple[str, dict[str, Any]]] = [("--text", {})]
        if several:
            fields_by_name = read_prompts(self.inputs.corpus if prompts is None else prompts)  # type: ignore
        of_ids = self.inputs.ids is not None or (
            several and all("ids" in each for _, each in fields_by_name)
        )
        with self.opened.loading():
            self.reader = self._load(of_ids=of_ids)
        with stage(self.progress, f"reading {self.checkpoint.name}'s prompts …"):
            read = [self._prompt(self.reader, name, fields) for name, fields in fields_by_name]
        _check_alike([name for name, _ in fields_by_name], read)
        measurer = EffectMeasurer(
            self.checkpoint,
            self.model,
            self.selection,
            self.opened.budget,
            self._report,
            lambda: self._interrupted,
        )
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

    def _load(self, *, of_ids: bool) -> PromptReader:
        """Load the model and its tokenizer, without which a model may read ids."""
        opened = self.opened
        check_reads(self.checkpoint, opened.config, "text")
        opened.check_device()
        tokenizer = (tokenizer_of if of_ids else load_tokenizer)(self.checkpoint)
        stored = narrow_dtype(self.checkpoint, opened.config) if opened.dtype is None else None
        if stored is not None:
            opened.dtype = "float32"
            self.notices.append(
                f"the weights are stored in {stored}, and the model ran in float32: effects are"
                f" differences that {stored} would round away; --dtype {stored} runs it as stored."
            )
        opened.check_weights_fit()
        self.model = opened.load()
        disable_cache(self.model)
        return PromptReader(self.checkpoint, self.model, tokenizer)

    def _prompt(self, reader: PromptReader, name: str, fields: Mapping[str, Any]) -> MeasuredPrompt:
        """Read one prompt: the options', or one of a corpus."""
        if not fields:
            source = {each: getattr(self.inputs, each) for each in ("text", "file", "ids", "tokens")}
            answers = {each: getattr(self.request, each) for each in ("answer", "against")}
            more = {"target": self.inputs.target, "corrupt": self.inputs.corrupt}
            name = next(f"--{each}" for each, value in source.items() if value is not None)
            return self._read(reader, source, answers, name=name, **more)
        source = {each: fields.get(each) for each in ("text", "ids")}
        answers = {each: fields.get(each) for each in ("answer", "against")}
        more = {"target": fields.get("target"), "corrupt": fields.get("corrupt")}
        with _about_fields(name):
            return self._read(reader, source, answers, name="--text", **more)

    def _read(
        self,
        reader: PromptReader,
        source: Mapping[str, Any],
        answers: Mapping[str, Any],
        *,
        name: str,
        target: str | None,
        corrupt: Any,
    ) -> MeasuredPrompt:
        """Read one prompt from its input, its answers, a decoder's target and a corrupted input.

        Raises:
            OptionError: one of them is empty, too long, or not for this model.
        """
        config = reader.model.config
        if target is not None and not config.is_encoder_decoder:
            raise OptionError(
                f"--target is for encoder-decoder models, and {self.checkpoint.name}"
                f" ({config.model_type}) is not one.",
                hint='--answer "…", which follows the text',
            )
        common: dict[str, Any] = {"target": target, "truncate": self.inputs.truncate}
        reading = read_inputs(ReadOptions(**source, **common), self.checkpoint, config)
        corrupted = None
        if corrupt is not None:
            by_ids = source.get("ids") is not None or not isinstance(corrupt, str)
            other: dict[str, Any] = {"ids" if by_ids else "text": corrupt}
            with _renamed({"--text": "--corrupt", "--ids": "--corrupt"}):
                corrupted = read_inputs(ReadOptions(**other, **common), self.checkpoint, config)
            corrupted.to(str(reader.model.device))
        reading.to(str(reader.model.device))
        self.reading = reading
        options = {"metric": self.request.metric, "position": self.request.position}
        return reader.read(reading, Request(**answers, **options, name=name), corrupted)

    def _collected(
        self, prompts: Sequence[MeasuredPrompt], found: Sequence[PromptEffects]
    ) -> HeadEffects:
        """Return the table: means over prompts, with standard errors."""
        first, selection = found[0], self.selection
        corrupted = first.corrupted is not None
        layers = sorted(first.layers, key=lambda each: (STACKS.index(each.stack), each.number))
        keys = [
            (layer.stack, layer.number, head) for layer in layers for head in selection.heads_of(layer)
        ]
        spans = np.array([each.baseline - (each.corrupted or 0.0) for each in found])
        columns = {
            name: MeasuredColumn.of(found, name, keys, spans if name in SHARES and corrupted else None)
            for name in COLUMNS
            if name in first.values
        }
        rows = [
            HeadRow(
                *key,
                {name: column.means[index] for name, column in columns.items()},
                {name: column.errors[index] for name, column in columns.items()},
            )
            for index, key in enumerate(keys)
        ]
        stacks = {row.stack for row in rows}
        prompt = prompts[0]
        table = HeadEffects(
            model=self.checkpoint.name,
            metrics=self._meanings(list(columns), corrupted=corrupted, several=len(found) > 1),
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
            dtype=rounds(self.model) or str(self.model.dtype).removeprefix("torch."),
            resolution={name: each.resolution for name, each in columns.items() if each.resolution},
        )
        notices = [notice for each in prompts for notice in each.notices]
        notices += [notice for effects in found for notice in effects.notices]
        if any(column.is_undefined for column in columns.values()):
            notices.append(
                f"shares are undefined: the metric is {table.baseline:.4g} on both texts, so that there"
                " is no difference to restore."
            )
        table.notices = list(dict.fromkeys([*self.notices, *notices]))
        if len(prompts) == 1:
            table.answer, table.against, table.sequence = prompt.answer, prompt.against, prompt.source
            table.top_answers = self.reader.top_of(prompt, first.prediction)
        if selection.each_position:
            table.places = first.places
            table.positions = {name: column.of_first for name, column in columns.items()}
            tokens = prompt.tokens_of(rows[0].stack)
            table.sequence = tokens + (prompt.continued if tokens is prompt.source else [])
        if first.direct is not None and len(found) == 1:
            of_heads = sum(float(each.sum()) for each in first.direct.heads)
            off = first.direct.total - first.direct.value
            direct = first.direct
            table.direct = DirectSum(of_heads, direct.parts, direct.value, off, direct.capped)
        table.correlation = _correlation(table, PATCHED if corrupted else ZERO)
        return table

    def _meanings(self, columns: Sequence[str], *, corrupted: bool, several: bool) -> dict[str, str]:
        """Return the meaning of each column."""
        meanings = {name: COLUMNS[name] for name in columns}
        others = {FIRST_ORDER: FIRST_ORDER_PATCHED} if corrupted else {}
        others |= {PATCHED: PATCHED_OF_MANY, MEAN: MEAN_OF_MANY} if several else {}
        meanings |= {name: meaning for name, meaning in others.items() if name in meanings}
        by_itself = STRONGEST if self.selection.each_position else ""
        return {name: meaning + by_itself for name, meaning in meanings.items()}

    def maps(self) -> tuple[list[Any], str | None]:
        """Collect the maps of a single text's heads for a page; or explain why there are none.

        Value-weighted maps stand beside them, unless the model's values behind W_O are unknown.
        """
        if self.reading is None or self.is_corpus:
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


@contextmanager
def _renamed(names: Mapping[str, str]) -> Iterator[None]:
    """Let errors speak of other names."""
    try:
        yield
    except AttnscopeError as error:
        message, hint = error.message, error.hint
        for old, new in names.items():
            message = re.sub(rf"{old}\b", new, message)
            hint = hint and re.sub(rf"{old}\b", new, hint)
        error.say(message, hint)
        raise


@contextmanager
def _about_fields(name: str) -> Iterator[None]:
    """Let errors name a line of a corpus and its fields, where an option would be named otherwise."""
    fields = "|".join(FIELDS)
    try:
        yield
    except AttnscopeError as error:
        message = re.sub(rf"--({fields})\b", r"\1", error.message)
        error.say(f"{name}: {message}", error.hint and re.sub(rf"--({fields}) ", r'"\1": ', error.hint))
        raise


def _check_alike(names: Sequence[str], prompts: Sequence[MeasuredPrompt]) -> None:
    """Raise an OptionError if prompts have different metrics, of which there is no mean."""
    first = prompts[0]
    for name, prompt in zip(names, prompts, strict=True):
        if prompt.kind != first.kind:
            of_tokens = {prompt.kind, first.kind} == {Kind.LOGIT, Kind.LOG_PROBABILITY}
            raise OptionError(
                f"the metric of {names[0]} is a {first.kind}, and that of {name} a {prompt.kind}: these"
                " have no mean.",
                hint="--metric log-probability"
                if of_tokens
                else '"answer": "…" in all lines, or in none',
            )
        corrupted = [each.measurements[0].corrupted is not None for each in (first, prompt)]
        for field, has in {
            "against": [bool(first.against), bool(prompt.against)],
            "corrupt": corrupted,
        }.items():
            if has[0] != has[1]:
                which = (names[0], name) if has[0] else (name, names[0])
                raise OptionError(
                    f"{which[0]} has {field}, and {which[1]} has not: their effects have no mean.",
                    hint=f'"{field}": "…" in all lines, or in none',
                )


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


def _mean(values: Sequence[float | None]) -> float | None:
    """Return the mean of numbers that all prompts have, or none has."""
    known = [value for value in values if value is not None]
    return sum(known) / len(known) if known else None


def _correlation(table: HeadEffects, exact: str) -> float | None:
    """Return Pearson's correlation of the estimates and the exact effects; None: it is undefined.

    These are of heads, or of positions of heads. Exact effects below the resolution are left out.
    """
    if not {FIRST_ORDER, exact} <= set(table.metrics):
        return None
    if table.positions:
        array = np.stack([table.positions[name].ravel() for name in (FIRST_ORDER, exact)])
    else:
        pairs = [(row.values[FIRST_ORDER], row.values[exact]) for row in table.rows]
        array = np.array(pairs, dtype=float).T
    array = array[
        :, np.isfinite(array).all(axis=0) & (np.abs(array[1]) > table.resolution.get(exact, -1))
    ]
    if array.shape[1] < 3 or not array.std(axis=1).all():
        return None
    return float(np.corrcoef(array)[0, 1])
