"""The formula of each family's cache is what transformers' own cache holds, number by number."""

from __future__ import annotations

import json

import pytest

from attnscope import card
from attnscope.base.errors import ModelError
from attnscope.model.card.verify import verify_cache
from attnscope.model.families.model_types import Typed
from tests.model.card.verified_families import (
    FAMILIES,
    NOT_RUN,
    PAGE,
    checks,
    head,
    row,
    runs_as_its_decoder,
    verdict_of_error,
)


@pytest.mark.few(2)
@pytest.mark.parametrize(
    "family",
    [
        "llama",
        "gemma3n",
        "gpt_oss",
        "deepseek_v3",
        "qwen3_next",
        "deepseek_v4",
        "jamba",
        "t5",
        "whisper",
    ],
)
def test_the_cache_of_a_family_is_what_the_formula_says(family: str) -> None:
    found = checks(family)
    assert found
    assert [each for each in found if not each.ok] == []


@pytest.mark.sweep
@pytest.mark.parametrize("family", FAMILIES)
def test_each_family_is_as_the_formula_says_or_is_listed_with_a_reason(family: str) -> None:
    found = []
    if runs_as_its_decoder(family):  # whose own case runs it
        assert row(family, "equal") in PAGE.read_text(encoding="utf-8").splitlines()
        return
    try:
        found = checks(family)
    except ModelError as error:
        if family not in NOT_RUN and "the cache of model type" not in error.message:
            raise
        verdict = verdict_of_error(family, error)
    else:
        assert family not in NOT_RUN
        verdict = "equal"
    assert [each for each in found if not each.ok] == []
    assert row(family, verdict) in PAGE.read_text(encoding="utf-8").splitlines()


def test_a_formula_that_is_wrong_does_not_hold(monkeypatch) -> None:
    from attnscope.model.card.anatomy import LayerCache

    right = LayerCache.nbytes
    monkeypatch.setattr(LayerCache, "nbytes", lambda self, n, *sizes: right(self, n + 1, *sizes))
    assert not any(each.ok for each in checks("llama"))


def test_a_family_that_is_unknown_has_a_reason() -> None:
    with pytest.raises(ModelError, match="it keeps hashes and buckets"):
        checks("reformer")


def test_every_family_of_transformers_is_on_the_page() -> None:
    listed = [row.split(" | ")[0][2:] for row in PAGE.read_text(encoding="utf-8").splitlines() if row]
    assert [each for each in listed if each in FAMILIES] == FAMILIES


def test_the_head_of_the_page_of_families_is_generated() -> None:
    assert PAGE.read_text(encoding="utf-8").startswith(head())


VL = {
    "model_type": "qwen3_vl",
    "text_config": {
        "hidden_size": 96,
        "num_hidden_layers": 5,
        "num_attention_heads": 6,
        "num_key_value_heads": 3,
        "head_dim": 20,
        "intermediate_size": 64,
        "vocab_size": 70,
    },
}


@pytest.mark.sweep
def test_a_reader_that_ignores_a_part_differs_from_transformers_own_reading(tmp_path, monkeypatch):
    """transformers' classes read the file, not what the reader made of it."""
    file = tmp_path / "config.json"
    file.write_text(json.dumps(VL))
    right = card(file, verify=True)
    assert not right.differs
    assert [each.part for each in right.parameter_checks or []] == []
    text = {"model_type": "qwen3_vl_text", "num_hidden_layers": 7}
    ignored = Typed({"model_type": "qwen3_vl", "text_config": text})
    monkeypatch.setattr("attnscope.model.card.card.with_known_types", lambda config, like: ignored)
    wrong = card(file, verify=True)
    assert wrong.differs
    (check,) = [each for each in wrong.checks or [] if not each.ok]
    assert (check.formula, check.held) == (7 * 2 * 32 * 128 * 2 * 1024, 5 * 2 * 3 * 20 * 2 * 1024)


@pytest.mark.few(3)
@pytest.mark.parametrize(
    "own",
    [
        {"model_type": "phi3", "hidden_size": 120}
        | {"rope_scaling": {"type": "longrope", "short_factor": [1.0] * 10, "long_factor": [2.0] * 10}}
        | {"original_max_position_embeddings": 64, "max_position_embeddings": 640},
        {"model_type": "mimo_v2_flash", "swa_num_attention_heads": 6, "swa_num_key_value_heads": 6}
        | {"swa_head_dim": 20, "swa_v_head_dim": 12, "v_head_dim": 12, "sliding_window": 16}
        | {"hybrid_layer_pattern": [0, 1, 1, 1, 0]},
        {"model_type": "gemma4_text", "num_experts": 16, "top_k_experts": 8, "enable_moe_block": True}
        | {"moe_intermediate_size": 24},
        {"model_type": "minimax_m3_vl_text"}
        | {"sparse_attention_config": {"sparse_attention_freq": [0, 1, 1, 0, 1], "sparse_index_dim": 9}},
    ],
    ids=lambda own: own["model_type"],
)
def test_the_small_model_is_small_in_every_field(own):
    found = verify_cache({**VL["text_config"], **own})
    assert found
    assert [each for each in found if not each.ok] == []
