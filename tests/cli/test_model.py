"""`attnscope model` and `attnscope bert` with a text or a picture, on the command line."""

import csv
import io
import json
import os
import subprocess
import sys
from shutil import copytree

import numpy as np
import pytest
import torch
from transformers import (
    AutoModelForCausalLM,
    AutoModelForImageClassification,
    AutoModelForPreTraining,
    AutoModelForQuestionAnswering,
    AutoModelForSequenceClassification,
    AutoModelForTokenClassification,
    AutoTokenizer,
    BertModel,
    T5EncoderModel,
)

from tests.model.run.hub import Hub, serving
from tests.model.run.readers import changed_weights, save_picture, save_reader, save_seer, save_tokenizer


class T5EncoderModelForTests:
    """Builds only T5's encoder."""

    @staticmethod
    def from_config(config):
        return T5EncoderModel(config)


TEXT = "The cat sat on the [MASK] because it was tired."
SHORT = "the cat sat on the mat"


def eager(folder, text, **options):
    """Return the attention that the bundled model itself returns."""
    model = BertModel.from_pretrained(folder, attn_implementation="eager").eval()
    with torch.no_grad():
        given = AutoTokenizer.from_pretrained(folder)(text, return_tensors="pt", **options)
        return model(**given, output_attentions=True).attentions


def verified(attnscope, *command):
    """The record of maps that are compared with the model's own, and equal them."""
    r = attnscope(*command, "--verify", "-f", "json")
    assert r.exit_status == 0, r.err
    assert all(check["ok"] for check in r.json["checks"])
    return r.json


def test_a_text_shows_a_map_with_its_tokens(attnscope):
    r = attnscope("bert", "--layer", 0, "--head", 0, "--text", TEXT)
    assert (r.exit_status, r.err) == (0, "")
    lines = r.out.splitlines()
    assert lines[0] == "minilm · layer 0 of 6 · head 0 of 12"
    assert lines[1] == "13 queries · 13 keys"
    assert "because" in lines[4]
    assert [line.split()[1] for line in lines[5:18]][:7] == "[CLS] the cat sat on the [MASK]".split()


def test_bert_is_model_with_a_default(attnscope):
    assert attnscope("bert", "--text", TEXT).out == attnscope("model", "minilm", "--text", TEXT).out
    assert attnscope("bert", "--model", "minilm").out == attnscope("model", "minilm").out


def test_records_hold_the_models_own_weights(attnscope, minilm):
    theirs = eager(minilm, TEXT)
    command = ["bert", "--text", TEXT, "--format", "json"]
    record = attnscope(*command, "--layer", 3, "--head", 7).json
    assert record["schema"] == "attnscope.map/1"
    assert (record["layer"], record["head"], record["kv_head"]) == (3, 7, 7)
    assert record["query_tokens"] == record["key_tokens"]
    assert record["key_tokens"][6] == "[MASK]"
    several = attnscope(*command, "--layer", "all", "--head", "0,3-4").json
    assert several["schema"] == "attnscope.maps/1"
    places = [(each["layer"], each["head"]) for each in several["maps"]]
    assert places == [(layer, head) for layer in range(6) for head in (0, 3, 4)]
    for each in [record, *several["maps"]]:
        own = theirs[each["layer"]][0, each["head"]].numpy()
        assert abs(np.array(each["attention"]) - own).max() < 1e-5


@pytest.mark.sweep
def test_no_cell_of_csv_is_a_formula_to_a_spreadsheet(attnscope):
    command = ["bert", "--text", "= + - @ cat", "-f", "csv"]
    for more in ([], ["--top", 2], ["--pool", "max"], ["--query", 1]):
        rows = list(csv.reader(io.StringIO(attnscope(*command, *more).out)))
        cells = {cell for row in rows for cell in row if cell.startswith(("'", *"=+-@"))}
        assert cells <= {"'=", "'+", "'-", "'@"}
        assert cells
    r = attnscope(*command[:-1], "json")
    assert r.json["key_tokens"][1:5] == ["=", "+", "-", "@"]  # as they are


def test_csv_has_a_line_for_each_weight(attnscope):
    r = attnscope("bert", "--text", "tired", "--format", "csv")
    rows = list(csv.DictReader(io.StringIO(r.out)))
    assert len(rows) == 9
    assert rows[3] == {
        "layer": "0",
        "head": "0",
        "query": "1",
        "query_token": "tired",
        "key": "0",
        "key_token": "[CLS]",
        "attention": rows[3]["attention"],
    }
    assert sum(float(row["attention"]) for row in rows[3:6]) == pytest.approx(1)


def test_markdown_has_a_table(attnscope):
    lines = attnscope("bert", "--text", "tired", "--format", "markdown").out.splitlines()
    assert lines[0] == "**minilm · layer 0 of 6 · head 0 of 12**"
    assert lines[4] == "|  | [CLS] | tired | [SEP] |"
    assert len([line for line in lines if line.startswith("| [SEP]")]) == 1


