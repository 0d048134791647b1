"""`attnscope mask`: the picture, the formats, the files, and the exit status."""

import csv
import io
import json
import re
import sys

import numpy as np
import pytest
from safetensors.numpy import load_file

import attnscope as library
from attnscope.document.console import Terminal
from attnscope.document.terminal import print_document

CAUSAL = """\
mask: causal and --window 3
n_Q 5 · n_K 5

visible                    pairs   share
────────────────────────────────────────
causal, at most 3 keys  12 of 25  48.0 %

  0
0 ■ · · · ·
1 ■ ■ · · ·
2 ■ ■ ■ · ·
3 · ■ ■ ■ ·
4 · · ■ ■ ■
rows are queries, columns keys; ■ visible, · hidden
"""


def test_a_small_mask_is_drawn_pair_by_pair(attnscope):
    r = attnscope("mask", "causal", "--window", 3, "--nq", 5)
    assert (r.exit_status, r.err, r.out) == (0, "", CAUSAL)


def test_blocks_are_counted_where_there_are_several_and_a_cache_may_be_empty(attnscope):
    r = attnscope("mask", "causal", "--nq", 5, "--block", 2, "--past", 0)
    assert "n_Q 5 · n_K 5 · blocks of 2 × 2" in r.out
    assert re.search(r"full +partial +empty +saved", r.out)
    csv_text = attnscope("mask", "causal", "--nq", 5, "-f", "csv").out
    assert next(csv.DictReader(io.StringIO(csv_text)))["partial"] == "1"


MASKS = """
import numpy as np
import torch


def seen(size):
    return torch.ones(1, size, size).triu(1).type(torch.uint8) == 0


def future(size):
    return torch.ones(size, size).triu(1).bool()


def added(size):
    return torch.full((size, size), float("-inf")).triu(1)


def numbers(size):
    return np.triu(np.ones((1, size, size)), k=1).astype("uint8")


def near(size):
    return (torch.arange(size)[:, None] - torch.arange(size)).abs() < 2


def attend(x):
    return x @ x.mT
"""


@pytest.fixture
def masks_file(tmp_path):
    (tmp_path / "masks.py").write_text(MASKS)
    return tmp_path / "masks.py"


@pytest.mark.parametrize("name", ["seen", "future", "added", "numbers"])
def test_the_mask_that_a_function_of_a_size_returns_is_drawn(attnscope, masks_file, name):
    for sizes in (("--nq", 6), ("--init", "size=6")):
        record = json.loads(attnscope("mask", f"{masks_file}:{name}", *sizes, "-f", "json").out)
        [mask] = record["masks"]
        assert [row for [row] in mask["planes"][0]["visible"]] == [[0, i + 1] for i in range(6)]
    text = attnscope("mask", f"{masks_file}:{name}", "--nq", 6).out
    meaning = {"seen": "True is visible", "future": "True hides", "numbers": "1 hides"}.get(name)
    assert ("or else a query would see no key" in text) == (meaning is not None)
    assert meaning is None or meaning in text


def test_a_guess_of_what_a_boolean_means_is_said_and_can_be_stated(attnscope, masks_file):
    plain = attnscope("mask", f"{masks_file}:near", "--nq", 5).out
    assert "that True is visible is a guess: --hides 1 says otherwise" in plain
    stated = attnscope("mask", f"{masks_file}:near", "--nq", 5, "--hides", 1).out
    assert "guess" not in stated
    assert "13 of 25" in plain
    assert "12 of 25" in stated


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (("added", "--nq", 4, "--hides", 1), "returns numbers to add"),
        (("near", "--nq", 4, "--hides", 2), "--hides is 2"),
        (("attend", "--nq", 4), "attend takes x"),
    ],
)
def test_what_returns_no_mask_of_zeros_and_ones_is_explained(attnscope, masks_file, arguments, words):
    r = attnscope("mask", f"{masks_file}:{arguments[0]}", *arguments[1:])
    assert r.exit_status == 2
    assert words in r.err


@pytest.mark.parametrize("rule", ["window:2,2", "window:1,1"])
def test_a_table_fits_a_terminal_of_80_columns(attnscope, monkeypatch, rule):
    for name, value in {"FORCE_COLOR": "1", "COLUMNS": "80", "TERM": "xterm-256color"}.items():
        monkeypatch.setenv(name, value)
    out = attnscope("mask", rule, "--nq", 4, "--nk", 8, "--align", "bottom-right", "--block", 2).out
    lines = re.sub(r"\x1b\[[0-9;]*m", "", out).splitlines()
    assert "2 × 2" in out
    assert max(map(len, lines)) <= 80


