"""Options of `attnscope compare`: keywords of `compare`."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from enum import StrEnum
from pathlib import Path
from typing import Any

from attnscope.base.options import (
    DRAW,
    DTYPES,
    Distribution,
    Inputs,
    Texts,
    VectorLayout,
    inputs_of_calls,
    option,
)

REFERENCES = ("sdpa", "mha")

CODE, REFERENCE, MODELS, RUN = "Your code", "The reference, sdpa or mha", "Models", "Run"


@dataclass(frozen=True)
class ComparedArguments:
    """The arguments of both sides."""

    PANEL, FOR = CODE, ("code",)

    init: Texts | None = option(
        "Argument of the classes: a literal, an expression of sizes, or module:Class(name=value, …).",
        metavar="NAME=VALUE",
        type=list[str] | None,
        common=True,
    )
    inputs: Inputs = inputs_of_calls(
        "Argument of the calls, as in trace: q=n_batch:2,n_head:3,n_Q:5,d_head:8."
    )
    where: Sequence[str] | None = option(
        "A size that follows from others: d_head=d_feat/n_head.",
        metavar="NAME=EXPRESSION",
        type=list[str] | None,
    )
    call: str | None = option("Method to call.", metavar="METHOD", shown="forward", common=True)
    same: Sequence[str] | None = option(
        "Parameters of the two that get the same input: query=x.",
        metavar="NAME=NAME",
        common=True,
        type=list[str] | None,
    )
    map: Sequence[str] | None = option(
        "Weights of the two that are the same: lin_Q.weight=W_Q.weight.",
        metavar="NAME=NAME",
        common=True,
        type=list[str] | None,
    )
    weights: str | None = option(
        "Weights of modules that already exist, as file.py:model: own, or same (those of A for both).",
        metavar="WHOSE",
        shown="own",
        values=("own", "same"),
    )
    backward: bool = option(
        "Compare the gradients of inputs and weights, too.", default=False, common=True
    )


class Corner(StrEnum):
    """The query and the key that have one position, where there are more keys than queries."""

    TOP_LEFT = "top-left"
    BOTTOM_RIGHT = "bottom-right"


@dataclass(frozen=True)
class Reference:
    """The variant of the reference, `sdpa` or `mha`."""

    PANEL, FOR = REFERENCE, ("the references sdpa and mha",)

    causal: bool = option("Hide later keys.", default=False, common=True)
    align: Corner | None = option(
        "Position of the queries among the keys: top-left (query 0 at key 0) or bottom-right (the last"
        " query at the last key).",
        shown="top-left",
        excludes={"past": ("{align} and {past} both say which key query 0 is at", "one of them")},
    )
    past: int | None = option(
        "Number of keys before that of query 0, as of a cache, instead of {align}.", metavar="N", min=0
    )
    layout: VectorLayout | None = option(
        "How your function takes vectors: as rows, or as columns, as in V·softmax(KᵀQ/√d_K).",
        shown="rows",
        common=True,
    )
    scale: float | None = option("Factor of the scores.", shown="1/√d_head or 1/√d_K", common=True)
    rope: bool = option(
        "Rotary position embedding (RoPE); in halves, as in Llama.", default=False, common=True
    )
    rope_theta: float | None = option("Base of the rotary frequencies.", shown="10000")
    softcap: float | None = option("Soft-cap c: scores s become c·tanh(s/c), before the mask.")


@dataclass(frozen=True)
class Models:
    """The parts and inputs of models."""

    PANEL, FOR = MODELS, ("two models",)

    layer: int | str | None = option(
        "Layer, from 0; of two models 0-3, 1,4 or all.",
        metavar="N",
        shown="all",
        common=True,
        type=str | None,
        only_for=("a model",),
    )
    head: int | str | None = option(
        "Heads of two models, likewise.", metavar="N", shown="all", common=True, type=str | None
    )
    text: str | Sequence[str] | None = option(
        "Text for models to read; given twice, two texts for one model.",
        metavar="TEXT",
        common=True,
        type=list[str] | None,
        only_for=("a model",),
    )
    ids: Any = option(
        "Token ids for the model beside code to read in place of a text: 101,2023,102.",
        metavar="N,…",
        type=str | None,
        only_for=("a model beside code",),
        excludes={"text": "{text} and {ids} exclude each other"},
    )
    tokens: str | Sequence[str] | None = option(
        "Entries of the vocabulary for it to read in place of a text.",
        metavar="'A B C'",
        type=str | None,
        only_for=("a model beside code",),
        excludes={
            "text": "{text} and {tokens} exclude each other",
            "ids": "{ids} and {tokens} exclude each other",
        },
    )
    adapter: Any = option(
        "Merge this LoRA adapter into B, or into A if there is no B.", metavar="FOLDER", type=Path | None
    )
    sort: str | None = option("Rank heads by QK, OV, W_Q, change or another metric.", metavar="METRIC")
    reverse: bool = option("Rank the smallest first.", default=False)
    top: int | None = option("Number of heads to list.", metavar="N", min=1)


@dataclass(frozen=True)
class ComparedExecution:
    """The dtype, the seed and the drawn inputs of a run."""

    PANEL = RUN

    dtype: str | None = option(
        "float64, float32, float16 or bfloat16.",
        shown="float32, or the model's",
        common=True,
        values=DTYPES,
    )
    seed: int | None = option("Seed of weights and inputs.", shown="0", only_for=("code",))
    draw: Distribution | None = option(DRAW, shown="normal", only_for=("code",))
