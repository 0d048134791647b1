"""What a layer computes beside its projections, according to the config.json of published models."""

from __future__ import annotations

from typing import Any

import pytest

from attnscope.base.errors import ModelError
from attnscope.model.families import formula
from attnscope.model.families.formula import LayerFormula, formula_of
from attnscope.model.families.table import ARCHITECTURE_ROWS, FAMILIES, ROWS
from attnscope.model.files.heads import Heads
from attnscope.model.files.layouts import LAYOUTS, find_stacks
from attnscope.model.files.tensors import Weights

D_HEAD = 16
N_LAYER = 30


class Names(Weights):
    """Tensors of which only the names matter."""

    def __init__(self, names: list[str]) -> None:
        self.all = names

    @property
    def names(self) -> list[str]:
        return self.all

    def read(self, name: str) -> Any:
        raise AssertionError(f"{name} was read")


def read(
    config, layer, *extras, place="model.layers.{}.self_attn.", modules="q_proj k_proj v_proj o_proj"
):
    """Return the formula of a layer of a checkpoint that has these tensors, too."""
    names = [f"{place.format(n)}{name}.weight" for n in range(N_LAYER) for name in modules.split()]
    names += [place.format(layer) + name for name in extras]
    (stack,) = find_stacks(names, config, "model")
    return formula_of(Heads("model", config, Names(names), stack, 4), layer, D_HEAD)


LLAMA_3 = {
    "model_type": "llama",
    "rope_theta": 500000.0,
    "rope_scaling": {"rope_type": "llama3", "factor": 8.0, "original_max_position_embeddings": 8192},
}
QWEN_2 = {
    "model_type": "qwen2",
    "rope_theta": 1000000.0,
    "sliding_window": 32768,
    "use_sliding_window": False,
    "max_window_layers": 28,
}
MISTRAL = {"model_type": "mistral", "rope_theta": 10000.0, "sliding_window": 4096}
GEMMA_2 = {
    "model_type": "gemma2",
    "rope_theta": 10000.0,
    "sliding_window": 4096,
    "query_pre_attn_scalar": 144,
    "attn_logit_softcapping": 50.0,
    "num_hidden_layers": N_LAYER,
}
SMOLLM_3 = {
    "model_type": "smollm3",
    "rope_theta": 2000000.0,
    "no_rope_layers": None,
    "use_sliding_window": False,
    "num_hidden_layers": N_LAYER,
}
MODERNBERT = {
    "model_type": "modernbert",
    "global_attn_every_n_layers": 3,
    "num_hidden_layers": N_LAYER,
    "local_attention": 128,
    "global_rope_theta": 160000.0,
    "local_rope_theta": 10000.0,
}
PYTHIA = {"model_type": "gpt_neox", "rotary_pct": 0.25, "rotary_emb_base": 10000}
FUSED = {"place": "h.{}.self_attention.", "modules": "query_key_value dense"}
NEOX = {"place": "layers.{}.attention.", "modules": "query_key_value dense"}
BERT = {"place": "layers.{}.attn.", "modules": "Wqkv Wo"}
GPT_2 = {"place": "h.{}.attn.", "modules": "c_attn c_proj"}


@pytest.mark.parametrize(
    ("config", "layer", "names", "expected"),
    [
        (
            LLAMA_3,
            0,
            {},
            {"rope_theta": 5e5, "missing": ("the scaling of its rotary positions (llama3)",)},
        ),
        (QWEN_2, 29, {}, {"rope_theta": 1e6}),
        (MISTRAL, 3, {}, {"rope_theta": 1e4, "window": (4095, 0)}),
        (MISTRAL | {"sliding_window": None}, 3, {}, {"rope_theta": 1e4}),
        (
            PYTHIA,
            1,
            NEOX,
            {"missing": ("its rotary positions, which rotate only 0.25 of each head",)},
        ),
        (
            {"model_type": "falcon", "alibi": True, "rope_theta": 1e4},
            1,
            FUSED,
            {"missing": (formula.ALIBI,)},
        ),
        ({"model_type": "gpt2"}, 4, GPT_2, {}),
        ({"model_type": "gpt2", "scale_attn_weights": False}, 4, GPT_2, {"scale": 1.0}),
        ({"model_type": "gpt2", "scale_attn_by_inverse_layer_idx": True}, 4, GPT_2, {"scale": 1 / 20}),
    ],
)
def test_published_configurations_are_read_without_transformers(
    monkeypatch, config, layer, names, expected
):
    monkeypatch.setattr(formula, "completed", None)
    found = read(config, layer, **names)
    assert found == LayerFormula(causal=True, family=config["model_type"], **expected)


