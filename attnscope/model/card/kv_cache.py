"""The bytes of keys and values: what attention needs, what engines reserve, what fits into a memory.

Each engine has a rule of its own, with its source. An engine is left out where its rule is not known.
"""

from __future__ import annotations

from bisect import bisect_right
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from math import ceil
from typing import Any, NamedTuple

from attnscope.base.errors import OptionError
from attnscope.base.spelling import spelled
from attnscope.model.card.anatomy import LayerAnatomy, LayerCache
from attnscope.model.card.cache_dtype import BYTES, CacheDtype
from attnscope.model.card.llama_cpp import llama_cpp_reserves
from attnscope.model.card.result import NoRuleError, Reserve
from attnscope.model.card.vllm import PACKED_LATENT, SCALED, vllm_reserves
from attnscope.model.families.table import family_of

MAX_CONTEXT = 2**50
"""No context is longer: what still fits there does not grow."""


class Reserves(NamedTuple):
    """What engines reserve."""

    rows: list[Reserve]  #: for each engine whose rule is known
    missing: dict[str, str]  #: why the others are left out, by their names


@dataclass(frozen=True)
class Caches:
    """The keys and values of some sequences."""

    layers: Sequence[LayerAnatomy]  #: those that keep them, cross-attention included
    dtype: CacheDtype
    batch: int = 1
    n_source: int = 0
    model_type: str = ""  #: by its config.json, as each engine has its own code for a class
    #: The part of config.json for text, as engines read further fields.
    config: Mapping[str, Any] = field(default_factory=dict)
    is_gguf: bool = False  #: whether the layers are those of a GGUF file, whose windows are llama.cpp's
    step: int | None = None  #: the tokens that an engine processes at once; None: its default

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


PAGE, INDEXED_PAGE = 1, 64
"""The tokens of a page, and beside an indexer: srt/arg_groups/model_overrides/deepseek_v2.py."""

SGLANG_DTYPES = ("bfloat16", "float16", "float32", "fp8")
"""Those of a model, and fp8."""


def sglang_reserves(
    layers: Sequence[LayerAnatomy], n_tokens: int, dtype: str, itemsize: int, model_type: str = ""
) -> list[Reserve]:
    """Count the bytes that one sequence takes in SGLang's pool of tokens.

    The rule is that of 0.5.23 on CUDA, with its default attention backends on Hopper: a slot for each
    token, in whole pages. Source: `_compute_cell_size` in srt/model_executor/pool_configurator.py,
    `calculate_mla_kv_cache_dim` in srt/mem_cache/kv_cache_configurator.py, and `_page_size_default` in
    srt/arg_groups/overrides.py. Pools of windows and of states are shares of its memory (for example
    `--swa-full-tokens-ratio`), so no single sequence says their size.

    Raises:
        NoRuleError: the rule is not known, or SGLang does not have the dtype.
    """
    if dtype not in SGLANG_DTYPES:
        raise NoRuleError(f"it has no {dtype}")
    indexed = family_of(model_type).engines_index
    for layer in layers:
        if layer.cache.window is not None or layer.cache.constant or layer.cache.constant_float32:
            raise NoRuleError("its pools of windows and states are shares of its memory")
        if layer.kind not in ("full", "latent") and not (indexed and layer.kind == "sparse"):
            raise NoRuleError(f"its rule for {layer.kind} layers is not known here")
    if len({(each.kind, each.n_kv_head, each.d_K, each.d_V) for each in layers}) > 1:
        raise NoRuleError("its rule for layers of several sizes is not known here")
    if "latent" in {each.kind for each in layers} and dtype == "float32":
        raise NoRuleError("its rule for latents in float32 is not known here")
    page = INDEXED_PAGE if indexed else PAGE
    per_token = sum(_sglang_per_token(each, dtype, itemsize) for each in layers)
    rule = f"0.5.23: pages of {page}"
    return [Reserve("SGLang", per_token * ceil(n_tokens / page) * page, rule)]


def _sglang_per_token(layer: LayerAnatomy, dtype: str, itemsize: int) -> int:
    """Return the bytes of a token in one layer."""
    numbers = layer.cache.per_token
    if layer.kind != "sparse":
        return numbers * itemsize
    latent = layer.d_K_latent or 0
    if (latent, layer.d_V_latent) != (576, 512) or dtype not in ("bfloat16", "fp8"):
        raise NoRuleError(f"its rule for latents of {latent} numbers in {dtype} is not known here")
    own = numbers - latent
    packed = PACKED_LATENT if dtype == "fp8" else latent * itemsize
    return packed + (own + own // SCALED * 4 if own else 0)


# Tensor parallelism: each device has a share of the heads. Where there are more devices than heads of
# keys, several keep the same head. Latents, and the keys of an indexer, are one head for all queries, so
# every device keeps them. Source: `ModelConfig.get_num_kv_heads` in vLLM's config/model.py; SGLang and
# llama.cpp do the same.

WHOLE = frozenset({"latent", "sparse", "compressed", "compressed sparse", "shared", "none"})
"""The kinds of layers of which every device keeps all."""


def of_one_device(layers: Sequence[LayerAnatomy], n_device: int) -> tuple[LayerAnatomy, ...]:
    """Return layers whose caches are those of one of several devices that share the heads."""
    if n_device == 1:
        return tuple(layers)
    return tuple(replace(each, cache=_share(each, n_device)) for each in layers)


def _share(layer: LayerAnatomy, n_device: int) -> LayerCache:
    """Return what one device keeps of a layer."""
    cache, n_head, n_kv_head = layer.cache, layer.n_head, layer.n_kv_head
    if layer.kind in WHOLE and (layer.kind != "sparse" or layer.d_K_latent is not None):
        return cache

    def undivided(what: str) -> OptionError:
        return OptionError(
            f"{n_device} devices cannot share {what} of a layer of the kind {layer.kind!r}.",
            hint=f"{spelled(tensor_parallel=2)}, or another divisor",
        )

    if n_head is None or n_head % n_device:
        raise undivided(f"{n_head or 'no'} heads")
    if layer.kind == "linear":
        states = {name: getattr(cache, name) for name in ("constant", "constant_float32", "newest")}
        if any(each % n_device for each in states.values()):
            raise undivided("its states")
        return replace(cache, **{name: each // n_device for name, each in states.items()})
    if layer.kind not in ("full", "sliding", "chunked", "cross") or n_kv_head is None:
        raise OptionError(
            f"how layers of the kind {layer.kind!r} are shared by several devices is not known here.",
            hint=f"the card without {spelled('tensor_parallel')}",
        )
    if n_kv_head % n_device and n_device % n_kv_head:
        raise undivided(f"{n_kv_head} heads of keys")
    if layer.indexer is not None or cache.constant or cache.constant_float32:
        raise undivided("what it keeps")
    own = max(n_kv_head // n_device, 1)
    return replace(
        cache,
        per_token=cache.per_token * own // n_kv_head,
        per_source_token=cache.per_source_token * own // n_kv_head,
    )
