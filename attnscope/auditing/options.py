"""Options of `attnscope audit`: keywords of `audit`."""

from __future__ import annotations

from dataclasses import dataclass

from attnscope.base.options import DEVICES, DTYPES, inputs_of_calls, option


@dataclass(frozen=True)
class Properties:
    """What should hold, beside what a model's configuration and class say."""

    PANEL = "What should hold"

    causal: bool = option(
        "A position does not depend on later ones.",
        default=False,
        common=True,
        excludes={"bidirectional": ""},
    )
    bidirectional: bool = option(
        "Positions depend on earlier and on later ones.", default=False, common=True
    )
    window: int | None = option(
        "In each layer, a position sees so many keys, its own included.", min=1, common=True
    )
    chunk: int | None = option("Positions see keys of their own chunk, of so many.", min=1, common=True)
    prefix: int | None = option("Every position sees so many first ones.", min=0)
    sinks: int | None = option(
        "So many first positions stay visible outside of the window.",
        min=0,
        needs={"window": "is for positions outside of a window"},
    )
    padding: bool = option("Padding, left or right, changes nothing.", default=False, common=True)
    packed: bool = option("Texts in one row are what each is alone.", default=False, common=True)
    batch: bool = option("Other sequences of the batch change nothing.", default=False, common=True)
    cache: bool = option("A text in parts, with a cache, is the whole.", default=False, common=True)
    kernels: bool = option("Eager, sdpa and flex attention agree.", default=False, common=True)
    coverage: bool = option("Every position sees all that it should.", default=False, common=True)
    expect: list[str] | None = option(
        "In each layer, queries see exactly these keys: a rule or file, as in sdpa, or file.py:NAME of a"
        " mask_mod, or of a function of a size that returns a mask; of several, what all show.",
        metavar="MASK",
        common=True,
    )

    @property
    def requested(self) -> dict[str, bool]:
        """Whether an option asks for each property."""
        return {
            "causal": self.causal,
            "bidirectional": self.bidirectional,
            "window": self.window is not None or self.chunk is not None,
            "coverage": self.coverage,
            "padding": self.padding,
            "packed": self.packed,
            "batch": self.batch,
            "cache": self.cache,
            "kernels": self.kernels,
            "expect": self.expect is not None,
        }


@dataclass(frozen=True)
class ModelInput:
    """What a model reads."""

    PANEL = "Input"

    text: str | None = option("Text for a model.", shown="random tokens", common=True)
    length: int | None = option("Number of random tokens.", min=4, shown="61")


@dataclass(frozen=True)
class CodeInput:
    """What code is called with, and what its inputs are."""

    PANEL = "Input"

    init: list[str] | None = option(
        "Argument of a class, as in trace.", metavar="NAME=VALUE", common=True
    )
    inputs: list[str] | None = inputs_of_calls("Argument of a call, as in trace: x=B:2,T:13,C:64.")
    where: list[str] | None = option(
        "A size that follows from others: d_head=d_feat/n_head.", metavar="NAME=EXPRESSION"
    )
    call: str | None = option("Method to call.", metavar="METHOD", shown="forward")
    positions: str | None = option(
        "Input whose positions are changed, or the name of their axis in --input.",
        metavar="NAME",
        shown="those of the output",
    )
    mask_input: list[str] | None = option(
        "Input that hides positions, and which value does: mask, mask=0, mask=-inf.",
        metavar="NAME[=VALUE]",
        shown="by name, dtype, shape and use",
    )


@dataclass(frozen=True)
class AuditRun:
    """How it runs."""

    PANEL = "Run"

    thorough: bool = option(
        "Change long texts from every position on, and test lengths around windows and chunks.",
        default=False,
        common=True,
    )
    dtype: str | None = option(
        "Dtype to run in.", values=DTYPES, shown="a model as stored, code in float64 if it can"
    )
    device: str = option("Device to run a model on.", default="cpu", values=DEVICES)
    seed: int | None = option("Seed of random tokens, weights and inputs.", shown="0")
