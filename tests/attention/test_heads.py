"""Splitting, merging and sharing heads, compared with transformers and PyTorch."""

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from transformers.models.llama.modeling_llama import repeat_kv

from attnscope.attention.heads import merge_heads, shared, split_heads
from attnscope.attention.past import with_past
from attnscope.base.errors import SizeError

size = st.integers(1, 4)


@given(n_batch=size, n_kv_head=size, group=size, n=size, d=size)
def test_keys_are_shared_in_the_order_of_transformers(n_batch, n_kv_head, group, n, d):
    K = torch.randn(n_batch, n_kv_head, n, d)
    Q = torch.randn(n_batch, n_kv_head * group, 1, d)
    assert torch.equal(shared(K, Q), repeat_kv(K, group))


def test_as_many_heads_or_none_at_all_are_left_alone():
    K = torch.randn(2, 3, 5, 4)
    assert shared(K, torch.randn(2, 3, 1, 4)) is K
    assert shared(K[0], torch.randn(2, 1, 4)).shape == (3, 5, 4)


def test_heads_that_cannot_be_shared_evenly_are_refused():
    with pytest.raises(SizeError, match=r"n_head is 8 and n_kv_head is 3: .* 8 / 3 leaves 2") as caught:
        shared(torch.ones(1, 3, 2, 2), torch.ones(1, 8, 2, 2))
    assert caught.value.hint == "kv_heads=2 or kv_heads=4, the divisors of 8 nearest to 3"


@given(n_batch=size, n_head=size, n=size, d=size)
def test_head_h_has_the_columns_h_d_to_h_d_plus_d_and_merging_undoes_it(n_batch, n_head, n, d):
    x = torch.randn(n_batch, n, n_head * d)
    heads = split_heads(x, n_head)
    for h in range(n_head):
        assert torch.equal(heads[:, h], x[..., h * d : (h + 1) * d])
    assert heads.data_ptr() == x.data_ptr()
    assert torch.equal(merge_heads(heads, n_head), x)


def test_without_heads_nothing_is_split_or_merged():
    x = torch.ones(2, 3, 4)
    assert split_heads(x, None) is x
    assert merge_heads(x, None) is x


def test_a_width_that_does_not_divide_is_refused():
    with pytest.raises(SizeError, match="the width is 10, which does not divide into 3 heads"):
        split_heads(torch.ones(2, 3, 10), 3)


def test_the_past_comes_first():
    past, new = torch.zeros(2, 1, 3), torch.ones(2, 2, 3)
    assert torch.equal(with_past(past, new)[:, 0], past[:, 0])
    assert torch.equal(with_past(past, new)[:, 1:], new)
    assert with_past(past.mT, new.mT, dim=-1).shape == (2, 3, 3)
    assert with_past(None, new) is new
