"""What keys and values take, beside figures that others published."""

import sys

import pytest

from attnscope import card
from attnscope.model.card.from_config import anatomy_of

INSIGHTS = "Insights into DeepSeek-V3 (arXiv:2505.09343), table 1: bytes of a token in bfloat16"
JAMBA = "Jamba (arXiv:2403.19887), table 1: 16 bits, 256K tokens"
LLAMA = {"model_type": "llama", "max_position_embeddings": 131072}
JAMBA_52B = {
    "model_type": "jamba",
    "hidden_size": 4096,
    "num_hidden_layers": 32,
    "num_attention_heads": 32,
    "num_key_value_heads": 8,
    "attn_layer_period": 8,
    "attn_layer_offset": 4,
    "mamba_d_state": 16,
    "mamba_d_conv": 4,
    "mamba_expand": 2,
}


def bytes_per_token(config):
    return 2 * sum(layer.cache.per_token for layer in anatomy_of(config).layers)


@pytest.mark.parametrize(
    ("config", "figure"),
    [
        (
            {
                "model_type": "deepseek_v3",
                "hidden_size": 7168,
                "num_hidden_layers": 61,
                "num_attention_heads": 128,
                "kv_lora_rank": 512,
                "qk_nope_head_dim": 128,
                "qk_rope_head_dim": 64,
                "v_head_dim": 128,
            },
            70_272,
        ),
        (
            {
                **LLAMA,
                "hidden_size": 16384,
                "num_hidden_layers": 126,
                "num_attention_heads": 128,
                "num_key_value_heads": 8,
            },
            516_096,
        ),
        (
            {
                "model_type": "qwen2",
                "hidden_size": 8192,
                "num_hidden_layers": 80,
                "num_attention_heads": 64,
                "num_key_value_heads": 8,
                "use_sliding_window": False,
            },
            327_680,
        ),
    ],
    ids=["DeepSeek-V3", "Llama 3.1 405B", "Qwen2.5 72B"],
)
def test_a_token_takes_what_deepseek_published(config, figure):
    assert bytes_per_token(config) == figure, INSIGHTS


def test_256k_tokens_of_jamba_take_4_gb():
    assert bytes_per_token(JAMBA_52B) * 2**18 == 4 * 2**30, JAMBA


def test_256k_tokens_of_mistral_take_32_gb_without_its_window():
    config = {
        "model_type": "mistral",
        "hidden_size": 4096,
        "num_hidden_layers": 32,
        "num_attention_heads": 32,
        "num_key_value_heads": 8,
        "sliding_window": None,
    }
    assert bytes_per_token(config) * 2**18 == 32 * 2**30, JAMBA


@pytest.mark.parametrize(
    "config",
    [
        JAMBA_52B,
        JAMBA_52B | {"attn_layer_period": 3, "attn_layer_offset": 0, "num_hidden_layers": 7},
        {"model_type": "falcon_h1", "num_hidden_layers": 3},
        {"model_type": "t5", "d_model": 768, "num_heads": 12, "num_layers": 5, "d_kv": 64},
        {"model_type": "t5", "d_model": 768, "num_heads": 12, "num_layers": 5, "num_decoder_layers": 7},
    ],
    ids=lambda config: "-".join(map(str, config.values())),
)
def test_what_a_class_derives_is_derived_without_transformers(config, monkeypatch):
    from transformers import AutoConfig

    full = AutoConfig.for_model(**config)
    kinds = getattr(full, "layers_block_type", None)
    monkeypatch.setitem(sys.modules, "transformers", None)
    layers = anatomy_of(config).layers
    assert len(layers) == getattr(full, "num_decoder_layers", full.num_hidden_layers)
    if kinds:
        names = {"attention": "full", "mamba": "state space", "hybrid": "full + state space"}
        assert [each.kind for each in layers] == [names[kind] for kind in kinds]


def test_whisper_attends_to_thirty_seconds(tmp_path):
    import json

    config = {
        "model_type": "whisper",
        "d_model": 1280,
        "decoder_layers": 32,
        "encoder_attention_heads": 20,
        "decoder_attention_heads": 20,
        "max_target_positions": 448,
        "max_source_positions": 1500,
        "torch_dtype": "float16",
    }
    (tmp_path / "config.json").write_text(json.dumps(config))
    found = card(tmp_path / "config.json")
    assert (found.context, found.n_source) == (448, 1500)
    assert found.cache_bytes == 32 * 2 * 1280 * 2 * (448 + 1500)
    assert card(tmp_path / "config.json", source=7).n_source == 7
