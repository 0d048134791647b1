"""What llama.cpp reserves, against what it logs, and which layers it gives a window."""

from __future__ import annotations

import pytest

from attnscope import card
from attnscope.model.card.anatomy import LayerAnatomy, LayerCache
from attnscope.model.card.cache_dtype import CacheDtype
from attnscope.model.card.from_config import anatomy_of
from attnscope.model.card.kv_cache import Caches

FULL = LayerAnatomy("full", cache=LayerCache(per_token=10))
SLIDING = LayerAnatomy("sliding", cache=LayerCache(per_token=10, window=100, dynamic_window=99))


def reserves(layers, n_tokens: int, dtype: str = "float16", batch: int = 1) -> dict[str, int]:
    """Return what llama.cpp reserves for layers of a GGUF file, by the name of its rows."""
    found = Caches(layers, CacheDtype.both(dtype), batch, is_gguf=True).reserved(n_tokens).rows
    return {each.engine: each.n_bytes for each in found if "llama" in each.engine}


def test_llama_cpp_reserves_multiples_of_256_cells() -> None:
    assert reserves((FULL,), 257)["llama.cpp"] == 512 * 10 * 2
    assert reserves((SLIDING,), 100_000)["llama.cpp"] == 768 * 10 * 2  # 100 + 512, padded
    assert reserves((SLIDING,), 257)["llama.cpp"] == 512 * 10 * 2


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
    rows = reserves(layers, n_tokens, batch=batch)
    assert rows["llama.cpp"] == found
    assert rows.get("llama.cpp, full") == full


@pytest.mark.parametrize("dtype", ["fp8", "int8", "float64"])
def test_llama_cpp_is_left_out_for_a_dtype_that_its_cache_does_not_have(dtype: str) -> None:
    assert reserves((FULL,), 3, dtype) == {}


CONFIG = {
    "hidden_size": 24,
    "num_hidden_layers": 12,
    "num_attention_heads": 6,
    "num_key_value_heads": 3,
    "head_dim": 10,
    "sliding_window": 700,
    "max_position_embeddings": 6000,
}
PER_TOKEN = 2 * 3 * 10 * 2  # of a layer, in float16
N_TOKENS = 5120  # a multiple of 256


def of_config(model_type: str, **fields) -> dict[str, int]:
    anatomy = anatomy_of(CONFIG | {"model_type": model_type} | fields)
    caches = Caches(anatomy.layers, CacheDtype.both("float16"), model_type=anatomy.model_type)
    found = caches.reserved(N_TOKENS).rows
    return {each.engine: each.n_bytes for each in found if "llama" in each.engine}


QWEN2 = {"use_sliding_window": True, "max_window_layers": 5}


@pytest.mark.parametrize(
    ("model_type", "fields"),
    [("mistral", {}), ("phi3", {}), ("phimoe", {}), ("starcoder2", {}), ("qwen2", QWEN2), ("llama", {})],
)
def test_families_without_windows_in_llama_cpp_keep_all_tokens(model_type, fields) -> None:
    # "n_swa = 0" in its logs: Mistral runs as llama, and those of Phi are switched off
    assert of_config(model_type, **fields) == {"llama.cpp": 12 * PER_TOKEN * N_TOKENS}


def test_families_with_windows_in_llama_cpp_keep_a_window_and_a_step() -> None:
    sliding, full = 10 * PER_TOKEN * 1280, 2 * PER_TOKEN * N_TOKENS  # 700 + 512, padded to 256
    every = 12 * PER_TOKEN * N_TOKENS
    assert of_config("gemma3_text") == {"llama.cpp": sliding + full, "llama.cpp, full": every}


def test_layers_that_a_converted_file_does_not_list_have_windows_by_the_rule_of_llama_cpp() -> None:
    # Gemma 2's file has no list: every second layer has no window, whatever config.json says
    half = 6 * PER_TOKEN * (1280 + N_TOKENS)
    kinds = ["sliding_attention"] * 3 + ["full_attention"] * 9
    assert of_config("gemma2", layer_types=kinds)["llama.cpp"] == half
    # Olmo 3's has one
    assert of_config("olmo3", layer_types=kinds)["llama.cpp"] == PER_TOKEN * (3 * 1280 + 9 * N_TOKENS)


def test_only_the_large_exaone_4_has_windows_in_llama_cpp() -> None:
    large = {
        "num_hidden_layers": 64,
        "layer_types": (["sliding_attention"] * 3 + ["full_attention"]) * 16,
    }
    assert of_config("exaone4", **large)["llama.cpp"] == PER_TOKEN * (48 * 1280 + 16 * N_TOKENS)
    small = {"layer_types": (["sliding_attention"] * 3 + ["full_attention"]) * 3}
    assert of_config("exaone4", **small) == {"llama.cpp": 12 * PER_TOKEN * N_TOKENS}


def test_a_family_that_llama_cpp_does_not_run_has_no_row() -> None:
    assert of_config("opt", ffn_dim=7, word_embed_proj_dim=24) == {}


def test_muse_glimmer_reserves_what_its_published_log_says() -> None:
    """13 of 52 layers are full, the others have a window of 2,048; the log of its file says 513.5 MiB."""
    config = {
        "model_type": "muse_glimmer",
        "num_hidden_layers": 52,
        "num_attention_heads": 32,
        "num_key_value_heads": 2,
        "head_dim": 128,
        "sliding_window": 2048,
        "max_position_embeddings": 131072,
        "torch_dtype": "bfloat16",
    }
    rows = {each.engine: each.n_bytes for each in card(config, context=32_768).reserved}
    assert rows["llama.cpp"] == 513.5 * 2**20


HYBRID = {
    "model_type": "qwen3_next",
    "hidden_size": 24,
    "num_hidden_layers": 4,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "head_dim": 32,
    "linear_num_key_heads": 3,
    "linear_num_value_heads": 6,
    "linear_key_head_dim": 8,
    "linear_value_head_dim": 10,
    "linear_conv_kernel_dim": 4,
    "max_position_embeddings": 64,
    "dtype": "bfloat16",
}


def test_the_full_layers_of_a_hybrid_model_have_a_dtype_of_llama_cpp() -> None:
    of_states, of_tokens = card(HYBRID, context=64, dtype="q8_0").kinds
    assert (
        of_tokens.bytes_per_token == 2 * 2 * 32 * 34 // 32
    )  # K and V of two heads; 34 bytes for 32 numbers
    convolution = (2 * 3 * 8 + 6 * 10) * 4  # inputs of Q, K and V, in the dtype of the model
    matrices = 6 * 8 * 10  # a head's d_K × d_V
    in_float32 = card({**HYBRID, "dtype": "float32"}, context=64, dtype="float32").kinds[0]
    assert of_states.cache_bytes == in_float32.cache_bytes - 3 * convolution * 2
    assert of_states.cache_bytes in [3 * (2 * convolution + size * matrices) for size in (2, 4)]


@pytest.mark.parametrize("dtype", ["fp8", "int8"])
def test_states_are_not_quantised_with_the_keys_and_values(dtype: str) -> None:
    of_states, of_tokens = card(HYBRID, context=64, dtype=dtype).kinds
    in_bfloat16 = card(HYBRID, context=64).kinds
    assert of_states.cache_bytes == in_bfloat16[0].cache_bytes
    assert 2 * of_tokens.cache_bytes == in_bfloat16[1].cache_bytes
