"""What a sequence takes in SGLang's pool, by its own sums."""

from __future__ import annotations

import pytest
from model_card.vllm_figures import CONFIGS

from attnscope.model_card.anatomy import LayerAnatomy, LayerCache
from attnscope.model_card.cache_dtype import CacheDtype
from attnscope.model_card.from_config import anatomy_of
from attnscope.model_card.kv_cache import Caches, Reserves


def found(name: str, n_tokens: int, dtype: str, batch: int = 1) -> Reserves:
    anatomy = anatomy_of(CONFIGS[name])
    caches = Caches(anatomy.layers, CacheDtype.both(dtype), batch, model_type=anatomy.model_type)
    return caches.reserved(n_tokens)


def row(*arguments: object) -> int:
    return {each.engine: each.n_bytes for each in found(*arguments).rows}["SGLang"]


def test_a_token_takes_a_slot() -> None:
    """`n * (head_dim + v_head_dim) * num_layers * kv_size`"""
    assert row("llama", 17, "bfloat16") == 17 * 8 * (128 + 128) * 32 * 2
    assert row("llama", 17, "fp8", 3) == 3 * 17 * 8 * (128 + 128) * 32
    assert row("deepseek_v3", 17, "bfloat16") == 17 * (512 + 64) * 61 * 2
    assert row("deepseek_v3", 17, "fp8") == 17 * (512 + 64) * 61


def test_an_indexer_has_pages_of_64_and_scales() -> None:
    index = 128 + 128 // 128 * 4  # `index_head_dim + index_head_dim // quant_block_size * 4`
    assert row("deepseek_v32", 65, "bfloat16") == 128 * 61 * ((512 + 64) * 2 + index)
    packed = 512 + 512 // 128 * 4 + 64 * 2  # latents, their scales, and positions in bfloat16
    assert row("deepseek_v32", 65, "fp8") == 128 * 61 * (packed + index)
    n_indexer = CONFIGS["glm_moe_dsa"]["indexer_types"].count("full")
    assert row("glm_moe_dsa", 64, "fp8") == 64 * (13 * packed + n_indexer * index)


@pytest.mark.parametrize(
    ("name", "dtype", "why"),
    [
        ("gpt_oss", "fp8", "pools of windows and states"),
        ("qwen3_next", "fp8", "pools of windows and states"),
        ("llama", "int8", "it has no int8"),
        ("deepseek_v3", "float32", "latents in float32"),
        ("deepseek_v32", "float16", "latents of 576 numbers in float16"),
    ],
)
def test_a_rule_that_is_not_known_is_no_row_and_a_reason(name: str, dtype: str, why: str) -> None:
    result = found(name, 17, dtype)
    assert "SGLang" not in [each.engine for each in result.rows]
    assert why in result.missing["SGLang"]


def test_layers_of_several_sizes_have_no_row() -> None:
    layers = [LayerAnatomy("full", 6, n, 10, 10, cache=LayerCache(n * 20)) for n in (2, 3)]
    result = Caches(layers, CacheDtype.both("fp8")).reserved(17)
    assert "several sizes" in result.missing["SGLang"]
