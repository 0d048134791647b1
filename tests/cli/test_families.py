"""Families whose attention is not what it seems."""

import pytest
from models.tiny import save_tiny

SHORT = "the cat sat"


@pytest.fixture(scope="module")
def tiny(tmp_path_factory):
    """A family's small checkpoint with random weights, made when it is first used."""
    made = {}

    def folder(model_type, **sizes):
        key = (model_type, *sorted((name, str(size)) for name, size in sizes.items()))
        if key not in made:
            made[key] = tmp_path_factory.mktemp("tiny") / model_type
            save_tiny(model_type, made[key], **sizes)
        return made[key]

    return folder


@pytest.mark.parametrize("more", [[], ["--verify"], ["--layer", "all", "--head", "all"]])
@pytest.mark.parametrize(
    ("family", "where"), [("squeezebert", "layer 0"), ("prophetnet", "layer 0 of its encoder")]
)
def test_scores_are_not_shown_as_weights(attnscope, tiny, family, where, more):
    r = attnscope("model", tiny(family), "--text", SHORT, *more)
    assert (r.exit_status, r.out) == (2, "")
    assert "which returns scores rather than weights as its attention" in r.err
    assert f"in {where}, rows sum to between" in r.err


@pytest.mark.parametrize("family", ["squeezebert", "prophetnet"])
def test_scores_are_not_measured_as_weights(attnscope, tiny, family):
    r = attnscope("heads", tiny(family), "--text", SHORT)
    assert (r.exit_status, r.out) == (2, "")
    assert "which returns scores rather than weights as its attention" in r.err


def test_bert_refuses_scores_too(attnscope, tiny):
    r = attnscope("bert", "--model", tiny("squeezebert"), "--text", SHORT)
    assert r.exit_status == 2
    assert "returns scores rather than weights" in r.err


@pytest.mark.parametrize("family", ["paligemma", "aimv2"])
@pytest.mark.parametrize("command", ["model", "heads"])
def test_a_model_that_attends_otherwise_with_eager_attention_is_told_about(
    attnscope, tiny, family, command
):
    """transformers leaves their causal mask out by default."""
    r = attnscope(command, tiny(family), "--text", SHORT)
    told = "does not attend alike by default and with eager attention"
    assert r.exit_status == 0
    assert f"{told}: in " in r.out
    assert "query 0 sees 5 of 5 keys by default and 1 with eager" in r.out
    assert told in attnscope(command, tiny(family), "--text", SHORT, "-f", "json").json["notices"][-1]


def test_pooled_maps_tell_it_too(attnscope, tiny):
    r = attnscope("model", tiny("paligemma"), "--text", SHORT, "--pool", "max")
    assert r.exit_status == 0
    assert "does not attend alike by default" in r.out


@pytest.mark.parametrize("command", ["model", "heads"])
@pytest.mark.parametrize("family", ["bert", "llama", "gemma3_text", "t5", "bloom"])
def test_models_that_attend_alike_are_not_told_about(attnscope, tiny, family, command):
    r = attnscope(command, tiny(family), "--text", SHORT)
    assert r.exit_status == 0
    assert "with eager attention:" not in r.out + r.err


def test_maps_outside_of_layers_are_counted(attnscope, tiny):
    r = attnscope("model", tiny("canine"), "--text", SHORT)
    assert r.exit_status == 2
    assert "(canine) returns 6 maps for its 4 layers: it attends outside of them too" in r.err
