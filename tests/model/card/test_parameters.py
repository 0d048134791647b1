"""Parameters by config.json alone, beside transformers' own models and published figures."""

import json

import pytest
import torch
from transformers import AutoModelForCausalLM

from attnscope.base.errors import ModelError
from attnscope.model.card.from_config import anatomy_of
from attnscope.model.card.parameters import count_parameters
from attnscope.model.card.tensor_parts import place_of
from attnscope.model.families.table import FAMILIES
from tests.model.run import tiny
from tests.sweeps import swept

SIZES = {"hidden_size": 44, "n_embd": 44, "head_dim": 20, "intermediate_size": 36, "n_shared_experts": 2}
SIZES |= {
    "moe_intermediate_size": 28,
    "shared_expert_intermediate_size": 52,
    "vocab_size": 61,
    "n_inner": 36,
}
SWITCHES = (
    "attention_bias",
    "mlp_bias",
    "qkv_bias",
    "use_bias",
    "attention_out_bias",
    "tie_word_embeddings",
    "use_qk_norm",
)
COUNTED = [name for name, family in FAMILIES.items() if family.parameters is not None]
DEFAULT = [
    ("llama", True),
    ("gpt2", False),
    ("deepseek_v3", True),
    ("qwen2_moe", False),
    ("gpt_oss", True),
    ("glm4_moe", True),
]


@pytest.mark.parametrize(
    ("family", "switched"), swept([(f, on) for f in COUNTED for on in (True, False, None)], DEFAULT)
)
def test_every_family_has_the_parameters_of_transformers(family, switched, monkeypatch):
    """Each part, too: transformers' parameters are sorted by their names."""
    for name, size in SIZES.items():
        monkeypatch.setitem(tiny.SIZES, name, size)
    fields = tiny.tiny_config(family).to_dict()
    switches = {name: switched for name in SWITCHES if switched is not None and name in fields}
    if "num_experts_per_tok" in fields:
        switches["num_experts_per_tok"] = 2
    config = tiny.tiny_config(family, **switches)
    with torch.device("meta"):
        model = AutoModelForCausalLM.from_config(config)
    saved = json.loads(config.to_json_string())
    found = count_parameters(saved, anatomy_of(saved))
    left_out = json.loads(json.dumps(config.to_diff_dict()))  # what is a default of the class
    assert count_parameters(left_out, anatomy_of(saved)).n_parameter == found.n_parameter
    assert found.n_parameter == sum(each.numel() for each in model.parameters())
    theirs = {
        name: each.numel() for name, each in model.named_parameters() if place_of(name).in_attention
    }
    assert found.n_attention == sum(theirs.values())
    sizes = {name: each.numel() for name, each in model.named_parameters()}
    experts = sum(size for name, size in sizes.items() if ".experts." in name)
    rest = {part.name: part.n_parameter for part in found.rest}
    assert rest.get("experts", 0) == experts
    embedding = sum(size for name, size in sizes.items() if place_of(name).part == "embedding")
    idle = embedding if "output" in rest else 0
    names = ("num_experts", "num_local_experts", "n_routed_experts")
    n_expert = next((saved[name] for name in names if name in saved), 1)
    assert found.n_active == found.n_parameter - experts + experts * 2 // n_expert - idle


