"""`attnscope scaling`, on the command line."""

import csv
import io
import math
import re

import pytest
import torch

from attnscope.base.process import devices as drawn

FEW = ["--dk", "1,64", "--batch", 2, "--nq", 5, "--nk", 6]


def rows(attnscope, *arguments):
    """Return the rows by width, without the scale and with it."""
    found = attnscope("scaling", *arguments, "--format", "json").json["rows"]
    return {(row["d_K"], row["scaled"]): row for row in found}


def test_the_default_run_shows_what_the_scale_is_for(attnscope):
    shown = rows(attnscope)
    widths = [1, 4, 16, 64, 256, 1024]
    assert list(shown) == [(d_K, scaled) for d_K in widths for scaled in (False, True)]
    for d_K in widths:
        assert shown[d_K, False]["variance"] == pytest.approx(d_K, rel=0.1)
        assert shown[d_K, True]["variance"] == pytest.approx(1, rel=0.1)
        assert shown[d_K, True]["entropy"] == pytest.approx(3.7, abs=0.1)
        assert 0 < shown[d_K, False]["entropy"] <= math.log(64)
    assert shown[1024, False]["entropy"] < 0.2
    assert shown[1024, False]["largest_weight"] > 0.9 > 0.2 > shown[1024, True]["largest_weight"]
    assert shown[1024, False]["gradient_norm"] < 0.001
    assert shown[1024, True]["gradient_norm"] == pytest.approx(shown[1, True]["gradient_norm"], rel=0.25)
    for scaled in (False, True):
        assert shown[1, scaled] == {**shown[1, True], "scaled": scaled}


@pytest.mark.few(1)
@pytest.mark.parametrize("seed", range(1, 6))
def test_other_seeds_show_the_same_to_a_tenth(attnscope, seed):
    shown, other = rows(attnscope), rows(attnscope, "--seed", seed)
    for place, row in shown.items():
        for key in ("variance", "entropy", "largest_weight", "gradient_norm_mean"):
            assert other[place][key] == pytest.approx(row[key], rel=0.15), (place, key)


@pytest.mark.sweep
def test_the_table_has_bars_and_sentences_with_this_runs_numbers(attnscope):
    r = attnscope("scaling", "--dk", "1,1024")
    shown = rows(attnscope, "--dk", "1,1024")
    assert (r.exit_status, r.err) == (0, "")
    assert r.out.startswith(
        "scaling\nn_batch 64 · n_Q 64 · n_K 64\n"
        "scores with and without the scale 1/√d_K · float32 · seed 0\n"
    )
    assert f"the variance of the scores is {shown[1024, False]['variance']:.1f} and" in r.out
    assert r.out.count("█") > 50
    assert "█" not in attnscope("scaling", "--no-bars").out


@pytest.mark.few(1)
@pytest.mark.parametrize("suffix", [".png", ".svg", ".pdf"])
def test_a_figure_is_drawn_into_a_file(attnscope, tmp_path, suffix):
    path = tmp_path / f"scaling{suffix}"
    r = attnscope("scaling", *FEW, "--plot", path)
    assert (r.exit_status, r.out) == (0, attnscope("scaling", *FEW).out)
    assert r.err.startswith(f"attnscope: drew {path}, ")
    content = path.read_bytes()
    assert content.startswith({".png": b"\x89PNG", ".svg": b"<?xml", ".pdf": b"%PDF"}[suffix])
    if suffix == ".svg":
        assert all(text in content for text in (b"variance", b"gradient norm", b"without 1/"))
    again = attnscope("scaling", *FEW, "--plot", path)
    assert (again.exit_status, path.read_bytes()) == (2, content)
    assert attnscope("scaling", *FEW, "--plot", path, "--force").exit_status == 0
    assert attnscope("scaling", *FEW, "--plot", tmp_path / "x.gif").exit_status == 2


def test_sizes_and_seed_are_those_asked_for(attnscope):
    document = attnscope("scaling", *FEW, "--seed", 3, "--format", "json").json
    assert document["sizes"] == {"n_batch": 2, "n_Q": 5, "n_K": 6}
    assert (document["seed"], document["dtype"]) == (3, "float32")
    torch.manual_seed(3)
    Q, K = torch.randn(2, 5, 64), torch.randn(2, 6, 64)
    scores = (Q @ K.mT).double()
    assert document["rows"][2]["variance"] == pytest.approx(float(scores.var(correction=0)), rel=1e-6)
    largest = (scores / 8).softmax(-1).amax(-1).mean()
    assert document["rows"][3]["largest_weight"] == pytest.approx(float(largest), rel=1e-5)


def test_a_widths_numbers_do_not_depend_on_the_other_widths(attnscope):
    together = rows(attnscope, "--dk", "64, 1,16")
    assert list(together) == [(d_K, scaled) for d_K in (64, 1, 16) for scaled in (False, True)]
    alone = rows(attnscope, "--dk", 16)
    assert {place: row for place, row in together.items() if place[0] == 16} == alone


def test_a_width_asked_for_twice_is_shown_twice(attnscope):
    found = attnscope("scaling", "--dk", "4,8,4", "--format", "json").json["rows"]
    assert [row["d_K"] for row in found] == [4, 4, 8, 8, 4, 4]
    assert found[:2] == found[4:]