@pytest.mark.parametrize(
    ("config", "layer", "names", "expected"),
    [
        (GEMMA_2, 2, {}, {"window": (4095, 0), "rope_theta": 1e4, "scale": 1 / 12, "softcap": 50}),
        (GEMMA_2, 3, {}, {"rope_theta": 1e4, "scale": 1 / 12, "softcap": 50}),
        (SMOLLM_3, 2, {}, {"rope_theta": 2e6}),
        (SMOLLM_3, 3, {}, {}),
        (MODERNBERT, 3, BERT, {"rope_theta": 160000}),
        (MODERNBERT, 4, BERT, {"rope_theta": 10000, "window": (64, 64)}),
    ],
)
def test_the_kinds_of_layers_that_a_configuration_lacks_are_those_of_transformers(
    config, layer, names, expected
):
    is_causal = config is not MODERNBERT
    assert read(config, layer, **names) == LayerFormula(
        is_causal, family=config["model_type"], **expected
    )


def test_a_field_that_is_missing_and_unknown_is_named(monkeypatch):
    monkeypatch.setattr(formula, "completed", lambda _: None)
    found = read({"model_type": "granite", "rope_theta": 1e4}, 0)
    assert found.missing == (
        "what depends on attention_multiplier, which its config.json does not give",
    )
    assert (found.causal, found.rope_theta, found.family) == (False, None, None)


@pytest.mark.parametrize(
    ("field", "value", "expected"),
    [
        ("rope_theta", "big", "a number above 0"),
        ("rope_theta", -1, "a number above 0"),
        ("sliding_window", 7.5, "a whole number above 0"),
        ("sliding_window", True, "a whole number above 0"),
        ("query_pre_attn_scalar", 0, "a number above 0"),
        ("layer_types", ["full_attention"], "a list with an entry for each layer"),
        ("layer_types", "full_attention", "a list with an entry for each layer"),
        ("attention_types", [["global"], 3], "a list with an entry for each layer"),
        ("attention_types", [[["global"], 1]], "a list with an entry for each layer"),
    ],
)
def test_a_damaged_field_is_named(field, value, expected):
    config = GEMMA_2 | {"layer_types": ["sliding_attention"] * N_LAYER, field: value}
    with pytest.raises(ModelError) as caught:
        read(config, 1)
    assert caught.value.message == (
        f"the config.json of model is damaged: {field} is {value!r}, but must be {expected}."
    )
    rope = {"rope_parameters": {"full_attention": {"rope_theta": value}}}
    if field == "rope_theta":
        with pytest.raises(ModelError, match="rope_theta is"):
            read(config | rope | {"rope_theta": 1.0}, 1)


def test_tensors_that_are_no_projections_are_named():
    config = {"model_type": "qwen3", "rope_theta": 1e6, "sliding_window": None}
    found = read(
        config, 2, "k_norm.weight", "q_norm.weight", "sinks", "rotary_emb.inv_freq", "g_proj.weight"
    )
    assert found.missing == (
        "the norms of its Q and K (k_norm and q_norm)",
        "its sinks (sinks)",
        "what it does with g_proj",
    )
    assert not read(config, 3).missing
    buffers = read({"model_type": "gpt2"}, 1, "bias", "masked_bias", **GPT_2)
    assert not buffers.missing


def test_an_unknown_model_type_has_neither_mask_nor_positions():
    config = {"model_type": "alpaca", "rope_theta": 1e6, "sliding_window": 7, "query_pre_attn_scalar": 9}
    assert read(config, 0, "q_norm.weight") == LayerFormula(
        missing=("the norms of its Q and K (q_norm)",)
    )


@pytest.mark.parametrize(
    ("more", "causal"),
    [({}, False), ({"is_decoder": True}, True), ({"position_embedding_type": "relative_key"}, False)],
)
def test_bert_is_causal_as_a_decoder_and_says_that_relative_positions_are_left_out(more, causal):
    config = {"model_type": "bert", **more}
    names = {
        "place": "encoder.layer.{}.attention.",
        "modules": "self.query self.key self.value output.dense",
    }
    found = read(config, 0, "output.LayerNorm.weight", "output.LayerNorm.bias", **names)
    missing = ("its relative position embeddings",) if "position_embedding_type" in more else ()
    assert found == LayerFormula(causal, missing=missing, family="bert")


def test_each_type_and_each_architecture_has_one_row():
    architectures = [name for names in ARCHITECTURE_ROWS for name in names.split()]
    run_as = [kind for row in ARCHITECTURE_ROWS.values() for kind in (row.types or "").split()]
    types = [name for names in ROWS for name in names.split()]
    for listed in (types, architectures, run_as):
        assert len(listed) == len(set(listed))


def test_layouts_of_one_family_alone_are_named_in_its_row():
    reserved = {layout.family for layout in LAYOUTS if layout.reserved}
    assert {family.layout for family in FAMILIES.values()} - {""} == reserved
