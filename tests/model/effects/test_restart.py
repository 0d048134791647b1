"""Further runs compute only what a change can reach: the layers from its own on, the positions from its own on."""

from collections import Counter

import pytest
import torch

import attnscope
from attnscope.model.effects.baseline import Baseline, LayerOutputs, layers_of
from tests.model.effects.families import build
from tests.sweeps import swept

IDS = [5, 9, 12, 3, 17, 9, 21, 8]


def counted(model, names):
    """Count the tokens that some modules of a model read."""
    counts = Counter()

    def count(name):
        return lambda module, arguments, options: counts.update(
            {name: (arguments[0] if arguments else options["hidden_states"]).shape[:2].numel()}
        )

    for name in names:
        model.get_submodule(name).register_forward_pre_hook(count(name), with_kwargs=True)
    return counts


@pytest.fixture
def model():
    return build("llama")


def test_layers_are_those_of_the_outermost_lists(model):
    assert list(layers_of(model)) == ["model.layers.0", "model.layers.1"]
    assert "decoder.block.0" in layers_of(build("t5"))
    assert not any(name.startswith("decoder.block.0.") for name in layers_of(build("t5")))


def test_layers_before_the_change_are_not_run_again(model):
    layers = [f"model.layers.{index}.mlp" for index in range(2)]
    counts = counted(model, layers)
    attnscope.effects(model, ids=IDS, answer=7, columns="zero", layers=0)
    first = dict(counts)
    counts.clear()
    attnscope.effects(model, ids=IDS, answer=7, columns="zero", layers=1)
    n_head = model.config.num_attention_heads
    assert first[layers[1]] - counts[layers[1]] == 0
    assert first[layers[0]] - counts[layers[0]] == n_head * len(IDS)


def test_positions_before_the_change_are_not_run_again(model):
    counts = counted(model, ["model.layers.1.mlp"])
    attnscope.effects(model, ids=IDS, answer=7, columns="zero", at="last")
    last = counts["model.layers.1.mlp"]
    counts.clear()
    attnscope.effects(model, ids=IDS, answer=7, columns="zero")
    assert last < counts["model.layers.1.mlp"] / 2


FAMILIES = "llama gpt2 mistral bert t5 gpt_oss gemma2 jamba qwen3_next gemma3n_text".split()


@pytest.mark.few(1)
@pytest.mark.parametrize("family", swept(FAMILIES, default=["llama", "bert"]))
def test_runs_from_a_position_on_have_the_same_effects(family, monkeypatch):
    of = build(family)
    arguments = {"ids": IDS, "answer": 7, "columns": "zero,mean"}
    if family == "bert":
        arguments["position"] = 7
    if family == "t5":
        arguments["stack"] = "decoder"
    found = [
        attnscope.effects(of, **arguments, each_position=True),
        attnscope.effects(of, **arguments, at="0" if family == "t5" else "5-6"),
    ]
    monkeypatch.setattr(Baseline, "first_computed", lambda self, positions: 0)
    monkeypatch.setattr(Baseline, "restarts", False)
    whole = [
        attnscope.effects(of, **arguments, each_position=True),
        attnscope.effects(of, **arguments, at="0" if family == "t5" else "5-6"),
    ]
    for one, other in zip(found, whole, strict=True):
        for row in one.rows:
            same = other[row.stack, row.layer, row.head]
            assert row.values == pytest.approx(same.values, abs=1e-5)
    assert found[0].positions["zero"] == pytest.approx(whole[0].positions["zero"], abs=1e-5)


def test_a_cache_that_forgets_is_not_cut(model):
    """A window of three keys keeps two; runs from the last position on are right, others begin at 0."""
    of = build("mistral", sliding_window=3)
    baselines = []
    original = Baseline.first_computed

    def first_computed(self, positions):
        baselines.append((positions, original(self, positions)))
        return baselines[-1][1]

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(Baseline, "first_computed", first_computed)
        attnscope.effects(of, ids=IDS, answer=7, columns="zero", each_position=True)
    firsts = dict(baselines)
    assert firsts[(7,)] == 7
    assert {first for positions, first in firsts.items() if positions != (7,)} == {0}


def test_a_layer_that_runs_twice_is_never_skipped():
    of = build("albert")
    states = LayerOutputs(of)
    with states.recorded(), torch.no_grad():
        of(torch.tensor([IDS]))
    assert states.repeats
