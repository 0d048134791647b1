"""Mistakes on the command line: a line that says what is wrong, and a hint of the right kind."""

import re
import shlex
from pathlib import Path

import pytest
from typer.core import TyperOption

from attnscope.base.suggestions import EXAMPLES, SYNONYMS, likely_target
from attnscope.base.text import nearest
from attnscope.cli.app import COMMANDS, KEYWORDS, Commands

NOTHING = "attnscope --help"
FLAGS = {
    name: {flag: each for each in command.params for flag in (*each.opts, *each.secondary_opts)}
    for name, command in Commands().items()
}
WITH_VALUE = [
    (name, flag)
    for name, flags in FLAGS.items()
    for flag, option in flags.items()
    if isinstance(option, TyperOption) and not option.is_flag and flag != "--annotate"
]
MODEL = """
from torch import nn


class Linear(nn.Module):
    def forward(self, x): ...


class SelfAttention(nn.Module):
    def forward(self, x): ...
"""


@pytest.mark.parametrize(
    ("word", "hint"),
    [
        ("traec", "attnscope trace --nq 3"),
        ("heeds", "attnscope heads --nq 3"),
        ("attn", "attnscope sdpa, attnscope mha or attnscope trace"),
        ("attention", "attnscope sdpa, attnscope mha or attnscope trace"),
        ("multihaed", "attnscope mha --nq 3"),
        ("model.py:Attention", "attnscope trace model.py:Attention --nq 3"),
        ("torch.nn:Linear", "attnscope trace torch.nn:Linear --nq 3"),
        ("train.py", "attnscope run --watch FILE.py:CLASS train.py --nq 3"),
        ("minilm", "attnscope weights minilm --nq 3"),
        ("google/bert", "attnscope weights google/bert --nq 3"),
        ("nq", NOTHING),
        ("bogus", NOTHING),
    ],
)
def test_an_unknown_command_suggests_a_command(attnscope, word, hint):
    r = attnscope(word, "--nq", 3)
    assert (r.exit_status, r.out) == (2, "")
    assert r.err == f"attnscope: error: there is no command {word!r}.\n  try  {hint}\n"


@pytest.mark.few(8)
@pytest.mark.parametrize(
    ("line", "hint"),
    [
        ("sdpa --n-q 3", "--nq 3"),
        ("sdpa --nqq 3", "--nq 3"),
        ("sdpa --nqq=3", "--nq 3"),
        ("sdpa --nqq --verify", "--nq"),
        ("sdpa --verif", "--verify"),
        ("sdpa --batch-size 3", "--batch 3"),
        ("sdpa -q x.npy", "--q x.npy"),
        ("sdpa --causal", "--mask causal"),
        ("mha --is_causal True", "--mask causal"),
        ("example --causal", "--mask causal"),
        ("sdpa --window-size 4", "--mask window:4"),
        ("sdpa --seq-len 3", "--nq 3"),
        ("scaling --tokens 3", "--nq 3"),
        ("sdpa --d-model 8", "attnscope mha --d-feat 8"),
        ("mha --n-head 3", "--heads 3"),
        ("mha --n-heads 3", "--heads 3"),
        ("mha --num-heads 3", "--heads 3"),
        ("mha --embed-dim 3", "--d-feat 3"),
        ("mha --d_model 3", "--d-feat 3"),
        ("model minilm --heads 3", "--head 3"),
        ("heads minilm --layers 3", "--layer 3"),
        ("trace m.py:f --inputs 3", "--input 3"),
        ("trace m.py:f --num-heads 3", "--init num_heads=3"),
        ("trace m.py:f --d-model", "--init d_model=…"),
        ("bert --prompt A --text B", "--text A"),
        ("sdpa --zzz", "attnscope sdpa --help-all"),
        ("--zzz", NOTHING),
    ],
)
def test_an_unknown_option_suggests_an_option_of_the_command(attnscope, line, hint):
    r = attnscope(*line.split())
    [flag] = re.findall(r" (-[-\w]+)", f" {line}")[:1]
    name = "attnscope" if line.startswith("-") else line.split()[0]
    assert (r.exit_status, r.out) == (2, "")
    assert r.err == f"attnscope: error: {name} has no option {flag}.\n  try  {hint}\n"


