"""Each metric on weights that are small enough to work it out in one's head."""

from __future__ import annotations

from collections.abc import Iterator
from math import exp, log, nan

import pytest
import torch

from attnscope.attention.blocks import Block, BlockedAttention, of_weights
from attnscope.model.heads import metrics
from attnscope.model.heads.metrics import (
    CROSS,
    METRICS,
    PAIRS,
    POSITIONS,
    AxisTokens,
    TokenBlock,
    WeightRows,
    same_elsewhere,
)
from attnscope.model.run.blockwise import Store

EVEN = [1 / 3] * 3
"""A row that looks at three keys equally."""


def side(
    ids: list[int] | list[list[int]],
    *,
    padding: int = 0,
    separators: tuple[int, ...] = (),
    punctuation: tuple[int, ...] = (),
) -> AxisTokens:
    """Tokens, of which so many of the last sequence are padding, and some numbers of a kind."""
    numbers = torch.tensor(ids).view(-1, len(ids) if isinstance(ids[0], int) else len(ids[0]))
    real = torch.ones_like(numbers).bool()
    if padding:
        real[-1, -padding:] = False
    kinds = [torch.isin(numbers, torch.tensor(kind)) & real for kind in (separators, punctuation)]
    sink = kinds[0] | (torch.arange(numbers.shape[1]) == 0)
    return AxisTokens(numbers.masked_fill(~real, -1), real, kinds[0].clone(), *kinds, sink)


def rows_for(
    name: str, query_side: AxisTokens, key_side: AxisTokens, *, cross: bool = False
) -> WeightRows:
    """What gathers for one metric."""
    metric = (CROSS if cross else METRICS)[name]
    positions = [] if metric.position is None else [metric.position]
    return WeightRows(query_side, key_side, positions, [] if metric.pair is None else [metric.pair])


def measured(
    name: str, weights: list, query_side: AxisTokens, key_side: AxisTokens | None = None
) -> list:
    """A metric of each query; None where the query does not count.

    Args:
        weights: `n_Q n_K` of one head and one sequence; or `n_batch n_head n_Q n_K`.
        query_side, key_side: the tokens; of one sequence, if only the first is given.
    """
    maps = torch.tensor(weights, dtype=torch.float64)
    whole = maps if maps.dim() == 4 else maps[None, None]
    cross = key_side is not None
    rows = rows_for(name, query_side, key_side or query_side, cross=cross)
    rows.add(of_weights(whole))
    values = (CROSS if cross else METRICS)[name].of(rows).expand(whole.shape[:3])
    told = told_of(values)
    return told if maps.dim() == 4 else told[0][0]


def told_of(values: torch.Tensor | list) -> list:
    """Numbers in lists; NaN as None."""
    if isinstance(values, torch.Tensor):
        values = values.tolist()
    return [
        told_of(value) if isinstance(value, list) else None if value != value else value
        for value in values
    ]


def near(*numbers: float | None) -> list:
    return [None if number is None else pytest.approx(number) for number in numbers]


CAUSAL = [[1, 0, 0, 0], [0.25, 0.75, 0, 0], [0.5, 0.25, 0.25, 0], [0.1, 0.2, 0.3, 0.4]]
FULL = [[0.1, 0.2, 0.3, 0.4], [0.4, 0.3, 0.2, 0.1], [0.7, 0.1, 0.1, 0.1], [0.05, 0.05, 0.1, 0.8]]
FOUR = side([5, 6, 7, 8])


THREE, TWICE = side([5, 6, 7]), side([5, 6, 5, 5])
HALVES = [[1, 0, 0, 0], [0.5, 0.5, 0, 0], [0.25] * 4, [0.5, 0.25, 0.125, 0.125]]
QUARTERS = [0.5, 0.25, 0.25, 0]
HALF_OF_A_SINK = 0.6 * log(1 / 0.3) / (0.6 * log(2 / 0.6))
ABACA = [[0.1, 0.2, 0.3, 0.15, 0.25]] * 5