def test_several_heads_are_an_overview(attnscope):
    r = attnscope("bert", "--layer", "all", "--head", "all", "--text", TEXT)
    assert r.out.startswith("minilm · 6 layers of 6 · 12 heads of 12\n")
    assert "a map for each head" in r.out


def test_a_pair_has_segments(attnscope, minilm):
    r = attnscope("bert", "--text", "The cat sat.", "--pair", "It was tired.", "--format", "json")
    assert r.json["key_segments"] == [0] * 6 + [1] * 5
    model = BertModel.from_pretrained(minilm, attn_implementation="eager").eval()
    given = AutoTokenizer.from_pretrained(minilm)("The cat sat.", "It was tired.", return_tensors="pt")
    with torch.no_grad():
        theirs = model(**given, output_attentions=True).attentions[0][0, 0]
    assert abs(np.array(r.json["attention"]) - theirs.numpy()).max() < 1e-5


@pytest.mark.sweep
def test_top_and_query_are_in_every_format(attnscope):
    command = ["bert", "--text", "it was tired", "--layer", 2]
    whole = attnscope(*command, "-f", "json").json
    assert "strongest" not in whole
    strongest = attnscope(*command, "--top", 2, "-f", "json").json["strongest"]
    for row, ranked in zip(whole["attention"], strongest, strict=True):
        assert [each["attention"] for each in ranked] == sorted(row, reverse=True)[:2]
        assert row[ranked[0]["key"]] == ranked[0]["attention"]
        assert whole["key_tokens"][ranked[0]["key"]] == ranked[0]["token"]
    one = attnscope(*command, "--query", 2, "-f", "json").json
    assert (one["query_tokens"], one["attention"]) == (["was"], whole["attention"][2:3])
    assert len(attnscope(*command, "--query", 2, "-f", "csv").out.splitlines()) == 1 + 5
    markdown = attnscope(*command, "--query", 2, "-f", "markdown").out
    assert "| was | " in markdown
    assert "| tired | 0" not in markdown
    assert attnscope(*command, "--top", 2, "-f", "csv").out.count("\n") == 1 + 5


@pytest.mark.sweep
def test_verify_compares_with_the_model_itself(attnscope):
    maps, output = verified(attnscope, "bert", "--text", TEXT, "--layer", "all", "--head", "all")[
        "checks"
    ]
    assert maps["name"] == "72 maps = those of the model's own eager attention"
    assert 0 < maps["max_abs_diff"] < 1e-5
    assert (output["max_abs_diff"], output["tolerance"]) == (0, 0)


@pytest.mark.few(1)
@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_verify_exits_1_when_maps_differ(attnscope, monkeypatch, dtype):
    from attnscope.model.maps import capture as gallery

    right = gallery.weights_of

    def wrong(call, heads):
        attention, difference, tolerance = right(call, heads)
        return attention.roll(1, dims=-1), difference, tolerance

    monkeypatch.setattr(gallery, "weights_of", wrong)
    r = attnscope("bert", "--text", TEXT, "--layer", 1, "--head", 8, "--dtype", dtype, "--verify")
    assert r.exit_status == 1
    assert r.out.count("FAILS") == 1


def test_verify_exits_1_when_observing_changes_the_output(attnscope, monkeypatch):
    from attnscope.model.maps import verify

    plainly = verify.main_output
    monkeypatch.setattr(verify, "main_output", lambda output: plainly(output) + 1e-6)
    r = attnscope("bert", "--text", TEXT, "--verify", "-f", "json")
    assert r.exit_status == 1
    assert [check["ok"] for check in r.json["checks"]] == [True, False]


@pytest.mark.few(1)
@pytest.mark.parametrize(("family", "dtype"), [("llama", "float32"), ("gpt2", "bfloat16")])
def test_what_does_not_explain_the_output_is_not_shown(attnscope, monkeypatch, saved, family, dtype):
    """If a model changes its scores in an unobserved way, its own eager maps are shown instead."""
    from dataclasses import replace

    from attnscope.model.run import attention_hook as observe

    right = observe.attention_inputs
    command = ["model", saved(family), "--text", SHORT, "--layer", 1, "--dtype", dtype, "-f", "json"]
    own = attnscope(*command).json
    assert own["notices"] == []

    def wrong(*given, **options):
        inputs = right(*given, **options)
        return replace(inputs, scale=30 * inputs.scale)

    monkeypatch.setattr(observe, "attention_inputs", wrong)
    r = attnscope(*command)
    [notice] = r.json["notices"]
    assert "do not reproduce its output" in notice
    assert np.allclose(r.json["attention"], own["attention"], atol=1e-5 if dtype == "float32" else 0.02)


@pytest.mark.few(2)
@pytest.mark.parametrize(
    ("family", "kind"),
    [
        ("bert", AutoModelForPreTraining),
        ("roberta", AutoModelForSequenceClassification),
        ("gpt2", AutoModelForTokenClassification),
        ("bart", AutoModelForQuestionAnswering),
    ],
)
def test_models_for_a_task_are_read(attnscope, tmp_path, family, kind):
    save_reader(family, tmp_path / family, kind)
    target = ["--target", "a dog"] if family == "bart" else []
    verified(attnscope, "model", tmp_path / family, "--text", SHORT, *target)


