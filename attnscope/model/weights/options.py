"""The options of `attnscope weights` and of comparing checkpoints, for commands and functions."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from attnscope.base.options import option
from attnscope.model.files.indices import Indices
from attnscope.model.run.options import STACK, StackName, heads_option, layers_option

LAYER_AND_HEAD = "Layer and head"
"""The heading of the options in the help."""


@dataclass(frozen=True)
class OneHead:
    """One head of a stack."""

    PANEL = LAYER_AND_HEAD

    layer: int | None = option(
        "Layer, counted from 0.", shown="the first with attention", min=0, common=True, values="layers"
    )
    head: int = option("Head, counted from 0.", default=0, min=0, common=True, values="heads")


FIRST_HEAD = OneHead()


@dataclass(frozen=True)
class OneStack:
    """The stack of a head."""

    PANEL = LAYER_AND_HEAD

    stack: str | None = option(
        STACK, shown="encoder; cross, if there is no other", type=StackName | None
    )


@dataclass(frozen=True)
class HeadChecks:
    """What is computed from the weights of a head."""

    PANEL = LAYER_AND_HEAD

    circuits: bool = option(
        "Compute the singular values of the head's QK and OV matrices.", default=False, common=True
    )
    verify: bool = option(
        "Compare the weights with transformers; if they differ, the command exits with status 1.",
        default=False,
        common=True,
    )


@dataclass(frozen=True)
class ComparedHeads:
    """The heads of two checkpoints, and their order."""

    adapter: str | Path | None = option(
        "Merge this LoRA adapter, a folder that PEFT has saved, into B, in float32."
    )
    stack: str | None = option(STACK, shown="all")
    layers: Indices = layers_option()
    heads: Indices = heads_option()
    sort: str | None = option("Rank the heads by a metric, the largest first; rows keep their order.")
    reverse: bool = option("Rank the smallest first.", default=False)
    top: int | None = option("Number of heads to show.", min=1, shown="all")
