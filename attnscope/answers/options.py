"""Options of `attnscope.answer`: what a model reads and writes, and which rows are shown.

In Python, `messages` and `replay` may be lists and dicts, and `segments` a dict.
"""

from __future__ import annotations

from dataclasses import dataclass, fields
from enum import StrEnum
from pathlib import Path

from attnscope.options import option

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
