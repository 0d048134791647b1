"""`attnscope compare`: exit status, formats and errors."""

import csv
import io
import json

import pytest

from tests.code.compare.code.styles import source

CORRECT = """
import math


def attention(Q, K, V, mask=None):
    scores = Q @ K.mT / math.sqrt(Q.size(-1))
    if mask is not None:
        scores = scores.masked_fill(~mask, float("-inf"))
    return scores.softmax(-1) @ V
"""
SIZES = ["--init", "d_feat=24", "--init", "n_head=4", "--init", "n_kv_head=2"]


@pytest.fixture
def files(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "right.py").write_text(CORRECT)
    (tmp_path / "wrong.py").write_text(CORRECT.replace("math.sqrt(Q.size(-1))", "Q.size(-1)"))
    (tmp_path / "old.py").write_text(source("heads first"))
    (tmp_path / "new.py").write_text(source("einsum", "mask top-left"))


def test_a_correct_function_has_status_0_and_a_wrong_one_1(attnscope, files):
    r = attnscope("compare", "right.py:attention", "sdpa")
    assert (r.exit_status, r.err) == (0, "")
    assert r.out.startswith(
        "compare: equal up to rounding in float32\na: sdpa · b: right.py:attention\n"
    )
    r = attnscope("compare", "wrong.py:attention", "sdpa")
    assert r.exit_status == 1
    assert "b divides by d_head = 8, a divides by √d_head = √8" in r.out
    assert "b  wrong.py:6  scores = Q @ K.mT / Q.size(-1)" in r.out


def test_a_mask_goes_to_both_sides(attnscope, files):
    sizes = "Q=n_batch:2,n_Q:5,d:8", "K=n_batch,n_K:7,d", "V=n_batch,n_K,d", "mask=n_Q,n_K@bool"
    options = [word for each in sizes for word in ("--input", each)]
    r = attnscope("compare", "right.py:attention", "sdpa", *options)
    assert r.exit_status == 0
    assert "scores_masked" in r.out


def test_causal_is_for_the_reference(attnscope, files):
    r = attnscope("compare", "right.py:attention", "sdpa", "--causal")
    assert r.exit_status == 1
    assert "b has no mask: a hides" in r.out


def test_the_scale_of_the_reference_is_an_option(attnscope, files):
    r = attnscope("compare", "wrong.py:attention", "sdpa", "--scale", 1 / 8)
    assert (r.exit_status, r.err) == (0, "")
    r = attnscope("compare", "wrong.py:attention", "sdpa", "--scale", 1 / 8, "--rope-theta", 50)
    assert r.err == "attnscope: --rope-theta has no effect: there are no rotary positions (--rope)\n"
    r = attnscope("compare", "right.py:attention", "sdpa", "--rope")
    assert r.exit_status == 1
    assert "b does not rotate Q by its positions, and a rotates it" in r.out


def test_before_and_after_a_change(attnscope, files):
    inputs = ["--input", "x=2,5,24", "--input", "y=2,7,24"]
    r = attnscope("compare", "old.py:Attention", "new.py:Attention", *SIZES, *inputs)
    assert r.exit_status == 1
    assert "b aligns its causal mask top-left, a bottom-right" in r.out
    assert "with this corrected, the outputs are equal" in r.out


def test_formats(attnscope, files):
    command = ("compare", "wrong.py:attention", "sdpa", "--format")
    record = json.loads(attnscope(*command, "json").out)
    assert record["schema"] == "attnscope.comparison/1"
    assert record["status"] == "different"
    assert record["divergences"][0]["cause"] == "scaled twice"
    rows = list(csv.DictReader(io.StringIO(attnscope(*command, "csv").out)))
    assert [row["status"] for row in rows if row["role"] == "scores"] == ["different"]
    assert {row["b_line"] for row in rows if row["role"] == "scores"} == {"6"}
    markdown = attnscope(*command, "markdown").out
    assert "| scores |" in markdown
    assert "scaled twice" in markdown


