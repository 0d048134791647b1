"""Heads that are mixed by a learned matrix: before the softmax, after it, or both."""

import torch
from torch import nn


class TalkingHeadsAttention(nn.Module):
    """Talking heads (Shazeer et al. 2020): logits and weights are mixed over the heads."""

    def __init__(self, width=48, n_head=4):
        super().__init__()
        self.n_head = n_head
        self.scale = (width // n_head) ** -0.5
        self.in_proj = nn.Linear(width, 3 * width, bias=False)
        self.mix_logits = nn.Parameter(torch.randn(n_head, n_head))
        self.mix_weights = nn.Parameter(torch.randn(n_head, n_head))
        self.out_proj = nn.Linear(width, width)

    def forward(self, x):
        b, n, width = x.shape
        q, k, v = self.in_proj(x).view(b, n, 3, self.n_head, -1).permute(2, 0, 3, 1, 4)
        logits = torch.einsum("bhid,bhjd->bhij", q, k) * self.scale
        logits = torch.einsum("b h i j, h g -> b g i j", logits, self.mix_logits)
        weights = logits.softmax(dim=-1)
        weights = torch.einsum("b h i j, h g -> b g i j", weights, self.mix_weights)
        heads = torch.einsum("bhij,bhjd->bihd", weights, v)
        return self.out_proj(heads.reshape(b, n, width))


class ReAttention(nn.Module):
    """Re-attention (DeepViT, Zhou et al. 2021): mixed weights are normalized over the heads."""

    def __init__(self, width=48, n_head=4):
        super().__init__()
        self.n_head = n_head
        self.in_proj = nn.Linear(width, 3 * width, bias=False)
        self.mix = nn.Linear(n_head, n_head, bias=False)
        self.norm = nn.LayerNorm(n_head)
        self.out_proj = nn.Linear(width, width)

    def forward(self, x):
        b, n, width = x.shape
        q, k, v = (t.view(b, n, self.n_head, -1).transpose(1, 2) for t in self.in_proj(x).chunk(3, -1))
        logits = q @ k.transpose(-1, -2) / q.size(-1) ** 0.5
        weights = logits.softmax(dim=-1)
        by_head = self.mix(weights.permute(0, 2, 3, 1))
        weights = self.norm(by_head).permute(0, 3, 1, 2)
        return self.out_proj((weights @ v).transpose(1, 2).reshape(b, n, width))
