"""Writing files: complete or not at all, never over another without `force`, and into pipes and devices."""

import errno
import os
import shutil
import signal
import stat
import subprocess
import sys
import threading
from pathlib import Path

import pytest

from attnscope.base.errors import FileError
from attnscope.base.process.files import check_file, whole_file, write_file


def check(path, *, force=False, suffixes=None):
    check_file(path, force=force, suffixes=suffixes, kind="a test", inside="a file in it")


def write_while(path, act, *, force):
    """Write a file while another process acts."""
    with whole_file(path, force=force) as unfinished:
        unfinished.write_text("ours")
        act()


def test_a_new_file_has_the_rights_of_any_new_file(tmp_path):
    write_file(tmp_path / "x", b"content", force=False)
    (tmp_path / "y").touch()
    assert (tmp_path / "x").read_bytes() == b"content"
    assert (tmp_path / "x").stat().st_mode == (tmp_path / "y").stat().st_mode
    assert sorted(os.listdir(tmp_path)) == ["x", "y"]


def test_a_file_that_is_replaced_keeps_its_rights(tmp_path):
    path = tmp_path / "x"
    path.touch(0o600)
    path.chmod(0o640)
    write_file(path, b"new", force=True)
    assert (path.read_bytes(), stat.S_IMODE(path.stat().st_mode)) == (b"new", 0o640)


@pytest.mark.parametrize("has_links", [True, False])
def test_a_file_that_appears_meanwhile_is_kept(tmp_path, monkeypatch, has_links):
    if not has_links:
        monkeypatch.setattr(os, "link", no_links)
    path = tmp_path / "x"
    check(path)
    with pytest.raises(FileError, match="already exists") as caught:
        write_while(path, lambda: path.write_text("another's"), force=False)
    assert caught.value.hint == "another name, or force=True to replace it"
    assert path.read_text() == "another's"
    assert os.listdir(tmp_path) == ["x"]


def test_where_a_disk_has_no_links_a_file_appears_all_the_same(tmp_path, monkeypatch):
    monkeypatch.setattr(os, "link", no_links)
    write_file(tmp_path / "x", b"content", force=False)
    assert (tmp_path / "x").read_bytes() == b"content"
    assert os.listdir(tmp_path) == ["x"]


def no_links(*_):
    raise PermissionError(errno.EPERM, "Operation not permitted")


def test_a_link_is_followed_even_to_a_file_that_is_not_there_yet(tmp_path):
    (tmp_path / "folder").mkdir()
    (tmp_path / "link").symlink_to("folder/other")
    (tmp_path / "folder" / "other").symlink_to("real")
    check(tmp_path / "link")
    write_file(tmp_path / "link", b"content", force=False)
    assert (tmp_path / "folder" / "real").read_bytes() == b"content"
    assert (tmp_path / "link").is_symlink()
    with pytest.raises(FileError, match="already exists"):
        check(tmp_path / "link")
    write_file(tmp_path / "link", b"new", force=True)
    assert (tmp_path / "folder" / "real").read_bytes() == b"new"
    assert os.readlink(tmp_path / "link") == "folder/other"


def test_links_in_a_circle_are_told_in_one_line(tmp_path):
    (tmp_path / "a").symlink_to("b")
    (tmp_path / "b").symlink_to("a")
    with pytest.raises(FileError, match="a: Too many levels of symbolic links"):
        check(tmp_path / "a")
    with pytest.raises(FileError, match="a: Too many levels of symbolic links"):
        write_file(tmp_path / "a", b"", force=False)


def test_a_link_into_a_folder_that_is_not_there_names_that_folder(tmp_path):
    (tmp_path / "link").symlink_to(tmp_path / "none" / "x")
    with pytest.raises(FileError, match=r"there is no folder .*none to write x into"):
        check(tmp_path / "link")


def test_a_pipe_is_written_to_and_stays_a_pipe(tmp_path, read_pipe):
    path = tmp_path / "pipe"
    content = read_pipe(path)
    for force in (False, True):
        check(path, force=force)
    write_file(path, b"content", force=False)
    assert content() == b"content"
    assert stat.S_ISFIFO(path.stat().st_mode)
    assert os.listdir(tmp_path) == ["pipe"]


