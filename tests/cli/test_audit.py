"""`attnscope audit`: formats, exit statuses, mistakes."""

from __future__ import annotations

import json
import re
from pathlib import Path

import pytest

CODE = """
import torch


def mean(x):
    average = x.mean(1, keepdim=True)
    return x + average


def same(x):
    return x * 2
"""


@pytest.fixture
def code(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "code_here.py").write_text(CODE)
    return "code_here.py"


def test_a_leak_is_shown_with_its_line_and_exit_status_1(attnscope, code):
    r = attnscope("audit", f"{code}:mean", "--input", "x=2,5,8", "--causal")
    assert r.exit_status == 1
    assert "audit of mean: causal broken" in r.out
    assert "code_here.py:6: x.mean(1, keepdim=True)" in r.out
    marks = [line.split()[1:] for line in r.out.splitlines() if re.match(r"  \d ", line)]
    assert marks == [["■"] * (row + 1) + ["✗"] * (4 - row) for row in range(5)]


def test_a_property_that_an_option_names_and_that_is_undecided_has_exit_status_1(attnscope, code):
    r = attnscope("audit", f"{code}:same", "--input", "x=2,5,8", "--window", "9")
    assert r.exit_status == 1
    assert "5 positions do not reach beyond 9" in " ".join(r.out.split())


@pytest.mark.parametrize(("expect", "status"), [("window:0", 0), ("causal", 1)])
def test_an_expected_visibility_is_a_rule_or_a_function(attnscope, code, expect, status):
    r = attnscope("audit", f"{code}:same", "--input", "x=2,5,8", "--expect", expect)
    assert r.exit_status == status
    assert ("✓ holds" if status == 0 else "expect broken") in r.out
    if status:
        assert "why it should hold: --expect causal" in r.out


def test_what_cannot_be_expected_is_a_mistake(attnscope, code):
    r = attnscope("audit", f"{code}:same", "--input", "x=2,5,8", "--expect", "cusal")
    assert r.exit_status == 2
    assert "cusal is not a mask to expect" in r.err


def test_the_record_has_every_number(attnscope, code):
    r = attnscope("audit", f"{code}:mean", "--input", "x=2,5,8", "--causal", "--format", "json")
    record = json.loads(r.out)
    assert record["schema"] == "attnscope.audit/1"
    assert r.out.splitlines().count("            [true, false, false, false, false],") == 1
    evidence = record["properties"][0]["evidence"]
    assert evidence["line"]["line"] == 6
    assert len(evidence["influence"]["measured"]) == 5
    assert r.exit_status == 1


def test_lines_of_csv_and_markdown_are_properties(attnscope, code):
    options = ("audit", f"{code}:mean", "--input", "x=2,5,8", "--causal", "--format")
    rows = attnscope(*options, "csv").out.splitlines()
    assert rows[0].startswith("property,line,status")
    assert rows[1].startswith("causal,6,broken")
    assert "| causal | ✗ broken |" in attnscope(*options, "markdown").out


def test_files_are_written_first_and_replaced_with_force(attnscope, code):
    code_and_input = ("audit", f"{code}:mean", "--input", "x=2,5,8", "--causal")
    options = (*code_and_input, "--plot", "a.svg", "--page", "a.html")
    r = attnscope(*options)
    assert r.exit_status == 1
    assert re.match("attnscope: drew a.svg, .*\nattnscope: wrote the audit, .*, to a.html\n$", r.err)
    assert "influence in mean" in Path("a.svg").read_text(encoding="utf-8")
    page = Path("a.html").read_text(encoding="utf-8")
    assert "code_here.py:6: x.mean(1, keepdim=True)" in page
    before = Path("a.html").stat().st_mtime_ns
    refused = attnscope(*options)
    assert (refused.exit_status, refused.out) == (2, "")
    assert "a.svg already exists" in refused.err
    assert attnscope(*options, "--force").exit_status == 1
    assert Path("a.html").stat().st_mtime_ns > before


def test_a_model_on_a_text(attnscope):
    r = attnscope("audit", "minilm", "--text", "The cat sat on the mat.", "--padding")
    assert r.exit_status == 0
    assert "BertModel · 9 positions · float32" in r.out


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["minilm", "--causal", "--bidirectional"], "exclude each other"),
        (["minilm", "--init", "a=1"], "--init is for code"),
        (["minilm", "--length", "600"], "minilm takes at most 512 tokens, and --length is 600"),
        (["minilm", "--sinks", "2"], "--sinks is for positions outside of a window"),
        (["code_here.py:same", "--text", "x", "--causal"], "--text is for models"),
        (["code_here.py:nope", "--causal"], "code_here.py has no nope"),
    ],
)
def test_a_mistake_gets_one_clear_line(attnscope, code, arguments, message):
    r = attnscope("audit", *arguments)
    assert r.exit_status == 2
    assert message in r.err
    assert r.out == ""
