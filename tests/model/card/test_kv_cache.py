"""What keys and values need, and what engines reserve, against the engines' own rules and caches."""

from __future__ import annotations

import re

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from transformers import AutoConfig, StaticCache

from attnscope.base.errors import OptionError
from attnscope.model.card.anatomy import Compressed, LayerAnatomy, LayerCache
from attnscope.model.card.cache_dtype import CacheDtype
from attnscope.model.card.from_config import anatomy_of
from attnscope.model.card.kv_cache import Caches, Reserves, of_one_device
from tests.model.card.vllm_figures import CONFIGS

BFLOAT16 = CacheDtype.both("bfloat16")
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
    rows = Caches(layers, BFLOAT16, batch).reserved(n_tokens).rows
    return {each.engine: each.n_bytes for each in rows}[engine]


@pytest.mark.parametrize("n_tokens", [5, 8, 13])
def test_the_static_cache_is_as_large_as_that_of_transformers(n_tokens: int) -> None:
    cache = StaticCache(config=AutoConfig.for_model(**SIZES), max_cache_len=n_tokens)
    cache.early_initialization(2, 3, 10, torch.bfloat16, torch.device("cpu"))
    held = sum(each.keys.nbytes + each.values.nbytes for each in cache.layers)
    assert reserve(anatomy_of(SIZES).layers, "transformers, static", n_tokens, batch=2) == held


FULL = LayerAnatomy("full", cache=LayerCache(per_token=10))
SLIDING = LayerAnatomy("sliding", cache=LayerCache(per_token=10, window=100, dynamic_window=99))


def test_engines_whose_rule_is_unknown_for_a_layer_are_left_out() -> None:
    state = LayerAnatomy("linear", cache=LayerCache(constant=7, constant_float32=5))
    caches = Caches((FULL, state), BFLOAT16)
    assert [each.engine for each in caches.reserved(3).rows] == [
        "transformers, dynamic",
        "transformers, static",
    ]
    assert caches.needed(3) == 2 * (3 * 10 + 7) + 4 * 5


def test_what_is_kept_of_an_encoder_depends_on_its_own_length() -> None:
    cross = LayerAnatomy("cross", cache=LayerCache(per_source_token=6))
    caches = Caches((FULL, cross), CacheDtype.both("float32"), n_source=5)
    assert caches.needed(3) == 4 * (3 * 10 + 5 * 6)


def test_each_rule_begins_with_the_version_that_has_it() -> None:
    layers = anatomy_of(SIZES).layers
    mixed = Caches(layers, BFLOAT16, model_type="gemma3_text").reserved(100).rows
    plain = Caches((FULL,), BFLOAT16, model_type="llama").reserved(100).rows
    engines = {each.engine for each in (*mixed, *plain)}
    assert engines >= {"transformers, dynamic", "llama.cpp, full", "vLLM, not hybrid", "SGLang"}
    assert all(re.match(r"\d+\.\d+", each.rule) for each in (*mixed, *plain))


COUNTS = st.integers(0, 5000)
CACHES = st.builds(
    LayerCache,
    per_token=COUNTS,
    window=st.none() | st.integers(1, 9000),
    constant=COUNTS,
    constant_float32=COUNTS,
    compressed=st.none() | st.builds(Compressed, st.integers(1, 200), COUNTS, COUNTS, COUNTS),
)
LAYERS = st.lists(CACHES.map(lambda cache: LayerAnatomy("full", cache=cache)), min_size=1, max_size=6)


@given(
    LAYERS,
    st.integers(1, 2**20),
    st.integers(1, 64),
    st.sampled_from(["fp8", "float16", "float32", "q8_0"]),
)
def test_what_a_context_needs_holds_that_context_and_a_byte_less_does_not(layers, n, batch, dtype):
    caches = Caches(layers, CacheDtype.both(dtype), batch)
    one = caches.needed
    memory = one(n) * batch
    longest = caches.longest_context(memory)
    assert longest is None or longest >= n
    if longest is not None:
        assert one(longest) * batch <= memory < one(longest + 1) * batch
    if memory:
        fewer = caches.longest_context(memory - 1)
        assert fewer is not None
        assert fewer < n


@given(
    LAYERS,
    st.integers(1, 2**20),
    st.integers(0, 2**40),
    st.sampled_from(["fp8", "float16", "float32", "q8_0"]),
)
def test_one_more_sequence_than_the_most_does_not_fit(layers, n, memory, dtype):
    caches = Caches(layers, CacheDtype.both(dtype))
    most = caches.largest_batch(memory, n)
    if one := caches.needed(n):
        assert one * most <= memory < one * (most + 1)