@pytest.mark.parametrize("force", [False, True])
def test_a_device_is_written_to_and_stays_a_device(tmp_path, make_device, force):
    path = make_device(tmp_path / "null", "null")
    (tmp_path / "link").symlink_to(path)
    for each in (path, tmp_path / "link"):
        check(each, force=force)
        write_file(each, b"content", force=force)
    assert stat.S_ISCHR(path.stat().st_mode)
    assert (tmp_path / "link").is_symlink()


def test_a_device_that_takes_nothing_is_told_in_one_line(tmp_path, make_device):
    path = make_device(tmp_path / "full", "full")
    with pytest.raises(FileError, match="full: No space left on device"):
        write_file(path, b"content", force=True)
    assert stat.S_ISCHR(path.stat().st_mode)


def test_what_is_no_file_may_be_refused(tmp_path, make_device):
    path = make_device(tmp_path / "null", "null")
    with pytest.raises(FileError, match="is not a regular file"):
        check_file(path, force=True, suffixes=None, kind="a test", inside="", streams=False)


def test_an_open_descriptor_is_written_to_where_it_stands(tmp_path):
    path = tmp_path / "x"
    with path.open("wb", buffering=0) as opened:
        opened.write(b"before, ")
        (tmp_path / "link").symlink_to(f"/dev/fd/{opened.fileno()}")
        for each in (Path(f"/dev/fd/{opened.fileno()}"), tmp_path / "link"):
            check(each)
            write_file(each, b"content, ", force=False)
        opened.write(b"after")
    assert path.read_bytes() == b"before, content, content, after"


def test_the_writing_end_of_a_pipe_may_be_named_by_its_number():
    reading, writing = os.pipe()
    path = Path(f"/proc/self/fd/{writing}")
    check(path)
    write_file(path, b"content", force=False)
    os.close(writing)
    with open(reading, "rb") as pipe:
        assert pipe.read() == b"content"
    with pytest.raises(FileError, match="Bad file descriptor"):
        check(path)


def test_a_pipe_without_a_reader_any_more_is_told_in_one_line():
    reading, writing = os.pipe()
    os.close(reading)
    with pytest.raises(FileError, match="Broken pipe"):
        write_file(Path(f"/dev/fd/{writing}"), b"content", force=False)
    os.close(writing)


def test_nobody_else_may_read_what_is_on_its_way_into_a_pipe(tmp_path):
    os.mkfifo(tmp_path / "pipe")
    reading = os.open(tmp_path / "pipe", os.O_RDONLY | os.O_NONBLOCK)
    with whole_file(tmp_path / "pipe", force=False) as unfinished:
        assert unfinished.parent != tmp_path
        assert stat.S_IMODE(unfinished.stat().st_mode) == 0o600
    os.close(reading)


def test_what_turns_into_a_pipe_meanwhile_is_left_alone(tmp_path):
    path = tmp_path / "x"
    with pytest.raises(FileError, match="no longer a regular file"):
        write_while(path, lambda: os.mkfifo(path), force=True)
    assert os.listdir(tmp_path) == ["x"]


def test_a_pipe_that_turns_into_a_file_meanwhile_is_left_alone(tmp_path):
    path = tmp_path / "x"
    os.mkfifo(path)

    def replace():
        path.unlink()
        path.write_text("another's")

    with pytest.raises(FileError, match="has become a regular file"):
        write_while(path, replace, force=True)
    assert path.read_text() == "another's"


@pytest.mark.parametrize("length", [240, 250, 255])
def test_a_name_may_be_as_long_as_the_disk_takes(tmp_path, length):
    path = tmp_path / ("x" * (length - 4) + ".npz")
    check(path, suffixes=[".npz"])
    write_file(path, b"content", force=False)
    assert path.read_bytes() == b"content"
    assert len(os.listdir(tmp_path)) == 1


@pytest.mark.parametrize("length", [256, 300, 5000])
def test_a_name_that_is_too_long_is_told_in_one_line_and_shortened(tmp_path, length):
    path = tmp_path / ("x" * length)
    with pytest.raises(FileError, match=r"x…x*: File name too long") as caught:
        check(path)
    assert len(caught.value.message) < 300
    with pytest.raises(FileError, match="File name too long"):
        write_file(path, b"", force=False)