def test_every_synonym_is_for_an_option_that_a_command_has():
    flags = {flag for each in FLAGS.values() for flag in each}
    assert {ours.split()[0] for ours in SYNONYMS} | set(EXAMPLES) <= flags


def test_no_command_has_an_option_that_is_a_synonym_of_another_of_its_own_options():
    """Such a synonym would never be read, unless it is an option of its own: `trace --verify`."""
    own_options = {
        ("audit", "--text"): "input",
        ("effects", "--heads"): "head",
        ("effects", "--head"): "heads",
        ("effects", "--layer"): "layers",
        ("compare", "--text"): "input",
        ("mask", "--text"): "input",
        ("mask", "--nq"): "tokens",
        ("trace", "--check"): "verify",
    }
    for name, flags in FLAGS.items():
        for ours, synonyms in SYNONYMS.items():
            names = synonyms.replace(own_options.get((name, ours), " "), " ")
            own = [each for each in names.split() if f"--{each}" in flags and ours in flags]
            assert not own, (name, ours)


@pytest.mark.parametrize(
    ("line", "others", "hint"),
    [
        (
            "sdpa --layer 0",
            "mha, compare, mask, bert, maps, answer, weights, effects and heads have",
            "attnscope mha --help",
        ),
        ("mha --layout rows", "sdpa, compare and example have", "attnscope sdpa --help"),
        ("heads minilm --query 3", "bert, maps, answer, sdpa and example have", "attnscope bert --help"),
        ("sdpa --search", "trace has", "attnscope trace --help"),
        ("--nq 3", "sdpa, mha, scaling and mask have", "attnscope sdpa --nq 3"),
    ],
)
def test_an_option_of_another_command_names_the_commands(attnscope, line, others, hint):
    r = attnscope(*line.split())
    [flag] = re.findall(r"--\w+", line)
    name = "attnscope" if line.startswith("-") else line.split()[0]
    assert r.exit_status == 2
    assert r.err == (f"attnscope: error: {name} has no option {flag}; {others} it.\n  try  {hint}\n")


