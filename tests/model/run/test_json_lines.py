"""Files with a JSON value in each line: plain, compressed, and from standard input."""

import gzip
import io
from pathlib import Path

import pytest

from attnscope.base.errors import FileError
from attnscope.model.run.text_file import read_json_lines

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
