"""`attnscope bert`, on the command line, on the real bundled model."""

import pytest
import torch
from transformers import BertModel

NAMES = ["W_Q", "W_K", "W_V", "W_O", "b_Q", "b_K", "b_V", "b_O"]


def test_the_third_example_shows_the_heads_eight_tensors(attnscope):
    r = attnscope("bert", "--layer", 0, "--head", 0)
    assert (r.exit_status, r.err) == (0, "")
    lines = r.out.splitlines()
    assert lines[0] == "minilm · layer 0 of 6 · head 0 of 12"
    assert lines[1] == "n_head 12 · d_feat 384 · d_head 32 · float32"
    assert [line.split()[0] for line in lines[6:14]] == NAMES
    assert lines[6].split()[1:6] == ["self.query.weight", "384×384", "rows", "0:32", "32×384"]
    assert lines[9].split()[1:6] == ["output.dense.weight", "384×384", "columns", "0:32", "384×32"]


@pytest.mark.parametrize("suffix", ["safetensors", "npz", "pt"])
def test_save_writes_the_eight_tensors(attnscope, minilm, tmp_path, read_tensors, suffix):
    path = tmp_path / f"head.{suffix}"
    r = attnscope("bert", "--layer", 2, "--head", 5, "--save", path)
    assert r.exit_status == 0
    assert "wrote 8 tensors" in r.err
    saved = read_tensors(path)
    attention = BertModel.from_pretrained(minilm).encoder.layer[2].attention
    assert sorted(saved) == sorted(NAMES)
    assert torch.equal(saved["W_K"], attention.self.key.weight[160:192])
    assert torch.equal(saved["W_O"], attention.output.dense.weight[:, 160:192])
    assert torch.equal(saved["b_O"], attention.output.dense.bias)


def test_show_prints_a_slices_values(attnscope, minilm):
    r = attnscope("bert", "--head", 1, "--show", "W_Q[0,:3]", "--format", "json")
    shown = r.json["shown"]
    weight = BertModel.from_pretrained(minilm).encoder.layer[0].attention.self.query.weight
    assert shown["values"] == weight[32, :3].tolist()
    assert shown["dims"] == ["d_feat"]
    r = attnscope("bert", "--show", "W_O")
    assert "W_O  d_feat d_head  384×32  float32" in r.out
    assert "b_O  d_feat  384" in attnscope("bert", "--show", "b_O").out
    assert "b_Q  d_head  32" in attnscope("bert", "--show", "b_Q").out


def test_verify_holds_and_says_so(attnscope):
    r = attnscope("bert", "--layer", 1, "--head", 3, "--verify")
    assert r.exit_status == 0
    assert r.out.count("holds") == 11
    assert "FAILS" not in r.out


def test_verify_exits_1_when_a_check_fails(attnscope, monkeypatch):
    from attnscope.model.weights import verify as verify

    monkeypatch.setattr(verify, "TOLERANCE", -1.0)
    r = attnscope("bert", "--verify", "--format", "json")
    assert r.exit_status == 1
    *measured, head = r.json["checks"]
    assert not any(check["ok"] for check in measured)
    assert head["ok"]  # whose verdict is no difference
    assert "FAILS" in attnscope("bert", "--verify").out


@pytest.mark.parametrize(
    ("arguments", "message", "hint"),
    [
        (["--layer", 6], "there is no layer 6 in minilm: it has layers 0 to 5.", "--layer 5"),
        (["--head", 12], "there is no head 12 in minilm: it has heads 0 to 11.", "--head 11"),
        (["--head", -1], "--head is '-1', but takes numbers from 0.", "--head 3, 0-3, 0,2 or all"),
        (["--layer", "x"], "--layer is 'x', but takes numbers from 0.", "--layer 3, 0-3, 0,2 or all"),
        (
            ["--model", "./nowhere"],
            "there is no folder ./nowhere.",
            "minilm, a folder, or a hub name such as bert-base-uncased",
        ),
        (
            ["--show", "W_X"],
            "there is no 'W_X' in this head.",
            "one of W_Q, W_K, W_V, W_O, b_Q, b_K, b_V, b_O",
        ),
        (
            ["--show", "W_Q[32]"],
            "'W_Q[32]': index 32 of d_head is out of range: it has 32, 0 to 31.",
            None,
        ),
    ],
)
def test_a_mistake_gets_a_clear_line_and_exit_status_2(attnscope, arguments, message, hint):
    r = attnscope("bert", *arguments)
    assert (r.exit_status, r.out) == (2, "")
    assert r.err == f"attnscope: error: {message}\n" + (f"  try  {hint}\n" if hint else "")


def test_verify_as_csv_is_refused_before_the_model_runs(attnscope):
    r = attnscope("bert", "--verify", "--format", "csv")
    assert (r.exit_status, r.out) == (2, "")
    assert r.err.startswith("attnscope: error: csv holds one table, and --verify prints more.")


def test_nothing_is_written_when_something_is_wrong(attnscope, tmp_path):
    path = tmp_path / "x.npz"
    assert attnscope("bert", "--save", path, "--show", "W_X").exit_status == 2
    assert attnscope("bert", "--save", path, "--layer", 99).exit_status == 2
    assert attnscope("bert", "--save", tmp_path / "x.foo").exit_status == 2
    assert list(tmp_path.iterdir()) == []


def test_a_folder_is_named_with_and_without_the_option(attnscope, minilm):
    named = attnscope("bert", minilm, "--layer", 1, "--format", "json")
    assert named.exit_status == 0
    assert named.out == attnscope("bert", "--model", minilm, "--layer", 1, "--format", "json").out
    both = attnscope("bert", minilm, "--model", "minilm")
    assert (both.exit_status, both.out) == (2, "")
    assert "and --model minilm: give only one" in both.err
