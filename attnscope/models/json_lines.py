"""Read a file with a JSON value in each line.

Source: https://jsonlines.org, RFC 8259 (JSON), RFC 1952 (gzip)
"""

from __future__ import annotations

import gzip
import json
import sys
import zlib
from pathlib import Path
from typing import Any

from attnscope.errors import FileError, first_line, no_such_file
from attnscope.text import shortened


def read_json_lines(path: str | Path, example: str) -> list[tuple[str, Any]]:
    """Return the value of each line that is not blank, with a name of the line for messages.

    Args:
        path: the file, also with .gz; `-` for standard input.
        example: a line, for hints.

    Raises:
        FileError: the file cannot be read, or a line is not JSON.
    """
    values = []
    for number, line in enumerate(_text_of(path).split("\n"), 1):
        if line.strip():
            name = f"line {number} of {'standard input' if str(path) == '-' else path}"
            try:
                values.append((name, json.loads(line)))
            except (ValueError, RecursionError) as error:
                raise FileError(
                    f"{name} is not JSON: {shortened(line.strip())}.", hint=example
                ) from error
    return values


def _text_of(path: str | Path) -> str:
    """Return the text of a file or of standard input."""
    try:
        if str(path) == "-":
            return sys.stdin.read()
        content = Path(path).read_bytes()
        if Path(path).suffix.lower() == ".gz":
            content = gzip.decompress(content)
        return content.decode("utf-8-sig")
    except FileNotFoundError as error:
        raise no_such_file(Path(path)) from error
    except UnicodeDecodeError as error:
        raise FileError(f"{path} is not UTF-8.", hint="a text file with an object per line") from error
    except (EOFError, gzip.BadGzipFile, zlib.error) as error:
        raise FileError(f"{path} is damaged, or not a gzip file: {first_line(error)}.") from error
    except OSError as error:
        raise FileError(f"cannot read {path}: {error.strerror}.") from error
