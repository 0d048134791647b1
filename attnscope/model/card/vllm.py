"""What vLLM reserves for a sequence, by the rule of its planner.

The rule is that of 0.32, `_max_memory_usage_bytes_from_groups` in v1/core/kv_cache_utils.py: layers are
put into groups, which take blocks of one size from one pool. So a group with fewer layers than the
largest wastes the rest of its blocks. Blocks and steps are those of `vllm serve` on one H100.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from math import ceil
from typing import Any

from attnscope.model.card.anatomy import LayerAnatomy
from attnscope.model.card.result import NoRuleError, Reserve
from attnscope.model.families.table import family_of

BLOCK = 16
"""The tokens of a block: `CacheConfig.DEFAULT_BLOCK_SIZE`."""

LATENT_BLOCKS = {"fp8": 64}
"""The tokens of a block of latents, by dtype, where that differs: only FlashMLA has fp8."""

IN_FLIGHT, STEP = 2, 8192
"""`max_in_flight_tokens`: two steps overlap, each of `max_num_batched_tokens`."""


CROSS = ("whisper",)
"""The encoder-decoder models that were compared."""

DTYPES = ("float32", "bfloat16", "float16", "fp8")
"""What it can keep: `ModelDType` and `CacheDType`. Its int8 has a scale beside each key and value."""

PLAIN = frozenset({"full", "sliding", "chunked", "latent", "shared", "none"})
"""The kinds of layers whose rule is known."""


LATENT_ALIGNMENT = 128
"""What blocks of latents beside states are a multiple of: `_align_hybrid_block_size`."""

INDEXED_BLOCK, PACKED_LATENT, SCALED = 64, 656, 128
"""Beside an indexer, for FlashMLA: the tokens of a block; the bytes of a latent of 512 + 64 numbers in
fp8, which are 512, 4 scales of 4, and 64 numbers in bfloat16; and how many numbers of an indexer's key,
which is always in fp8, share a scale of 4 bytes. Source: flashmla_sparse.py in mla/."""


@dataclass(frozen=True)
class Pages:
    """What one layer takes from the pool, as vLLM's `KVCacheSpec` says it."""

    kind: str  #: `full`, `sliding`, `chunked`, `latent`, `state` or `cross`
    sizes: tuple[int | str | None, ...]  #: of the layer, so that only equal layers are in a group
    block: int
    per_token: int  #: the bytes of a token
    window: int | None = None  #: the window or chunk; None: all tokens are kept
    #: The bytes of a page that is larger than its tokens need; None: it is not.
    padded: int | None = None
    #: The blocks that it takes whatever the length is; None: those of the tokens.
    fixed: int | None = None

    @property
    def n_bytes(self) -> int:
        """The bytes of a page: those of one block in one layer."""
        return self.padded or self.block * self.per_token

    def count(self, n_tokens: int, in_flight: int) -> int:
        """Count the blocks that a sequence of so many tokens takes, of which some are on the way."""
        if self.fixed is not None:
            return self.fixed
        if self.window is None:
            return ceil(n_tokens / self.block)
        if self.kind == "chunked":
            return ceil(min(self.window + in_flight, n_tokens) / self.block)
        return ceil(min(self.window - 1 + in_flight, n_tokens) / self.block) + 1


