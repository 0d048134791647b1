"""Read prompts from a file: an object a line, with a text, an answer and so on.

Source: https://jsonlines.org
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

from attnscope.errors import OptionError
from attnscope.models.json_lines import read_json_lines
from attnscope.text import shortened

FIELDS = ("text", "answer", "against", "corrupt", "target", "ids")
"""The fields of a prompt. Others, such as a name, are left alone."""

EXAMPLE = '{"text": "…", "answer": " …", "against": " …"}'


def read_prompts(source: str | Iterable[Mapping[str, Any]]) -> list[tuple[str, dict[str, Any]]]:
    """Return the prompts of a file or an iterable, with a name of each for messages.

    Args:
        source: a `.jsonl` file, also with .gz; `-` for standard input; or objects.

    Raises:
        FileError: the file cannot be read, or a line of it holds something else.
        OptionError: there are no prompts, or an object has no text.
    """
    if isinstance(source, str):
        lines = read_json_lines(source, EXAMPLE)
        prompts = [(name, _checked(name, value)) for name, value in lines]
    else:
        prompts = [(f"prompt {n}", _checked(f"prompt {n}", each)) for n, each in enumerate(source, 1)]
    if not prompts:
        raise OptionError(f"{source if isinstance(source, str) else 'text'} has no prompts.")
    return prompts


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
