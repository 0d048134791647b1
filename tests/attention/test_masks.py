"""Masks, compared with PyTorch's and transformers', and with masks written by hand."""

import math

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch.nn.attention.bias import causal_lower_right, causal_upper_left
from transformers import LlamaConfig, StaticCache
from transformers.masking_utils import (
    chunked_overlay,
    create_causal_mask,
    sliding_window_causal_mask_function,
    sliding_window_overlay,
)

from attnscope.attention import masks
from attnscope.attention.masks import filled, hidden, mask_of, masked
from attnscope.attention.positions import offset_of, places
from attnscope.base.errors import OptionError, SizeError
from tests.profiles import examples

SCORES = torch.tensor([[1.0, 2.0, 3.0], [4.0, 5.0, 6.0]])
ALLOWED = torch.tensor([[True, False, True], [False, False, False]])
size = st.integers(1, 9)


def test_no_mask_returns_the_very_scores():
    assert masked(SCORES, None) is SCORES


def test_a_boolean_mask_puts_minus_infinity_where_it_is_false():
    allowed = torch.tensor([[True, False, True], [True, True, False]])
    assert masked(SCORES, allowed).tolist() == [[1, -torch.inf, 3], [4, 5, -torch.inf]]


def test_a_boolean_mask_puts_the_fill_that_is_given():
    assert masked(SCORES, ALLOWED, -1e9).tolist() == [[1, -1e9, 3], [-1e9] * 3]


def test_a_float_mask_is_added():
    assert masked(SCORES, torch.tensor([0.0, -1.0, 10.0])).tolist() == [[1, 1, 13], [4, 4, 16]]


@pytest.mark.parametrize("dtype", [torch.uint8, torch.int64])
def test_a_mask_of_whole_numbers_is_refused_because_it_may_mean_either(dtype):
    with pytest.raises(OptionError, match=r"it can mean 'may attend' or 'add to the scores'") as caught:
        masked(SCORES, torch.ones(3, dtype=dtype))
    assert "mask.bool()" in caught.value.hint


@given(n_Q=size, n_K=size)
def test_causal_is_pytorchs_for_both_alignments(n_Q, n_K):
    for align, theirs in (("top-left", causal_upper_left), ("bottom-right", causal_lower_right)):
        ours = masks.causal(n_Q, n_K, offset=offset_of(n_Q, n_K, align=align))
        assert torch.equal(ours, theirs(n_Q, n_K)._materialize())


@given(n=size, width=st.integers(0, 9))
def test_a_causal_window_is_transformers_sliding_window(n, width):
    ours = masks.causal(n, n) & masks.window(n, n, width, width)
    theirs = sliding_window_causal_mask_function(width + 1)  # includes the query's own position
    expected = [
        [bool(theirs(0, 0, torch.tensor(q), torch.tensor(k))) for k in range(n)] for q in range(n)
    ]
    assert ours.tolist() == expected


@given(n_Q=size, n_new=size, n_past=st.integers(1, 9))
def test_causal_after_the_past_is_onnxs_lower_triangle(n_Q, n_new, n_past):
    n_K = n_past + n_new
    offset = offset_of(n_Q, n_K, align="after-past", n_past=n_past)
    expected = torch.ones(n_Q, n_K, dtype=torch.bool).tril(n_past)
    assert torch.equal(masks.causal(n_Q, n_K, offset=offset), expected)


def static_cache_mask(n_Q, n_K, length, overlay):
    """Return transformers' mask, `n_Q n_K`, for the last queries of a sequence in a static cache."""
    config = LlamaConfig(hidden_size=8, num_attention_heads=2, num_hidden_layers=1)
    config._attn_implementation = "eager"
    cache = StaticCache(config=config, max_cache_len=n_K)
    if length > n_Q:
        earlier = torch.zeros(1, 2, length - n_Q, 4)
        cache.layers[0].update(earlier, earlier)
    new = torch.zeros(1, n_Q, 8)
    return create_causal_mask(config, new, None, cache, and_mask_function=overlay)[0, 0] == 0


