"""The textbook formula against PyTorch's own, and against a loop written from the equation."""

import math

import pytest
import torch
import torch.nn.functional as F
from hypothesis import given
from hypothesis import strategies as st

from attnscope.attention.sdpa import sdpa

TOLERANCE = {torch.float32: 1e-5, torch.float64: 1e-12}
sizes = st.integers(1, 9)


def drawn(*shape: int, dtype: torch.dtype = torch.float64, seed: int = 0) -> torch.Tensor:
    return torch.randn(shape, dtype=dtype, generator=torch.Generator().manual_seed(seed))


@given(
    lead=st.lists(sizes, max_size=2),
    n_Q=sizes,
    n_K=sizes,
    d_K=sizes,
    d_V=sizes,
    dtype=st.sampled_from(list(TOLERANCE)),
    masking=st.sampled_from(["none", "bool", "additive"]),
    seed=st.integers(0, 999),
)
def test_it_equals_pytorch(lead, n_Q, n_K, d_K, d_V, dtype, masking, seed):
    Q = drawn(*lead, n_Q, d_K, dtype=dtype, seed=seed)
    K = drawn(*lead, n_K, d_K, dtype=dtype, seed=seed + 1)
    V = drawn(*lead, n_K, d_V, dtype=dtype, seed=seed + 2)
    mask = None
    if masking == "bool":
        mask = drawn(n_Q, n_K, seed=seed + 3) > 0
        mask[:, 0] = True  # PyTorch and the formula differ where no key may be seen
    elif masking == "additive":
        mask = drawn(*lead, n_Q, n_K, dtype=dtype, seed=seed + 3)
    expected = F.scaled_dot_product_attention(Q, K, V, attn_mask=mask)
    torch.testing.assert_close(sdpa(Q, K, V, mask), expected, rtol=0, atol=TOLERANCE[dtype])


def test_it_equals_the_equation_written_as_loops():
    n_Q, n_K, d_K, d_V = 2, 3, 4, 5
    Q, K, V = drawn(n_Q, d_K), drawn(n_K, d_K, seed=1), drawn(n_K, d_V, seed=2)
    for i in range(n_Q):
        scores = [sum(float(Q[i, c] * K[j, c]) for c in range(d_K)) / math.sqrt(d_K) for j in range(n_K)]
        total = sum(math.exp(score) for score in scores)
        for c in range(d_V):
            expected = sum(math.exp(scores[j]) / total * float(V[j, c]) for j in range(n_K))
            assert float(sdpa(Q, K, V)[i, c]) == pytest.approx(expected, abs=1e-12)


def test_a_scale_of_its_own_replaces_one_over_root_d_K():
    Q, K, V = drawn(2, 4), drawn(3, 4, seed=1), drawn(3, 5, seed=2)
    expected = F.scaled_dot_product_attention(Q, K, V, scale=0.3)
    torch.testing.assert_close(sdpa(Q, K, V, scale=0.3), expected, rtol=0, atol=1e-12)


def test_gradients_equal_pytorchs():
    inputs = [drawn(2, 3, 4), drawn(2, 5, 4, seed=1), drawn(2, 5, 6, seed=2)]
    ours = [tensor.clone().requires_grad_() for tensor in inputs]
    theirs = [tensor.clone().requires_grad_() for tensor in inputs]
    sdpa(*ours).square().sum().backward()
    F.scaled_dot_product_attention(*theirs).square().sum().backward()
    for a, b in zip(ours, theirs, strict=True):
        torch.testing.assert_close(a.grad, b.grad, rtol=0, atol=1e-12)
