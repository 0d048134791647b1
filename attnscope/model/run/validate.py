"""Check that the tensors that a model returned as attention weights are weights.

The `output_attentions` of some models are not: those of SqueezeBERT and of ProphetNet's encoder are
scores. So every row that is shown is checked.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from attnscope.base.errors import ModelError

if TYPE_CHECKING:
    import torch


class NotWeightsError(ModelError):
    """A model returned something other than weights as its attention."""


def check_rows(
    attention: torch.Tensor,
    name: str,
    kind: str,
    layer: int,
    stack: str = "self",
    *,
    sinks: bool = False,
    real: torch.Tensor | None = None,
) -> None:
    """Check that rows are the output of a softmax: no weight below 0, and a sum of 1.

    A row may be 0 altogether, if a query has no visible key. With sinks, which take a part of each row
    and are not keys, the sum may be less than 1.

    Args:
        attention: `… n_Q n_K`, in the dtype in which the model returned it.
        real: `n_batch n_Q`, False for queries that are padding, which are not checked, if the attention
            is `n_batch n_head n_Q n_K`; None: all are checked.
    """
    import torch

    if attention.numel() == 0:
        return
    where = f"layer {layer}" if stack == "self" else f"layer {layer} of its {stack}"
    sums = attention.sum(-1, dtype=torch.promote_types(attention.dtype, torch.float32))
    least = attention.amin(-1)
    if real is not None:
        sums, least = (each.transpose(1, 2)[real] for each in (sums, least))
    if sums.numel() == 0:
        return
    if not bool(sums.isfinite().all()):
        raise ModelError(
            f"the attention of {name} is not finite in {where}.",
            hint="--dtype float32" if attention.dtype == torch.float16 else None,
        )
    margin = tolerance(attention)
    negative, beyond = least < -margin, sums > 1 + margin
    incomplete = (sums < 1 - margin) & ((sums != 0) | (least != 0))
    scores = bool((negative | beyond).any())
    if not scores and (sinks or not bool(incomplete.any())):
        return
    what = "scores rather than weights" if scores else "a part of its weights"
    low, high = f"{float(sums.min()):.3g}", f"{float(sums.max()):.3g}"
    found = f"sum to {low}" if low == high else f"sum to between {low} and {high}"
    if bool(negative.any()):
        found += f", the smallest number is {float(least.min()):.3g}"
    raise NotWeightsError(
        f"{name} is a {kind}, which returns {what} as its attention: in {where}, rows {found}."
        " Each row of weights must sum to 1, without negative weights."
    )


def tolerance(attention: torch.Tensor) -> float:
    """Return the largest difference of a row's sum from 1 that rounding explains.

    Each weight is rounded by at most half its dtype's precision of itself, or, where it is tiny, by
    half of the smallest number; the softmax and the sum are float32's, or better.
    """
    import torch

    info, single = torch.finfo(attention.dtype), torch.finfo(torch.float32)
    n_K = attention.shape[-1]
    return 1e-4 + 2 * info.eps + n_K * (info.smallest_normal * info.eps + single.eps)
