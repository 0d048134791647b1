"""Anatomies by the headers of GGUF files, beside the configurations that they are made from."""

import gguf
import numpy as np
import pytest
from transformers import (
    Cohere2Config,
    DeepseekV3Config,
    Exaone4Config,
    Gemma2Config,
    Gemma3nTextConfig,
    Gemma3TextConfig,
    GptOssConfig,
    Llama4TextConfig,
    Olmo3Config,
    Qwen3NextConfig,
)

from attnscope.base.errors import ModelError
from attnscope.model.card.anatomy import LayerCache
from attnscope.model.card.gguf_anatomy import anatomy_of_gguf
from attnscope.model.files.headers import Headers, TensorHeader, read_headers
from attnscope.model.files.model_files import find_model_files

ATTENTION = ("attn_q", "attn_k", "attn_v", "attn_output")
SIZES = {"block_count": 6, "embedding_length": 40, "attention.head_count": 5}


def file(arch, metadata=(), layers=None, n_layer=6):
    """Return the headers of a file.

    Args:
        arch: the architecture.
        metadata: keys without the architecture → values.
        layers: for each layer the names of its tensors.
        n_layer: the number of layers, which all have usual names, if `layers` is None.
    """
    layers = layers or [ATTENTION] * n_layer
    keys = {"general.architecture": arch}
    sizes = {**SIZES, "block_count": len(layers), **dict(metadata)}
    keys |= {f"{arch}.{key}": value for key, value in sizes.items()}
    tensors = [
        TensorHeader(f"blk.{i}.{name}" if "." in name else f"blk.{i}.{name}.weight", (3, 4), "F16", 24)
        for i, names in enumerate(layers)
        for name in names
    ]
    return Headers("m.gguf", "GGUF", tuple(tensors), 1, keys)


def test_a_file_that_the_gguf_package_writes_is_described(tmp_path):
    writer = gguf.GGUFWriter(tmp_path / "x.gguf", "qwen2")
    writer.add_block_count(2)
    writer.add_embedding_length(48)
    writer.add_context_length(777)
    writer.add_head_count(6)
    writer.add_head_count_kv([2, 3])
    writer.add_key_length(10)
    writer.add_value_length(7)
    writer.add_rope_freq_base(5000.0)
    writer.add_rope_scaling_type(gguf.RopeScalingType.YARN)
    writer.add_rope_scaling_factor(4.0)
    for i in range(2):
        for name in (
            "attn_q.weight",
            "attn_q.bias",
            "attn_k.weight",
            "attn_v.weight",
            "attn_output.weight",
        ):
            writer.add_tensor(f"blk.{i}.{name}", np.ones((3, 4), np.float32))
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    found = anatomy_of_gguf(read_headers(find_model_files(tmp_path / "x.gguf")))
    assert (found.model_type, found.n_layer, found.d_feat, found.longest) == ("qwen2", 2, 48, 777)
    for layer, n_kv_head in zip(found.layers, (2, 3), strict=True):
        assert (layer.kind, layer.n_head, layer.n_kv_head) == ("full", 6, n_kv_head)
        assert (layer.d_K, layer.d_V) == (10, 7)
        assert layer.cache == LayerCache(n_kv_head * (10 + 7))
        assert (layer.rope_theta, layer.rope_scaling) == (5000.0, "yarn 4")
        assert layer.extras == ("biases",)


