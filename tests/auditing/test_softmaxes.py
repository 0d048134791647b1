"""A window reaches further through layers that follow each other, however they are written."""

from __future__ import annotations

import pytest
import torch
from torch import nn

import attnscope
from attnscope.auditing.code.runs import depths_of
from attnscope.observe.operators.tape import Tape


class Layer(nn.Module):
    """Causal attention with a window, beside a residual."""

    def __init__(self, window: int = 3, fused: bool = False) -> None:
        super().__init__()
        self.window, self.fused = window, fused

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        n = torch.arange(x.shape[1])
        see = (n <= n[:, None]) & (n > n[:, None] - self.window)
        if self.fused:
            return x + nn.functional.scaled_dot_product_attention(x, x, x, attn_mask=see, scale=1 / 16)
        weights = (x @ x.mT / 16).masked_fill(~see, float("-inf")).softmax(-1)
        return x + nn.functional.dropout(weights, 0.1, training=False) @ x


class InSequential(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.layers = nn.Sequential(Layer(), Layer(fused=True))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.layers(x)


class ByName(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.first, self.second = Layer(), Layer()

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.second(self.first(x))


class Twice(nn.Module):
    """One layer that runs twice, beside a list of heads that is not a list of layers."""

    def __init__(self) -> None:
        super().__init__()
        self.layer = Layer()

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.layer(self.layer(x))


class Heads(nn.Module):
    """One layer, whose heads are a list."""

    def __init__(self, window: int = 3) -> None:
        super().__init__()
        self.heads = nn.ModuleList(Layer(window) for _ in range(4))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return sum(head(x) for head in self.heads)


class WideHeads(Heads):
    def __init__(self) -> None:
        super().__init__(window=7)


def audited(code, window: int) -> attnscope.Audit:
    return attnscope.audit(code, inputs={"x": "B:2,T:17,d:8"}, causal=True, window=window)


@pytest.mark.few(1)
@pytest.mark.parametrize("code", [InSequential, ByName, Twice])
def test_a_window_of_two_layers_reaches_twice_as_far(code):
    audit = audited(code, 3)
    assert audit["window"].status == audit["coverage"].status == "holds"
    assert audit["window"].found.endswith("outside of 5 through 2 layers")
    assert audited(code, 2)["window"].status == "broken"


@pytest.mark.sweep
def test_heads_beside_each_other_are_one_layer():
    audit = audited(Heads, 3)
    assert audit["window"].status == audit["coverage"].status == "holds"
    assert audited(WideHeads, 3)["window"].status == "broken"


@pytest.mark.parametrize("n_layer", [1, 3])
def test_the_layers_of_torch_are_counted(n_layer):
    layer = nn.TransformerEncoderLayer(8, 2, 16, batch_first=True)
    model = nn.TransformerEncoder(layer, n_layer).eval()
    with torch.no_grad(), Tape() as tape:
        model(torch.randn(2, 5, 8))
    assert max(depths_of(tape).values()) == n_layer


def test_a_softmax_over_words_or_experts_is_not_a_layer():
    x, head, experts = torch.randn(2, 5, 8), nn.Linear(8, 11), nn.Linear(8, 3)
    with torch.no_grad(), Tape() as tape:
        chosen = experts(x).softmax(-1)[..., :1] * x
        head(Layer()(head(chosen)[..., :8])).log_softmax(-1)
    assert max(depths_of(tape).values()) == 1


@pytest.mark.parametrize("times", [torch.mm, torch.matmul, lambda a, b: torch.tensordot(a, b, 1)])
def test_every_product_with_the_weights_is_a_layer(times):
    x = torch.randn(5, 8)
    with Tape() as tape:
        times(torch.softmax(times(x, x.T), -1), x)
    assert max(depths_of(tape).values()) == 1
