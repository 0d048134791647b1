"""Read prompts from a file: an object a line, with a text, an answer and so on.

Source: https://jsonlines.org
"""

from __future__ import annotations

import gzip
import json
import sys
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any

from attnscope.errors import FileError, OptionError, no_such_file
from attnscope.text import shortened

FIELDS = ("text", "answer", "against", "corrupt", "target", "ids")
"""The fields of a prompt. Others, such as a name, are left alone."""


def read_prompts(source: str | Iterable[Mapping[str, Any]]) -> list[tuple[str, dict[str, Any]]]:
    """Return the prompts of a file or an iterable, with a name of each for messages.

    Args:
        source: a `.jsonl` file, also with .gz; `-` for standard input; or objects.

    Raises:
        FileError: the file cannot be read, or a line of it holds something else.
        OptionError: there are no prompts, or an object has no text.
    """
    if isinstance(source, str):
        lines = [(f"line {n} of {source}", line) for n, line in enumerate(_lines(source), 1)]
        prompts = [(name, _object(name, line)) for name, line in lines if line.strip()]
    else:
        prompts = [(f"prompt {n}", _checked(f"prompt {n}", each)) for n, each in enumerate(source, 1)]
    if not prompts:
        raise OptionError(f"{source if isinstance(source, str) else 'text'} has no prompts.")
    return prompts


def _lines(path: str) -> Iterator[str]:
    """Yield the lines of a file or of standard input."""
    if path == "-":
        yield from sys.stdin
        return
    file = Path(path)
    if not file.is_file():
        raise no_such_file(file)
    opened: Any = gzip.open if file.suffix == ".gz" else open
    try:
        with opened(file, "rt", encoding="utf-8") as stream:
            yield from stream
    except (OSError, UnicodeDecodeError) as error:
        raise FileError(f"{path} cannot be read: {error}.") from error


def _object(name: str, line: str) -> dict[str, Any]:
    """Return the prompt in a line."""
    try:
        found = json.loads(line)
    except ValueError as error:
        raise FileError(
            f"{name} is not JSON: {shortened(line.strip())}.",
            hint='{"text": "…", "answer": " …", "against": " …"}',
        ) from error
    return _checked(name, found)


def _checked(name: str, found: Any) -> dict[str, Any]:
    """Return the fields of a prompt.

    Raises:
        OptionError: it has no text, or one of its fields is something else.
    """
    if isinstance(found, str):
        found = {"text": found}
    if not isinstance(found, Mapping) or not {"text", "ids"} & set(found):
        raise OptionError(f"{name} has no text.", hint='an object with "text", and "answer"')
    prompt = {key: found[key] for key in FIELDS if found.get(key) is not None}
    for key, value in prompt.items():
        is_answer = key in ("answer", "against", "corrupt", "ids")
        if not isinstance(value, str) and not (is_answer and isinstance(value, (int, list))):
            raise OptionError(f"{name}: {key} is {shortened(repr(value))}, not a text.")
    return prompt
