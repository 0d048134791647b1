"""The columns, metrics and options of `attnscope effects`, which the command and the function share."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum
from pathlib import Path
from typing import Any

from attnscope.base.options import option
from attnscope.model.files.indices import Indices
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

Prompts = str | Iterable[str | Mapping[str, Any]]
"""A text; or several prompts, as the lines of a corpus."""

ZERO, MEAN, DIRECT, FIRST_ORDER = "zero", "mean", "direct", "first order"
PATCHED, BLOCKED = "patched", "blocked"

COLUMNS = {
    ZERO: "the metric's change when the head's output before W_O is 0",
    MEAN: "the metric's change when that output is its mean over positions",
    DIRECT: "what the head adds to the logit through the residual stream alone, norms' scales frozen",
    FIRST_ORDER: "estimate of zero, −z·∂metric/∂z: misses saturated softmax and what cancels",
    PATCHED: "share of the difference between both texts that the head's clean output restores",
    BLOCKED: "the metric's change when the head's queries may not read the blocked keys",
}
"""The columns, in order, with their meanings."""

FIRST_ORDER_PATCHED = (
    "estimate of patched, (clean z − corrupted z)·∂metric/∂z on the corrupted text, as a share"
)
"""The meaning of `first order` where there is a corrupted text."""

STRONGEST = "; one position at a time, of which this is the strongest"
"""What is added to the meaning of a column whose positions are measured by themselves."""

PATCHED_OF_MANY = "share of the mean difference between both texts that the head's clean output restores"
MEAN_OF_MANY = "the metric's change when that output is its mean over the positions of all prompts"
"""The meanings of `patched` and `mean` where there are several prompts."""


PREDICTION = "Prediction"
"""The heading of the options of the prediction in the help."""


OF_OUTPUTS = "is for the outputs of heads, and {block} for what they read"
"""Why an option excludes `block`."""


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
class PromptText:
    """The text that the model reads."""

    PANEL = "Input"

    text: Prompts | None = option(
        "Run the model on this text.", metavar="TEXT", common=True, type=str | None
    )


@dataclass(frozen=True)
class PromptOptions:
    """The prediction that is measured, and other inputs of the model than a text."""

    PANEL = "Input"

    answer: str | int | Sequence[int] | None = option(
        "The answer whose logit is measured, with its leading space: ' Mary'; or a class; or another"
        " text, for a model without a prediction head.",
        metavar="TEXT",
        common=True,
        shown="the loss of the text",
        type=str | None,
        panel=PREDICTION,
    )
    against: str | int | Sequence[int] | None = option(
        "Another answer, whose logit is subtracted.",
        metavar="TEXT",
        common=True,
        type=str | None,
        panel=PREDICTION,
    )
    metric: str | None = option(
        f"What is measured: {', '.join(Kind)}.",
        metavar="NAME",
        shown="logit; log-probability of several tokens",
        values=tuple(Kind),
        panel=PREDICTION,
    )
    position: str | int | None = option(
        "The position whose prediction is measured.",
        metavar="N",
        shown="the last one, or the masked tokens",
        type=str | None,
        panel=PREDICTION,
    )
    file: str | Path | None = option(
        "Use the content of a file as the text.", metavar="FILE", common=True, type=Path | None
    )
    corpus: str | Path | None = option(
        "A file of prompts: .jsonl with text, answer, against, corrupt, target; - is stdin.",
        metavar="FILE",
        common=True,
        type=str | None,
    )
    ids: str | Sequence[int] | None = ids_option()
    tokens: str | Sequence[str] | None = tokens_option()
    target: str | None = option(
        "The decoder's text, for an encoder-decoder model; an answer follows it.", metavar="TEXT"
    )
    corrupt: str | Sequence[int] | None = option(
        "A text of as many tokens: patch each head of it with its output on the first text.",
        metavar="TEXT",
        common=True,
        type=str | None,
    )
    truncate: bool = truncate_option()


@dataclass(frozen=True)
class EffectOptions:
    """What is done to which heads, and how they are shown."""

    PANEL = "View"

    columns: str | Sequence[str] | None = option(
        f"Measure only these: {', '.join(COLUMNS)}.",
        metavar="NAME,…",
        shown="all that apply",
        common=True,
        values=tuple(COLUMNS),
        type=str | None,
    )
    at: str | int | Sequence[int] | None = option(
        "Positions to change a head's output at: last, 3, 0-3, or a token.",
        excludes={"block": "{at} " + OF_OUTPUTS},
        metavar="N,…",
        shown="all",
        common=True,
        type=str | None,
    )
    each_position: bool = option(
        "Measure each position of a head's output by itself.",
        default=False,
        common=True,
        excludes={"block": "{each_position} " + OF_OUTPUTS},
    )
    block: str | None = option(
        "Queries that may not read these keys: '0-3>last'; several with ;.",
        metavar="KEYS>QUERIES",
        common=True,
    )

    sort: str | None = option(
        "Rank the heads by a column, the strongest first.",
        metavar="NAME",
        common=True,
        values=tuple(COLUMNS),
    )
    reverse: bool = option("Rank the weakest first.", default=False)
    top: int | None = option(
        "Print only the first K heads; without {sort}, by the first column.",
        metavar="K",
        min=1,
        common=True,
    )

    stack: str | None = option(STACK, shown="all that run", metavar="STACK", type=StackName | None)
    layers: Indices = layers_option("--layers")
    heads: Indices = heads_option("--heads")


@dataclass(frozen=True)
class EffectRun:
    """The device, dtype and memory of a run."""

    PANEL = "Run"

    dtype: str | None = dtype_option(shown="as stored, but float32 instead of 16 bits")
    device: str = device_option()
    memory: str | int | None = memory_option()
