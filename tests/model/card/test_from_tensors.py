"""What tensors say about attention, beside what configurations say, and where the two differ."""

import json
from math import prod

import pytest
from transformers import CONFIG_MAPPING, AutoModel

from attnscope.base.errors import ModelError
from attnscope.model.card.card import card
from attnscope.model.card.from_config import anatomy_of
from attnscope.model.card.from_tensors import anatomy_of_checkpoint, anatomy_of_tensors, contradictions
from attnscope.model.card.gguf_anatomy import anatomy_of_gguf
from attnscope.model.families.fields import families
from attnscope.model.files.headers import Headers, TensorHeader, read_headers
from attnscope.model.files.model_files import find_model_files
from tests.model.run import tiny
from tests.sweeps import swept

FAMILIES = sorted(set(families()) & set(CONFIG_MAPPING))
DEFAULT = "llama gpt2 qwen3_next gemma3_text deepseek_v32 falcon_h1 phi3".split()
UNDECIDED = {
    "deepseek_v4",
    "hrm_text",
    "falcon_mamba",
    "jamba",
    "jetmoe",
    "mamba",
    "xlstm",
    "xlm",
    "mistral_large4_text",
    "molmo2_text",
    "rwkv",
}
"""Families without attention in a tiny model, with several stacks, or names of their own for keys."""
IMAGES = {"mllama"}
"""Families with layers that attend to images, and keep nothing of the tokens of the text."""


def save(family, folder, monkeypatch, **sizes):
    """Save a small model whose heads together are wider than the model."""
    for name in ("head_dim", "kv_channels", "d_kv"):
        monkeypatch.setitem(tiny.SIZES, name, 20)
    try:
        model = AutoModel.from_config(tiny.tiny_config(family, **sizes))
    except Exception as error:
        pytest.skip(f"is not built from these sizes: {error}")
    if sum(parameter.numel() for parameter in model.parameters()) > 3e7:
        pytest.skip("is not small")
    model.save_pretrained(folder)
    files = find_model_files(folder)
    return read_headers(files), files.config()


def decided(headers):
    try:
        return anatomy_of_tensors(headers)
    except ModelError:
        return None


@pytest.mark.parametrize("family", swept(FAMILIES, DEFAULT))
def test_no_family_contradicts_itself_and_tensors_alone_say_what_a_token_takes(
    family, tmp_path, monkeypatch
):
    headers, config = save(family, tmp_path, monkeypatch)
    try:
        expected = anatomy_of(config)
    except ModelError as error:
        pytest.skip(f"has no anatomy by its config.json: {error}")
    assert contradictions(expected, headers, config) == ()
    if family in IMAGES:
        return
    found = decided(headers)
    if found is None or "encoder" in str(config):
        assert family in UNDECIDED or "encoder" in str(config)
        return
    assert (found.n_layer, found.d_feat) == (expected.n_layer, expected.d_feat)
    theirs = [layer.cache.per_token for layer in expected.layers]
    if any(theirs):  # an encoder keeps nothing, which its tensors do not say
        assert [layer.cache.per_token for layer in found.layers] == theirs
    for layer, other in zip(found.layers, expected.layers, strict=True):
        for size in ("n_head", "n_kv_head", "d_K", "d_V"):
            assert getattr(layer, size) in (None, getattr(other, size)), size


@pytest.mark.parametrize(
    ("family", "field", "value", "problem"),
    [
        ("llama", "head_dim", 24, "2 key heads of 24, but W_K has 40 columns, not 48 (in layers 0–3)"),
        ("llama", "num_key_value_heads", 4, "4 value heads of 20, but W_V has 40 columns, not 80"),
        ("llama", "num_attention_heads", 8, "8 query heads of 20, but W_Q has 80 columns, not 160"),
        ("llama", "num_hidden_layers", 6, "has 6 layers, but its tensors are those of 4"),
        ("llama", "num_hidden_layers", 3, "has 3 layers, but its tensors are those of 4: the last is"),
        ("llama", "hidden_size", 64, "the model is 64 wide, but the norms of its layers are 48 wide"),
        ("gpt2", "n_head", 3, None),  # its heads are what the width divides into
        ("phi3", "num_key_value_heads", 4, "4 key heads of 12, but W_K has 24 columns, not 48"),
        ("deepseek_v3", "kv_lora_rank", 20, "a token takes 28 numbers, but its latents have 24"),
    ],
)
def test_a_field_that_tensors_contradict_is_a_finding(
    tmp_path, monkeypatch, family, field, value, problem
):
    headers, config = save(family, tmp_path, monkeypatch)
    assert config[field] != value
    found = contradictions(anatomy_of({**config, field: value}), headers, config)
    messages = [finding.message for finding in found]
    assert (problem is None and not messages) or any(problem in message for message in messages), (
        messages
    )


