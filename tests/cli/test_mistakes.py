"""Mistakes on the command line: a line that says what is wrong, and a hint of the right kind."""

import re

import pytest

from attnscope.cli import app
from attnscope.text import nearest

NOTHING = "attnscope --help"


@pytest.mark.parametrize(
    ("word", "hint"),
    [
        ("traec", "attnscope trace"),
        ("heeds", "attnscope heads"),
        ("attn", "attnscope sdpa, attnscope mha or attnscope trace"),
        ("attention", "attnscope sdpa, attnscope mha or attnscope trace"),
        ("multihaed", "attnscope mha"),
        ("model.py:Attention", "attnscope trace model.py:Attention"),
        ("torch.nn:Linear", "attnscope trace torch.nn:Linear"),
        ("train.py", "attnscope trace train.py:NAME, or attnscope run --watch … train.py"),
        ("minilm", "attnscope model minilm"),
        ("google/bert", "attnscope model google/bert"),
        ("nq", NOTHING),
        ("bogus", NOTHING),
    ],
)
def test_an_unknown_command_suggests_a_command(attnscope, word, hint):
    r = attnscope(word, "--nq", 3)
    assert (r.exit_status, r.out) == (2, "")
    assert r.err == f"attnscope: error: there is no command {word!r}.\n  try  {hint}\n"


@pytest.mark.parametrize(
    ("line", "hint"),
    [
        ("sdpa --n-q 3", "--nq"),
        ("sdpa --nqq 3", "--nq"),
        ("sdpa --verif", "--verify"),
        ("sdpa --batch-size 3", "--batch"),
        ("sdpa -q x.npy", "--q"),
        ("mha --n-head 3", "--heads"),
        ("mha --num-heads 3", "--heads"),
        ("mha --embed-dim 3", "--d-feat"),
        ("model minilm --heads 3", "--head"),
        ("heads minilm --layers 3", "--layer"),
        ("trace m.py:f --inputs 3", "--input"),
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


@pytest.mark.parametrize(
    ("line", "others", "hint"),
    [
        ("sdpa --layer 0", "bert, model and heads have", "attnscope bert --help"),
        ("mha --layout rows", "sdpa and example have", "attnscope sdpa --help"),
        ("sdpa --search", "trace has", "attnscope trace --help"),
        ("--nq 3", "sdpa, mha and scaling have", "attnscope sdpa --help"),
    ],
)
def test_an_option_of_another_command_names_the_commands(attnscope, line, others, hint):
    r = attnscope(*line.split())
    [flag] = re.findall(r"--\w+", line)
    name = "attnscope" if line.startswith("-") else line.split()[0]
    assert r.exit_status == 2
    assert r.err == (f"attnscope: error: {name} has no option {flag}; {others} it.\n  try  {hint}\n")


@pytest.mark.parametrize(
    ("line", "message", "hint"),
    [
        ("sdpa --nq", "--nq needs a value.", "attnscope sdpa --help"),
        ("mha --rope-theta", "--rope-theta needs a value.", "attnscope mha --help-all"),
        ("sdpa --numbers=3", "--numbers takes no value.", "attnscope sdpa --help"),
        ("sdpa --nq x", "--nq is 'x', but takes whole numbers.", "attnscope sdpa --help"),
        ("sdpa --scale x", "--scale is 'x', but takes numbers.", "attnscope sdpa --help-all"),
        ("model m --top 0", "--top is 0, but takes numbers from 1.", "attnscope model --help"),
        ("sdpa --layout col", "--layout is 'col'.", "--layout columns"),
        ("sdpa --layout x", "--layout is 'x'.", "--layout rows or columns"),
        ("sdpa --format jsn", "--format is 'jsn'.", "--format json"),
        ("sdpa --mask casual", "'casual' is not a mask.", "--mask causal"),
        ("sdpa --mask windo", "'windo' is not a mask.", "--mask window:W or window:L,R"),
        ("sdpa --dtype fp16", "'fp16' is not a dtype that attention runs in.", "--dtype float16"),
        ("sdpa --dtype bfloat", "'bfloat' is not a dtype that attention runs in.", "--dtype bfloat16"),
        ("trace a.py:f --dtype half", "'half' is not a dtype.", "--dtype float16"),
        ("sdpa x", "sdpa does not expect 'x'.", "attnscope sdpa --help"),
        ("bert a cat sat", "bert does not expect 'cat sat'.", '--text "…" for a text'),
        ("heads", "MODEL is missing.", 'attnscope heads minilm --text "The cat sat."'),
        ("run x.py", "--watch is missing.", "attnscope run --watch model.py:Attention train.py"),
        ("sdpa --save=", "--save: it is empty, and names no file.", "attnscope sdpa --help"),
    ],
)
def test_a_mistake_says_what_is_wrong_and_what_to_do(attnscope, line, message, hint):
    r = attnscope(*line.split())
    assert (r.exit_status, r.out) == (2, "")
    assert r.err == f"attnscope: error: {message}\n  try  {hint}\n"


def test_every_command_has_keywords():
    assert list(app.KEYWORDS) == list(app.COMMANDS)


def test_a_beginning_is_near_if_it_is_the_only_one():
    assert nearest("num", ["numbers", "nq"]) == "numbers"
    assert nearest("past", ["past-k", "past-v"]) in ("past-k", "past-v")
    assert nearest("nothing", []) is None