BY_HAND = [
    # 0 for one key, and ln n for n equal ones
    ("entropy", HALVES, FOUR, [0, log(2), log(4), 1.75 * log(2)]),
    # of the largest possible, and not for one key; of what a sink leaves; padding cannot be seen
    ("entropy_share", [*HALVES[:2], QUARTERS, HALVES[2]], FOUR, [None, 1, 1.5 * log(2) / log(3), 1]),
    ("entropy_share", [[0.3, 0.3]] * 2, side([5, 6]), [HALF_OF_A_SINK] * 2),
    ("entropy_share", [[0.5, 0.5, 0, 0]] * 4, side([5, 6, 7, 8], padding=2), [1] * 4),
    ("self", FULL, FOUR, [0.1, 0.3, 0.1, 0.8]),
    ("previous", FULL, FOUR, [None, 0.4, 0.1, 0.1]),
    ("previous", [[1, 0, 0], [0, 1, 0], [0, 0.5, 0.5]], THREE, [None, None, 0.5]),  # in a window
    ("next", FULL, FOUR, [0.2, 0.2, 0.1, None]),
    ("next", CAUSAL, FOUR, [None] * 4),
    # no neighbour of its own, and hidden by a window
    ("first", FULL, FOUR, [None, 0.4, 0.7, 0.05]),
    ("first", CAUSAL, FOUR, [None, 0.25, 0.5, 0.1]),
    ("first", [[1, 0, 0], [0.5, 0.5, 0], [0, 0.5, 0.5]], THREE, [None, 0.5, None]),
    ("same", FULL, TWICE, [0.7, None, 0.8, 0.15]),
    ("same", CAUSAL, TWICE, [None, None, 0.5, 0.4]),
    # of A B C A, the last looks at B; of A B A C A, the third at B, the last at B and C; of A A A, the
    # second would look at itself
    ("induction", CAUSAL, side([5, 6, 7, 5]), [None, None, None, 0.2]),
    ("induction", ABACA, side([5, 6, 5, 7, 5]), [None, None, 0.2, None, 0.35]),
    ("induction", [EVEN] * 3, side([5, 5, 5]), [None, None, 1 / 3]),
    # before the first there is none, not even the last
    ("induction", FULL, FOUR, [None] * 4),
    ("induction", FULL, side([5, 8, 7, 8]), [None, None, None, 0.1]),
    ("distance", [[0, 0, 1], [0.5, 0, 0.5], EVEN], THREE, [2, 1, 1]),
    ("largest", FULL, FOUR, [0.4, 0.4, 0.7, 0.8]),
    ("effective", [*HALVES[:3], QUARTERS], FOUR, [1, 2, 4, exp(1.5 * log(2))]),
]


@pytest.mark.parametrize(("name", "weights", "tokens", "expected"), BY_HAND)
def test_a_metric_is_what_is_worked_out_by_hand(name, weights, tokens, expected):
    assert measured(name, weights, tokens) == near(*expected)


def test_padding_at_the_left_is_not_the_first_token():
    padded = side([5, 6, 7, 8])
    padded.real[0, :2] = False
    assert measured("first", [[0, 0, 0.3, 0.7]] * 4, padded)[2:] == near(None, 0.3)


def test_of_another_sequence_no_token_is_a_neighbour():
    assert measured("first", FULL, FOUR, FOUR) == near(0.1, 0.4, 0.7, 0.05)
    assert measured("same", FULL, FOUR, side([8, 6, 5, 8])) == near(0.3, 0.3, None, 0.85)


@pytest.mark.parametrize("mark", ["separator", "punctuation"])
def test_what_falls_on_marked_keys_is_added_up(mark):
    tokens = side([1, 6, 1, 8], **{{"separator": "separators"}.get(mark, mark): (1,)})
    assert measured(mark, FULL, tokens) == near(0.4, 0.6, 0.8, 0.15)
    assert measured(mark, FULL, FOUR, tokens) == near(0.4, 0.6, 0.8, 0.15)
    assert measured(mark, CAUSAL, tokens) == near(1, 0.25, 0.75, 0.4)
    assert measured(mark, FULL, FOUR) == near(None, None, None, None)


def test_separators_and_punctuation_are_not_taken_for_each_other():
    tokens = side([1, 2, 7, 8], separators=(1,), punctuation=(2,))
    assert measured("separator", FULL, tokens) == near(0.1, 0.4, 0.7, 0.05)
    assert measured("punctuation", FULL, tokens) == near(0.2, 0.3, 0.1, 0.05)


def test_what_comes_after_padding_comes_after_nothing():
    """Side by side with a longer one, the short sequence ends in padding."""
    tokens = side([[5, 6, 5, 6], [5, 6, 5, 0]], padding=1)
    [[first], [second]] = measured("induction", [[FULL], [[*FULL[:3], [1, 0, 0, 0]]]], tokens)
    assert first == near(None, None, 0.1, 0.1)
    assert second[:3] == near(None, None, 0.1)


