"""How two models attend, or one model to two texts, compared with transformers' own weights."""

from __future__ import annotations

import copy
import json
import shutil

import numpy as np
import pytest
import torch
from peft import LoraConfig, get_peft_model
from transformers import AutoModel, AutoTokenizer

from attnscope import compare_maps
from attnscope.base.errors import ModelError, OptionError
from tests.model.run.families import build

TEXT = "The cat sat on the mat."
OTHER = "The dog sat by the mat."


@pytest.fixture(scope="module")
def loaded(minilm):
    """The bundled model with eager attention, in float64, and its tokenizer."""
    model = AutoModel.from_pretrained(minilm, attn_implementation="eager", dtype=torch.float64)
    return model.eval(), AutoTokenizer.from_pretrained(minilm)


@torch.no_grad()
def weights_of(model, tokenizer, text) -> torch.Tensor:
    """Return transformers' own weights: `n_layer n_head n_Q n_K`."""
    outputs = model(**tokenizer(text, return_tensors="pt"), output_attentions=True)
    return torch.cat(outputs.attentions)


def with_noise(model, layer: int = 2, head: int = 5):
    """A copy in which one head's W_Q is another."""
    changed = copy.deepcopy(model)
    torch.manual_seed(3)
    with torch.no_grad():
        weight = changed.encoder.layer[layer].attention.self.query.weight
        weight[32 * head : 32 * head + 32] += 0.1 * torch.randn(32, 384, dtype=weight.dtype)
    return changed


def assert_distances(table, one: torch.Tensor, other: torch.Tensor):
    for row in table.rows:
        a, b = one[row.layer, row.head], other[row.layer, row.head]
        n = len(a)
        distances = [0.5 * sum(abs(float(b[q, k] - a[q, k])) for k in range(n)) for q in range(n)]
        assert row.values["change"] == pytest.approx(sum(distances) / n, abs=1e-6)
        assert row.values["largest"] == pytest.approx(max(distances), abs=1e-6)
        change = (b - a).abs()
        for each in table.strongest[row.layer, row.head][:1]:
            assert change[each.query, each.key] == pytest.approx(float(change.max()), abs=1e-6)
            assert each.a == pytest.approx(float(a[each.query, each.key]), abs=1e-6)
            assert each.b == pytest.approx(float(b[each.query, each.key]), abs=1e-6)


@pytest.mark.sweep
def test_distances_of_two_models_are_those_of_their_own_weights(loaded):
    model, tokenizer = loaded
    changed = with_noise(model)
    table = compare_maps(model, changed, TEXT, tokenizer=tokenizer)
    assert_distances(table, weights_of(model, tokenizer, TEXT), weights_of(changed, tokenizer, TEXT))
    assert {row.layer for row in table.changed} == {2, 3, 4, 5}  # layer 2 changes what later layers read
    assert [(row.layer, row.head) for row in table.changed if row.layer == 2] == [(2, 5)]


def test_distances_of_two_texts_are_those_of_the_models_own_weights(loaded):
    model, tokenizer = loaded
    table = compare_maps(model, text=TEXT, other_text=OTHER, tokenizer=tokenizer)
    assert_distances(table, weights_of(model, tokenizer, TEXT), weights_of(model, tokenizer, OTHER))
    assert table.two_texts
    assert table.title.endswith(": text A → text B")


def test_equal_models_have_equal_maps():
    table = compare_maps("minilm", "minilm", TEXT, layers=[1, 3], heads="0-4")
    assert {value for row in table.rows for value in row.values.values()} == {0}
    assert [(row.layer, row.head) for row in table.rows] == [(i, j) for i in (1, 3) for j in range(5)]
    assert not table.changed
    assert not any(table.strongest.values())


def test_an_adapter_is_merged_as_peft_merges_it(minilm, tmp_path):
    model = AutoModel.from_pretrained(minilm)
    tokenizer = AutoTokenizer.from_pretrained(minilm)
    before = copy.deepcopy(model.state_dict())
    torch.manual_seed(4)
    config = LoraConfig(r=3, lora_alpha=9, target_modules=["query", "value"], init_lora_weights=False)
    tuned = get_peft_model(copy.deepcopy(model), config)
    tuned.save_pretrained(tmp_path)
    merged = tuned.merge_and_unload()
    options = {"dtype": "float64", "layers": [0, 5]}
    expected = compare_maps(model, merged, TEXT, tokenizer=tokenizer, **options)
    for base, own in (("minilm", None), (model, tokenizer)):
        table = compare_maps(base, text=TEXT, adapter=tmp_path, tokenizer=own, **options)
        for row, other in zip(table.rows, expected.rows, strict=True):
            assert row.values == pytest.approx(other.values, abs=1e-6)
        assert table.adapter == str(tmp_path)
    assert all(torch.equal(tensor, before[name]) for name, tensor in model.state_dict().items())