def test_a_model_that_classifies_pictures_is_seen(attnscope, tmp_path):
    save_seer("dinov2", tmp_path / "dino", AutoModelForImageClassification)
    picture = save_picture(tmp_path / "picture.png")
    verified(attnscope, "model", tmp_path / "dino", "--image", picture, "--layer", 2)


@pytest.mark.parametrize(
    ("settings", "status", "said"),
    [
        ({"image_mean": 10**30}, 0, ""),
        ({"image_std": 1e-300}, 2, "makes pictures that are not finite: image_mean is"),
        ({"image_std": [1, 10**400, 1]}, 2, "transformers cannot run "),
        ({"image_mean": "x"}, 2, "transformers cannot run "),
        ({"size": {"height": 10**9, "width": 8}}, 2, "size.height is 1000000000, but must be"),
        ({"size": 0}, 2, "size is 0, but must be a whole number from 1 to 4,096."),
        ({"size": [8, -1]}, 2, "size: width is -1, but must be"),
        ({"crop_size": 10**9, "do_center_crop": True}, 2, "crop_size is 1000000000, but must be"),
        ({"size": 8}, 0, ""),
    ],
)
def test_a_picture_with_strange_settings_is_read_or_told(
    attnscope, saved, tmp_path, settings, status, said
):
    folder = tmp_path / "vit"
    copytree(saved("vit"), folder)
    path = folder / "preprocessor_config.json"
    path.write_text(json.dumps({**json.loads(path.read_text()), **settings}))
    r = attnscope("model", folder, "--image", save_picture(tmp_path / "picture.png"))
    assert r.exit_status == status
    assert said in r.err
    assert len([line for line in r.err.splitlines() if not line.startswith("  try")]) == bool(status)


@pytest.mark.parametrize("text", ["{", "[]"])
def test_settings_of_pictures_that_are_no_object_are_told(attnscope, saved, tmp_path, text):
    folder = tmp_path / "vit"
    copytree(saved("vit"), folder)
    (folder / "preprocessor_config.json").write_text(text)
    r = attnscope("model", folder, "--image", save_picture(tmp_path / "picture.png"))
    assert (r.exit_status, r.out) == (2, "")
    assert r.err.startswith("attnscope: error: cannot read ")
    assert "preprocessor_config.json: " in r.err


@pytest.mark.parametrize("unknown", [{"a": [0]}, {}])
def test_an_unknown_token_that_is_none_is_told(attnscope, saved, tmp_path, unknown):
    """transformers would search for it forever."""
    folder = tmp_path / "bert"
    copytree(saved("bert"), folder)
    (folder / "special_tokens_map.json").write_text(json.dumps({"unk_token": unknown}))
    for command in (["model"], ["heads"]):
        r = attnscope(*command, folder, "--text", SHORT)
        assert (r.exit_status, r.out) == (2, "")
        assert "cannot load the tokenizer of" in r.err
        assert "its unk_token is not a token." in r.err


def test_tokens_behind_the_patches_are_refused(attnscope, saved, tmp_path):
    r = attnscope("model", saved("yolos"), "--image", save_picture(tmp_path / "picture.png"))
    assert "makes 8 tokens from 2 × 2 patches, as 3 tokens of detections follow the patches:" in r.err


def test_a_picture_that_is_too_large_is_told(attnscope, saved, tmp_path, monkeypatch):
    from PIL import Image

    monkeypatch.setattr(Image, "MAX_IMAGE_PIXELS", 100)
    r = attnscope("model", saved("vit"), "--image", save_picture(tmp_path / "large.png"))
    assert "large.png is too large" in r.err


def test_weights_that_are_not_numbers_are_refused_with_their_layer(attnscope, tmp_path, saved):
    folder = copytree(saved("bert"), tmp_path / "nan")
    with changed_weights(folder) as weights:
        weights["encoder.layer.1.attention.self.query.weight"][0, 0] = float("nan")
    command = ["model", folder, "--text", SHORT]
    assert attnscope(*command, "--layer", 0).exit_status == 0
    for more in (["--layer", "all", "--head", "all"], ["--layer", 1, "--verify"]):
        r = attnscope(*command, *more)
        assert (r.exit_status, r.out) == (2, "")
        assert "the attention of" in r.err
        assert "is not finite in layer 1." in r.err


@pytest.mark.few(3)
@pytest.mark.parametrize(
    ("family", "stack"),
    [
        *(("llama", None), ("gpt2", None), ("mistral", None), ("gemma2", None), ("gpt_oss", None)),
        *(("albert", None), ("lfm2", None), ("bart", "encoder"), ("clip", "text"), ("modernbert", None)),
        ("afmoe", None),  # whose mask is a keyword
    ],
)
def test_verify_holds_for_other_families(attnscope, saved, family, stack):
    more = ["--stack", stack] if stack else []
    record = verified(
        attnscope, "model", saved(family), "--text", SHORT, "--layer", 1, "--head", 2, *more
    )
    assert record["stack"] == (stack or "self")
    assert record["key_tokens"] == ["[CLS]", *SHORT.split(), "[SEP]"]


