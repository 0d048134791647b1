"""What keys and values need, and what engines reserve, against the engines' own rules and caches."""

from __future__ import annotations

import re

import pytest
import torch
from transformers import AutoConfig, StaticCache

from attnscope.model_card.anatomy import LayerAnatomy, LayerCache
from attnscope.model_card.cache_dtype import CacheDtype
from attnscope.model_card.from_config import anatomy_of
from attnscope.model_card.kv_cache import needed, reserved

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
    return {each.engine: each.n_bytes for each in reserved(layers, n_tokens, BFLOAT16, batch).rows}[
        engine
    ]


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
    assert [each.engine for each in reserved((FULL, state), 3, BFLOAT16, 1).rows] == [
        "transformers, dynamic",
        "transformers, static",
    ]
    assert needed((FULL, state), 3, BFLOAT16) == 2 * (3 * 10 + 7) + 4 * 5


def test_what_is_kept_of_an_encoder_depends_on_its_own_length() -> None:
    cross = LayerAnatomy("cross", cache=LayerCache(per_source_token=6))
    assert needed((FULL, cross), 3, CacheDtype.both("float32"), n_source=5) == 4 * (3 * 10 + 5 * 6)


def test_each_rule_begins_with_the_version_that_has_it() -> None:
    layers = anatomy_of(SIZES).layers
    mixed = reserved(layers, 100, BFLOAT16, 1, model_type="gemma3_text").rows
    plain = reserved((FULL,), 100, BFLOAT16, 1, model_type="llama").rows
    engines = {each.engine for each in (*mixed, *plain)}
    assert engines >= {"transformers, dynamic", "llama.cpp, full", "vLLM, not hybrid", "SGLang"}
    assert all(re.match(r"\d+\.\d+", each.rule) for each in (*mixed, *plain))
