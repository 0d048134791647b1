"""What layers keep, counted token by token."""

from collections import deque

import pytest

from attnscope.cost.anatomy import LayerCache


@pytest.mark.parametrize("window", [None, 1, 5])
def test_a_cache_keeps_as_many_numbers_as_a_queue_of_tokens(window):
    cache = LayerCache(per_token=7, window=window, constant=3, constant_float32=11, per_source_token=2)
    kept = deque(maxlen=window)
    for n_tokens in range(12):
        assert cache.numbers(n_tokens, n_source=4) == 7 * len(kept) + 3 + 11 + 2 * 4
        kept.append(n_tokens)
