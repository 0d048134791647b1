"""Standard streams that are closed, full, or read by nobody; and traced code that closes or replaces its own."""

import errno
import io
import json
import os
import shlex
import stat
import subprocess
import sys
from textwrap import dedent

import pytest

from attnscope.base.process import streams

ATTNSCOPE = shlex.join([sys.executable, "-m", "attnscope"])
COMMANDS = {
    "help": "--help",
    "sdpa": "sdpa --dry-run",
    "scaling": "scaling",
    "example": "example",
    "bert": "bert --show W_Q",
    "trace": "trace code.py:f --input x=n:5",
}
NOT_OPEN = "attnscope: error: cannot write the result: stdout is closed.\n"


@pytest.fixture
def shell(tmp_path):
    """Runs a line of bash in a folder with some code in it; `%` stands for attnscope."""
    (tmp_path / "code.py").write_text("def f(x):\n    y = x + 1\n    return y\n")

    def run(line):
        line = line.replace("%", ATTNSCOPE)
        return subprocess.run(
            ["bash", "-c", line], cwd=tmp_path, capture_output=True, text=True, timeout=120
        )

    return run


@pytest.mark.few(1)
@pytest.mark.parametrize("command", COMMANDS)
def test_a_closed_stdout_is_told_in_a_line(shell, command):
    r = shell(f"% {COMMANDS[command]} >&-")
    assert r.stderr.endswith(NOT_OPEN)
    assert "Traceback" not in r.stderr
    assert r.returncode == 2


@pytest.mark.few(1)
@pytest.mark.parametrize("command", ["sdpa", "bert", "trace"])
@pytest.mark.parametrize("stderr", ["2>&-", "2> >(exec 0<&-; sleep 1)"])
def test_a_result_does_not_need_a_stderr(shell, command, stderr):
    whole = shell(f"% {COMMANDS[command]}")
    r = shell(f"% {COMMANDS[command]} {stderr}")
    assert (r.stdout, r.returncode) == (whole.stdout, 0)


@pytest.mark.sweep
def test_a_mistake_has_its_status_where_nobody_can_be_told(shell):
    assert shell("% scaling --nq 0 2>&-").returncode == 2
    assert shell("% scaling --nq 0 2>&- >&-").returncode == 2
    assert shell("% sdpa --dry-run 2>&- >&-").returncode == 2


@pytest.mark.sweep
def test_a_file_is_written_where_a_result_cannot_be_printed(shell, tmp_path):
    r = shell("% sdpa --nq 3 --save x.npz >&- 2>&-")
    assert r.returncode == 2
    assert (tmp_path / "x.npz").stat().st_size > 0
    assert b"attnscope" not in (tmp_path / "x.npz").read_bytes()  # nothing else went into its descriptor


@pytest.mark.few(1)
@pytest.mark.parametrize("command", ["help", "sdpa", "scaling", "bert"])
def test_a_reader_that_has_gone_is_status_141_and_no_traceback(shell, command):
    r = shell(f"(% {COMMANDS[command]}; echo $? >&2) | (exec 0<&-; sleep 2)")
    assert r.stderr == "141\n"


@pytest.mark.few(1)
@pytest.mark.parametrize("command", ["sdpa", "bert", "trace"])
def test_a_full_stdout_is_told_in_a_line(shell, tmp_path, command):
    full = tmp_path / "full"
    try:
        os.mknod(full, 0o600 | stat.S_IFCHR, os.makedev(1, 7))
    except PermissionError:
        pytest.skip("only root makes devices")
    r = shell(f"% {COMMANDS[command]} > {full}")
    if "Permission denied" in r.stderr:
        pytest.skip("devices cannot be opened in this folder")
    reason = os.strerror(errno.ENOSPC)
    assert r.stderr.endswith(f"attnscope: error: cannot write the result: {reason}.\n")
    assert "Traceback" not in r.stderr
    assert r.returncode == 2


# What traced code does to its streams.

DOES = {
    "closes stdout": "sys.stdout.close()",
    "closes both": "sys.stdout.close(); sys.stderr.close()",
    "closes the original ones": "sys.__stdout__.close(); sys.__stderr__.close()",
    "replaces stdout": "sys.stdout = io.StringIO()",
    "replaces stdout by nothing": "sys.stdout = sys.stderr = None",
    "closes the descriptors": "os.close(1); os.close(2)",
    "detaches": "sys.stdout.detach()",
    "writes bytes": "sys.stdout.buffer.write(b'\\xff\\n')",
    "writes to the descriptor": "os.write(1, b'low\\n')",
    "lets a process write": "os.system('echo from a process')",
}


