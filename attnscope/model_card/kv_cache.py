"""The bytes of keys and values: what attention needs, what engines reserve, what fits into a memory.

Each engine has a rule of its own, with its source. An engine is left out where its rule is not known.
"""

from __future__ import annotations

from bisect import bisect_right
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import Any, NamedTuple

from attnscope.model_card.anatomy import LayerAnatomy, LayerCache
from attnscope.model_card.cache_dtype import BYTES, CacheDtype
from attnscope.model_card.llama_cpp import llama_cpp_reserves
from attnscope.model_card.result import NoRuleError, Reserve
from attnscope.model_card.sglang import sglang_reserves
from attnscope.model_card.vllm import vllm_reserves

MAX_CONTEXT = 2**50
"""No context is longer: what still fits there does not grow."""


class Reserves(NamedTuple):
    """What engines reserve.

    Attributes:
        rows: for each engine whose rule is known.
        missing: why the others are left out, by their names.
    """

    rows: list[Reserve]
    missing: dict[str, str]


@dataclass(frozen=True)
class Caches:
    """The keys and values of some sequences.

    Attributes:
        layers: those that keep them, cross-attention included.
        dtype: of keys and values.
        batch: the number of sequences.
        n_source: the tokens of the encoder.
        model_type: by its config.json, as each engine has its own code for a class.
        config: the part of config.json for text, as engines read further fields.
        is_gguf: whether the layers are those of a GGUF file, whose windows are llama.cpp's.
        step: the tokens that an engine processes at once; None: its default.
    """

    layers: Sequence[LayerAnatomy]
    dtype: CacheDtype
    batch: int = 1
    n_source: int = 0
    model_type: str = ""
    config: Mapping[str, Any] = field(default_factory=dict)
    is_gguf: bool = False
    step: int | None = None

    @cached_property
    def _alike(self) -> Counter[LayerAnatomy]:
        return Counter(self.layers)

    def needed(self, n_tokens: int) -> int:
        """Count the bytes that the next query of one sequence of `n_tokens` tokens needs."""
        return sum(
            each.cache.nbytes(n_tokens, self.dtype.itemsize(each), self.n_source) * count
            for each, count in self._alike.items()
        )

    def longest_context(self, memory: int) -> int | None:
        """Find the most tokens of each sequence that fit into so many bytes; None: any number does."""
        lengths = range(1, MAX_CONTEXT + 1)
        longest = bisect_right(lengths, memory, key=lambda length: self.needed(length) * self.batch)
        return None if longest == MAX_CONTEXT else longest

    def largest_batch(self, memory: int, n_tokens: int) -> int:
        """Find the most sequences of `n_tokens` tokens that fit into so many bytes."""
        each = self.needed(n_tokens)
        return max(memory, 0) // each if each else MAX_CONTEXT

    def reserved(self, n_tokens: int) -> Reserves:
        """Count the bytes that engines reserve for all sequences, of `n_tokens` tokens each."""
        layers, model_type, step = self.layers, self.model_type, self.step
        rows, missing, plain = [], {}, self.dtype.plain
        rules: dict[str, Callable[[], list[Reserve]]] = {
            "llama.cpp": lambda: llama_cpp_reserves(
                layers, n_tokens, self.dtype, model_type, is_gguf=self.is_gguf, step=step
            )
        }
        if plain is not None:
            size = BYTES[plain]
            for engine, rule, kept in _of_transformers(layers):
                sizes = (
                    kept(each.cache).nbytes(n_tokens, size, self.n_source) * count
                    for each, count in self._alike.items()
                )
                rows.append(Reserve(engine, sum(sizes), rule))
            rules |= {
                "vLLM": lambda: vllm_reserves(
                    layers, n_tokens, plain, size, model_type, self.config, step=step
                ),
                "SGLang": lambda: sglang_reserves(layers, n_tokens, plain, size, model_type),
            }
        for engine, reserves in rules.items():
            try:
                rows += reserves()
            except NoRuleError as error:
                missing[engine] = str(error)
        return Reserves([replace(each, n_bytes=each.n_bytes * self.batch) for each in rows], missing)


Rule = tuple[str, str, Callable[[LayerCache], LayerCache]]
"""The name of a cache, its rule in words, and what it keeps of a layer."""


def _of_transformers(layers: Sequence[LayerAnatomy]) -> Iterator[Rule]:
    """Yield the caches of transformers whose rules are known for these layers: 5.23's cache_utils.py."""
    has_window = any(each.cache.window is not None for each in layers)
    rule = "window − 1 tokens of a sliding or chunked layer" if has_window else "the tokens so far"
    # `DynamicSlidingWindowLayer` of `DynamicCache(config=…)`
    yield "transformers, dynamic", f"5.23: {rule}", lambda cache: cache.dynamic
    if any(each.cache.compressed for each in layers):
        return

    def kept(cache: LayerCache) -> LayerCache:  # `StaticSlidingWindowLayer` of `StaticCache`
        window = None if cache.dynamic_window is None else cache.dynamic_window + 1
        return cache if window == cache.window else replace(cache, window=window)

    rule = "the whole context at once" + ("; at most a window" if has_window else "")
    yield "transformers, static", f"5.23: {rule}", kept
