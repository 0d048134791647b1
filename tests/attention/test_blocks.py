"""Attention in blocks, compared with attnscope's and PyTorch's attention over whole maps."""

from __future__ import annotations

from typing import Any

import pytest
import torch
import torch.nn.functional as F
from hypothesis import given
from hypothesis import strategies as st
from torch.utils._python_dispatch import TorchDispatchMode

from attnscope.attention.blocks import Block, BlockedAttention, of_weights
from attnscope.attention.observed import observed

TOLERANCE = {torch.float32: 1e-5, torch.float64: 1e-10}
sizes = st.integers(1, 7)


def drawn(*shape: int, dtype: torch.dtype = torch.float64, seed: int = 0) -> torch.Tensor:
    return torch.randn(shape, dtype=dtype, generator=torch.Generator().manual_seed(seed))


def in_blocks(attention: BlockedAttention, rows: int) -> tuple[list[Block], torch.Tensor]:
    """Return all blocks of this many queries, each with its own memory, and what was collected.

    What was in the memory before must not matter: it is filled with what would be seen.
    """
    blocks, collected = [], []
    for start in range(0, attention.n_Q, rows):
        queries = range(start, min(start + rows, attention.n_Q))
        memory = attention.K.new_full((len(queries) * attention.numbers_of_a_query,), torch.nan)
        block, x_raw = attention.block(queries, memory)
        blocks.append(block)
        collected.append(x_raw)
    return blocks, torch.cat(collected, dim=2)


def whole(blocks: list[Block], n_K: int) -> torch.Tensor:
    """Return the weights of all blocks, `n_batch n_head n_Q n_K`; 0 for keys that a block leaves out."""
    return torch.cat(
        [F.pad(block.attention, (block.keys.start, n_K - block.keys.stop)) for block in blocks], dim=2
    )


def visible_in(blocks: list[Block], shape: tuple[int, ...]) -> torch.Tensor:
    """Return the visibility of keys in all blocks."""
    parts = []
    for block in blocks:
        size = (*shape[:2], len(block.queries), len(block.keys))
        parts.append(F.pad(block.visible.expand(size), (block.keys.start, shape[-1] - block.keys.stop)))
    return torch.cat(parts, dim=2)


@st.composite
def cases(draw: Any) -> tuple[dict[str, Any], dict[str, Any], torch.Tensor, int]:
    """Draw inputs for attention in blocks and as a whole, the visible keys, and the size of a block."""
    n_batch, n_kv_head, group, n_Q, n_K, d_K, d_V = (draw(sizes) for _ in range(7))
    n_batch, n_kv_head, group = min(n_batch, 3), min(n_kv_head, 3), min(group, 3)
    n_head, seed = n_kv_head * group, draw(st.integers(0, 999))
    dtype = draw(st.sampled_from(list(TOLERANCE)))
    full = (n_batch, n_head, n_Q, n_K)
    shape = tuple(size if draw(st.booleans()) else 1 for size in full)[draw(st.integers(0, 2)) :]
    visible = drawn(*shape, seed=seed + 3) > -0.3
    visible[..., 0] = True  # where nothing can be seen, there is nothing to agree upon
    given: dict[str, Any] = {
        "Q": drawn(n_batch, n_head, n_Q, d_K, dtype=dtype, seed=seed),
        "K": drawn(n_batch, n_kv_head, n_K, d_K, dtype=dtype, seed=seed + 1),
        "V": drawn(n_batch, n_kv_head, n_K, d_V, dtype=dtype, seed=seed + 2),
        "scale": draw(st.sampled_from([d_K**-0.5, 1.7])),
        "softcap": draw(st.sampled_from([None, 1.5])),
        "sinks": draw(st.sampled_from([None, drawn(n_head, dtype=dtype, seed=seed + 4)])),
        "position_bias": draw(
            st.sampled_from([None, drawn(1, n_head, n_Q, n_K, dtype=dtype, seed=seed + 5)])
        ),
    }
    mask, lowest = None, torch.finfo(dtype).min
    masking = draw(st.sampled_from(["none", "causal", "bool", "lowest", "-inf", "bias"]))
    if masking == "none":
        visible = torch.ones(1, 1, 1, 1).bool()
    elif masking == "causal":
        visible = torch.ones(n_Q, n_K).tril().bool()
    elif masking == "bool":
        mask = visible
    else:
        mask = (
            drawn(*shape, dtype=dtype, seed=seed + 6)
            if masking == "bias"
            else torch.zeros(shape, dtype=dtype)
        )
        mask = mask.masked_fill(~visible, lowest if masking == "lowest" else -torch.inf)
    added = torch.zeros(visible.shape, dtype=dtype).masked_fill(~visible, -torch.inf)
    added = mask if masking == "bias" else added
    theirs = {**given, "mask": added}
    ours = {**given, "mask": mask, "causal": masking == "causal"}
    return ours, theirs, visible.expand(full), draw(sizes)


