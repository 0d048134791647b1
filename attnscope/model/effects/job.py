"""Measure effects on one prompt or several: load the model, read the prompts, and measure each."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any

import torch

from attnscope.base.errors import AttnscopeError, ModelError, OptionError
from attnscope.base.process import interrupt
from attnscope.base.process.progress import stage
from attnscope.base.spelling import in_fields, spelled
from attnscope.model.effects.exact import rounds
from attnscope.model.effects.measure import EffectMeasurer, EffectSelection, PromptEffects
from attnscope.model.effects.options import MEAN, Kind, PromptOptions
from attnscope.model.effects.prompt import (
    FIELDS,
    MeasuredPrompt,
    PromptReader,
    Request,
    read_prompts,
)
from attnscope.model.effects.result import HeadEffects
from attnscope.model.effects.table import effects_table
from attnscope.model.heads.result import IN_A_PAGE
from attnscope.model.maps.collect import bytes_of_maps, collect_maps, norms_of_values
from attnscope.model.run.forward import give_target
from attnscope.model.run.load import disable_cache, load_tokenizer, narrow_dtype, tokenizer_of
from attnscope.model.run.open import OpenedModel
from attnscope.model.run.options import ReadOptions
from attnscope.model.run.read_inputs import read_ids, read_inputs
from attnscope.model.run.tokenize import Reading, check_reads, read_text

SOURCES = ("text", "file", "ids", "tokens")
"""The inputs of a model, of which a prompt has one."""


class EffectJob:
    """Measure effects on one prompt or several."""

    def __init__(
        self, opened: OpenedModel, text: str | None, options: PromptOptions, selection: EffectSelection
    ) -> None:
        self.opened, self.checkpoint, self.progress = opened, opened.checkpoint, opened.progress
        self.text, self.options, self.selection = text, options, selection
        self._interrupted = False
        self._base, self._part = 0.0, 1.0  # what is done, and what the prompt in work is of all
        self.reading: Reading | None = None
        self.is_corpus = False

    @torch.inference_mode(mode=False)
    def table(self, prompts: Sequence[str | Mapping[str, Any]] | None) -> HeadEffects:
        """Measure the effects, and return their table."""
        options, notices = self.options, []
        source = None if options.corpus is None else str(options.corpus)
        self.is_corpus = prompts is not None or source is not None
        if self.is_corpus:
            named = read_prompts(source if prompts is None else prompts)  # type: ignore[arg-type]
        else:
            named = [(spelled("text"), {"text": self.text, **vars(options)})]
        with self.opened.loading():
            notices += self._load(of_ids=all(fields.get("ids") is not None for _, fields in named))
        with stage(self.progress, f"reading {self.checkpoint.name}'s prompts …"):
            read = [self._prompt(*each) for each in named]
        _check_alike([name for name, _ in named], read)
        measurer = EffectMeasurer(
            self.checkpoint,
            self.model,
            self.selection,
            self.opened.budget,
            self._report,
            lambda: self._interrupted,
        )
        found: list[PromptEffects] = []
        try:
            with interrupt.noted(self._interrupt):
                corrupted = read[0].measurements[0].corrupted is not None
                if self.is_corpus and MEAN in self.selection.columns_of(corrupted=corrupted):
                    measurer.means = _means(measurer, read)
                for number, prompt in enumerate(read):
                    self._base, self._part = number / len(read), 1 / len(read)
                    measured = measurer.measure(prompt)
                    if found and self._interrupted:
                        break  # an unfinished prompt would weigh less in some heads
                    found.append(measured)
        finally:
            self.progress(None)
        table = effects_table(self.checkpoint.name, read, found, self.selection)
        table.partial = self._interrupted
        table.dtype = rounds(self.model) or str(self.model.dtype).removeprefix("torch.")
        table.notices = list(dict.fromkeys([*notices, *table.notices]))
        if len(read) == 1:
            table.top_answers = self.reader.top_of(read[0], found[0].prediction)
        return table

    def _interrupt(self) -> None:
        self._interrupted = True

    def _report(self, done: int, n_changes: int) -> None:
        share = self._base + self._part * done / max(n_changes, 1)
        self.progress(f"running {self.checkpoint.name} without a head …", min(share, 1.0))

    def _load(self, *, of_ids: bool) -> list[str]:
        """Load the model and its tokenizer, without which a model may read ids; return notices."""
        opened, notices = self.opened, []
        check_reads(self.checkpoint, opened.config, "text")
        opened.check_device()
        tokenizer = (tokenizer_of if of_ids else load_tokenizer)(self.checkpoint)
        stored = narrow_dtype(self.checkpoint, opened.config) if opened.dtype is None else None
        if stored is not None:
            opened.dtype = "float32"
            notices.append(
                f"the weights are stored in {stored}, and the model ran in float32: effects are"
                f" differences that {stored} would round away; {spelled('dtype', stored)} runs it as"
                " stored."
            )
        opened.check_weights_fit()
        self.model = opened.load()
        disable_cache(self.model)
        self.reader = PromptReader(self.checkpoint, self.model, tokenizer)
        return notices

    def _prompt(self, name: str, fields: Mapping[str, Any]) -> MeasuredPrompt:
        """Read one prompt: that of the options, or of a corpus, where errors have its name.

        Raises:
            OptionError: a field is empty, too long, or not for this model.
        """
        if not self.is_corpus:
            name = next(spelled(each) for each in SOURCES if fields[each] is not None)
            return self._read(fields, name)
        with _about_fields(name):
            return self._read(fields, spelled("text"))

    def _read(self, fields: Mapping[str, Any], name: str) -> MeasuredPrompt:
        """Read one prompt from its input, its answers, a decoder's target and a corrupted input."""
        checkpoint, config, device = self.checkpoint, self.model.config, str(self.model.device)
        target, truncate = fields.get("target"), self.options.truncate
        if target is not None and not config.is_encoder_decoder:
            raise OptionError(
                f"{spelled('target')} is for encoder-decoder models, and {checkpoint.name}"
                f" ({config.model_type}) is not one.",
                hint=f"{spelled(answer='…')}, which follows the text",
            )
        sources = {each: fields.get(each) for each in SOURCES}
        inputs = ReadOptions(**sources, target=target, truncate=truncate)
        reading = read_inputs(inputs, checkpoint, config)
        corrupt, corrupted = fields.get("corrupt"), None
        if corrupt is not None:
            by_ids = sources["ids"] is not None or not isinstance(corrupt, str)
            read = read_ids if by_ids else read_text
            corrupted = read(checkpoint, config, corrupt, option="corrupt", truncate=truncate)
            corrupted.to(device)
        reading.to(device)
        self.reading = reading
        answers = {each: fields.get(each) for each in ("answer", "against")}
        request = Request(
            **answers, metric=self.options.metric, position=self.options.position, name=name
        )
        return self.reader.read(reading, request, corrupted)

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
                return [], f"the decoder has no {spelled('target')}"
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
def _about_fields(name: str) -> Iterator[None]:
    """Let errors name a line of a corpus and its fields, where an option would be named otherwise."""
    try:
        with in_fields(FIELDS):
            yield
    except AttnscopeError as error:
        error.say(f"{name}: {error.message}", error.hint)
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
                hint=spelled(metric="log-probability")
                if of_tokens
                else '"answer": "…" in all lines, or in none',
            )
        for field, has, other in (
            ("against", bool(first.against), bool(prompt.against)),
            ("corrupt", *(each.measurements[0].corrupted is not None for each in (first, prompt))),
        ):
            if has != other:
                which = (names[0], name) if has else (name, names[0])
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
