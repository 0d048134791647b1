"""The variants of attention that the options select: for the contract, the code, and the heading."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from math import inf
from typing import Any

from attnscope.attention.mask_rules import Masks, parse_masks
from attnscope.base.dtypes import FLOATS
from attnscope.base.errors import OptionError, dtype_hint, warn_unused
from attnscope.base.options import Alignment, one_of
from attnscope.base.spelling import spelled
from attnscope.formula.options import MaskedRows, Masking, MaskStyle, Scale, Stages
from attnscope.observe.contracts import Variant, stages_of


@dataclass(frozen=True)
class Variants:
    """The variants of one run, before its sizes are known.

    Attributes:
        masking: how the masks are applied.
        masks: the masks themselves.
        scale: the factor of the scores; None: 1/√width.
        softcap: the bound for soft-capping the scores, or None.
        theta: the base of rotary positions, or None for none.
        softmax_dtype: the dtype of the softmax; None: that of the scores.
    """

    masking: Masking
    masks: Masks
    scale: float | None
    softcap: float | None
    theta: float | None
    softmax_dtype: str | None

    def masks_for(self, sizes: Mapping[str, int], dtype: str, *, columns: bool = False) -> Masks:
        """Return the masks as they are applied in a run of these sizes and this dtype.

        Args:
            sizes: the sizes of the run.
            dtype: the dtype of the scores.
            columns: whether masks from files are n_K n_Q.

        Raises:
            OptionError: the fill hides nothing, or is outside the range of the dtype.
            FileError: a file cannot be read.
        """
        fill = self.masking.mask_fill
        align = self.masking.align or ("bottom-right" if "n_past" in sizes else "top-left")
        if not self.masks:
            return self.masks.applied(align=str(align), dtype=dtype)
        masks = self.masks.applied(
            align=str(align),
            dtype=dtype,
            style=self.masking.mask_style,
            fill=-inf if fill is None else fill,
            rows=self.masking.masked_rows,
            columns=columns,
        )
        if fill is not None and masks.files and not masks.fills:
            warn_unused([(True, "mask_fill", f"{masks.files[0]} is added unchanged")])
            return masks.filled_with(-inf)
        return masks

    def contract(
        self, sizes: Mapping[str, int], masks: Masks, *, scale: float | None, **more: Any
    ) -> Variant:
        """Return the variant for the contract; `more` as in `attnscope.observe.contracts.Variant`."""
        return Variant(
            scale=scale,
            mask=masks.dims(sizes),
            mask_dtype="bool" if masks.style == "bool" else "",
            mask_fill=masks.fill,
            masked_rows=masks.rows,
            rope_theta=self.theta,
            after_past=masks.align == "after-past",
            shortest=min(masks.ends) if masks.align == "lengths" and masks.ends else None,
            softcap=self.softcap,
            **more,
        )

    def arguments(self, masks: Masks) -> dict[str, Any]:
        """Return the code's arguments except tensors and scale; defaults are left out."""
        import torch

        chosen = {
            "mask_fill": masks.fill if masks else None,
            "masked_rows": masks.rows,
            "softcap": self.softcap,
            "rope_theta": self.theta,
            "align": masks.align if self.theta is not None else None,
            "softmax_dtype": getattr(torch, self.softmax_dtype) if self.softmax_dtype else None,
        }
        return {name: value for name, value in chosen.items() if value is not None}

    def of_sequences(self, masks: Masks) -> dict[str, Any]:
        """Return the code's arguments that belong to the sequences of one call, beside its tensors."""
        placed = self.theta is not None and masks.align == "lengths"
        return {"lengths": masks.ends} if placed else {}

    def described(self, masks: Masks, dtype: str) -> dict[str, Any]:
        """Return the options that determine the numbers, by name, for the heading and for records."""
        about: dict[str, Any] = {"softmax_dtype": self.softmax_dtype or dtype}
        if masks:
            about |= {"mask": list(masks.texts), "mask_style": masks.style, "mask_fill": masks.fill}
        if masks.positional or self.theta is not None:
            about["align"] = masks.align
        about |= {"masked_rows": masks.rows} if masks.rows else {}
        about |= {"softcap": self.softcap} if self.softcap is not None else {}
        about |= {"rope_theta": self.theta} if self.theta is not None else {}
        return about


def variants_of(masking: Masking, scale: Scale, stages: Stages) -> Variants:
    """Return the variants that the options select; warn about options without effect.

    Raises:
        OptionError: an option has an invalid value.
        FileError: the file of a mask cannot be read.
    """
    masking = Masking(
        masking.mask,
        one_of(MaskStyle, "mask_style", masking.mask_style),
        masking.mask_fill,
        one_of(Alignment, "align", masking.align),
        one_of(MaskedRows, "masked_rows", masking.masked_rows),
    )
    softcap, theta = stages_of(scale.scale, stages.softcap, stages.rope, stages.rope_theta)
    if stages.softmax_dtype is not None and stages.softmax_dtype not in FLOATS:
        raise OptionError(
            f"{stages.softmax_dtype!r} is not a dtype that a softmax runs in.",
            hint=dtype_hint(stages.softmax_dtype, FLOATS, "softmax_dtype"),
        )
    masks = parse_masks(masking.mask)
    if masking.align == Alignment.LENGTHS and not masks.lengths:
        raise OptionError(
            f"{spelled('align', 'lengths')} puts the queries at the end of each sequence's keys, but"
            " no mask says how many keys each sequence has.",
            hint=spelled(mask="lengths:N,N,…", align="lengths"),
        )
    warn_unused(_idle(masking, masks, stages))
    return Variants(masking, masks, scale.scale, softcap, theta, stages.softmax_dtype)


def _idle(masking: Masking, masks: Masks, stages: Stages) -> list[tuple[object, str, str]]:
    """Return for each option whether it has no effect, its name, and the reason."""
    no_theta = f"there are no rotary positions ({spelled('rope')})"
    no_mask = f"there is no mask ({spelled('mask')})"
    no_places = "nothing here depends on the positions of queries and keys"
    nowhere = not (stages.rope or masks.positional)
    return [
        (masking.mask_style is not None and not masks, "mask_style", no_mask),
        (masking.mask_fill is not None and not masks, "mask_fill", no_mask),
        (masking.masked_rows is not None and not masks, "masked_rows", no_mask),
        (stages.rope_theta is not None and not stages.rope, "rope_theta", no_theta),
        (masking.align is not None and nowhere, "align", no_places),
    ]
