"""Parameters of transformers' model without values, beside the headers of the same model, saved."""

import json

import pytest
import torch
from transformers import AutoModelForCausalLM, AutoModelForImageTextToText, AutoModelForSeq2SeqLM

from attnscope.base.errors import ModelError
from attnscope.model.card.card import card
from attnscope.model.card.checkpoint_tensors import count_weights
from attnscope.model.card.meta_model import count_without_values
from attnscope.model.files.headers import read_headers
from attnscope.model.files.model_files import find_model_files
from tests.model.run import tiny

FAMILIES = {
    "gemma3_text": AutoModelForCausalLM,
    "qwen3_next": AutoModelForCausalLM,
    "jamba": AutoModelForCausalLM,
    "gpt_oss": AutoModelForCausalLM,
    "deepseek_v2": AutoModelForCausalLM,
    "t5": AutoModelForSeq2SeqLM,
    "llava": AutoModelForImageTextToText,
}


@pytest.mark.few(4)
@pytest.mark.parametrize("family", FAMILIES)
def test_a_model_without_values_has_the_parts_of_its_saved_weights(family, tmp_path):
    model = FAMILIES[family].from_config(tiny.tiny_config(family)).to(torch.bfloat16)
    model.save_pretrained(tmp_path)
    files = find_model_files(tmp_path)
    saved = count_weights(read_headers(files), files.config())
    config = json.loads((tmp_path / "config.json").read_text())
    found = count_without_values(config, "bfloat16")
    assert (found.attention, found.rest, found.dtypes) == (saved.attention, saved.rest, saved.dtypes)
    assert found.n_active == saved.n_active
    assert (found.source, saved.source) == ("transformers", "headers")


def test_bytes_are_not_known_without_a_dtype():
    config = {"model_type": "gpt2", "n_embd": 12, "n_head": 2, "n_layer": 1, "vocab_size": 7}
    assert count_without_values(config, None).n_bytes is None
    assert count_without_values(config, "float32").n_bytes is not None


def test_a_model_that_transformers_does_not_have_is_refused():
    with pytest.raises(ModelError, match="transformers cannot build it: ValueError: "):
        count_without_values({"model_type": "newest"}, None)


JAMBA = {"model_type": "jamba", "torch_dtype": "bfloat16", "max_position_embeddings": 4096}


def test_transformers_is_asked_only_where_a_card_needs_the_size(tmp_path):
    """Jamba: 52B parameters, of which 12B are active (arXiv:2403.19887, section 1)."""
    file = tmp_path / "config.json"
    file.write_text(json.dumps(JAMBA))
    alone, asked = card(file), card(file, memory="200G")
    assert alone.weights is None
    assert any("(verify counts those of transformers' model)" in each for each in alone.notices)
    assert round(asked.weights.n_parameter / 1e9) == 52
    assert round(asked.weights.n_active / 1e9) == 12
    assert asked.fit.weights == asked.weights.n_bytes == 2 * asked.weights.n_parameter
    (defaults,) = asked.notices
    assert defaults.startswith("not in config.json, but defaults of jamba")
