"""Families whose attention is unusual."""

import json
from shutil import copytree

import pytest

from attnscope import read_head
from tests.model.run.tiny import save_tiny

SHORT = "the cat sat"


@pytest.fixture(scope="module")
def tiny(tmp_path_factory):
    """Return a function that returns a family's small random checkpoint, created when first used."""
    made = {}

    def folder(model_type, **sizes):
        key = (model_type, *sorted((name, str(size)) for name, size in sizes.items()))
        if key not in made:
            made[key] = tmp_path_factory.mktemp("tiny") / model_type
            save_tiny(model_type, made[key], **sizes)
        return made[key]

    return folder


@pytest.mark.few(1)
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


@pytest.mark.few(1)
@pytest.mark.parametrize("family", ["paligemma", "aimv2"])
@pytest.mark.parametrize("command", ["model", "heads"])
def test_a_model_that_attends_otherwise_with_eager_attention_is_told_about(
    attnscope, tiny, family, command
):
    """transformers leaves their causal mask out by default."""
    r = attnscope(command, tiny(family), "--text", SHORT)
    told = "attends differently by default and with eager attention"
    assert r.exit_status == 0
    assert f"{told}: in " in r.out
    assert "query 0 sees 5 of 5 keys by default and 1 with eager" in r.out
    assert told in attnscope(command, tiny(family), "--text", SHORT, "-f", "json").json["notices"][-1]


def test_pooled_maps_tell_it_too(attnscope, tiny):
    r = attnscope("model", tiny("paligemma"), "--text", SHORT, "--pool", "max")
    assert r.exit_status == 0
    assert "attends differently by default" in r.out


@pytest.mark.few(2)
@pytest.mark.parametrize("command", ["model", "heads"])
@pytest.mark.parametrize("family", ["bert", "llama", "gemma3_text", "t5", "bloom"])
def test_models_that_attend_alike_are_not_told_about(attnscope, tiny, family, command):
    r = attnscope(command, tiny(family), "--text", SHORT)
    assert r.exit_status == 0
    assert "with eager attention:" not in r.out + r.err


def test_maps_outside_of_layers_are_counted(attnscope, tiny):
    r = attnscope("model", tiny("canine"), "--text", SHORT)
    assert r.exit_status == 2
    assert "(canine) returns 6 maps for its 4 layers: it also attends outside of them" in r.err


KIMI = {"layer_types": ["linear_attention", "full_attention"] * 2}
BAMBA = {
    "attn_layer_indices": [2],
    "mamba_n_heads": 8,
    "mamba_expand": 2,
    "mamba_d_head": 12,
    "mamba_n_groups": 1,
}
GRANITE = {
    "layer_types": ["linear_attention", "linear_attention", "full_attention", "linear_attention"],
    "mamba_n_heads": 8,
    "mamba_expand": 2,
    "mamba_d_head": 12,
    "mamba_n_groups": 1,
}


@pytest.mark.parametrize("known", ["by its configuration", "by its tensors"])
def test_linear_attention_is_not_read_as_heads(attnscope, tiny, tmp_path, known):
    """Kimi's linear attention has q_proj, k_proj, v_proj and o_proj like softmax attention, and 32 heads of 128."""
    folder = copytree(tiny("kimi_linear", **KIMI), tmp_path / "kimi")
    if known == "by its tensors":
        config = json.loads((folder / "config.json").read_text())
        del config["layer_types"]
        (folder / "config.json").write_text(json.dumps(config))
    for more in ([], ["--verify"], ["--head", 3]):
        r = attnscope("model", folder, "--layer", 0, *more)
        assert (r.exit_status, r.out) == (2, "")
        assert "layer 0 of" in r.err
        assert "has no softmax attention (linear attention): layers 1 and 3 of its 4 have it." in r.err
        assert "--layer 1" in r.err


