"""The past: keys and values that were computed before, and are kept while a text grows."""

from __future__ import annotations

import torch


def with_past(past: torch.Tensor | None, new: torch.Tensor, dim: int = -2) -> torch.Tensor:
    """The keys (or values) of the past, and after them the new ones.

    Args:
        past: `… n_past d`; None: there is none, and the new ones stay as they are.
        new: `… n_new d`.
        dim: the axis of the positions.

    Returns:
        `… n_K d`, where n_K = n_past + n_new.

    Source: Pope et al. 2022, "Efficiently Scaling Transformer Inference", section 2.1.
    """
    if past is None:
        return new
    return torch.cat((past, new), dim=dim)
