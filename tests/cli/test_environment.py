"""Commands in surroundings that are unusual: environment variables, modes of Python, pipes, large seeds."""

import os
import subprocess
import sys
import threading
import warnings

import numpy as np
import pytest

import attnscope as library
from attnscope.base.errors import OptionError, OptionWarning
from attnscope.base.process.files import write_file

SMALL = ("sdpa", "--batch", "1", "--nq", "2", "--nk", "2", "--dk", "2", "--dv", "2")


def run(*command, **environment):
    """Run a command in a process of its own."""
    return subprocess.run(
        [sys.executable, *command], env=os.environ | environment, capture_output=True, text=True, timeout=120
    )  # fmt: skip


@pytest.mark.sweep
@pytest.mark.slow
def test_settings_that_torch_refuses_are_an_error_in_one_line():
    r = run("-m", "attnscope", *SMALL, TORCH_LOGS="bogus")
    assert (r.returncode, r.stdout) == (2, "")
    assert r.stderr == "attnscope: error: torch refuses TORCH_LOGS='bogus'.\n  try  unset TORCH_LOGS\n"


@pytest.mark.sweep
@pytest.mark.slow
def test_python_without_docstrings_computes_and_says_what_it_cannot():
    assert run("-m", "attnscope", *SMALL, PYTHONOPTIMIZE="2").returncode == 0
    r = run("-m", "attnscope", "model", "minilm", "--text", "hi", PYTHONOPTIMIZE="2")
    assert (r.returncode, r.stdout) == (2, "")
    assert r.stderr.startswith("attnscope: error: transformers reads docstrings")


@pytest.mark.sweep
@pytest.mark.slow
def test_python_in_development_mode_has_nothing_to_complain_of():
    r = run("-X", "dev", "-m", "attnscope", *SMALL, "--dry-run")
    assert (r.returncode, r.stderr) == (0, "")


def test_a_pipe_without_a_reader_is_waited_for_and_a_notice_says_so(tmp_path):
    pipe, read = tmp_path / "pipe.npz", []
    os.mkfifo(pipe)
    reader = threading.Timer(0.3, lambda: read.append(pipe.read_bytes()))
    reader.start()
    with pytest.warns(OptionWarning, match="waiting for a reader of the pipe"):
        write_file(pipe, b"content", force=False)
    reader.join()
    assert read == [b"content"]


def test_a_pipe_with_a_reader_is_written_without_a_word(tmp_path):
    pipe = tmp_path / "pipe.npz"
    os.mkfifo(pipe)
    reader = os.open(pipe, os.O_RDONLY | os.O_NONBLOCK)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        write_file(pipe, b"content", force=False)
    assert os.read(reader, 99) == b"content"
    os.close(reader)


@pytest.mark.parametrize("command", ["audit", "compare"])
def test_a_seed_of_65_bits_is_refused_and_one_of_64_is_not(attnscope, tmp_path, monkeypatch, command):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "mine.py").write_text("def attend(x):\n    return (x @ x.mT).softmax(-1) @ x\n")
    line = (command, "mine.py:attend", "--input", "x=2,5,8")
    line += ("--bidirectional",) if command == "audit" else ("mine.py:attend",)
    r = attnscope(*line, "--seed", 2**64)
    assert (r.exit_status, r.out) == (2, "")
    assert f"{2**64} is not a valid seed: it does not fit into 64 bits." in r.err
    assert attnscope(*line, "--seed", 2**64 - 1).exit_status == 0


def test_a_mask_of_keys_with_the_wrong_number_of_them_is_an_error_that_names_it():
    with pytest.raises((OptionError, ValueError), match="n_K 3"):
        library.compute("mha", d_feat=16, heads=4, nq=5, mask=np.array([1.0, 0.0, 1.0]))
