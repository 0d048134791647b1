"""The type of a decoder follows from the whole, from its class, from the user, or from a list of types."""

import json

import pytest

import attnscope
from attnscope.base.errors import ModelError, OptionError

SIZES = {
    "hidden_size": 96,
    "num_hidden_layers": 5,
    "num_attention_heads": 6,
    "num_key_value_heads": 2,
    "head_dim": 16,
    "max_position_embeddings": 640,
    "dtype": "bfloat16",
}


def numbers(fields):
    """Return the numbers of a token in all layers of full attention: 2 · n_layer · n_kv_head · d_head."""
    return 2 * fields["num_hidden_layers"] * fields["num_key_value_heads"] * fields["head_dim"]


@pytest.fixture
def card(tmp_path):
    def of(config, **options):
        file = tmp_path / "config.json"
        file.write_text(json.dumps(config))
        return attnscope.card(file, **options)

    return of


@pytest.mark.parametrize("model_type", ["qwen3_vl", "minimax_m3_vl", "llava", "gemma3"])
def test_a_part_without_a_type_has_that_of_its_place_in_the_whole(card, model_type):
    part = (
        {**SIZES, "sliding_window": 64, "sliding_window_pattern": 6} if model_type == "gemma3" else SIZES
    )
    found = card({"model_type": model_type, "text_config": part})
    typed = {"llava": "llama"}.get(model_type, f"{model_type}_text")
    again = card({"model_type": model_type, "text_config": part | {"model_type": typed}})
    assert (found.n_layer, found.d_feat, found.longest, found.dtype) == (5, 96, 640, "bfloat16")
    assert found.bytes_per_token == again.bytes_per_token == 2 * numbers(SIZES)
    assert found.model_type == again.model_type == typed


def test_a_part_has_the_dtype_of_the_whole_unless_it_has_its_own(card):
    part = {name: value for name, value in SIZES.items() if name != "dtype"} | {"model_type": "qwen3"}
    whole = {"model_type": "qwen3_asr", "thinker_config": {"text_config": part, "dtype": "float16"}}
    assert card(whole).dtype == "float16"
    part["dtype"] = "float32"
    assert card(whole).dtype == "float32"


@pytest.mark.parametrize(
    ("config", "notice"),
    [
        ({**SIZES, "architectures": ["LlamaForCausalLM"]}, "config.json has no model_type: it is read as llama, whose class"),
        ({**SIZES, "model_type": "mine", "architectures": ["LlamaForCausalLM"]}, "its model type 'mine' is not known: it is read as llama, whose class"),
        ({"model_type": "mine_vl", "text_config": {**SIZES, "model_type": "mine", "architectures": ["LlamaForCausalLM"]}}, "its model type 'mine' is not known: it is read as llama"),
        ({"model_type": "mine_vl", "thinker_config": {"text_config": {**SIZES, "model_type": "qwen3_asr_text"}}}, "'qwen3_asr_text' is not known: it is read as a decoder of full attention"),
        ({**SIZES, "model_type": "internlm2"}, "'internlm2' is not known: it is read as a decoder of full attention, by its fields"),
    ],
)  # fmt: skip
def test_a_type_that_is_not_known_is_read_by_what_else_is_said_and_a_notice_says_so(
    card, config, notice
):
    found = card(config)
    assert notice in found.notices[0]
    assert found.bytes_per_token == 2 * numbers(SIZES)


def test_a_type_that_is_read_as_another_is_shown_under_its_own_name(card):
    remote = {**SIZES, "model_type": "internlm2"}
    assert card(remote).model_type == "internlm2"
    assert "as llama is" in card(remote).notices[0]
    assert card({**remote, "model_type": "mine"}, like="qwen2").model_type == "mine"
    named = {**SIZES, "architectures": ["LlamaForCausalLM"]}
    assert card(named | {"model_type": "mine"}).model_type == "mine"
    assert card(named).model_type == "llama"  # the file names none