@pytest.mark.few(1)
@pytest.mark.slow
@pytest.mark.parametrize("what", DOES)
def test_what_traced_code_does_to_its_streams_leaves_the_result_alone(shell, tmp_path, what):
    (tmp_path / "code.py").write_text(
        f"import io, os, sys\ndef f(x):\n    y = x + 1\n    {DOES[what]}\n    return y\n"
    )
    r = shell("% trace code.py:f --input x=n:5 --format json")
    assert [step["name"] for step in json.loads(r.stdout)["steps"]] == ["x", "y"]
    assert "Traceback" not in r.stderr
    assert r.returncode == 0


@pytest.mark.few(1)
@pytest.mark.parametrize("what", ["closes both", "replaces stdout", "closes the descriptors"])
def test_what_a_program_does_to_its_streams_leaves_the_trace_alone(shell, tmp_path, what):
    (tmp_path / "code.py").write_text(
        f"import io, os, sys\ndef f(x):\n    y = x + 1\n    {DOES[what]}\n    return y\n"
    )
    (tmp_path / "program.py").write_text("import torch, code_ as code\ncode.f(torch.ones(3))\n")
    (tmp_path / "code.py").rename(tmp_path / "code_.py")
    r = shell("% run --watch code_.py:f program.py")
    assert "x + 1" in r.stderr
    assert "Traceback" not in r.stderr
    assert r.returncode == 0


def test_what_is_printed_into_a_forwarding_stream_arrives_and_its_end_is_not_the_others():
    other = io.StringIO()
    stream = streams._forwarding(other)
    print("é, and half of it:", end="", file=stream)
    stream.buffer.write("ü".encode()[:1])
    stream.buffer.write("ü".encode()[1:] + b"\n")
    stream.close()
    assert other.getvalue() == "é, and half of it:ü\n"
    assert not other.closed


# How traced code ends.

ENDS = {
    "a string": ("sys.exit('bye\\nbye')", 1, "bye\nbye\n"),
    "a number": ("sys.exit(3)", 3, ""),
    "nothing": ("sys.exit()", 0, ""),
    "a number, later": ("exit(7)", 7, ""),
    "at once": ("os._exit(5)", 5, ""),
    "something that has no text": ("sys.exit(Wordless())", 1, None),
}
HEAD = """
import os, sys
from torch import nn

class Wordless:
    def __str__(self):
        raise ValueError

"""


@pytest.mark.few(3)
@pytest.mark.parametrize("how", ENDS)
def test_code_that_exits_has_its_status_and_its_text_and_its_trace_so_far(tmp_path, attnscope, how):
    line, status, err = ENDS[how]
    (tmp_path / "code.py").write_text(f"{HEAD}def f(x):\n    y = x + 1\n    {line}\n    return y\n")
    r = attnscope("trace", f"{tmp_path}/code.py:f", "--input", "x=n:5", "--format", "json")
    assert r.exit_status == status
    assert [step["name"] for step in r.json["steps"]] == ["x", "y"]
    assert r.json["crash"]["error"].startswith("SystemExit")
    assert err is None or r.err == err


def test_a_constructor_that_exits_has_its_status_too(tmp_path, attnscope):
    code = "class A(nn.Module):\n    def __init__(self):\n        sys.exit(4)\n    def forward(self, x):\n        return x\n"
    (tmp_path / "code.py").write_text(HEAD + code)
    assert attnscope("trace", f"{tmp_path}/code.py:A", "--input", "x=n:5").exit_status == 4


def test_code_that_exits_in_other_sizes_alone_is_traced(tmp_path, attnscope):
    code = "def f(x):\n    y = x + 1\n    if x.shape[0] != 5:\n        os._exit(9)\n    return y\n"
    (tmp_path / "code.py").write_text(HEAD + code)
    r = attnscope("trace", f"{tmp_path}/code.py:f", "--input", "x=n:5")
    assert r.exit_status == 0
    assert "x + 1" in r.out


def test_a_child_that_traced_code_forks_ends_by_itself(tmp_path, attnscope):
    code = dedent("""
        def f(x):
            y = x + 1
            if (child := os.fork()) == 0:
                os._exit(3)
            z = y * os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
            return z
    """)
    (tmp_path / "code.py").write_text(HEAD + code)
    r = attnscope("trace", f"{tmp_path}/code.py:f", "--input", "x=n:5", "--format", "json")
    assert r.exit_status == 0
    assert [step["name"] for step in r.json["steps"]] == ["x", "y", "z"]
