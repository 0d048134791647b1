"""Masks: which queries may attend to which keys."""

from __future__ import annotations

import torch

from attnscope.errors import OptionError


def masked(scores: torch.Tensor, mask: torch.Tensor | None) -> torch.Tensor:
    """The scores, with -inf (or less, for an additive mask) where a query must not look.

    Args:
        scores: `… n_Q n_K`, logits.
        mask: anything that broadcasts to the scores. Boolean: True where the query may
            attend. Floating point: added to the scores. None: every query sees every key,
            and the scores are returned as they are.

    Returns:
        `… n_Q n_K`, logits.

    Raises:
        OptionError: the mask is neither boolean nor floating point.

    Source: Vaswani et al. 2017, "Attention Is All You Need", section 3.2.3.
    """
    if mask is None:
        return scores
    if not (mask.dtype == torch.bool or mask.is_floating_point()):
        raise OptionError(
            f"a mask of {mask.dtype} can mean either 'may attend' or 'add to the scores'.",
            hint="mask.bool(), if True is where a query may attend",
        )
    if mask.dtype == torch.bool:
        return scores.masked_fill(~mask, float("-inf"))
    return scores + mask