def test_a_large_mask_is_drawn_in_cells(attnscope):
    r = attnscope("mask", "causal", "window:200", "--nq", 2000, "--cell", 250)
    lines = r.out.splitlines()
    assert [line.split()[1] for line in lines[8:16]] == [
        "▒▒··············",
        "▒▒▒▒············",
        "··▒▒▒▒··········",
        "····▒▒▒▒········",
        "······▒▒▒▒······",
        "········▒▒▒▒····",
        "··········▒▒▒▒··",
        "············▒▒▒▒",
    ]
    assert lines[16].endswith("a cell is 250 × 250 pairs: █ all visible, ▒ some, · none")


def test_an_encoding_without_these_characters_gets_others(attnscope, monkeypatch):
    monkeypatch.setattr(sys, "stdout", io.TextIOWrapper(io.BytesIO(), encoding="ascii"))
    attnscope("mask", "causal", "--nq", 3)
    sys.stdout.flush()
    text = sys.stdout.buffer.getvalue().decode("ascii")
    assert "\n1 # # .\n" in text


def test_tokens_are_those_that_ran(attnscope):
    r = attnscope("mask", "minilm", "--text", "The cat.", "--text", "Hi", "--verify")
    assert (r.exit_status, r.err) == (0, "")
    lines = r.out.splitlines()
    first = lines.index("sequence 1: all but 2 keys")
    assert [line.rstrip() for line in lines[first + 1 : first + 7]] == [
        "        0",
        "0 [CLS] ■ ■ ■ · ·",
        "1 hi    ■ ■ ■ · ·",
        "2 [SEP] ■ ■ ■ · ·",
        "3 [PAD] ■ ■ ■ · ·",
        "4 [PAD] ■ ■ ■ · ·",
    ]
    assert "layers 0–5: all keys or all but 2 keys\nsdpa received a bool mask 2×1×5×5\n" in r.out
    assert re.search(r"sdpa itself +0 +0 +holds", r.out)


def test_records_hold_every_pair(attnscope):
    arguments = ("mask", "lengths:2,4", "causal", "--nq", 3, "--nk", 4, "--block", "2,3")
    record = attnscope(*arguments, "--format", "json").json
    assert record["schema"] == "attnscope.mask/1"
    [mask] = record["masks"]
    assert mask["blocks"] == {
        "n_query": 2, "n_key": 3, "full": 0, "partial": 4, "empty": 4, "saved": 0.5
    }  # fmt: skip
    assert [plane["visible"] for plane in mask["planes"]] == [
        [[[0, 1]], [[0, 2]], [[0, 2]]],
        [[[0, 1]], [[0, 2]], [[0, 3]]],
    ]
    assert [plane["places"] for plane in mask["planes"]] == [[[0, 0]], [[1, 0]]]
    [row] = csv.DictReader(io.StringIO(attnscope(*arguments, "--format", "csv").out))
    assert (row["n_visible"], row["n_pairs"], row["partial"], row["n_unseen"]) == ("11", "24", "4", "3")
    text = attnscope(*arguments, "--format", "markdown").out
    where = "the first query at the first key"
    assert f"sequence 1: causal, {where}; 1 key hidden from all\n\n```\n" in text


@pytest.mark.parametrize("suffix", [".npy", ".npz", ".safetensors", ".pt"])
def test_a_saved_mask_is_one_that_the_textbook_takes(attnscope, tmp_path, suffix):
    path = tmp_path / f"mask{suffix}"
    arguments = ("mask", "causal", "window:1", "--nq", 4, "--batch", 3, "--save", path)
    r = attnscope(*arguments)
    assert r.err.startswith("attnscope: wrote 1 mask, ")
    expected = np.tril(np.ones((4, 4), bool)) & ~np.tril(np.ones((4, 4), bool), -2)
    name = path if suffix == ".npy" else f"{path}:mask"
    again = attnscope("mask", name, "--format", "json").json
    rows = again["masks"][0]["planes"][0]["visible"]
    assert [list(range(*keys[0])) for keys in rows] == [np.flatnonzero(row).tolist() for row in expected]
    assert attnscope("sdpa", "--mask", name, "--heads", 1, "--dry-run").exit_status == 0
    assert "already exists" in attnscope(*arguments).err
    assert attnscope(*arguments, "--force").exit_status == 0


def test_several_masks_have_names(attnscope, tmp_path):
    model = "minilm"
    path = tmp_path / "masks.safetensors"
    attnscope("mask", model, "--text", "The cat.", "--save", path)
    assert {name: array.shape for name, array in load_file(path).items()} == {"mask": (1, 1, 5, 5)}
    from safetensors import safe_open

    with safe_open(path, "numpy") as file:
        assert json.loads(file.metadata()["layers"]) == {"mask": [0, 1, 2, 3, 4, 5]}


