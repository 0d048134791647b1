"""Every option that writes a file, with every kind of target."""

import os
import stat
import sys
from contextlib import suppress
from types import SimpleNamespace

import pytest

from attnscope.cli.app import main

SMALL = ("--batch", 1, "--nq", 2, "--nk", 2, "--dk", 2, "--dv", 2)
TEXT = ("--text", "a cat", "--layer", "0")
WATCHED = "def double(x):\n    y = x * 2\n    return y\n"
PROGRAM = "import torch\nfrom watched import double\n\ndouble(torch.ones(2, 3))\nprint('done')\n"

WRITERS = {
    "sdpa --save .npz": ("sdpa", *SMALL, "--save"),
    "mha --save .safetensors": ("mha", "--batch", 1, "--nq", 2, "--d-feat", 4, "--heads", 2, "--save"),
    "trace --save .pt": ("trace", "watched.py:double", "--input", "x=n:2,d:3", "--save"),
    "model --save .safetensors": ("model", "minilm", "--save"),
    "bert --plot .svg": ("bert", *TEXT, "--plot"),
    "bert --plot .pdf": ("bert", *TEXT, "--plot"),
    "bert --page .html": ("bert", *TEXT, "--page"),
    "bert --steps --save .npz": ("bert", *TEXT, "--steps", "--save"),
    "whole maps --save .safetensors": ("bert", *TEXT, "--save"),
    "whole maps --save .npz": ("bert", *TEXT, "--save"),
    "whole maps --save .pt": ("bert", *TEXT, "--save"),
    "heads --plot .png": ("heads", "minilm", *TEXT, "--metrics", "entropy", "--plot"),
    "heads --page .html": ("heads", "minilm", *TEXT, "--metrics", "entropy", "--page"),
    "run --to .txt": ("run", "--watch", "watched.py:double", "program.py", "--to"),
}
"""Each name ends in the suffix of its file."""

SHOWN_ON_STDOUT = [name for name in WRITERS if not name.startswith("run")]


@pytest.fixture
def here(tmp_path, monkeypatch):
    """Change to a folder with code to trace, and return it."""
    folder = tmp_path / "here"
    folder.mkdir()
    (folder / "watched.py").write_text(WATCHED)
    (folder / "program.py").write_text(PROGRAM)
    monkeypatch.chdir(folder)
    monkeypatch.setattr(sys, "dont_write_bytecode", True)
    yield folder
    sys.modules.pop("watched", None)


@pytest.fixture
def write(attnscope, here, monkeypatch):
    """Return a function that makes a command write to a target: `write("run --to .txt", path, "--force")`."""

    def run(writer, path, *more):
        if writer.startswith("whole"):  # written while they are computed, as those of long texts are
            monkeypatch.setattr("attnscope.model.maps.memory.WHOLE", 0)
        command = list(WRITERS[writer])
        if command[0] == "run":  # what follows the script is its own, up to --watch
            command = ["run", "--to", path, *more, *command[1:-1]]
            return attnscope(*command)
        return attnscope(*command, path, *more)

    return run


def named(folder, writer):
    return folder / f"file{suffix(writer)}"


def suffix(writer):
    return "." + writer.rpartition(".")[2]


# Told before anything runs


def make_existing(path):
    path.write_text("precious")


def make_link(path):
    (path.parent / "real").write_text("precious")
    path.symlink_to("real")


def make_loop(path):
    path.symlink_to("other")
    (path.parent / "other").symlink_to(path.name)


def make_link_to_nowhere(path):
    path.symlink_to("none/real")


REFUSED = {
    "a file": (make_existing, "already exists."),
    "a link to a file": (make_link, "already exists."),
    "links in a circle": (make_loop, "Too many levels of symbolic links."),
    "a folder": (lambda path: path.mkdir(), "is a folder."),
    "a link into no folder": (make_link_to_nowhere, "to write real into."),
}


@pytest.mark.few(20)
@pytest.mark.parametrize("kind", REFUSED)
@pytest.mark.parametrize("writer", WRITERS)
def test_what_cannot_be_written_is_told_before_the_run_and_left_alone(tmp_path, write, writer, kind):
    folder = tmp_path / "there"
    folder.mkdir()
    path = named(folder, writer)
    make, message = REFUSED[kind]
    make(path)
    before = state_of(folder)
    r = write(writer, path)
    assert_one_line(r, message)
    assert r.out == ""
    assert state_of(folder) == before