def test_what_a_file_omits_is_as_llama_cpp_has_it():
    (layer, *_) = anatomy_of_gguf(file("llama")).layers
    assert (layer.n_kv_head, layer.d_K, layer.d_V, layer.window) == (5, 40 // 5, 40 // 5, None)
    assert layer.rope_theta is None


@pytest.mark.parametrize(
    ("arch", "config", "n_layer"),
    [
        ("gemma2", Gemma2Config, 7),
        ("gemma3", Gemma3TextConfig, 13),
        ("gpt-oss", GptOssConfig, 5),
        ("cohere2", Cohere2Config, 9),
        ("olmo2", Olmo3Config, 9),
        ("llama4", Llama4TextConfig, 9),
        ("exaone4", Exaone4Config, 64),
    ],
)
def test_windows_that_files_do_not_place_are_where_transformers_has_them(arch, config, n_layer):
    config = config(num_hidden_layers=n_layer, sliding_window=4096)
    found = anatomy_of_gguf(file(arch, {"attention.sliding_window": 4096}, n_layer=n_layer))
    theirs = [kind.removesuffix("_attention") for kind in config.layer_types]
    assert [layer.kind for layer in found.layers] == theirs
    size = 8192 if arch == "llama4" else 4096  # llama.cpp's, whatever the file says
    windows = {layer.window for layer in found.layers if layer.kind != "full"}
    assert windows == {size}
    assert not found.uncertain


def test_shared_layers_of_gemma_3n_keep_nothing():
    config = Gemma3nTextConfig(num_hidden_layers=35)
    found = anatomy_of_gguf(file("gemma3n", {"attention.sliding_window": 512}, n_layer=35))
    first_shared = config.num_hidden_layers - config.num_kv_shared_layers
    for i, (layer, theirs) in enumerate(zip(found.layers, config.layer_types, strict=True)):
        windowed = theirs == "sliding_attention"
        assert layer.kind == ("shared" if i >= first_shared else "sliding" if windowed else "full")
        assert (layer.window, layer.rope_theta) == ((512, 10000.0) if windowed else (None, None))
        assert layer.cache.numbers(10**6) == (
            0 if i >= first_shared else 80 * (512 if windowed else 10**6)
        )


@pytest.mark.parametrize("pattern", [[True, True, False, True, False, False], 3])
def test_a_pattern_in_the_file_decides(pattern):
    metadata = {"attention.sliding_window": 9, "attention.sliding_window_pattern": pattern}
    expected = pattern if isinstance(pattern, list) else [True, True, False] * 2
    for arch in ("gemma2", "an-unknown-one"):
        found = anatomy_of_gguf(file(arch, metadata))
        assert [layer.window for layer in found.layers] == [9 if each else None for each in expected]
        assert not found.uncertain


def test_windows_that_nobody_places_are_uncertain_and_not_guessed():
    found = anatomy_of_gguf(file("an-unknown-one", {"attention.sliding_window": 9}))
    assert {layer.kind for layer in found.layers} == {"full"}
    (sentence,) = found.uncertain
    assert "the file does not say which layers have that window: all count as full" in sentence


@pytest.mark.parametrize(
    ("arch", "size", "n_layer"),
    [("phi3", 2047, 6), ("gemma3", 0, 6), ("exaone4", None, 30), ("gemma3", None, 6)],
)
def test_windows_that_llama_cpp_does_not_apply_are_none(arch, size, n_layer):
    metadata = {} if size is None else {"attention.sliding_window": size}
    found = anatomy_of_gguf(file(arch, metadata, n_layer=n_layer))
    assert {layer.window for layer in found.layers} == {None}
    assert not found.uncertain


@pytest.mark.parametrize("mla", [True, False])
def test_latent_attention_keeps_its_latents(mla):
    config = DeepseekV3Config()
    heads = (config.qk_nope_head_dim + config.qk_rope_head_dim, config.v_head_dim)
    latent = (config.kv_lora_rank + config.qk_rope_head_dim, config.kv_lora_rank)
    keys = {"attention.head_count": 128, "attention.head_count_kv": 1 if mla else 128}
    keys |= {
        "attention.kv_lora_rank": config.kv_lora_rank,
        "rope.dimension_count": config.qk_rope_head_dim,
    }
    keys |= dict(
        zip(("attention.key_length", "attention.value_length"), latent if mla else heads, strict=True)
    )
    if mla:
        keys |= dict(zip(("attention.key_length_mla", "attention.value_length_mla"), heads, strict=True))
    names = ("attn_q_a", "attn_q_b", "attn_kv_a_mqa", "attn_k_b" if mla else "attn_kv_b", "attn_output")
    (layer,) = anatomy_of_gguf(file("deepseek2", keys, [names])).layers
    assert (layer.kind, layer.n_head, layer.d_K, layer.d_V) == ("latent", 128, *heads)
    assert layer.cache.per_token * 61 * 2 == 70272  # bytes a token of DeepSeek-V3 in bfloat16


def test_recurrent_layers_keep_a_state_and_are_known_by_their_tensors():
    config = Qwen3NextConfig()
    linear = ("attn_qkv", "attn_gate", "ssm_conv1d", "ssm_ba", "ssm_out", "ssm_a", "ssm_dt.bias")
    n_value = config.linear_num_value_heads * config.linear_value_head_dim
    n_key = config.linear_num_key_heads * config.linear_key_head_dim
    keys = {
        "ssm.conv_kernel": config.linear_conv_kernel_dim,
        "ssm.state_size": config.linear_key_head_dim,
    }
    keys |= {"ssm.group_count": config.linear_num_key_heads, "ssm.inner_size": n_value}
    found = anatomy_of_gguf(
        file("qwen3next", keys, [linear, linear, linear, (*ATTENTION, "attn_q_norm")])
    )
    assert [layer.kind for layer in found.layers] == ["linear"] * 3 + ["full"]
    state = config.linear_num_value_heads * config.linear_key_head_dim * config.linear_value_head_dim
    convolution = (config.linear_conv_kernel_dim - 1) * (n_value + 2 * n_key)
    assert found.layers[0].cache == LayerCache(constant_float32=state + convolution)
    assert found.layers[3].extras == ("q/k norm",)


def test_hybrids_have_layers_of_several_kinds():
    keys = {"ssm.conv_kernel": 4, "ssm.state_size": 3, "ssm.inner_size": 16, "shortconv.l_cache": 3}
    keys["attention.head_count_kv"] = [0, 5, 5, 0, 0]
    mamba = ("ssm_in", "ssm_conv1d", "ssm_out")
    layers = [mamba, ATTENTION, (*ATTENTION, *mamba), ("shortconv.in_proj",), ("ffn_up",)]
    found = anatomy_of_gguf(file("a-hybrid", keys, layers))
    kinds = ["state space", "full", "full + state space", "convolution", "none"]
    assert [layer.kind for layer in found.layers] == kinds
    state = 3 * 16 + 3 * 16
    assert [layer.cache.constant_float32 for layer in found.layers] == [state, 0, state, 2 * 40, 0]
    assert [layer.cache.per_token for layer in found.layers] == [0, 80, 80, 0, 0]


def test_draft_layers_are_no_layers_of_the_model():
    assert anatomy_of_gguf(file("glm4moe", {"nextn_predict_layers": 1}, n_layer=4)).n_layer == 3


def test_encoders_keep_nothing():
    found = anatomy_of_gguf(file("bert", {"attention.causal": False}))
    assert {layer.cache for layer in found.layers} == {LayerCache()}


@pytest.mark.parametrize(
    ("metadata", "key"),
    [
        ({"block_count": 0}, "block_count is 0"),
        ({"block_count": "many"}, "block_count is 'many'"),
        ({"embedding_length": None}, "embedding_length is missing"),
        ({"attention.head_count": [1, 2]}, r"attention.head_count is \[1, 2\]"),
        ({"attention.head_count": -3}, "attention.head_count is -3"),
        ({"attention.key_length": 2**62}, f"attention.key_length is {2**62}"),
        ({"attention.head_count_kv": [True] * 6}, "attention.head_count_kv is"),
    ],
)
def test_sizes_that_cannot_be_are_refused(metadata, key):
    headers = file("llama", metadata)
    headers.metadata["llama.block_count"] = metadata.get("block_count", 6)
    with pytest.raises(ModelError, match=key) as caught:
        anatomy_of_gguf(headers)
    assert len(caught.value.message.splitlines()) == 1


def test_files_without_an_architecture_or_with_an_encoder_are_refused():
    headers = file("t5", layers=[()])
    decoder = TensorHeader("dec.blk.0.attn_q.weight", (3, 4), "F16", 24)
    with pytest.raises(ModelError, match="has an encoder or a decoder"):
        anatomy_of_gguf(Headers("m", "GGUF", (decoder,), 1, headers.metadata))
    with pytest.raises(ModelError, match="does not say its architecture"):
        anatomy_of_gguf(Headers("m", "GGUF", (), 1, {}))
