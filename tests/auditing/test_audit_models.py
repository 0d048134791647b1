"""Audits of models: correct ones hold, and planted mistakes are found in the right layer."""

from __future__ import annotations

import pytest
import torch
from transformers import AutoConfig, AutoModel

import attnscope
from attnscope.auditing.models.causal import causal
from attnscope.auditing.models.subject import Texts
from attnscope.auditing.of_model import probe_of
from attnscope.auditing.options import Properties
from attnscope.base.errors import ModelError
from tests.auditing import planted

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


@pytest.mark.few(1)
@pytest.mark.parametrize("family", HELD)
def test_a_correct_model_has_every_property_that_it_promises(family):
    audit = attnscope.audit(planted.model(family))
    held = {name for name, status in statuses(audit).items() if status == "holds"}
    assert held == set(HELD[family].split())
    assert not audit.broken
    assert not [each for each in audit.properties if each.status == "undecided"]
    assert audit.n_forward <= 40


@pytest.mark.few(1)
@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float64], ids=str)
def test_a_correct_model_holds_in_every_dtype(dtype):
    audit = attnscope.audit(planted.model("qwen3", dtype))
    assert not audit.broken
    assert "undecided" not in statuses(audit).values()


@pytest.mark.few(1)
@pytest.mark.parametrize("family", ["llama", "gpt2", "gpt_neox", "qwen3", "mistral"])
def test_a_layer_without_its_mask_is_found(family):
    broken = attnscope.audit(planted.without_mask(planted.model(family), 2))["causal"]
    assert broken.status == "broken"
    assert broken.evidence.layer == 2
    assert broken.evidence.line.expression.startswith("torch.nn.functional.scaled_dot_product")


@pytest.mark.few(1)
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


@pytest.mark.sweep
def test_the_line_is_found_where_a_text_has_as_many_tokens_as_a_state_has_numbers():
    leaky = planted.insert(planted.model("llama"), 1, planted.LookAhead())
    for n in (leaky.config.hidden_size, 7):
        probe = probe_of("leaky", leaky, Texts(leaky.config), Properties(), n)
        broken = causal(probe, lambda: True)
        assert broken.evidence.line.expression == "self.conv(x.transpose(1, 2))"


def see_one_more(layer, args, output):
    """Let position 2 of a layer see position 3."""
    output = output.clone()
    output[:, 2] += 0.1 * output[:, 3]
    return output


@pytest.mark.sweep
def test_a_single_pair_of_positions_that_leaks_is_found():
    model = planted.model("llama")
    assert attnscope.audit(model)["causal"].found.startswith("changing tokens from each of 60 positions")
    planted.layers(model)[2].register_forward_hook(see_one_more)
    broken = attnscope.audit(model)["causal"]
    assert broken.found == "changing tokens from position 3 on moves position 2"
    assert broken.evidence.layer == 2
    assert broken.evidence.influence.wrong == [(2, 3)]


@pytest.mark.sweep
def test_changed_texts_are_no_rows_of_a_batch_whose_rows_mix():
    class Mixed(torch.nn.Module):
        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return x + 0.1 * x.mean(0, keepdim=True)

    audit = attnscope.audit(planted.insert(planted.model("gpt2"), 1, Mixed()))
    assert audit["batch"].status == "broken"
    assert audit["causal"].status == "holds"


@pytest.mark.sweep
def test_of_a_long_text_some_positions_are_changed_and_their_number_is_said():
    found = attnscope.audit(planted.model("gpt2"), length=127)["causal"].found
    assert "from 64 of 126 positions on" in found
    found = attnscope.audit(planted.model("gpt2"), length=127, thorough=True)["causal"].found
    assert "from each of 126 positions on" in found


@pytest.mark.sweep
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


@pytest.mark.few(1)
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


@pytest.mark.sweep
def test_a_mask_that_hides_a_real_token_is_named_and_not_the_positions():
    def shift(args, kwargs):
        mask = kwargs.get("attention_mask")
        if mask is not None and mask.dim() == 2:
            mask = mask.clone()
            mask[:, 1:] &= kwargs["attention_mask"][:, :-1]
        return args, kwargs | {"attention_mask": mask}

    model = planted.model("llama")
    planted.patched(model.base_model, shift)
    broken = attnscope.audit(model)["padding"]
    assert broken.status == "broken"
    assert broken.found.startswith("padding on the left moves real token")
    assert broken.found.endswith("the mask hides real token 0 from real token 0")
    assert "position" not in broken.found
    assert all(key == 5 for _, key in broken.evidence.influence.missing)


@pytest.mark.sweep
def test_packed_rows_without_a_block_mask_are_found_if_an_option_names_them():
    model = planted.rows_not_blocked(planted.model("qwen3"))
    assert attnscope.audit(model)["packed"].status == "not applicable"
    broken = attnscope.audit(model, packed=True)["packed"]
    assert broken.status == "broken"
    assert broken.evidence.layer == 0
    assert broken.evidence.influence.wrong == [
        (query, key) for query in range(31, 61) for key in range(31)
    ]


@pytest.mark.sweep
def test_options_say_what_a_model_should_be():
    audit = attnscope.audit(planted.model("bert"), causal=True)
    assert audit["causal"].status == "broken"
    assert audit["causal"].source == "causal=True"
    audit = attnscope.audit(planted.model("llama"), window=8)
    assert audit["window"].status == "broken"
    assert "query 60 sees key 0 in layer 0" in audit["window"].found


