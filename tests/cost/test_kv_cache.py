"""What keys and values need, and what engines reserve, against the engines' own rules and caches."""

from __future__ import annotations

import pytest
import torch
from transformers import AutoConfig, StaticCache

from attnscope.cost.anatomy import LayerAnatomy, LayerCache
from attnscope.cost.from_config import anatomy_of
from attnscope.cost.kv_cache import needed, reserved

SIZES = {
    "model_type": "gemma3_text",
    "hidden_size": 24,
    "num_hidden_layers": 4,
    "num_attention_heads": 6,
    "num_key_value_heads": 3,
    "head_dim": 10,
    "sliding_window": 8,
    "layer_types": ["sliding_attention", "full_attention"] * 2,
    "max_position_embeddings": 64,
}


def reserve(layers: tuple[LayerAnatomy, ...], engine: str, n_tokens: int, batch: int = 1) -> int:
    return {each.engine: each.n_bytes for each in reserved(layers, n_tokens, "bfloat16", batch)}[engine]


@pytest.mark.parametrize("n_tokens", [5, 8, 13])
def test_the_static_cache_is_as_large_as_that_of_transformers(n_tokens: int) -> None:
    cache = StaticCache(config=AutoConfig.for_model(**SIZES), max_cache_len=n_tokens)
    cache.early_initialization(2, 3, 10, torch.bfloat16, torch.device("cpu"))
    held = sum(each.keys.nbytes + each.values.nbytes for each in cache.layers)
    assert reserve(anatomy_of(SIZES).layers, "transformers, static", n_tokens, batch=2) == held


FULL = LayerAnatomy("full", cache=LayerCache(per_token=10))
SLIDING = LayerAnatomy("sliding", cache=LayerCache(per_token=10, window=100, dynamic_window=99))


def test_llama_cpp_reserves_multiples_of_256_cells() -> None:
    assert reserve((FULL,), "llama.cpp", 257) == 512 * 10 * 2
    assert reserve((SLIDING,), "llama.cpp", 100_000) == 768 * 10 * 2  # 100 + 512, padded
    assert reserve((SLIDING,), "llama.cpp", 257) == 512 * 10 * 2


MIB = 2**20
LLAMA_CPP = {
    "llama": ({"full": 12}, 5000, 1, 30 * MIB, None),
    "gemma3": ({"sliding": 10, "full": 2}, 5000, 1, 5 * MIB + 15 * MIB // 2, 30 * MIB),
    "gemma2": ({"sliding": 6, "full": 6}, 10_000, 2, 60 * MIB + 9 * MIB, 120 * MIB),
}
"""What llama.cpp (the build of xllamacpp 2026.10.11549) logs as the sizes of its caches in float16, for files of
such layers with 2 heads of keys of width 64 and windows of 1,024: for `n_ctx` 5,120, with and without
`--swa-full`, and for two sequences of 10,240."""


@pytest.mark.parametrize("arch", LLAMA_CPP)
def test_llama_cpp_reserves_what_it_logs(arch: str) -> None:
    counts, n_tokens, batch, found, full = LLAMA_CPP[arch]
    windows = {"full": None, "sliding": 1024}
    layers = [
        LayerAnatomy(kind, cache=LayerCache(per_token=2 * 2 * 64, window=windows[kind]))
        for kind, count in counts.items()
        for _ in range(count)
    ]
    reserves = {each.engine: each.n_bytes for each in reserved(layers, n_tokens, "float16", batch)}
    assert reserves["llama.cpp"] == found
    assert reserves.get("llama.cpp, full") == full


def test_engines_whose_rule_is_unknown_for_a_layer_are_left_out() -> None:
    state = LayerAnatomy("linear", cache=LayerCache(constant=7, constant_float32=5))
    assert [each.engine for each in reserved((FULL, state), 3, "bfloat16", 1)] == [
        "transformers, dynamic",
        "transformers, static",
    ]
    assert needed((FULL, state), 3, 2) == 2 * (3 * 10 + 7) + 4 * 5


@pytest.mark.parametrize("dtype", ["fp8", "int8", "float64"])
def test_llama_cpp_is_left_out_for_a_dtype_that_its_cache_does_not_have(dtype: str) -> None:
    assert "llama.cpp" not in [each.engine for each in reserved((FULL,), 3, dtype, 1)]


def test_what_is_kept_of_an_encoder_depends_on_its_own_length() -> None:
    cross = LayerAnatomy("cross", cache=LayerCache(per_source_token=6))
    assert needed((FULL, cross), 3, 4, n_source=5) == 4 * (3 * 10 + 5 * 6)
