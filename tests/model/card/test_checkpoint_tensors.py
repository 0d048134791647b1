"""Parameters and bytes of a model's parts, counted from headers, beside transformers' own modules."""

import re
from math import prod

import pytest
import torch
from transformers import AutoModelForCausalLM, AutoModelForSeq2SeqLM
from transformers.models.auto.modeling_auto import (
    MODEL_FOR_CAUSAL_LM_MAPPING_NAMES,
    MODEL_FOR_SEQ_TO_SEQ_CAUSAL_LM_MAPPING_NAMES,
)

from attnscope.model.card.checkpoint_tensors import count_weights
from attnscope.model.files.headers import Headers, TensorHeader, read_headers
from attnscope.model.files.model_files import find_model_files
from tests.model.run.tiny import tiny_config
from tests.sweeps import swept

BITS = {
    "F4": 4,
    "U8": 8,
    "I8": 8,
    "F8_E4M3": 8,
    "F8_E8M0": 8,
    "BF16": 16,
    "F16": 16,
    "F32": 32,
    "I32": 32,
}
BITS |= {"U32": 32, "I64": 64}


def headers(tensors, file_format="safetensors"):
    """Return headers from names → dtype and sizes."""
    entries = (
        TensorHeader(name, tuple(sizes), dtype, prod(sizes) * BITS[dtype] // 8)
        for name, (dtype, *sizes) in tensors.items()
    )
    return Headers("m", file_format, tuple(entries), 1)


def parameters(counts):
    return {part.name: part.n_parameter for part in counts}


# Every family, beside the parameters of modules whose class is an attention.

CAUSAL = MODEL_FOR_CAUSAL_LM_MAPPING_NAMES
FAMILIES = sorted({*CAUSAL, *MODEL_FOR_SEQ_TO_SEQ_CAUSAL_LM_MAPPING_NAMES})
DEFAULT = "llama gpt2 bert t5 deepseek_v3 qwen3_next nemotron_h gpt_oss".split()
TOO_LARGE = {"blt", "longcat_flash", "vibevoice_asr"}
ATTENTION = re.compile(r"Attention|Attn|GatedDeltaNet|KimiDelta")
WRAPPER = re.compile(
    r"(?<!PreLayer)Norm|LayerFF|LayerCross|Layer\w*SelfAttention|DecoderLayer|Residual|AttentionInput|R(wkv|WKV)"
)


@pytest.mark.parametrize("family", swept([f for f in FAMILIES if f not in TOO_LARGE], DEFAULT))
def test_every_family_has_the_parameters_of_its_modules(family, tmp_path):
    auto = AutoModelForCausalLM if family in CAUSAL else AutoModelForSeq2SeqLM
    try:
        model = auto.from_config(tiny_config(family))
    except Exception as error:
        pytest.skip(f"is not built from these sizes: {error}")
    if sum(parameter.numel() for parameter in model.parameters()) > 3e7:
        pytest.skip("is not small")
    if re.search("(vision|audio|encoder)_config", str(model.config.to_dict())):
        pytest.skip("has towers, whose modules have attention of their own")
    model.save_pretrained(tmp_path)
    files = find_model_files(tmp_path)
    found = count_weights(read_headers(files), files.config())
    corrections = sum(
        each.numel() for name, each in model.named_buffers() if re.search("correction_bias|act_fn", name)
    )
    assert found.n_parameter - corrections == sum(each.numel() for each in model.parameters())
    assert not found.uncertain
    modules = {
        name: module
        for name, module in model.named_modules()
        if ATTENTION.search(type(module).__name__) and not WRAPPER.search(type(module).__name__)
    }
    theirs = {id(each): each.numel() for module in modules.values() for each in module.parameters()}
    assert found.n_attention == sum(theirs.values())


LLAMA = {
    **{f"model.layers.{i}.self_attn.q_proj.weight": ("BF16", 24, 20) for i in range(3)},
    **{f"model.layers.{i}.self_attn.k_proj.weight": ("BF16", 8, 20) for i in range(3)},
    **{f"model.layers.{i}.self_attn.v_proj.weight": ("BF16", 8, 20) for i in range(3)},
    **{f"model.layers.{i}.self_attn.o_proj.weight": ("BF16", 20, 24) for i in range(3)},
    **{f"model.layers.{i}.mlp.up_proj.weight": ("BF16", 50, 20) for i in range(3)},
    "model.embed_tokens.weight": ("BF16", 100, 20),
    "lm_head.weight": ("BF16", 100, 20),
}


def test_each_matrix_is_counted():
    found = count_weights(headers(LLAMA))
    assert parameters(found.attention) == {"W_Q": 1440, "W_K": 480, "W_V": 480, "W_O": 1440}
    assert parameters(found.rest) == {"embedding": 2000, "output": 2000, "other": 3000}
    assert parameters(found.dtypes) == {"BF16": 10840}
    assert found.n_bytes == 2 * 10840
    assert found.n_active == 10840 - 2000
    assert repr(found) == "WeightsCount(10.8 K parameters, 3.84 K of attention, 21.2 KiB)"
    assert repr(found.attention[0]) == "PartCount(W_Q: 1.44 K parameters, 2.8 KiB)"


@pytest.mark.parametrize(
    ("names", "fused"),
    [
        (("self_attn.qkv_proj", "self_attn.o_proj"), (24 + 2 * 8, 20)),
        (("attn.c_attn", "attn.c_proj"), (20, 24 + 2 * 8)),
        (("attention.query_key_value", "attention.dense"), (24 + 2 * 8, 20)),
    ],
)
def test_a_fused_matrix_is_split_by_the_size_of_the_output_matrix(names, fused):
    tensors = {f"h.0.{names[0]}.weight": ("F16", *fused), f"h.0.{names[1]}.weight": ("F16", 20, 24)}
    found = count_weights(headers(tensors))
    assert parameters(found.attention) == {"W_Q": 480, "W_K": 160, "W_V": 160, "W_O": 480}
    assert found.n_bytes == 2 * (480 + 160 + 160 + 480)


def test_a_matrix_of_linear_attention_is_split_as_its_values_are():
    model = AutoModelForCausalLM.from_config(
        tiny_config(
            "qwen3_next", linear_key_head_dim=6, linear_value_head_dim=10, linear_num_key_heads=2
        )
    )
    (module,) = [m for n, m in model.named_modules() if n.endswith("layers.0.linear_attn")]
    state = {f"model.layers.0.linear_attn.{n}": ("F32", *p.shape) for n, p in module.named_parameters()}
    found = parameters(count_weights(headers(state)).attention)
    d_feat, n_key, n_value = 48, 2 * 6, 4 * 10
    expected = {"W_Q": n_key, "W_K": n_key, "W_V": n_value, "gates": n_value, "W_O": n_value}
    assert {part: found[part] for part in expected} == {p: n * d_feat for p, n in expected.items()}
    assert sum(found.values()) == sum(p.numel() for p in module.parameters())


def test_draft_layers_and_towers_are_no_part_of_attention():
    draft = {"model.layers.3.self_attn.q_proj.weight": ("BF16", 24, 20), "mtp.fc.weight": ("BF16", 4, 4)}
    tower = {"vision_tower.layers.0.self_attn.q_proj.weight": ("BF16", 7, 7)}
    found = count_weights(headers(LLAMA | draft | tower), {"num_hidden_layers": 3})
    assert found.attention == count_weights(headers(LLAMA)).attention
    assert parameters(found.rest)["draft layers"] == 24 * 20 + 16
    assert parameters(found.rest)["towers"] == 49


# Formats of quantised checkpoints: a matrix of 384 × 256 in each.

Q = "model.layers.0.self_attn.q_proj"
N = 384 * 256


@pytest.mark.parametrize(
    ("tensors", "config", "kind"),
    [
        (  # AutoAWQ: WQLinear_GEMM
            {"qweight": ("I32", 256, 48), "qzeros": ("I32", 2, 48), "scales": ("F16", 2, 384)},
            {}, "4 bits in I32",
        ),
        (  # AutoGPTQ: QuantLinear, 4 bits
            {"qweight": ("I32", 32, 384), "qzeros": ("I32", 2, 48), "scales": ("F16", 2, 384), "g_idx": ("I32", 256)},
            {}, "4 bits in I32",
        ),
        (  # 3 bits: 32 values in three integers
            {"qweight": ("I32", 24, 384), "qzeros": ("I32", 2, 36), "scales": ("F16", 2, 384), "g_idx": ("I32", 256)},
            {}, "3 bits in I32",
        ),
        (
            {"qweight": ("I32", 64, 384), "qzeros": ("I32", 2, 96), "scales": ("F16", 2, 384), "g_idx": ("I32", 256)},
            {}, "8 bits in I32",
        ),
        (  # bitsandbytes: Linear4bit with nested statistics
            {
                "weight": ("U8", N // 2, 1), "weight.absmax": ("U8", N // 64), "weight.quant_map": ("F32", 16),
                "weight.nested_absmax": ("F32", 6), "weight.nested_quant_map": ("F32", 256),
                "weight.quant_state.bitsandbytes__nf4": ("U8", 80),
            },
            {}, "4 bits in U8",
        ),
        ({"weight": ("I8", 384, 256), "SCB": ("F32", 384), "weight_format": ("U8", 1)}, {}, "I8"),
        ({"weight": ("F8_E4M3", 384, 256), "weight_scale_inv": ("F32", 3, 2)}, {}, "F8_E4M3"),
        ({"weight": ("F8_E4M3", 384, 256), "weight_scale": ("BF16", 384, 1), "input_scale": ("F32", 1)}, {}, "F8_E4M3"),
        (  # compressed-tensors: pack-quantized
            {"weight_packed": ("I32", 384, 32), "weight_scale": ("BF16", 384, 2), "weight_shape": ("I64", 2)},
            {"quantization_config": {"config_groups": {"group_0": {"weights": {"num_bits": 4}}}}}, "4 bits in I32",
        ),
        (  # compressed-tensors: nvfp4-pack-quantized
            {"weight_packed": ("U8", 384, 128), "weight_scale": ("F8_E4M3", 384, 16), "weight_global_scale": ("F32", 1)},
            {}, "4 bits in U8",
        ),
        (  # ModelOpt: NVFP4
            {"weight": ("U8", 384, 128), "weight_scale": ("F8_E4M3", 384, 16), "weight_scale_2": ("F32", 1), "input_scale": ("F32", 1)},
            {}, "4 bits in U8",
        ),
        (
            {"weight": ("U8", 96, 256), "weight_scale": ("BF16", 1)},
            {"quantization_config": {"quant_method": "bitnet"}}, "2 bits in U8",
        ),
        (  # MLX
            {"weight": ("U32", 384, 32), "scales": ("BF16", 384, 4), "biases": ("BF16", 384, 4)},
            {"quantization": {"group_size": 64, "bits": 4}}, "4 bits in U32",
        ),
    ],
)  # fmt: skip
def test_packed_integers_count_as_the_matrix_that_they_store(tensors, config, kind):
    stored = headers({f"{Q}.{name}": each for name, each in tensors.items()})
    found = count_weights(stored, config)
    assert parameters(found.attention) == {"W_Q": N}
    assert (found.n_bytes, found.uncertain) == (stored.n_bytes, ())
    assert parameters(found.dtypes)[kind] == N


def test_a_fused_matrix_of_packed_integers_is_split():
    tensors = {
        "qkv_proj.qweight": ("I32", 256, (384 + 2 * 128) // 8), "qkv_proj.qzeros": ("I32", 2, 80),
        "qkv_proj.scales": ("F16", 2, 640), "qkv_proj.bias": ("F16", 640),
        "o_proj.qweight": ("I32", 384, 32), "o_proj.qzeros": ("I32", 3, 32), "o_proj.scales": ("F16", 3, 256),
    }  # fmt: skip
    stored = headers({f"model.layers.0.self_attn.{name}": each for name, each in tensors.items()})
    found = count_weights(stored)
    matrices = {"W_Q": N, "W_K": 128 * 256, "W_V": 128 * 256, "W_O": N}
    assert parameters(found.attention) == matrices | {"biases": 640}
    assert found.n_bytes == stored.n_bytes


def test_integers_whose_packing_is_not_known_are_told():
    found = count_weights(headers({f"{Q}.weight": ("I32", 384, 32)}))
    (sentence,) = found.uncertain
    assert f"{Q}.weight is stored as I32, in a format that is not known" in sentence
    assert found.n_parameter == 384 * 32
    packed = headers({f"{Q}.weight_packed": ("I32", 384, 32), f"{Q}.weight_scale": ("BF16", 384, 2)})
    assert count_weights(packed).uncertain


def test_buffers_are_no_parameters():
    buffers = {
        "h.0.attn.bias": ("F32", 1, 1, 64, 64), "h.0.attn.masked_bias": ("F32", 1),
        "model.layers.0.self_attn.rotary_emb.inv_freq": ("F32", 8), "embeddings.position_ids": ("I64", 1, 512),
    }  # fmt: skip
    found = count_weights(headers(buffers))
    assert found.n_parameter == 0
    assert found.n_bytes == 4 * (64 * 64 + 1 + 8) + 8 * 512
    bias = count_weights(headers({"h.0.attn.c_attn.bias": ("F32", 60)}))
    assert parameters(bias.attention) == {"biases": 60}


def gpt_oss(n_layer, n_expert):
    """The tensors of a gpt-oss model as it is published: 64 query heads, 8 key heads, d_feat 2880."""
    tensors = {"model.embed_tokens.weight": ("BF16", 201088, 2880), "model.norm.weight": ("BF16", 2880)}
    tensors["lm_head.weight"] = ("BF16", 201088, 2880)
    for i in range(n_layer):
        layer = f"model.layers.{i}"
        for name, *sizes in (
            ("q_proj.weight", 4096, 2880), ("q_proj.bias", 4096), ("k_proj.weight", 512, 2880), ("k_proj.bias", 512),
            ("v_proj.weight", 512, 2880), ("v_proj.bias", 512), ("o_proj.weight", 2880, 4096), ("o_proj.bias", 2880),
            ("sinks", 64),
        ):  # fmt: skip
            tensors[f"{layer}.self_attn.{name}"] = ("BF16", *sizes)
        for name in ("input_layernorm", "post_attention_layernorm"):
            tensors[f"{layer}.{name}.weight"] = ("BF16", 2880)
        tensors[f"{layer}.mlp.router.weight"] = ("BF16", n_expert, 2880)
        tensors[f"{layer}.mlp.router.bias"] = ("BF16", n_expert)
        for name, n_out in (("gate_up_proj", 5760), ("down_proj", 2880)):
            tensors[f"{layer}.mlp.experts.{name}_blocks"] = ("U8", n_expert, n_out, 90, 16)
            tensors[f"{layer}.mlp.experts.{name}_scales"] = ("U8", n_expert, n_out, 90)
            tensors[f"{layer}.mlp.experts.{name}_bias"] = ("BF16", n_expert, n_out)
    return tensors


@pytest.mark.parametrize(
    ("n_layer", "n_expert", "mlp", "attention", "active", "total", "size"),
    [(24, 32, 19.12, 0.64, 3.61, 20.91, 12.8), (36, 128, 114.71, 0.96, 5.13, 116.83, 60.8)],
)
def test_gpt_oss_has_the_parameters_that_its_authors_publish(
    n_layer, n_expert, mlp, attention, active, total, size
):
    """Table 1 of the gpt-oss model card (arXiv 2508.10925): MXFP4 stores 4.25 bits a parameter."""
    config = {"num_local_experts": n_expert, "num_experts_per_tok": 4, "num_hidden_layers": n_layer}
    found = count_weights(headers(gpt_oss(n_layer, n_expert)), config)
    rest = parameters(found.rest)
    assert (rest["experts"] + rest["other"]) / 1e9 == pytest.approx(mlp, abs=0.006)
    assert round(found.n_attention / 1e9, 2) == attention
    assert round((rest["embedding"] + rest["output"]) / 1e9, 2) == 1.16
    assert round(found.n_active / 1e9, 2) == active
    assert round(found.n_parameter / 1e9, 2) == total
    assert round(found.n_bytes / 2**30, 1) == size


def test_files_of_gguf_have_the_same_parts():
    names = {"attn_q": 24, "attn_k": 8, "attn_v": 8, "attn_output": 24, "ffn_up": 50, "attn_norm": 1}
    tensors = {f"blk.{i}.{name}.weight": ("F16", n, 20) for i in range(3) for name, n in names.items()}
    tensors |= {"token_embd.weight": ("F16", 100, 20), "output.weight": ("F16", 100, 20)}
    tensors |= {"blk.0.ffn_down_exps.weight": ("F16", 4, 3), "blk.0.attn_q.bias": ("F16", 24)}
    tensors |= {"blk.0.ssm_in.weight": ("F16", 5, 5), "rope_freqs.weight": ("F32", 9)}
    found = count_weights(headers(tensors, "GGUF"))
    attention = {"W_Q": 1440, "W_K": 480, "W_V": 480, "W_O": 1440, "biases": 24}
    assert parameters(found.attention) == attention
    rest = {"embedding": 2000, "output": 2000, "experts": 12, "recurrence": 25, "other": 3060}
    assert parameters(found.rest) == rest


def test_sizes_that_are_not_known_stay_unknown():
    tensors = (TensorHeader("blk.0.attn_q.weight", (3, 4), "250", None),)
    found = count_weights(Headers("m", "GGUF", tensors, 1))
    assert found.n_bytes is None
    assert found.attention[0].n_bytes is None
    assert found.n_parameter == 12


def test_a_layer_of_bitnet_has_four_parameters_in_a_byte():
    from transformers.integrations.bitnet import BitLinear

    layer = BitLinear(256, 384, False)
    state = {
        f"{Q}.{name}": ("U8" if t.dtype == torch.uint8 else "F32", *t.shape)
        for name, t in layer.state_dict().items()
    }
    found = count_weights(headers(state), {"quantization_config": {"quant_method": "bitnet"}})
    assert found.n_parameter == layer.in_features * layer.out_features