def test_a_shared_key_head_is_shown(attnscope, saved):
    command = ["model", saved("llama"), "--text", SHORT, "--head", 4]
    heading, *_ = attnscope(*command).out.splitlines()
    assert heading.endswith("layer 0 of 2 · head 4 of 6 · K,V head 1 of 2")
    assert attnscope(*command, "-f", "json").json["kv_head"] == 1


def test_a_sink_takes_its_part(attnscope, saved):
    r = attnscope("model", saved("gpt_oss"), "--text", SHORT, "-f", "json")
    assert max(sum(row) for row in r.json["attention"]) < 1


@pytest.mark.parametrize("family", ["deberta-v2", "xlnet"])
def test_families_beside_the_registry_show_their_own_maps(attnscope, saved, family):
    r = attnscope("model", saved(family), "--text", SHORT, "--layer", 1, "-f", "json")
    [notice] = r.json["notices"]
    assert "does not call attention through transformers' registry" in notice
    assert np.array(r.json["attention"]).sum(-1) == pytest.approx(1)
    r = attnscope("model", saved(family), "--text", SHORT, "--steps")
    assert r.exit_status == 2
    assert "Only its maps are available, not their --steps" in r.err


def test_a_sink_after_the_softmax_is_told_apart(attnscope, saved):
    record = verified(attnscope, "model", saved("granite_swa"), "--text", SHORT)
    assert "without the sink's share" in record["checks"][0]["note"]


@pytest.mark.parametrize(
    ("family", "message"),
    [
        ("mamba", "(mamba) has no attention"),
        ("longformer", "(longformer) attends within a window around each token"),
        ("whisper", "(whisper) takes audio, but attnscope gives models texts and pictures"),
        ("vit", "(vit) does not read text"),
    ],
)
def test_models_whose_attention_is_no_map_of_a_text_are_refused(attnscope, saved, family, message):
    r = attnscope("model", saved(family), "--text", SHORT)
    assert (r.exit_status, r.out) == (2, "")
    assert message in r.err


@pytest.mark.sweep
def test_stacks_beside_the_registry_show_their_own_maps(attnscope, saved):
    command = ["model", saved("bigbird_pegasus"), "--text", SHORT, "--target", "a dog ran", "-f", "json"]
    encoder = attnscope(*command, "--stack", "encoder", "--layer", 1).json
    assert "does not call attention through transformers' registry" in encoder["notices"][0]
    assert np.array(encoder["attention"]).sum(-1) == pytest.approx(1)
    cross = attnscope(*command, "--verify").json
    assert cross["stack"] == "cross"
    assert all(check["ok"] for check in cross["checks"])


def test_an_encoder_alone_of_what_had_a_decoder_is_one_stack(attnscope, tmp_path):
    model = save_reader("t5", tmp_path, T5EncoderModelForTests)
    config = json.loads((tmp_path / "config.json").read_text())
    (tmp_path / "config.json").write_text(json.dumps({**config, "is_encoder_decoder": True}))
    record = verified(attnscope, "model", tmp_path, "--text", SHORT)
    assert (type(model).__name__, record["stack"]) == ("T5EncoderModel", "self")


def test_a_layer_without_attention_is_told(attnscope, saved):
    command = ["model", saved("lfm2"), "--text", SHORT]
    assert "has no attention: layers 1 and 3 of its 4 have it." in attnscope(*command, "--layer", 2).err
    assert attnscope(*command, "-f", "json").json["layer"] == 1  # the first


@pytest.mark.few(2)
@pytest.mark.parametrize(
    ("family", "stack"), [("t5", "cross"), ("t5", "decoder"), ("bart", "encoder"), ("bart", "cross")]
)
def test_every_stack_of_two_is_the_models_own(attnscope, saved, family, stack):
    command = ["model", saved(family), "--text", SHORT, "--target", "a dog ran", "--stack", stack]
    record = verified(attnscope, *command, "--layer", 1, "--head", 2)
    source, target = ["[CLS]", *SHORT.split(), "[SEP]"], [..., "[CLS]", "a", "dog", "ran"]
    assert record["query_tokens"][1:] == (source if stack == "encoder" else target)[1:]
    assert record["key_tokens"][1:] == (target if stack == "decoder" else source)[1:]


