"""The bytes of keys and values: what attention needs, and what engines reserve.

Each engine has a rule of its own, with its source. An engine is left out where its rule is not known.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Any, NamedTuple

from attnscope.model_card.anatomy import LayerAnatomy, LayerCache
from attnscope.model_card.cache_dtype import BYTES, CacheDtype
from attnscope.model_card.llama_cpp import llama_cpp_reserves
from attnscope.model_card.result import NoRuleError, Reserve
from attnscope.model_card.sglang import sglang_reserves
from attnscope.model_card.vllm import vllm_reserves


def needed(layers: Sequence[LayerAnatomy], n_tokens: int, dtype: CacheDtype, n_source: int = 0) -> int:
    """Return the bytes that the next query of one sequence needs.

    Args:
        layers: the layers, those of cross-attention included.
        n_tokens: the tokens of the sequence.
        dtype: of keys and values.
        n_source: the tokens of the encoder.
    """
    return sum(each.cache.nbytes(n_tokens, dtype.itemsize(each), n_source) for each in layers)


class Reserves(NamedTuple):
    """What engines reserve.

    Attributes:
        rows: for each engine whose rule is known.
        missing: why the others are left out, by their names.
    """

    rows: list[Reserve]
    missing: dict[str, str]


def reserved(
    layers: Sequence[LayerAnatomy],
    n_tokens: int,
    dtype: CacheDtype,
    batch: int,
    n_source: int = 0,
    model_type: str = "",
    config: Mapping[str, Any] | None = None,
    *,
    is_gguf: bool = False,
    step: int | None = None,
) -> Reserves:
    """Return what engines reserve for some sequences.

    Args:
        layers, n_tokens, dtype, n_source: as for `needed`.
        batch: the number of sequences.
        model_type: by its config.json, as each engine has its own code for a class.
        config: the part of config.json for text, as engines read further fields.
        is_gguf: whether the layers are those of a GGUF file, whose windows are llama.cpp's.
        step: the tokens that an engine processes at once; None: its default.
    """
    rows, missing, plain = [], {}, dtype.plain
    if plain is not None:
        itemsize = BYTES[plain]
        rows += [
            Reserve(engine, sum(kept(each.cache).nbytes(n, itemsize, n_source) for each in layers), rule)
            for engine, rule, kept, n in _engines(layers, n_tokens)
        ]
    try:
        rows += llama_cpp_reserves(layers, n_tokens, dtype, model_type, is_gguf=is_gguf, step=step)
    except NoRuleError as error:
        missing["llama.cpp"] = str(error)
    if plain is not None:
        try:
            rows += vllm_reserves(layers, n_tokens, plain, itemsize, model_type, config, step=step)
        except NoRuleError as error:
            missing["vLLM"] = str(error)
        try:
            rows += sglang_reserves(layers, n_tokens, plain, itemsize, model_type)
        except NoRuleError as error:
            missing["SGLang"] = str(error)
    return Reserves([replace(each, n_bytes=each.n_bytes * batch) for each in rows], missing)


Engine = tuple[str, str, Callable[[LayerCache], LayerCache], int]
"""The name of an engine, its rule in words, what it keeps of a layer, and for how many tokens."""


def _engines(layers: Sequence[LayerAnatomy], n_tokens: int) -> Iterator[Engine]:
    """Yield the caches of transformers whose rules are known for these layers."""
    has_window = any(each.cache.window is not None for each in layers)
    yield _dynamic(n_tokens, has_window)
    if not any(each.cache.compressed for each in layers):
        yield _static(n_tokens, has_window)


def _dynamic(n_tokens: int, has_window: bool) -> Engine:
    """Transformers' `DynamicCache(config=…)`: `DynamicSlidingWindowLayer` in 5.23's cache_utils.py."""
    rule = "window − 1 tokens of a sliding or chunked layer" if has_window else "the tokens so far"
    return "transformers, dynamic", f"5.23: {rule}", lambda cache: cache.dynamic, n_tokens


def _static(n_tokens: int, has_window: bool) -> Engine:
    """Transformers' `StaticCache`: `StaticSlidingWindowLayer` in 5.23's cache_utils.py."""

    def kept(cache: LayerCache) -> LayerCache:
        window = None if cache.dynamic_window is None else cache.dynamic_window + 1
        return cache if window == cache.window else replace(cache, window=window)

    rule = "the whole context at once" + ("; at most a window" if has_window else "")
    return "transformers, static", f"5.23: {rule}", kept, n_tokens
