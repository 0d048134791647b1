"""Options shared by functions that run a model."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum
from pathlib import Path

from attnscope.options import option


class StackName(StrEnum):
    """The stacks of layers that models may have."""

    SELF = "self"
    ENCODER = "encoder"
    DECODER = "decoder"
    CROSS = "cross"
    TEXT = "text"
    VISION = "vision"
    AUDIO = "audio"


@dataclass(frozen=True)
class ReadOptions:
    """The inputs of a model."""

    PANEL = "Input"

    text: str | None = option(
        "Run the model on this text, and show its attention.",
        common=True,
    )
    file: Path | None = option("Use the content of a file as the text.", metavar="FILE", common=True)
    ids: str | None = option(
        "Use token ids in place of a text, without special tokens added: 101,2023,102.",
        metavar="N,…",
    )
    tokens: str | None = option(
        "Use entries of the vocabulary in place of a text, without special tokens added.",
        metavar="'A B C'",
    )
    pair: str | None = option("The second text of a pair.", metavar="TEXT", common=True)
    target: str | None = option(
        "The decoder's text, for an encoder-decoder model.", metavar="TEXT", common=True
    )
    image: Path | None = option("An image, for a vision model.", metavar="FILE", common=True)
    generate: int | None = option(
        "Generate N more tokens, and show what they attend to.", metavar="N", min=1, common=True
    )
    truncate: bool = option("Truncate a text that is longer than the model accepts.", default=False)

    @property
    def names(self) -> list[str]:
        """The names of the inputs that are set; more than one is an error."""
        names = ("text", "file", "ids", "tokens", "image")
        return [name for name in names if getattr(self, name) is not None]

    @property
    def decodes(self) -> bool:
        """Whether a decoder has a target, or generates one."""
        return self.target is not None or self.generate is not None