def test_a_row_that_gives_a_part_to_a_sink_is_taken_as_it_is():
    weights = [[0.5, 0, 0], [0.25, 0.25, 0], [0.1, 0.1, 0.2]]
    tokens = side([5, 6, 5])
    assert measured("largest", weights, tokens) == near(0.5, 0.25, 0.2)
    assert measured("distance", weights, tokens) == near(0, 0.25, 0.3)
    assert measured("self", weights, tokens) == near(0.5, 0.25, 0.2)
    assert measured("same", weights, tokens) == near(None, None, 0.1)
    assert measured("entropy_share", weights, tokens)[:2] == near(None, 1 / 2 * log(4) / log(2))


def test_padding_is_not_seen_even_where_something_falls_on_it():
    padded = side([5, 6, 5, 5], padding=1)
    assert measured("next", FULL, padded)[:3] == near(0.2, 0.2, None)
    assert measured("entropy_share", [[0.25] * 4] * 4, padded)[0] == pytest.approx(log(4) / log(3))


def test_each_sequence_has_its_own_tokens_and_padding():
    tokens = side([[5, 6, 5], [7, 7, 0]], padding=1)
    two = [[0.5, 0.5, 0], [0.2, 0.8, 0], [0.5, 0.5, 0]]
    maps = [[[[0.2, 0.3, 0.5]] * 3], [two]]
    assert measured("same", maps, tokens)[0] == [near(0.5, None, 0.2)]
    assert measured("same", maps, tokens)[1][0][:2] == near(0.5, 0.2)
    assert measured("next", maps, tokens)[1][0][:2] == near(0.5, None)


def test_each_head_has_its_own_weights_and_what_is_seen_is_common():
    tokens = side([5, 5])
    first, second = [[1, 0], [0.25, 0.75]], [[1, 0], [0, 1]]
    assert measured("previous", [[first, second]], tokens) == [[near(None, 0.25), near(None, 0)]]
    assert measured("entropy_share", [[first, second]], tokens)[0][1] == near(None, 0)


@pytest.mark.parametrize("rows", [1, 5])
@pytest.mark.parametrize("name", METRICS)
def test_blocks_that_leave_keys_out_add_up_to_the_whole(name, rows):
    """Causal windows of three: the keys of a block begin later, and end earlier."""
    Q, K = (torch.randn(2, 3, 8, 4, generator=torch.Generator().manual_seed(k)).double() for k in (0, 1))
    ids = [[5, 6, 5, 6, 7, 5, 6, 1], [5, 1, 5, 5, 5, 1, 5, 0]]
    tokens = side(ids, padding=1, separators=(1,), punctuation=(7,))
    window = torch.ones(8, 8).tril().triu(-2).bool()
    attention = BlockedAttention(Q, K, K, window & tokens.real[:, None, None], scale=1.0)
    gathered = rows_for(name, tokens, tokens)
    maps = torch.zeros(2, 3, 8, 8).double()
    memory = torch.empty(8 * attention.numbers_of_a_query).double()
    for start in range(0, 8, rows):
        block, _ = attention.block(range(start, min(start + rows, 8)), memory)
        gathered.add(block)
        maps[:, :, block.queries.start : block.queries.stop, block.keys.start : block.keys.stop] = (
            block.attention
        )
        memory.fill_(nan)  # what is gathered is not kept in there
    ours = told_of(METRICS[name].of(gathered).expand(2, 3, 8))
    whole = measured(name, maps.tolist(), tokens)
    for b, n in enumerate(tokens.real.sum(dim=-1).tolist()):
        for head in range(3):
            assert ours[b][head][:n] == near(*whole[b][head][:n])
    assert any(value is not None for head in ours[0] for value in head) != (name == "next")


@pytest.mark.parametrize("keep", [0, 400, 10**6])
def test_layers_that_see_the_same_are_asked_once_and_told_apart(keep, monkeypatch):
    tokens = side([[5, 6, 5, 6, 7, 5, 6, 1]], separators=(1,), punctuation=(7,))
    asked = []
    monkeypatch.setitem(metrics.PAIRS, "same", lambda block: asked.append(1) or same_elsewhere(block))
    positions, pairs = list(POSITIONS), ["separator", "punctuation", "same", "induction", "distance"]
    first, store = None, Store(keep)
    for seed in range(3):
        Q = torch.randn(1, 2, 8, 4, generator=torch.Generator().manual_seed(seed)).double()
        attention = BlockedAttention(Q, Q, Q, causal=True, scale=1.0)
        gathered = WeightRows(tokens, tokens, positions, pairs, first, store)
        first = first or gathered
        memory = torch.empty(8 * attention.numbers_of_a_query).double()
        for start in range(0, 8, 3):
            gathered.add(attention.block(range(start, min(start + 3, 8)), memory)[0])
        whole = (Q @ Q.mT).masked_fill(~torch.ones(8, 8).tril().bool(), -torch.inf).softmax(dim=-1)
        for name in METRICS:
            ours = told_of(METRICS[name].of(gathered).expand(1, 2, 8))
            theirs = measured(name, whole.tolist(), tokens)
            assert [near(*head) for head in ours[0]] == theirs[0]
    in_blocks = len(asked) - 3 * 1  # the whole map is asked too, of one metric, for each layer
    assert in_blocks == {0: 9, 400: 7, 10**6: 3}[keep]


