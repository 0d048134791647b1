"""One head's weights, in Python: the same as the command line's, for names, files and loaded models."""

from __future__ import annotations

import json

import numpy as np
import pytest
import torch
from transformers import AutoModel

from attnscope import head_weights, read_head
from attnscope.base.errors import ModelError
from tests.model.run.readers import save_reader


@pytest.fixture(scope="module")
def folders(tmp_path_factory):
    made = {}

    def folder(family):
        if family not in made:
            made[family] = tmp_path_factory.mktemp("models") / family
            save_reader(family, made[family])
        return made[family]

    return folder


@pytest.mark.few(2)
@pytest.mark.parametrize(
    ("family", "options", "flags"),
    [
        ("bert", {}, []),
        ("bert", {"layer": 1, "head": 2}, ["--layer", "1", "--head", "2"]),
        ("bert", {"circuits": True}, ["--circuits"]),
        ("bert", {"verify": True}, ["--verify"]),
        (
            "gpt2",
            {"layer": 1, "verify": True, "circuits": True},
            ["--layer", "1", "--verify", "--circuits"],
        ),
        ("t5", {"stack": "cross"}, ["--stack", "cross"]),
    ],
    ids=str,
)
def test_the_record_is_the_one_of_the_command_line(attnscope, folders, family, options, flags):
    printed = attnscope("model", folders(family), *flags, "--format", "json").json
    assert json.loads(json.dumps(head_weights(folders(family), **options).to_dict())) == printed


def test_read_head_is_the_same(folders):
    assert read_head(folders("bert"), layer=1, head=2) == head_weights(folders("bert"), 1, 2)


def test_what_was_not_asked_for_is_none(folders):
    head = head_weights(folders("bert"))
    assert (head.checks, head.circuits) == (None, None)


@pytest.mark.parametrize("circuits", [False, True])
def test_tables_are_saved_as_the_command_line_prints_them(attnscope, folders, tmp_path, circuits):
    head = head_weights(folders("gpt2"), circuits=circuits)
    for suffix, format in ((".json", "json"), (".csv", "csv"), (".md", "markdown")):
        head.save(tmp_path / f"x{suffix}")
        printed = attnscope("model", folders("gpt2"), *["--circuits"][:circuits], "--format", format).out
        assert (tmp_path / f"x{suffix}").read_text() == printed, suffix


def test_a_weight_is_found_by_its_name(folders):
    head = head_weights(folders("bert"), 1, 2)
    assert (head["W_Q"].name, head["W_Q"].dims) == ("W_Q", ("d_head", "d_feat"))
    assert head["b_O"].dims == ("d_feat",)
    with pytest.raises(KeyError, match="W_X"):
        head["W_X"]


@pytest.mark.parametrize("suffix", [".safetensors", ".npz", ".pt"])
def test_weights_are_saved_as_the_command_line_saves_them(attnscope, folders, tmp_path, suffix):
    a, b = tmp_path / f"a{suffix}", tmp_path / f"b{suffix}"
    attnscope("model", folders("gpt2"), "--save", a)
    head_weights(folders("gpt2")).save(b)
    if suffix == ".safetensors":
        assert a.read_bytes() == b.read_bytes()
    else:
        load = torch.load if suffix == ".pt" else np.load
        ours, theirs = load(b), load(a)
        assert list(ours.keys()) == list(theirs.keys())
        assert all(np.array_equal(ours[name], theirs[name]) for name in theirs)


def test_a_file_of_weights_is_its_folder(folders):
    folder = folders("bert")
    assert head_weights(folder / "model.safetensors") == head_weights(folder)
    with pytest.raises(ModelError, match="is a file, but a model is a folder"):
        head_weights(folder / "config.json")


# A loaded model


@pytest.mark.parametrize("family", ["bert", "gpt2", "llama", "t5", "albert", "deberta-v2"])
def test_a_loaded_model_has_the_weights_of_its_folder(folders, family):
    model = AutoModel.from_pretrained(folders(family))
    ours, theirs = (head_weights(each, head=1) for each in (model, folders(family)))
    assert [each.name for each in ours.weights] == [each.name for each in theirs.weights]
    for own, other in zip(ours.weights, theirs.weights, strict=True):
        assert np.array_equal(own.array, other.array), own.name
        assert own.dims == other.dims


def test_a_loaded_model_is_verified_and_left_as_it_was(folders):
    model = AutoModel.from_pretrained(folders("bert")).train()
    before = {name: (id(each), each.dtype) for name, each in model.state_dict(keep_vars=True).items()}
    state = torch.get_rng_state()
    head = head_weights(model, 1, 2, verify=True)
    assert all(check.ok for check in head.checks)
    after = {name: (id(each), each.dtype) for name, each in model.state_dict(keep_vars=True).items()}
    assert before == after
    assert model.training
    assert model.config._attn_implementation == "sdpa"
    assert not any(module._forward_hooks for module in model.modules())
    assert torch.equal(state, torch.get_rng_state())


def test_a_tokenizer_is_not_needed(folders):
    assert head_weights(AutoModel.from_pretrained(folders("bert")), verify=True).checks
