"""Commands without enough memory."""

import resource
import subprocess
import sys

import pytest
import torch

from attnscope.base.errors import is_out_of_memory

GIB = 2**30
LARGE = 2**62


def of_torch():
    torch.empty(LARGE // 8, dtype=torch.uint8)


def of_numpy():
    import numpy as np

    np.empty(LARGE // 8, dtype=np.uint8)


def of_python():
    bytearray(LARGE)


def of_the_system():
    raise OSError(12, "Cannot allocate memory")


def of_mmap():
    raise RuntimeError("unable to mmap 64 bytes from file <x>: Cannot allocate memory (12)")


def of_cpp():
    raise RuntimeError("std::bad_alloc")


def of_a_device():
    raise torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 20.00 GiB.")


def of_the_linker():
    raise ImportError("libtorch_cpu.so: failed to map segment from shared object")


def told_as_something_else():
    try:
        of_torch()
    except RuntimeError:
        raise ValueError("cannot load the weights") from None


def told_as_something_else_by_name():
    try:
        of_torch()
    except RuntimeError as error:
        raise ValueError("cannot load the weights") from error


SHORTAGES = [
    *(of_torch, of_numpy, of_python, of_the_system, of_mmap, of_cpp, of_a_device, of_the_linker),
    told_as_something_else_by_name,
]
OTHERS = [
    RuntimeError("mat1 and mat2 shapes cannot be multiplied"),
    OSError(2, "No such file"),
    ImportError("libx.so: cannot allocate memory in static TLS block"),
    ValueError("Cannot allocate memory"),
    KeyError("bad_alloc"),
]


@pytest.mark.parametrize("shortage", SHORTAGES)
def test_a_shortage_of_memory_is_told_from_other_errors(shortage):
    with pytest.raises(Exception) as raised:  # noqa: PT011
        shortage()
    assert is_out_of_memory(raised.value)


@pytest.mark.parametrize("error", OTHERS, ids=repr)
def test_other_errors_are_no_shortage_of_memory(error):
    assert not is_out_of_memory(error)


def test_what_hides_its_cause_is_no_shortage_of_memory():
    with pytest.raises(ValueError, match="cannot load") as raised:
        told_as_something_else()
    assert not is_out_of_memory(raised.value)


@pytest.mark.few(4)
@pytest.mark.parametrize("shortage", SHORTAGES)
def test_a_run_without_memory_says_so_in_two_lines(attnscope, monkeypatch, shortage):
    monkeypatch.setattr("attnscope.attention.sdpa.softmax", lambda *_: shortage())
    r = attnscope("sdpa", "--nq", "3")
    assert (r.exit_status, r.out) == (2, "")
    assert r.err.startswith("attnscope: error: out of memory while running sdpa on cpu")
    assert r.err.count("\n") == 2


def test_what_could_not_be_had_is_named(attnscope, monkeypatch):
    monkeypatch.setattr("attnscope.attention.sdpa.softmax", lambda *_: of_torch())
    assert "running sdpa on cpu: 512.0 PiB more could not be allocated." in attnscope("sdpa").err


@pytest.mark.few(4)
@pytest.mark.parametrize(
    ("command", "doing", "place"),
    [
        (["bert", "--text", "a cat"], "loading minilm", "attnscope.model.files.tensors.open_weights"),
        (
            ["bert", "--text", "a cat"],
            "running minilm on cpu",
            "attnscope.model.maps.collect.collect_maps",
        ),
        (
            ["heads", "minilm", "--text", "a cat"],
            "loading minilm",
            "attnscope.model.files.tensors.open_weights",
        ),
        (["scaling"], "measuring scores", "attnscope.attention.score_measurements.measure"),
        (["example"], "computing the example", "attnscope.formula.example.worked_example._worked_out"),
    ],
)
def test_every_command_says_what_it_was_doing(attnscope, monkeypatch, command, doing, place):
    monkeypatch.setattr(place, lambda *_, **__: of_torch())
    r = attnscope(*command)
    assert (r.exit_status, r.out) == (2, "")
    assert r.err.startswith(f"attnscope: error: out of memory while {doing}: 512.0 PiB more")


def test_a_shortage_while_nothing_is_told_names_the_command(attnscope, monkeypatch):
    monkeypatch.setattr("attnscope.document.terminal.print_document", lambda *_, **__: of_numpy())
    r = attnscope("sdpa", "--dry-run")
    assert r.exit_status == 2
    assert r.err.startswith("attnscope: error: attnscope sdpa ran out of memory: 512. PiB more")


def test_other_errors_of_ours_stay_tracebacks(attnscope, monkeypatch):
    def fail(*_):
        raise RuntimeError("a bug")

    monkeypatch.setattr("attnscope.attention.sdpa.softmax", fail)
    with pytest.raises(RuntimeError, match="a bug"):
        attnscope("sdpa")


CODE = """
import torch

def attend(Q):
    scores = Q @ Q.mT
    large = torch.empty(2**59, dtype=torch.uint8)
    return scores
"""


def test_a_users_own_code_without_memory_is_shown_as_a_crash(attnscope, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "mine.py").write_text(CODE)
    r = attnscope("trace", "mine.py:attend", "--input", "Q=3,4")
    assert r.exit_status == 1
    assert "scores" in r.out
    assert "RuntimeError" in r.out + r.err


@pytest.mark.sweep
@pytest.mark.skipif(sys.platform != "linux", reason="other systems do not enforce ulimit -v")
def test_a_run_under_a_limit_ends_in_two_lines():
    limit = 900 * 2**20
    r = subprocess.run(
        [sys.executable, "-m", "attnscope", "sdpa", "--nq", "9000", "--nk", "9000"],
        preexec_fn=lambda: resource.setrlimit(resource.RLIMIT_AS, (limit, limit)),
        capture_output=True,
        text=True,
    )
    assert (r.returncode, r.stdout) == (2, ""), r.stderr
    assert r.stderr.startswith("attnscope: error: this run needs at least ")
    assert "`ulimit -v` of 900.0 MiB leaves" in r.stderr
    assert r.stderr.count("\n") == 2


# Weights


@pytest.fixture
def little_memory(monkeypatch):
    """Leave 50 MiB free, and fail if weights are loaded."""
    import psutil

    free = type("Memory", (), {"available": 50 * 2**20})()
    monkeypatch.setattr(psutil, "virtual_memory", lambda: free)
    loads = "attnscope.model.run.load.load_model"
    monkeypatch.setattr(loads, lambda *_, **__: pytest.fail("weights were loaded"))


@pytest.mark.parametrize("command", [["bert"], ["model", "minilm"], ["heads", "minilm"]])
def test_weights_that_have_no_room_are_not_loaded(attnscope, little_memory, command):
    r = attnscope(*command, "--text", "a cat", "--dtype", "float64")
    assert (r.exit_status, r.out) == (2, "")
    assert "the weights of minilm take 173." in r.err
    assert "but cpu has 50.0 MiB free." in r.err
    assert "a smaller model, or --dtype bfloat16" in r.err


def test_maps_beside_the_weights_count(attnscope, little_memory, monkeypatch):
    monkeypatch.setattr("attnscope.model.maps.memory.bytes_of_whole", lambda *_: 20 * 2**20)
    r = attnscope("bert", "--text", "a cat", "--dtype", "bfloat16")
    assert (r.exit_status, r.out) == (2, "")
    assert "the weights of minilm take 43.3 MiB and maps 20.0 MiB, but cpu has 50.0 MiB free." in r.err


@pytest.mark.parametrize(
    ("command", "what"),
    [
        (["heads", "minilm", "--text", "a cat"], "measuring 4 tokens at least 1"),
        (["heads", "minilm", "--corpus", "c.txt"], "measuring 8 × 512 tokens at least "),
        (["model", "minilm", "--text", "a cat", "--pool", "max"], "reading 4 tokens at least "),
    ],
)
def test_what_runs_beside_the_weights_counts(
    attnscope, little_memory, monkeypatch, tmp_path, command, what
):
    """The weights fit into memory, and so does the run alone, but not both together."""
    from attnscope.model.files import tensors as weights

    monkeypatch.setattr(weights, "bytes_of_weights", lambda *_: 50 * 2**20 - 10)
    monkeypatch.chdir(tmp_path)
    (tmp_path / "c.txt").write_text("a cat\n")
    r = attnscope(*command)
    assert (r.exit_status, r.out) == (2, "")
    assert f"the weights of minilm take 50.0 MiB and {what}" in r.err
    assert "but cpu has 50.0 MiB free." in r.err
    assert "  try  " in r.err
    assert "--memory" in r.err


@pytest.mark.parametrize("max_shard_size", ["5GB", "20KB"])
@pytest.mark.parametrize(("itemsize", "bytes_of_number"), [(None, 4), (8, 8), (2, 2)])
def test_the_size_of_weights_is_what_they_take(tmp_path, max_shard_size, itemsize, bytes_of_number):
    from transformers import BertConfig, BertModel

    from attnscope.model.files.checkpoint import find_checkpoint
    from attnscope.model.files.tensors import bytes_of_weights

    sizes = {"hidden_size": 16, "num_hidden_layers": 2, "num_attention_heads": 2, "vocab_size": 99}
    model = BertModel(BertConfig(**sizes, intermediate_size=32, max_position_embeddings=8))
    model.save_pretrained(tmp_path, max_shard_size=max_shard_size)
    expected = bytes_of_number * sum(parameter.numel() for parameter in model.parameters())
    assert bytes_of_weights(find_checkpoint(str(tmp_path)), itemsize) == expected


def test_of_a_pickle_its_files_size_is_taken(tmp_path):
    from attnscope.model.files.checkpoint import find_checkpoint
    from attnscope.model.files.tensors import bytes_of_weights

    torch.save({"x": torch.zeros(1000)}, tmp_path / "pytorch_model.bin")
    assert 4000 < bytes_of_weights(find_checkpoint(str(tmp_path))) < 8000
