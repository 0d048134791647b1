"""The options of `attnscope effects`, which the command and the function share.

In Python, `text` may be an iterable of objects, and `ids`, `tokens`, `answer`, `at`, `layers`, `heads`
and `columns` lists.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum
from pathlib import Path

from attnscope.base.options import option
from attnscope.model.effects.columns import COLUMNS
from attnscope.model.run.options import (
    STACK,
    StackName,
    device_option,
    dtype_option,
    heads_option,
    ids_option,
    layers_option,
    memory_option,
    tokens_option,
    truncate_option,
)


class Kind(StrEnum):
    """The kinds of metrics."""

    LOGIT = "logit"
    LOG_PROBABILITY = "log-probability"
    LOSS = "loss"
    SIMILARITY = "similarity"
    DISTANCE = "distance"


MEANINGS = {
    Kind.LOGIT: "logit of the answer",
    Kind.LOG_PROBABILITY: "log-probability of the answer, in nats",
    Kind.LOSS: "loss: the mean of −log p of the next token, in nats",
    Kind.SIMILARITY: "cosine of the embedding and that of the answer",
    Kind.DISTANCE: "1 − cosine of the embedding without a head and with all heads",
}
"""What each kind of metric is; if there is another answer, it is the difference between the two."""


@dataclass(frozen=True)
class PromptOptions:
    """The input of the model."""

    PANEL = "Input"

    text: str | None = option("Run the model on this text.", metavar="TEXT", common=True)
    file: Path | None = option("Use the content of a file as the text.", metavar="FILE", common=True)
    corpus: str | None = option(
        "Many prompts: .jsonl with text, answer, against, corrupt, target; - is stdin.",
        metavar="FILE",
        common=True,
    )
    ids: str | None = ids_option()
    tokens: str | None = tokens_option()
    target: str | None = option("The decoder's text, for an encoder-decoder model.", metavar="TEXT")
    corrupt: str | None = option(
        "A text of as many tokens: patch each head of it with its output on the first text.",
        metavar="TEXT",
        common=True,
    )
    truncate: bool = truncate_option()

    @property
    def names(self) -> list[str]:
        """The names of the inputs that are set; more than one is an error."""
        names = ("text", "file", "corpus", "ids", "tokens")
        return [name for name in names if getattr(self, name) is not None]


@dataclass(frozen=True)
class PredictionOptions:
    """The prediction that is measured."""

    PANEL = "Prediction"

    answer: str | None = option(
        "The answer whose logit is measured, with its leading space: ' Mary'; or a class.",
        metavar="TEXT",
        common=True,
        shown="the loss of the text",
    )
    against: str | None = option(
        "Another answer, whose logit is subtracted.", metavar="TEXT", common=True
    )
    metric: str | None = option(
        f"What is measured: {', '.join(Kind)}.",
        metavar="NAME",
        shown="logit; log-probability of several tokens",
        values=tuple(Kind),
    )
    position: str | None = option(
        "The position whose prediction is measured.",
        metavar="N",
        shown="the last one, or the masked tokens",
    )


@dataclass(frozen=True)
class EffectOptions:
    """What is done to each head."""

    PANEL = "View"

    columns: str | None = option(
        f"Measure only these: {', '.join(COLUMNS)}.",
        metavar="NAME,…",
        shown="all that apply",
        common=True,
        values=tuple(COLUMNS),
    )
    at: str | None = option(
        "Change a head's output at these positions only: last, 3, 0-3, or a token.",
        metavar="N,…",
        shown="all",
        common=True,
    )
    each_position: bool = option(
        "Measure each position of a head's output by itself.", default=False, common=True
    )
    block: str | None = option(
        "Queries that may not read these keys: '0-3>last'; several with ;.",
        metavar="KEYS>QUERIES",
        common=True,
    )


@dataclass(frozen=True)
class EffectOrder:
    """The order of heads, and the number that is shown."""

    PANEL = "View"

    sort: str | None = option(
        "Rank the heads by a column, the strongest first.",
        metavar="NAME",
        common=True,
        values=tuple(COLUMNS),
    )
    reverse: bool = option("Rank the weakest first.", default=False)
    top: int | None = option("Print only the first K heads.", metavar="K", min=1, common=True)


@dataclass(frozen=True)
class EffectHeads:
    """The heads to change."""

    PANEL = "View"

    stack: StackName | None = option(STACK, shown="all that run", metavar="STACK")
    layers: str | None = layers_option("--layers")
    heads: str | None = heads_option("--heads")


@dataclass(frozen=True)
class EffectRun:
    """The device, dtype and memory of a run."""

    PANEL = "Run"

    dtype: str | None = dtype_option(shown="as stored, but float32 instead of 16 bits")
    device: str = device_option()
    memory: str | None = memory_option()
