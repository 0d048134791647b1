"""Options of `attnscope mask`: keywords of `attnscope.mask`."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from attnscope.models.options import StackName
from attnscope.options import (
    DEVICES,
    DTYPES,
    Alignment,
    alignment_of_queries,
    inputs_of_calls,
    option,
)

RULE, CODE, MODEL, VIEW = "Masks by a rule", "Masks of code", "Input of a model", "View"


@dataclass(frozen=True)
class RuleOptions:
    """The sizes and arguments of a mask that is not a model's."""

    PANEL = RULE

    nq: int | None = option("Queries (n_Q).", shown="16", common=True)
    nk: int | None = option(
        "Keys (n_K), beside those of --past.", shown="as many as queries", common=True
    )
    past: int | None = option("Cached keys (n_past), before those of --nk.")
    batch: int | None = option("Sequences (n_batch).", shown="1", common=True)
    heads: int | None = option("Heads (n_head).", shown="1")
    window: int | None = option(
        "Hide keys that are W or more away, as sliding_window does: W keys remain with causal.",
        metavar="W",
        min=1,
        common=True,
    )
    align: Alignment | None = alignment_of_queries()
    init: list[str] | None = option(
        "Argument of a function that makes the mask_mod, or of a class: window=4. Repeatable.",
        metavar="NAME=VALUE",
        common=True,
    )


@dataclass(frozen=True)
class CodeOptions:
    """What code is called with, and its method."""

    PANEL = CODE

    inputs: list[str] | None = inputs_of_calls(
        "Argument of a call, as in trace: x=B:2,T:13,C:64. Repeatable."
    )
    call: str | None = option("Method to call.", metavar="METHOD", shown="forward")


@dataclass(frozen=True)
class InputOptions:
    """The input of a model."""

    PANEL = MODEL

    text: list[str] | None = option(
        "A text. Repeatable: several are padded to a batch.", metavar="TEXT", common=True
    )
    packed: bool = option("Put several texts into one row, without padding.", default=False, common=True)
    file: Path | None = option("Use the content of a file as the text.", metavar="FILE")
    ids: str | None = option(
        "Use token ids in place of a text, without special tokens added: 101,2023,102.", metavar="N,…"
    )
    tokens: str | None = option(
        "Use entries of the vocabulary in place of a text, without special tokens added.",
        metavar="'A B C'",
    )
    pair: str | None = option("The second text of a pair.", metavar="TEXT")
    target: str | None = option("The decoder's text, for an encoder-decoder model.", metavar="TEXT")
    image: Path | None = option("An image, for a vision model.", metavar="FILE")
    truncate: bool = option("Truncate a text that is longer than the model accepts.", default=False)


@dataclass(frozen=True)
class LayerOptions:
    """The layers of a model, and how it runs."""

    PANEL = MODEL

    layer: str | None = option(
        "Layer, counted from 0; 0-3, 0,2 or all.",
        metavar="N",
        shown="all",
        common=True,
        values="layers",
    )
    stack: StackName | None = option(
        "Stack of layers: self, encoder, decoder, cross, text, vision or audio.", shown="all"
    )
    kernel: str | None = option(
        "Kernel that masks are made for: eager, sdpa, flex_attention, flash_attention_2, …",
        shown="the model's default",
        common=True,
        values=("eager", "sdpa", "flex_attention", "flash_attention_2"),
    )
    verify: bool = option(
        "Compare with what each kernel does; exit with status 1 if they differ.",
        default=False,
        common=True,
    )
    dtype: str | None = option(
        "Dtype of the model: float32, bfloat16, float16 or float64.", shown="as stored", values=DTYPES
    )
    device: str = option("Device: cpu, cuda, cuda:1, mps or xpu.", default="cpu", values=DEVICES)


@dataclass(frozen=True)
class BlockOptions:
    """The blocks of a block-sparse kernel, and the cells of the picture."""

    PANEL = VIEW

    block: str | None = option(
        "Queries and keys in a block of a block-sparse kernel: 64, or 128,64.",
        metavar="N",
        shown="128, as flex_attention",
        common=True,
    )
    cell: int | None = option(
        "Queries and keys in a cell of the picture; 1: every pair.",
        metavar="N",
        min=1,
        shown="as few as fit",
        common=True,
    )
