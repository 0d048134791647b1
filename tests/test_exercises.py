"""The exercises of the tutorials: attnscope finds each mistake, and nothing in the corrected code."""

import re

import pytest

from attnscope import inspect
from tests.docs_examples import ROOT, examples_of, write_files

PAGE = (ROOT / "docs" / "learn" / "tutorials.md").read_text(encoding="utf-8")
CUT = "view(n_batch, self.n_head, n, self.d_head)"
CUT_AND_MOVED = "view(n_batch, n, self.n_head, self.d_head).transpose(1, 2)"

ATTEND = ["Q=n_batch:2,n_Q:3,d_K:4", "K=n_batch,n_K:5,d_K", "V=n_batch,n_K,d_V:6"]
COLUMNS = ["Q=d_K:4,n_Q:3", "K=d_K,n_K:5", "V=d_V:6,n_K"]
CAUSAL = ["Q=n:5,d_K:4", "K=n,d_K", "V=n,d_V:6"]
MODULE = ["X=n_batch:2,n:4,d_feat"]
CROSS = ["Q=n_batch:4,n_Q:6,d_feat", "K=n_batch,n_K:10,d_feat", "V=n_batch,n_K,d_feat"]

EXERCISES = [
    ("softmax_axis.py:attend", ATTEND, "dim=1", "dim=-1"),
    ("split_heads.py:Attention", MODULE, CUT, CUT_AND_MOVED),
    (
        "late_mask.py:causal",
        CAUSAL,
        "    attention = torch.softmax(scores, dim=-1)\n"
        "    attention = attention.masked_fill(~visible, 0)\n",
        '    scores = scores.masked_fill(~visible, float("-inf"))\n'
        "    attention = torch.softmax(scores, dim=-1)\n",
    ),
    ("polarity.py:causal", CAUSAL, "masked_fill(visible", "masked_fill(~visible"),
    ("batches.py:Attention", CROSS, "", ""),
    ("scale.py:Attention", MODULE, "sqrt(d_feat)", "sqrt(self.d_head)"),
    ("columns.py:attend", COLUMNS, "dim=-1", "dim=-2"),
    ("merge_heads.py:Attention", MODULE, "x_raw.reshape", "x_raw.transpose(1, 2).reshape"),
    ("view_heads.py:Attention", MODULE, ".view(n_batch, n, d_feat)", ".reshape(n_batch, n, d_feat)"),
]
"""The target, its inputs, and what is wrong in it with its correction."""


@pytest.fixture(autouse=True)
def files(tmp_path, monkeypatch):
    """Write the exercises into an empty folder, and go there."""
    monkeypatch.chdir(tmp_path)
    write_files(PAGE)


@pytest.mark.few(2)
@pytest.mark.parametrize(("target", "inputs", "wrong", "right"), EXERCISES)
def test_the_corrected_code_has_no_findings(tmp_path, target, inputs, wrong, right):
    name, _, callee = target.partition(":")
    code = (tmp_path / name).read_text(encoding="utf-8")
    assert wrong in code
    corrected = f"right_{name}"
    (tmp_path / corrected).write_text(code.replace(wrong, right), encoding="utf-8")
    init = ["d_feat=12", "n_head=3"] if callee == "Attention" else None
    trace = inspect(f"{corrected}:{callee}", init=init, inputs=inputs)
    assert (trace.crash, trace.findings) == (None, [])


@pytest.mark.parametrize("target", [target for target, *_ in EXERCISES])
def test_the_answer_names_the_line_of_the_mistake(target):
    commands = [each for each in examples_of(PAGE) if each[0].startswith(f"attnscope trace {target} ")]
    ((_, shown),) = commands
    assert re.search(r"^[!✗] line \d+: ", shown, re.MULTILINE)