@pytest.mark.sweep
def test_figures_and_pages_are_written(attnscope, tmp_path):
    files = [tmp_path / name for name in ("a.png", "a.svg", "a.pdf", "a.html")]
    for file in files:
        option = "--page" if file.suffix == ".html" else "--plot"
        r = attnscope("mask", "minilm", "--text", "<b>The</b> cat.", "--text", "Hi", option, file)
        assert r.exit_status == 0, r.err
    starts = [b"\x89PNG", b"<?xml", b"%PDF", b"<!doctype html>"]
    assert [file.read_bytes()[: len(start)] for file, start in zip(files, starts, strict=True)] == starts
    page = files[3].read_text()
    assert "<title>minilm · masks</title>" in page
    assert "&lt;" in page
    assert "<b>The" not in page
    assert "http" not in page.replace("http-equiv", "")


def test_a_function_of_a_file_and_its_mistakes(attnscope, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    code = "def near(b, h, q, k):\n    return (q >= k) & (q - k < 2)\n\ndef bad(b, h, q, k):\n    return q > k or q == k\n"
    (tmp_path / "nearby_masks.py").write_text(code)
    r = attnscope("mask", "nearby_masks.py:near", "--nq", 4)
    assert r.exit_status == 0
    assert "causal, at most 2 keys" in r.out
    r = attnscope("mask", "nearby_masks.py:bad", "--nq", 4)
    assert r.exit_status == 2
    assert "(line 5 of nearby_masks.py: return q > k or q == k)" in r.err
    assert "try  &, | and torch.where" in r.err


def test_options_without_effect_are_named(attnscope):
    r = attnscope("mask", "causal", "--nq", 3, "--force", "--cell", 2, "--wide", "--format", "csv")
    assert r.exit_status == 0
    assert "--force has no effect" in r.err
    assert "--cell has no effect" in r.err
    assert "--wide has no effect" in r.err


def test_a_check_that_fails_has_status_1(attnscope, monkeypatch):
    import torch

    original = torch.nn.functional.scaled_dot_product_attention

    def careless(*tensors, attn_mask=None, **options):
        return original(*tensors, **options)

    monkeypatch.setattr(torch.nn.functional, "scaled_dot_product_attention", careless)
    r = attnscope("mask", "minilm", "--text", "The cat.", "--text", "Hi", "--verify")
    assert r.exit_status == 1
    assert "FAILS" in r.out


@pytest.mark.few(1)
@pytest.mark.parametrize("width", [40, 60])
def test_lines_fit_a_narrow_terminal(width):
    file = io.StringIO()
    terminal = Terminal(width=width, force_terminal=True, color_system=None, file=file)
    print_document(library.mask("causal", nq=300).document(), terminal)
    masks = library.mask("minilm", ["The cat sat on the mat and looked.", "Hi"])
    print_document(masks.document(), terminal)
    assert max(map(len, file.getvalue().splitlines())) <= width


CODE = """
from torch import nn


class Attention(nn.Module):
    def __init__(self, d, keys=2):
        super().__init__()
        self.keys, self.qkv = keys, nn.Linear(d, 3 * d)

    def forward(self, x):
        return self.step(x)

    def step(self, x, ahead=0):
        q, k, v = self.qkv(x).chunk(3, -1)
        see = x.new_ones(x.shape[1], x.shape[1]).bool().tril(ahead).triu(1 - self.keys)
        return (q @ k.mT * q.shape[-1] ** -0.5).masked_fill(~see, -1e9).softmax(-1) @ v
"""


def test_code_shows_the_mask_that_it_applies(attnscope, tmp_path):
    (tmp_path / "windowed_code.py").write_text(CODE)
    common = ("mask", f"{tmp_path}/windowed_code.py:Attention", "--init", "d=8", "--input", "x=2,5,d")
    r = attnscope(*common)
    assert r.exit_status == 0
    assert "causal, at most 2 keys" in r.out
    assert "line 16" in r.out
    r = attnscope(
        *common, "--init", "keys=3", "--call", "step", "--input", "ahead=1", "--format", "json"
    )
    [mask] = r.json["masks"]
    assert mask["name"] == "line 16"
    assert mask["planes"][0]["visible"][2] == [[0, 4]]


def test_code_that_does_not_get_its_inputs_is_told_which(attnscope, tmp_path):
    (tmp_path / "windowed_again.py").write_text(CODE)
    r = attnscope("mask", f"{tmp_path}/windowed_again.py:Attention")
    assert r.exit_status == 2
    assert "needs d" in r.err
    r = attnscope("mask", "causal", "--nq", 3, "--input", "x=2,5,8")
    assert r.exit_status == 2
    assert "--input" in r.err
