"""Options of `attnscope.attention_maps`: what a model reads, which heads are shown, and how."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import dataclass
from enum import StrEnum
from pathlib import Path
from typing import Any

from attnscope.base.options import option
from attnscope.base.spelling import spelled
from attnscope.model.files.indices import Indices, parse_indices
from attnscope.model.run.options import (
    STACK,
    DeviceAndDtype,
    OrderOptions,
    StackName,
    Weigh,
    heads_option,
    ids_option,
    layers_option,
    memory_option,
    truncate_option,
)

EITHER = "one of the two"
"""The hint for two options that exclude each other."""

SHOWN_STACK = "encoder; cross, if a decoder reads"
"""The stack whose maps are shown by default."""


class Pool(StrEnum):
    """How the weights of a cell are pooled; `none`: maps are not pooled."""

    MAX = "max"
    MEAN = "mean"
    NONE = "none"


@dataclass(frozen=True)
class HeadOptions:
    """The heads that are shown."""

    PANEL = "Layer and head"

    layers: Indices = option(
        "Layer, counted from 0; with an input also 0-3, 0,2 or all.",
        "--layer",
        metavar="N",
        shown="the first with attention",
        common=True,
        values="layers",
        type=str | None,
    )
    heads: Indices = option(
        "Head, counted from 0; with an input also 0-3, 0,2 or all.",
        "--head",
        metavar="N",
        shown="0",
        common=True,
        values="heads",
        type=str | None,
    )
    stack: StackName | None = option(STACK, shown=SHOWN_STACK)

    @property
    def layer_numbers(self) -> list[int] | None:
        """The indices of layers, 0 by default; None: all."""
        return parse_indices("layers", 0 if self.layers is None else self.layers)

    @property
    def head_numbers(self) -> list[int] | None:
        """The indices of heads, 0 by default; None: all."""
        return parse_indices("heads", 0 if self.heads is None else self.heads)

    @property
    def one_layer(self) -> bool:
        """Whether a single layer is selected."""
        return len(self.layer_numbers or ()) == 1

    @property
    def one_head(self) -> bool:
        """Whether a single head is selected."""
        return self.one_layer and len(self.head_numbers or ()) == 1

    def __str__(self) -> str:
        return spelled(layers=self.layers or 0, heads=self.heads or 0)


@dataclass(frozen=True)
class View:
    """What is shown of the weights of heads."""

    PANEL = "View"

    query: int | str | None = option(
        "Show only the weights of one query, key by key; its position, or a token that occurs once.",
        metavar="I",
        type=str | None,
        common=True,
    )
    without_sink: bool = option(
        "Ignore the first token and special tokens in {top} and in the colour scale.",
        default=False,
    )
    pool: Pool | None = option(
        "Reduce maps to at most 256 × 256 cells of their max or mean weight; none: keep whole maps.",
        shown="max for maps above 256 MiB; a saved file has whole ones",
    )


@dataclass(frozen=True)
class ShownOptions(View):
    """What is shown of the maps."""

    top: int | None = option(
        "List the K largest weights of each query.",
        metavar="K",
        min=1,
        common=True,
        excludes=dict.fromkeys(
            ("query", "steps"),
            "{top} lists every query's strongest keys: it goes with neither {query} nor {steps}",
        ),
    )
    weigh: Weigh | None = option(
        "value: multiply each weight by the norm of what the key's value adds to the output, ‖v_j W_O‖.",
        metavar="value",
    )
    rollout: bool = option(
        "Show attention rollout up to a layer, the last by default, in place of its heads' maps.",
        default=False,
        excludes={
            "weigh": (
                "{rollout} multiplies weights whose rows sum to 1, and those of {weigh} do not",
                EITHER,
            ),
            "steps": ("{steps} shows one layer's attention, and {rollout} multiplies several", EITHER),
        },
    )

    @property
    def pools(self) -> bool:
        """Whether pooled maps are requested for texts of any length."""
        return self.pool in ("max", "mean")


@dataclass(frozen=True)
class MapParts:
    """What is shown in addition to the maps, and in Python, what is kept."""

    PANEL = View.PANEL

    steps: bool = option(
        "Show the layer's attention step by step; Q, K, V, scores, mask, attention, x_raw.",
        default=False,
        common=True,
        excludes={
            "without_sink": ("{steps} shows whole tensors, and {without_sink} leaves out keys", EITHER),
            "weigh": ("{steps} shows the weights themselves, and {weigh} value multiplies them", EITHER),
            "query": ("{steps} shows whole tensors, and {query} shows one row of a map", EITHER),
        },
    )
    verify: bool = option(
        "Compare the maps with transformers' own; exit with status 1 if they differ.",
        default=False,
        common=True,
    )
    stats: bool = option(
        "Compute six statistics of each tensor of the steps, too.",
        default=False,
        python_only=True,
        needs={"steps": "applies to the steps of a layer"},
    )
    keep: bool | Collection[str] = option(
        "Keep the tensors of the steps: all, or those with these names.",
        default=False,
        python_only=True,
        needs={"steps": "is for the steps of a layer's attention"},
    )
    page: bool = option(
        'Collect everything that a page shows, so that `maps.save("x.html")` has the other heads and'
        " stacks, too, and ranks them.",
        default=False,
        python_only=True,
    )
    save: str | Path | None = option(
        "A .safetensors, .npz or .pt file, to which whole maps are written while they are computed, if"
        " they are pooled; otherwise nothing is written here, and `maps.save` writes it.",
        python_only=True,
    )
    force: bool = option("Replace that file if it exists.", default=False, python_only=True)
    copies: int = option(
        "The memory to reserve for later copies, in multiples of the size of whole maps.",
        min=0,
        default=1,
        python_only=True,
    )


@dataclass(frozen=True)
class StepOptions:
    """The layer whose attention is traced, and what is kept of its tensors."""

    layer: int | None = option("The layer, counted from 0.", min=0, shown="the first with attention")
    stack: StackName | None = option(STACK, shown=SHOWN_STACK)
    stats: bool = option("Compute six statistics of each tensor, too.", default=False)
    keep: bool | Collection[str] = option(
        "Keep the tensors: all, or those with these names.", default=False
    )
    verify: bool = option("Compare the layer's maps with transformers' own, too.", default=False)


@dataclass(frozen=True)
class ComparedInputs:
    """The inputs of two models, and the heads that are compared."""

    adapter: str | Path | None = option(
        "A folder in which PEFT has saved a LoRA adapter, which is merged into `b`."
    )
    ids: str | Sequence[int] | None = ids_option()
    pair: str | None = option("The second text of a pair.")
    target: str | None = option("The decoder's text, for an encoder-decoder model.")
    image: Any = option("An image, for a vision model.")
    truncate: bool = truncate_option()
    stack: StackName | None = option(STACK, shown=SHOWN_STACK)
    layers: Indices = layers_option()
    heads: Indices = heads_option()


@dataclass(frozen=True)
class ComparedMaps(OrderOptions, ComparedInputs):
    """The same, and their order."""


@dataclass(frozen=True)
class MapRun(DeviceAndDtype):
    """The device, dtype and memory of a run; and in Python, what belongs to a loaded model."""

    memory: str | int | None = memory_option()
    tokenizer: Any = option("The tokenizer of a loaded model.", python_only=True)
    image_processor: Any = option("The image processor of a loaded model.", python_only=True)
