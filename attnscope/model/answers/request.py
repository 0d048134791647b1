"""Gather the options of one call of `attnscope.answer`, and check that they go together."""

from __future__ import annotations

from dataclasses import dataclass
from math import inf
from pathlib import Path
from typing import Any

from attnscope.base.errors import OptionError
from attnscope.base.options import refuse
from attnscope.model.answers.options import PoolOf, RowKind

PROMPTS = '--text "…", --messages FILE, --audio FILE or --replay FILE'


@dataclass(frozen=True)
class AnswerRequest:
    """What one call reads and writes, and which rows it shows."""

    text: str | None
    pictures: list[Any]
    videos: list[Any]
    fps: float | None
    messages: Any
    file: Path | None
    replay: Any
    choice: int | None
    audio: Any
    n: int | None
    segments: str | dict[str, Any] | None
    by_segment: bool
    rows: RowKind
    layers: list[int] | None
    heads: list[int] | None
    stack: str | None
    pool: PoolOf
    query: int | str | None
    without_sink: bool
    grid: str | None
    truncate: bool
    verify: bool
    page: bool
    dtype: str | None
    device: str

    @property
    def of_segments(self) -> bool:
        """Whether the rows of segments are collected, too."""
        return self.rows is RowKind.SEGMENTS

    @property
    def before(self) -> int:
        """How many positions before a token the query of its row is."""
        return 0 if self.reads else 1

    @property
    def reads(self) -> bool:
        """Whether the row of a token is that of its own query, which reads it."""
        return self.rows is not RowKind.WRITING

    def check(self) -> None:
        """Raise an OptionError for mistakes that need no model to be known."""
        from attnscope.base.process.devices import check_device_name

        prompts = {
            "--text": self.text,
            "--file": self.file,
            "--messages": self.messages,
            "--audio": self.audio,
        }
        named = [name for name, value in prompts.items() if value is not None]
        if len(named) > 1:
            raise OptionError(
                f"{' and '.join(named)} cannot be combined: give one prompt.", hint=" or ".join(named)
            )
        if not named and (self.replay is None or self.pictures or self.videos):
            raise OptionError("there is no prompt.", hint=PROMPTS)
        if self.messages is not None and (self.pictures or self.videos):
            raise OptionError(
                "--image and --video go with --text: in a chat, pictures are parts of messages.",
                hint='"content": [{"type": "image", "path": "FILE"}, {"type": "text", "text": "…"}]',
            )
        if self.fps is not None and not (self.videos or self.messages is not None):
            raise OptionError("--fps is that of a video, and there is none.", hint="--video FILE")
        if self.fps is not None and not 0 < self.fps < inf:
            raise OptionError(f"--fps is {self.fps:g}, but must be more than 0.")
        if self.audio is not None:
            others: dict[str, Any] = {"--image": self.pictures, "--video": self.videos}
            others |= {"--segments": self.segments, "--grid": self.grid, "--replay": self.replay}
            refuse(
                {name: value or None for name, value in others.items()},
                "does not go with --audio, whose frames are the segments sound and padding",
            )
        if self.of_segments:
            refuse({"--query": self.query}, "is a token, and --rows segments shows segments")
        if self.n is not None and self.replay is not None:
            raise OptionError(
                "--replay holds the answer, and --generate writes one.", hint="one of them"
            )
        if self.messages is not None or self.pictures or self.videos:
            whole = "--messages" if self.messages is not None else "a picture"
            is_cut = self.truncate and self.file is None
            refuse({"--truncate": is_cut}, f"does not go with {whole}: what it would cut is not known")
        if self.choice is not None and self.replay is None:
            raise OptionError("--choice is one of --replay, and there is none.", hint="--replay FILE")
        if self.n is not None and self.n < 1:
            raise OptionError(f"--generate is {self.n}, but must be 1 or more.")
        if self.grid is not None and not self.pictures:
            raise OptionError("--grid is that of a picture, and there is none.", hint="--image FILE")
        if self.device.startswith("meta"):
            raise OptionError("--device meta computes no values, and rows of attention need values.")
        check_device_name(self.device)