def test_other_sizes_are_not_comparable(attnscope, files, tmp_path):
    (tmp_path / "short.py").write_text(
        CORRECT + "\n\ndef half(Q, K, V):\n    return attention(Q, K, V)[..., :3]\n"
    )
    r = attnscope("compare", "short.py:half", "sdpa")
    assert r.exit_status == 2
    assert "output is 2×3×5×6 in sdpa, and 2×3×5×3 in short.py:half: axis 3 is 6 and 3" in r.err


def test_two_models_and_two_texts(attnscope):
    assert attnscope("compare", "minilm", "minilm").exit_status == 0
    r = attnscope("compare", "minilm", "--text", "The cat sat.", "--text", "The dog sat.", "--layer", 0)
    assert r.exit_status == 1
    assert "minilm: text A → text B" in r.out


@pytest.mark.parametrize("columns", [60, 80, 200])
def test_it_fits_into_a_terminal(attnscope, files, monkeypatch, columns):
    monkeypatch.setenv("COLUMNS", str(columns))
    monkeypatch.setenv("FORCE_COLOR", "1")
    lines = attnscope("compare", "wrong.py:attention", "sdpa").out.splitlines()
    import re

    plain = [re.sub(r"\x1b\[[\d;]*m", "", line) for line in lines]
    assert max(map(len, plain)) <= columns


def test_code_alone_is_compared_with_the_reference_that_fits(attnscope, files):
    assert "a: sdpa · b: right.py:attention" in attnscope("compare", "right.py:attention").out
    inputs = ["--input", "x=2,5,24", "--input", "y=2,5,24"]
    r = attnscope("compare", "old.py:Attention", *SIZES, *inputs, "--same", "K=y", "--same", "V=y")
    assert "a: mha · b: old.py:Attention" in r.out


def test_backward_compares_gradients(attnscope, files):
    r = attnscope("compare", "right.py:attention", "sdpa", "--backward")
    assert r.exit_status == 0
    assert "gradient of a" in r.out
    record = json.loads(
        attnscope("compare", "right.py:attention", "sdpa", "--backward", "--format", "json").out
    )
    assert [each["status"] for each in record["gradients"]] == ["equal"] * 3


@pytest.mark.parametrize(("flag", "name"), [("--page", "heads.html"), ("--plot", "heads.svg")])
def test_a_drawing_of_code_is_refused_before_the_code_runs(attnscope, files, tmp_path, flag, name):
    (tmp_path / "writes.py").write_text('open("ran", "w").close()\n' + CORRECT)
    r = attnscope("compare", "writes.py:attention", "sdpa", flag, name)
    assert (r.exit_status, r.out) == (2, "")
    assert r.err == f"attnscope: error: {flag} is for two models, and one side is code.\n"
    assert not (tmp_path / "ran").exists()


def test_trace_verify_adds_the_comparison_as_a_check(attnscope, files):
    inputs = [word for each in ("Q=2,5,8", "K=2,7,8", "V=2,7,8") for word in ("--input", each)]
    r = attnscope("trace", "right.py:attention", *inputs, "--verify", "--format", "json")
    assert r.exit_status == 0
    [check] = json.loads(r.out)["checks"]
    assert (check["name"], check["ok"]) == ("sdpa", True)
    r = attnscope("trace", "wrong.py:attention", *inputs, "--verify")
    assert r.exit_status == 1
    assert "FAILS" in r.out
    assert "scores: scaled twice" in r.out
    r = attnscope("trace", "right.py:attention", *inputs, "--verify", "--device", "meta")
    assert r.err.startswith("attnscope: error: --verify compares on the CPU")


def test_a_trace_that_is_verified_draws_the_inputs_of_compare(attnscope, files):
    r = attnscope("trace", "right.py:attention", "--verify", "--format", "json")
    record = json.loads(r.out)
    assert (r.exit_status, record["checks"][0]["ok"]) == (0, True)
    steps = {each["name"]: each["dims"] for each in record["steps"]}
    assert steps["K"] == ["n_batch", "n_head", "n_K", "d_head"]
    assert attnscope("trace", "wrong.py:attention", "--verify").exit_status == 1
