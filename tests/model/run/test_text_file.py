"""Files that are read as one text, some of them without an end; and with a JSON value in each line."""

import gzip
import io
import os
import threading
from pathlib import Path

import pytest

from attnscope.base.errors import FileError
from attnscope.model.run.text_file import LEAST, MAX_BYTES, read_json_lines, text_of_file

TEXT = "The keys are — für alle — on the table.\n"


@pytest.fixture
def endless(tmp_path):
    """A FIFO that somebody writes a text into for as long as it is read; gives how much that was."""
    path = tmp_path / "endless"
    os.mkfifo(path)
    written = []

    def write():
        with path.open("wb", buffering=0) as file:
            try:
                while sum(written) < 8 * LEAST:
                    written.append(file.write(TEXT.encode() * 1000))
            except BrokenPipeError:
                pass

    writer = threading.Thread(target=write)
    writer.start()
    yield path, written
    writer.join()


@pytest.fixture
def zeros(tmp_path):
    """A device of our own that yields zeros without end, as /dev/zero does."""
    path = tmp_path / "zeros"
    try:
        os.mknod(path, 0o20600, os.makedev(1, 5))
        path.open("rb").close()
    except OSError:
        pytest.skip("only root makes devices, and only where they may be used")
    return path


def test_a_file_is_read_as_python_reads_texts(tmp_path):
    path = tmp_path / "x.txt"
    path.write_bytes(b"\xef\xbb\xbfone\r\ntwo\rthree\n\xc3\xbc")
    assert text_of_file(path, 10) == path.read_text(encoding="utf-8-sig") == "one\ntwo\nthree\nü"


def test_a_file_without_an_end_is_refused(endless):
    path, written = endless
    with pytest.raises(FileError, match=r"longer than 1\.0 MiB, more than a model that takes 512"):
        text_of_file(path, 512)
    assert sum(written) < 2 * LEAST


def test_of_a_file_without_an_end_the_beginning_may_be_read(endless):
    path, written = endless
    text = text_of_file(path, 512, truncate=True)
    assert text == (TEXT * len(text))[: len(text)]
    assert LEAST - 4 < len(text.encode()) <= LEAST
    assert sum(written) < 2 * LEAST


def test_zeros_without_an_end_are_no_text(zeros):
    with pytest.raises(FileError, match="has a NUL character, so it is not a text"):
        text_of_file(zeros, None)


@pytest.mark.parametrize("tail", [b"\xff", b"\xc3"])
def test_a_whole_file_that_is_not_utf8_is_refused(tmp_path, tail):
    path = tmp_path / "x.txt"
    path.write_bytes(b"a" + tail)
    with pytest.raises(FileError, match="is not UTF-8"):
        text_of_file(path, 10, truncate=True)


def test_no_model_makes_more_be_read_than_memory_holds(tmp_path):
    path = tmp_path / "x.txt"
    with path.open("wb") as file:
        file.truncate(MAX_BYTES + 1)  # zeros that take no room on the disk
        file.write(b"a")
    with pytest.raises(FileError, match="NUL"):
        text_of_file(path, 10**9)


@pytest.mark.parametrize("command", [["bert"], ["model", "minilm"], ["heads", "minilm"]])
def test_commands_read_no_more_than_their_model_can_use(attnscope, endless, command):
    path, written = endless
    r = attnscope(*command, "--file", path)
    assert (r.exit_status, r.out) == (2, "")
    assert f"{path} is longer than 1.0 MiB" in r.err
    assert sum(written) < 2 * LEAST


@pytest.mark.few(1)
@pytest.mark.parametrize("command", [["bert", "--layer", "0", "--head", "0"], ["heads", "minilm"]])
def test_commands_read_the_beginning_of_a_file_without_an_end(attnscope, endless, command):
    path, _ = endless
    r = attnscope(*command, "--file", path, "--truncate")
    assert r.exit_status == 0, r.err
    assert "was truncated" in r.out + r.err


@pytest.mark.parametrize("option", ["--file", "--corpus"])
def test_zeros_are_refused_by_heads(attnscope, zeros, option):
    r = attnscope("heads", "minilm", option, zeros)
    assert (r.exit_status, r.out) == (2, "")
    assert r.err.startswith("attnscope: error: ")


# A JSON value in each line.

LINES = '{"text": "a\u2028b"}\n\n  \n["two"]\r\n3'
VALUES = [(1, {"text": "a\u2028b"}), (4, ["two"]), (5, 3)]


def named(path):
    return [(f"line {number} of {path}", value) for number, value in VALUES]


def test_each_line_that_is_not_blank_has_a_value(tmp_path):
    plain, packed = tmp_path / "a.jsonl", tmp_path / "a.jsonl.GZ"
    plain.write_bytes(LINES.encode("utf-8-sig"))
    packed.write_bytes(gzip.compress(LINES.encode()))
    assert read_json_lines(plain, "{}") == named(plain)
    assert read_json_lines(str(packed), "{}") == named(packed)


def test_standard_input_is_read(monkeypatch):
    monkeypatch.setattr("sys.stdin", io.TextIOWrapper(io.BytesIO(LINES.encode())))
    assert read_json_lines(Path("-"), "{}") == named("standard input")


@pytest.mark.parametrize(
    ("name", "content", "message"),
    [
        ("a.jsonl", None, "there is no file"),
        ("a.jsonl", b"1\n{", r"line 2 of .*a\.jsonl is not JSON: \{\."),
        ("a.jsonl", b"[" * 100_000, "is not JSON"),
        ("a.jsonl", b"\xff", "is not UTF-8"),
        ("a.jsonl.gz", b"no gzip", "is damaged, or not a gzip file"),
        ("a.jsonl.gz", gzip.compress(LINES.encode())[:-4], "is damaged, or not a gzip file"),
        (".", None, "Is a directory"),
    ],
    ids=range(7),
)
def test_a_file_that_cannot_be_read_gets_one_line(tmp_path, name, content, message):
    path = tmp_path / name
    if content is not None:
        path.write_bytes(content)
    with pytest.raises(FileError, match=message) as error:
        read_json_lines(path, "{}")
    assert "\n" not in error.value.message
