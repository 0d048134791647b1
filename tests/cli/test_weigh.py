"""`attnscope bert --weigh value` and `--rollout`: what they print, and what they refuse, word by word."""

from __future__ import annotations

import json

import pytest

SENTENCE = "The cat sat on the mat."


@pytest.mark.sweep
def test_the_heading_and_the_line_below_the_map_say_what_the_numbers_are(attnscope):
    r = attnscope("bert", "--text", SENTENCE, "--weigh", "value")
    assert r.exit_status == 0
    meaning = (
        "value-weighted: weight α_ij times the norm ‖v_j W_O^h‖ of the key's value; rows do not sum to 1"
    )
    lines = r.out.splitlines()
    assert lines[2] == meaning
    assert lines[-1].startswith("rows are queries, columns keys; value-weighted in % of the largest, ")
    largest = float(lines[-1].split("largest, ")[1].split(",")[0])
    record = json.loads(
        attnscope("bert", "--text", SENTENCE, "--weigh", "value", "--format", "json").out
    )
    assert (record["numbers"], record["meaning"]) == ("value-weighted", meaning)
    assert largest == pytest.approx(max(max(row) for row in record["attention"]), rel=0.01)


def test_a_rollout_names_its_layers(attnscope):
    r = attnscope("bert", "--text", SENTENCE, "--rollout")
    assert r.out.splitlines()[0] == "minilm · layers 0 to 5 of 6 · mean over 12 heads"
    several = attnscope("bert", "--text", SENTENCE, "--rollout", "--layer", "1,4")
    assert several.out.splitlines()[0] == "minilm · 2 layers of 6 · mean over 12 heads"
    assert "a map for each layer" in several.out


@pytest.mark.sweep
def test_pages_and_plots_are_written(attnscope, tmp_path):
    page, plot = tmp_path / "page.html", tmp_path / "plot.svg"
    r = attnscope("bert", "--text", SENTENCE, "--weigh", "value", "--page", page, "--plot", plot)
    assert r.exit_status == 0
    assert "wrote 72 heads" in r.err
    assert ">value-weighted</span>" in page.read_text(encoding="utf-8")
    r = attnscope("bert", "--text", SENTENCE, "--rollout", "--page", page, "--plot", plot, "--force")
    assert "wrote 6 layers" in r.err


@pytest.mark.parametrize(
    ("arguments", "message", "hint"),
    [
        (["--weigh", "value"], "--weigh needs a text, and there is none.", '--text "…" --weigh value'),
        (["--rollout"], "--rollout needs a text, and there is none.", '--text "…" --rollout'),
        (
            ["--text", SENTENCE, "--weigh", "value", "--rollout"],
            "--rollout multiplies weights whose rows sum to 1, and those of --weigh do not.",
            "one of the two",
        ),
        (
            ["--text", SENTENCE, "--weigh", "value", "--steps"],
            "--steps shows the weights themselves, and --weigh value multiplies them.",
            "one of the two",
        ),
        (
            ["--text", SENTENCE, "--rollout", "--head", "3"],
            "--rollout takes the mean over all heads, and --head is 3.",
            "leave out --head",
        ),
        (
            ["--text", SENTENCE, "--rollout", "--pool", "mean"],
            "--rollout multiplies whole maps, and --pool mean pools them.",
            "--rollout without --pool",
        ),
    ],
)
def test_what_does_not_go_together_is_refused_in_one_line_with_a_hint(
    attnscope, arguments, message, hint
):
    r = attnscope("bert", *arguments)
    assert (r.exit_status, r.out) == (2, "")
    assert r.err == f"attnscope: error: {message}\n  try  {hint}\n"