@pytest.mark.sweep
def test_generated_tokens_are_the_rows(attnscope, saved):
    command = ["model", saved("gpt2"), "--text", "the cat", "--generate", 3]
    record = verified(attnscope, *command)
    assert (len(record["query_tokens"]), len(record["key_tokens"])) == (3, 7)
    assert (record["generated"], record["first_query"]) == ([4, 5, 6], 4)
    assert [line.split()[0] for line in attnscope(*command).out.splitlines()[5:8]] == ["4", "5", "6"]
    one = attnscope(*command, "--query", 5, "-f", "json").json
    assert (one["first_query"], one["attention"]) == (5, record["attention"][1:2])
    assert attnscope(*command, "--query", 5, "-f", "csv").out.splitlines()[1].startswith("0,0,5,")
    assert attnscope(*command, "--top", 1, "-f", "csv").out.splitlines()[1].startswith("4,")
    assert "there is no query 3: queries are 4 to 6." in attnscope(*command, "--query", 3).err
    first, *_, last = np.array(record["attention"])
    assert first[5:].tolist() == [0, 0]  # a token does not see those after it
    assert (last > 0).all()
    assert "generated:" in record["notices"][0]
    crossed = attnscope("model", saved("bart"), "--text", SHORT, "--generate", 3, "-f", "json").json
    assert crossed["stack"] == "cross"
    assert crossed["generated"][0] == crossed["first_query"] == 1


def test_more_tokens_than_the_model_takes_are_not_generated(attnscope, saved):
    taken = json.loads((saved("gpt2") / "config.json").read_text())["n_positions"]
    r = attnscope("model", saved("gpt2"), "--text", "the cat", "--generate", 30)
    assert r.err.splitlines() == [
        f"attnscope: error: --generate 30 after 4 tokens makes 34, and the model takes {taken}.",
        f"  try  --generate {taken - 4}",
    ]
    assert (
        attnscope("model", saved("gpt2"), "--text", "the cat", "--generate", taken - 4).exit_status == 0
    )


def test_what_was_written_is_looked_at_with_all_inputs(attnscope, tmp_path):
    """As in `generate`, token types continue with the last one."""
    model = save_reader("bert", tmp_path, AutoModelForCausalLM, is_decoder=True)
    settings = json.loads((tmp_path / "tokenizer_config.json").read_text())
    settings["model_input_names"] = ["input_ids", "token_type_ids", "attention_mask"]
    (tmp_path / "tokenizer_config.json").write_text(json.dumps(settings))
    tokenizer = AutoTokenizer.from_pretrained(tmp_path)
    command = ["model", tmp_path, "--text", "the cat", "--pair", "a dog", "--generate", 3, "-f", "json"]
    record = attnscope(*command).json
    given = tokenizer("the cat", "a dog", return_tensors="pt")
    assert given["token_type_ids"][0, -1] == 1
    eager = type(model).from_pretrained(tmp_path, attn_implementation="eager")
    written = eager.generate(
        **given, max_new_tokens=3, do_sample=False, output_attentions=True, return_dict_in_generate=True
    )
    theirs = written.attentions[1][0][0, 0, -1].detach().numpy()  # of the first generated token
    assert abs(np.array(record["attention"][0][: len(theirs)]) - theirs).max() < 1e-5


def test_a_model_that_does_not_write_is_told(attnscope):
    r = attnscope("bert", "--text", TEXT, "--generate", 3)
    assert r.err.startswith("attnscope: error: minilm is a BertModel, which does not generate text.")


@pytest.mark.few(1)
@pytest.mark.parametrize(("family", "stack"), [("vit", "self"), ("clip", "vision"), ("deit", "self")])
def test_a_picture_is_a_grid_of_patches(attnscope, saved, tmp_path, family, stack):
    picture = save_picture(tmp_path / "picture.png")
    record = verified(attnscope, "model", saved(family), "--image", picture, "--layer", 1)
    assert (record["stack"], record["patches"]) == (stack, [2, 2])
    assert record["key_tokens"][-4:] == ["0,0", "0,1", "1,0", "1,1"]
    assert len(record["key_tokens"]) == (6 if family == "deit" else 5)
    assert "patches 2 × 2" in attnscope("model", saved(family), "--image", picture).out


def test_what_is_no_picture_is_told(attnscope, saved, tmp_path):
    (tmp_path / "no.png").write_text("hello")
    r = attnscope("model", saved("vit"), "--image", tmp_path / "no.png")
    assert "no.png is not a picture that pillow can read" in r.err
    r = attnscope("model", saved("vit"), "--image", tmp_path / "gone.png")
    assert "gone.png: No such file or directory" in r.err
    r = attnscope("model", saved("gpt2"), "--image", save_picture(tmp_path / "p.png"))
    assert "(gpt2) does not read pictures" in r.err


def test_steps_are_named_as_mha_names_them(attnscope, saved):
    r = attnscope("model", saved("llama"), "--text", SHORT, "--layer", 1, "--steps", "-f", "json")
    assert r.exit_status == 0
    assert r.json["schema"] == "attnscope.trace/1"
    steps = {step["name"]: step for step in r.json["steps"]}
    assert (
        list(steps)
        == "Q K V mask K_shared V_shared scores scores_masked attention x_raw x_rsh1 x_rsh2".split()
    )
    assert steps["K"]["dims"] == ["n_batch", "n_kv_head", "n_K", "d_K"]
    assert steps["scores"]["shape"] == [1, 6, 8, 8]
    assert steps["x_rsh2"]["dims"] == ["n_batch", "n_Q", "n_head·d_V"]
    assert steps["attention"]["how"] == "softmax(scores_masked)"
    assert [check["ok"] for check in r.json["checks"]] == [True]


