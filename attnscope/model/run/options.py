"""Options shared by functions that run a model."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from enum import StrEnum
from pathlib import Path
from typing import Any

from attnscope.base.options import DEVICES, DTYPES, option
from attnscope.base.units import UNITS_OF_BYTES


class StackName(StrEnum):
    """The stacks of layers that models may have."""

    SELF = "self"
    ENCODER = "encoder"
    DECODER = "decoder"
    CROSS = "cross"
    TEXT = "text"
    VISION = "vision"
    AUDIO = "audio"


class Weigh(StrEnum):
    """What weights are multiplied by; `value`: the norm of the key's value behind W_O."""

    VALUE = "value"


STACK = "Stack of layers: self, encoder, decoder, cross, text, vision or audio."
"""The help of `--stack`."""


def ids_option() -> Any:
    """Declare `--ids`, an input of the model."""
    help = "Use token ids in place of a text, without special tokens added: 101,2023,102."
    return option(help, metavar="N,…", type=str | None)


def tokens_option() -> Any:
    """Declare `--tokens`, an input of the model."""
    help = "Use entries of the vocabulary in place of a text, without special tokens added."
    return option(help, metavar="'A B C'", type=str | None)


def truncate_option() -> Any:
    """Declare `--truncate`, for a text that is too long."""
    return option("Truncate a text that is longer than the model accepts.", default=False)


def layers_option(*more: str) -> Any:
    """Declare `--layer`, and further spellings of it, which selects several layers."""
    about: dict[str, Any] = {"metavar": "N", "shown": "all", "common": True, "values": "layers"}
    about["type"] = str | None
    return option("Layers, counted from 0: 3, 0-3 or 0,2.", "--layer", *more, **about)


def heads_option(*more: str) -> Any:
    """Declare `--head`, and further spellings of it, which selects several heads."""
    about: dict[str, Any] = {"metavar": "N", "shown": "all", "common": True, "values": "heads"}
    about["type"] = str | None
    return option("Heads, counted from 0.", "--head", *more, **about)


def dtype_option(*, common: bool = True, shown: str = "as stored") -> Any:
    """Declare `--dtype`, in which the model runs."""
    help = "Dtype of the model: float32, bfloat16, float16 or float64."
    return option(help, shown=shown, common=common, values=DTYPES)


def device_option(more: str = "", *, common: bool = True) -> Any:
    """Declare `--device`, on which the model runs."""
    help = f"Device: cpu, cuda, cuda:1, mps or xpu.{more}"
    return option(help, default="cpu", common=common, values=DEVICES)


def memory_option() -> Any:
    """Declare `--memory`, the limit of a run."""
    help = f"Memory limit of a run, without the model's weights: 2G, 500M ({UNITS_OF_BYTES})."
    return option(help, metavar="SIZE", shown="80 % of the free memory", type=str | None)


@dataclass(frozen=True)
class ReadOptions:
    """What a model reads, and how much it writes."""

    PANEL = "Input"

    text: str | None = option("Run the model on this text, and show its attention.", common=True)
    file: str | Path | None = option(
        "Use the content of a file as the text.", metavar="FILE", common=True, type=Path | None
    )
    image: Any = option(
        "An image, for a vision model.", metavar="FILE", common=True, type=list[Path] | None
    )
    generate: int | None = option(
        "Generate N more tokens, and show what they attend to.",
        metavar="N",
        min=1,
        common=True,
    )
    truncate: bool = truncate_option()
    ids: str | Sequence[int] | None = ids_option()
    tokens: str | Sequence[str] | None = tokens_option()
    pair: str | None = option("The second text of a pair.", metavar="TEXT", common=True)
    target: str | None = option(
        "The decoder's text, for an encoder-decoder model.",
        metavar="TEXT",
        excludes={
            "generate": (
                "{target} is the decoder's input, and {generate} lets the decoder generate it",
                "one of the two",
            )
        },
    )

    @property
    def names(self) -> list[str]:
        """The names of the inputs that are set; more than one is an error."""
        names = ("text", "file", "ids", "tokens", "image")
        return [name for name in names if getattr(self, name) is not None]

    @property
    def decodes(self) -> bool:
        """Whether a decoder has a target, or generates one."""
        return self.target is not None or self.generate is not None


@dataclass(frozen=True)
class DeviceAndDtype:
    """The device and the dtype of a run."""

    PANEL = "Run"

    dtype: str | None = dtype_option()
    device: str = device_option()


@dataclass(frozen=True)
class OrderOptions:
    """The order of heads, and the number that is shown."""

    PANEL = "View"

    sort: str | None = option(
        "Rank the heads by a metric, largest first.",
        metavar="NAME",
        common=True,
        values="metrics",
    )
    reverse: bool = option("Rank the smallest first.", default=False, common=True)
    top: int | None = option("Print only the first K heads.", metavar="K", min=1, common=True)
