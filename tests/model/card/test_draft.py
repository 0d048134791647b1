"""Draft layers: a row of their own, beside what a model keeps."""

from __future__ import annotations

import json

import pytest

from attnscope import card
from attnscope.document.markdown import markdown_document
from attnscope.model.card.from_config import anatomy_of, draft_layer, number_of_drafts
from attnscope.model.card.parameters import count_draft, count_parameters
from attnscope.model.card.quantisation import quantisation_of

DEEPSEEK_V3 = {
    "model_type": "deepseek_v3", "hidden_size": 7168, "intermediate_size": 18432, "num_hidden_layers": 61,
    "moe_intermediate_size": 2048, "n_routed_experts": 256, "n_shared_experts": 1, "num_experts_per_tok": 8,
    "first_k_dense_replace": 3, "num_attention_heads": 128, "q_lora_rank": 1536, "kv_lora_rank": 512,
    "qk_nope_head_dim": 128, "qk_rope_head_dim": 64, "v_head_dim": 128, "vocab_size": 129280,
    "tie_word_embeddings": False, "num_nextn_predict_layers": 1, "torch_dtype": "bfloat16",
    "max_position_embeddings": 163840,
    "quantization_config": {"quant_method": "fp8", "weight_block_size": [128, 128]},
}  # fmt: skip


def test_with_its_draft_layer_deepseek_v3_has_the_parameters_that_the_hub_says() -> None:
    """680,571,043,840 as F8_E4M3 and 3,918,786,560 as BF16, by the metadata of deepseek-ai/DeepSeek-V3."""
    anatomy, quantisation = anatomy_of(DEEPSEEK_V3), quantisation_of(DEEPSEEK_V3)
    model = count_parameters(DEEPSEEK_V3, anatomy, quantisation)
    draft = count_draft(DEEPSEEK_V3, anatomy, None, 1, quantisation)
    assert model.n_parameter + draft.n_parameter == 680_571_043_840 + 3_918_786_560
    # a byte for each F8_E4M3, two for each BF16, and a scale for each block, of which some are not full:
    # kv_a_proj_with_mqa has 576 rows, in 5 blocks of 128
    in_fp8 = {each.name: each for each in model.dtypes}["fp8"].n_parameter
    products = 680_571_043_840 - in_fp8
    assert draft.n_bytes == products + (products + 64 * 7168) // 128**2 * 4 + 2 * (
        draft.n_parameter - products
    )
    assert count_draft(DEEPSEEK_V3, anatomy, None, 3, quantisation).n_bytes == 3 * draft.n_bytes


def test_a_card_has_a_row_for_draft_layers_and_counts_them_nowhere_else(tmp_path) -> None:
    file = tmp_path / "config.json"
    cards = []
    for count in (1, 0):
        file.write_text(json.dumps(DEEPSEEK_V3 | {"num_nextn_predict_layers": count}))
        cards.append(card(file, context=1000, batch=3))
    with_draft, without = cards
    assert (with_draft.bytes_per_token, with_draft.cache_bytes) == (
        without.bytes_per_token,
        without.cache_bytes,
    )
    assert with_draft.weights == without.weights
    assert without.draft is None
    assert "draft" not in markdown_document(without.document())
    draft = with_draft.draft
    assert (draft.n_layer, draft.kind, draft.bytes_per_token) == (1, "latent", (512 + 64) * 2)
    assert draft.cache_bytes == 3 * 1000 * (512 + 64) * 2
    line = markdown_document(with_draft.document())
    assert "draft: 1 latent layer (num_nextn_predict_layers), 1.1 KiB a token, 3.3 MiB more" in line
    assert "13.5 G parameters in 14.4 GiB" in line


def test_draft_layers_have_full_attention_where_others_keep_states() -> None:
    config = {
        "model_type": "qwen3_5_text", "hidden_size": 64, "num_hidden_layers": 4, "num_attention_heads": 6,
        "num_key_value_heads": 2, "head_dim": 10, "linear_num_key_heads": 2, "linear_key_head_dim": 4,
        "linear_num_value_heads": 3, "linear_value_head_dim": 5, "linear_conv_kernel_dim": 4,
        "layer_types": ["linear_attention"] * 3 + ["full_attention"], "mtp_num_hidden_layers": 2,
    }  # fmt: skip
    assert number_of_drafts({"model_type": "qwen3_5", "text_config": config}) == (
        2,
        "mtp_num_hidden_layers",
    )
    assert draft_layer(config, anatomy_of(config)).kind == "full"


