"""The help: the common options of a command with examples, or all options."""

import json
import re
import shlex
import shutil
import sys
from pathlib import Path

import numpy as np
import pytest
import torch
import transformers
from typer.core import TyperOption

import attnscope as attnscope_module
from attnscope.cli.app import COMMANDS, Commands
from attnscope.cli.command import MAX_OPTIONS
from tests.model.answers.writers import MESSAGES, writer
from tests.model.run.planted import save_gpt2

OPTION = re.compile(r"^  (--?[\w-]+)", re.MULTILINE)
ATTENTION = """
import torch
from torch import nn


def attend(q, k):
    scores = q @ k.mT  # 2 5 7
    weights = scores.softmax(-1)
    return weights @ k


class Attention(nn.Module):
    def __init__(self, d_model=8):
        super().__init__()
        self.q = nn.Linear(d_model, d_model)

    def forward(self, x):
        q = self.q(x)
        return attend(q, x)
"""
TRAIN = """
import torch
from model import Attention

x = torch.randn(2, 3, 8)
Attention()(x)
torch.nn.functional.scaled_dot_product_attention(x, x, x)
"""
CORRECT = """
import math
from torch import nn


def attention(Q, K, V):
    return (Q @ K.mT / math.sqrt(Q.size(-1))).softmax(-1) @ V


class MHA(nn.Module):
    def __init__(self, d_model, h):
        super().__init__()
        self.h = h
        self.q, self.k, self.v, self.o = (nn.Linear(d_model, d_model) for _ in range(4))

    def forward(self, x):
        q, k, v = (each(x).unflatten(-1, (self.h, -1)).transpose(1, 2) for each in (self.q, self.k, self.v))
        return self.o(attention(q, k, v).transpose(1, 2).flatten(2))
"""
MASKS = """
def sliding(b, h, q_idx, kv_idx):
    return (q_idx >= kv_idx) & (q_idx - kv_idx < 8)


def make_sliding(window):
    return lambda b, h, q_idx, kv_idx: (q_idx >= kv_idx) & (q_idx - kv_idx < window)
"""
EXAMPLES = {
    (command, example): what
    for command in COMMANDS
    if command != "bert"  # has the examples of `model`
    for example, what in Commands()[command].examples.items()
}


def options_of(command):
    return [each for each in Commands()[command].params if isinstance(each, TyperOption)]


@pytest.mark.few(5)
@pytest.mark.parametrize("command", COMMANDS)
def test_help_lists_the_common_options_and_says_where_the_others_are(attnscope, command):
    brief, whole = attnscope(command, "--help").out, attnscope(command, "--help-all").out
    assert 2 <= len(OPTION.findall(brief.partition("Examples")[0])) <= MAX_OPTIONS
    listed = OPTION.findall(whole)
    for option in options_of(command):
        assert any(name in listed for name in option.opts), option.opts
    n_more = len(options_of(command)) - 1 - len(OPTION.findall(brief.partition("Examples")[0]))
    assert (f"{n_more} more options: attnscope {command} --help-all" in brief) == (n_more > 0)
    assert "more options" not in whole
    assert brief.count("\n  $ attnscope ") == 3 <= whole.count("\n  $ attnscope ")


@pytest.mark.parametrize("command", [*COMMANDS, "model"])
def test_the_help_of_a_command_is_one_screen(attnscope, monkeypatch, command):
    monkeypatch.setenv("COLUMNS", "80")
    assert len(attnscope(command, "--help").out.splitlines()) <= 50


@pytest.mark.few(13)
@pytest.mark.parametrize("command", COMMANDS)
@pytest.mark.parametrize("columns", [60, 80, 200])
def test_help_fits_into_a_terminal(attnscope, monkeypatch, command, columns):
    monkeypatch.setenv("COLUMNS", str(columns))
    lines = attnscope(command, "--help-all").out.splitlines()
    assert max(len(line.rstrip()) for line in lines) <= min(columns, 100)