def test_a_model_of_linear_attention_alone_is_refused(attnscope, tiny):
    r = attnscope("model", tiny("kimi_linear", layer_types=["linear_attention"] * 4))
    assert r.exit_status == 2
    assert "has no softmax attention: its layers are linear attention." in r.err


@pytest.mark.parametrize(
    ("family", "sizes", "first"),
    [("qwen3_next", {}, 3), ("bamba", BAMBA, 2), ("granitemoehybrid", GRANITE, 2)],
)
def test_hybrids_start_at_the_first_layer_that_attends(attnscope, tiny, family, sizes, first):
    folder = tiny(family, **sizes)
    r = attnscope("model", folder, "-f", "json")
    assert (r.exit_status, r.json["layer"]) == (0, first)
    assert r.json == attnscope("model", folder, "--layer", first, "-f", "json").json
    refused = attnscope("model", folder, "--layer", 0)
    assert refused.exit_status == 2
    assert f"--layer {first}" in refused.err
    assert read_head(folder).layer == first


@pytest.mark.parametrize(
    ("field", "value", "said"),
    [
        ("head_dim", 16, "has heads 12 wide, but in its config.json head_dim is 16"),
        (
            "num_key_value_heads",
            1,
            "has 2 key heads, but in its config.json num_key_value_heads is 1",
        ),
    ],
)
def test_slices_that_the_configuration_contradicts_are_refused(
    attnscope, tiny, tmp_path, field, value, said
):
    folder = copytree(tiny("llama"), tmp_path / "other")
    config = json.loads((folder / "config.json").read_text())
    (folder / "config.json").write_text(json.dumps({**config, field: value}))
    r = attnscope("model", folder)
    assert (r.exit_status, r.out) == (2, "")
    assert said in r.err


@pytest.mark.parametrize("stack", ["text", "vision"])
def test_a_tower_is_verified_with_itself(attnscope, tiny, stack):
    """In transformers, AltCLIP's modules have other names than in its files."""
    r = attnscope("model", tiny("altclip"), "--stack", stack, "--verify", "-f", "json")
    assert r.exit_status == 0
    assert all(check["ok"] for check in r.json["checks"])


@pytest.mark.few(2)
@pytest.mark.parametrize("family", ["ibert", "xglm", "longformer", "vit_mae"])
def test_models_that_compute_in_their_own_way_are_verified(attnscope, tiny, family):
    """I-BERT's projections return a scale, XGLM's masks are float32, Longformer scales where it lies,
    ViT-MAE draws what it hides."""
    r = attnscope("model", tiny(family), "--layer", 1, "--head", 2, "--verify", "-f", "json")
    assert r.exit_status == 0
    assert [check["ok"] for check in r.json["checks"]] == [True] * 5


@pytest.mark.few(6)
@pytest.mark.parametrize("family", ["rwkv", "falcon_mamba", "xlstm", "fnet"])
@pytest.mark.parametrize(
    "command", [["model"], ["model", "--verify"], ["model", "--text", SHORT], ["heads", "--text", SHORT]]
)
def test_a_model_without_attention_is_told_as_such(attnscope, tiny, family, command):
    name, *options = command
    r = attnscope(name, tiny(family), *options)
    assert (r.exit_status, r.out) == (2, "")
    told = f"({family}) has no attention: none of its layers has queries, keys and a softmax."
    assert told in r.err


@pytest.mark.parametrize(
    ("family", "why"),
    [
        ("axk2", "computes queries from two latents"),
        pytest.param(
            "longcat_flash", "has two attention modules in each", marks=pytest.mark.sweep
        ),  # a large one
    ],
)
def test_families_that_are_no_one_layout_are_refused_by_name(attnscope, tiny, family, why):
    r = attnscope("model", tiny(family))
    assert (r.exit_status, r.out) == (2, "")
    assert f"({family}) {why}" in r.err