def test_steps_show_the_softmax_that_ran(attnscope, saved):
    r = attnscope("model", saved("gpt_oss"), "--text", SHORT, "--steps", "-f", "json")
    steps = {step["name"]: step["how"] for step in r.json["steps"]}
    assert steps["attention"] == "softmax_beside(scores_masked, sinks)"


def test_steps_show_values_that_the_map_has(attnscope, saved):
    command = ["model", saved("t5"), "--text", SHORT, "--layer", 1]
    r = attnscope(*command, "--steps", "--show", "attention[0,2]", "--stats", "-f", "json")
    assert {step["name"] for step in r.json["steps"]} >= {"position_bias", "scores_biased"}
    assert r.json["steps"][0]["stats"]["nan"] == 0
    own = attnscope(*command, "--head", 2, "-f", "json").json["attention"]
    assert np.allclose(r.json["shown"]["values"], own, atol=1e-6)


@pytest.mark.sweep
def test_save_writes_maps_by_name(attnscope, tmp_path, read_tensors):
    path = tmp_path / "maps.safetensors"
    r = attnscope("bert", "--text", TEXT, "--layer", "0-1", "--head", "2,5", "--save", path)
    assert "wrote 4 tensors" in r.err
    saved = read_tensors(path)
    assert sorted(saved) == ["layer0.head2", "layer0.head5", "layer1.head2", "layer1.head5"]
    assert saved["layer1.head5"].shape == (13, 13)
    attnscope("bert", "--text", TEXT, "--layer", 1, "--head", 5, "--save", tmp_path / "one.npz")
    assert torch.equal(read_tensors(tmp_path / "one.npz")["attention"], saved["layer1.head5"])


def test_show_prints_a_part_of_the_map(attnscope):
    r = attnscope("bert", "--text", TEXT, "--show", "attention[2,:3]", "-f", "json")
    assert r.json["shown"]["values"] == pytest.approx(r.json["attention"][2][:3])


@pytest.mark.sweep
def test_plot_and_page_are_written_beside_the_map(attnscope, tmp_path):
    plot, page = tmp_path / "map.svg", tmp_path / "map.html"
    command = ["bert", "--layer", 4, "--head", 7, "--text", TEXT, "--plot", plot, "--page", page]
    r = attnscope(*command)
    assert r.exit_status == 0
    assert "minilm · layer 4 of 6 · head 7 of 12" in r.out
    assert "<svg" in plot.read_text()
    assert "because" in plot.read_text()
    assert "wrote 72 heads" in r.err
    assert page.stat().st_size < 190 * 1024
    r = attnscope(*command)
    assert (r.exit_status, r.out) == (2, "")
    assert "already exists" in r.err
    assert attnscope(*command, "--force").exit_status == 0


@pytest.mark.sweep
def test_a_page_has_the_heads_that_were_listed(attnscope, saved, tmp_path):
    page = tmp_path / "some.html"
    r = attnscope("bert", "--layer", "0,2", "--head", "1-3", "--text", TEXT, "--page", page)
    assert "wrote 6 heads" in r.err
    r = attnscope(
        "model", saved("bart"), "--text", SHORT, "--target", "a dog", "--page", page, "--force"
    )
    assert "wrote 30 heads" in r.err  # 2 × 3 in the encoder, 3 × 4 in the decoder, 3 × 4 across


@pytest.mark.few(1)
@pytest.mark.parametrize("suffix", ["png", "svg", "pdf"])
def test_a_grid_of_heads_is_drawn(attnscope, tmp_path, suffix):
    from PIL import Image

    path = tmp_path / f"grid.{suffix}"
    r = attnscope("bert", "--layer", "0-1", "--head", "0-2", "--text", TEXT, "--plot", path)
    assert r.exit_status == 0
    if suffix == "png":
        with Image.open(path) as picture:
            assert picture.width > picture.height > 100
            assert len(picture.convert("RGB").getcolors(2**24)) > 20
    else:
        assert path.read_bytes().startswith(b"%PDF" if suffix == "pdf" else b"<?xml")
    if suffix == "svg":
        drawn = path.read_text()
        assert "<image" in drawn
        assert all(f">{word}</text>" in drawn for word in ("head", "layer", "weight"))


@pytest.mark.few(1)
@pytest.mark.parametrize("dtype", ["float64", "bfloat16", "float16"])
def test_a_model_runs_in_other_dtypes(attnscope, dtype):
    record = verified(attnscope, "bert", "--text", TEXT, "--layer", 2, "--dtype", dtype)
    assert np.array(record["attention"]).sum(-1) == pytest.approx(1, abs=1e-5)