def test_authors_names_of_fields_are_those_of_transformers(card):
    found = card(
        {
            "model_type": "chatglm",
            "hidden_size": 96,
            "num_layers": 5,
            "num_attention_heads": 6,
            "kv_channels": 16,
            "multi_query_attention": True,
            "multi_query_group_num": 2,
            "seq_length": 640,
            "torch_dtype": "bfloat16",
        }
    )
    assert (found.n_layer, found.longest, found.bytes_per_token) == (5, 640, 2 * numbers(SIZES))
    old_phi = {
        "model_type": "phi-msft",
        "architectures": ["PhiForCausalLM"],
        "n_embd": 96,
        "n_layer": 5,
        "n_head": 6,
    }
    assert (card(old_phi).n_layer, card(old_phi).d_feat) == (5, 96)


def test_what_is_read_by_its_fields_alone_has_no_weights_no_base_and_no_check(card):
    ordinary = {**SIZES, "model_type": "baichuan", "vocab_size": 99, "intermediate_size": 200}
    found = card(ordinary)
    assert found.weights is None
    assert found.kinds[0].rope_theta is None
    with pytest.raises(OptionError, match="transformers does not know the type"):
        card(ordinary, verify=True)


def test_a_type_that_nobody_knows_is_refused_until_the_user_says_what_it_is_like(card):
    config = {**SIZES, "model_type": "unheard_of", "vocab_size": 99, "intermediate_size": 200}
    with pytest.raises(ModelError, match="'unheard_of' is undecided") as caught:
        card(config)
    assert 'like="llama"' in caught.value.hint
    found = card(config, like="llama")
    assert found.notices[0].startswith("it is read as llama")
    assert found.bytes_per_token == 2 * numbers(SIZES)
    with pytest.raises(OptionError, match="there is no such model type"):
        card(config, like="lama")


def test_rwkv_5_is_not_the_rwkv_of_transformers(card):
    config = {"hidden_size": 64, "num_hidden_layers": 2, "architectures": ["RwkvForCausalLM"]}
    with pytest.raises(ModelError, match="rwkv5 is RWKV 5, and the rwkv of transformers is RWKV 4"):
        card(config | {"model_type": "rwkv5"}, context=10)
    assert card(config | {"model_type": "rwkv"}, context=10).n_layer == 2


def test_sizes_that_are_defaults_of_a_class_are_listed(card):
    found = [each for each in card({"model_type": "llama"}).notices if "defaults of" in each]
    of_weights, line = sorted(found, key=lambda each: each.startswith("not"))
    assert of_weights.endswith("with defaults of llama: intermediate_size 11,008, vocab_size 32,000")
    assert line == (
        "not in config.json, but defaults of llama: num_hidden_layers 32, rope_theta 10,000,"
        " num_attention_heads 32, hidden_size 4,096, max_position_embeddings 2,048"
    )
    said = {**SIZES, "model_type": "llama", "rope_theta": 50, "intermediate_size": 64, "vocab_size": 70}
    assert not [each for each in card(said).notices if "defaults" in each]


def test_heads_that_cannot_share_keys_are_refused(card):
    with pytest.raises(ModelError, match="6 heads of queries and 4 of keys"):
        card({**SIZES, "model_type": "llama", "num_key_value_heads": 4})


@pytest.mark.parametrize("value", [-5, [50], "50", True])
def test_positions_of_whisper_that_are_no_number_are_refused(card, value):
    with pytest.raises(ModelError, match="max_source_positions"):
        card({"model_type": "whisper", "max_source_positions": value}, context=9)
    assert card({"model_type": "whisper", "max_source_positions": 50}, context=9).n_source == 50


def test_ten_million_kinds_of_layers_take_no_memory(card):
    with pytest.raises(ModelError, match="attention_types"):
        card({"model_type": "gpt_neo", "num_layers": 2, "attention_types": [[["global"], 10**12]]})


def test_sparse_layers_of_minimax_keep_keys_of_their_indexer(card):
    sparse = {
        "sparse_attention_freq": [0, 0, 1, 1, 1],
        "sparse_index_dim": 24,
        "sparse_num_index_heads": 3,
    }
    part = {**SIZES, "model_type": "minimax_m3_vl_text", "sparse_attention_config": sparse}
    found = card({"model_type": "minimax_m3_vl", "text_config": part})
    assert found.bytes_per_token == 2 * (numbers(SIZES) + 3 * 24)


