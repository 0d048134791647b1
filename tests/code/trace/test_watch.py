"""`attnscope.trace_script`: what `attnscope run` does, in Python."""

import json
import os
import sys
from textwrap import dedent

import pytest

import attnscope
from attnscope.base.errors import AttnscopeError
from attnscope.cli.app import main
from attnscope.code.trace.program import Finder

MODEL = """
import torch


class Thing:
    def __call__(self, q):
        scores = q @ q.mT / 8**0.5
        attention = scores.softmax(-1)
        return attention
"""

PROGRAM = """
import os, sys
import torch
from watched_by_script import Thing

thing = Thing()
for n in range(2, 4):
    thing(torch.ones(n, 8, 4))
print(sys.argv[1:], __name__)
sys.exit(3)
"""


@pytest.fixture
def script(tmp_path, monkeypatch):
    """A program and its module; neither is left imported."""
    monkeypatch.chdir(tmp_path)
    (tmp_path / "watched_by_script.py").write_text(dedent(MODEL))
    (tmp_path / "program.py").write_text(dedent(PROGRAM))
    yield tmp_path / "program.py"
    sys.modules.pop("watched_by_script", None)


WATCH = "watched_by_script.py:Thing"


def test_a_program_runs_and_its_calls_are_traced(script, capsys):
    told = []
    run = attnscope.trace_script(
        script, ["--lr", "1"], watch=WATCH, calls=2, dims={"q": "B T C"}, recorded=told.append
    )
    assert capsys.readouterr().out == "['--lr', '1'] __main__\n"
    assert (run.status, run.notes) == (3, [])
    assert [trace["q"].shape for trace in run.traces] == [(2, 8, 4), (3, 8, 4)]
    assert run.traces[0]["scores"].dims == ("B", "T", "T")
    assert "1/√8" in run.traces[0].findings[0].message
    assert told == [run.traces]


@pytest.mark.few(1)
@pytest.mark.parametrize(
    ("options", "flags"),
    [
        ({}, []),
        ({"calls": 2, "stats": True, "source": True}, ["--calls", "2", "--stats", "--source"]),
        ({"dims": ["q=B,T,C"], "subexpressions": True, "depth": 0}, ["--dims", "q=B,T,C", "--subexpressions", "--depth", "0"]),
    ],
)  # fmt: skip
def test_it_returns_what_the_command_prints(script, tmp_path, options, flags):
    run = attnscope.trace_script("program.py", watch=WATCH, **options)
    sys.modules.pop("watched_by_script")
    before = sys.argv, sys.path[:], sys.meta_path[:], sys.modules["__main__"], os._exit
    try:  # what ends the process in earnest would leave it to the program
        status = main(
            ["run", "--watch", WATCH, *flags, "-f", "json", "--to", "trace.json", "program.py"]
        )
    finally:
        sys.argv, sys.path[:], sys.meta_path[:], sys.modules["__main__"], os._exit = before
    assert status == run.status == 3
    assert json.loads(json.dumps(run.to_dict())) == json.loads((tmp_path / "trace.json").read_text())


def test_the_process_is_as_it_was(script):
    before = list(sys.argv), sys.path[:], sys.modules["__main__"], os._exit
    attnscope.trace_script(script, ["a"], watch=WATCH)
    assert (list(sys.argv), sys.path, sys.modules["__main__"], os._exit) == before
    assert not any(isinstance(each, Finder) for each in sys.meta_path)


EXPLODES = """
import torch
from watched_by_script import Thing

for n in range(6):
    Thing()(torch.full((1, 3, 4), 10.0 ** (7 * n)))
"""


def test_calls_in_which_all_is_finite_are_passed_over(script):
    script.write_text(EXPLODES)
    run = attnscope.trace_script(script, watch=WATCH, until_not_finite=True)
    [trace] = run.traces
    assert trace.options["call"] == 4  # whose scores are of the order of 10 ** 42
    assert "scores is the first tensor with" in trace.findings[-1].message
    sys.modules.pop("watched_by_script")
    run = attnscope.trace_script(script, watch=WATCH, until_not_finite=True, from_call=5, calls=9)
    assert [trace.options["call"] for trace in run.traces] == [5, 6]
    assert run.notes == [f"2 of 6 calls of {WATCH} had NaN or inf"]


def test_calls_before_the_first_one_are_not_traced(script):
    run = attnscope.trace_script(script, watch=WATCH, from_call=2)
    assert [trace["q"].shape for trace in run.traces] == [(3, 8, 4)]
    assert run.traces[0].options["call"] == 2
    sys.modules.pop("watched_by_script")
    run = attnscope.trace_script(script, watch=WATCH, from_call=500)
    assert (run.traces, run.notes) == ([], [f"{WATCH} was called 2 times: there was no call 500"])
    sys.modules.pop("watched_by_script")
    run = attnscope.trace_script(script, watch=WATCH, until_not_finite=True)
    assert run.notes == [f"{WATCH} was called 2 times, and never had NaN or inf"]


def test_a_target_that_is_not_called_is_noted(script):
    script.write_text("import watched_by_script\n")
    told = []
    run = attnscope.trace_script(script, watch=WATCH, note=lambda *each: told.append(each))
    assert (run.status, run.traces) == (0, [])
    assert run.notes == [f"{WATCH} was not called"]
    assert told == [(f"{WATCH} was not called", None)]
    assert run.to_dict() == {"schema": "attnscope.traces/1", "traces": []}


@pytest.mark.parametrize(
    ("script_name", "options", "message"),
    [
        (None, {}, "there is no program to run."),
        ("none.py", {}, "there is no script none.py."),
        ("program.py", {"watch": "none.py:A"}, "there is no file none.py."),
        ("program.py", {"watch": "watched_by_script.py:Thin"}, "watched_by_script.py has no Thin"),
        ("program.py", {"dims": ["x"]}, 'dims="x" does not name axes'),
    ],
)
def test_mistakes_are_told_before_the_program_runs(script, capsys, script_name, options, message):
    with pytest.raises(AttnscopeError) as raised:
        attnscope.trace_script(script_name, **{"watch": WATCH, **options})
    assert raised.value.message.startswith(message)
    assert capsys.readouterr().out == ""
