"""Audits of models: correct ones hold, and planted mistakes are found in the right layer."""

from __future__ import annotations

import pytest
import torch
from influence import planted
from transformers import AutoConfig, AutoModel

import attnscope
from attnscope.errors import ModelError

HELD = {
    "llama": "causal coverage padding packed batch cache kernels",
    "gpt2": "causal coverage padding packed batch cache kernels",
    "gpt_neox": "causal coverage padding packed batch cache kernels",
    "mistral": "causal window coverage padding packed batch cache kernels",
    "gemma3_text": "causal window coverage padding packed batch cache kernels",
    "bert": "bidirectional coverage padding batch kernels",
}


def statuses(audit: attnscope.Audit) -> dict[str, str]:
    return {each.name: each.status for each in audit.properties}


@pytest.mark.parametrize("family", HELD)
def test_a_correct_model_has_every_property_that_it_promises(family):
    audit = attnscope.audit(planted.model(family))
    held = {name for name, status in statuses(audit).items() if status == "holds"}
    assert held == set(HELD[family].split())
    assert not audit.broken
    assert not [each for each in audit.properties if each.status == "undecided"]
    assert audit.n_forward <= 40


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float64], ids=str)
def test_a_correct_model_holds_in_every_dtype(dtype):
    audit = attnscope.audit(planted.model("qwen3", dtype))
    assert not audit.broken
    assert "undecided" not in statuses(audit).values()


@pytest.mark.parametrize("family", ["llama", "gpt2", "gpt_neox", "qwen3", "mistral"])
def test_a_layer_without_its_mask_is_found(family):
    broken = attnscope.audit(planted.without_mask(planted.model(family), 2))["causal"]
    assert broken.status == "broken"
    assert broken.evidence.layer == 2
    assert broken.evidence.line.expression.startswith("torch.nn.functional.scaled_dot_product")


@pytest.mark.parametrize(
    ("family", "wrong", "layer", "code"),
    [
        ("llama", planted.Mean, 1, "x.mean(1, keepdim=True)"),
        ("gpt2", planted.LookAhead, 3, "self.conv(x.transpose(1, 2))"),
        ("mistral", planted.Mean, 0, "x.mean(1, keepdim=True)"),
        ("gpt_neox", planted.LookAhead, 2, "self.conv(x.transpose(1, 2))"),
        ("qwen3", planted.Normed, 1, "self.norm(x.transpose(1, 2))"),
    ],
)
def test_what_mixes_positions_is_found_with_its_line(family, wrong, layer, code):
    broken = attnscope.audit(planted.insert(planted.model(family), layer, wrong()))["causal"]
    assert broken.status == "broken"
    assert broken.evidence.layer == layer
    assert broken.evidence.line.expression == code
    assert broken.evidence.line.file.endswith("planted.py")
    assert ("in training" in broken.found) == (wrong is planted.Normed)


def test_a_mask_that_is_off_by_one_is_found_in_its_layer():
    wide = planted.with_mask(planted.model("llama"), 1, lambda seen: torch.ones_like(seen).tril(1))
    evidence = attnscope.audit(wide)["causal"].evidence
    assert evidence.layer == 1
    assert evidence.influence.wrong == [(query, query + 1) for query in range(60)]


def test_keys_without_weight_are_found_in_their_layer():
    def dead(seen: torch.Tensor) -> torch.Tensor:
        n = len(seen)
        return seen & (torch.arange(n) != 3) | torch.eye(n, dtype=torch.bool)

    broken = attnscope.audit(planted.with_mask(planted.model("gpt2"), 3, dead))["coverage"]
    assert broken.status == "broken"
    assert broken.evidence.layer == 3
    assert "query 4 does not see key 3 in layer 3" in broken.found


@pytest.mark.parametrize("kernel", ["sdpa", "eager"])
def test_a_window_that_one_kernel_ignores_is_found(kernel):
    with planted.window_ignored("mistral", kernel):
        audit = attnscope.audit(planted.model("mistral"))
    assert audit["kernels"].status == "broken"
    assert audit["kernels"].evidence.layer == 0
    assert audit["window"].status == ("broken" if kernel == "sdpa" else "holds")
    shown = audit["kernels"].evidence.influence
    differ = {(query, key) for query in range(61) for key in range(query - 7)}
    if kernel == "sdpa":  # the model's own sees too much, so that others see too little
        assert (set(shown.missing), shown.wrong) == (differ, [])
    else:
        assert (set(shown.wrong), shown.missing) == (differ, [])


def test_a_padding_mask_of_one_head_is_found_in_its_layer():
    broken = attnscope.audit(planted.padding_of_one_head(planted.model("bert"), 2))["padding"]
    assert broken.status == "broken"
    assert broken.evidence.layer == 2
    assert "what the padding on the right contains moves" in broken.found
    shown = broken.evidence.influence
    assert shown.wrong == [(query, key) for query in range(30) for key in range(30, 35)]
    assert shown.missing == []