def test_an_encoder_decoder_is_compared_in_the_stack_that_is_named():
    model, ids = build("bart"), [5, 7, 9, 11]
    changed = copy.deepcopy(model)
    with torch.no_grad():
        changed.encoder.layers[0].self_attn.q_proj.weight[8:16] += 1
    table = compare_maps(model, changed, ids=ids, stack="encoder")
    assert table.layers == {"encoder": (2, 3)}
    assert [(row.layer, row.head) for row in table.changed if row.layer == 0] == [(0, 1)]


def test_grouped_heads_and_masked_keys_are_compared_too():
    model, ids = build("llama"), [5, 7, 9, 11, 13]
    changed = copy.deepcopy(model)
    with torch.no_grad():
        changed.layers[1].self_attn.k_proj.weight[8:] *= 2
    table = compare_maps(model, changed, ids=ids)
    assert [(row.layer, row.head) for row in table.changed] == [(1, 3), (1, 4), (1, 5)]
    for row in table.changed:
        assert all(each.key <= each.query for each in table.strongest[row.layer, row.head])


ERRORS = [
    ({"a": "minilm", "text": TEXT}, "there is one model and one text"),
    ({"a": "minilm", "b": "minilm", "text": TEXT, "other_text": OTHER}, "two models and two texts"),
    ({"a": "minilm", "text": TEXT, "other_text": "A cat."}, "text A has 9 tokens, text B has 5"),
    ({"a": "minilm", "b": "minilm", "text": TEXT, "sort": "changes"}, "there is no metric changes"),
]


@pytest.mark.parametrize(("options", "message"), ERRORS)
def test_what_cannot_be_compared_is_an_error(options, message):
    with pytest.raises((OptionError, ModelError), match=message):
        compare_maps(**options)


def test_models_with_other_layers_are_an_error():
    with pytest.raises(ModelError, match="A has 2 layers, B has 3"):
        compare_maps(build("bert"), build("bert", num_hidden_layers=3), ids=[3, 4, 5])


def test_models_that_read_other_tokens_are_an_error(minilm, tmp_path, monkeypatch):
    shutil.copytree(minilm, tmp_path / "cased")
    path = tmp_path / "cased/tokenizer.json"
    settings = json.loads(path.read_text(encoding="utf-8"))
    settings["normalizer"]["lowercase"] = False
    path.write_text(json.dumps(settings), encoding="utf-8")
    config = tmp_path / "cased/tokenizer_config.json"
    config.write_text(json.dumps(json.loads(config.read_text()) | {"do_lower_case": False}))
    monkeypatch.chdir(tmp_path)
    with pytest.raises(ModelError, match=r"token 1 is 'the' in minilm and '\[UNK\]' in cased"):
        compare_maps("minilm", "cased", "The cat")


def test_maps_are_kept_whole():
    table = compare_maps("minilm", text=TEXT, other_text=OTHER, layers=0, heads=[1, 2])
    assert [each.attention.shape for each in table.of_a.maps] == [(9, 9), (9, 9)]
    assert np.allclose(table.of_b.maps[0].attention.sum(1), 1)


@pytest.mark.sweep
def test_two_texts_of_one_model_may_be_passed_as_they_are_read():
    named = compare_maps("minilm", text="The cat sat.", other_text="The dog ran.").to_dict()
    assert compare_maps("minilm", "The cat sat.", "The dog ran.").to_dict() == named
    assert compare_maps("minilm", None, "The cat sat.", "The dog ran.").to_dict() == named


def test_of_models_in_16_bits_rounding_makes_no_difference():
    """The same weights stored in bfloat16 and in float32 have the same maps."""
    narrow = build("gpt2").to(torch.bfloat16)
    wide = copy.deepcopy(narrow).float()
    table = compare_maps(narrow, wide, ids=[3, 9, 4, 17, 8])
    assert table.changed == []
    assert any("stored in bfloat16, and both ran in float32" in each for each in table.notices)
    explicit = compare_maps(narrow, wide, ids=[3, 9, 4, 17, 8], dtype="bfloat16")
    assert any("small differences may be its rounding" in each for each in explicit.notices)
    assert not any("16" in each for each in compare_maps(wide, wide, ids=[3, 9]).notices)