@pytest.mark.parametrize("command", COMMANDS)
def test_a_common_option_is_one_that_exists_and_every_choice_is_named(command):
    """A group that several commands share may name those in which an option is common."""
    for name, flag in Commands()[command].flags.items():
        assert isinstance(flag.common, bool) or set(flag.common) <= set(COMMANDS), name
    for option in options_of(command):
        for choice in getattr(option.type, "choices", ()):
            value = str(getattr(choice, "value", choice))
            shown = f"{option.help} {option.show_default} {option.default} {option.metavar}"
            assert re.search(rf"\b{value.rstrip('s')}", shown) or "=STYLE" in shown, (option.opts, value)


@pytest.mark.parametrize("command", COMMANDS)
def test_an_option_that_takes_a_path_says_so(command):
    for option in options_of(command):
        if getattr(option.type, "name", "") == "file_name":
            assert re.search("FILE|FOLDER|PATH", f"{option.metavar}"), option.opts


@pytest.mark.parametrize("command", COMMANDS)
def test_help_names_the_functions_that_do_the_same_in_python(attnscope, command):
    sentence = " ".join(attnscope(command, "--help").out.partition("In Python: ")[2].split())
    names = re.findall(r"attnscope\.(\w+)", sentence.partition(". ")[0])
    assert names
    assert set(names) <= set(attnscope_module.__all__)


def test_the_command_trace_and_the_function_trace_are_told_apart(attnscope):
    help_text = " ".join(attnscope("trace", "--help").out.split())
    assert "attnscope.trace(module, x) is the same; without x it traces a call of yours" in help_text
    assert "it is `attnscope.inspect`" in " ".join(attnscope_module.trace.__doc__.split())
    assert "`attnscope.trace` records a call that happens anyway" in attnscope_module.inspect.__doc__


@pytest.mark.sweep
def test_the_whole_help_of_all_commands(attnscope):
    whole = attnscope("--help-all").out
    assert all(f"Usage: attnscope {command} " in whole for command in COMMANDS)
    assert "--rope-theta" in whole


@pytest.fixture
def files(tmp_path, monkeypatch, minilm):
    """Create the files that the examples name."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(tmp_path)
    for name in ("attn", "model"):
        Path(f"{name}.py").write_text(ATTENTION)
    for name in ("mine", "old", "new"):
        Path(f"{name}.py").write_text(CORRECT)
    Path("my-minilm").symlink_to(minilm)
    Path("masks.py").write_text(MASKS)
    Path("train.py").write_text(TRAIN)
    llama = transformers.LlamaConfig(
        vocab_size=9,
        hidden_size=8,
        intermediate_size=8,
        num_hidden_layers=2,
        num_attention_heads=2,
        dtype="bfloat16",
    )
    transformers.LlamaForCausalLM(llama).save_pretrained("llama")
    shutil.copy("llama/config.json", "config.json")
    model, tokenizer = writer()
    model.save_pretrained("my-llama")
    tokenizer.save_pretrained("my-llama")
    Path("chat.json").write_text(json.dumps(MESSAGES))
    Path("texts.txt").write_text("The cat sat.\nA dog ran.\n")
    save_gpt2(Path("gpt2"))
    Path("needles.jsonl").write_text(
        '{"text": "The cat sat on a mat.", "needle": "cat", "answer": "a cat"}'
    )
    Path("prompts.jsonl").write_text('{"text": "A cat.", "answer": "A kitten."}\n' * 2)
    for name in "qkv":
        np.save(f"{name}.npy", np.ones((1, 3, 4), dtype=np.float32))
    np.save("x.npy", np.ones((1, 3, 8), dtype=np.float32))
    torch.save(torch.nn.MultiheadAttention(8, 2, batch_first=True).state_dict(), "mha.pt")
    yield
    for module in ("model", "attn", "train", "mine", "old", "new", "masks"):
        sys.modules.pop(module, None)


@pytest.mark.few(1)
@pytest.mark.parametrize(("command", "example"), EXAMPLES, ids=lambda text: text[:60])
def test_examples_run(attnscope, files, command, example):
    program, *words = shlex.split(example)
    assert (program, words[0]) == ("attnscope", command)
    assert len(EXAMPLES[command, example]) <= 60
    assert len(example) <= 76, "it is wrapped in a terminal of 80 columns"
    r = attnscope(*words)
    assert r.exit_status == 0, r.err