@pytest.mark.few(5)
@pytest.mark.parametrize("writer", WRITERS)
def test_names_that_no_disk_takes_are_told_before_the_run(tmp_path, write, writer):
    for name in ("x" * 300, "x" * 5000):
        r = write(writer, tmp_path / f"{name}{suffix(writer)}")
        assert_one_line(r, "File name too long.")
    r = write(writer, "")
    assert_one_line(r, "the name of the file is empty.")
    r = write(writer, tmp_path / "none" / f"x{suffix(writer)}")
    assert_one_line(r, "to write x")
    r = write(writer, tmp_path / "here" / "program.py" / f"x{suffix(writer)}")
    assert_one_line(r, "to write x")


@pytest.mark.few(6)
@pytest.mark.parametrize("writer", WRITERS)
def test_a_folder_that_may_not_be_written_is_told_before_the_run(write, read_only, writer):
    for name in ("x", "new"):  # x.npz is there
        r = write(writer, read_only / f"{name}{suffix(writer)}", "--force")
        assert_one_line(r, "no permission to write into the folder")
    assert (read_only / "x.npz").read_text() == "precious"


def assert_one_line(r, message):
    """Check that stderr is one line and perhaps a hint; if `run` writes results there, the last line."""
    errors = [line for line in r.err.splitlines() if "attnscope: error: " in line]
    assert r.exit_status == 2
    assert len(errors) == 1
    assert message in r.err.replace("\n", " ")
    assert "Traceback" not in r.err


def state_of(folder):
    """Return all files of a folder with their contents."""
    return {
        path.relative_to(folder): os.readlink(path)
        if path.is_symlink()
        else path.read_bytes()
        if path.is_file()
        else stat.S_IFMT(path.lstat().st_mode)
        for path in folder.rglob("*")
    }


# Written


def to_pipe(path, read_pipe, make_device):
    content = read_pipe(path)
    return (), lambda: (stat.S_ISFIFO(path.lstat().st_mode), len(content()) > 40)


def to_device(path, read_pipe, make_device):
    make_device(path, "null")
    return (), lambda: (stat.S_ISCHR(path.lstat().st_mode), True)


def to_device_with_force(path, read_pipe, make_device):
    return ("--force",), to_device(path, read_pipe, make_device)[1]


def to_link_to_device(path, read_pipe, make_device):
    device = path.parent / "device"
    make_device(device, "null")
    path.symlink_to("device")
    return (), lambda: (path.is_symlink(), stat.S_ISCHR(device.lstat().st_mode))


def to_dangling_link(path, read_pipe, make_device):
    path.symlink_to("real")
    return (), lambda: (path.is_symlink(), (path.parent / "real").stat().st_size > 40)


def to_link_with_force(path, read_pipe, make_device):
    make_link(path)
    return ("--force",), lambda: (path.is_symlink(), (path.parent / "real").stat().st_size > 40)


def to_file_with_force(path, read_pipe, make_device):
    make_existing(path)
    path.chmod(0o640)
    return ("--force",), lambda: (path.stat().st_mode & 0o777 == 0o640, path.stat().st_size > 40)


TARGETS = [
    *(to_pipe, to_device, to_device_with_force, to_link_to_device),
    *(to_dangling_link, to_link_with_force, to_file_with_force),
]
PAIRS = [
    (writer, target)
    for i, writer in enumerate(WRITERS)
    for target in (TARGETS if i == 0 else [TARGETS[2 * i % 7], TARGETS[(2 * i + 3) % 7]])
]
"""All pairs of the quickest command, two of each other; every kind of target has several writers."""


@pytest.mark.few(4)
@pytest.mark.parametrize(("writer", "target"), PAIRS)
def test_pipes_and_devices_are_written_to_and_links_are_followed(
    tmp_path, write, read_pipe, make_device, writer, target
):
    folder = tmp_path / "there"
    folder.mkdir()
    path = named(folder, writer)
    options, is_right = target(path, read_pipe, make_device)
    entries = len(os.listdir(folder)) + (target is to_dangling_link)
    r = write(writer, path, *options)
    assert r.exit_status == 0, r.err
    assert is_right() == (True, True)
    assert len(os.listdir(folder)) == entries


@pytest.mark.few(2)
@pytest.mark.parametrize("writer", ["sdpa --save .npz", "heads --page .html", "run --to .txt"])
def test_the_longest_name_that_a_disk_takes_is_written(tmp_path, write, writer):
    path = tmp_path / ("x" * (255 - len(suffix(writer))) + suffix(writer))
    assert write(writer, path).exit_status == 0
    assert path.stat().st_size > 40


