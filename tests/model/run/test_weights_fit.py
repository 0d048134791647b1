"""A config.json that the tensors contradict is refused before a model of its sizes is built."""

import json

import pytest

from attnscope.base.errors import ModelError
from attnscope.model.files.checkpoint import find_checkpoint
from attnscope.model.run.load import load_config, load_model, load_processor
from attnscope.model.weights.head_weights import head_weights
from tests.model.answers.families import family
from tests.model.run.readers import save_reader
from tests.torture.files import copy_links


def changed(folder, to, name, change):
    """A copy of a model with one of its JSON files changed."""
    copy = copy_links(folder, to, but=name)
    content = json.loads((folder / name).read_text())
    change(content)
    (copy / name).write_text(json.dumps(content))
    return find_checkpoint(str(copy))


def loaded(checkpoint):
    return load_model(checkpoint, load_config(checkpoint))


@pytest.mark.parametrize(
    ("change", "error"),
    [
        (lambda c: c.pop("text_config"), r"of shape \(\d+, \d+\), but its config.json requires"),
        (lambda c: c["vision_config"].update(image_size=40_000), r"requires \(\d+, \d+\)"),
        (lambda c: c["text_config"].update(hidden_size=10**6), r"requires \(\d+, 1000000\)"),
        (lambda c: c["text_config"].update(num_hidden_layers=90_000), "has num_hidden_layers 90,000"),
    ],
)
def test_sizes_that_the_tensors_do_not_have_are_refused(tmp_path, change, error):
    with pytest.raises(ModelError, match=error):
        loaded(changed(family("llava"), tmp_path / "a", "config.json", change))


@pytest.mark.parametrize("name", ["bert", "gpt2", "llama", "t5"])
def test_models_with_their_own_sizes_are_loaded(tmp_path, name):
    save_reader(name, tmp_path / "a")
    assert loaded(find_checkpoint(str(tmp_path / "a")))


def test_heads_of_a_default_that_does_not_fit_are_refused(tmp_path):
    checkpoint = changed(family("llava"), tmp_path / "a", "config.json", lambda c: c.pop("text_config"))
    with pytest.raises(
        ModelError, match=r"32 heads of a model with d_feat 4096, is not that of its tens"
    ):
        head_weights(str(checkpoint.folder), 0, 0)
    assert head_weights(str(family("llava")), 0, 0).n_head


@pytest.mark.parametrize(
    ("setting", "value"),
    [("size", {"shortest_edge": 10**6}), ("crop_size", {"height": 0, "width": 32}), ("patch_size", "x")],
)
def test_settings_of_a_processor_are_checked_before_it_is_built(tmp_path, setting, value):
    def change(content):
        content.get("image_processor", content)[setting] = value

    checkpoint = changed(family("llava"), tmp_path / "a", "processor_config.json", change)
    with pytest.raises(
        ModelError, match=r"processor_config.json of .* is damaged: .* a whole number from"
    ):
        load_processor(checkpoint)
