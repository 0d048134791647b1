"""The options of measuring heads, which `attnscope heads` and `measure_heads` share."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from attnscope.base.errors import OptionError, warn_unused
from attnscope.base.options import option, refuse
from attnscope.base.process.launch import launched
from attnscope.base.spelling import spelled
from attnscope.model.files.indices import Indices
from attnscope.model.heads.metrics import METRICS
from attnscope.model.run.options import (
    STACK,
    OrderOptions,
    StackName,
    Weigh,
    device_option,
    dtype_option,
    heads_option,
    ids_option,
    layers_option,
    memory_option,
    tokens_option,
    truncate_option,
)

if TYPE_CHECKING:
    from attnscope.model.heads.selection import Selection

Needles = str | Path | Iterable[Mapping[str, Any]]

MAX_LENGTH = 4096
"""The default number of tokens to which a text of a corpus is truncated."""


@dataclass(frozen=True)
class TextOptions:
    """The inputs of the model."""

    PANEL = "Input"

    texts: Any = option(
        "Run the model on this text.", "--text", metavar="TEXT", common=True, type=str | None
    )
    file: str | Path | None = option(
        "Use the content of a file as the text, of any length.",
        metavar="FILE",
        common=True,
        type=Path | None,
    )
    ids: str | Sequence[int] | None = ids_option()
    tokens: str | Sequence[str] | None = tokens_option()
    corpus: str | Path | None = option(
        "Many texts: .txt (one per line), .jsonl (one object per line), also with .gz; - is stdin.",
        metavar="FILE",
        common=True,
        type=str | None,
    )
    field: str | None = option(
        "The field of a .jsonl object with the text.", metavar="NAME", shown="text"
    )
    target: str | None = option(
        "The decoder's text, for an encoder-decoder model.", metavar="TEXT", common=True
    )
    target_field: str | None = option(
        "The field of a .jsonl object with the decoder's text.", metavar="NAME"
    )
    needle: Needles | None = option(
        'Which heads copy a needle into the answer; .jsonl, {"text": …, "needle": …} per line.',
        metavar="FILE",
        common=True,
        type=Path | None,
    )
    generate: int | None = option(
        "With {needle}, let the model write up to N tokens.", metavar="N", min=1, shown="50"
    )
    max_length: int | None = option(
        "Truncate longer texts to N tokens.",
        metavar="N",
        min=1,
        shown="4096 for a corpus, or the model's limit",
    )
    truncate: bool = truncate_option()
    special: bool = option(
        "Count special tokens such as [CLS] and [SEP] as queries, or not.",
        "--special/--no-special",
        default=True,
    )

    @property
    def name(self) -> str:
        """The name of a single text in messages."""
        if self.file is not None:
            return spelled("file", self.file)
        return next(
            (spelled(name) for name in ("ids", "tokens") if getattr(self, name) is not None),
            spelled("text"),
        )

    @property
    def has_ids(self) -> bool:
        """Whether the input is tokens or token ids instead of a text."""
        return self.ids is not None or self.tokens is not None

    @property
    def has_corpus(self) -> bool:
        """Whether the input is a corpus."""
        return self.corpus is not None or not isinstance(self.texts, str | None)

    @property
    def longest(self) -> int | None:
        """The most tokens of a text; None: the model's limit."""
        return MAX_LENGTH if self.max_length is None and self.has_corpus else self.max_length


@dataclass(frozen=True)
class MetricOptions:
    """The metrics to measure."""

    PANEL = "View"

    without_sink: bool = option(
        "Ignore the weights of the first token and special tokens, and normalize the others.",
        default=False,
        common=True,
    )
    weigh: Weigh | None = option(
        "value: multiply each weight by the norm ‖v_j W_O‖ of its value, and normalize the products.",
        metavar="value",
        common=True,
    )
    metrics: str | Sequence[str] | None = option(
        f"Measure only some; there are {', '.join(METRICS)}.",
        metavar="NAME,…",
        shown="all",
        common=True,
        values="metrics",
        type=str | None,
    )


@dataclass(frozen=True)
class MeasuredHeads(OrderOptions, MetricOptions):
    """The metrics, the heads to measure, and their order."""

    stack: StackName | None = option(STACK, shown="all that run", metavar="STACK")
    layers: Indices = layers_option()
    heads: Indices = heads_option()