def test_an_adapter_and_a_pipeline_are_refused_with_the_model_to_ask_for(tmp_path):
    for folder, name, content, message, hint in (
        ("a", "adapter_config.json", {"base_model_name_or_path": "owner/base"}, "is an adapter of owner/base", "attnscope card owner/base"),
        ("l", "adapter_config.json", {"base_model_name_or_path": "owner/base", "peft_type": "LORA"}, "is a LoRA adapter of owner/base", "attnscope card owner/base"),
        ("p", "model_index.json", {"_class_name": "Pipe", "unet": ["diffusers", "U"], "text": ["transformers", "T"]}, "is a pipeline of diffusers (Pipe)", "p/text"),
    ):  # fmt: skip
        (tmp_path / folder / "text").mkdir(parents=True)
        (tmp_path / folder / "text" / "config.json").write_text("{}")
        (tmp_path / folder / name).write_text(json.dumps(content))
        for asked in (tmp_path / folder, tmp_path / folder / name):
            with pytest.raises(ModelError) as caught:
                attnscope.card(asked)
            assert message in caught.value.message
            assert caught.value.hint.endswith(hint)


def test_an_index_without_its_files_says_how_large_they_are(tmp_path):
    fields = {
        "model_type": "llama",
        "num_key_value_heads": 8,
        "max_position_embeddings": 8192,
        "dtype": "bfloat16",
    }
    (tmp_path / "config.json").write_text(json.dumps(fields))
    index = {
        "metadata": {"total_size": 10**9},
        "weight_map": {"a": "model-00001-of-00002.safetensors", "b": "model-00002-of-00002.safetensors"},
    }
    (tmp_path / "model.safetensors.index.json").write_text(json.dumps(index))
    found = attnscope.card(tmp_path, memory="2GB")
    assert found.fit.weights == 10**9
    assert any("files that its index lists are not here" in each for each in found.notices)


def test_a_card_is_that_of_a_configuration_a_loaded_model_or_a_dict(card):
    from transformers import LlamaConfig, LlamaModel

    fields = {**SIZES, "model_type": "llama", "vocab_size": 99, "intermediate_size": 200}
    of_file = card(fields)
    config = LlamaConfig(**fields)
    for model in (fields, config, LlamaModel(config)):
        assert attnscope.card(model).bytes_per_token == of_file.bytes_per_token
    several = attnscope.cards(fields, config, context=7)
    assert [each.bytes_per_token for each in several.cards] == 2 * [of_file.bytes_per_token]
    for wrong in ({1: 2}, 3.5, b"x", None, {1}):
        with pytest.raises(OptionError):
            attnscope.card(wrong)


def test_defaults_that_decide_states_and_rotary_bases_are_listed(card):
    named = {**SIZES, "model_type": "qwen3_5_text"}
    (line,) = [each for each in card(named).notices if each.startswith("not in config.json")]
    for each in ("linear_num_key_heads 16", "linear_value_head_dim 128", "rope_theta 10,000"):
        assert each in line
    own = {"linear_num_key_heads": 2, "linear_num_value_heads": 4, "linear_conv_kernel_dim": 3}
    own |= {"linear_key_head_dim": 7, "linear_value_head_dim": 9, "rope_theta": 50}
    assert not any(each.startswith("not in config.json") for each in card(named | own).notices)


def test_a_field_beside_the_part_that_lacks_it_is_not_replaced_by_a_default(card):
    part = {name: value for name, value in SIZES.items() if name != "num_hidden_layers"}
    part["model_type"] = "qwen3"
    whole = {"model_type": "llava", "text_config": part}
    with pytest.raises(
        ModelError, match=r"no num_hidden_layers .* 32 by default, but 7 beside its part"
    ):
        card({**whole, "num_hidden_layers": 7})
    assert card(whole).n_layer == 32
    assert card({**whole, "text_config": {**part, "num_hidden_layers": 7}}).n_layer == 7


