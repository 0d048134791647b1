"""A loaded model can be used in place of a checkpoint's files."""

import pytest
import torch
from transformers import BertModel

from attnscope.base.errors import ModelError, OptionError
from attnscope.model.files.checkpoint import Checkpoint
from attnscope.model.files.loaded import LoadedModel, find_model
from attnscope.model.weights.head_weights import read_head


@pytest.fixture
def loaded(small_bert):
    folder, _ = small_bert()
    return folder, BertModel.from_pretrained(folder)


def test_a_name_and_a_folder_are_found_as_always(small_bert):
    folder, _ = small_bert()
    assert find_model(str(folder)) == find_model(folder) == Checkpoint(str(folder), folder)
    assert find_model(find_model(folder)) == find_model(folder)


def test_a_loaded_model_is_called_by_where_it_was_loaded_from(loaded):
    folder, model = loaded
    found = find_model(model, tokenizer="tokenizer")
    assert isinstance(found, LoadedModel)
    assert (found.name, found.module, found.tokenizer) == (str(folder), model, "tokenizer")
    assert find_model(BertModel(model.config.__class__(num_hidden_layers=1))).name == "BertModel"


def test_a_compiled_model_is_the_one_that_was_compiled(loaded):
    _, model = loaded
    assert find_model(torch.compile(model)).module is model


@pytest.mark.parametrize("model", [torch.nn.Linear(2, 2), 7, {"config": 1}])
def test_what_transformers_did_not_load_is_refused(model):
    with pytest.raises(OptionError, match=rf"but this is a {type(model).__name__}\."):
        find_model(model)


def test_a_tokenizer_goes_with_a_loaded_model_alone(small_bert):
    folder, _ = small_bert()
    with pytest.raises(OptionError, match="tokenizer= is for a loaded model"):
        find_model(folder, tokenizer="tokenizer")


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_the_weights_of_a_loaded_model_are_those_that_it_has_now(loaded, dtype):
    _, model = loaded
    model.to(dtype)
    head = read_head(find_model(model), layer=0, head=1)
    query = model.encoder.layer[0].attention.self.query.weight
    d_head = head.d_head
    assert head.weights[0].dtype == str(dtype).removeprefix("torch.")
    bits = query[d_head : 2 * d_head].detach()
    stored = torch.from_numpy(head.weights[0].array.copy())
    if dtype == torch.bfloat16:
        stored = stored.view(torch.bfloat16)
    assert torch.equal(stored, bits)


def test_what_was_read_of_a_loaded_model_does_not_change_with_it(loaded):
    _, model = loaded
    head = read_head(find_model(model), layer=0)
    before = head.weights[0].array.copy()
    with torch.no_grad():
        model.encoder.layer[0].attention.self.query.weight.add_(1)
    assert (head.weights[0].array == before).all()


def test_weights_without_values_are_refused(loaded):
    _, model = loaded
    with pytest.raises(ModelError, match="has no values: it is on the meta device"):
        read_head(find_model(model.to("meta")), layer=0)
