"""What layers keep, counted token by token."""

from collections import deque

import pytest

from attnscope.model.card.anatomy import Compressed, LayerCache


@pytest.mark.parametrize("window", [None, 1, 5])
def test_a_cache_keeps_as_many_numbers_as_a_queue_of_tokens(window):
    cache = LayerCache(per_token=7, window=window, constant=3, constant_float32=11, per_source_token=2)
    kept = deque(maxlen=window)
    for n_tokens in range(12):
        assert cache.numbers(n_tokens, n_source=4) == 7 * len(kept) + 3 + 11 + 2 * 4
        kept.append(n_tokens)


def test_blocks_of_tokens_are_kept_as_entries_and_what_waits_for_its_block():
    compressed = Compressed(size=4, per_block=7, per_leftover=5, overlap=3, at_peak=False)
    waiting, blocks, most = 0, 0, 0
    for n_tokens in range(1, 23):
        waiting += 1
        if waiting == 4:
            waiting, blocks = 0, blocks + 1
        found = compressed.numbers(n_tokens)
        assert found == 7 * blocks + 5 * waiting + 3 * (blocks > 0)
        most = max(most, found)
        assert Compressed(4, 7, 5, 3).numbers(n_tokens) >= most