def causal_blocks(n: int, rows: int, seed: int = 0) -> Iterator[Block]:
    """Blocks of two heads of a causal layer, whose keys become more and more."""
    Q = torch.randn(1, 2, n, 4, generator=torch.Generator().manual_seed(seed))
    attention = BlockedAttention(Q, Q, Q, causal=True, scale=1.0)
    memory = torch.empty(rows * attention.numbers_of_a_query)
    for start in range(0, n, rows):
        yield attention.block(range(start, min(start + rows, n)), memory)[0]


def test_blocks_that_grow_are_asked_in_the_same_memory():
    """Memory of growing sizes, with small results between, made a process grow to ten GiB."""
    tokens, rows = side([list(range(40))]), 4
    gathered = WeightRows(tokens, tokens, list(POSITIONS), ["same", "induction", "distance"])
    asked, whole = set(), set()
    for block in causal_blocks(40, rows):
        gathered.add(block)
        numbers = gathered._pair_numbers(TokenBlock(block, tokens, tokens))
        asked.add((numbers.data_ptr(), numbers.untyped_storage().nbytes()))
        whole.add(tuple((name, each.data_ptr()) for name, each in gathered._sums.items()))
    assert [size for _, size in asked] == [rows * 3 * 40 * 4]
    assert len(whole) == 1


@pytest.mark.parametrize("keep", [0, 5000, 10**6])
def test_what_may_be_kept_is_granted_once_to_all_layers(keep):
    tokens, store = side([list(range(40))]), Store(keep)
    first = WeightRows(tokens, tokens, [], ["same", "distance"], store=store)
    others = [WeightRows(tokens, tokens, [], ["same", "distance"], first, store) for _ in range(2)]
    another = WeightRows(tokens, tokens, [], ["same", "distance"], store=store)  # it sees something else
    for layer in (first, *others, another):
        for block in causal_blocks(40, 4):
            layer.add(block)
    kept = [numbers for rows in (first, another) for numbers in rows._kept_numbers.values()]
    size = sum(numbers.numel() * numbers.itemsize for numbers in kept)
    assert size <= keep
    assert len({numbers.untyped_storage().data_ptr() for numbers in kept}) <= 1
    assert others[0]._kept_numbers is others[1]._kept_numbers is first._kept_numbers
    of_each = 4 * 2 * 4 * sum(range(4, 41, 4))
    assert size == 2 * of_each if keep == 10**6 else size > keep - 2 * 4 * 4 * 40
    for block, again in zip(causal_blocks(40, 4), causal_blocks(40, 4), strict=True):
        block_tokens = TokenBlock(block, tokens, tokens)  # nobody has written over what is kept
        expected = torch.stack(
            [PAIRS[name](block_tokens)[:, 0].float() for name in ("same", "distance")], 2
        )
        for rows in (first, another):
            assert torch.equal(rows._pair_numbers(TokenBlock(again, tokens, tokens)), expected)


def test_where_heads_see_different_keys_a_kind_counts_that_some_head_sees():
    """The second head's window is wider, and it alone sees the copy."""
    tokens = side([5, 6, 5])
    seen = torch.stack([torch.eye(3), torch.ones(3, 3)]).bool()[None]
    Q = torch.zeros(1, 2, 3, 1).double()
    attention = BlockedAttention(Q, Q, Q, seen, scale=1.0)
    gathered = rows_for("same", tokens, tokens)
    gathered.add(attention.block(range(3), torch.empty(3 * attention.numbers_of_a_query).double())[0])
    values = told_of(METRICS["same"].of(gathered))
    assert values[0][1] == near(1 / 3, None, 1 / 3)


def test_a_side_knows_its_beginning():
    tokens = side([[5, 1, 2], [2, 5, 1]], separators=(1,), punctuation=(2,))
    tokens.real[1, 0] = False
    assert tokens.beginning.flatten().tolist() == [0, 1]
    assert tokens.first(2).ids.tolist() == [[5, 1]]
