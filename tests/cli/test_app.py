"""The application: help, version, exit statuses, pipes, and bugs of attnscope."""

import os
import re
import signal
import subprocess
import sys

import pytest

import attnscope as package
from attnscope.cli import app
from attnscope.cli.app import main

COMMANDS = [
    "sdpa",
    "mha",
    "example",
    "scaling",
    "trace",
    "compare",
    "audit",
    "run",
    "bert",
    "weights",
    "maps",
    "answer",
    "heads",
    "effects",
    "card",
    "mask",
]
OF_THE_USERS_CODE = {"trace", "compare", "audit", "run"}


def process(*arguments, **options):
    command = [sys.executable, "-m", "attnscope", *arguments]
    return subprocess.run(command, capture_output=True, text=True, **options)


def test_help_names_every_command(attnscope):
    r = attnscope("--help")
    assert r.exit_status == 0
    assert all(re.search(rf"^  {command} ", r.out, re.MULTILINE) for command in COMMANDS)
    assert list(app.COMMANDS) == COMMANDS


@pytest.mark.parametrize("command", COMMANDS)
def test_every_option_has_help(attnscope, command):
    r = attnscope(command, "--help")
    assert r.exit_status == 0
    typer_command = app.typer.main.get_command(app.app).commands[command]
    for parameter in typer_command.params:
        assert getattr(parameter, "help", None), parameter.name


def test_version(attnscope):
    assert attnscope("--version").out == f"attnscope {package.__version__}\n"
    assert process("--version").stdout == f"attnscope {package.__version__}\n"


def test_no_command_shows_help_and_a_wrong_one_is_refused(attnscope):
    assert "Usage: attnscope" in attnscope().out
    r = attnscope("bogus")
    assert (r.exit_status, r.err) == (
        2,
        "attnscope: error: there is no command 'bogus'.\n  try  attnscope --help\n",
    )


def test_an_error_of_ours_is_a_traceback_not_a_friendly_line(monkeypatch):
    def broken(*_, **__):
        raise ZeroDivisionError("ours")

    monkeypatch.setattr("attnscope.formula.compute.run", broken)
    with pytest.raises(ZeroDivisionError, match="ours"):
        main(["sdpa"])


def test_piped_output_is_plain_and_uncut():
    r = process("mha", "--dry-run", env={**os.environ, "COLUMNS": "40"})
    assert "\x1b" not in r.stdout
    assert "Q_feat.view(n_batch, n_Q, n_head, d_head).transpose(1, 2)" in r.stdout
    assert r.stderr == ""


@pytest.mark.sweep
def test_messages_end_their_lines_after_a_word_on_a_terminal():
    terminal = {**os.environ, "FORCE_COLOR": "1", "COLUMNS": "40", "TERM": "xterm-256color"}
    r = process("bert", "--layer", "0", "--head", "0", "--stats", env=terminal)
    assert r.stderr.split() == process("bert", "--layer", "0", "--head", "0", "--stats").stderr.split()
    assert max(map(len, r.stderr.splitlines())) <= 40


@pytest.mark.sweep
def test_colour_can_be_forced_and_forbidden():
    forced = {**os.environ, "FORCE_COLOR": "1", "COLUMNS": "100", "TERM": "xterm-256color"}
    forced.pop("NO_COLOR", None)
    assert "\x1b[38;5;" in process("sdpa", "--dry-run", env=forced).stdout
    assert "\x1b[38;" not in process("sdpa", "--dry-run", env={**forced, "NO_COLOR": "1"}).stdout


def test_a_closed_pipe_is_no_traceback():
    command = f"set -o pipefail; {sys.executable} -m attnscope mha --dry-run --format json | true"
    r = subprocess.run(["bash", "-c", command], capture_output=True, text=True)
    assert (r.stderr, r.returncode) in [("", 141), ("", 0)]  # 0: all was written before it closed


@pytest.mark.sweep
def test_interrupting_exits_130_without_a_traceback():
    code = "from attnscope.cli import app; from attnscope.formula import compute; compute.run = run"
    code = "import os, time\ndef run(*_, **__): os.write(1, b'it runs'); time.sleep(60)\n" + code
    code += "\nraise SystemExit(app.main(['sdpa']))"
    running = subprocess.Popen(
        [sys.executable, "-c", code], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    )
    assert running.stdout.read(7) == "it runs"
    running.send_signal(signal.SIGINT)
    _, err = running.communicate(timeout=30)
    assert (running.returncode, err) == (130, "attnscope: interrupted.\n")


@pytest.mark.few(3)
@pytest.mark.parametrize(
    "command", [each for each in COMMANDS if each not in {*OF_THE_USERS_CODE, "answer"}]
)
def test_json_is_one_document_and_nothing_else(attnscope, command):
    of_a_model = {
        "card": ["minilm"],
        "weights": ["minilm"],
        "heads": ["minilm", "--text", "The cat sat."],
    }
    of_a_model |= {"maps": ["minilm", "--text", "The cat sat."]}
    of_a_model |= {"mask": ["causal"], "effects": ["minilm", "--text", "A cat.", "--answer", "A dog."]}
    r = attnscope(command, *of_a_model.get(command, []), "--format", "json")
    assert r.json["schema"].startswith("attnscope.")
    assert r.err == ""


