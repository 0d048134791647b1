"""The variants of attention that are asked for: for the contract, for the code, and for the heading."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property
from math import inf, isfinite
from typing import Any

from attnscope.cli.options import Alignment, MaskedRows, MaskStyle
from attnscope.contracts import DTYPES, Variant
from attnscope.errors import OptionError, warn_idle
from attnscope.results.common import Finding
from attnscope.textbook.inputs.mask_options import Masks, parse_masks

NO_MASK = "there is no mask (--mask)"
THETA = 10000.0
"""The base of rotary positions, unless one is given: RoFormer's, and Llama's first."""


@dataclass(frozen=True)
class Variants:
    """The options of the panel `Variants`, None where they were not given."""

    mask: list[str] | None = None
    style: MaskStyle | None = None
    fill: float | None = None
    align: Alignment | None = None
    rows: MaskedRows | None = None
    scale: float | None = None
    softcap: float | None = None
    rope: bool = False
    rope_theta: float | None = None
    softmax_dtype: str | None = None

    def check(self) -> None:
        """Raise an OptionError for a value that an option cannot have; tell of those without effect."""
        if self.rope_theta is not None and not 0 < self.rope_theta < inf:
            raise OptionError(
                f"a base of {self.rope_theta:g} turns nothing: it must be above 0.",
                hint="--rope-theta 10000",
            )
        if self.softcap is not None and not 0 < self.softcap < inf:
            raise OptionError(
                f"a soft cap of {self.softcap:g} leaves no scores: it must be above 0.",
                hint="--softcap 50",
            )
        if self.scale is not None and not isfinite(self.scale):
            raise OptionError(f"a scale of {self.scale:g} leaves no scores.", hint="--scale 0.125")
        if self.softmax_dtype is not None and self.softmax_dtype not in DTYPES:
            raise OptionError(
                f"{self.softmax_dtype!r} is not a dtype that a softmax runs in.",
                hint=f"--softmax-dtype {', '.join(DTYPES)}",
            )
        nowhere = not (self.rope or self.masks.positional)
        warn_idle(
            [
                (self.style is not None and not self.mask, "--mask-style", NO_MASK),
                (self.fill is not None and not self.mask, "--mask-fill", NO_MASK),
                (self.rows is not None and not self.mask, "--masked-rows", NO_MASK),
                (
                    self.rope_theta is not None and not self.rope,
                    "--rope-theta",
                    "there are no rotary positions (--rope)",
                ),
                (
                    self.align is not None and nowhere,
                    "--align",
                    "nothing here depends on where queries stand among keys",
                ),
            ]
        )

    @cached_property
    def masks(self) -> Masks:
        """The masks, as they were asked for; `resolved` knows what depends on sizes and dtypes."""
        return parse_masks(self.mask or [])

    def resolved(self, sizes: Mapping[str, int], dtype: str) -> Masks:
        """The masks of a run of these sizes.

        Raises:
            OptionError, SizeError: they do not fit it.
        """
        masks = self.masks
        if self.mask:
            fill = -inf if self.fill is None else self.fill
            masks.resolve(style=self.style, fill=fill, rows=self.rows, dtype=dtype)
        else:
            masks.resolve(style=None, fill=-inf, rows=None, dtype=dtype)
        added = self.fill is not None and masks.files and not masks.fills
        why = f"{masks.files[0]} is added as it is" if added else ""
        warn_idle([(added, "--mask-fill", why)])
        if added:
            masks.fill = -inf
        masks.align = self.align or ("bottom-right" if "n_past" in sizes else "top-left")  # type: ignore[assignment]
        return masks

    @property
    def theta(self) -> float | None:
        """The base of rotary positions, or None for none."""
        return (THETA if self.rope_theta is None else self.rope_theta) if self.rope else None

    def contract(self, sizes: Mapping[str, int], masks: Masks, **more: Any) -> Variant:
        """What the contract needs to know."""
        return Variant(
            scale=more.pop("scale", self.scale),
            mask=masks.dims(sizes),
            mask_dtype="bool" if masks.style == "bool" else "",
            mask_fill=masks.fill,
            masked_rows=masks.rows,
            rope_theta=self.theta,
            softcap=self.softcap,
            **more,
        )

    def arguments(self, masks: Masks) -> dict[str, Any]:
        """The code's arguments, but for tensors and scale; those of usual value are left out."""
        import torch

        chosen = {
            "mask_fill": masks.fill if self.mask else None,
            "masked_rows": masks.rows,
            "softcap": self.softcap,
            "rope_theta": self.theta,
            "align": masks.align if self.rope else None,
            "softmax_dtype": getattr(torch, self.softmax_dtype) if self.softmax_dtype else None,
        }
        return {name: value for name, value in chosen.items() if value is not None}

    def described(self, masks: Masks, dtype: str) -> dict[str, Any]:
        """What decides the numbers, by name, for the heading and for records."""
        about: dict[str, Any] = {"softmax_dtype": self.softmax_dtype or dtype}
        if masks:
            about |= {"mask": masks.texts, "mask_style": masks.style, "mask_fill": masks.fill}
        if masks.positional or self.rope:
            about["align"] = str(masks.align)
        about |= {"masked_rows": masks.rows} if masks.rows else {}
        about |= {"softcap": self.softcap} if self.softcap is not None else {}
        about |= {"rope_theta": self.theta} if self.rope else {}
        return about


def findings(masks: Masks, hidden: int | None, rows: int) -> list[Finding]:
    """What a user should know about the masks.

    Args:
        masks: of the run.
        hidden: how many rows of the scores see no key, or None where that is not known.
        rows: how many there are.
    """
    found = []
    if masks.causal and masks.prefixes:
        found.append(
            Finding(
                "causal hides again what prefix shows beyond it, because a query's keys must pass every"
                " mask: a prefix LM's mask is prefix alone."
            )
        )
    if hidden:
        found.append(Finding(f"{hidden} of {rows} rows of the scores see no key at all: {_fate(masks)}"))
    return found


def _fate(masks: Masks) -> str:
    """What becomes of a query that sees no key, and why."""
    zero = "--masked-rows zero gives zeros, as F.scaled_dot_product_attention does."
    if masks.rows == "zero":
        return "they attend to nothing, and their result is 0, as --masked-rows zero asks."
    if masks.rows == "uniform":
        return f"they attend to every key alike, hidden ones too, as --masked-rows uniform asks. {zero}"
    if masks.rows == "nan":
        return (
            f"they are NaN, as --masked-rows nan asks, and so is all that is computed from them. {zero}"
        )
    if masks.fill == -inf:
        return (
            "the softmax of a row of -inf is 0/0, which is NaN, and so is all that is computed from it."
            f" {zero}"
        )
    if masks.style == "bool":
        return (
            f"every score in them is {masks.fill:g}, so that the softmax weighs all keys alike, and they"
            f" collect the mean of what they should not see. {zero}"
        )
    return (
        f"{masks.fill:g} is added to every score in them, and a softmax does not see what is added to"
        " all:"
        f" they attend as if nothing were hidden, as far as rounding leaves their scores. {zero}"
    )