def test_a_type_that_is_read_as_deepseek_v3_has_its_draft_layer(tmp_path) -> None:
    (tmp_path / "config.json").write_text(
        json.dumps(DEEPSEEK_V3 | {"model_type": "mine", "architectures": ["DeepseekV3ForCausalLM"]})
    )
    found = card(tmp_path / "config.json", context=1000)
    assert (found.model_type, found.draft.kind) == ("mine", "latent")
    assert round(found.draft.n_parameter / 1e9, 1) == 13.5


@pytest.mark.parametrize("count", [0, None, True, "1", -1, 10**6])
def test_most_models_have_none(count) -> None:
    assert number_of_drafts(DEEPSEEK_V3 | {"num_nextn_predict_layers": count}) == (0, "")


def test_what_draft_layers_of_another_family_keep_is_not_guessed(tmp_path) -> None:
    file = tmp_path / "config.json"
    fields = {
        "model_type": "minimax_m2", "hidden_size": 64, "num_hidden_layers": 3, "num_attention_heads": 6,
        "num_key_value_heads": 2, "head_dim": 10, "num_mtp_modules": 3, "dtype": "bfloat16",
        "max_position_embeddings": 100,
    }  # fmt: skip
    file.write_text(json.dumps(fields))
    found = card(file)
    assert (found.draft.n_layer, found.draft.kind, found.draft.cache_bytes) == (3, None, None)
    sentence = "draft: 3 layers (num_mtp_modules), whose keys and values are not known here"
    assert sentence in markdown_document(found.document())


MIMO_7B = {
    "model_type": "mimo", "hidden_size": 4096, "intermediate_size": 11008, "num_hidden_layers": 36,
    "num_attention_heads": 32, "num_key_value_heads": 8, "head_dim": 128, "vocab_size": 151680,
    "max_position_embeddings": 32768, "tie_word_embeddings": False, "rope_theta": 640000,
    "num_nextn_predict_layers": 1, "torch_dtype": "bfloat16",
}  # fmt: skip


def test_mimo_is_a_qwen2_with_a_draft_layer(tmp_path) -> None:
    """The hub says 7.83 G parameters: those of the model and of the draft layer."""
    (tmp_path / "config.json").write_text(json.dumps(MIMO_7B))
    found = card(tmp_path / "config.json", context=1000)
    assert (found.model_type, found.draft.kind) == ("mimo", "full")
    assert found.draft.bytes_per_token == 2 * 8 * 128 * 2
    d, n_kv, width = 4096, 1024, 11008
    layer = 2 * d * d + 2 * d * n_kv + (d + 2 * n_kv) + 3 * d * width + 2 * d
    assert found.weights.n_parameter == 36 * layer + 2 * 151680 * d + d
    assert found.draft.n_parameter == layer + 2 * d * d + 3 * d
    assert round((found.weights.n_parameter + found.draft.n_parameter) / 1e9, 2) == 7.83


@pytest.mark.parametrize(
    ("blocks", "kind"),
    [
        ({"mtp_hybrid_override_pattern": "*E"}, "full"),
        ({"mtp_layers_block_type": ["attention", "moe"]}, "full"),
        ({"mtp_layers_block_type": ["mamba", "moe"]}, None),
        ({}, None),
    ],
)
def test_the_draft_layer_of_nemotron_h_is_what_its_file_says(tmp_path, blocks, kind) -> None:
    fields = {
        "model_type": "nemotron_h", "hidden_size": 64, "num_hidden_layers": 2, "num_attention_heads": 6,
        "num_key_value_heads": 2, "head_dim": 10, "hybrid_override_pattern": "M*", "dtype": "bfloat16",
        "layers_block_type": ["mamba", "attention"], "max_position_embeddings": 100,
        "num_nextn_predict_layers": 1,
    }  # fmt: skip
    (tmp_path / "config.json").write_text(json.dumps(fields | blocks))
    found = card(tmp_path / "config.json").draft
    assert (found.kind, found.bytes_per_token) == (kind, kind and 2 * 2 * 10 * 2)


def test_copies_that_only_some_checkpoints_of_a_type_have_are_not_counted(tmp_path) -> None:
    """GLM-4.5's draft layer has copies of the embedding and the output, GLM-4.6's has not."""
    fields = {"model_type": "glm4_moe", "num_nextn_predict_layers": 1, "dtype": "bfloat16"}
    fields |= {"head_dim": 128}
    (tmp_path / "config.json").write_text(json.dumps(fields))
    found = card(tmp_path / "config.json")
    assert found.draft.n_parameter is None
    assert "parameters not counted" in markdown_document(found.document())