@given(cases())
def test_blocks_put_together_are_the_whole(case):
    ours, theirs, visible, rows = case
    tolerance = TOLERANCE[ours["Q"].dtype]
    attention = BlockedAttention(**ours)
    blocks, collected = in_blocks(attention, rows)
    expected, weights = observed(**theirs)
    maps = whole(blocks, attention.n_K)
    assert maps.dtype == ours["Q"].dtype
    torch.testing.assert_close(maps, weights, rtol=0, atol=tolerance)
    expected = expected.unflatten(2, (attention.n_head, -1)).transpose(1, 2)
    torch.testing.assert_close(collected, expected, rtol=0, atol=10 * tolerance)
    assert torch.equal(visible_in(blocks, tuple(visible.shape)), visible)


@given(cases())
def test_numbers_of_a_row_are_those_of_its_weights(case):
    ours, theirs, _, rows = case
    tolerance = TOLERANCE[ours["Q"].dtype]
    blocks, _ = in_blocks(BlockedAttention(**ours), rows)
    _, weights = observed(**theirs)
    entropy = -(weights * weights.log()).nan_to_num().sum(dim=-1)
    expected = {"entropy": entropy, "largest": weights.amax(dim=-1), "total": weights.sum(dim=-1)}
    for name, of_rows in expected.items():
        told = torch.cat([getattr(block, name) for block in blocks], dim=2)
        torch.testing.assert_close(told, of_rows, rtol=0, atol=10 * tolerance)


@given(
    n_batch=st.integers(1, 3), n_kv_head=st.integers(1, 3), group=st.integers(1, 3), n_Q=sizes, n_K=sizes,
    d_K=sizes, d_V=sizes, rows=sizes, masking=st.sampled_from(["none", "causal", "bool", "added"]),
    dtype=st.sampled_from(list(TOLERANCE)),
)  # fmt: skip
def test_it_equals_pytorch(n_batch, n_kv_head, group, n_Q, n_K, d_K, d_V, rows, masking, dtype):
    Q = drawn(n_batch, n_kv_head * group, n_Q, d_K, dtype=dtype)
    K = drawn(n_batch, n_kv_head, n_K, d_K, dtype=dtype, seed=1)
    V = drawn(n_batch, n_kv_head, n_K, d_V, dtype=dtype, seed=2)
    mask = None
    if masking == "bool":
        mask = drawn(n_batch, 1, n_Q, n_K, seed=3) > 0
        mask[..., -1] = True
    elif masking == "added":
        mask = drawn(n_Q, n_K, dtype=dtype, seed=3)
    causal = masking == "causal"
    expected = F.scaled_dot_product_attention(
        Q, K, V, mask, is_causal=causal, enable_gqa=True, scale=d_K**-0.5
    )
    attention = BlockedAttention(Q, K, V, mask, causal=causal, scale=d_K**-0.5)
    _, collected = in_blocks(attention, rows)
    torch.testing.assert_close(collected, expected, rtol=0, atol=TOLERANCE[dtype])


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
def test_narrow_dtypes_are_computed_in_float32(dtype):
    Q, K, V = (
        drawn(1, 4, 5, 6).to(dtype),
        drawn(1, 2, 7, 6, seed=1).to(dtype),
        drawn(1, 2, 7, 3, seed=2).to(dtype),
    )
    blocks, collected = in_blocks(BlockedAttention(Q, K, V, scale=0.4), 2)
    assert blocks[0].attention.dtype == collected.dtype == torch.float32
    _, weights = observed(Q.double(), K.double(), V.double(), scale=0.4)
    torch.testing.assert_close(whole(blocks, 7).double(), weights, rtol=0, atol=1e-6)


