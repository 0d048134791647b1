"""FlexAttention, and operators that modes see whole: they run as they do untraced, and their costs count."""

import pytest
import torch
from torch.nn.attention.flex_attention import flex_attention

from attnscope import inspect, trace

SOURCE = """
import torch
import torch.nn.functional as F
from torch import nn
from torch.nn.attention.flex_attention import create_block_mask, flex_attention

compiled = torch.compile(flex_attention, backend="aot_eager")


def dense(q, k, v):
    out = flex_attention(q, k, v)
    return out


def causal(q, k, v):
    def earlier(b, h, i, j):
        keep = i >= j
        return keep

    mask = create_block_mask(earlier, None, None, q.shape[-2], k.shape[-2], device="cpu")
    out = flex_attention(q, k, v, block_mask=mask)
    return out


def biased(q, k, v):
    slopes = torch.arange(q.shape[1]) / 8

    def relative(score, b, h, i, j):
        distance = slopes[h] * (j - i)
        return score + distance

    out = flex_attention(q, k, v, score_mod=relative, scale=0.5)
    return out


def grouped(q, k, v):
    out = flex_attention(q, k[:, :1], v[:, :1], enable_gqa=True)
    return out


def half(q, k, v):
    out = flex_attention(q.bfloat16(), k.bfloat16(), v.bfloat16())
    return out


def in_inference_mode(q, k, v):
    with torch.inference_mode():
        out = flex_attention(q, k, v)
    return out


def compiled_before(q, k, v):
    out = compiled(q, k, v)
    return out


def plain(q, k, v):
    scores = q @ k.mT / q.shape[-1] ** 0.5
    out = scores.softmax(-1) @ v
    return out


def infers(q, k, v):
    with torch.inference_mode():
        scores = torch.einsum("bhid,bhjd->bhij", q, k) / q.shape[-1] ** 0.5
        out = scores.softmax(-1) @ v
        same = F.linear(out, torch.ones(3, v.shape[-1]))
    return same


def infers_wrongly(q, k, v):
    with torch.inference_mode():
        scores = q @ k.mT / q.shape[-1] ** 0.5
        attention = scores.softmax(-2)
        out = attention @ v
    return out
"""
B, H, L, S, D, D_V = 2, 4, 130, 150, 8, 16
PRODUCTS = 2 * B * H * L * S * (D + D_V)
FLEX = [
    *("dense", "causal", "biased", "grouped", "half", "in_inference_mode", "compiled_before"),
]


@pytest.fixture
def mine(module_of):
    return module_of(SOURCE)


def tensors():
    torch.manual_seed(0)
    return torch.randn(B, H, L, D), torch.randn(B, H, S, D), torch.randn(B, H, S, D_V)


@pytest.mark.few(1)
@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("name", FLEX)
def test_flex_attention_computes_the_same_and_all_of_its_products_count(mine, name):
    function = getattr(mine, name)
    expected = function(*tensors())
    with trace(function, stats=True) as result:
        out = function(*tensors())
    assert torch.equal(out, expected)
    step = result["out"]
    assert (result.tracing_error, result.findings, step.flops) == (None, [], PRODUCTS)
    scores = B * H * L * S * 4  # float32, whatever the inputs are; more than once
    assert step.fresh_bytes > 2 * scores


@pytest.mark.sweep
@pytest.mark.filterwarnings("ignore")
def test_axes_are_named_through_flex_attention(mine):
    inputs = ["q=b:2,h:4,n:12,d:8", "k=b,h,m:15,d", "v=b,h,m,e:6"]
    result = inspect(mine.causal, inputs=inputs)
    assert (result.crash, result.tracing_error, result.findings) == (None, None, [])
    assert result["out"].dims == ("b", "h", "n", "e")
    assert result["out"].flops == 2 * 2 * 4 * 12 * 15 * (8 + 6)


@pytest.mark.sweep
@pytest.mark.filterwarnings("ignore")
@pytest.mark.usefixtures("with_torch")
def test_that_a_compiled_kernel_shows_no_cost_is_said(mine):
    inputs = ["q=b:2,h:4,n:12,d:8", "k=b,h,m:15,d", "v=b,h,m,d"]
    notice = "the cost of flex_attention's compiled kernel is not counted"
    assert notice in inspect(mine.compiled_before, inputs=inputs).notices


def test_what_another_program_has_compiled_is_not_told(mine, tmp_path):
    other = torch.compile(flex_attention)
    file = tmp_path / "plain.py"
    file.write_text("def double(x):\n    y = x + x\n    return y\n")
    assert inspect(f"{file}:double", inputs=["x=3,4"]).notices == []
    assert other is not None, "it is alive"


def test_products_count_in_inference_mode_too(mine):
    with trace(mine.infers) as inferred:
        mine.infers(*tensors())
    with trace(mine.plain) as plain:
        mine.plain(*tensors())
    flops = {step.name: step.flops for step in plain.steps}
    assert [flops["scores"], flops["out"]] == [2 * B * H * L * S * D, 2 * B * H * L * S * D_V]
    assert {step.name: step.flops for step in inferred.steps if step.name in flops} == flops
    assert inferred["same"].flops == 2 * B * H * L * D_V * 3
    assert inferred.findings == []


def test_mistakes_are_found_in_inference_mode_too(mine):
    with trace(mine.infers_wrongly) as result:
        mine.infers_wrongly(*tensors())
    assert ["softmax" in finding.message for finding in result.findings] == [True]
