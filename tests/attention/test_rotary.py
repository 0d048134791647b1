"""Rotary positions, compared with transformers' Llama and with complex numbers."""

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from transformers import LlamaConfig
from transformers.models.llama.modeling_llama import LlamaRotaryEmbedding, apply_rotary_pos_emb

from attnscope.attention.rotary import rotary_angles, rotated
from attnscope.base.errors import SizeError


@pytest.mark.parametrize("theta", [10000.0, 500000.0])
@pytest.mark.parametrize("start", [0, 3])
def test_it_is_llamas(theta, start):
    n_head, n, d = 2, 5, 8
    config = LlamaConfig(
        hidden_size=n_head * d,
        num_attention_heads=n_head,
        rope_parameters={"rope_type": "default", "rope_theta": theta},
    )
    x = torch.randn(3, n_head, n, d)
    places = torch.arange(start, start + n)[None]
    their_cos, their_sin = LlamaRotaryEmbedding(config)(x, places)
    expected, _ = apply_rotary_pos_emb(x, x, their_cos, their_sin)
    cos, sin = rotary_angles(range(start + n), x, theta)
    torch.testing.assert_close(cos[start:], their_cos[0], rtol=0, atol=1e-6)
    torch.testing.assert_close(sin[start:], their_sin[0], rtol=0, atol=1e-6)
    torch.testing.assert_close(rotated(x, cos, sin, start), expected, rtol=0, atol=1e-6)


@pytest.mark.parametrize("lead", [(3,), (3, 2)])
def test_sequences_that_start_at_positions_of_their_own_are_llamas_too(lead):
    n, d, starts = 5, 8, [4, 0, 7]
    config = LlamaConfig(hidden_size=2 * d, num_attention_heads=2)
    x = torch.randn(*lead, n, d)
    places = torch.tensor([[start + i for i in range(n)] for start in starts])
    their_cos, their_sin = LlamaRotaryEmbedding(config)(x, places)
    heads = x.reshape(3, -1, n, d)
    expected, _ = apply_rotary_pos_emb(heads, heads, their_cos, their_sin)
    ours = rotated(x, *rotary_angles(range(12), x, 10000.0), starts)
    torch.testing.assert_close(ours, expected.reshape(x.shape), rtol=0, atol=1e-6)


@given(
    d=st.integers(1, 6), n=st.integers(1, 5), start=st.integers(0, 7), theta=st.sampled_from([2.0, 1e4])
)
def test_each_pair_is_a_complex_number_that_is_turned(d, n, start, theta):
    x = torch.randn(n, 2 * d, dtype=torch.float64)
    turned = rotated(x, *rotary_angles(range(start + n), x, theta), start)
    for i in range(n):
        for pair in range(d):
            before = complex(x[i, pair], x[i, pair + d])
            angle = torch.tensor((start + i) * theta ** (-2 * pair / (2 * d)), dtype=torch.float64)
            after = before * complex(angle.cos(), angle.sin())
            assert complex(turned[i, pair], turned[i, pair + d]) == pytest.approx(after, abs=1e-12)


def test_products_depend_on_the_distance_alone():
    q, k = torch.randn(1, 8, dtype=torch.float64), torch.randn(1, 8, dtype=torch.float64)
    cos, sin = rotary_angles(range(100), q, 10000.0)
    products = [rotated(q, cos, sin, at + 7) @ rotated(k, cos, sin, at).mT for at in (0, 5, 90)]
    for product in products[1:]:
        torch.testing.assert_close(product, products[0], rtol=0, atol=1e-12)


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
def test_angles_are_exact_to_the_last_bit_of_narrow_dtypes(dtype):
    cos, _ = rotary_angles(range(3000), torch.ones(1, 4, dtype=dtype), 10000.0)
    exact, _ = rotary_angles(range(3000), torch.ones(1, 4, dtype=torch.float64), 10000.0)
    assert cos.dtype == dtype
    torch.testing.assert_close(cos.double(), exact, rtol=0, atol=torch.finfo(dtype).eps)


def test_without_a_base_nothing_turns():
    x = torch.ones(2, 3)
    assert rotary_angles(range(2), x, None) == (None, None)
    assert rotated(x, None, None) is x


def test_an_odd_width_is_refused():
    with pytest.raises(SizeError, match="d_K is 3, but rotary positions rotate pairs of numbers"):
        rotary_angles(range(2), torch.ones(2, 3), 10000.0)
