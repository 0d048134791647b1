"""A loaded model is run as a copy, which shares its weights and leaves it alone."""

import pytest
import torch
from transformers import AutoModel, BertForMaskedLM

from attnscope.base.errors import ModelError
from attnscope.model.files.loaded import find_model
from attnscope.model.run.load import (
    device_of,
    load_config,
    load_eager,
    load_image_processor,
    load_model,
    load_tokenizer,
)
from tests.model.run.tiny import tiny_config


def loaded(family="bert", **options):
    torch.manual_seed(0)
    return AutoModel.from_config(tiny_config(family), **options)


def copy_of(model, **options):
    found = find_model(model)
    return load_model(found, load_config(found), **options)


def test_a_copy_shares_the_weights_and_nothing_else():
    model = loaded().train()
    copy = copy_of(model)
    for (name, own), (_, other) in zip(
        model.state_dict(keep_vars=True).items(), copy.state_dict(keep_vars=True).items(), strict=True
    ):
        assert own is other, name
    assert (model.training, copy.training) == (True, False)
    assert copy.config is not model.config
    assert copy.encoder.config is copy.config


def test_tied_weights_stay_tied():
    model = BertForMaskedLM(tiny_config("bert"))
    copy = copy_of(model, dtype="float64")
    assert copy.cls.predictions.decoder.weight is copy.bert.embeddings.word_embeddings.weight
    assert copy.dtype == torch.float64
    assert model.dtype == torch.float32


def test_hooks_run_in_the_copy_too():
    model, seen = loaded(), []
    model.encoder.register_forward_hook(lambda module, *_: seen.append(module))
    copy = copy_of(model)
    copy(input_ids=torch.tensor([[1, 2, 3]]))
    assert seen == [copy.encoder]


@pytest.mark.parametrize("attention", ["sdpa", "eager"])
def test_a_copy_computes_what_the_model_computes(attention):
    model = loaded(attn_implementation=attention).eval()
    ids = torch.tensor([[1, 2, 3]])
    copy = copy_of(model)
    assert copy.config._attn_implementation == attention
    assert torch.equal(copy(ids).last_hidden_state, model(ids).last_hidden_state)


def test_an_attention_that_cannot_be_observed_becomes_torchs_own():
    model = loaded()
    model.config._attn_implementation = "flex_attention"
    assert copy_of(model).config._attn_implementation == "sdpa"
    assert model.config._attn_implementation == "flex_attention"


def test_an_eager_copy_leaves_the_model_with_its_weights():
    model = loaded()
    found = find_model(model)
    eager = load_eager(found, load_model(found, load_config(found)), instead=True)
    assert eager.config._attn_implementation == "eager"
    assert model.config._attn_implementation == "sdpa"
    assert all(parameter.numel() for parameter in model.parameters())


def test_a_loaded_model_stays_where_it_is_unless_another_device_is_named():
    found = find_model(loaded())
    assert (device_of(found, "cpu"), device_of(found, "cuda")) == ("cpu", "cuda")


def test_what_was_not_given_with_a_loaded_model_is_told():
    found = find_model(loaded())
    with pytest.raises(ModelError, match="was given without a tokenizer"):
        load_tokenizer(found)
    with pytest.raises(ModelError, match="was given without an image processor"):
        load_image_processor(found)