def vllm_reserves(
    layers: Sequence[LayerAnatomy],
    n_tokens: int,
    dtype: str,
    itemsize: int,
    model_type: str = "",
    config: Mapping[str, Any] | None = None,
    *,
    step: int | None = None,
) -> list[Reserve]:
    """Count what vLLM reserves for one sequence; without its hybrid manager, too, where that differs.

    Args:
        config: the part of config.json for text, which may say the dtype of states.
        step: `--max-num-batched-tokens`; None: its default.

    Raises:
        NoRuleError: the rule is not known, or vLLM does not have the dtype.
    """
    in_flight = IN_FLIGHT * (step or STEP)
    if dtype not in DTYPES:
        raise NoRuleError(f"it has no {dtype}")
    pages = [page for each in layers for page in _pages(each, dtype, itemsize, model_type)]
    stateful = [each for each in layers if each.cache.newest]
    cross = [each for each in layers if each.kind == "cross"]
    _check(layers, pages, dtype, model_type)
    if stateful:
        pages = _with_states(pages, stateful, itemsize, model_type, config or {})
    n_source = ceil((step or STEP) / BLOCK)  # `max_num_encoder_input_tokens`, however few there are
    pages += [
        Pages("cross", _sizes(each), BLOCK, each.cache.per_source_token * itemsize, fixed=n_source)
        for each in cross
    ]
    groups = _groups(pages)
    found = [Reserve("vLLM", _total(groups, n_tokens, in_flight), _rule(groups, in_flight))]
    kinds = {each.kind for each in pages}
    one_window = len(kinds) == len({(each.kind, each.window) for each in pages})
    if len(groups) > 1 and "full" in kinds and one_window and not kinds & {"state", "cross"}:
        # `_promote_local_kv_cache_specs`
        one = [replace(each, window=None) for each in pages]
        rule = "0.32 with --disable-hybrid-kv-cache-manager: all tokens of all layers"
        found.append(Reserve("vLLM, not hybrid", _total([one], n_tokens, in_flight), rule))
    return found


def _check(layers: Sequence[LayerAnatomy], pages: list[Pages], dtype: str, model_type: str) -> None:
    """Raise a NoRuleError if the rule is not known for what some layers keep."""
    kinds = {each.kind for each in pages}
    if not pages:
        raise NoRuleError("its rule for models without keys and values is not known here")
    if "latent" in kinds and dtype == "float32":
        raise NoRuleError("none of its kernels has latents in float32")
    if len(kinds) > 1 and "latent" in kinds:
        raise NoRuleError("its rule for latents beside other keys and values is not known here")
    family = family_of(model_type)
    if family.vllm_one_window and len({each.window for each in pages}) > 1:
        raise NoRuleError(f"it refuses {model_type} with windows in some layers")
    has_states = any(each.cache.constant or each.cache.constant_float32 for each in layers)
    known_states = family.vllm_states is not None and all(each.window is None for each in pages)
    if has_states and not known_states:
        raise NoRuleError(f"its rule for the states of {model_type} is not known here")
    if any(each.kind == "cross" for each in layers) and model_type not in CROSS:
        raise NoRuleError(f"its rule for the encoder of {model_type} is not known here")
    for layer in layers:
        known = layer.kind in PLAIN or layer.kind == "cross" or layer.cache.newest
        known = known or (layer.kind == "sparse" and family.engines_index)
        if not known or (layer.kind == "latent" and layer.cache.window is not None):
            raise NoRuleError(f"its rule for {layer.kind} layers of {model_type} is not known here")


def _pages(layer: LayerAnatomy, dtype: str, itemsize: int, model_type: str) -> Iterator[Pages]:
    """Yield what a layer takes, as its `get_kv_cache_spec` does."""
    cache = layer.cache
    if not cache.per_token:
        return
    if layer.kind != "sparse" or not family_of(model_type).engines_index:
        block = LATENT_BLOCKS.get(dtype, BLOCK) if layer.kind == "latent" else BLOCK
        yield Pages(layer.kind, _sizes(layer), block, cache.per_token * itemsize, cache.window)
        return
    latent = layer.d_K_latent or 0
    if dtype == "fp8" and (latent, layer.d_V_latent) != (576, 512):
        raise NoRuleError(f"its layout of latents of {latent} numbers in fp8 is not known here")
    per_token = PACKED_LATENT if dtype == "fp8" else latent * itemsize
    yield Pages("latent", _sizes(layer), INDEXED_BLOCK, per_token)
    if own := cache.per_token - latent:
        yield Pages("latent", ("indexer",), INDEXED_BLOCK, own + ceil(own / SCALED) * 4)


def _sizes(layer: LayerAnatomy) -> tuple[int | str | None, ...]:
    return layer.n_kv_head, layer.d_K, layer.d_V