@dataclass(frozen=True)
class MeasurementRun:
    """The device, dtype and memory of a run."""

    PANEL = "Run"

    dtype: str | None = dtype_option()
    device: str = device_option(" Under torchrun, cuda is one GPU per process.")
    device_map: str | None = option(
        "Split the model across all devices, with accelerate.", metavar="auto"
    )
    memory: str | int | None = memory_option()
    batch_tokens: int | None = option(
        "Tokens of a corpus in one batch.",
        metavar="N",
        min=1,
        shown="4096; 16384 on a GPU",
    )
    checkpoint: str | Path | None = option(
        "Save the progress of a run over a corpus; resume from this file if it exists.",
        metavar="FILE.npz",
        common=True,
        type=Path | None,
    )
    tokenizer: Any = option("The tokenizer of a loaded model.", python_only=True)

    @property
    def file(self) -> Path | None:
        """The file of the run's progress."""
        return None if self.checkpoint is None else Path(self.checkpoint)


def check_options(inputs: TextOptions, run: MeasurementRun, order: OrderOptions) -> None:
    """Raise an OptionError for options that contradict each other; warn of those without effect."""
    for fails, message, hint in _conflicts(inputs, run):
        if fails:
            raise OptionError(message, hint=hint)
    no_corpus = not inputs.has_corpus
    warn_unused(
        [
            (inputs.field is not None and no_corpus, "field", f"there is no {spelled('corpus')}"),
            (
                run.batch_tokens is not None and no_corpus,
                "batch_tokens",
                f"there is no {spelled('corpus')}",
            ),
            (
                inputs.truncate and not no_corpus,
                "truncate",
                "the texts of a corpus are always truncated",
            ),
            (order.reverse and order.sort is None, "reverse", f"there is no {spelled('sort')}"),
        ]
    )


def check_needle_options(inputs: TextOptions, run: MeasurementRun, selection: Selection) -> None:
    """Raise an OptionError for options that are not for retrieval scores, which need a written text."""
    of_rows = {
        "target": inputs.target,
        "field": inputs.field,
        "max_length": inputs.max_length,
        "truncate": inputs.truncate,
        "without_sink": selection.without_sink,
        "weigh": selection.weigh,
        "memory": run.memory,
        "batch_tokens": run.batch_tokens,
    }
    why = f"does not go with {spelled('needle')}, which measures the rows that wrote an answer"
    refuse(of_rows, why)
    if not inputs.special:
        raise OptionError(f"{spelled(special=False)} {why}.")
    if launched():
        raise OptionError(
            f"torchrun divides a corpus among processes, but {spelled('needle')} is run by one."
        )


def _conflicts(inputs: TextOptions, run: MeasurementRun) -> Iterator[tuple[object, str, str | None]]:
    """Yield for each contradiction whether it holds, the error, and a hint."""
    sources = {
        "text": inputs.texts,
        "file": inputs.file,
        "ids": inputs.ids,
        "tokens": inputs.tokens,
        "corpus": inputs.corpus,
        "needle": inputs.needle,
    }
    read = [name for name, value in sources.items() if value is not None]
    readable = (
        f"{spelled(text='…')}, {spelled(file='FILE')}, {spelled(corpus='FILE')} or"
        f" {spelled(needle='FILE')}"
    )
    yield not read, "there is no input.", readable
    message = f"{' and '.join(map(spelled, read))} cannot be combined: give one input."
    yield len(read) > 1, message, readable
    of_corpus = {"target_field": inputs.target_field, "checkpoint": run.checkpoint}
    for option_name, value in of_corpus.items():
        message = f"{spelled(option_name)} needs a corpus."
        yield (
            value is not None and not inputs.has_corpus,
            message,
            spelled(**{"corpus": "FILE", option_name: value}),
        )
    yield (
        inputs.generate is not None and inputs.needle is None,
        f"{spelled('generate')} needs a text with a needle.",
        spelled(needle="FILE", generate=inputs.generate),
    )
    message = f"{spelled('target')} goes with a single text, and a corpus has many."
    yield inputs.target is not None and inputs.has_corpus, message, spelled(target_field="NAME")
    message = f"{spelled('max_length')} truncates a single text only with {spelled('truncate')}."
    cuts = inputs.has_corpus or inputs.truncate
    yield (
        inputs.max_length is not None and not cuts,
        message,
        spelled(truncate=True, max_length=inputs.max_length),
    )
    message = f"{spelled('device')} and {spelled('device_map')} both set where the model runs."
    yield run.device_map and run.device != "cpu", message, "one of the two"
    message = f"{spelled('device', 'meta')} computes no values, and metrics need values."
    yield run.device.startswith("meta"), message, spelled(device="cpu")
