"""Options of `attnscope audit`: keywords of `audit`."""

from __future__ import annotations

from dataclasses import dataclass

from attnscope.options import DEVICES, DTYPES, option


@dataclass(frozen=True)
class Promises:
    """What should hold, beside what a model's configuration and class say."""

    PANEL = "What should hold"

    causal: bool = option("A position does not depend on later ones.", default=False, common=True)
    bidirectional: bool = option(
        "Positions depend on earlier and on later ones.", default=False, common=True
    )
    window: int | None = option(
        "In each layer, a position sees so many keys, its own included.", min=1, common=True
    )
    chunk: int | None = option("Positions see keys of their own chunk, of so many.", min=1, common=True)
    prefix: int | None = option("Every position sees so many first ones.", min=0)
    sinks: int | None = option("So many first positions stay visible outside of the window.", min=0)
    padding: bool = option("Padding, left or right, changes nothing.", default=False, common=True)
    packed: bool = option("Texts in one row are what each is alone.", default=False, common=True)
    batch: bool = option("Other sequences of the batch change nothing.", default=False, common=True)
    cache: bool = option("A text in parts, with a cache, is the whole.", default=False, common=True)
    kernels: bool = option("Eager, sdpa and flex attention agree.", default=False, common=True)
    coverage: bool = option("Every position sees all that it should.", default=False, common=True)


@dataclass(frozen=True)
class Inputs:
    """What a model reads, or what code is called with."""

    PANEL = "Input"

    text: str | None = option("Text for a model.", shown="random tokens", common=True)
    length: int | None = option("Number of random tokens.", min=4, shown="61")
    init: list[str] | None = option(
        "Argument of a class, as in trace. Repeatable.", metavar="NAME=VALUE", common=True
    )
    inputs: list[str] | None = option(
        "Argument of a call, as in trace: x=B:2,T:13,C:64. Repeatable.",
        "--input",
        metavar="NAME=SPEC",
        shown="the usual ones",
        common=True,
    )
    where: list[str] | None = option(
        "A size that follows from others: d_head=d_feat/n_head. Repeatable.", metavar="NAME=EXPRESSION"
    )
    call: str | None = option("Method to call.", metavar="METHOD", shown="forward")
    positions: str | None = option(
        "Name of the axis of positions in --input.",
        metavar="AXIS",
        shown="T, n_Q, seq, … or the last but one",
    )


@dataclass(frozen=True)
class Run:
    """How it runs."""

    PANEL = "Run"

    thorough: bool = option(
        "Change tokens from every position on, and test lengths around windows and chunks.",
        default=False,
        common=True,
    )
    dtype: str | None = option("Dtype to run a model in.", values=DTYPES, shown="as stored")
    device: str = option("Device to run a model on.", default="cpu", values=DEVICES)
    seed: int | None = option("Seed of random tokens, weights and inputs.", shown="0")