@pytest.mark.few(2)
@pytest.mark.parametrize("writer", WRITERS)
def test_a_full_disk_is_one_line_and_the_results_are_shown_all_the_same(
    write, full_disk, monkeypatch, writer
):
    room = SimpleNamespace(free=2**30)  # as before another process filled the disk
    monkeypatch.setattr("attnscope.model.maps.matrix_file.disk_usage", lambda _: room)
    there = os.listdir(full_disk)
    r = write(writer, named(full_disk, writer))
    assert_one_line(r, "No space left on device")
    assert os.listdir(full_disk) == there
    if writer.startswith("whole"):  # it fails while the model runs: there is no result yet
        return
    shown = r.out if writer in SHOWN_ON_STDOUT else r.err
    assert len(shown.splitlines()) > 5


def test_a_checkpoint_is_a_regular_file_or_nothing(attnscope, tmp_path, make_device):
    corpus = tmp_path / "corpus.txt"
    corpus.write_text("a cat\n")
    make_device(tmp_path / "device.npz", "null")
    os.mkfifo(tmp_path / "pipe.npz")
    make_loop(tmp_path / "loop.npz")
    command = ["heads", "minilm", "--corpus", corpus, "--metrics", "entropy", "--checkpoint"]
    for name in ("device", "pipe"):
        assert_one_line(attnscope(*command, tmp_path / f"{name}.npz"), "is not a regular file.")
    assert_one_line(attnscope(*command, tmp_path / "loop.npz"), "Too many levels of symbolic links.")
    (tmp_path / "link.npz").symlink_to("real.npz")
    for _ in range(2):  # and then it goes on from there
        assert attnscope(*command, tmp_path / "link.npz").exit_status == 0
        assert (tmp_path / "link.npz").is_symlink()
        assert (tmp_path / "real.npz").stat().st_size > 100


def test_comments_are_written_where_a_link_points_to(attnscope, here):
    (here / "code.py").write_text(WATCHED)
    (here / "link.py").symlink_to("code.py")
    r = attnscope("trace", "link.py:double", "--input", "x=n:2,d:3", "--annotate", "--write")
    assert r.exit_status == 0
    assert "y = x * 2  # [n, d]" in (here / "code.py").read_text()
    assert (here / "link.py").is_symlink()


# `run`, whose program comes first


@pytest.mark.sweep
def test_a_trace_that_cannot_be_written_after_all_is_shown_on_stderr(attnscope, here):
    program = here / "program.py"
    program.write_text(PROGRAM + "open('trace.txt', 'w').write('its own')\n")
    arguments = ["--to", "trace.txt", "--watch", "watched.py:double", "program.py"]
    r = attnscope("run", *arguments)  # the trace is there before the program writes its file
    assert (r.exit_status, (here / "trace.txt").read_text()) == (0, "its own")
    (here / "trace.txt").unlink()
    sys.modules.pop("watched")
    program.write_text("open('trace.txt', 'w').write('its own')\n" + PROGRAM)
    r = attnscope("run", *arguments)
    assert_one_line(r, "trace.txt already exists.")
    assert "x * 2" in r.err
    assert r.out == "done\n"
    assert (here / "trace.txt").read_text() == "its own"


def test_the_status_of_a_program_that_fails_is_kept_where_its_trace_cannot_be_written(
    attnscope, here, make_device
):
    make_device(here / "full", "full")
    (here / "program.py").write_text(PROGRAM + "raise SystemExit(7)\n")
    r = attnscope("run", "--to", "full", "--watch", "watched.py:double", "program.py")
    assert r.exit_status == 7
    assert "full: No space left on device." in r.err
    assert "x * 2" in r.err


# Nobody reads on


@pytest.mark.few(2)
@pytest.mark.parametrize("writer", SHOWN_ON_STDOUT)
def test_files_are_written_even_if_nobody_reads_the_results(here, monkeypatch, tmp_path, writer):
    path = named(tmp_path, writer)
    reading, writing = os.pipe()
    os.close(reading)
    with monkeypatch.context() as patched, suppress(OSError), open(writing, "w", buffering=1) as closed:
        patched.setattr(sys, "stdout", closed)
        main([str(argument) for argument in (*WRITERS[writer], path)])
    assert path.stat().st_size > 100
