"""Which head of which sequence of one side is which of the other."""

from __future__ import annotations

from collections.abc import Mapping

import torch

ANCHORS = ("Q", "scores", "K", "V", "x_raw", "attention")


def matching_leads(a: Mapping[str, torch.Tensor], b: Mapping[str, torch.Tensor]) -> torch.Tensor:
    """Return for each lead position of a the one of b that holds the same numbers.

    If no tensor has the same numbers on both sides, the leads keep their order.

    Args:
        a, b: tensors by role, `lead …`.
    """
    n_lead = a["Q"].shape[0]
    unchanged = torch.arange(n_lead)
    if b["Q"].shape[0] != n_lead:
        return unchanged
    for anchor in ANCHORS:
        if anchor not in a or anchor not in b or a[anchor].shape != b[anchor].shape:
            continue
        similarity = _directions(a[anchor]) @ _directions(b[anchor]).T
        best, order = similarity.max(1)
        if bool((best > 1 - 1e-6).all()) and order.unique().numel() == n_lead:
            return order
    return unchanged


def _directions(tensor: torch.Tensor) -> torch.Tensor:
    """Return each lead's numbers as a vector of length one."""
    real = torch.view_as_real(tensor) if tensor.is_complex() else tensor
    flat = torch.nan_to_num(real.double(), posinf=0.0, neginf=0.0).flatten(1)
    return flat / flat.norm(dim=1, keepdim=True).clamp_min(1e-30)
