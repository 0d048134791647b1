"""The bytes of keys and values: what attention needs, and what engines reserve.

Each engine has a rule of its own, with its source. An engine is left out where its rule is not known.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from math import ceil

from attnscope.cost.anatomy import LayerAnatomy, LayerCache
from attnscope.cost.vllm import vllm_reserves
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
    return sum(each.cache.nbytes(n_tokens, itemsize, n_source) for each in layers)


def reserved(
    layers: Sequence[LayerAnatomy],
    n_tokens: int,
    dtype: str,
    batch: int,
    n_source: int = 0,
    model_type: str = "",
) -> list[Reserve]:
    """Return what engines reserve for some sequences.

    Args:
        layers, n_tokens, n_source: as for `needed`.
        dtype: that of a number, one of `BYTES`.
        batch: the number of sequences.
        model_type: by its config.json, as vLLM's states depend on its class.
    """
    itemsize = BYTES[dtype]
    found = [
        Reserve(
            engine,
            sum(kept(each.cache).nbytes(tokens, itemsize, n_source) for each in layers) * batch,
            rule,
        )
        for engine, rule, kept, tokens in _engines(layers, n_tokens, dtype)
    ]
    for each in vllm_reserves(layers, n_tokens, dtype, itemsize, model_type):
        found.append(replace(each, n_bytes=each.n_bytes * batch))
    return found


Engine = tuple[str, str, Callable[[LayerCache], LayerCache], int]
"""The name of an engine, its rule in words, what it keeps of a layer, and for how many tokens."""


def _engines(layers: Sequence[LayerAnatomy], n_tokens: int, dtype: str) -> Iterator[Engine]:
    """Yield the engines whose rules are known for these layers and this dtype."""
    has_window = any(each.cache.window is not None for each in layers)
    yield _dynamic(n_tokens, has_window)
    if not any(each.cache.compressed for each in layers):
        yield _static(n_tokens, has_window)
    plain = {"full", "sliding", "latent", "shared", "none"}
    if all(each.kind in plain for each in layers) and dtype in LLAMA_DTYPES:
        yield from _llama_cpp(n_tokens, has_window)


def _dynamic(n_tokens: int, has_window: bool) -> Engine:
    """Transformers' `DynamicCache(config=…)`: `DynamicSlidingWindowLayer` in 5.23's cache_utils.py."""
    rule = "window − 1 tokens of a sliding or chunked layer" if has_window else "the tokens so far"
    return "transformers, dynamic", rule, lambda cache: cache.dynamic, n_tokens


def _static(n_tokens: int, has_window: bool) -> Engine:
    """Transformers' `StaticCache`: `StaticSlidingWindowLayer` in 5.23's cache_utils.py."""

    def kept(cache: LayerCache) -> LayerCache:
        window = cache.dynamic_window
        return replace(cache, window=None if window is None else window + 1)

    rule = "the whole context at once" + ("; at most a window" if has_window else "")
    return "transformers, static", rule, kept, n_tokens


LLAMA_DTYPES = ("float32", "bfloat16", "float16")
"""The plain dtypes of `kv_cache_types` in llama.cpp's common/arg.cpp; others are blocks with scales."""

CELLS, LLAMA_STEP = 256, 512
"""llama.cpp's padding with flash attention, and its default `--ubatch-size`, in tokens."""


def _llama_cpp(n_tokens: int, has_window: bool) -> Iterator[Engine]:
    """llama.cpp: src/llama-kv-cache-iswa.cpp, a stream for each sequence; with `--swa-full`, too."""

    def padded(count: int) -> int:
        return ceil(count / CELLS) * CELLS

    def kept(cache: LayerCache) -> LayerCache:
        window = cache.window
        return replace(cache, window=None if window is None else padded(window + LLAMA_STEP))

    of_window = f"; window + {LLAMA_STEP} tokens of a sliding layer" if has_window else ""
    yield "llama.cpp", f"multiples of {CELLS}{of_window}", kept, padded(n_tokens)
    if has_window:
        rule = f"with --swa-full: multiples of {CELLS} in all layers"
        yield "llama.cpp, full", rule, lambda cache: replace(cache, window=None), padded(n_tokens)
