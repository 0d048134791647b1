"""Options of `attnscope.answer`: what a model reads and writes, and which rows are shown."""

from __future__ import annotations

from dataclasses import dataclass, fields
from enum import StrEnum
from math import inf
from pathlib import Path
from typing import Any

from attnscope.base.errors import OptionError
from attnscope.base.options import option, refuse
from attnscope.base.spelling import spelled
from attnscope.model.files.indices import Indices, parse_indices
from attnscope.model.run.options import (
    STACK,
    DeviceAndDtype,
    StackName,
    heads_option,
    layers_option,
    truncate_option,
)

TOKENS = 20  #: The number of tokens that a model writes unless `--generate` says otherwise


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
class AnswerPrompt:
    """What a model answers beside a text, and how much it writes."""

    PANEL = "Input"

    file: str | Path | None = option(
        "Use the content of a file as the text.", metavar="FILE", common=True, type=Path | None
    )
    image: Any = option(
        "An image, for a model that reads them.", metavar="FILE", common=True, type=list[Path] | None
    )
    generate: int | None = option(
        "Write at most N tokens.",
        metavar="N",
        min=1,
        shown=f"{TOKENS}; of a recording, as many as the model allows",
        common=True,
    )
    truncate: bool = truncate_option()


@dataclass(frozen=True)
class AnswerOptions:
    """What a model reads and writes, and how the answer is shown."""

    PANEL = "Answer"

    messages: Any = option(
        "A chat: .json with messages of role and content, and tools, documents.",
        metavar="FILE",
        common=("answer",),
        type=Path | None,
    )
    replay: Any = option(
        "An answer that vLLM, llama.cpp or another server returned: .json, or a stream.",
        metavar="FILE",
        common=("answer",),
        type=Path | None,
    )
    choice: int | None = option(
        "The choice of {replay}, if the server returned several, counted from 0.",
        metavar="N",
        shown="the first",
        min=0,
    )
    audio: Any = option(
        "A recording that the model writes down: .wav; with soundfile, other formats, too.",
        metavar="FILE",
        type=Path | None,
    )
    video: Any = option("A video, for a model that reads them.", metavar="FILE", type=list[Path] | None)
    fps: float | None = option(
        "The frames of each second of a video that are read.", metavar="N", shown="all"
    )
    by: By | None = option(
        "segment: sum the weights over the parts of the prompt.", metavar="segment", common=True
    )
    segments: str | dict[str, Any] | None = option(
        "Parts of the prompt: 'docs=[1],[2]', 'name=/regex/' or 'name=10-250'; several with ;.",
        metavar="NAME=…",
        type=str | None,
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
class AnswerView:
    """The layers and heads that are pooled, and what is shown of them."""

    PANEL = "View"

    layers: Indices = layers_option()
    heads: Indices = heads_option()
    stack: StackName | None = option(STACK, shown="the one that writes")
    pool: PoolOf | None = option("Pool layers and heads by the mean or the max.", shown="mean")
    query: int | str | None = option(
        "Show one token alone: its position, or its text.",
        metavar="I",
        min=0,
        parser=str,
        type=Any,
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


@dataclass(frozen=True)
class AnswerRequest(DeviceAndDtype, AnswerView, AnswerOptions, AnswerPrompt):
    """All that one call asks for: the options, the text, and whether a page will show its layers."""

    text: str | None = None
    page: bool = False

    @property
    def layer_numbers(self) -> list[int] | None:
        """The layers that are pooled; None: all."""
        return parse_indices("layers", self.layers)

    @property
    def head_numbers(self) -> list[int] | None:
        """The heads that are pooled; None: all."""
        return parse_indices("heads", self.heads)

    @property
    def pooling(self) -> PoolOf:
        """How layers and heads are pooled."""
        return self.pool or PoolOf.MEAN

    @property
    def pictures(self) -> list[Any]:
        """The pictures, none or several."""
        return _several(self.image)

    @property
    def videos(self) -> list[Any]:
        """The videos, none or several."""
        return _several(self.video)

    @property
    def of_segments(self) -> bool:
        """Whether the rows of segments are collected, too."""
        return self.rows == RowKind.SEGMENTS

    @property
    def before(self) -> int:
        """How many positions before a token the query of its row is."""
        return 0 if self.reads else 1

    @property
    def reads(self) -> bool:
        """Whether the row of a token is that of its own query, which reads it."""
        return self.rows not in (None, RowKind.WRITING)

    def check(self) -> None:
        """Raise an OptionError for options that contradict each other."""
        from attnscope.base.process.devices import check_device_name

        _ = self.layer_numbers, self.head_numbers
        prompts = ("text", "file", "messages", "audio")
        named = [spelled(name) for name in prompts if getattr(self, name) is not None]
        shows = bool(self.pictures or self.videos)
        is_chat = self.messages is not None
        if len(named) > 1:
            raise OptionError(
                f"{' and '.join(named)} cannot be combined: give one prompt.", hint=" or ".join(named)
            )
        if not named and (self.replay is None or shows):
            raise OptionError(
                "there is no prompt.",
                hint=f"{spelled(text='…')}, {spelled(messages='FILE')}, {spelled(audio='FILE')} or"
                f" {spelled(replay='FILE')}",
            )
        if is_chat and shows:
            raise OptionError(
                f"{spelled('image')} and {spelled('video')} go with {spelled('text')}: in a chat,"
                " pictures are parts of messages.",
                hint='"content": [{"type": "image", "path": "FILE"}, {"type": "text", "text": "…"}]',
            )
        if self.fps is not None and not (self.videos or is_chat):
            raise OptionError(
                f"{spelled('fps')} is that of a video, and there is none.", hint=spelled(video="FILE")
            )
        if self.fps is not None and not 0 < self.fps < inf:
            raise OptionError(f"{spelled('fps')} is {self.fps:g}, but must be more than 0.")
        if self.audio is not None:
            others: dict[str, Any] = {"image": self.pictures, "video": self.videos}
            others |= {"segments": self.segments, "grid": self.grid, "replay": self.replay}
            refuse(
                {name: value or None for name, value in others.items()},
                f"does not go with {spelled('audio')}, whose frames are the segments sound and padding",
            )
        if self.of_segments:
            refuse(
                {"query": self.query}, f"is a token, and {spelled('rows', 'segments')} shows segments"
            )
        if self.generate is not None and self.replay is not None:
            raise OptionError(
                f"{spelled('replay')} holds the answer, and {spelled('generate')} writes one.",
                hint="one of them",
            )
        if is_chat or shows:
            is_cut = self.truncate and self.file is None
            whole = spelled("messages") if is_chat else "a picture"
            refuse({"truncate": is_cut}, f"does not go with {whole}: what it would cut is not known")
        if self.choice is not None and self.replay is None:
            raise OptionError(
                f"{spelled('choice')} is one of {spelled('replay')}, and there is none.",
                hint=spelled(replay="FILE"),
            )
        if self.grid is not None and not self.pictures:
            raise OptionError(
                f"{spelled('grid')} is that of a picture, and there is none.", hint=spelled(image="FILE")
            )
        if self.device.startswith("meta"):
            raise OptionError(
                f"{spelled('device', 'meta')} computes no values, and rows of attention need values."
            )
        check_device_name(self.device)


def _several(value: Any) -> list[Any]:
    """Return one or several files or pictures as a list."""
    if value is None:
        return []
    return list(value) if isinstance(value, (list, tuple)) else [value]
