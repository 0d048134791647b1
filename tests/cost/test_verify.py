"""The formula of each family's cache is what transformers' own cache holds, number by number."""

from __future__ import annotations

import logging
from typing import Any

import pytest
from transformers.models.auto.configuration_auto import CONFIG_MAPPING
from transformers.models.auto.modeling_auto import (
    MODEL_FOR_CAUSAL_LM_MAPPING_NAMES,
    MODEL_FOR_SEQ_TO_SEQ_CAUSAL_LM_MAPPING_NAMES,
)

from attnscope.cost.from_config import UNKNOWN
from attnscope.cost.verify import verify_cache
from attnscope.errors import ModelError

FAMILIES = sorted(
    {*MODEL_FOR_CAUSAL_LM_MAPPING_NAMES, *MODEL_FOR_SEQ_TO_SEQ_CAUSAL_LM_MAPPING_NAMES}
    - {"gemma4_assistant"}  # whose class refuses its own defaults
)
OWN: dict[str, dict[str, Any]] = {
    "bamba": {"attn_layer_indices": [1, 3]},
    "granitemoehybrid": {"layer_types": (["mamba"] * 3 + ["attention"]) * 8},
}
"""Fields of configurations whose defaults have no attention."""

ALONE = "it is a part of a model, and has no class of its own"
NOT_RUN = {
    "bailing_hybrid": "the states of its linear layers are not known",
    "cohere_compass_text": "its default configuration names no base of rotary positions",
    "dbrx": "its default configuration cannot be built",
    "dots1": "its default configuration has no experts",
    "emu3": ALONE,
    "git": "its image tower is large",
    "hrm_text": "its layers run more than once",
    "kimi_linear": "the states of its linear layers are not known",
    "lfm2_moe": "its default configuration names no experts",
    "mamba2": "its heads cannot be fewer",
    "mllama": ALONE,
    "musicgen": ALONE,
    "musicgen_melody": ALONE,
    "nemo_speechlm": "its experts are large",
    "openai-gpt": "it has no cache",
    "phi4_multimodal": "its towers are large",
    "qwen4_exp": "its default configuration has no indexer",
    "qwen4_exp_text": "its default configuration has no indexer",
    "switch_transformers": "its class refuses a cache outside of training",
    "t5gemma": ALONE,
    "t5gemma2": ALONE,
    "voxtral_realtime": ALONE,
    "xmod": "it needs a language",
    "zamba": "its experts are large",
    "zamba2": "its shared layers need other widths",
    "zaya": "its class refuses several experts for a token",
}
"""Families that transformers does not run small with the sizes here, or that keep no layers, and why."""


def checks(family: str) -> list[Any]:
    logging.disable(logging.WARNING)
    config = CONFIG_MAPPING[family](**OWN.get(family, {})).to_dict()
    return verify_cache(config | OWN.get(family, {}))


@pytest.mark.parametrize(
    "family", ["llama", "gemma3n", "gpt_oss", "deepseek_v3", "qwen3_next", "jamba", "t5", "whisper"]
)
def test_the_cache_of_a_family_is_what_the_formula_says(family: str) -> None:
    found = checks(family)
    assert found
    assert [each for each in found if not each.ok] == []


@pytest.mark.sweep
@pytest.mark.parametrize("family", FAMILIES)
def test_each_family_is_as_the_formula_says_or_is_listed_with_a_reason(family: str) -> None:
    try:
        found = checks(family)
    except ModelError as error:
        if family not in NOT_RUN and "the cache of model type" not in error.message:
            raise
    else:
        assert family not in NOT_RUN
        assert [each for each in found if not each.ok] == []


def test_a_formula_that_is_wrong_does_not_hold(monkeypatch) -> None:
    from attnscope.cost.anatomy import LayerCache

    right = LayerCache.dynamic_numbers
    monkeypatch.setattr(
        LayerCache, "dynamic_numbers", lambda self, n, n_source=0: right(self, n + 1, n_source)
    )
    assert not any(each.ok for each in checks("llama"))


def test_a_family_that_is_unknown_has_a_reason() -> None:
    assert all(UNKNOWN.values())
    with pytest.raises(ModelError, match="its states are not described here"):
        checks("rwkv")
