"""The past: keys and values cached from earlier positions during generation."""

from __future__ import annotations

import torch


def with_past(past: torch.Tensor | None, new: torch.Tensor, dim: int = -2) -> torch.Tensor:
    """Append new keys (or values) to those of the past.

    Args:
        past: `… n_past d`; None: return the new ones unchanged.
        new: `… n_new d`.
        dim: the axis of the positions.

    Returns:
        `… n_K d`, where n_K = n_past + n_new.

    Source: Pope et al. 2022, "Efficiently Scaling Transformer Inference", section 2.1.
    """
    if past is None:
        return new
    return torch.cat((past, new), dim=dim)