def by_sglang(name: str, n_tokens: int, dtype: str, batch: int = 1) -> Reserves:
    anatomy = anatomy_of(CONFIGS[name])
    caches = Caches(anatomy.layers, CacheDtype.both(dtype), batch, model_type=anatomy.model_type)
    return caches.reserved(n_tokens)


def sglang_row(*arguments: object) -> int:
    return {each.engine: each.n_bytes for each in by_sglang(*arguments).rows}["SGLang"]


def test_a_token_takes_a_slot_of_sglang() -> None:
    """`n * (head_dim + v_head_dim) * num_layers * kv_size`"""
    assert sglang_row("llama", 17, "bfloat16") == 17 * 8 * (128 + 128) * 32 * 2
    assert sglang_row("llama", 17, "fp8", 3) == 3 * 17 * 8 * (128 + 128) * 32
    assert sglang_row("deepseek_v3", 17, "bfloat16") == 17 * (512 + 64) * 61 * 2
    assert sglang_row("deepseek_v3", 17, "fp8") == 17 * (512 + 64) * 61


def test_an_indexer_has_pages_of_64_and_scales_in_sglang() -> None:
    index = 128 + 128 // 128 * 4  # `index_head_dim + index_head_dim // quant_block_size * 4`
    assert sglang_row("deepseek_v32", 65, "bfloat16") == 128 * 61 * ((512 + 64) * 2 + index)
    packed = 512 + 512 // 128 * 4 + 64 * 2  # latents, their scales, and positions in bfloat16
    assert sglang_row("deepseek_v32", 65, "fp8") == 128 * 61 * (packed + index)
    n_indexer = CONFIGS["glm_moe_dsa"]["indexer_types"].count("full")
    assert sglang_row("glm_moe_dsa", 64, "fp8") == 64 * (13 * packed + n_indexer * index)


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
def test_a_rule_of_sglang_that_is_not_known_is_no_row_and_a_reason(
    name: str, dtype: str, why: str
) -> None:
    result = by_sglang(name, 17, dtype)
    assert "SGLang" not in [each.engine for each in result.rows]
    assert why in result.missing["SGLang"]


def test_layers_of_several_sizes_have_no_row_of_sglang() -> None:
    layers = [LayerAnatomy("full", 6, n, 10, 10, cache=LayerCache(n * 20)) for n in (2, 3)]
    result = Caches(layers, CacheDtype.both("fp8")).reserved(17)
    assert "several sizes" in result.missing["SGLang"]


# What one of several devices keeps: a share of the heads, but all latents.

GROUPED = LayerAnatomy("sliding", 24, 6, 10, 14, window=9, cache=LayerCache(6 * 24, window=9))
LATENT = LayerAnatomy("latent", 24, 24, 10, 14, cache=LayerCache(77), d_K_latent=77, d_V_latent=70)
LINEAR = LayerAnatomy("linear", 24, cache=LayerCache(constant=48, constant_float32=96, newest=24))


@pytest.mark.parametrize(("n_device", "n_kept"), [(1, 6), (2, 3), (3, 2), (6, 1), (12, 1), (24, 1)])
def test_a_device_keeps_a_share_of_the_heads_of_keys_and_at_least_one(n_device, n_kept) -> None:
    (found,) = of_one_device([GROUPED], n_device)
    assert found.cache == LayerCache(n_kept * 24, window=9)
    assert (found.n_kv_head, found.window) == (6, 9)  # those of the model


def test_latents_are_on_every_device() -> None:
    assert of_one_device([LATENT], 8) == (LATENT,)


def test_states_of_heads_are_shared() -> None:
    (found,) = of_one_device([LINEAR], 8)
    assert found.cache == LayerCache(constant=6, constant_float32=12, newest=3)


@pytest.mark.parametrize(
    ("layer", "n_device", "why"),
    [
        (GROUPED, 5, "5 devices cannot share 24 heads"),
        (GROUPED, 4, "4 devices cannot share 6 heads of keys"),
        (LayerAnatomy("state space", 24, cache=LayerCache(constant=48)), 2, "is not known here"),
    ],
)
def test_heads_that_cannot_be_shared_are_an_error(layer, n_device, why) -> None:
    with pytest.raises(OptionError, match=why):
        of_one_device([layer], n_device)