def test_draft_layers_that_the_configuration_mentions_are_no_finding(tmp_path, monkeypatch):
    headers, config = save("llama", tmp_path, monkeypatch)
    draft = anatomy_of({**config, "num_hidden_layers": 3})
    assert contradictions(draft, headers, config)
    assert not contradictions(draft, headers, {**config, "num_nextn_predict_layers": 1})


def test_packed_matrices_have_the_columns_of_what_they_store():
    """AWQ: 4 bits, in groups of 128 inputs."""
    config = {"model_type": "llama", "hidden_size": 256, "num_hidden_layers": 1, "head_dim": 24}
    config |= {"num_attention_heads": 16, "num_key_value_heads": 2, "max_position_embeddings": 9}
    tensors = {"model.layers.0.input_layernorm.weight": ("F16", 256)}
    for name, n_in, n_out in (("q", 256, 384), ("k", 256, 48), ("v", 256, 48), ("o", 384, 256)):
        module = f"model.layers.0.self_attn.{name}_proj"
        tensors[f"{module}.qweight"] = ("I32", n_in, n_out // 8)
        tensors[f"{module}.qzeros"] = ("I32", n_in // 128, n_out // 8)
        tensors[f"{module}.scales"] = ("F16", n_in // 128, n_out)
    headers = made(tensors)
    assert not contradictions(anatomy_of(config), headers, config)
    assert contradictions(anatomy_of(config | {"head_dim": 12}), headers, config)
    assert anatomy_of_tensors(headers).layers[0].cache.per_token == 2 * 48


def made(tensors, file_format="safetensors", metadata=None):
    width = {"F16": 2, "I32": 4}
    entries = (
        TensorHeader(name, tuple(sizes), dtype, prod(sizes) * width[dtype])
        for name, (dtype, *sizes) in tensors.items()
    )
    return Headers("m", file_format, tuple(entries), 1, metadata or {})


UNKNOWN = {
    "net.blocks.0.pre_norm.weight": ("F16", 40),
    "net.blocks.0.self_attn.q_proj.weight": ("F16", 96, 40),
    "net.blocks.0.self_attn.k_proj.weight": ("F16", 24, 40),
    "net.blocks.0.self_attn.v_proj.weight": ("F16", 18, 40),
    "net.blocks.0.self_attn.o_proj.weight": ("F16", 40, 72),
    "net.blocks.1.mamba.in_proj.weight": ("F16", 40, 40),
    "net.blocks.2.pre_norm.weight": ("F16", 40),
}


def test_what_tensors_do_not_determine_is_said_and_not_guessed():
    found = anatomy_of_tensors(made(UNKNOWN), {"model_type": "brand_new"})
    assert (found.model_type, found.n_layer, found.d_feat) == ("brand_new", 3, 40)
    assert [layer.kind for layer in found.layers] == ["full", "state space", "none"]
    first = found.layers[0]
    assert (first.n_head, first.n_kv_head, first.d_K, first.d_V) == (None,) * 4
    assert first.cache.per_token == 24 + 18
    text = " ".join(found.uncertain)
    assert "which layers have a window" in text
    assert "the keys of layer 0 have 24 columns, n_kv_head · d_head, and its queries 96" in text
    assert "how large the states of 1 layer are: none count" in text


@pytest.mark.parametrize(
    "norm", [{"q_norm.weight": ("F16", 8), "k_norm.weight": ("F16", 8)}, {"sinks": ("F16", 12)}]
)
def test_norms_of_heads_and_sinks_tell_how_wide_a_head_is(norm):
    more = {f"net.blocks.0.self_attn.{name}": each for name, each in norm.items()}
    layer = anatomy_of_tensors(made(UNKNOWN | more)).layers[0]
    assert (layer.n_head, layer.n_kv_head, layer.d_K, layer.d_V) == (12, 3, 8, 6)


def test_norms_of_all_heads_do_not_tell_it():
    more = {"net.blocks.0.self_attn.k_norm.weight": ("F16", 24)}
    assert anatomy_of_tensors(made(UNKNOWN | more)).layers[0].d_K is None


@pytest.mark.parametrize(
    ("tensors", "problem"),
    [
        ({}, "none of its 0 tensors is a projection"),
        ({"a.weight": ("F16", 3)}, "none of its 1 tensors is a projection"),
        (
            {
                f"{side}.layers.0.self_attn.q_proj.weight": ("F16", 4, 4)
                for side in ("encoder", "decoder")
            },
            "it has several stacks of layers, decoder.layers. and encoder.layers.",
        ),
        (
            {"x.0.norm.weight": ("F16", 40), "x.0.attn.q_proj.weight": ("F16", 96, 40)},
            "the sizes of the keys and values of x.0.attn are undecided",
        ),
    ],
)
def test_attention_that_is_not_recognized_is_undecided(tensors, problem):
    with pytest.raises(ModelError) as caught:
        anatomy_of_tensors(made(tensors))
    assert problem in caught.value.message


def test_a_new_decoder_is_described_by_its_tensors_and_its_length_by_its_configuration():
    config = {
        "model_type": "brand_new",
        "architectures": ["BrandNewForCausalLM"],
        "torch_dtype": "float16",
    }
    config["max_position_embeddings"] = 777
    found, source, _ = anatomy_of_checkpoint(config, made(UNKNOWN))
    assert source == "the names and shapes of its tensors"
    assert (found.longest, found.dtype, found.n_layer) == (777, "float16", 3)
    assert found.layers[0].cache.per_token == 24 + 18
    assert anatomy_of_checkpoint(None, made(UNKNOWN))[0].layers == found.layers


@pytest.mark.parametrize(
    ("config", "tensors"),
    [
        ({"model_type": "brand_new", "architectures": ["BrandNewModel"]}, UNKNOWN),  # perhaps an encoder
        (
            {"model_type": "xlnet", "architectures": ["XLNetLMHeadModel"]},
            UNKNOWN,
        ),  # keeps something else
        ({"model_type": "brand_new", "architectures": ["BrandNewForCausalLM"]}, None),
        (None, None),
    ],
)
def test_a_model_that_nothing_describes_is_refused(config, tensors):
    with pytest.raises(ModelError):
        anatomy_of_checkpoint(config, None if tensors is None else made(tensors))


def test_a_contradiction_is_told_beside_the_anatomy(tmp_path, monkeypatch):
    headers, config = save("llama", tmp_path, monkeypatch)
    assert anatomy_of_checkpoint(config, headers) == (anatomy_of(config), "config.json", ())
    *_, findings = anatomy_of_checkpoint({**config, "head_dim": 24}, headers)
    assert any("W_K has 40 columns, not 48" in finding.message for finding in findings)


def test_files_of_gguf_are_compared_with_their_own_metadata():
    keys = {"block_count": 1, "embedding_length": 40, "attention.head_count": 12}
    keys |= {"attention.head_count_kv": 3, "attention.key_length": 8, "attention.value_length": 6}
    names = {"attn_norm": (40,), "attn_q": (96, 40), "attn_k": (24, 40), "attn_v": (18, 40)}
    tensors = {f"blk.0.{name}.weight": ("F16", *sizes) for name, sizes in names.items()}
    metadata = {f"x.{key}": value for key, value in keys.items()} | {"general.architecture": "x"}
    headers = made(tensors, "GGUF", metadata)
    assert not contradictions(anatomy_of_gguf(headers), headers, headers.metadata)
    wrong = made(tensors, "GGUF", metadata | {"x.attention.key_length": 10})
    (finding, other) = contradictions(anatomy_of_gguf(wrong), wrong, wrong.metadata)
    assert "3 key heads of 10, but W_K has 24 columns, not 30" in finding.message + other.message
    json.dumps([finding.message, other.message])


def test_a_new_type_whose_fields_are_not_those_of_its_class_is_read_from_its_tensors(
    tmp_path, monkeypatch
):
    _, config = save("llama", tmp_path, monkeypatch)
    new = {**config, "model_type": "newest", "architectures": ["LlamaForCausalLM"]}
    (tmp_path / "config.json").write_text(json.dumps(new))
    assert card(tmp_path, context=9).source == "config.json"
    (tmp_path / "config.json").write_text(json.dumps({**new, "layer_types": ["whirl"] * 4}))
    found = card(tmp_path, context=9)
    assert found.source == "the names and shapes of its tensors"
    assert not any("architectures" in each for each in found.notices)
