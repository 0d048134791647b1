"""The bytes of keys and values: what attention needs, and what engines reserve.

Each engine has a rule of its own, with its source. An engine is left out where its rule is not known.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from math import ceil

from attnscope.cost.anatomy import LayerAnatomy, LayerCache
from attnscope.results.card import Reserve

BYTES = {"float64": 8, "float32": 4, "bfloat16": 2, "float16": 2, "fp8": 1, "int8": 1}
"""The bytes of a number of the cache."""


def needed(layers: Sequence[LayerAnatomy], n_tokens: int, itemsize: int, n_source: int = 0) -> int:
    """Return the bytes that the next query of one sequence needs.

    Args:
        layers: the layers, those of cross-attention included.
        n_tokens: the tokens of the sequence.
        itemsize: the bytes of a number.
        n_source: the tokens of the encoder.
    """
    return sum(
        cache_bytes(each.cache, each.cache.numbers(n_tokens, n_source), itemsize) for each in layers
    )


def cache_bytes(cache: LayerCache, numbers: int, itemsize: int) -> int:
    """Return the bytes of a layer's numbers, of which some are in float32 whatever the others are."""
    return (numbers - cache.constant_float32) * itemsize + cache.constant_float32 * 4


def reserved(
    layers: Sequence[LayerAnatomy], n_tokens: int, dtype: str, batch: int, n_source: int = 0
) -> list[Reserve]:
    """Return what engines reserve for some sequences.

    Args:
        layers, n_tokens, n_source: as for `needed`.
        dtype: that of a number, one of `BYTES`.
        batch: the number of sequences.
    """
    found = []
    itemsize = BYTES[dtype]
    for engine, rule, tokens in _engines(layers, n_tokens, dtype):
        total = sum(
            cache_bytes(
                each.cache,
                replace(each.cache, window=None).numbers(tokens(each), n_source),
                itemsize,
            )
            for each in layers
        )
        found.append(Reserve(engine, total * batch, rule))
    return found


Engine = tuple[str, str, Callable[[LayerAnatomy], int]]
"""The name of an engine, its rule in words, and the tokens that it reserves in a layer."""


def _engines(layers: Sequence[LayerAnatomy], n_tokens: int, dtype: str) -> Iterator[Engine]:
    """Yield the engines whose rules are known for these layers and this dtype."""
    yield _dynamic(n_tokens)
    yield _static(n_tokens)
    plain = {"full", "sliding", "latent", "shared", "none"}
    if all(each.kind in plain for each in layers):
        yield _vllm(n_tokens)
        if dtype in LLAMA_DTYPES:
            yield _llama_cpp(n_tokens)


def _dynamic(n_tokens: int) -> Engine:
    """Transformers' `DynamicCache(config=…)`: `DynamicSlidingWindowLayer` in 5.23's cache_utils.py."""

    def tokens(layer: LayerAnatomy) -> int:
        window = layer.cache.dynamic_window
        return n_tokens if window is None else min(n_tokens, window)

    return "transformers, dynamic", "window − 1 tokens of a sliding or chunked layer", tokens


def _static(n_tokens: int) -> Engine:
    """Transformers' `StaticCache`: `StaticSlidingWindowLayer` in 5.23's cache_utils.py."""

    def tokens(layer: LayerAnatomy) -> int:
        window = layer.cache.dynamic_window
        return n_tokens if window is None else min(n_tokens, window + 1)

    return "transformers, static", "the whole context at once; at most a window", tokens


VLLM_BLOCK, VLLM_STEP = 16, 8192
"""vLLM's default size of a block, and `max_num_batched_tokens` of its server, in tokens."""


def _vllm(n_tokens: int) -> Engine:
    """The rule of vLLM 0.28: `FullAttentionSpec` and `SlidingWindowSpec` in v1/kv_cache_interface.py."""

    def tokens(layer: LayerAnatomy) -> int:
        if layer.cache.window is None:
            return ceil(n_tokens / VLLM_BLOCK) * VLLM_BLOCK
        most = min(layer.cache.window - 1 + VLLM_STEP, n_tokens)
        return (ceil(most / VLLM_BLOCK) + 1) * VLLM_BLOCK

    rule = f"blocks of {VLLM_BLOCK}; window − 1 + {VLLM_STEP:,} tokens of a sliding layer, and a block"
    return "vLLM", rule, tokens


LLAMA_DTYPES = ("float32", "bfloat16", "float16")
"""The plain dtypes of `kv_cache_types` in llama.cpp's common/arg.cpp; others are blocks with scales."""

CELLS, LLAMA_STEP = 256, 512
"""llama.cpp's padding with flash attention, and its default `--ubatch-size`, in tokens."""


def _llama_cpp(n_tokens: int) -> Engine:
    """llama.cpp: src/llama-kv-cache-iswa.cpp, without `--swa-full`, a stream for each sequence."""

    def padded(count: int) -> int:
        return ceil(count / CELLS) * CELLS

    def tokens(layer: LayerAnatomy) -> int:
        if layer.cache.window is None:
            return padded(n_tokens)
        return min(padded(n_tokens), padded(layer.cache.window + LLAMA_STEP))

    rule = f"multiples of {CELLS}; window + {LLAMA_STEP} tokens of a sliding layer"
    return "llama.cpp", rule, tokens
