"""Stored sizes by `quantization_config`, beside the tensors that files of each format have."""

from __future__ import annotations

from math import ceil, prod
from typing import Any

import pytest
import torch
from transformers import AutoModelForCausalLM

from attnscope.model.card.from_config import anatomy_of
from attnscope.model.card.meta_model import count_without_values
from attnscope.model.card.parameters import count_parameters
from attnscope.model.card.quantisation import UnknownFormatError, quantisation_of
from tests.model.run import tiny

LLAMA = {
    "model_type": "llama",
    "hidden_size": 512,
    "intermediate_size": 768,
    "num_hidden_layers": 3,
    "num_attention_heads": 8,
    "num_key_value_heads": 2,
    "vocab_size": 1000,
    "tie_word_embeddings": False,
    "dtype": "bfloat16",
}
MATRICES = {
    "self_attn.q_proj": (512, 512),
    "self_attn.k_proj": (128, 512),
    "self_attn.v_proj": (128, 512),
    "self_attn.o_proj": (512, 512),
    "mlp.gate_proj": (768, 512),
    "mlp.up_proj": (768, 512),
    "mlp.down_proj": (512, 768),
}
"""Outputs and inputs of a layer's matrices."""
REST = 2 * (2 * 1000 * 512 + (2 * 3 + 1) * 512)  # embedding, output and norms, in 2 bytes

Shapes = list[tuple[tuple[int, ...], float]]


