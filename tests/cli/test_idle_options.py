"""An option that has no effect in a run is reported on stderr, and changes nothing else."""

import json

import pytest
import torch
from safetensors.torch import save_file

from tests.model.run.readers import save_picture

SMALL = ["sdpa", "--nq", 3, "--nk", 4]
MHA = ["mha", "--nq", 3, "--d-feat", 8, "--heads", 2]
TEXT = ["--text", "a dog"]
HEADS = ["heads", "minilm", *TEXT, "--metrics", "entropy"]
NO_TEXT = 'there is no text to attend in (--text "…")'


@pytest.mark.few(2)
@pytest.mark.parametrize(
    ("command", "idle", "why"),
    [
        (SMALL, ["--mask-style", "bool"], "there is no mask (--mask)"),
        (SMALL, ["--mask-style", "additive"], "there is no mask (--mask)"),
        (SMALL, ["--mask-fill", "-5"], "there is no mask (--mask)"),
        (SMALL, ["--masked-rows", "zero"], "there is no mask (--mask)"),
        (MHA, ["--masked-rows", "zero"], "there is no mask (--mask)"),
        (
            SMALL,
            ["--align", "bottom-right"],
            "nothing here depends on the positions of queries and keys",
        ),
        (
            [*SMALL, "--batch", 2, "--mask", "lengths:3,4"],
            ["--align", "lengths"],
            "nothing here depends on the positions of queries and keys",
        ),
        (SMALL, ["--rope-theta", "100"], "there are no rotary positions (--rope)"),
        (SMALL, ["--force"], "no file is written"),
        (SMALL, ["--wide"], "json has all columns anyway"),
        ([*SMALL, "--dry-run"], ["--seed", "7"], "no random values are drawn"),
        ([*SMALL, "--dry-run"], ["--draw", "uniform"], "no random values are drawn"),
        ([*SMALL, "--dry-run"], ["--device", "cuda"], "nothing is computed in a dry run"),
        (["model", "minilm"], ["--force"], "no file is written"),
        (["model", "minilm"], ["--stats"], "weights are shown with theirs"),
        (["model", "minilm"], ["--device", "cuda"], "weights are read, and no model runs"),
        (["model", "minilm"], ["--truncate"], NO_TEXT),
        (["model", "minilm"], ["--dtype", "float64"], NO_TEXT),
        (["model", "minilm"], ["--memory", "2GiB"], NO_TEXT),
        (["bert", *TEXT], ["--force"], "no file is written"),
        (HEADS, ["--field", "text"], "there is no --corpus"),
        (HEADS, ["--batch-tokens", "64"], "there is no --corpus"),
        (HEADS, ["--reverse"], "there is no --sort"),
        (HEADS, ["--wide"], "json has all columns anyway"),
        (HEADS, ["--force"], "no file is written"),
    ],
    ids=lambda case: " ".join(map(str, case)) if isinstance(case, list) else "",
)
def test_an_option_without_effect_is_told_about_and_changes_nothing(attnscope, command, idle, why):
    without = attnscope(*command, "--format", "json")
    ran = attnscope(*command, *idle, "--format", "json")
    assert ran.exit_status == without.exit_status == 0
    assert f"attnscope: {idle[0]} has no effect: {why}\n" in ran.err
    assert ran.json == without.json
    assert "has no effect" not in without.err


def test_a_share_to_drop_without_training_is_told_about(attnscope):
    ran = attnscope(*MHA, "--dropout", "0.2")
    assert (ran.exit_status, ran.err) == (
        0,
        "attnscope: --dropout has no effect: it is for training (--train)\n",
    )
    assert attnscope(*MHA, "--dropout", "0.2", "--train").err == ""


@pytest.mark.parametrize("format", ["csv", "json", "markdown"])
@pytest.mark.parametrize("bars", ["--bars", "--no-bars"])
def test_bars_are_drawn_below_a_table_alone(attnscope, bars, format):
    command = ["scaling", "--dk", "4", "--nq", 3, "--nk", 3, "--batch", 2]
    ran = attnscope(*command, bars, "--format", format)
    assert (ran.exit_status, ran.out) == (0, attnscope(*command, "--format", format).out)
    assert ran.err == (
        f"attnscope: {bars} has no effect: bars are drawn below a table, not in {format}\n"
    )
    assert attnscope(*command, bars).err == ""


TRACED = """
import torch
from torch import nn


def attend(x, block=None):
    y = x * 2
    return y


class Block(nn.Module):
    def __init__(self, d=3):
        super().__init__()
        self.linear = nn.Linear(d, d)

    def forward(self, x):
        return self.linear(x)
"""


