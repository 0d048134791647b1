"""Attention through a few landmarks, whose weights are inverted by products with themselves (Xiong et al. 2021)."""

import torch
from torch import nn


class LandmarkAttention(nn.Module):
    """Queries attend to mean keys, mean queries to keys; the inverse of the means' attention joins the two.

    `mask` is one for keys and zero for padding.
    """

    def __init__(self, dim=24, n_head=3, n_landmark=4):
        super().__init__()
        self.n_head, self.n_landmark = n_head, n_landmark
        self.to_qkv = nn.Linear(dim, 3 * dim)

    def forward(self, x, mask):
        b, n, dim = x.shape
        qkv = self.to_qkv(x).view(b, n, 3, self.n_head, dim // self.n_head)
        q, k, v = qkv.permute(2, 0, 3, 1, 4)
        q = q * q.size(-1) ** -0.5
        mean_q = q.unflatten(2, (self.n_landmark, -1)).mean(3)
        mean_k = k.unflatten(2, (self.n_landmark, -1)).mean(3)
        to_means = (q @ mean_k.mT).softmax(-1)
        of_means = (mean_q @ mean_k.mT).softmax(-1)
        from_means = (mean_q @ k.mT - 1e9 * (1 - mask[:, None, None])).softmax(-1)
        heads = to_means @ self.inverse(of_means) @ (from_means @ v)
        return heads.transpose(1, 2).reshape(b, n, dim)

    def inverse(self, weights, turns=8):
        """The pseudo-inverse, by an iteration of the third order."""
        one = torch.eye(weights.size(-1), device=weights.device, dtype=weights.dtype)
        columns = weights.sum(-2).amax(-1)[..., None, None]
        inverse = 1 / columns * weights.transpose(-1, -2)
        for _ in range(turns):
            product = weights @ inverse
            inverse = 0.25 * inverse @ (13 * one - product @ (15 * one - product @ (7 * one - product)))
        return inverse