@given(n_Q=st.integers(2, 4), more=st.lists(st.integers(0, 5), min_size=2, max_size=3), width=size)
@examples(5, 100)
def test_queries_at_the_ends_of_sequences_see_what_transformers_static_cache_shows(n_Q, more, width):
    lengths = [n_Q + each for each in more]
    n_K = max(lengths) + 1
    offset = offset_of(n_Q, n_K, align="lengths", lengths=lengths)
    causal = masks.causal(n_Q, n_K, offset=offset)
    overlays = {
        None: causal,
        sliding_window_overlay(width): causal
        & masks.window(n_Q, n_K, width - 1, math.inf, offset=offset),
        chunked_overlay(width, torch.zeros(1)): causal & masks.chunk(n_Q, n_K, width, offset=offset),
    }
    for overlay, ours in overlays.items():
        theirs = [static_cache_mask(n_Q, n_K, length, overlay) for length in lengths]
        assert torch.equal(ours, torch.stack(theirs))


@given(
    n_Q=size,
    n_K=size,
    left=st.integers(0, 9) | st.just(math.inf),
    right=st.integers(0, 9) | st.just(math.inf),
    offset=st.integers(-9, 9),
)
def test_a_window_reaches_as_far_as_it_says(n_Q, n_K, left, right, offset):
    ours = masks.window(n_Q, n_K, left, right, offset=offset)
    expected = [[q + offset - left <= k <= q + offset + right for k in range(n_K)] for q in range(n_Q)]
    assert ours.tolist() == expected


@given(n_Q=size, n_K=size, width=size, offset=st.integers(-9, 9))
def test_a_chunk_is_seen_from_inside_alone(n_Q, n_K, width, offset):
    ours = masks.chunk(n_Q, n_K, width, offset=offset)
    starts = range(-9 * width, 20 * width, width)
    expected = [
        [any(s <= q + offset < s + width and s <= k < s + width for s in starts) for k in range(n_K)]
        for q in range(n_Q)
    ]
    assert ours.tolist() == expected


@given(n_Q=size, n_K=size, offsets=st.lists(st.integers(-9, 9), min_size=2, max_size=4))
def test_with_several_offsets_each_sequence_has_the_mask_of_its_own(n_Q, n_K, offsets):
    for kind, numbers in (
        (masks.causal, ()),
        (masks.window, (2, 1)),
        (masks.chunk, (3,)),
        (masks.prefix, (2,)),
    ):
        together = kind(n_Q, n_K, *numbers, offset=offsets)
        apart = torch.stack([kind(n_Q, n_K, *numbers, offset=offset) for offset in offsets])
        assert torch.equal(together, apart)


@given(n_Q=size, n_K=size, length=st.integers(0, 9), offset=st.integers(-9, 9))
def test_a_prefix_is_seen_by_all_and_the_rest_is_causal(n_Q, n_K, length, offset):
    ours = masks.prefix(n_Q, n_K, length, offset=offset)
    expected = [[k < length or k <= q + offset for k in range(n_K)] for q in range(n_Q)]
    assert ours.tolist() == expected


def test_lengths_hide_what_follows_the_end_of_each_sequence():
    assert masks.lengths([2, 0, 3], 3).tolist() == [[[1, 1, 0]], [[0, 0, 0]], [[1, 1, 1]]]


def test_an_additive_mask_has_the_effect_of_the_boolean_one():
    for fill in (-torch.inf, -1e9):
        allowed = torch.tensor([[True, False, True], [False, True, True]])
        added = masks.additive(allowed, fill, torch.float32)
        assert added.dtype == torch.float32
        assert torch.equal(masked(SCORES, added).softmax(-1), masked(SCORES, allowed).softmax(-1))
        assert torch.equal(hidden(added), ~allowed)


@pytest.mark.parametrize(("fill", "weight"), [(-torch.inf, torch.nan), (-1e9, 1 / 3)])
def test_a_row_that_sees_no_key_is_what_the_fill_makes_of_it(fill, weight):
    row = masked(SCORES, ALLOWED, fill).softmax(-1)[1]
    torch.testing.assert_close(row, torch.full((3,), weight), equal_nan=True)