def test_positions_that_ignore_padding_and_the_cache_are_found():
    audit = attnscope.audit(planted.own_positions(planted.model("gpt2")))
    assert audit["padding"].status == "broken"
    assert "the positions are counted from the padding" in audit["padding"].found
    assert audit["padding"].evidence.influence is None, "its mask is right"
    assert audit["cache"].status == "broken"
    assert audit["causal"].status == "holds"


def test_packed_rows_without_a_block_mask_are_found_if_an_option_names_them():
    model = planted.rows_not_blocked(planted.model("qwen3"))
    assert attnscope.audit(model)["packed"].status == "not applicable"
    broken = attnscope.audit(model, packed=True)["packed"]
    assert broken.status == "broken"
    assert broken.evidence.layer == 0
    assert broken.evidence.influence.wrong == [
        (query, key) for query in range(31, 61) for key in range(31)
    ]


def test_options_say_what_a_model_should_be():
    audit = attnscope.audit(planted.model("bert"), causal=True)
    assert audit["causal"].status == "broken"
    assert audit["causal"].source == "--causal"
    audit = attnscope.audit(planted.model("llama"), window=8)
    assert audit["window"].status == "broken"
    assert "query 60 sees key 0 in layer 0" in audit["window"].found


def test_a_window_longer_than_the_text_is_undecided():
    audit = attnscope.audit(planted.model("mistral", sliding_window=100))
    assert audit["window"].status == "undecided"
    assert "--length 102" in audit["window"].found
    audit = attnscope.audit(planted.model("mistral", sliding_window=100), length=102)
    assert audit["window"].status == "holds"


def test_an_audit_leaves_the_model_as_it_was():
    model = planted.insert(planted.model("llama"), 1, planted.Normed())
    before = {name: tensor.clone() for name, tensor in model.state_dict().items()}
    attnscope.audit(model)
    after = model.state_dict()
    assert all(torch.equal(tensor, after[name]) for name, tensor in before.items())
    assert model.config._attn_implementation == "sdpa"
    assert not model.training


def test_a_window_that_only_the_cache_knows_is_found():
    """Moshi's layers see everything, and its cache forgets what is outside of the window."""
    model = planted.model("mistral")
    for layer in planted.layers(model):
        planted.attention(layer).sliding_window = None
    with planted.window_ignored("mistral", "sdpa"):
        audit = attnscope.audit(model)
    assert audit["window"].status == audit["cache"].status == "broken"


def test_a_short_text_gets_another_mask_and_is_tested_too():
    """Within a window, transformers passes no mask, and relies on the module's `is_causal`."""
    model = planted.model("mistral")
    planted.attention(planted.layers(model)[1]).is_causal = False
    broken = attnscope.audit(model)["causal"]
    assert broken.status == "broken"
    assert broken.found.startswith("with 7 tokens, ")
    assert broken.evidence.layer == 1


def test_a_thorough_audit_finds_what_breaks_at_one_length_alone():
    def change(args, kwargs):
        x = args[0] if args else kwargs["hidden_states"]
        return args, kwargs | ({"attention_mask": None} if x.shape[1] == 9 else {})

    model = planted.model("mistral")
    planted.patched(planted.attention(planted.layers(model)[2]), change)
    assert not attnscope.audit(model).broken
    broken = attnscope.audit(model, thorough=True, length=17)["window"]
    assert broken.status == "broken"
    assert broken.found.startswith("with 9 tokens, ")
    assert broken.evidence.layer == 2


def test_a_model_that_is_not_deterministic_is_refused():
    class Random(torch.nn.Module):
        calls = 0

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            Random.calls += 1
            return x + Random.calls

    with pytest.raises(ModelError, match="two runs on the same text differ"):
        attnscope.audit(planted.insert(planted.model("llama"), 1, Random()))


def test_positions_that_see_nothing_else_are_found_without_the_registry():
    config = AutoConfig.for_model("rembert", **planted.SIZES, input_embedding_size=36)
    model = AutoModel.from_config(config).eval()
    assert attnscope.audit(model)["bidirectional"].status == "holds"
    for layer in model.encoder.layer:
        planted.patched(layer.attention, self_attention_alone)
    broken = attnscope.audit(model)["bidirectional"]
    assert broken.status == "broken"
    assert "does not move position 1, nor any other" in broken.found


def self_attention_alone(args, kwargs):
    """Let each position see itself alone."""
    x = args[0]
    n = x.shape[1]
    mask = torch.full((n, n), -1e9, dtype=x.dtype).fill_diagonal_(0)
    return args[:1], kwargs | {"attention_mask": mask}