def _with_states(
    pages: list[Pages],
    stateful: list[LayerAnatomy],
    itemsize: int,
    model_type: str,
    config: Mapping[str, Any],
) -> list[Pages]:
    """Return the pages of attention and of states: `_align_hybrid_block_size` in platforms/interface.py.

    Blocks of attention have so many tokens that a page has room for a state, which is padded to it.
    """
    states, of_model = family_of(model_type).vllm_states, max(itemsize, 2)
    assert states is not None  # `_check` guarantees it
    dtype = config.get(states.field or "", states.dtype) or states.dtype
    if dtype not in (None, *DTYPES):
        raise NoRuleError(f"its states in {dtype} are not known here")
    of_state = {"float32": 4, None: of_model}.get(dtype, 2)
    n_block = states.blocks
    linear = config.get("linear_attn_config")
    if isinstance(linear, dict) and linear.get("gate_lower_bound") is not None:
        n_block += 1  # FlashKDA, which has checkpoints: `resolve_kda_prefill_backend`
    per_token = max(each.per_token for each in pages)
    state = max(
        (each.cache.constant - each.cache.newest) * of_model + each.cache.constant_float32 * of_state
        for each in stateful
    )
    step = LATENT_ALIGNMENT if pages[0].kind == "latent" else BLOCK
    block = step * ceil(state / (step * per_token))
    return [
        *(replace(each, block=block) for each in pages),
        *(Pages("state", (), block, per_token, fixed=n_block) for _ in stateful),
    ]


def _groups(pages: list[Pages]) -> list[list[Pages]]:
    """Return the groups of layers: `get_kv_cache_groups`.

    Layers of one kind and window are one group, whatever their sizes. Otherwise all pages become equally
    large, and each kind of layer is split into groups of as many layers as the rarest kind has.
    """
    if len({(each.kind, each.window) for each in pages}) == 1:
        return [pages]
    same: dict[Pages, list[Pages]] = {}
    for each in _equal_pages(pages):
        same.setdefault(each, []).append(each)
    fewest, most = min(map(len, same.values())), max(map(len, same.values()))
    size = most if most < 1.5 * fewest else fewest
    groups = []
    for alike in same.values():
        n_group = ceil(len(alike) / size)
        groups += [alike[i::n_group] for i in range(n_group)]
    return groups


def _equal_pages(pages: list[Pages]) -> list[Pages]:
    """Return equally large pages, of more tokens or with padding: `unify_kv_cache_spec_page_size`."""
    largest = max(each.n_bytes for each in pages)
    return [
        replace(each, block=each.block * (largest // each.n_bytes))
        if largest % each.n_bytes == 0
        else replace(each, padded=largest)
        for each in pages
    ]


def _total(groups: list[list[Pages]], n_tokens: int, in_flight: int) -> int:
    """Return the bytes of a sequence: each group takes blocks as large as those of the largest group."""
    block = max(sum(each.n_bytes for each in group) for group in groups)
    return block * sum(max(each.count(n_tokens, in_flight) for each in group) for group in groups)


def _rule(groups: list[list[Pages]], in_flight: int) -> str:
    """Return the rule in words, of what these groups have."""
    pages = [each for group in groups for each in group]
    kinds = {each.kind for each in pages}
    sizes = sorted({each.block for each in pages})
    parts = [f"0.32: blocks of {' and '.join(map(str, sizes))}"]
    if "sliding" in kinds:
        parts.append(f"window − 1 + {in_flight:,} tokens of a sliding layer, and a block")
    if "chunked" in kinds:
        parts.append(f"a chunk + {in_flight:,} tokens of a chunked layer")
    for fixed in sorted(
        {each.fixed for each in pages if each.fixed is not None and each.kind == "state"}
    ):
        parts.append(f"{fixed} blocks of a state")
    if "cross" in kinds:
        parts.append(f"{in_flight // IN_FLIGHT:,} tokens of the encoder")
    if any(each.sizes == ("indexer",) for each in pages):
        own = next(each for each in pages if each.sizes == ("indexer",))
        parts.append(f"{own.per_token} bytes of an indexer's key")
    if any(each.kind == "latent" and each.per_token == PACKED_LATENT for each in pages):
        parts.append(f"{PACKED_LATENT} bytes of a latent, of which 64 numbers stay in bfloat16")
    largest = max(map(len, groups))
    if missing := largest * len(groups) - len(pages):
        parts.append(f"groups of {largest} layers, of which {missing} are missing")
    return "; ".join(parts)