@pytest.mark.parametrize("fill", [-torch.inf, -1e9])
@pytest.mark.parametrize(("rows", "weight"), [("nan", torch.nan), ("uniform", 1 / 3), ("zero", 0.0)])
@pytest.mark.parametrize("additive", [False, True])
def test_a_row_that_sees_no_key_is_what_was_chosen_and_others_stay(fill, rows, weight, additive):
    mask = masks.additive(ALLOWED, fill, torch.float32) if additive else ALLOWED
    weights = masked(SCORES, mask, fill).softmax(-1)
    chosen = filled(weights, mask, rows)
    torch.testing.assert_close(chosen[1], torch.full((3,), weight), equal_nan=True)
    assert torch.equal(chosen[0], weights[0])
    columns = filled(weights.mT, mask.mT, rows, dim=-2).mT
    torch.testing.assert_close(columns, chosen, equal_nan=True, rtol=0, atol=0)


def test_without_a_choice_the_weights_are_returned_as_they_are():
    assert filled(SCORES, ALLOWED, None) is SCORES
    assert filled(SCORES, None, "zero") is SCORES


def test_one_querys_mask_is_a_column_even_where_all_queries_share_one():
    assert mask_of(1, ALLOWED).tolist() == [[0], [0], [0]]
    assert mask_of(5, ALLOWED[:1]).tolist() == [[1], [0], [1]]
    assert mask_of(5, ALLOWED[0]).tolist() == [[1], [0], [1]]
    assert mask_of(5, None) is None


@given(n_Q=size, n_new=size, n_past=st.integers(0, 5))
def test_queries_and_keys_stand_where_they_should_and_all_positions_exist(n_Q, n_new, n_past):
    past = torch.ones(n_past, 2) if n_past else None
    n_K = n_past + n_new
    firsts = {"top-left": 0, "bottom-right": n_K - n_Q, "after-past": n_past}
    for align, first in firsts.items():
        positions, Q_at, K_at = places(torch.ones(n_Q, 2), torch.ones(n_new, 2), past, align)
        assert positions[Q_at] == first
        assert positions[K_at] == n_past
        assert positions[0] == min(first, 0)
        assert positions[-1] + 1 == max(first + n_Q, n_K)


def test_each_sequence_has_its_own_first_query_at_the_end_of_its_own_keys():
    Q, K, past = torch.ones(3, 2, 4), torch.ones(3, 5, 4), torch.ones(3, 1, 4)
    assert places(Q, K, past, "lengths", [2, 6, 3]) == (range(6), (0, 4, 1), 1)
    assert places(Q, K, None, "lengths", [4]) == (range(5), 2, 0)


def test_queries_before_the_first_key_of_a_short_sequence_have_negative_positions():
    """ONNX's rule for `nonpad_kv_seqlen`: such a query sees no key under a causal mask."""
    Q, K = torch.ones(3, 4, 6), torch.ones(3, 5, 6)
    positions, Q_at, K_at = places(Q, K, None, "lengths", [2, 5, 0])
    assert [positions[at] for at in Q_at] == [-2, 1, -4]
    assert positions[K_at] == 0
    seen = masks.causal(4, 5, offset=offset_of(4, 5, align="lengths", lengths=[2, 5, 0])).sum(-1)
    assert seen.tolist() == [[0, 0, 1, 2], [2, 3, 4, 5], [0, 0, 0, 0]]


@pytest.mark.parametrize(
    ("lengths", "error", "message"),
    [
        (None, OptionError, "nothing says how many keys each sequence has"),
        ([5, 6, 3], SizeError, "a length of 6 is more than there are keys: n_K is 5"),
        ([5, 4], SizeError, "2 lengths are given for 3 sequences"),
    ],
)
def test_lengths_that_are_wrong_are_refused(lengths, error, message):
    with pytest.raises(error, match=message):
        places(torch.ones(3, 2, 4), torch.ones(3, 5, 4), None, "lengths", lengths)
