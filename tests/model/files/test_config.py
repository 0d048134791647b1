"""A config.json is called damaged only if transformers could not have written it."""

import json

import pytest
from transformers import CONFIG_MAPPING

from attnscope.base.errors import ModelError
from attnscope.model.card.from_config import anatomy_of
from attnscope.model.files.config import check_settings, own_fields, read_config

WITHOUT_DEFAULTS = {"gemma4_assistant", "nougat"}
"""Types whose class cannot be built without fields."""
SEVERAL_STACKS = {"lxmert"}


@pytest.mark.parametrize(
    "model_types",
    [
        ["bert", "glm5_next", "llama", "mamba2", "xlm"],
        pytest.param(
            sorted(set(CONFIG_MAPPING) - WITHOUT_DEFAULTS - SEVERAL_STACKS), marks=pytest.mark.sweep
        ),
    ],
    ids=["some", "all"],
)
def test_what_transformers_writes_is_not_damaged(model_types, tmp_path):
    for model_type in model_types:
        config = CONFIG_MAPPING[model_type]()
        for with_defaults in (False, True):
            fields = json.loads(config.to_json_string(use_diff=not with_defaults))
            check_settings(tmp_path / model_type, fields)


def test_several_stacks_in_one_field_are_named(tmp_path):
    CONFIG_MAPPING["lxmert"](l_layers=2, x_layers=1, r_layers=3).save_pretrained(tmp_path)
    with pytest.raises(ModelError) as caught:
        read_config(tmp_path / "config.json")
    assert "describes several stacks of layers (num_hidden_layers: " in caught.value.message
    assert {"3 of vision", "1 of cross_encoder", "2 of language"} == set(
        caught.value.message.partition("layers: ")[2].partition(")")[0].split(", ")
    )
    assert caught.value.message.endswith("which attnscope does not read.")


@pytest.mark.parametrize("value", [{}, {"a": "x"}, "12", -1, 10**9, [3, -1], True])
def test_a_number_of_layers_that_transformers_does_not_write_is_damaged(value, tmp_path):
    (tmp_path / "config.json").write_text(
        json.dumps({"model_type": "llama", "num_hidden_layers": value})
    )
    with pytest.raises(ModelError, match="is damaged: num_hidden_layers is "):
        read_config(tmp_path / "config.json")


@pytest.mark.parametrize("n_layer", [6, 12, 102])
def test_layers_of_their_own_are_found_whatever_zeros_their_numbers_have(n_layer, tmp_path):
    config = CONFIG_MAPPING["gemma4_text"](num_hidden_layers=n_layer, head_dim=256)
    config.save_pretrained(tmp_path)
    fields = read_config(tmp_path / "config.json")
    read = [own_fields(fields, layer).get("head_dim", 256) for layer in range(n_layer)]
    assert read == [config.per_layer_config[layer].head_dim for layer in range(n_layer)]
    assert {256, 512} == set(read)
    assert [each.d_K for each in anatomy_of(fields).layers] == read