@pytest.mark.parametrize("marked", ["bool", "added"])
def test_hidden_weights_are_exactly_nothing(marked):
    """This holds for scores of any size, so padding never counts."""
    Q, K, V = 30 * drawn(2, 2, 5, 4), 30 * drawn(2, 2, 6, 4, seed=1), drawn(2, 2, 6, 3, seed=2)
    visible = torch.ones(2, 1, 1, 6).bool()
    visible[1, ..., 3:] = False
    mask = (
        visible if marked == "bool" else torch.zeros(2, 1, 1, 6).double().masked_fill(~visible, -1.7e308)
    )
    [block], _ = in_blocks(BlockedAttention(Q, K, V, mask, scale=1.0), 9)
    assert (block.attention[1, ..., 3:] == 0).all()
    assert block.entropy.isfinite().all()
    assert torch.allclose(block.attention.sum(dim=-1), torch.ones(2, 2, 5).double())


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float32, torch.float64])
def test_the_lowest_number_of_any_wide_dtype_hides(dtype):
    """A mask may have been created in another dtype than that of the call."""
    lowest = torch.finfo(dtype).min
    mask = torch.zeros(1, 1, 1, 4, dtype=torch.promote_types(dtype, torch.float32))
    mask[..., 3] = lowest
    [block], _ = in_blocks(
        BlockedAttention(*[drawn(1, 2, 4, 3, dtype=mask.dtype)] * 3, mask, scale=1.0), 4
    )
    assert block.keys == range(3)


def test_a_sink_may_be_far_higher_than_all_scores_and_far_lower():
    Q = drawn(1, 2, 3, 4, dtype=torch.float32)
    sinks = torch.tensor([500.0, -500.0])
    [block], collected = in_blocks(BlockedAttention(Q, Q, Q, sinks=sinks, scale=1.0), 3)
    assert (block.attention[:, 0] == 0).all()
    assert (collected[:, 0] == 0).all()
    assert block.entropy.isfinite().all()
    torch.testing.assert_close(collected[:, 1], F.scaled_dot_product_attention(Q, Q, Q, scale=1.0)[:, 1])


def test_a_sink_may_have_a_score_for_each_query():
    """As in Inkling 2: a column beside the scores, whose weight is dropped."""
    Q, K = drawn(2, 3, 5, 4), drawn(2, 3, 5, 4)
    sinks = drawn(2, 3, 5, 1)
    beside = torch.cat([Q @ K.mT, sinks], -1).softmax(-1)[..., :-1]
    blocks, collected = in_blocks(BlockedAttention(Q, K, K, sinks=sinks, scale=1.0), 2)
    torch.testing.assert_close(collected, beside @ K)
    torch.testing.assert_close(
        observed(Q, K, K, sinks=sinks, scale=1.0)[0].view(2, 5, 3, 4), (beside @ K).transpose(1, 2)
    )
    assert len(blocks) == 3


def test_keys_after_the_last_query_are_skipped():
    attention = BlockedAttention(
        drawn(1, 2, 9, 4), drawn(1, 2, 9, 4), drawn(1, 2, 9, 4), causal=True, scale=1
    )
    blocks, _ = in_blocks(attention, 4)
    assert [block.keys for block in blocks] == [range(4), range(8), range(9)]
    assert [block.queries for block in blocks] == [range(4), range(4, 8), range(8, 9)]
    assert [tuple(block.attention.shape) for block in blocks] == [
        (1, 2, 4, 4),
        (1, 2, 4, 8),
        (1, 2, 1, 9),
    ]


def test_keys_outside_of_all_windows_are_skipped():
    window = torch.ones(9, 9).tril().triu(-2).bool()
    for mask in (window, torch.zeros(9, 9).masked_fill(~window, torch.finfo(torch.float32).min)):
        attention = BlockedAttention(*[drawn(1, 2, 9, 4)] * 3, mask, scale=1.0)
        blocks, _ = in_blocks(attention, 3)
        assert [block.keys for block in blocks] == [range(3), range(1, 6), range(4, 9)]
        assert torch.equal(visible_in(blocks, (1, 1, 9, 9))[0, 0], window)


def test_keys_that_one_sequence_of_a_batch_sees_are_not_skipped():
    mask = torch.ones(2, 1, 1, 6).bool()
    mask[0, ..., 2:] = False
    mask[1, ..., 5:] = False
    [block], _ = in_blocks(BlockedAttention(*[drawn(2, 2, 6, 4)] * 3, mask, scale=1.0), 6)
    assert block.keys == range(5)
    assert block.visible.sum(dim=-1).flatten().tolist() == [2, 5]


