"""Families name their matrices as the table says: asked of models that transformers builds."""

import pytest
from transformers import AutoConfig, AutoModel

from attnscope.errors import ModelError
from attnscope.models.layouts import LAYOUTS, PARTS, locate

SIZES = {
    "vocab_size": 50,
    "hidden_size": 12,
    "num_hidden_layers": 2,
    "num_attention_heads": 3,
    "intermediate_size": 20,
    "embedding_size": 12,
}


@pytest.mark.parametrize("family", ["bert", "roberta", "electra"])
def test_each_familys_matrices_are_found(family):
    model = AutoModel.from_config(AutoConfig.for_model(family, **SIZES))
    names = list(model.state_dict())
    located = locate(names, family)
    assert (located.n_layer, located.prefix) == (2, "")
    for part in PARTS:
        for layer in (0, 1):
            assert located.tensor(part, layer, "weight") in names
            assert located.tensor(part, layer, "bias") in names
            assert model.get_submodule(located.module(part, layer)).weight.shape == (12, 12)


def test_what_stands_before_the_layout_is_found():
    names = [f"model.text.encoder.layer.{i}.attention.self.query.weight" for i in range(12)]
    located = locate(names, "x")
    assert (located.prefix, located.n_layer) == ("model.text.", 12)


def test_cross_attention_is_not_taken_for_self_attention():
    with pytest.raises(ModelError, match="has no attention weights"):
        locate(["encoder.layer.0.crossattention.self.query.weight"], "x")


def test_every_layout_names_all_four_projections():
    for layout in LAYOUTS:
        assert tuple(layout.modules) == PARTS
