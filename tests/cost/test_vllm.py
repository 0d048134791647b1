"""What vLLM reserves, against its own planner, whose figures were recorded."""

from __future__ import annotations

import pytest
from cost.vllm_figures import CONFIGS, FIGURES

from attnscope.cost.anatomy import LayerAnatomy, LayerCache
from attnscope.cost.from_config import anatomy_of
from attnscope.cost.kv_cache import reserved
from attnscope.cost.vllm import DTYPES

FULL = LayerAnatomy("full", cache=LayerCache(per_token=10))


def figures(name: str, n_tokens: int, dtype: str, batch: int = 1) -> dict[str, int]:
    anatomy = anatomy_of(CONFIGS[name])
    layers, n_source = (*anatomy.layers, *anatomy.cross), anatomy.n_source or 0
    found = reserved(layers, n_tokens, dtype, batch, n_source, anatomy.model_type)
    return {each.engine: each.n_bytes for each in found if "vLLM" in each.engine}


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
    found = reserved([FULL, *windows], 1000, "bfloat16", 1)
    assert [each.engine for each in found if "vLLM" in each.engine] == ["vLLM"]


def test_the_rule_says_how_many_layers_a_group_lacks() -> None:
    layers = anatomy_of(CONFIGS["gemma3, 62 layers"]).layers
    rules = {each.engine: each.rule for each in reserved(layers, 17, "bfloat16", 1)}
    assert rules["vLLM"].endswith("groups of 10 layers, of which 8 are missing")


def test_cross_attention_of_a_model_that_was_not_compared_has_no_row() -> None:
    layers = [FULL, LayerAnatomy("cross", cache=LayerCache(per_source_token=6))]
    engines = [each.engine for each in reserved(layers, 17, "bfloat16", 1, 5, "t5")]
    assert "vLLM" not in engines


def test_states_of_a_model_that_was_not_compared_have_no_row() -> None:
    layers = [FULL, LayerAnatomy("linear", cache=LayerCache(constant=12, newest=3))]
    engines = [each.engine for each in reserved(layers, 17, "bfloat16", 1, model_type="olmo_hybrid")]
    assert "vLLM" not in engines