LONG = "a sentence that somebody meant to be read " * 8
NAME = "n" * 300


@pytest.mark.parametrize(
    ("arguments", "message", "hint"),
    [
        (["bert", LONG], "there is no folder 'a sentence that", '--text "…" for a text'),
        (
            ["bert", "The cat sat."],
            "there is no folder 'The cat sat.'.",
            '--text "The cat sat." for a text',
        ),
        (["model", LONG], "there is no folder 'a sentence that", '--text "…" for a text'),
        (["model", NAME], "there is no folder 'nnn", '--text "…" for a text'),
        (["model", f"owner/{NAME}"], "there is no folder 'owner/nnn", '--text "…" for a text'),
        (["model", "~nobody/model"], "there is no folder ~nobody/model.", "minilm, a folder"),
        (["heads", LONG, "--text", "a cat"], "there is no folder 'a sentence", '--text "…" for a text'),
        (["trace", LONG], "'a sentence that somebody", "FILE.py:NAME"),
        (["trace", NAME], "does not name a class or function.", "FILE.py:NAME"),
        (["trace", f"{NAME}:f"], "there is no module nnn", "FILE.py:NAME"),
        (["trace", f"{NAME}.py:f"], "there is no file nnn", None),
        (["trace", f"{NAME}/{NAME}.py:f"], "there is no file nnn", None),
        (
            ["run", "--watch", f"{NAME}.py:f", "script.py"],
            "there is no file nnn",
            "--watch FILE.py:CLASS",
        ),
        (
            ["run", "--watch", "script.py:f", NAME],
            "there is no script nnn",
            "attnscope run --watch script.py:f SCRIPT.py",
        ),
    ],
)
def test_an_argument_that_is_too_long_for_a_name_is_told_in_one_line_and_shortened(
    attnscope, monkeypatch, tmp_path, arguments, message, hint
):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "script.py").write_text("def f(x):\n    return x\n")
    r = attnscope(*arguments)
    assert (r.exit_status, r.out) == (2, "")
    assert message in r.err
    assert hint is None or f"  try  {hint}" in r.err
    assert len(r.err) < 500


@pytest.mark.parametrize("command", [["model"], ["trace"], ["sdpa", "--save"], ["bert", "--text"]])
def test_an_argument_with_a_nul_is_told_in_one_line(attnscope, command):
    r = attnscope(*command, "a\0b")
    assert (r.exit_status, r.out) == (2, "")
    assert r.err == ("attnscope: error: an argument contains a NUL character.\n")


@pytest.mark.parametrize(
    "arguments",
    [
        ("model", "x/" * 300),
        ("model", "a forgotten option before a text " * 30),
        ("sdpa", "--q", "y" * 200 + ".npy:" + "z" * 500),
        ("sdpa", "--mask", "w" * 500),
        ("trace", "torch.nn:" + "z" * 500),
        ("trace", "torch.nn:Identity", "--input", "input=" + "n" * 500 + ":x"),
        ("bert", "--text", "hi", "--layer", "9" * 500),
        ("sdpa", "--" + "o" * 500),
    ],
    ids=lambda arguments: " ".join(arguments)[:40],
)
def test_a_message_is_short_however_long_the_arguments(attnscope, arguments):
    ran = attnscope(*arguments)
    assert ran.exit_status == 2
    assert all(len(line) < 400 for line in ran.err.splitlines())
    assert len(ran.err.splitlines()) <= 2


def test_an_option_without_its_argument_has_an_example_and_leads_to_the_help(attnscope):
    r = attnscope("heads", "minilm", "--text")
    assert r.exit_status == 2
    assert r.err.splitlines() == [
        "attnscope: error: --text needs a value.",
        '  try  --text "The cat sat.", or attnscope heads --help-all',
    ]


def test_an_empty_file_is_told_without_the_hint_of_an_option(attnscope, tmp_path):
    (tmp_path / "f.txt").write_text("")
    ran = attnscope("bert", "--file", tmp_path / "f.txt")
    assert ran.exit_status == 2
    assert "f.txt is empty: there is nothing to show." in ran.err
    assert ran.err.splitlines()[1] == "  try  a file with a text in it"


def test_names_are_suggested_only_where_they_are_like(attnscope):
    nope, linear = attnscope("trace", "torch.nn:Nope"), attnscope("trace", "torch.nn:lineer")
    assert nope.err == "attnscope: error: torch.nn has no Nope.\n"
    assert linear.err == "attnscope: error: torch.nn has no lineer.\n  try  torch.nn:Linear\n"