def of_awq(n_out: int, n_in: int) -> Shapes:
    return [((n_in, n_out // 8), 4), ((n_in // 128, n_out // 8), 4), ((n_in // 128, n_out), 2)]


def of_gptq(n_out: int, n_in: int) -> Shapes:
    return [
        ((n_in // 8, n_out), 4), ((n_in // 64, n_out // 8), 4), ((n_in // 64, n_out), 2), ((n_in,), 4)
    ]  # fmt: skip


def of_nf4(n_out: int, n_in: int) -> Shapes:
    n_block = n_out * n_in // 64
    return [((n_out * n_in // 2, 1), 1), ((n_block,), 1), ((n_block // 256,), 4)]


def of_fp4(n_out: int, n_in: int) -> Shapes:
    return [((n_out * n_in // 2, 1), 1), ((n_out * n_in // 64,), 4)]


def of_int8(n_out: int, n_in: int) -> Shapes:
    return [((n_out, n_in), 1), ((n_out,), 4)]


def of_fp8(n_out: int, n_in: int) -> Shapes:
    return [((n_out, n_in), 1), ((ceil(n_out / 128), ceil(n_in / 96)), 4)]


def of_fp8_rows(n_out: int, n_in: int) -> Shapes:
    return [((n_out, n_in), 1), ((n_out, 1), 2)]


def of_int4(n_out: int, n_in: int) -> Shapes:
    return [((n_out, n_in // 8), 4), ((n_out, n_in // 32), 2)]


def of_nvfp4(n_out: int, n_in: int) -> Shapes:
    return [((n_out, n_in // 2), 1), ((n_out, n_in // 16), 1)]


def of_mxfp8(n_out: int, n_in: int) -> Shapes:
    return [((n_out, n_in), 1), ((n_out, n_in // 32), 1)]


def group(**weights: Any) -> dict[str, Any]:
    return {"group_0": {"targets": ["Linear"], "weights": weights}}


ROWS = {"num_bits": 8, "type": "float", "strategy": "channel", "symmetric": True}
PACKED = {"num_bits": 4, "type": "int", "strategy": "group", "group_size": 32, "symmetric": True}
SMALL = {"num_bits": 4, "type": "float", "group_size": 16}
COMPRESSED = {"quant_method": "compressed-tensors", "ignore": ["lm_head"]}
FORMATS = {
    "awq": ({"quant_method": "awq", "bits": 4, "group_size": 128}, of_awq),
    "gptq": ({"quant_method": "gptq", "bits": 4, "group_size": 64}, of_gptq),
    "nf4": (
        {"quant_method": "bitsandbytes", "load_in_4bit": True, "bnb_4bit_use_double_quant": True},
        of_nf4,
    ),
    "fp4": ({"quant_method": "bitsandbytes", "load_in_4bit": True}, of_fp4),
    "int8": ({"quant_method": "bitsandbytes", "load_in_8bit": True}, of_int8),
    "fp8": ({"quant_method": "fp8", "weight_block_size": [128, 96]}, of_fp8),
    "fp8, rows": (
        COMPRESSED | {"format": "float-quantized", "config_groups": group(**ROWS)},
        of_fp8_rows,
    ),
    "int4": (COMPRESSED | {"format": "pack-quantized", "config_groups": group(**PACKED)}, of_int4),
    "nvfp4": (
        COMPRESSED | {"format": "nvfp4-pack-quantized", "config_groups": group(**SMALL)},
        of_nvfp4,
    ),
    "modelopt": ({"quant_method": "modelopt", "quant_algo": "NVFP4", "ignore": ["lm_head"]}, of_nvfp4),
    "mxfp8": ({"quant_algo": "MXFP8", "exclude_modules": ["lm_head"]}, of_mxfp8),
}


def stored(config: dict[str, Any], beside: dict[str, Any] | None = None) -> int | None:
    return count_parameters(config, anatomy_of(config), quantisation_of(config, beside)).n_bytes


def bytes_of(tensors: Shapes) -> int:
    return sum(int(prod(shape) * itemsize) for shape, itemsize in tensors)


@pytest.mark.parametrize("name", FORMATS)
def test_a_format_stores_what_its_tensors_have(name: str) -> None:
    settings, tensors = FORMATS[name]
    quantised = 3 * sum(bytes_of(tensors(*shape)) for shape in MATRICES.values())
    assert stored(LLAMA | {"quantization_config": settings}) == quantised + REST


def test_hf_quant_config_json_says_it_as_well() -> None:
    settings = {"quant_algo": "FP8", "exclude_modules": ["lm_head"]}
    matrices = 3 * sum(prod(shape) + 4 for shape in MATRICES.values())
    assert stored(LLAMA, {"quantization": settings}) == matrices + REST
    assert stored(LLAMA) == 3 * 2 * sum(map(prod, MATRICES.values())) + REST


@pytest.mark.parametrize(
    ("patterns", "spared"),
    [
        (["lm_head", "re:.*self_attn.*"], 3 * ["self_attn"]),
        (["lm_head", "model.layers.1*"], 1 * ["self_attn", "mlp"]),
        (["lm_head", "language_model.model.layers.0.mlp", "model.layers.2.mlp.*"], 2 * ["mlp"]),
        (["lm_head", "down_proj"], 3 * ["mlp.down_proj"]),
        (["lm_head", "up", "model.layers.10.mlp", "proj", "model.layers.1.mlp.up"], []),
    ],
)
def test_modules_that_are_left_out_stay_in_the_dtype_of_the_model(patterns, spared) -> None:
    settings = {"quant_algo": "NVFP4", "ignore": patterns}
    found = stored(LLAMA | {"quantization_config": settings})
    matrices = 3 * [*MATRICES.items()]
    expected = sum(bytes_of(of_nvfp4(*shape)) for _, shape in matrices)
    for start in spared:
        own = [shape for name, shape in MATRICES.items() if name.startswith(start)]
        expected += sum(2 * prod(shape) - bytes_of(of_nvfp4(*shape)) for shape in own)
    assert found == expected + REST


def test_an_output_that_is_not_left_out_is_quantised_with_the_rest() -> None:
    settings = {"quant_algo": "NVFP4", "ignore": []}
    without = settings | {"ignore": ["lm_head"]}
    difference = 1000 * 512 * 2 - bytes_of(of_nvfp4(1000, 512))
    assert stored(LLAMA | {"quantization_config": without}) == difference + stored(
        LLAMA | {"quantization_config": settings}
    )


def test_groups_of_single_modules_have_their_own_format() -> None:
    of_attention = {"targets": ["re:.*self_attn.*"], "weights": ROWS}
    of_others = {"targets": ["Linear"], "weights": SMALL}
    settings = COMPRESSED | {"config_groups": {"group_1": of_others, "group_0": of_attention}}
    expected = 3 * sum(
        bytes_of((of_fp8_rows if "attn" in name else of_nvfp4)(*shape))
        for name, shape in MATRICES.items()
    )
    assert stored(LLAMA | {"quantization_config": settings}) == expected + REST


def test_layers_that_are_listed_have_their_own_algorithm() -> None:
    layers = {
        "model.layers.0.mlp.up_proj": {"quant_algo": "FP8"},
        "layers.2.self_attn.q_proj": {"quant_algo": "NVFP4"},
    }
    settings = {"quant_method": "modelopt", "quant_algo": "MIXED_PRECISION", "quantized_layers": layers}
    everything = 3 * 2 * sum(map(prod, MATRICES.values())) + REST
    less = 2 * 768 * 512 - (768 * 512 + 4) + 2 * 512 * 512 - bytes_of(of_nvfp4(512, 512))
    assert stored(LLAMA | {"quantization_config": settings}) == everything - less


GPT_OSS = {
    "model_type": "gpt_oss", "hidden_size": 2880, "intermediate_size": 2880, "num_attention_heads": 64,
    "num_key_value_heads": 8, "head_dim": 64, "sliding_window": 128, "num_experts_per_tok": 4,
    "vocab_size": 201088, "tie_word_embeddings": False,
    "quantization_config": {"quant_method": "mxfp4", "modules_to_not_convert": ["model.layers.*.self_attn"]},
}  # fmt: skip


@pytest.mark.parametrize(
    ("n_layer", "n_expert", "total"), [(24, 32, 13_761_264_768), (36, 128, 65_248_815_744)]
)
def test_gpt_oss_has_the_size_that_its_index_says(n_layer: int, n_expert: int, total: int) -> None:
    """`metadata.total_size` of model.safetensors.index.json of openai/gpt-oss-20b and -120b."""
    config = GPT_OSS | {"num_hidden_layers": n_layer, "num_local_experts": n_expert}
    assert stored(config) == total


@pytest.mark.parametrize("family", ["llama", "qwen2_moe", "deepseek_v3"])
def test_what_is_quantised_is_what_multiplies_in_transformers_model(family: str) -> None:
    config = tiny.tiny_config(family, tie_word_embeddings=False)
    with torch.device("meta"):
        model = AutoModelForCausalLM.from_config(config)
    linear = {
        name: each.weight.numel()
        for name, each in model.named_modules()
        if type(each) is torch.nn.Linear
    }
    experts = [each.numel() for name, each in model.named_parameters() if ".experts." in name]
    products = sum(linear.values()) - linear["lm_head"] + sum(experts)
    products -= sum(size for name, size in linear.items() if name.endswith("shared_expert_gate"))
    saved = config.to_dict() | {"dtype": "bfloat16", "quantization_config": {"quant_method": "fp8"}}
    by_config = count_parameters(saved, anatomy_of(saved), quantisation_of(saved))
    assert {each.name: each.n_parameter for each in by_config.dtypes}["fp8"] == products
    built = count_without_values(
        {k: v for k, v in saved.items() if k != "quantization_config"},
        "bfloat16",
        quantisation_of(saved),
    )
    assert {each.name: each.n_parameter for each in built.dtypes}["fp8"] == products
    assert built.n_parameter == by_config.n_parameter


@pytest.mark.parametrize(
    ("settings", "why"),
    [
        ({"quant_method": "hqq"}, "quantization_config names hqq"),
        ({}, "quantization_config names no quant_method"),
        ({"quant_method": "awq"}, "does not say how many bits"),
        (
            {"quant_method": "gptq", "bits": 4, "group_size": 32, "dynamic": {"-:a": {}}},
            "single modules",
        ),
        ({"quant_method": "fp8", "weight_block_size": [128]}, "says blocks of \\[128\\]"),
        ({"quant_method": "bitsandbytes"}, "neither load_in_4bit nor load_in_8bit"),
        ({"quant_method": "modelopt", "quant_algo": "W4A8_AWQ"}, "says W4A8_AWQ"),
        ({"quant_method": "fp8", "quant_algo": "MIXED_PRECISION"}, "says MIXED_PRECISION"),
        (COMPRESSED, "has no config_groups"),
        (
            COMPRESSED | {"format": "marlin-24", "config_groups": group(**PACKED)},
            "says 4 bits as marlin-24",
        ),
        ({"quant_method": "fp8", "modules_to_not_convert": ["re:("]}, "cannot be read"),
    ],
)
def test_a_format_that_is_not_known_is_said_and_not_guessed(settings: dict[str, Any], why: str) -> None:
    with pytest.raises(UnknownFormatError, match=why):
        quantisation_of(LLAMA | {"quantization_config": settings})


def test_the_text_of_a_larger_model_may_say_it() -> None:
    part = LLAMA | {"quantization_config": FORMATS["awq"][0]}
    found = quantisation_of({"model_type": "llava", "text_config": part})
    assert found == quantisation_of(part) or found.source == "quantization_config"
    assert quantisation_of({"model_type": "llava", "text_config": LLAMA}) is None
