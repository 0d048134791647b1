"""A side that is the textbook: `sdpa` or `mha`, with the inputs and weights of the other side."""

from __future__ import annotations

from typing import Any

import torch

from attnscope.attention.masks import causal
from attnscope.attention.mha import MultiHeadAttention
from attnscope.attention.sdpa import sdpa
from attnscope.comparison.anatomy.anatomy import Anatomy
from attnscope.comparison.sides.parameters import matched
from attnscope.comparison.sides.side import Side, tensors_of
from attnscope.errors import OptionError

NAMES = ("Q", "K", "V", "mask")


def _inputs(side: Side, same: dict[str, str], title: str) -> dict[str, Any]:
    """Return Q, K, V and the mask from the inputs of the other side."""
    tensors = tensors_of(side)
    pairs = matched(NAMES, list(tensors), same, title)
    missing = [name for name in NAMES[:3] if name not in pairs]
    if missing:
        raise OptionError(
            f"no input of {side.title} is known to be {', '.join(missing)} of {title}: it has"
            f" {', '.join(tensors)}.",
            hint=f"--same {missing[0]}={next(iter(tensors), 'x')}",
        )
    inputs = {name: tensors[other] for name, other in pairs.items()}
    if "mask" in inputs:
        inputs["mask"] = _as_mask(inputs["mask"])
    return inputs


def _as_mask(mask: torch.Tensor) -> torch.Tensor:
    """Return a mask of numbers 0 and 1 as True where a query may attend; others unchanged."""
    is_binary = bool(((mask == 0) | (mask == 1)).all()) and bool((mask == 1).any())
    return mask.bool() if mask.dtype != torch.bool and is_binary else mask


def sdpa_side(side: Side, same: dict[str, str], options: dict[str, Any]) -> Side:
    """Return scaled dot-product attention on the inputs of the other side."""
    inputs = _inputs(side, same, "sdpa")
    if options.pop("causal", False):
        inputs["mask"] = causal(inputs["Q"].shape[-2], inputs["K"].shape[-2])

    def reference(**given: Any) -> Any:
        return sdpa(**given, **options)

    return Side("sdpa", reference, inputs)


def mha_side(side: Side, anatomy: Anatomy, same: dict[str, str], options: dict[str, Any]) -> Side:
    """Return multi-head attention of the sizes of the other side, on its inputs.

    Args:
        side: the other side.
        anatomy: what it computes.
        same: pairs of parameters that the user states.
        options: of `MultiHeadAttention`, and `causal`.

    Raises:
        OptionError: the other side has no projections.
    """
    projections = anatomy.projections
    missing = [name for name in "QKV" if name not in projections]
    if missing:
        raise OptionError(
            f"{side.title} has no projection for {', '.join(missing)}: it is not multi-head attention.",
            hint="compare it with sdpa",
        )
    inputs = _inputs(side, same, "mha")
    if "mask" in inputs and inputs["mask"].ndim == 3:  # one for all heads
        inputs["mask"] = inputs["mask"].unsqueeze(1)
    if options.pop("causal", False):
        inputs["mask"] = causal(inputs["Q"].shape[-2], inputs["K"].shape[-2])
    d_feat = inputs["Q"].shape[-1]
    d_head = anatomy.roles["Q"].tensor.shape[-1]
    d_V = anatomy.roles["V"].tensor.shape[-1]
    n_head = projections["Q"].features.numel() // d_head
    module = MultiHeadAttention(
        d_feat=d_feat,
        n_head=n_head,
        d_head=d_head,
        n_kv_head=projections["K"].features.numel() // d_head,
        d_V=d_V,
        d_context=inputs["K"].shape[-1],
        bias=any(each.bias is not None for each in projections.values()),
        dtype=inputs["Q"].dtype,
        **options,
    )
    for parameter in module.parameters():
        torch.nn.init.zeros_(parameter)
    return Side("mha", module.eval(), inputs, module=module)
