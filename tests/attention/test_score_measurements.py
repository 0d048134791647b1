"""The effect of the scale, compared with loops in numpy, torch's derivative, and the theory."""

import math

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from attnscope import trace_call
from attnscope.attention import score_measurements
from attnscope.attention.score_measurements import jacobian_norm, measure
from attnscope.attention.sdpa import sdpa

sizes = st.integers(1, 9)
rows_of_scores = st.lists(st.floats(-30, 30), min_size=1, max_size=9)


def drawn(*shape, dtype=torch.float64, seed=0):
    return torch.randn(shape, dtype=dtype, generator=torch.Generator().manual_seed(seed))


def measured_by_loops(Q, K, scale):
    """Compute the same five numbers, one query at a time, with every entry of its Jacobian."""
    scores, entropies, largest, norms = [], [], [], []
    for queries, keys in zip(Q.numpy(), K.numpy(), strict=True):
        for query in queries:
            row = [scale * math.fsum(a * b for a, b in zip(query, key, strict=True)) for key in keys]
            weights = [math.exp(score - max(row)) for score in row]
            p = np.array(weights) / math.fsum(weights)
            scores += row
            entropies.append(-sum(weight * math.log(weight) for weight in p if weight))
            largest.append(max(p))
            norms.append(np.linalg.norm(np.diag(p) - np.outer(p, p)))
    means = np.mean(entropies), np.mean(largest), np.median(norms), np.mean(norms)
    return [np.var(scores), *means]


@given(n_batch=sizes, n_Q=sizes, n_K=sizes, d_K=sizes, scaled=st.booleans(), seed=st.integers(0, 999))
def test_it_equals_loops(n_batch, n_Q, n_K, d_K, scaled, seed):
    Q, K = drawn(n_batch, n_Q, d_K, seed=seed), drawn(n_batch, n_K, d_K, seed=seed + 1)
    scale = d_K**-0.5 if scaled else 1.0
    assert list(measure(Q, K, scale)) == pytest.approx(measured_by_loops(Q, K, scale), abs=1e-12)


@pytest.mark.parametrize("chunk", [1, 7, 10**9])
def test_how_many_weights_are_looked_at_together_changes_nothing(monkeypatch, chunk):
    Q, K = drawn(3, 5, 4), drawn(3, 6, 4, seed=1)
    expected = measure(Q, K, 0.5)
    monkeypatch.setattr(score_measurements, "CHUNK", chunk)
    assert list(measure(Q, K, 0.5)) == pytest.approx(list(expected), abs=1e-14)


@pytest.mark.few(2)
@pytest.mark.parametrize("dtype", [torch.float64, torch.float32, torch.float16, torch.bfloat16])
def test_scores_and_weights_are_those_of_the_textbook(dtype):
    Q, K = drawn(2, 30, 64, dtype=dtype), drawn(2, 20, 64, dtype=dtype, seed=1)
    for scale in (1.0, 0.125):
        traced = trace_call(sdpa, Q, K, K, scale=scale, keep=True)
        scores, attention = (traced[name].tensor.double().numpy() for name in ("scores", "attention"))
        seen = measure(Q, K, scale)
        assert seen.variance == pytest.approx(scores.var(), rel=1e-12)
        assert seen.largest_weight == pytest.approx(attention.max(axis=-1).mean(), rel=1e-12)


def test_the_variance_is_d_K_without_the_scale_and_one_with_it():
    """Each score is a sum of d_K products of independent standard normal values."""
    for d_K in (4, 32, 256):
        Q, K = drawn(200, 32, d_K, seed=d_K), drawn(200, 32, d_K, seed=d_K + 1)
        assert measure(Q, K, 1.0).variance == pytest.approx(d_K, rel=0.05)
        assert measure(Q, K, d_K**-0.5).variance == pytest.approx(1, rel=0.05)


def test_entropy_and_largest_weight_reach_their_bounds():
    Q, K = torch.zeros(2, 3, 4), drawn(2, 5, 4, dtype=torch.float32)
    even = measure(Q, K, 1.0)  # all scores are 0
    assert even.entropy == pytest.approx(math.log(5), abs=1e-6)
    assert even.largest_weight == pytest.approx(1 / 5, abs=1e-6)
    hard = measure(Q + 1, K, 1e6)
    assert (hard.entropy, hard.largest_weight, hard.gradient_norm) == (0, 1, 0)


def test_one_key_has_all_the_weight_and_no_gradient():
    Q, K = drawn(4, 3, 8), drawn(4, 1, 8, seed=1)
    assert list(measure(Q, K, 1.0))[1:] == [0, 1, 0, 0]


def test_the_gradient_is_the_median_query_s():
    """For an even number of rows, it is the mean of the middle two; torch's median is the lower one."""
    Q, K = drawn(1, 4, 2), drawn(1, 3, 2, seed=1)
    norms = jacobian_norm((Q @ K.mT).softmax(-1)).flatten().tolist()
    assert measure(Q, K, 1.0).gradient_norm == pytest.approx(sum(sorted(norms)[1:3]) / 2, abs=1e-15)


@given(row=rows_of_scores)
def test_the_norm_is_that_of_torchs_jacobian(row):
    scores = torch.tensor(row, dtype=torch.float64)
    jacobian = torch.autograd.functional.jacobian(lambda s: s.softmax(-1), scores)
    assert float(jacobian_norm(scores.softmax(-1))) == pytest.approx(float(jacobian.norm()), abs=1e-15)


@given(row=rows_of_scores)
def test_the_norm_is_the_closed_form_of_the_documentation_and_at_most_one_half(row):
    p = torch.tensor(row, dtype=torch.float64).softmax(-1)
    squared = float((p.square() * (1 - 2 * p)).sum() + p.square().sum() ** 2)
    norm = float(jacobian_norm(p))
    assert norm**2 == pytest.approx(squared, abs=1e-15)
    assert norm <= 0.5 + 1e-15


def test_the_norm_of_known_rows():
    assert jacobian_norm(torch.tensor([[0.0, 1.0, 0.0], [0.5, 0.0, 0.5]])).tolist() == [0, 0.5]
    for n_K in (1, 2, 3, 64):
        even = torch.full((n_K,), 1 / n_K, dtype=torch.float64)
        assert float(jacobian_norm(even)) == pytest.approx(math.sqrt(n_K - 1) / n_K, abs=1e-15)


def test_the_norm_of_a_saturated_row_is_not_lost_to_rounding():
    """For p = (1 - t, t) it is 2·t·(1 - t); a direct evaluation of the closed form would give 0."""
    for t in (1e-9, 1e-17, 1e-30):
        p = torch.tensor([1 - t, t], dtype=torch.float64)
        assert float(jacobian_norm(p)) == pytest.approx(2 * t, rel=1e-8)


def test_the_norm_is_how_long_a_random_gradient_is_behind_the_softmax():
    scores = drawn(6, seed=3).requires_grad_()
    upstream = drawn(20000, 6, seed=4)
    (gradients,) = torch.autograd.grad(
        scores.softmax(-1), scores, grad_outputs=upstream, is_grads_batched=True
    )
    root_mean_square = gradients.square().sum(-1).mean().sqrt()
    assert float(jacobian_norm(scores.detach().softmax(-1))) == pytest.approx(
        float(root_mean_square), rel=0.02
    )