def test_a_field_by_another_name_is_not_replaced_by_a_default(card):
    named = {**SIZES, "model_type": "llama"}
    del named["num_hidden_layers"]
    with pytest.raises(ModelError, match=r"32 by default, but 7 by another name"):
        card({**named, "n_layer": 7})
    assert card({**named, "n_layer": 7, "num_hidden_layers": 7}).n_layer == 7


def test_a_width_that_heads_do_not_divide_is_refused(card):
    named = {**SIZES, "model_type": "llama"}
    del named["head_dim"]
    with pytest.raises(ModelError, match="6 heads for a width of 97"):
        card({**named, "hidden_size": 97})
    assert card(named).kinds[0].d_K == 16


@pytest.mark.parametrize(
    "window", [{"sliding_window": 4, "use_sliding_window": False}, {"sliding_window": 640}]
)
def test_a_window_that_is_not_used_is_not_shown(card, window):
    """Phi-3-vision's files have one."""
    named = {**SIZES, "model_type": "phi3_v", "architectures": ["Phi3VForCausalLM"]}
    assert [each.kind for each in card({**named, **window}).kinds] == ["full"]
    with pytest.raises(ModelError, match="undecided"):
        card({**named, "sliding_window": 4})


def test_a_field_of_another_kind_of_attention_is_named_and_not_read_as_llamas(card):
    """Nemotron-NAS' blocks may have no attention at all."""
    named = {**SIZES, "model_type": "nemotron-nas"}
    with pytest.raises(ModelError, match="its block_configs is of another kind") as error:
        card({**named, "block_configs": [{"attention": {"no_op": True}}]})
    assert "llama" not in str(error.value.hint)
    with pytest.raises(ModelError, match="attnscope does not know it") as error:
        card(named)
    assert "llama" in str(error.value.hint)


def test_the_blocks_of_nemotron_nas_say_the_heads_of_each_layer(card):
    def block(**attention):
        return {"attention": {"n_heads_in_group": None, "no_op": False, **attention}}

    blocks = [block(n_heads_in_group=3), block(no_op=True), block(n_heads_in_group=6)]
    blocks += [block(replace_with_linear=True), block(n_heads_in_group=3)]
    named = {**SIZES, "model_type": "nemotron-nas", "num_key_value_heads": None}
    found = card({**named, "block_configs": blocks})
    assert {each.kind for each in found.kinds} == {"full", "none"}
    assert {i: each.n_kv_head for each in found.kinds for i in each.layers} == {
        0: 2, 1: None, 2: 1, 3: None, 4: 2
    }  # fmt: skip
    assert found.bytes_per_token == 2 * 2 * 16 * (2 + 1 + 2)
    assert found.model_type == "nemotron-nas"
    assert "that its block_configs say" in found.notices[0]
    for other in (
        {"n_heads_in_group": 4},
        {"n_heads_in_group": 3, "window_length": 7},
        {"no_op": "no"},
        {},
    ):
        with pytest.raises(ModelError, match="its block_configs is of another kind"):
            card({**named, "block_configs": [*blocks[:4], block(**other)]})


def test_a_whole_of_several_parts_may_have_its_text_beside_them(card):
    """step3p7 of transformers has a text_config of type step3p5; files of others are flat."""
    kinds = ["full_attention", "sliding_attention"] * 2 + ["full_attention"]
    named = {**SIZES, "model_type": "step3p7", "layer_types": kinds, "sliding_window": 64}
    found = card(named)
    assert (found.model_type, found.n_layer) == ("step3p5", 5)
    assert any("the text part of step3p7" in each for each in found.notices)


def test_architectures_say_the_type_of_a_whole(card):
    whole = {"architectures": ["Qwen3VLForConditionalGeneration"], "text_config": SIZES}
    found = card(whole)
    assert (found.model_type, found.n_layer) == ("qwen3_vl_text", 5)
    assert any("no model_type: it is read as qwen3_vl" in each for each in found.notices)