@pytest.mark.sweep
def test_a_long_text_is_refused_with_both_numbers_or_cut(attnscope):
    command = ["bert", "--text", "tired " * 600]
    assert attnscope(*command).err.splitlines() == [
        "attnscope: error: --text is 602 tokens long, but the model takes at most 512.",
        "  try  --truncate",
    ]
    record = attnscope(*command, "--truncate", "--top", 1, "-f", "json").json
    assert (len(record["strongest"]), record["query_tokens"][-1]) == (512, "[SEP]")
    assert record["notices"] == ["--text was truncated from 602 tokens to 512."]


def test_a_text_of_unknown_words_alone_is_read(attnscope):
    r = attnscope("bert", "--text", "🍕", "-f", "json")
    assert r.json["key_tokens"] == ["[CLS]", "[UNK]", "[SEP]"]


def test_tokens_that_look_like_markup_are_text_in_markdown(attnscope):
    assert "\\<" in attnscope("bert", "--text", "a < b", "-f", "markdown").out


def test_code_that_comes_with_a_model_is_not_run(attnscope, saved, tmp_path, monkeypatch):
    folder = copytree(saved("bert"), tmp_path / "own")
    config = json.loads((folder / "config.json").read_text())
    own = {**config, "model_type": "mine", "auto_map": {"AutoConfig": "own_code.Config"}}
    (folder / "config.json").write_text(json.dumps(own))
    (folder / "own_code.py").write_text("raise SystemExit('it ran')")
    monkeypatch.setattr("sys.stdin", io.StringIO("y\n"))
    r = attnscope("model", folder, "--text", SHORT)
    assert "(mine) requires custom code, which attnscope does not run" in r.err
    assert (r.exit_status, r.out) == (2, "")


def test_weights_of_other_shapes_are_told(attnscope, saved, tmp_path):
    folder = copytree(saved("bert"), tmp_path / "wide")
    config = json.loads((folder / "config.json").read_text())
    (folder / "config.json").write_text(json.dumps({**config, "intermediate_size": 77}))
    r = attnscope("model", folder, "--text", SHORT)
    assert "but its config.json requires" in r.err
    assert "77" in r.err


@pytest.mark.parametrize(
    ("format", "seen"),
    [("table", r"\u6211"), pytest.param("json", '"', marks=pytest.mark.sweep)],
)
def test_what_an_encoding_lacks_is_escaped_in_every_format(format, seen):
    command = [sys.executable, "-m", "attnscope", "bert", "--text", "我 🍕", "-f", format]
    environment = {**os.environ, "PYTHONIOENCODING": "ascii"}
    r = subprocess.run(command, env=environment, capture_output=True, text=True, check=True)
    assert r.stdout.isascii()
    assert seen in r.stdout
    if format == "json":
        assert json.loads(r.stdout)["key_tokens"][1] == "我"


def test_positions_that_begin_after_the_paddings_leave_less_room(attnscope, saved):
    folder = saved("roberta")
    taken = json.loads((folder / "config.json").read_text())["max_position_embeddings"]
    pad = json.loads((folder / "config.json").read_text())["pad_token_id"]
    r = attnscope("model", folder, "--text", "cat " * 40)
    assert f"--text is 42 tokens long, but the model takes at most {taken - pad - 1}." in r.err
    assert attnscope("model", folder, "--text", "cat " * 40, "--truncate").exit_status == 0


def test_a_model_without_a_tokenizer_is_told(attnscope, tmp_path, saved):
    folder = copytree(saved("gpt2"), tmp_path / "bare")
    for path in folder.glob("token*"):
        path.unlink()
    r = attnscope("model", folder, "--text", SHORT)
    assert "bare has no tokenizer" in r.err
    save_tokenizer(folder)
    assert attnscope("model", folder, "--text", SHORT).exit_status == 0


def test_missing_weights_are_told(attnscope, tmp_path, saved):
    folder = copytree(saved("llama"), tmp_path / "torn")
    with changed_weights(folder) as weights:
        del weights["model.layers.1.self_attn.q_proj.weight"]
    r = attnscope("model", folder, "--text", SHORT)
    assert "lacks 1 weights of a LlamaForCausalLM" in r.err
    assert "layers.1.self_attn.q_proj.weight" in r.err