@pytest.mark.few(47)
@pytest.mark.parametrize(
    ("line", "message", "hint"),
    [
        ("sdpa --nq", "--nq needs a value.", "--nq 30, or attnscope sdpa --help-all"),
        ("sdpa --nq --nk 3", "--nq needs a value.", "--nq 30, or attnscope sdpa --help-all"),
        ("bert --text", "--text needs a value.", '--text "The cat sat.", or attnscope bert --help-all'),
        ("heads --page", "--page needs a value.", "--page heads.html, or attnscope heads --help-all"),
        ("bert --page --wide", "--page needs a value.", "--page a.html, or attnscope bert --help-all"),
        (
            "run x.py --watch",
            "--watch needs a value.",
            "--watch model.py:Attention, or attnscope run --help-all",
        ),
        (
            "mha --rope-theta",
            "--rope-theta needs a value.",
            "--rope-theta 10000, or attnscope mha --help-all",
        ),
        ("sdpa --numbers=3", "--numbers takes no value.", "--numbers"),
        ("sdpa --nq x", "--nq is 'x', but takes a whole number.", "--nq 30"),
        ("sdpa --nq 3.5", "--nq is '3.5', but takes a whole number.", "--nq 30"),
        ("sdpa --scale x", "--scale is 'x', but takes a number.", "--scale 0.125"),
        (
            "bert --query cat",
            "--query needs a text, and there is none.",
            '--text "…" --query cat',
        ),
        (
            "bert --generate 3",
            "--generate needs a text, and there is none.",
            '--text "…" --generate 3',
        ),
        (
            "bert --steps",
            "--steps needs a text, and there is none.",
            '--text "…" --steps',
        ),
        ("model m --top 0", "--top is 0, but takes numbers from 1.", "--top 3"),
        ("sdpa --layout col", "--layout is 'col'.", "--layout columns"),
        ("sdpa --layout x", "--layout is 'x'.", "--layout rows or columns"),
        ("sdpa --format jsn", "--format is 'jsn'.", "--format json"),
        ("sdpa --mask casual", "'casual' is not a mask.", "--mask causal"),
        (
            "sdpa --mask windo",
            "'windo' is not a mask.",
            "--mask window:W, window:L,R, window:L, or window:,R",
        ),
        ("sdpa --dtype fp16", "'fp16' is not a dtype that attention runs in.", "--dtype float16"),
        ("sdpa --dtype bfloat", "'bfloat' is not a dtype that attention runs in.", "--dtype bfloat16"),
        ("trace a.py:f --dtype half", "'half' is not a dtype.", "--dtype float16"),
        (
            "sdpa x",
            "sdpa does not expect 'x'.",
            "attnscope sdpa --nq 30 --nk 50, or attnscope sdpa --help",
        ),
        ("sdpa --nq 1e3", "--nq is '1e3', but takes a whole number.", "--nq 1000"),
        ("sdpa --nq 2.0", "--nq is '2.0', but takes a whole number.", "--nq 2"),
        ("bert --top x", "--top is 'x', but takes a whole number.", "--top 3"),
        (
            "model minilm --text a --generate 20,",
            "--generate is '20,', but takes a whole number.",
            "--generate 20",
        ),
        (
            "sdpa --mask causal,window:3",
            "'causal,window:3' is 2 masks, and each needs a --mask.",
            "--mask causal --mask window:3",
        ),
        (
            "sdpa --mask lengths:1,2,causal",
            "'lengths:1,2,causal' is 2 masks, and each needs a --mask.",
            "--mask lengths:1,2 --mask causal",
        ),
        ("sdpa --show atention", "there is no 'atention' in the steps of sdpa.", '--show "attention"'),
        ("sdpa --dtype f32", "'f32' is not a dtype that attention runs in.", "--dtype float32"),
        ("sdpa --q .", ". is a folder.", "a file that ends in .npy, .npz, .pt, .pth, .safetensors"),
        (
            "scaling --dk 1;2",
            "'1;2' is not a width: --dk takes whole numbers of at most 18 digits, and commas.",
            "--dk 1,2",
        ),
        (
            "scaling --plot fig",
            "fig ends in no suffix, which is not a format for figures.",
            "fig.png, fig.svg or fig.pdf",
        ),
        ("scaling --plot none/a.svg", "there is no folder none to write a.svg into.", "mkdir -p none"),
        ("bert --file .", ". is a folder.", "--file FILE.txt"),
        (
            "bert --text a --layer all --top 3",
            "--top is for one head, and --layer all --head 0 are several.",
            "--layer 0 --head 0 --top 3",
        ),
        (
            "heads minilm --text a --max-length 3",
            "--max-length truncates a single text only with --truncate.",
            "--truncate --max-length 3",
        ),
        (
            "example --q [[1]]",
            "Q, K and V belong together, and there is no --k and no --v.",
            '--k "[[1,2],[3,4]]" --v "[[1,2],[3,4]]"',
        ),
        ("trace a.py attend", "trace does not expect 'attend'.", "attnscope trace a.py:attend"),
        (
            "trace torch.nn.Linear",
            "'torch.nn.Linear' does not name a class or function.",
            "torch.nn:Linear",
        ),
        (
            "run --lr 3 x.py -v",
            "run has no option --lr.",
            "attnscope run --watch FILE.py:CLASS x.py --lr 3 -v, if it is the script's",
        ),
        ("run a.py:A x.py", "--watch is missing.", "attnscope run --watch a.py:A x.py"),
        ("sdpa causal", "sdpa does not expect 'causal'.", "--mask causal"),
        ("sdpa nq=3", "sdpa does not expect 'nq=3'.", "--nq 3"),
        ("mha heads 3", "mha does not expect 'heads 3'.", "--heads 3"),
        ("trace a.py:f x=2 y=3", "trace does not expect 'x=2 y=3'.", "--input x=2 --input y=3"),
        ("bert a cat sat", "bert does not expect 'cat sat'.", '--text "a cat sat"'),
        ("bert minilm cat", "bert does not expect 'cat'.", '--text "cat"'),
        ("heads", "MODEL is missing.", 'attnscope heads minilm --text "The cat sat."'),
        ("heads --text Hi", "MODEL is missing.", "attnscope heads minilm --text Hi"),
        ("trace --input x=2,3", "TARGET is missing.", "attnscope trace attn.py:Attention --input x=2,3"),
        ("run x.py", "--watch is missing.", "attnscope run --watch FILE.py:CLASS x.py"),
        ("sdpa --save=", "--save: the name of the file is empty.", "--save tensors.npz"),
    ],
)
def test_a_mistake_says_what_is_wrong_and_what_to_do(attnscope, line, message, hint):
    r = attnscope(*line.split())
    assert (r.exit_status, r.out) == (2, "")
    assert r.err == f"attnscope: error: {message}\n  try  {hint}\n"