@pytest.fixture
def traced(tmp_path, monkeypatch):
    """Create a folder with code, and with a file of all of its inputs."""
    monkeypatch.chdir(tmp_path)
    (tmp_path / "mine.py").write_text(TRACED)
    save_file({"x": torch.ones(2, 3)}, tmp_path / "x.safetensors")


def test_a_seed_of_a_trace_that_draws_nothing_is_told_about(attnscope, traced):
    drawn, read = ["--input", "x=n:2,d:3"], ["--input", "x=n,d@x.safetensors"]
    idle = "attnscope: --seed has no effect: no random values are drawn\n"
    assert attnscope("trace", "mine.py:attend", *read, "--seed", 1).err == idle
    assert attnscope("trace", "mine.py:attend", *drawn, "--device", "meta", "--seed", 1).err == idle
    assert attnscope("trace", "mine.py:attend", *read).err == ""
    assert attnscope("trace", "mine.py:attend", *drawn, "--seed", 0).err == ""
    assert attnscope("trace", "mine.py:Block", *read, "--seed", 1).err == ""


def test_training_of_what_is_no_module_is_told_about(attnscope, traced):
    command = ["--input", "x=n:2,d:3", "--train"]
    idle = "attnscope: --train has no effect: no nn.Module is called or passed in\n"
    assert attnscope("trace", "mine.py:attend", *command).err == idle
    assert attnscope("trace", "mine.py:Block", *command).err == ""
    module = ["--input", "block=mine:Block()"]
    assert attnscope("trace", "mine.py:attend", *command, *module).err == ""


def test_a_diff_has_no_columns(attnscope, traced):
    ran = attnscope("trace", "mine.py:attend", "--input", "x=n:2,d:3", "--annotate", "--wide")
    assert ran.exit_status == 0
    assert "attnscope: --wide has no effect: a diff has no columns\n" in ran.err


@pytest.mark.few(1)
@pytest.mark.parametrize("format", ["table", "markdown"])
def test_columns_of_a_map_are_none(attnscope, format):
    ran = attnscope("bert", *TEXT, "--wide", "--format", format)
    assert ran.exit_status == 0
    assert "--wide has no effect: a map has no columns" in ran.err


def test_what_is_for_texts_has_no_effect_on_a_picture(attnscope, saved, tmp_path):
    picture = save_picture(tmp_path / "p.png")
    ran = attnscope(
        "model", saved("vit"), "--image", picture, "--truncate", "--pool", "max", "-f", "json"
    )
    assert ran.exit_status == 0
    assert "--truncate has no effect: the input is a picture" in ran.err
    assert "--pool has no effect: the input is a picture" in ran.err
    assert ran.json["pooling"] is None


def test_a_seed_is_told_about_only_where_all_is_given(attnscope, tmp_path):
    save_file({name: torch.randn(3, 4) for name in "QKV"}, tmp_path / "x.safetensors")
    files = [part for name in "qkv" for part in (f"--{name}", tmp_path / "x.safetensors")]
    assert (
        "--seed has no effect: no random values are drawn" in attnscope("sdpa", *files, "--seed", 7).err
    )
    assert attnscope("sdpa", *files[:4], "--seed", 7).err == ""


def test_a_fill_beside_an_additive_mask_is_told_about(attnscope, tmp_path):
    save_file({"mask": torch.zeros(3, 4)}, tmp_path / "m.safetensors")
    mask = ["--mask", tmp_path / "m.safetensors", "--format", "json"]
    ran = attnscope(*SMALL, *mask, "--mask-fill", "-1e9")
    assert "--mask-fill has no effect: " in ran.err
    assert ran.json == attnscope(*SMALL, *mask).json


def test_texts_of_a_corpus_are_cut_anyway(attnscope, tmp_path):
    (tmp_path / "c.txt").write_text("a dog\nthe cat\n")
    ran = attnscope(
        "heads",
        "minilm",
        "--corpus",
        tmp_path / "c.txt",
        "--truncate",
        "--metrics",
        "entropy",
        "-f",
        "json",
    )
    assert ran.exit_status == 0
    assert "--truncate has no effect: the texts of a corpus are always truncated" in ran.err
    json.loads(ran.out)


def test_the_weights_of_one_head_are_not_taken_for_a_layers(attnscope, tmp_path):
    file = tmp_path / "head.safetensors"
    assert attnscope("bert", "--save", file).exit_status == 0
    ran = attnscope("mha", "--weights", file)
    assert ran.exit_status == 2
    assert ran.err.splitlines()[0] == (
        f"attnscope: error: {file} holds one head: W_Q, W_K and W_V are 32×384, and W_O is 384×32."
        " mha takes the weights of all heads: 384×384."
    )
