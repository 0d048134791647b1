"""What vLLM reserves for a sequence, by the rule of its planner.

The rule is that of 0.32, `_max_memory_usage_bytes_from_groups` in v1/core/kv_cache_utils.py: layers are
put into groups, which take blocks of one size from one pool. So a group with fewer layers than the
largest wastes the rest of its blocks. Blocks and steps are those of `vllm serve` on one H100.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from math import ceil

from attnscope.cost.anatomy import LayerAnatomy
from attnscope.results.card import Reserve

BLOCK = 16
"""The tokens of a block: `CacheConfig.DEFAULT_BLOCK_SIZE`."""

LATENT_BLOCKS = {"fp8": 64}
"""The tokens of a block of latents, by dtype, where that differs: only FlashMLA has fp8."""

STEP = 2 * 8192
"""`max_in_flight_tokens`: two steps overlap, each of `max_num_batched_tokens`."""

SOURCE = 8192
"""`max_num_encoder_input_tokens`: the tokens of the encoder that it reserves, however few there are."""

CROSS = ("whisper",)
"""The encoder-decoder models that were compared."""

DTYPES = ("float32", "bfloat16", "float16", "fp8")
"""What it can keep: `ModelDType` and `CacheDType`. Its int8 has a scale beside each key and value."""

PLAIN = frozenset({"full", "sliding", "chunked", "latent", "shared", "none"})
"""The kinds of layers whose rule is known."""

STATES = {"qwen3_next": 2, "jamba": 2, "falcon_h1": 3}
"""By model type: the blocks of a state, with prefix caching; its numbers are in the model's dtype."""


@dataclass(frozen=True)
class Pages:
    """What one layer takes from the pool, as vLLM's `KVCacheSpec` says it.

    Attributes:
        kind: `full`, `sliding`, `chunked`, `latent`, `state` or `cross`.
        sizes: of the layer, so that only equal layers are in a group.
        block: the tokens of a block.
        per_token: the bytes of a token.
        window: the window or chunk; None: all tokens are kept.
        padded: the bytes of a page that is larger than its tokens need; None: it is not.
        fixed: the blocks that it takes whatever the length is; None: those of the tokens.
    """

    kind: str
    sizes: tuple[int | None, ...]
    block: int
    per_token: int
    window: int | None = None
    padded: int | None = None
    fixed: int | None = None

    @property
    def n_bytes(self) -> int:
        """The bytes of a page: those of one block in one layer."""
        return self.padded or self.block * self.per_token

    def count(self, n_tokens: int) -> int:
        """Return how many blocks a sequence of so many tokens takes."""
        if self.fixed is not None:
            return self.fixed
        if self.window is None:
            return ceil(n_tokens / self.block)
        if self.kind == "chunked":
            return ceil(min(self.window + STEP, n_tokens) / self.block)
        return ceil(min(self.window - 1 + STEP, n_tokens) / self.block) + 1


def vllm_reserves(
    layers: Sequence[LayerAnatomy], n_tokens: int, dtype: str, itemsize: int, model_type: str = ""
) -> Iterator[Reserve]:
    """Yield what vLLM reserves for one sequence; without its hybrid manager, too, where that differs.

    Nothing is yielded where the rule is not known, or vLLM does not have the dtype.

    Args:
        layers: the layers, in order.
        n_tokens: the tokens of the sequence, `max_model_len`.
        dtype, itemsize: of a number, and its bytes.
        model_type: by its config.json.
    """
    pages = [_pages(each, dtype, itemsize) for each in layers if each.cache.per_token]
    stateful = [each for each in layers if each.cache.newest]
    cross = [each for each in layers if each.kind == "cross"]
    if not pages or not _supports(pages, dtype):
        return
    if stateful and model_type in STATES and all(each.window is None for each in pages):
        pages = _with_states(pages, stateful, itemsize, STATES[model_type])
    elif not all(_is_known(each) for each in layers if each.kind != "cross"):
        return
    if cross and model_type not in CROSS:
        return
    pages += [
        Pages(
            "cross", _sizes(each), BLOCK, each.cache.per_source_token * itemsize, fixed=SOURCE // BLOCK
        )
        for each in cross
    ]
    groups = _groups(pages)
    yield Reserve("vLLM", _total(groups, n_tokens), _rule(groups))
    if len(groups) > 1 and _fit_one_group(pages):
        one = [replace(each, window=None) for each in pages]
        rule = "0.32 with --disable-hybrid-kv-cache-manager: all tokens of all layers"
        yield Reserve("vLLM, not hybrid", _total([one], n_tokens), rule)


