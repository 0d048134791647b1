"""Fields that differ between layers are read layer by layer, as transformers asks for."""

import pytest
import torch
from transformers import Gemma4TextConfig, LlamaConfig

from attnscope.base.errors import ModelError
from attnscope.model.files.checkpoint import Checkpoint
from attnscope.model.files.heads import open_heads
from attnscope.model.run.layers import field_of, values_of
from attnscope.model.run.memory_plan import needs_of

LAYERS = ["sliding_attention", "full_attention", "sliding_attention", "full_attention"]
SMALL = {
    "vocab_size": 99, "vocab_size_per_layer_input": 99, "hidden_size": 24, "intermediate_size": 40,
    "num_hidden_layers": 4, "num_attention_heads": 3, "num_key_value_heads": 1, "head_dim": 6, "global_head_dim": 10,
    "num_global_key_value_heads": 1, "hidden_size_per_layer_input": 5, "sliding_window": 7,
    "max_position_embeddings": 64, "layer_types": LAYERS, "num_kv_shared_layers": 0,
}  # fmt: skip


def gemma(**more):
    return Gemma4TextConfig(**SMALL, **more)


def test_a_field_that_differs_is_that_of_its_layer():
    config = gemma()
    widths = [config.per_layer_config[i].head_dim for i in range(4)]
    assert len(set(widths)) == 2
    assert values_of(config, "head_dim") == widths
    assert [field_of(config, "head_dim", i) for i in range(4)] == widths
    assert field_of(config, "head_dim", None) == widths[0]


def test_a_field_that_all_layers_share_is_read_once():
    config = LlamaConfig(hidden_size=24, num_attention_heads=3, num_hidden_layers=4)
    assert values_of(config, "num_attention_heads") == [3]
    assert field_of(config, "num_attention_heads", 2) == 3
    assert values_of(config, "no_such_field") == [None]


def test_memory_is_planned_for_a_model_whose_layers_differ():
    needs = needs_of(gemma(), 4, 1, 50)
    assert needs.masks == 2 * 50 * 50  # a mask of a window, and its copy
    assert needs.activations > 0


@pytest.fixture
def saved(tmp_path):
    from transformers import Gemma4TextModel

    def save(**more):
        torch.manual_seed(0)
        model = Gemma4TextModel(gemma(**more))
        model.save_pretrained(tmp_path / "gemma")
        return model, open_heads(Checkpoint("gemma", tmp_path / "gemma"))

    return save


def test_the_weights_of_a_layer_with_wider_heads_are_sliced_by_its_own_width(saved):
    model, heads = saved()
    for layer in (0, 1):
        module = model.layers[layer].self_attn
        found = {each.name: each for each in heads.layer(layer).weights(2)}
        expected = module.q_proj.weight.view(3, -1, 24)[2]
        assert torch.equal(torch.tensor(found["W_Q"].array[:]), expected)
    assert heads.layer(0).d_head != heads.layer(1).d_head


def test_values_that_are_keys_have_the_matrix_of_the_keys(saved):
    model, heads = saved(attention_k_eq_v=True)
    assert model.layers[1].self_attn.v_proj is None
    found = {each.name: each.tensor for each in heads.layer(1).weights(0)}
    assert found["W_V"] == found["W_K"]
    own = {each.name: each.tensor for each in heads.layer(0).weights(0)}
    assert own["W_V"].endswith("v_proj.weight")


def test_a_layer_that_takes_the_keys_of_another_one_says_so(tmp_path, saved):
    more = {**SMALL, "num_kv_shared_layers": 2}
    from transformers import Gemma4TextModel

    model = Gemma4TextModel(Gemma4TextConfig(**more))
    model.save_pretrained(tmp_path / "shared")
    heads = open_heads(Checkpoint("shared", tmp_path / "shared"))
    with pytest.raises(ModelError, match="layer 3 of shared has no keys and values of its own"):
        heads.layer(3)
    assert heads.layer(1).d_head