LLAMA_31_8B = {
    "model_type": "llama", "hidden_size": 4096, "intermediate_size": 14336, "num_attention_heads": 32,
    "num_hidden_layers": 32, "num_key_value_heads": 8, "vocab_size": 128256, "tie_word_embeddings": False,
    "torch_dtype": "bfloat16", "attention_bias": False, "mlp_bias": False,
}  # fmt: skip
MISTRAL_7B = {
    "model_type": "mistral", "hidden_size": 4096, "intermediate_size": 14336, "num_attention_heads": 32,
    "num_hidden_layers": 32, "num_key_value_heads": 8, "vocab_size": 32000, "sliding_window": 4096,
}  # fmt: skip
QWEN25_7B = {
    "model_type": "qwen2", "hidden_size": 3584, "intermediate_size": 18944, "num_attention_heads": 28,
    "num_hidden_layers": 28, "num_key_value_heads": 4, "vocab_size": 152064, "use_sliding_window": False,
    "tie_word_embeddings": False,
}  # fmt: skip
GEMMA2_9B = {
    "model_type": "gemma2", "hidden_size": 3584, "intermediate_size": 14336, "num_attention_heads": 16,
    "num_hidden_layers": 42, "num_key_value_heads": 8, "head_dim": 256, "vocab_size": 256000,
    "sliding_window": 4096,
}  # fmt: skip
MIXTRAL = {
    "model_type": "mixtral", "hidden_size": 4096, "intermediate_size": 14336, "num_attention_heads": 32,
    "num_hidden_layers": 32, "num_key_value_heads": 8, "vocab_size": 32000, "num_local_experts": 8,
    "num_experts_per_tok": 2, "sliding_window": None,
}  # fmt: skip
GPT2 = {
    "model_type": "gpt2", "n_embd": 768, "n_head": 12, "n_layer": 12, "n_positions": 1024, "vocab_size": 50257,
}  # fmt: skip
DEEPSEEK_V3 = {
    "model_type": "deepseek_v3", "hidden_size": 7168, "intermediate_size": 18432, "num_hidden_layers": 61,
    "moe_intermediate_size": 2048, "n_routed_experts": 256, "n_shared_experts": 1, "num_experts_per_tok": 8,
    "first_k_dense_replace": 3, "num_attention_heads": 128, "q_lora_rank": 1536, "kv_lora_rank": 512,
    "qk_nope_head_dim": 128, "qk_rope_head_dim": 64, "v_head_dim": 128, "vocab_size": 129280,
    "tie_word_embeddings": False, "quantization_config": {"quant_method": "fp8"},
}  # fmt: skip


@pytest.mark.parametrize(
    ("config", "figure"),
    [
        (LLAMA_31_8B, 8_030_261_248),
        (MISTRAL_7B, 7_241_732_096),
        (QWEN25_7B, 7_615_616_512),
        (GEMMA2_9B, 9_241_705_984),
        (MIXTRAL, 46_702_792_704),
        (GPT2, 124_439_808),
    ],
)
def test_models_have_the_parameters_that_the_hub_says(config, figure):
    assert count_parameters(config, anatomy_of(config)).n_parameter == figure


def test_deepseek_v3_has_the_parameters_of_its_paper():
    """arXiv:2412.19437: 671 billion, 37 of them for a token."""
    found = count_parameters(DEEPSEEK_V3, anatomy_of(DEEPSEEK_V3))
    assert round(found.n_parameter / 1e9) == 671
    assert round(found.n_active / 1e9) == 37
    assert found.n_bytes is None  # quantised: a configuration does not say how large that is


def test_bytes_are_those_of_the_dtype():
    found = count_parameters(LLAMA_31_8B, anatomy_of(LLAMA_31_8B))
    assert found.n_bytes == 2 * found.n_parameter
    assert found.source == "configuration"
    assert [(part.name, part.n_parameter) for part in found.dtypes] == [("bfloat16", found.n_parameter)]
    without = {**MISTRAL_7B, "torch_dtype": None}
    assert count_parameters(without, anatomy_of(without)).n_bytes is None


@pytest.mark.parametrize(
    ("config", "problem"),
    [
        ({**GPT2, "vocab_size": None}, "it has no vocab_size"),
        ({**MISTRAL_7B, "intermediate_size": "big"}, "'big' is its intermediate_size"),
        (
            {"model_type": "bloom", "hidden_size": 64, "n_head": 4, "n_layer": 2},
            "attnscope does not count the parameters of bloom by config.json alone",
        ),
        (
            {"model_type": "gemma3", "text_config": {**GEMMA2_9B, "model_type": "gemma3_text"}},
            "it has other parts",
        ),
    ],
)
def test_what_is_not_known_is_said(config, problem):
    with pytest.raises(ModelError) as caught:
        count_parameters(config, anatomy_of(config))
    assert problem in caught.value.message
    assert len(caught.value.message.splitlines()) == 1