@pytest.mark.few(3)
@pytest.mark.parametrize("dtype", ["float64", "float32", "float16", "bfloat16"])
def test_every_dtype_shows_the_same_to_its_precision(attnscope, dtype):
    document = attnscope("scaling", "--dk", "1,64", "--dtype", dtype, "--format", "json").json
    assert document["dtype"] == dtype
    assert document["rows"][2]["variance"] == pytest.approx(64, rel=0.05)
    assert document["rows"][3]["largest_weight"] == pytest.approx(0.107, abs=0.005)


def test_all_formats_hold_the_same_rows(attnscope):
    r = attnscope("scaling", *FEW, "--format", "json").json
    table = list(csv.DictReader(io.StringIO(attnscope("scaling", *FEW, "--format", "csv").out)))
    assert table == [{key: str(value) for key, value in row.items()} for row in r["rows"]]
    markdown = attnscope("scaling", *FEW, "--format", "markdown").out
    lines = [line.strip("| ").split(" | ") for line in markdown.splitlines() if line.startswith("|")]
    assert [line[:2] for line in lines[2:]] == [
        ["1", "without"], ["1", "with"], ["64", "without"], ["64", "with"],
    ]  # fmt: skip
    shown = [[f"{row['variance']:.1f}", f"{row['entropy']:.2f}"] for row in r["rows"]]
    assert [line[2:4] for line in lines[2:]] == shown
    text = attnscope("scaling", *FEW).out
    pairs = [f"{shown[i][0]:>7}  {shown[i + 1][0]:>4}" for i in (0, 2)]
    assert all(pair in text for pair in pairs)
    said = [finding["message"] for finding in r["findings"]]
    assert said == text.splitlines()[-2:]
    assert all(f"- {sentence}" in markdown for sentence in said)


def test_scores_beyond_the_dtype_are_told_not_hidden(attnscope, monkeypatch):
    """Independent draws that fit into memory never produce such large scores, so these draws are equal."""

    def large(shape, *, dtype, **_):
        return torch.full(shape, 200.0, dtype=getattr(torch, dtype))

    monkeypatch.setattr(drawn, "draw", large)
    r = attnscope("scaling", *FEW, "--dtype", "float16")
    assert r.exit_status == 0
    assert r.out.endswith(
        "\nSome scores exceed the range of float16, so what is computed from them is NaN or infinite.\n"
    )
    found = attnscope("scaling", *FEW, "--dtype", "float16", "--format", "json").json["rows"]
    assert found[2]["variance"] == found[2]["entropy"] == "NaN"


@pytest.mark.parametrize("wrong", ["x", "", "1.5", "1e3", "1_000", "--", "0x10", "9" * 19, "٤"])
def test_what_is_no_width_is_refused(attnscope, wrong):
    r = attnscope("scaling", "--dk", f"4,{wrong}")
    assert (r.exit_status, r.out) == (2, "")
    assert r.err == (
        f"attnscope: error: {wrong!r} is not a width: --dk takes whole numbers of at most 18 digits,"
        " and commas.\n  try  --dk 1,16,256\n"
    )


@pytest.mark.parametrize(
    ("arguments", "message", "hint"),
    [
        (["--dk", ""], "'' is not a width: --dk takes whole numbers of at most 18 digits, and commas.",
         "--dk 1,16,256"),
        (["--dk", "1,0"], "d_K is 0, but a size is a whole number from 1 up.", None),
        (["--dk", "-3"], "d_K is -3, but a size is a whole number from 1 up.", None),
        (["--nq", 0], "n_Q is 0, but a size is a whole number from 1 up.", None),
        (["--nk", -1], "n_K is -1, but a size is a whole number from 1 up.", None),
        (["--batch", 0], "n_batch is 0, but a size is a whole number from 1 up.", None),
        (["--nq", "abc"], "--nq is 'abc', but takes a whole number.", "--nq 64"),
        (["--dtype", "int8"], "'int8' is not a dtype that attention runs in.",
         "--dtype float64, float32, float16, bfloat16"),
        (["--seed", 2**64], f"{2**64} is not a valid seed: it does not fit into 64 bits.", "--seed 0"),
        (["--device", "cuda"], "scaling has no option --device; sdpa, mha, mask, audit, trace, bert, maps, answer, heads and effects have it.", "attnscope sdpa --help"),
    ],
)  # fmt: skip
def test_a_mistake_gets_a_clear_line_and_exit_status_2(attnscope, arguments, message, hint):
    r = attnscope("scaling", *arguments)
    assert (r.exit_status, r.out) == (2, "")
    assert r.err == f"attnscope: error: {message}\n" + (f"  try  {hint}\n" if hint else "")


def test_more_memory_than_is_free_is_refused_at_once(attnscope):
    r = attnscope("scaling", "--dk", f"1,{10**15}")
    assert (r.exit_status, r.out) == (2, "")
    assert re.fullmatch(
        r"attnscope: error: this run needs at least \S+ EiB, but cpu has \S+ .iB free\.\n"
        r"  try  a smaller --dk, --batch, --nq or --nk\n",
        r.err,
    )