@pytest.mark.few(11)
@pytest.mark.parametrize(
    ("options", "message"),
    [
        (["--text", ""], "--text is empty"),
        (["--text", TEXT, "--pair", " "], "--pair is empty"),
        (["--text", TEXT, "--layer", 6], "there is no layer 6 in minilm: it has layers 0 to 5."),
        (["--text", TEXT, "--head", 12], "there is no head 12 in minilm: it has heads 0 to 11."),
        (["--text", TEXT, "--layer", "x"], "--layer is 'x', but takes numbers from 0."),
        (["--layer", "all"], "weights are shown of one head: --layer all --head 0 are several."),
        (["--pair", "a"], "--pair needs a text, and there is none."),
        (["--page", "x.html"], "--page needs a text, and there is none."),
        (["--text", TEXT, "--target", "a"], "--target is for encoder-decoder models, and minilm (bert)"),
        (["--text", TEXT, "--stack", "cross"], "minilm has no stack cross for this input: it has self."),
        (["--text", TEXT, "--circuits"], "--circuits is about a head's weights"),
        (["--text", TEXT, "--image", "x.png"], "minilm (bert) does not read pictures"),
        (["--image", "x.png", "--pair", "a"], "--pair applies to texts, and --image is a picture."),
        (["--text", TEXT, "--top", 2, "--head", "all"], "--top is for one head"),
        (["--text", TEXT, "--top", 2, "--query", 1], "--top lists every query's strongest keys"),
        (["--text", TEXT, "--steps", "--layer", "all"], "--steps are those of one layer, and --layer is all."),
        (["--text", TEXT, "--steps", "--plot", "a.svg"], "--steps is a table, and --plot draws maps."),
        (["--text", TEXT, "--steps", "--head", 3], "--steps are those of all heads of a layer, and --head is 3."),
        (["--text", "a\udcffb"], "--text contains bytes that are not UTF-8."),
        (["--text", TEXT, "--stats"], "--stats applies to the steps of a layer."),
        (["--text", TEXT, "--dtype", "int8"], "there is no dtype int8"),
        (["--text", TEXT, "--device", "tpu"], "'tpu' is not a device."),
        (["--text", TEXT, "--device", "cuda:9"], "there is no device cuda:9 here"),
        (["--text", TEXT, "--verify", "-f", "csv"], "csv holds one table, and --verify prints more."),
        (["--text", TEXT, "--show", "scores"], "there is no 'scores' in this map (--steps has more)"),
        (["--ids", "5", "--text", "a"], "--text and --ids cannot be combined"),
        (["--tokens", "cat", "--pair", "dog"], "--pair is the second of two texts"),
        (["--ids", "five"], "--ids has 'five', which is not a token id"),
    ],
)  # fmt: skip
def test_mistakes_are_told_in_a_line(attnscope, options, message):
    r = attnscope("bert", *options)
    assert (r.exit_status, r.out) == (2, "")
    assert message in r.err.splitlines()[0]
    assert len(r.err.splitlines()) <= 3


def test_a_hub_that_cannot_be_reached_is_told(attnscope, monkeypatch):
    from huggingface_hub import constants

    monkeypatch.setattr(constants, "ENDPOINT", "http://127.0.0.1:9")
    r = attnscope("model", "someone/some-model-that-is-not-here", "--text", TEXT)
    assert r.exit_status == 2
    assert "the hub (http://127.0.0.1:9) cannot be reached" in r.err.replace("\n", " ")
    assert "Errno" not in r.err


@pytest.mark.sweep
def test_a_model_on_the_hub_is_read_once_and_then_from_the_cache(monkeypatch, saved, tmp_path):
    """Separate processes are needed because the hub's address is read at start-up."""
    folder = saved("gpt2")
    command = [sys.executable, "-m", "attnscope", "model", "someone/gpt", "--text", SHORT, "-f", "json"]
    environment = {**os.environ, "HF_HOME": str(tmp_path / "home")}
    monkeypatch.setattr(Hub, "folders", {"someone/gpt": folder})
    monkeypatch.setattr(Hub, "requests", [])
    with serving() as endpoint:
        first = subprocess.run(
            command,
            env={**environment, "HF_ENDPOINT": endpoint},
            capture_output=True,
            text=True,
            check=True,
        )
    assert any(path.endswith("model.safetensors") for _, path in Hub.requests)
    unreachable = {**environment, "HF_ENDPOINT": "http://127.0.0.1:9"}
    again = subprocess.run(command, env=unreachable, capture_output=True, text=True, check=True)
    assert again.stdout == first.stdout
    assert json.loads(first.stdout)["key_tokens"] == ["[CLS]", *SHORT.split(), "[SEP]"]


def test_a_page_of_some_heads_needs_memory_for_these_alone(attnscope, monkeypatch, tmp_path):
    import psutil

    monkeypatch.setattr(psutil, "virtual_memory", lambda: type("Memory", (), {"available": 30_000})())
    monkeypatch.setattr("attnscope.model.run.weights_fit.check_weights_fit", lambda *_, **__: None)
    page = ["--text", TEXT, "--page", tmp_path / "x.html"]
    assert attnscope("bert", *page, "--layer", "0,2", "--head", "0-1").exit_status == 0
    assert "needs at least 476.0 KiB" in attnscope("bert", *page, "--force").err


@pytest.mark.sweep
def test_ids_are_read_as_the_text_that_has_them(attnscope, minilm):
    """The ids of a text, including special tokens, give the same maps as the text."""
    from transformers import AutoTokenizer

    text = "The cat sat."
    ids = AutoTokenizer.from_pretrained(minilm)(text)["input_ids"]
    as_text = attnscope("bert", "--text", text, "--format", "json").json
    for option, given in (("--ids", ",".join(map(str, ids))), ("--tokens", "[CLS] the cat sat . [SEP]")):
        r = attnscope("bert", option, given, "--format", "json")
        assert r.json == as_text
        assert attnscope("bert", option, given, "--verify").exit_status == 0
