"""The record of an error, which stdout gets with `--format json` where it has no record of a result."""

from __future__ import annotations

import json
import os
from collections.abc import Sequence
from contextlib import suppress
from typing import TextIO

from attnscope.base.process.launch import is_first
from attnscope.base.text import encodable_json

SCHEMA = "attnscope.error/1"

_stream: TextIO | None = None
"""The stream that lacks its record; None: it has one already, or needs none."""


def json_is_requested(words: Sequence[str]) -> bool:
    """Check whether the last format that a command line names is json; its other words may be mistakes.

    >>> json_is_requested(["sdpa", "--nq", "x", "--format=json"]), json_is_requested(["-f", "csv"])
    (True, False)
    """
    values = []
    for word, following in zip(words, [*words[1:], ""], strict=False):
        if word == "--":
            break
        if word in ("-f", "--format"):
            values.append(following)
        elif word.startswith("--format="):
            values.append(word.partition("=")[2])
        elif word.startswith("-f"):
            values.append(word[2:])
    return values[-1:] == ["json"]


def expect_record(stream: TextIO | None) -> None:
    """Expect a record on a stream; None: on no stream, because it is printed or not requested."""
    global _stream
    _stream = stream


def print_error_record(message: str, hint: str | None, status: int) -> None:
    """Print the record of an error on the stream that lacks one, if any."""
    stream = _stream
    expect_record(None)
    if stream is not None and is_first():
        print(encodable_json(_document(message, hint, status), stream.encoding), file=stream)


def write_error_record(message: str, status: int) -> None:
    """Write the same in a handler of a signal, which may have interrupted a write to the stream."""
    if _stream is not None and is_first():
        with suppress(OSError, ValueError):
            os.write(_stream.fileno(), f"{_document(message, None, status)}\n".encode())


def _document(message: str, hint: str | None, status: int) -> str:
    error = {"message": message, "hint": hint, "status": status}
    return json.dumps({"schema": SCHEMA, "error": error}, indent=2, ensure_ascii=False)
