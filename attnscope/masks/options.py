"""Options of `attnscope mask`: keywords of `attnscope.mask`."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from attnscope.base.options import (
    Alignment,
    Inputs,
    Texts,
    alignment_of_queries,
    inputs_of_calls,
    option,
)


@dataclass(frozen=True)
class RuleOptions:
    """The sizes and arguments of a mask that is not a model's."""

    PANEL = "Masks by a rule"
    FOR = ("rules", "functions")

    nq: int | None = option("Queries (n_Q).", shown="16", common=True)
    nk: int | None = option(
        "Keys (n_K); beside those of {past}.", shown="as many as queries", common=True
    )
    past: int | None = option("Cached keys (n_past), before those of {nk}.")
    batch: int | None = option("Sequences (n_batch).", shown="1")
    heads: int | None = option("Heads (n_head).", shown="1")
    window: int | None = option(
        "Hide keys that are W or more away; as sliding_window does: W keys remain with causal.",
        metavar="W",
        min=1,
        common=True,
    )
    align: Alignment | None = alignment_of_queries()
    init: Texts | None = option(
        "Argument of a function or a class: window=4; the function makes a mask or a mask_mod.",
        metavar="NAME=VALUE",
        type=list[str] | None,
        common=True,
        only_for=("functions", "code"),
    )
    hides: int | None = option(
        "Which of 0 and 1 hides in the mask that a function returns.",
        metavar="0|1",
        values=("0", "1"),
        shown="the one with which each query sees a key, else 0",
        only_for=("functions",),
    )


@dataclass(frozen=True)
class CodeOptions:
    """What code is called with, and its method."""

    PANEL = "Masks of code"
    FOR = ("code",)

    inputs: Inputs = inputs_of_calls("Argument of a call, as in trace: x=B:2,T:13,C:64.")
    call: str | None = option("Method to call.", metavar="METHOD", shown="forward")


@dataclass(frozen=True)
class BlockOptions:
    """The blocks of a block-sparse kernel, and the cells of the picture."""

    PANEL = "View"

    block: int | str | Sequence[int] | None = option(
        "Queries and keys in a block of a block-sparse kernel: 64, or 128,64.",
        metavar="N",
        shown="128, as flex_attention",
        type=str | None,
    )
    cell: int | None = option(
        "Queries and keys in a cell of the picture; 1: every pair.",
        metavar="N",
        min=1,
        shown="as few as fit",
        common=True,
    )
