"""Read a file as one text, or with a JSON value in each line.

Source: https://jsonlines.org, RFC 8259 (JSON), RFC 1952 (gzip)
"""

from __future__ import annotations

import gzip
import json
import sys
import zlib
from codecs import getincrementaldecoder
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from attnscope.base.errors import (
    AttnscopeError,
    FileError,
    OptionError,
    class_name,
    first_line,
    no_such_file,
)
from attnscope.base.process.files import is_named_pipe
from attnscope.base.process.progress import notify
from attnscope.base.spelling import spelled
from attnscope.base.text import alternatives, nearest, shortened
from attnscope.base.units import bytes_text

BYTES_OF_A_TOKEN = 1024
"""An upper bound of the bytes of a token; only endless blanks exceed it."""


LEAST = 2**20
"""The number of bytes of a file that are read in any case."""


MAX_BYTES = 2**28
"""The most bytes of a file that are read, which matters if only memory limits a model's texts."""


def text_of_file(path: Path, n_token: int | None, *, truncate: bool = False) -> str:
    """Read a file as one text, but no more than a model can use, since a file may be endless.

    Args:
        n_token: the model's limit in tokens; None: no limit.
    """
    if is_named_pipe(path):
        notify(f"{path} is a pipe, which is read until its writers close it")
    most = MAX_BYTES if n_token is None else min(MAX_BYTES, max(LEAST, n_token * BYTES_OF_A_TOKEN))
    try:
        raw, more = _beginning(path, most)
    except FileNotFoundError as error:
        raise no_such_file(path) from error
    except IsADirectoryError as error:
        raise FileError(f"{path} is a folder.", hint=spelled(file=path / "FILE.txt")) from error
    except OSError as error:
        raise FileError(f"cannot read {path}: {error.strerror}.") from error
    try:  # truncated bytes may end within a character
        text = getincrementaldecoder("utf-8-sig")().decode(raw, final=not more)
    except UnicodeDecodeError as error:
        raise FileError(f"{path} is not UTF-8.", hint="iconv -t utf-8 …") from error
    if "\0" in text:
        raise FileError(f"{path} has a NUL character, so it is not a text.")
    if more and not truncate:
        of_model = f"a model that takes {n_token:,} tokens can use"
        use = "attnscope reads" if most == MAX_BYTES else of_model
        raise FileError(
            f"{path} is longer than {bytes_text(most)}, more than {use}.",
            hint=f"{spelled(truncate=True)}, which reads its beginning",
        )
    return text.replace("\r\n", "\n").replace("\r", "\n")  # as Python reads texts


def whole_text(path: str | Path) -> str:
    """Return the text of a file, also with .gz, or of standard input, `-`."""
    is_packed = Path(path).suffix.lower() == ".gz"
    try:
        raw = sys.stdin.buffer.read() if str(path) == "-" else Path(path).read_bytes()
        return (gzip.decompress(raw) if is_packed else raw).decode("utf-8-sig")
    except FileNotFoundError as error:
        raise no_such_file(Path(path)) from error
    except UnicodeDecodeError as error:
        raise FileError(f"{shortened(str(path))} is not UTF-8.", hint="iconv -t utf-8 …") from error
    except (EOFError, gzip.BadGzipFile, zlib.error) as error:
        raise FileError(f"{path} is damaged, or not a gzip file: {first_line(error)}.") from error
    except OSError as error:
        raise FileError(f"cannot read {shortened(str(path))}: {error.strerror}.") from error


def _beginning(path: Path, most: int) -> tuple[bytes, bool]:
    """Return a file's first bytes, and whether there are more; stop at a NUL, which no text contains."""
    parts: list[bytes] = []
    left = most + 1
    with path.open("rb") as file:
        while left and (part := file.read(min(left, LEAST))):
            parts.append(part)
            left -= len(part)
            if b"\0" in part:
                break
    raw = b"".join(parts)
    return raw[:most], len(raw) > most


# A JSON value in each line.

KINDS: dict[str, Callable[[Any], bool]] = {
    "text": lambda value: isinstance(value, str),
    "number": lambda value: type(value) is int,
    "token ids": lambda value: isinstance(value, list | tuple) and all(type(i) is int for i in value),
    "list of numbers": lambda value: KINDS["token ids"](value),
}
"""The kinds of values of a field, and what messages call each. True is not a number."""


def read_json_lines(path: str | Path, example: str) -> list[tuple[str, Any]]:
    """Return the value of each line that is not blank, with a name of the line for messages.

    Args:
        path: the file, also with .gz; `-` for standard input.
    """
    values = []
    for number, line in enumerate(whole_text(path).split("\n"), 1):
        if line.strip():
            name = f"line {number} of {'standard input' if str(path) == '-' else path}"
            try:
                values.append((name, json.loads(line)))
            except (ValueError, RecursionError) as error:
                raise FileError(
                    f"{name} is not JSON: {shortened(line.strip())}.", hint=example
                ) from error
    return values


def checked_fields(
    value: Any,
    name: str,
    fields: Mapping[str, tuple[str, ...]],
    example: str,
    *,
    error: type[AttnscopeError] = OptionError,
) -> dict[str, Any]:
    """Return the fields of an object that are not null."""
    if not isinstance(value, Mapping):
        raise error(f"{name} is {_described(value)}, not an object.", hint=example)
    for field, content in value.items():
        if field not in fields:
            near = nearest(str(field), fields)
            raise error(
                f"{name} has a field {shortened(str(field))!r}, which is none of {', '.join(fields)}.",
                hint=f'"{near}"' if near else example,
            )
        kinds = fields[field]
        with_article = [kind if kind == "token ids" else f"a {kind}" for kind in kinds]
        if content is not None and not any(KINDS[kind](content) for kind in kinds):
            raise error(
                f"{name}: {field} is {_described(content)}, not {alternatives(with_article)}.",
                hint=example,
            )
    return {field: content for field, content in value.items() if content is not None}


def _described(value: Any) -> str:
    """Return a value as JSON writes it, or what it is."""
    try:
        return shortened(json.dumps(value, ensure_ascii=False))
    except (TypeError, ValueError, RecursionError):
        return f"a {class_name(value)}"
