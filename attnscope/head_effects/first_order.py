"""Estimate effects of all heads from one gradient: attribution patching.

Source: Nanda (2023), "Attribution Patching"; Kramár et al. (2024), "AtP*: An efficient and scalable
method for localizing LLM behaviour to components", equation 4
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch

from attnscope.checkpoints.checkpoint import Checkpoint
from attnscope.head_effects.baseline import Baseline
from attnscope.head_effects.metric import predict
from attnscope.models.load import as_model_error


def gradients(checkpoint: Checkpoint, model: Any, baseline: Baseline) -> list[torch.Tensor]:
    """Return the metric's gradient in the outputs of each layer's heads, `n_Q n_head d_V`.

    Args:
        checkpoint: the model's checkpoint, for errors.
        model: the model.
        baseline: its run.
    """
    by_layer: dict[int, torch.Tensor] = {}

    def add_leaf(index: int, outputs: torch.Tensor) -> torch.Tensor:
        by_layer[index] = torch.zeros_like(outputs, requires_grad=True)
        return outputs + by_layer[index]

    with torch.enable_grad(), as_model_error(checkpoint), baseline.heads.observed(add_leaf, 1):
        value = baseline.metric.of(predict(model, baseline.inputs, baseline.metric))[0]
        leaves = [by_layer[index] for index in range(len(baseline.layers))]
        found = torch.autograd.grad(value, leaves, allow_unused=True)
    zipped = zip(leaves, found, strict=True)
    return [(torch.zeros_like(leaf) if grad is None else grad)[0].detach() for leaf, grad in zipped]


def estimates(
    own: torch.Tensor, others: torch.Tensor, gradient: torch.Tensor, at: Sequence[int] | None
) -> torch.Tensor:
    """Return the estimated change of the metric at each position, `n_Q n_head`; 0 where nothing changes.

    Args:
        own: the heads' outputs in the run of the gradient, `n_Q n_head d_V`.
        others: those that replace them.
        gradient: the metric's gradient.
        at: the positions that are changed; None: all.
    """
    precise = torch.promote_types(own.dtype, torch.float32)
    changes = ((others.to(precise) - own.to(precise)) * gradient.to(precise)).sum(dim=-1)
    if at is None:
        return changes
    kept = torch.zeros_like(changes)
    kept[list(at)] = changes[list(at)]
    return kept