@pytest.mark.few(1)
@pytest.mark.parametrize("command", COMMANDS)
def test_every_option_without_its_value_has_an_example_that_parses(attnscope, command):
    """Sizes and texts that the library checks later may still be refused there."""
    for flag in (flag for name, flag in WITH_VALUE if name == command):
        hint = attnscope(command, flag).err.partition("  try  ")[2].partition(", or attnscope")[0]
        option = FLAGS[command][flag]
        name, value, *others = shlex.split(hint)
        assert name == max(option.opts, key=len)
        assert bool(others) == (len(getattr(option.type, "choices", ())) > 1), hint
        option.type.convert(value.rstrip(","), option, None)


def test_a_run_without_a_target_suggests_the_attention_that_the_script_uses(
    attnscope, tmp_path, monkeypatch
):
    monkeypatch.chdir(tmp_path)
    Path("model.py").write_text(MODEL)
    Path("train.py").write_text("import torch\nfrom model import SelfAttention\n")
    r = attnscope("run", "train.py", "--lr", 3, "--name", "a b")
    assert r.err == (
        "attnscope: error: --watch is missing.\n"
        '  try  attnscope run --watch model.py:SelfAttention train.py --lr 3 --name "a b"\n'
    )
    message = "attnscope: error: 'Attention' does not name a class or function.\n"
    r = attnscope("run", "--watch", "Attention", "train.py")
    assert r.err == f"{message}  try  --watch model.py:SelfAttention\n"
    assert attnscope("run", "--watch", "none.py:A", "train.py").err.endswith(
        "  try  --watch model.py:SelfAttention\n"
    )
    assert attnscope("trace", "model.Linear").err.endswith("  try  model.py:Linear\n")
    assert likely_target(["--calls", "2", "-m", "train"]) == "model.py:SelfAttention"
    assert likely_target(["model.py"]) == "model.py:SelfAttention"
    assert "--watch model.py:SelfAttention train.py --lr 3\n" in attnscope("train.py", "--lr", 3).err


def test_every_command_has_keywords():
    assert list(KEYWORDS) == list(COMMANDS)


def test_a_beginning_is_near_if_it_is_the_only_one():
    assert nearest("num", ["numbers", "nq"]) == "numbers"
    assert nearest("past", ["past-k", "past-v"]) in ("past-k", "past-v")
    assert nearest("nothing", []) is None
