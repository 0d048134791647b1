"""Read a file with a JSON value in each line.

Source: https://jsonlines.org, RFC 8259 (JSON), RFC 1952 (gzip)
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from attnscope.base.errors import AttnscopeError, FileError, OptionError, class_name
from attnscope.base.text import alternatives, nearest, shortened
from attnscope.model.run.text_file import whole_text

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
        if content is not None and not any(KINDS[kind](content) for kind in kinds):
            raise error(
                f"{name}: {field} is {_described(content)}, not {alternatives(map(_counted, kinds))}.",
                hint=example,
            )
    return {field: content for field, content in value.items() if content is not None}


def _counted(kind: str) -> str:
    """Return the name of a kind with its article."""
    return kind if kind == "token ids" else f"a {kind}"


def _described(value: Any) -> str:
    """Return a value as JSON writes it, or what it is."""
    try:
        return shortened(json.dumps(value, ensure_ascii=False))
    except (TypeError, ValueError, RecursionError):
        return f"a {class_name(value)}"
