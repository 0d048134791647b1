"""Options of `attnscope.answer`: what a model reads and writes, and which rows are shown.

In Python, `messages` and `replay` may be lists and dicts, and `segments` a dict.
"""

from __future__ import annotations

from dataclasses import dataclass, fields
from enum import StrEnum
from pathlib import Path
from typing import Any

from attnscope.base.options import option
from attnscope.model.run.options import STACK, PromptContent, StackName, heads_option, layers_option

TOKENS = 20
"""The number of tokens that a model writes unless `--generate` says otherwise."""


class RowKind(StrEnum):
    """Which rows are shown: those that wrote the tokens of the answer, their own, or those of segments.

    The row of a segment is the mean of its tokens' own rows.
    """

    WRITING = "writing"
    READING = "reading"
    SEGMENTS = "segments"


class By(StrEnum):
    """What weights are summed over."""

    SEGMENT = "segment"


class PoolOf(StrEnum):
    """How the weights of several layers and heads are pooled."""

    MEAN = "mean"
    MAX = "max"


@dataclass(frozen=True)
class AnswerOptions:
    """What a model reads and writes, and how the answer is shown."""

    PANEL = "Answer"

    messages: Path | None = option(
        "A chat: .json with messages of role and content, and tools, documents.",
        metavar="FILE",
        common=True,
    )
    replay: Path | None = option(
        "An answer that vLLM, llama.cpp or another server returned: .json, or a stream.",
        metavar="FILE",
        common=True,
    )
    choice: int | None = option(
        "The choice of --replay, if the server returned several, counted from 0.",
        metavar="N",
        shown="the first",
        min=0,
    )
    audio: Path | None = option(
        "A recording that the model writes down: .wav; with soundfile, other formats, too.",
        metavar="FILE",
    )
    video: list[Path] | None = option("A video, for a model that reads them.", metavar="FILE")
    fps: float | None = option(
        "The frames of each second of a video that are read.", metavar="N", shown="all"
    )
    by: By | None = option(
        "segment: sum the weights over the parts of the prompt.", metavar="segment", common=True
    )
    segments: str | None = option(
        "Parts of the prompt: 'docs=[1],[2]', 'name=/regex/' or 'name=10-250'; several with ;.",
        metavar="NAME=…",
    )
    rows: RowKind | None = option(
        "Rows: writing (of the query before a token), reading (its own), segments (means of these).",
        metavar="NAME",
        shown="writing",
    )
    grid: str | None = option(
        "The grid of patches, for a model that attnscope does not know: 24x24.", metavar="ROWSxCOLUMNS"
    )

    @property
    def are_set(self) -> bool:
        """Whether one of them is set, so that an answer is shown."""
        return any(getattr(self, each.name) is not None for each in fields(self))


@dataclass(frozen=True)
class AnswerPrompt(PromptContent):
    """What a model answers, and how much it writes."""

    text: str | None = option("The prompt; with --image or --video, a question about it.", common=True)
    image: list[Path] | None = option(
        "An image, for a model that reads them.", metavar="FILE", common=True
    )
    generate: int | None = option(
        "Write at most N tokens.",
        metavar="N",
        min=1,
        shown=f"{TOKENS}; of a recording, as many as the model allows",
        common=True,
    )


@dataclass(frozen=True)
class AnswerView:
    """The layers and heads that are pooled, and what is shown of them."""

    PANEL = "View"

    layers: str | None = layers_option()
    heads: str | None = heads_option()
    stack: StackName | None = option(STACK, shown="the one that writes")
    pool: PoolOf | None = option("Pool layers and heads by the mean or the max.", shown="mean")
    query: Any = option(
        "Show only one token of the answer: its position, or its text.",
        metavar="I",
        parser=str,
        common=True,
    )
    without_sink: bool = option(
        "Make the first token, which heads read when nothing else matters, a segment of its own.",
        default=False,
    )
    verify: bool = option(
        "Compare the rows with the model's own attention; exit with status 1 if they differ.",
        default=False,
        common=True,
    )
