"""Options of `attnscope audit`: keywords of `audit`."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from attnscope.base.options import DEVICES, DTYPES, Inputs, Texts, inputs_of_calls, option


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
    expect: Any = option(
        "In each layer, queries see exactly these keys: a rule or file, as in sdpa, or file.py:NAME of a"
        " mask_mod, or of a function of a size that returns a mask; of several, what all show.",
        metavar="MASK",
        type=list[str] | None,
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
    FOR = ("models",)

    text: str | None = option("Text for a model.", shown="random tokens", common=True)
    length: int | None = option(
        "Number of random tokens.",
        min=4,
        shown="61",
        excludes={"text": "{length} is the number of random tokens, and there is a text"},
    )
    tokenizer: Any = option("Tokenizer of a loaded model.", python_only=True)


@dataclass(frozen=True)
class CodeInput:
    """What code is called with, and what its inputs are."""

    PANEL = "Input"
    FOR = ("code",)

    init: Texts | None = option(
        "Argument of a class, as in trace.", metavar="NAME=VALUE", type=list[str] | None, common=True
    )
    inputs: Inputs = inputs_of_calls("Argument of a call, as in trace: x=B:2,T:13,C:64.")
    where: Sequence[str] | None = option(
        "A size that follows from others: d_head=d_feat/n_head.",
        metavar="NAME=EXPRESSION",
        type=list[str] | None,
    )
    call: str | None = option("Method to call.", metavar="METHOD", shown="forward")
    positions: str | None = option(
        "Input whose positions are changed, or the name of their axis.",
        metavar="NAME",
        shown="those of the output",
    )
    mask_input: Texts | str | None = option(
        "Input that hides positions, and which value does: mask, mask=0, mask=-inf.",
        metavar="NAME[=VALUE]",
        shown="by name, dtype, shape and use",
        type=list[str] | None,
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
    device: str = option(
        "Device to run a model on.", default="cpu", values=DEVICES, only_for=("models",)
    )
    seed: int | None = option("Seed of random tokens, weights and inputs.", shown="0")