def test_writing_without_a_token_to_start_with_is_told(attnscope, tiny, tmp_path):
    from transformers import T5ForConditionalGeneration

    folder = tmp_path / "t5"
    copytree(tiny("t5"), folder)
    model = T5ForConditionalGeneration.from_pretrained(folder)
    model.save_pretrained(folder)
    for name in ("config.json", "generation_config.json"):
        settings = json.loads((folder / name).read_text())
        for start in ("decoder_start_token_id", "bos_token_id"):
            settings.pop(start, None)
        (folder / name).write_text(json.dumps(settings))
    r = attnscope("model", folder, "--text", SHORT, "--generate", 3)
    assert (r.exit_status, r.out) == (2, "")
    assert "has neither decoder_start_token_id nor bos_token_id" in r.err
    assert "the start token of its decoder is unknown" in r.err


def test_values_from_before_a_bottleneck_are_read(attnscope, tiny):
    """MobileBERT projects queries and keys from a bottleneck of width 128, and values from the layer's input."""
    folder = tiny("mobilebert")
    r = attnscope("model", folder, "--layer", 3, "--head", 2, "--verify", "--circuits", "-f", "json")
    assert r.exit_status == 0
    assert [check["ok"] for check in r.json["checks"]] == [True] * 5
    shapes = {weight["name"]: weight["head_shape"] for weight in r.json["weights"]}
    assert (shapes["W_K"], shapes["W_V"], shapes["W_O"]) == ([32, 128], [32, 48], [128, 32])
    assert [len(circuit["singular_values"]) for circuit in r.json["circuits"]] == [32, 32]
    r = attnscope("model", folder, "--show", "W_V[0]")
    assert "d_in" in r.out


@pytest.mark.sweep
def test_what_rounding_alone_may_part_is_left_undecided(attnscope, tiny):
    """MobileBERT has no normalisation, so its layers amplify the rounding of fused and eager attention."""
    command = ["model", tiny("mobilebert"), "--text", "the cat sat on the mat"]
    command += ["--layer", "all", "--head", "all", "--verify"]
    maps, _ = attnscope(*command, "-f", "json").json["checks"]
    assert maps["ok"] is None
    assert maps["max_abs_diff"] > maps["tolerance"]
    assert "rounding alone makes two runs of its eager attention differ" in maps["note"]
    assert attnscope(*command).exit_status == 0
    precise = attnscope(*command, "--dtype", "float64", "-f", "json").json["checks"]
    assert [check["ok"] for check in precise] == [True, True]


def test_weights_that_do_not_follow_fail_whatever_rounding_does(attnscope, tiny, monkeypatch):
    from attnscope.model.maps import capture as gallery
    from attnscope.model.maps import verify

    right = gallery.weights_of

    def wrong(call, heads):
        attention, difference, tolerance = right(call, heads)
        return attention.roll(1, dims=-1), difference, tolerance

    for module in (gallery, verify):
        monkeypatch.setattr(module, "weights_of", wrong)
    r = attnscope("model", tiny("mobilebert"), "--text", SHORT, "--verify")
    assert r.exit_status == 1
    assert r.out.count("FAILS") == 1


def test_heads_that_depend_on_each_other_unseen_are_left_undecided(attnscope, tiny):
    """Doge computes its mask from all values, and does not call attention through the observable interface."""
    r = attnscope("model", tiny("doge"), "--verify", "-f", "json")
    assert r.exit_status == 0
    assert [check["ok"] for check in r.json["checks"]] == [True] * 4 + [None]


def test_heads_that_are_no_slices_are_refused(attnscope, tiny):
    r = attnscope("model", tiny("diffllama"))
    assert r.exit_status == 2
    assert "(diffllama) computes differential attention" in r.err


def test_what_is_not_finite_in_float64_is_not_verified(attnscope, tiny):
    r = attnscope("model", tiny("canine"), "--verify")
    assert r.exit_status == 2
    assert "cannot verify" in r.err
    assert "computes values that are not finite" in r.err
