"""Options of `attnscope.attention_maps`: what a model reads, which heads are shown, and how."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum
from typing import Any

from attnscope.base.options import option
from attnscope.model.files.indices import parse_indices
from attnscope.model.run.options import (
    STACK,
    DeviceAndDtype,
    StackName,
    Weigh,
    memory_option,
)


class Pool(StrEnum):
    """How the weights of a cell are pooled; `none`: maps are not pooled."""

    MAX = "max"
    MEAN = "mean"
    NONE = "none"


@dataclass(frozen=True)
class HeadOptions:
    """The heads that are shown; layers and heads are arguments of `parse_indices`."""

    PANEL = "Layer and head"

    layers: str | None = option(
        "Layer, counted from 0; with an input also 0-3, 0,2 or all.",
        "--layer",
        metavar="N",
        shown="the first with attention",
        common=True,
        values="layers",
    )
    heads: str | None = option(
        "Head, counted from 0; with an input also 0-3, 0,2 or all.",
        "--head",
        metavar="N",
        shown="0",
        common=True,
        values="heads",
    )
    stack: StackName | None = option(STACK, shown="encoder; cross, if a decoder reads")

    @property
    def layer_numbers(self) -> list[int] | None:
        """The indices of layers, 0 by default; None: all."""
        return parse_indices("--layer", 0 if self.layers is None else self.layers)

    @property
    def head_numbers(self) -> list[int] | None:
        """The indices of heads, 0 by default; None: all."""
        return parse_indices("--head", 0 if self.heads is None else self.heads)

    @property
    def one_layer(self) -> bool:
        """Whether a single layer is selected."""
        return len(self.layer_numbers or ()) == 1

    @property
    def one_head(self) -> bool:
        """Whether a single head is selected."""
        return self.one_layer and len(self.head_numbers or ()) == 1

    def __str__(self) -> str:
        return f"--layer {self.layers or 0} --head {self.heads or 0}"


@dataclass(frozen=True)
class View:
    """What is shown of the weights of heads."""

    PANEL = "View"

    query: Any = option(
        "Show only the weights of one query, key by key: its position, or a token that occurs once.",
        metavar="I",
        parser=str,
        common=True,
    )
    without_sink: bool = option(
        "Ignore the first token and special tokens in --top and in the colour scale; with --by segment,"
        " the first token is a segment of its own.",
        default=False,
    )
    pool: Pool | None = option(
        "Reduce maps to at most 256 × 256 cells of their max or mean weight; none: keep whole maps.",
        shown="max for maps above 256 MiB; --save keeps them whole",
    )


@dataclass(frozen=True)
class ShownOptions(View):
    """What is shown of the maps."""

    top: int | None = option(
        "List the K largest weights of each query.", metavar="K", min=1, common=True
    )
    weigh: Weigh | None = option(
        "value: multiply each weight by the norm of what the key's value adds to the output, ‖v_j W_O‖.",
        metavar="value",
    )
    rollout: bool = option(
        "Show attention rollout up to a layer, the last by default, in place of its heads' maps.",
        default=False,
    )

    @property
    def pools(self) -> bool:
        """Whether pooled maps are requested for texts of any length."""
        return self.pool in ("max", "mean")


@dataclass(frozen=True)
class MapRun(DeviceAndDtype):
    """The device, dtype and memory of a run."""

    memory: str | None = memory_option()