def in_both_directions(family: str, **more):
    """An encoder with windows, of 8 keys on each side."""
    return AutoModel.from_config(AutoConfig.for_model(family, **planted.SIZES | more)).eval()


BOTH = {
    "gemma3_text": {"use_bidirectional_attention": True, "sliding_window": 16},
    "modernbert": {"hidden_size": 48, "local_attention": 16, "cls_token_id": 1, "sep_token_id": 2},
}


@pytest.mark.few(1)
@pytest.mark.parametrize("family", BOTH)
def test_a_window_in_both_directions_is_tested_in_every_layer_that_has_one(family):
    model = in_both_directions(family, **BOTH[family])
    kinds = model.config.layer_types
    n = kinds.count("sliding_attention")
    assert n > 1
    audit = attnscope.audit(model)
    assert audit["window"].status == audit["coverage"].status == "holds"
    assert audit["window"].found.endswith("exactly those inside, up to 8 away")
    assert audit["coverage"].found.startswith("layers 0–3")
    assert "rounding" in audit["padding"].found


@pytest.mark.few(1)
@pytest.mark.parametrize(
    ("distance", "status", "words"),
    [
        (60, "broken", "outside of its window"),
        (3, "broken", "inside its window"),
        (9, "holds", "up to 8 away, up to 9 away"),  # as Gemma 4 reads the width
    ],
)
def test_another_width_in_both_directions_is_found(distance, status, words):
    model = in_both_directions("gemma3_text", **BOTH["gemma3_text"])

    def change(args, kwargs):
        n = kwargs["hidden_states"].shape[1]
        apart = (torch.arange(n)[:, None] - torch.arange(n)).abs()
        return args, kwargs | {"attention_mask": (apart <= distance)[None, None]}

    planted.patched(model.layers[1].self_attn, change)
    found = attnscope.audit(model)["window"]
    assert found.status == status
    assert words in found.found
    if status == "broken":
        assert found.evidence.layer == 1


def test_a_window_whose_meaning_is_unknown_is_not_denied():
    sizes = planted.SIZES | {"attention_window": [8] * 4}
    model = AutoModel.from_config(AutoConfig.for_model("longformer", **sizes)).eval()
    audit = attnscope.audit(model)
    assert audit["window"].status == audit["coverage"].status == "undecided"
    assert audit["window"].source == "attention_window=[8, 8, 8, 8]"
    assert "no layer has a window" in attnscope.audit(planted.model("bert"))["window"].source


@pytest.mark.sweep
def test_layers_of_a_kind_that_is_not_read_are_not_said_to_have_no_window():
    model = planted.model("llama")
    assert "no layer has a window" in attnscope.audit(model, length=17)["window"].source
    model.config.layer_types = ["full_attention", "hybrid_sliding"] * 2
    found = attnscope.audit(model, length=17)["window"]
    assert (found.status, found.source) == ("undecided", "layer_types[1]='hybrid_sliding'")


@pytest.mark.sweep
def test_that_tokens_of_images_were_not_tested_is_said():
    sizes = planted.SIZES | {"hidden_size_per_layer_input": 8, "vocab_size_per_layer_input": 50}
    sizes |= {"global_head_dim": 8, "num_kv_shared_layers": 0, "sliding_window": 16}
    for kind, said in ((None, False), ("vision", True)):
        config = AutoConfig.for_model("gemma4_text", **sizes, use_bidirectional_attention=kind)
        audit = attnscope.audit(AutoModel.from_config(config).eval(), length=17)
        assert audit["causal"].status == "holds"
        assert ("tokens of an image" in audit["causal"].source) == said
        assert any("tokens of an image" in each for each in audit.notices) == said


@pytest.mark.sweep
def test_a_window_longer_than_the_text_is_undecided():
    audit = attnscope.audit(planted.model("mistral", sliding_window=100))
    assert audit["window"].status == "undecided"
    assert "length=102" in audit["window"].found
    audit = attnscope.audit(planted.model("mistral", sliding_window=100), length=102)
    assert audit["window"].status == "holds"


@pytest.mark.sweep
def test_an_audit_leaves_the_model_as_it_was():
    model = planted.insert(planted.model("llama"), 1, planted.Normed())
    before = {name: tensor.clone() for name, tensor in model.state_dict().items()}
    attnscope.audit(model)
    after = model.state_dict()
    assert all(torch.equal(tensor, after[name]) for name, tensor in before.items())
    assert model.config._attn_implementation == "sdpa"
    assert not model.training


@pytest.mark.sweep
def test_a_window_that_only_the_cache_knows_is_found():
    """Moshi's layers see everything, and its cache forgets what is outside of the window."""
    model = planted.model("mistral")
    for layer in planted.layers(model):
        planted.attention(layer).sliding_window = None
    with planted.window_ignored("mistral", "sdpa"):
        audit = attnscope.audit(model)
    assert audit["window"].status == audit["cache"].status == "broken"


@pytest.mark.sweep
def test_a_short_text_gets_another_mask_and_is_tested_too():
    """Within a window, transformers passes no mask, and relies on the module's `is_causal`."""
    model = planted.model("mistral")
    planted.attention(planted.layers(model)[1]).is_causal = False
    broken = attnscope.audit(model)["causal"]
    assert broken.status == "broken"
    assert broken.found.startswith("with 7 tokens, ")
    assert broken.evidence.layer == 1


@pytest.mark.sweep
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


@pytest.mark.sweep
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
