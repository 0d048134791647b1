"""The dtypes of keys and values: their bytes, and which one a checkpoint asks for."""

from __future__ import annotations

from fractions import Fraction

import gguf
import pytest

from attnscope.model.card.anatomy import LayerAnatomy, LayerCache
from attnscope.model.card.cache_dtype import BLOCKS, CacheDtype, checkpoint_dtype
from attnscope.model.card.kv_cache import Caches

WIDE = LayerAnatomy("full", 6, 2, 96, 64, cache=LayerCache(2 * (96 + 64)))
LATENT = LayerAnatomy("latent", 6, 6, 96, 64, cache=LayerCache(512 + 64), d_K_latent=576, d_V_latent=512)


@pytest.mark.parametrize("dtype", BLOCKS)
def test_blocks_have_the_bytes_of_ggml(dtype: str) -> None:
    n_number, n_bytes = gguf.GGML_QUANT_SIZES[gguf.GGMLQuantizationType[dtype.upper()]]
    assert (n_number, n_bytes) == (32, BLOCKS[dtype].n_bytes)


def test_keys_and_values_have_dtypes_of_their_own() -> None:
    keys, values = 2 * 96 * 7, 2 * 64 * 7
    assert Caches([WIDE], CacheDtype("q8_0", "q4_0")).needed(7) == keys * 34 // 32 + values * 18 // 32
    assert Caches([WIDE], CacheDtype("q8_0", "float16")).needed(7) == keys * 34 // 32 + values * 2
    assert Caches([WIDE], CacheDtype.both("float16")).needed(7) == (keys + values) * 2


def test_latents_have_the_dtype_of_the_keys() -> None:
    assert CacheDtype("q8_0", "q4_0").itemsize(LATENT) == Fraction(34, 32)


def test_only_llama_cpp_has_blocks() -> None:
    found = Caches([WIDE], CacheDtype.both("q8_0"), 3, model_type="llama").reserved(256).rows
    assert [(each.engine, each.n_bytes) for each in found] == [("llama.cpp", 3 * 256 * 320 * 34 // 32)]
    assert Caches([WIDE], CacheDtype.both("q8_0"), model_type="opt").reserved(256).rows == []


FP8 = {"num_bits": 8, "type": "float", "strategy": "tensor", "dynamic": False, "symmetric": True}


@pytest.mark.parametrize(
    ("config", "beside", "dtype", "field"),
    [
        ({"kv_cache_scheme": FP8}, None, "fp8", "quantization_config.kv_cache_scheme"),
        (
            {"kv_cache_scheme": FP8 | {"type": "int"}},
            None,
            "int8",
            "quantization_config.kv_cache_scheme",
        ),
        ({"kv_cache_scheme": "FP8"}, None, "fp8", "quantization_config.kv_cache_scheme"),
        ({"kv_cache_quant_algo": "FP8"}, None, "fp8", "quantization_config.kv_cache_quant_algo"),
        ({"kv_cache_quant_algo": "NVFP4"}, None, None, "quantization_config.kv_cache_quant_algo"),
        (None, {"kv_cache_quant_algo": "FP8"}, "fp8", "kv_cache_quant_algo in hf_quant_config.json"),
    ],
)
def test_a_checkpoint_may_ask_for_a_dtype(config, beside, dtype, field) -> None:
    found = checkpoint_dtype(
        {} if config is None else {"quantization_config": config}, beside and {"quantization": beside}
    )
    assert (found.dtype, found.field) == (dtype, field)


@pytest.mark.parametrize("settings", [{}, {"kv_cache_scheme": None}, {"kv_cache_quant_algo": None}])
def test_most_checkpoints_ask_for_none(settings) -> None:
    assert checkpoint_dtype({"quantization_config": settings}, None) is None
    assert checkpoint_dtype({}, None) is None
