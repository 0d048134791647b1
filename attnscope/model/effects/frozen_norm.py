"""Norms with their scale frozen: linear maps that return what the norm returned.

LayerNorm computes (x − mean(x))/σ ⊙ γ + β, and RMSNorm x/σ ⊙ γ. With σ frozen, both are linear in x, so
what enters them can be divided into parts, and each part's share of the output is known.

Source: Elhage et al. (2021), "A Mathematical Framework for Transformer Circuits"; Ba et al. (2016),
arXiv:1607.06450; Zhang and Sennrich (2019), arXiv:1910.07467
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch

LARGE = 1e4
"""The size of the inputs with which a norm is measured: their variance hides the norm's epsilon."""


@dataclass(frozen=True)
class FrozenNorm:
    """A norm as a linear map."""

    #: weight, bias: γ and β, `d_feat`
    weight: torch.Tensor
    bias: torch.Tensor
    scale: torch.Tensor  #: 1/σ of each position, `… 1`
    centred: bool  #: whether the mean is subtracted

    def __call__(self, x: torch.Tensor, output: torch.Tensor) -> torch.Tensor:
        """Return a norm's output, as a linear function of its input, `… d_feat`."""
        change = x - x.detach()
        if self.centred:
            change = change - change.mean(dim=-1, keepdim=True)
        return output.detach() + (change * self.scale * self.weight).to(output.dtype)


def frozen(module: Any, x: torch.Tensor, output: torch.Tensor) -> FrozenNorm | None:
    """Measure the linear map that a norm is at one input, `… d_feat`; None: it is not such a map.

    γ and β are measured too, since classes store them differently, such as γ − 1. The norm has no hooks.
    """
    n = x.shape[-1]
    with torch.no_grad():
        probe = torch.ones(n, dtype=x.dtype, device=x.device)
        probe[1::2] = -1
        if n % 2:  # three entries that sum to 0
            probe[-3:] = torch.tensor([1.0, 1.0, -2.0] if n % 4 == 3 else [-1.0, -1.0, 2.0])
        probe_scale = probe.double().square().mean().sqrt()
        bias = module.forward(torch.zeros_like(probe)[None])[0].double()
        weight = (module.forward((probe * LARGE)[None])[0].double() - bias) * probe_scale / probe
        inputs, outputs = x.double(), output.double() - bias
        limit = 1e-3 if x.dtype in (torch.float32, torch.float64) else 3e-2
        for centred in (False, True):
            base = inputs - inputs.mean(dim=-1, keepdim=True) if centred else inputs
            unscaled = base * weight
            size = unscaled.square().sum(dim=-1, keepdim=True)
            scale = (outputs * unscaled).sum(dim=-1, keepdim=True) / size.clamp_min(1e-300)
            error = (outputs - scale * unscaled).abs().max()
            if float(error) <= limit * float(outputs.abs().max()):
                precise = torch.promote_types(x.dtype, torch.float32)
                return FrozenNorm(weight.to(precise), bias.to(precise), scale.to(precise), centred)
    return None
