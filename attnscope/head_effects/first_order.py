"""Estimate effects of all heads from one gradient: attribution patching.

Source: Nanda (2023), "Attribution Patching"; Kramár et al. (2024), "AtP*: An efficient and scalable
method for localizing LLM behaviour to components", equation 4
"""

from __future__ import annotations

import torch


def estimates(own: torch.Tensor, others: torch.Tensor, gradient: torch.Tensor) -> torch.Tensor:
    """Return the estimated change of the metric if one position is replaced, `n_Q n_head`.

    Args:
        own: the heads' outputs in the run of the gradient, `n_Q n_head d_V`.
        others: those that replace them.
        gradient: the metric's gradient in `own`.
    """
    precise = torch.promote_types(own.dtype, torch.float32)
    return ((others.to(precise) - own.to(precise)) * gradient.to(precise)).sum(dim=-1)
