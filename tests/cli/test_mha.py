"""`attnscope mha`, on the command line."""

import pytest
import torch
from hypothesis import HealthCheck, given
from hypothesis import strategies as st
from safetensors.torch import load_file

from attnscope.attention.mha import MultiHeadAttention
from tests.profiles import examples

STEPS = (
    "Q K V Q_feat K_feat V_feat Q_split K_split V_split scores attention x_raw x_rsh1 x_rsh2 x".split()
)


def names(r):
    return [step["name"] for step in r.json["steps"]]


def test_the_second_example_shows_every_intermediate(attnscope):
    r = attnscope("mha", "--d-feat", 200, "--heads", 5)
    assert (r.exit_status, r.err) == (0, "")
    lines = r.out.splitlines()
    assert [line.split()[0] for line in lines[6:-3]] == STEPS
    assert lines[1] == "n_batch 128 · n_Q 32 · n_K 32 · d_feat 200 · n_head 5 · d_head 40"
    assert lines[2] == (
        "scale 1/√d_head = 0.1581 · self attention · bias · dropout 0.1 · eval mode · softmax in float32"
        " · float32 · cpu · seed 0"
    )


def test_training_adds_dropout_and_its_absence_does_not(attnscope):
    dropped = [*STEPS[:11], "attention_drop", *STEPS[11:]]
    assert names(attnscope("mha", "--train", "-f", "json")) == dropped
    assert names(attnscope("mha", "--train", "--dropout", 0, "-f", "json")) == STEPS
    assert names(attnscope("mha", "--eval", "--dropout", 0.5, "-f", "json")) == STEPS


def test_self_attention_has_one_input_and_cross_attention_two(attnscope):
    alone = attnscope("mha", "-f", "json").json["steps"]
    assert [step["same_as"] for step in alone[:3]] == [None, "Q", "Q"]
    cross = attnscope("mha", "--nk", 7, "-f", "json").json["steps"]
    assert [step["same_as"] for step in cross[:3]] == [None, None, "K"]
    assert cross[1]["shape"] == [128, 7, 200]


@pytest.mark.few(2)
@pytest.mark.parametrize("options", [[], ["--no-bias"], ["--nk", "7"], ["--scale-by", "d_feat"]])
def test_the_rows_are_those_of_the_module_run_by_hand(attnscope, tmp_path, options):
    path = tmp_path / "x.safetensors"
    arguments = ["--batch", 2, "--nq", 3, "--d-feat", 8, "--heads", 2, "--dtype", "float64", "--seed", 5]
    assert attnscope("mha", *arguments, *options, "--save", path).exit_status == 0
    tensors = load_file(path)
    torch.manual_seed(5)
    Q = torch.randn(2, 3, 8, dtype=torch.float64)
    K = torch.randn(2, 7, 8, dtype=torch.float64) if "--nk" in options else Q
    scale_by = "d_feat" if "--scale-by" in options else "d_head"
    mha = MultiHeadAttention(
        d_feat=8, n_head=2, bias="--no-bias" not in options, scale_by=scale_by, dtype=torch.float64
    )
    assert torch.equal(tensors["Q"], Q)
    assert torch.equal(tensors["x"], mha(Q, K, K))
    assert torch.equal(tensors["Q_feat"], mha.W_Q(Q))
    assert sorted(tensors) == sorted(STEPS)


def test_the_slip_in_the_scale_is_told(attnscope):
    r = attnscope("mha", "--scale-by", "d_feat")
    assert "scale 1/√d_feat = 0.07071" in r.out
    assert (
        "! the scores are divided by √d_feat = √200, but Q and K are contracted over d_head = 40"
        in r.out
    )
    assert "!" not in attnscope("mha").out


@pytest.mark.sweep
@given(data=st.data())
@examples(6, 40, ignoring=[HealthCheck.function_scoped_fixture])
def test_a_dry_run_shows_the_rows_of_the_real_run(assert_same_rows, data):
    sizes = st.integers(1, 8)
    heads = data.draw(sizes, label="heads")
    arguments = ["--heads", heads, "--d-feat", heads * data.draw(sizes, label="d_head")]
    arguments += ["--batch", data.draw(sizes, label="batch"), "--nq", data.draw(sizes, label="nq")]
    if data.draw(st.booleans(), label="cross"):
        arguments += ["--nk", data.draw(sizes, label="nk")]
    arguments += [data.draw(st.sampled_from(["--bias", "--no-bias"]))]
    arguments += [data.draw(st.sampled_from(["--train", "--eval"]))]
    arguments += ["--dropout", data.draw(st.sampled_from([0.0, 0.1, 1.0]))]
    arguments += ["--scale-by", data.draw(st.sampled_from(["d_head", "d_feat"]))]
    arguments += ["--dtype", data.draw(st.sampled_from(["float64", "float32", "float16", "bfloat16"]))]
    arguments += ["--device", data.draw(st.sampled_from(["cpu", "meta"]))]
    assert_same_rows("mha", arguments)


