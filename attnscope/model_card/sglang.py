"""What a sequence takes in SGLang's pool of tokens.

The rule is that of 0.5.23 on CUDA, with its default attention backends on Hopper: a slot for each token,
in whole pages. Source: `_compute_cell_size` in srt/model_executor/pool_configurator.py,
`calculate_mla_kv_cache_dim` in srt/mem_cache/kv_cache_configurator.py, and `_page_size_default` in
srt/arg_groups/overrides.py. Pools of windows and of states are shares of its memory (for example
`--swa-full-tokens-ratio`), so no single sequence says their size.
"""

from __future__ import annotations

from collections.abc import Sequence
from math import ceil

from attnscope.model_card.anatomy import LayerAnatomy
from attnscope.model_card.result import NoRuleError, Reserve
from attnscope.model_card.vllm import INDEXED, PACKED_LATENT, SCALED

PAGE, INDEXED_PAGE = 1, 64
"""The tokens of a page, and beside an indexer: srt/arg_groups/model_overrides/deepseek_v2.py."""

DTYPES = ("bfloat16", "float16", "float32", "fp8")
"""Those of a model, and fp8."""


def sglang_reserves(
    layers: Sequence[LayerAnatomy], n_tokens: int, dtype: str, itemsize: int, model_type: str = ""
) -> list[Reserve]:
    """Count the bytes that one sequence takes.

    Args:
        layers: the layers, in order.
        n_tokens: the tokens of the sequence.
        dtype, itemsize: of a number, and its bytes.
        model_type: by its config.json.

    Raises:
        NoRuleError: the rule is not known, or SGLang does not have the dtype.
    """
    if dtype not in DTYPES:
        raise NoRuleError(f"it has no {dtype}")
    indexed = model_type in INDEXED
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
    per_token = sum(_per_token(each, dtype, itemsize) for each in layers)
    rule = f"0.5.23: pages of {page}"
    return [Reserve("SGLang", per_token * ceil(n_tokens / page) * page, rule)]


def _per_token(layer: LayerAnatomy, dtype: str, itemsize: int) -> int:
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
