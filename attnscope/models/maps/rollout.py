"""Attention rollout: how much of each input token reaches each token behind a layer.

Source: Abnar & Zuidema 2020, "Quantifying Attention Flow in Transformers", whose rollout multiplies the
maps of all layers: Ā_l is the mean over a layer's heads, ½(Ā_l + I) stands for it and the residual
connection around it, and R_l = ½(Ā_l + I) R_{l−1}, beginning with R = I.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import torch


class Rollout:
    """The rollout of one stack of layers, from the first layer up.

    Attributes:
        n_layer: the number of layers that it includes.
    """

    def __init__(self) -> None:
        self.n_layer = 0
        self._product: torch.Tensor | None = None  # R of the layers so far
        self._sum: torch.Tensor | None = None  # of the weights of the current layer's heads so far
        self._n_head = 0

    def add(self, attention: torch.Tensor, n_head: int) -> torch.Tensor | None:
        """Add some heads of the current layer; return R up to it, `n n`, when these are its last.

        Args:
            attention: the weights of these heads, `n_head n n`.
            n_head: the number of the layer's heads, all together.
        """
        import torch

        dtype = torch.promote_types(attention.dtype, torch.float32)
        part = attention.sum(dim=0, dtype=dtype)
        self._sum = part if self._sum is None else self._sum.add_(part)
        self._n_head += len(attention)
        if self._n_head < n_head:
            return None
        layer = self._sum.div_(2 * n_head)  # ½ Ā
        layer.diagonal().add_(0.5)
        self._product = layer if self._product is None else layer @ self._product
        self._sum, self._n_head, self.n_layer = None, 0, self.n_layer + 1
        return self._product
