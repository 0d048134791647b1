"""Read a file with a JSON value in each line.

Source: https://jsonlines.org, RFC 8259 (JSON), RFC 1952 (gzip)
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from attnscope.errors import FileError
from attnscope.models.text_file import whole_text
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