def test_a_name_with_a_nul_is_told_in_one_line(tmp_path):
    with pytest.raises(FileError, match="embedded null byte"):
        check(tmp_path / "a\0b")


def test_a_folder_that_vanishes_is_told_in_one_line(tmp_path):
    folder = tmp_path / "folder"
    folder.mkdir()
    check(folder / "x")
    with pytest.raises(FileError, match="x: No such file or directory"):
        write_while(folder / "x", lambda: shutil.rmtree(folder), force=False)
    with pytest.raises(FileError, match="x: No such file or directory"):
        write_file(folder / "x", b"", force=True)


def test_a_full_disk_is_told_in_one_line_and_left_as_it_was(full_disk):
    there = sorted(os.listdir(full_disk))
    with pytest.raises(FileError, match="x: No space left on device"):
        write_file(full_disk / "x", bytes(2**20), force=False)
    assert sorted(os.listdir(full_disk)) == there


def test_a_folder_that_nobody_may_write_into_is_told_before_the_run(read_only):
    with pytest.raises(FileError, match="no permission to write into the folder"):
        check(read_only / "x")
    with pytest.raises(FileError, match="x: Read-only file system"):
        write_file(read_only / "x", b"", force=False)


def test_a_mistake_of_the_one_who_writes_is_not_told_as_a_disk_s(tmp_path):
    with pytest.raises(ZeroDivisionError), whole_file(tmp_path / "x", force=False):
        _ = 1 / 0
    assert os.listdir(tmp_path) == []


HELD = """
import sys, time
from pathlib import Path
from attnscope.base.process.files import whole_file

with whole_file(Path("outer"), force=False) as outer, whole_file(Path("inner"), force=False) as inner:
    outer.write_text("half")
    inner.write_text("half")
    print("written", flush=True)
    sys.stdin.read()
"""


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGHUP, signal.SIGINT])
def test_nothing_unfinished_outlives_a_signal(tmp_path, number):
    process = held(tmp_path, preexec_fn=lambda: signal.signal(number, signal.SIG_DFL))  # nohup or not
    assert len(os.listdir(tmp_path)) == 2
    process.send_signal(number)
    process.communicate()
    assert process.returncode == -number  # the signal ends it, as it does without us
    assert os.listdir(tmp_path) == []


def test_a_signal_that_is_ignored_stays_ignored(tmp_path):
    process = held(tmp_path, preexec_fn=lambda: signal.signal(signal.SIGHUP, signal.SIG_IGN))
    process.send_signal(signal.SIGHUP)
    process.communicate()
    assert process.returncode == 0
    assert sorted(os.listdir(tmp_path)) == ["inner", "outer"]


def held(folder, **options):
    """Start a process that has written half of two files."""
    pipes = dict.fromkeys(("stdin", "stdout", "stderr"), subprocess.PIPE)
    process = subprocess.Popen([sys.executable, "-c", HELD], cwd=folder, **pipes, **options)
    assert process.stdout.readline() == b"written\n"
    return process


def test_handlers_are_as_before_and_a_program_s_own_are_left_to_it(tmp_path):
    before = [signal.getsignal(number) for number in (signal.SIGTERM, signal.SIGHUP)]
    with whole_file(tmp_path / "x", force=False):
        pass
    assert [signal.getsignal(number) for number in (signal.SIGTERM, signal.SIGHUP)] == before

    def own(*_):
        raise RuntimeError

    signal.signal(signal.SIGTERM, own)
    try:
        with whole_file(tmp_path / "y", force=False):
            assert signal.getsignal(signal.SIGTERM) is own
    finally:
        signal.signal(signal.SIGTERM, before[0])


def test_a_thread_may_write_too(tmp_path):
    thread = threading.Thread(
        target=write_file, args=(tmp_path / "x", b"content"), kwargs={"force": False}
    )
    thread.start()
    thread.join()
    assert (tmp_path / "x").read_bytes() == b"content"
