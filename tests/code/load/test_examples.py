"""The hint for missing arguments: it names an axis as the constructor's argument, and can be pasted."""

import shlex
from pathlib import Path

import pytest

CODE = """
from torch import nn


class One(nn.Module):
    def __init__(self, d_model, n_head=2):
        super().__init__()
        self.proj = nn.Linear(d_model, d_model)

    def forward(self, x):
        y = self.proj(x)
        return y


class Two(nn.Module):
    def __init__(self, embed_dim, num_heads):
        super().__init__()
        self.attention = nn.MultiheadAttention(embed_dim, num_heads, batch_first=True)

    def forward(self, query, key):
        out = self.attention(query, key, key)[0]
        return out


class Ids(nn.Module):
    def __init__(self, hidden):
        super().__init__()
        self.table = nn.Embedding(100, hidden)

    def forward(self, input_ids):
        embedded = self.table(input_ids)
        return embedded


def attend(q, k):
    scores = q @ k.mT
    return scores
"""


@pytest.mark.few(3)
@pytest.mark.parametrize(
    ("target", "arguments", "hint"),
    [
        ("One", "", "--init d_model=64 --input x=B:2,T:10,d_model"),
        ("One", "--input x=2,8,200", "--init d_model=200 --input x=2,8,d_model"),
        ("One", "--input 2,8,200", "--init d_model=200 --input 2,8,d_model"),
        ("One", "--input x=2,8,d:20", "--init d_model=20 --input x=2,8,d_model"),
        ("One", "--input x=n:2,m:8,d_model:20", "--init d_model=20 --input x=n:2,m:8,d_model"),
        ("One", "--input x=2,8,d_model", "--init d_model=64 --input x=2,8,d_model"),
        ("One", "--init d_model=6", "--input x=B:2,T:10,d_model"),
        (
            "Two",
            "",
            "--init embed_dim=64 --init num_heads=8 --input query=B:2,T:10,embed_dim --input key=B,T,embed_dim",
        ),
        (
            "Two",
            "--input query=2,5,20 --input key=2,7,20",
            "--init embed_dim=20 --init num_heads=5 --input query=2,5,embed_dim --input key=2,7,embed_dim",
        ),
        (
            "Two",
            "--init embed_dim=6 --init num_heads=2 --input query=2,5,embed_dim",
            "--input key=2,5,embed_dim",
        ),
        ("Ids", "", '--init hidden=64 --input "input_ids=B:2,T:10<100"'),
        ("attend", "", "--input q=B:2,T:10,d:64 --input k=B,T,d"),
        ("attend", "--input q=3,n:4,8", "--input k=3,n:4,8"),
    ],
)
def test_missing_arguments_are_suggested_with_names_and_sizes_that_run(
    attnscope, tmp_path, monkeypatch, target, arguments, hint
):
    monkeypatch.chdir(tmp_path)
    Path("mine.py").write_text(CODE)
    command = ["trace", f"mine.py:{target}", "--no-search"]
    given = shlex.split(arguments)
    assert attnscope(*command, *given).err.splitlines()[-1] == f"  try  {hint}"
    kept = [] if "--input" in hint and "--input" in given and "--init" in hint else given
    assert attnscope(*command, *kept, *shlex.split(hint)).exit_status == 0


def test_no_size_is_suggested_for_an_argument_that_is_not_a_width(attnscope, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    Path("mine.py").write_text(
        "class Scale:\n    def __init__(self, by): ...\n    def forward(self, x): ...\n"
    )
    assert attnscope("trace", "mine.py:Scale").err.endswith("  try  --init by=…\n")