def test_a_dry_run_of_any_size_answers(attnscope):
    r = attnscope("mha", "--dry-run", "--nq", 10**6, "--d-feat", 8192, "--heads", 64)
    assert r.exit_status == 0
    assert "128×64×1000000×1000000" in r.out
    assert "largest: scores and attention, 29.1 PiB each" in r.out


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--heads", 7], "d_feat is 200, which does not divide into 7 heads: 200 / 7 leaves 4."),
        (["--heads", 0], "n_head is 0, but a size is a whole number from 1 up."),
        (["--d-feat", 0], "d_feat is 0, but a size is a whole number from 1 up."),
        (["--nk", 0], "n_K is 0, but a size is a whole number from 1 up."),
        (["--dropout", 1.5], "dropout is 1.5, but a probability is between 0 and 1."),
        (["--dropout", "nan"], "dropout is nan, but a probability is between 0 and 1."),
        (
            ["--scale-by", "foo"],
            "--scale-by is 'foo'.",
        ),
        (["--d-head", 0], "d_head is 0, but a size is a whole number from 1 up."),
        (["--layer", 2], "--layer 2 is a layer of a model, but there is none."),
        (
            ["--weights", "minilm", "--stack", "self"],
            "--stack self selects layers of a model, but there is no --layer.",
        ),
        (["--weights", "minilm"], "minilm is not a file of weights."),
        (["--weights", "minilm", "--layer", 6], "there is no layer 6 in minilm: it has layers 0 to 5."),
        (
            ["--weights", "minilm", "--layer", 2, "--heads", 5],
            "layer 2 of minilm has n_head 12, but --heads says that n_head is 5.",
        ),
        (
            ["--weights", "minilm", "--layer", 2, "--d-head", 16],
            "layer 2 of minilm has d_head 32, but --d-head says that d_head is 16.",
        ),
        (
            ["--weights", "minilm", "--layer", 2, "--stack", "cross"],
            "there is no stack cross in minilm: it has self.",
        ),
        (
            ["--weights", __file__, "--layer", 2],
            f"{__file__} is a file, but a model is a folder with a config.json.",
        ),
    ],
)
@pytest.mark.parametrize("dry", [[], ["--dry-run"]])
def test_a_mistake_gets_a_clear_line_and_exit_status_2(attnscope, arguments, message, dry):
    r = attnscope("mha", *arguments, *dry)
    assert (r.exit_status, r.out) == (2, "")
    assert r.err.startswith(f"attnscope: error: {message}\n")


@pytest.mark.parametrize("options", [[], ["--kv-heads", 1, "--rope"], ["--nk", 7, "--d-value", 5]])
def test_heads_may_be_wider_or_narrower_than_their_share_of_the_model(attnscope, options):
    for d_feat in (20, 50):
        arguments = ["--batch", 2, "--nq", 4, "--d-feat", d_feat, "--heads", 3, "--d-head", 8, *options]
        r = attnscope("mha", *arguments, "--verify", "-f", "json")
        shapes = {step["name"]: (step["dims"], step["shape"]) for step in r.json["steps"]}
        assert (r.exit_status, shapes["x"][1]) == (0, [2, 4, d_feat])
        assert shapes["Q_feat"] == (["n_batch", "n_Q", "n_head·d_head"], [2, 4, 24])
    assert attnscope("mha", "--heads", 3, "--d-head", 8, "-f", "json").json["sizes"]["d_feat"] == 24


def test_a_layer_of_a_model_sets_sizes_and_weights(attnscope, assert_same_rows):
    arguments = ["--weights", "minilm", "--layer", 2, "--batch", 2, "--nq", 4]
    r = attnscope("mha", *arguments, "--verify")
    assert (r.exit_status, r.err) == (0, "")
    lines = r.out.splitlines()
    assert lines[1] == "n_batch 2 · n_Q 4 · n_K 4 · d_feat 384 · n_head 12 · d_head 32"
    assert lines[2].startswith("layer 2 of minilm · scale 1/√d_head = 0.1768 · self attention · bias ")
    assert_same_rows("mha", arguments)
    csv = attnscope("mha", *arguments, "--format", "csv").out.splitlines()
    assert len(csv) == len(STEPS) + 1


def test_memory_counts_the_weights_too(attnscope):
    r = attnscope("mha", "--batch", 1, "--nq", 1, "--d-feat", 10**6, "--heads", 1)
    assert r.exit_status == 2
    assert "this run needs at least 14.6 TiB" in r.err or "needs at least 14.6 TiB" in r.err
