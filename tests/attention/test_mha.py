"""Multi-head attention, compared with `nn.MultiheadAttention` with the same weights."""

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import nn

from attnscope.attention.mha import MultiHeadAttention
from attnscope.base.errors import SizeError

TOLERANCE = {torch.float32: 1e-5, torch.float64: 1e-12}
sizes = st.integers(1, 6)


def twin_of(mha: MultiHeadAttention, dtype: torch.dtype) -> nn.MultiheadAttention:
    """Return PyTorch's module with the weights of attnscope's."""
    bias = mha.W_Q.bias is not None
    twin = nn.MultiheadAttention(mha.d_feat, mha.n_head, bias=bias, batch_first=True, dtype=dtype)
    projections = [mha.W_Q, mha.W_K, mha.W_V]
    state = {"in_proj_weight": torch.cat([p.weight for p in projections])}
    state["out_proj.weight"] = mha.W_O.weight
    if bias:
        state["in_proj_bias"] = torch.cat([p.bias for p in projections])
        state["out_proj.bias"] = mha.W_O.bias
    twin.load_state_dict(state)
    return twin


@given(
    n_batch=sizes,
    n_Q=sizes,
    n_K=sizes,
    n_head=sizes,
    d_head=sizes,
    bias=st.booleans(),
    masked=st.booleans(),
    dtype=st.sampled_from(list(TOLERANCE)),
    seed=st.integers(0, 999),
)
def test_it_equals_pytorch(n_batch, n_Q, n_K, n_head, d_head, bias, masked, dtype, seed):
    torch.manual_seed(seed)
    d_feat = n_head * d_head
    mha = MultiHeadAttention(d_feat=d_feat, n_head=n_head, bias=bias, dtype=dtype)
    Q = torch.randn(n_batch, n_Q, d_feat, dtype=dtype)
    K = torch.randn(n_batch, n_K, d_feat, dtype=dtype)
    V = torch.randn(n_batch, n_K, d_feat, dtype=dtype)
    mask = None
    if masked:
        mask = torch.rand(n_Q, n_K) < 0.5
        mask[:, 0] = True
    # PyTorch's mask is True where a query may not attend.
    forbidden = None if mask is None else ~mask
    expected, _ = twin_of(mha, dtype)(Q, K, V, attn_mask=forbidden, need_weights=False)
    torch.testing.assert_close(mha(Q, K, V, mask), expected, rtol=0, atol=TOLERANCE[dtype])


def test_dropout_draws_as_pytorch_draws():
    torch.manual_seed(0)
    mha = MultiHeadAttention(d_feat=6, n_head=2, dropout=0.5, dtype=torch.float64)
    x = torch.randn(3, 4, 6, dtype=torch.float64)
    torch.manual_seed(1)
    dropped = mha(x, x, x)
    torch.manual_seed(1)
    Q, K, V = (p(x).unflatten(-1, (2, 3)).transpose(1, 2) for p in (mha.W_Q, mha.W_K, mha.W_V))
    weights = nn.functional.dropout((Q @ K.mT / 3**0.5).softmax(-1), 0.5)
    torch.testing.assert_close(dropped, mha.W_O((weights @ V).transpose(1, 2).flatten(2)))
    assert not torch.equal(dropped, mha.eval()(x, x, x))


def test_scale_by_d_feat_divides_by_the_models_width():
    torch.manual_seed(0)
    right = MultiHeadAttention(d_feat=8, n_head=2)
    slip = MultiHeadAttention(d_feat=8, n_head=2, scale_by="d_feat")
    assert right.scale == pytest.approx(4**-0.5)
    assert slip.scale == pytest.approx(8**-0.5)
    slip.load_state_dict(right.state_dict())
    x = torch.randn(2, 3, 8)
    assert not torch.allclose(right(x, x, x), slip(x, x, x))


def test_batches_of_different_sizes_are_refused_not_mixed():
    mha = MultiHeadAttention(d_feat=8, n_head=2)
    with pytest.raises(SizeError, match="Q is 4×3×8, K is 2×3×8, V is 2×3×8, which do not fit together"):
        mha(torch.randn(4, 3, 8), torch.randn(2, 3, 8), torch.randn(2, 3, 8))


def test_heads_that_do_not_divide_are_refused():
    with pytest.raises(SizeError, match=r"d_feat is 10, .* 3 heads: 10 / 3 leaves 1"):
        MultiHeadAttention(d_feat=10, n_head=3)