def _pages(layer: LayerAnatomy, dtype: str, itemsize: int) -> Pages:
    """Return what a layer takes, as its `get_kv_cache_spec` does."""
    block = LATENT_BLOCKS.get(dtype, BLOCK) if layer.kind == "latent" else BLOCK
    return Pages(layer.kind, _sizes(layer), block, layer.cache.per_token * itemsize, layer.cache.window)


def _sizes(layer: LayerAnatomy) -> tuple[int | None, ...]:
    return layer.n_kv_head, layer.d_K, layer.d_V


def _with_states(
    pages: list[Pages], stateful: list[LayerAnatomy], itemsize: int, n_block: int
) -> list[Pages]:
    """Return the pages of attention and of states: `_align_hybrid_block_size` in platforms/interface.py.

    Blocks of attention have so many tokens that a page has room for a state, which is padded to it.
    """
    per_token = max(each.per_token for each in pages)
    state = max(
        (each.cache.constant - each.cache.newest + each.cache.constant_float32) * max(itemsize, 2)
        for each in stateful
    )
    block = BLOCK * ceil(state / (BLOCK * per_token))
    return [
        *(replace(each, kind="full", block=block) for each in pages),
        *(Pages("state", (), block, per_token, fixed=n_block) for _ in stateful),
    ]


def _is_known(layer: LayerAnatomy) -> bool:
    """Return whether the rule is known for what a layer keeps."""
    latent_window = layer.kind == "latent" and layer.cache.window is not None
    return layer.kind in PLAIN and not latent_window and not layer.cache.constant


def _supports(pages: list[Pages], dtype: str) -> bool:
    """Return whether vLLM has a dtype for these pages; no kernel has latents in float32.

    Latents beside other keys and values are left out, as no model with both was compared.
    """
    kinds = {each.kind for each in pages}
    return dtype in DTYPES and ("latent" not in kinds or (len(kinds) == 1 and dtype != "float32"))


def _fit_one_group(pages: list[Pages]) -> bool:
    """Return whether layers are full, and of one window a kind: `_promote_local_kv_cache_specs`."""
    kinds = {each.kind for each in pages}
    if "state" in kinds or "cross" in kinds:
        return False
    return "full" in kinds and len(kinds) == len({(each.kind, each.window) for each in pages})


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


def _total(groups: list[list[Pages]], n_tokens: int) -> int:
    """Return the bytes of a sequence: each group takes blocks as large as those of the largest group."""
    block = max(sum(each.n_bytes for each in group) for group in groups)
    return block * sum(max(each.count(n_tokens) for each in group) for group in groups)


def _rule(groups: list[list[Pages]]) -> str:
    """Return the rule in words, of what these groups have."""
    pages = [each for group in groups for each in group]
    kinds = {each.kind for each in pages}
    sizes = sorted({each.block for each in pages})
    parts = [f"0.32: blocks of {' and '.join(map(str, sizes))}"]
    if "sliding" in kinds:
        parts.append(f"window − 1 + {STEP:,} tokens of a sliding layer, and a block")
    if "chunked" in kinds:
        parts.append(f"a chunk + {STEP:,} tokens of a chunked layer")
    for fixed in sorted(
        {each.fixed for each in pages if each.fixed is not None and each.kind == "state"}
    ):
        parts.append(f"{fixed} blocks of a state")
    if "cross" in kinds:
        parts.append(f"{SOURCE:,} tokens of the encoder")
    largest = max(map(len, groups))
    if missing := largest * len(groups) - len(pages):
        parts.append(f"groups of {largest} layers, of which {missing} are missing")
    return "; ".join(parts)
