"""The longest context and the most sequences are inverses of what is needed."""

from hypothesis import given
from hypothesis import strategies as st

from attnscope.model_card.anatomy import Compressed, LayerAnatomy, LayerCache
from attnscope.model_card.cache_dtype import CacheDtype
from attnscope.model_card.capacity import largest_batch, longest_context
from attnscope.model_card.kv_cache import needed

COUNTS = st.integers(0, 5000)
CACHES = st.builds(
    LayerCache,
    per_token=COUNTS,
    window=st.none() | st.integers(1, 9000),
    constant=COUNTS,
    constant_float32=COUNTS,
    compressed=st.none() | st.builds(Compressed, st.integers(1, 200), COUNTS, COUNTS, COUNTS),
)
LAYERS = st.lists(CACHES.map(lambda cache: LayerAnatomy("full", cache=cache)), min_size=1, max_size=6)


@given(
    LAYERS,
    st.integers(1, 2**20),
    st.integers(1, 64),
    st.sampled_from(["fp8", "float16", "float32", "q8_0"]),
)
def test_what_a_context_needs_holds_that_context_and_a_byte_less_does_not(layers, n, batch, dtype):
    def one(length: int) -> int:
        return needed(layers, length, CacheDtype.both(dtype))

    memory = one(n) * batch
    longest = longest_context(one, memory, batch)
    assert longest is None or longest >= n
    if longest is not None:
        assert one(longest) * batch <= memory < one(longest + 1) * batch
    if memory:
        fewer = longest_context(one, memory - 1, batch)
        assert fewer is not None
        assert fewer < n


@given(
    LAYERS,
    st.integers(1, 2**20),
    st.integers(0, 2**40),
    st.sampled_from(["fp8", "float16", "float32", "q8_0"]),
)
def test_one_more_sequence_than_the_most_does_not_fit(layers, n, memory, dtype):
    def one(length: int) -> int:
        return needed(layers, length, CacheDtype.both(dtype))

    most = largest_batch(one, memory, n)
    if one(n):
        assert one(n) * most <= memory < one(n) * (most + 1)