def test_each_query_head_reads_the_key_head_of_its_group():
    """Each key head has different keys and values, so reading the wrong one would be noticed."""
    n_kv_head, group = 3, 2
    Q = torch.ones(1, n_kv_head * group, 1, 1)
    K = torch.zeros(1, n_kv_head, 3, 1)
    for head in range(n_kv_head):
        K[0, head, head] = 1000
    V = torch.arange(9.0).view(1, n_kv_head, 3, 1)
    [block], collected = in_blocks(BlockedAttention(Q, K, V, scale=1.0), 1)
    assert block.attention.argmax(dim=-1).flatten().tolist() == [0, 0, 1, 1, 2, 2]
    assert collected.flatten().tolist() == [0, 0, 4, 4, 8, 8]


class Largest(TorchDispatchMode):
    """The number of elements of every new tensor, without views."""

    def __init__(self, *known: torch.Tensor) -> None:
        super().__init__()
        self.known = {tensor.untyped_storage().data_ptr() for tensor in known}
        self.sizes: list[int] = []
        self.kept: list[torch.Tensor] = []  # so that no memory is used twice

    @classmethod
    def _should_skip_dynamo(cls) -> bool:
        return False

    def __torch_dispatch__(self, function, types, args=(), kwargs=None):
        made = function(*args, **(kwargs or {}))
        for tensor in made if isinstance(made, list | tuple) else [made]:
            if isinstance(tensor, torch.Tensor):
                pointer = tensor.untyped_storage().data_ptr()
                if pointer not in self.known:
                    self.sizes.append(tensor.untyped_storage().nbytes() // tensor.element_size())
                    self.kept.append(tensor)
                    self.known.add(pointer)
        return made


@pytest.mark.parametrize("masking", ["none", "causal", "padding", "window", "sinks"])
def test_weights_are_held_in_the_given_memory_alone(masking):
    """No other allocation grows with queries × keys; the masks of a block have no heads."""
    n, n_head, rows = 96, 4, 2
    Q, K, V = (drawn(1, n_head, n, 4, seed=seed) for seed in range(3))
    mask = torch.ones(1, 1, 1, n).bool() if masking == "padding" else None
    mask = torch.ones(n, n).tril().triu(-9).bool() if masking == "window" else mask
    sinks = drawn(n_head) if masking == "sinks" else None
    attention = BlockedAttention(Q, K, V, mask, sinks=sinks, causal=masking == "causal", scale=1.0)
    memory = torch.empty(rows * attention.numbers_of_a_query, dtype=torch.float64)
    known = [
        each for each in (Q, K, V, attention.K, attention.V, memory, mask, sinks) if each is not None
    ]
    with Largest(*known) as made:
        for start in range(0, n, rows):
            attention.block(range(start, start + rows), memory)
    assert made.sizes
    assert max(made.sizes) <= rows * n


def test_memory_may_be_larger_than_it_has_to_be():
    attention = BlockedAttention(*[drawn(1, 2, 3, 4)] * 3, causal=True, scale=1.0)
    exact, [large, *_] = in_blocks(attention, 3), attention.block(range(3), torch.empty(1000).double())
    assert torch.equal(exact[0][0].attention, large.attention)


@given(
    n_batch=st.integers(1, 2), n_head=st.integers(1, 3), n_Q=sizes, n_K=sizes, seed=st.integers(0, 99)
)
def test_a_map_of_somebody_else_is_a_block_too(n_batch, n_head, n_Q, n_K, seed):
    visible = drawn(n_batch, 1, n_Q, n_K, seed=seed) > -0.3
    visible[..., 0] = True
    weights = (
        drawn(n_batch, n_head, n_Q, n_K, seed=seed).masked_fill(~visible, -torch.inf).softmax(dim=-1)
    )
    block = of_weights(weights)
    assert (block.queries, block.keys) == (range(n_Q), range(n_K))
    assert torch.equal(block.visible, visible)
    assert torch.equal(block.attention, weights)
    torch.testing.assert_close(block.entropy, -(weights * weights.log()).nan_to_num().sum(dim=-1))
    torch.testing.assert_close(block.largest, weights.max(dim=-1).values)
    torch.testing.assert_close(block.total, weights.sum(dim=-1))


def test_a_key_that_only_one_head_looks_at_can_be_seen():
    weights = torch.tensor([[[[1.0, 0, 0]], [[0.5, 0.5, 0]]]])
    assert of_weights(weights).visible.tolist() == [[[[True, True, False]]]]
