"""With `--format json`, stdout has one document, whatever happens: that of the result, or of the error."""

import json
import re
import shlex
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from attnscope.base.process.error_record import SCHEMA
from attnscope.cli import app

RAISES = "def attend(x):\n    return x @ x\n"
QUITS = "import sys\nsys.exit('no')\n"


@pytest.mark.parametrize(
    "line",
    [
        "sdpa --nq x -f json",  # an option's value
        "sdpa --nq -f json",  # no value
        "sdpa --format json --causal",  # no such option
        "-f json",  # no command
        "nope -fjson",  # no such command
        "trace --format=json",  # no target
        "run --watch nowhere.py:f -f json none.py",
        "sdpa --q nowhere.npy -f json",  # what the library refuses
        "bert --layer 99 -f csv -f json",
        "card nowhere -f json",
        "audit raises.py:attend --input x=B:2,T:5,d:3 --causal -f json",  # the user's code raises
        "mask raises.py:attend --input x=B:2,T:5,d:3 -f json",
        "trace quits.py:attend --input x=2,3 -f json",
    ],
)
def test_a_mistake_is_a_record_on_stdout_beside_its_line_on_stderr(
    attnscope, tmp_path, monkeypatch, line
):
    monkeypatch.chdir(tmp_path)
    Path("raises.py").write_text(RAISES)
    Path("quits.py").write_text(QUITS)
    ran = attnscope(*shlex.split(line))
    assert ran.exit_status == 2
    assert set(ran.json) == {"schema", "error"}
    assert ran.json["schema"] == SCHEMA
    error = ran.json["error"]
    hint = f"  try  {error['hint']}\n" if error["hint"] else ""
    assert ran.err == f"attnscope: error: {error['message']}\n{hint}"
    assert error["status"] == 2


@pytest.mark.parametrize(
    "line",
    ["sdpa --nq x", "sdpa --nq x -f csv", "sdpa --nq x -f json -f table", "sdpa --nq x -- -f json"],
)
def test_other_formats_have_nothing_on_stdout(attnscope, line):
    ran = attnscope(*line.split())
    assert (ran.exit_status, ran.out) == (2, "")


def test_a_message_of_any_characters_is_json(attnscope):
    ran = attnscope("sdpa", "--q", "\x1b[31m\n語.npy", "-f", "json")
    assert "\x1b[31m\n語.npy" in ran.json["error"]["message"]
    assert "\x1b" not in ran.out + ran.err


@pytest.mark.parametrize(
    ("line", "is_ours"),
    [
        ("run train.py -f json", False),
        ("run --watch a.py:A train.py -- -f json", False),
        ("run --wide --watch a.py:A -f json train.py", True),
        ("run train.py -n 1 --watch a.py:A -f json", True),
        ("run -f csv -m train -f json", False),
    ],
)
def test_the_format_of_a_script_is_not_that_of_the_record(attnscope, line, is_ours):
    """Before the program runs, stdout is empty; then it is the program's."""
    ran = attnscope(*line.split())
    assert (ran.exit_status, ran.out.startswith("{")) == (2, is_ours)


def test_crashes_of_traced_code_have_their_own_record(attnscope, tmp_path):
    (tmp_path / "raises.py").write_text(RAISES)
    ran = attnscope("trace", f"{tmp_path}/raises.py:attend", "--input", "x=2,3", "-f", "json")
    assert (ran.exit_status, ran.json["schema"]) == (1, "attnscope.trace/1")
    assert ran.json["crash"]["line"] == 2


def test_a_result_whose_file_cannot_be_written_is_the_only_document(attnscope, full_disk):
    file = full_disk / "values.npz"
    ran = attnscope("sdpa", "--nq", 300, "--nk", 300, "--save", file, "-f", "json")
    assert ran.exit_status == 2
    assert ran.json["schema"] == "attnscope.trace/1"
    assert ran.err.startswith("attnscope: error: ")


def test_a_bug_of_ours_is_a_record_and_a_traceback(capsys, monkeypatch):
    def fail(**_):
        raise ZeroDivisionError("of ours")

    monkeypatch.setattr(app, "app", fail)
    with pytest.raises(ZeroDivisionError):
        app.main(["sdpa", "-f", "json"])
    error = json.loads(capsys.readouterr().out)["error"]
    assert error == {"message": "ZeroDivisionError: of ours", "hint": None, "status": 1}


@pytest.mark.parametrize(("format", "documents"), [("json", 1), ("csv", 0)])
@pytest.mark.parametrize("command", ["sdpa", "trace", "run"])
def test_ctrl_c_is_a_record_too(command, format, documents):
    """`trace` has a stdout of its own, and `run` leaves its to the program, which has not begun."""
    code = f"""
        import signal, sys
        from attnscope.base.process import interrupt
        interrupt.install()
        from attnscope.cli import app
        app.app = lambda **_: signal.raise_signal(signal.SIGINT)
        sys.argv = ["attnscope", "{command}", "-f", "{format}"]
        app.entry()
    """
    handler = "import signal; signal.signal(signal.SIGINT, signal.default_int_handler)\n"
    script = handler + re.sub(r"^ {8}", "", code, flags=re.MULTILINE)
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True)
    assert (done.returncode, done.stderr) == (128 + signal.SIGINT, "attnscope: interrupted.\n")
    records = [json.loads(done.stdout)["error"]] if done.stdout else []
    assert records == [{"message": "interrupted.", "hint": None, "status": 130}] * documents
