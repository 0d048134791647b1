"""What vLLM reserves, against its own planner, whose figures were recorded."""

from __future__ import annotations

import pytest

from attnscope.model.card.anatomy import LayerAnatomy, LayerCache
from attnscope.model.card.cache_dtype import CacheDtype
from attnscope.model.card.from_config import anatomy_of
from attnscope.model.card.kv_cache import Caches
from attnscope.model.card.vllm import DTYPES
from attnscope.model.files.config import text_part
from tests.model.card.vllm_figures import CONFIGS, FIGURES

FULL = LayerAnatomy("full", cache=LayerCache(per_token=10))


BFLOAT16 = CacheDtype.both("bfloat16")


def figures(name: str, n_tokens: int, dtype: str, batch: int = 1) -> dict[str, int]:
    anatomy = anatomy_of(CONFIGS[name])
    layers, n_source = (*anatomy.layers, *anatomy.cross), anatomy.n_source or 0
    config = text_part(CONFIGS[name])
    kind = CacheDtype.both(dtype)
    found = Caches(layers, kind, batch, n_source, anatomy.model_type, config).reserved(n_tokens).rows
    return {each.engine: each.n_bytes for each in found if "vLLM" in each.engine}


@pytest.mark.few(236)
@pytest.mark.parametrize(("name", "mode", "n_tokens"), FIGURES)
def test_a_request_takes_what_the_planner_of_vllm_says(name: str, mode: str, n_tokens: int) -> None:
    dtype, _, manager = mode.partition(", ")
    found = figures(name, n_tokens, dtype)
    by_default = FIGURES[name, dtype, n_tokens]
    if manager and FIGURES[name, mode, n_tokens] is None:
        assert "vLLM, not hybrid" not in found
    elif manager:  # which has a row only where it is another figure
        assert found.get("vLLM, not hybrid", by_default) == FIGURES[name, mode, n_tokens]
    else:
        assert found.get("vLLM") == by_default


def test_only_layers_of_several_kinds_have_a_row_without_the_hybrid_manager() -> None:
    assert list(figures("gpt_oss", 17, "fp8")) == ["vLLM", "vLLM, not hybrid"]
    assert list(figures("phi3", 17, "fp8")) == ["vLLM"]


def test_several_sequences_take_several_times_as_much() -> None:
    assert figures("llama", 17, "bfloat16", batch=3)["vLLM"] == 3 * FIGURES["llama", "bfloat16", 17]


@pytest.mark.parametrize("dtype", ["float64", "int8"])
def test_a_dtype_that_vllm_does_not_have_has_no_row(dtype: str) -> None:
    assert dtype not in DTYPES
    assert figures("llama", 17, dtype) == {}


def test_two_windows_beside_full_layers_need_the_hybrid_manager() -> None:
    # vLLM raises ValueError without it: "must have the same window size"
    windows = [
        LayerAnatomy("sliding", cache=LayerCache(per_token=10, window=each)) for each in (100, 200)
    ]
    found = Caches([FULL, *windows], BFLOAT16).reserved(1000).rows
    assert [each.engine for each in found if "vLLM" in each.engine] == ["vLLM"]


def test_the_rule_says_how_many_layers_a_group_lacks() -> None:
    layers = anatomy_of(CONFIGS["gemma3, 62 layers"]).layers
    rules = {each.engine: each.rule for each in Caches(layers, BFLOAT16).reserved(17).rows}
    assert rules["vLLM"].endswith("groups of 10 layers, of which 8 are missing")


@pytest.mark.parametrize(
    ("layer", "dtype", "model_type", "why"),
    [
        (LayerAnatomy("cross", cache=LayerCache(per_source_token=6)), "fp8", "t5", "the encoder of t5"),
        (
            LayerAnatomy("linear", cache=LayerCache(constant=12, newest=3)),
            "fp8",
            "olmo_hybrid",
            "the states of olmo_hybrid",
        ),
        (
            LayerAnatomy("sparse", cache=LayerCache(10)),
            "fp8",
            "minimax_m3",
            "sparse layers of minimax_m3",
        ),
        (LayerAnatomy("latent", cache=LayerCache(10)), "fp8", "some", "latents beside other keys"),
        (FULL, "int8", "llama", "it has no int8"),
        (
            LayerAnatomy("sliding", cache=LayerCache(10, window=9)),
            "fp8",
            "qwen2",
            "it refuses qwen2 with windows in some layers",
        ),
    ],
)
def test_a_model_whose_rule_is_not_known_has_no_row_and_a_reason(layer, dtype, model_type, why) -> None:
    found = Caches([FULL, layer], CacheDtype.both(dtype), 1, 5, model_type).reserved(17)
    assert "vLLM" not in [each.engine for each in found.rows]
    assert why in found.missing["vLLM"]


def test_latents_in_fp8_are_packed_only_beside_an_indexer() -> None:
    """vLLM's own figures: 656 bytes beside an indexer, whose keys take 132; without one 576."""
    indexed, n = FIGURES["deepseek_v32", "fp8", 20_000], 64 * 313
    assert figures("deepseek_v32", 20_000, "fp8")["vLLM"] == indexed == 61 * (656 + 132) * n
    dense = figures("deepseek_v3", 20_000, "fp8")["vLLM"]
    assert dense == FIGURES["deepseek_v3", "fp8", 20_000] == 61 * 576 * n


def test_states_have_the_dtype_that_config_json_says() -> None:
    """(48 · 128² · 4 + 10,240 · 3 · 2) / 4,096 = 783: blocks of 784, and half of that in bfloat16."""
    config = CONFIGS["qwen3_5"]
    layers = anatomy_of(config).layers

    def rule(**fields: str | None) -> str:
        found = Caches(layers, BFLOAT16, model_type="qwen3_5_text", config=config | fields).reserved(17)
        return {each.engine: each.rule for each in found.rows}["vLLM"]

    assert "blocks of 784;" in rule()
    assert "blocks of 400;" in rule(mamba_ssm_dtype=None)  # (48 · 128² · 2 + 61,440) / 4,096 = 399


def test_a_shorter_step_keeps_fewer_tokens_beside_a_window() -> None:
    layers = [LayerAnatomy("sliding", cache=LayerCache(per_token=10, window=100))]
    found = Caches(layers, CacheDtype.both("fp8"), step=2048).reserved(10**6).rows
    row = next(each for each in found if each.engine == "vLLM")
    assert row.n_bytes == 10 * 16 * (-(-(99 + 2 * 2048) // 16) + 1)
    assert "window − 1 + 4,096 tokens" in row.rule
