"""How a message names an option: by its flag on the command line, by its keyword in Python.

Messages are made where a mistake is found, deep in the library. `spelled` writes an option in the
notation of the user's call: a command or a public function sets it once, when it starts.
"""

from __future__ import annotations

import json
import re
import shlex
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from contextlib import contextmanager
from contextvars import ContextVar
from typing import Any, Protocol

FLAGS = {
    "axes": "--dims",
    "heads": "--head",
    "inputs": "--input",
    "layers": "--layer",
    "texts": "--text",
    "widths": "--dk",
}
"""The flags that are not named like their options, for commands that do not have the option."""

ALSO = {
    "axes": ("dims",),
    "dims": ("axes",),
    "dk": ("widths",),
    "heads": ("n_head",),
    "kv_heads": ("n_kv_head",),
}
"""Other names of an option, beside its singular and its plural."""

TEXTS = ("against", "answer", "corrupt", "other_text", "pair", "target", "text", "texts")
"""Options whose values are texts, which a shell needs in quotes."""

BY_NAME = ("init", "inputs", "mask_input")
"""Options that take several values `NAME=VALUE`, which Python writes as a dictionary."""

NUMBER = re.compile(r"-?\d+(\.\d+)?(e[+-]?\d+)?")
PLACEHOLDER = re.compile(r"[A-Z]{1,8}|…")
OF_THE_SHELL = re.compile(r"""[\s<>*()&|;?#"'$`!\\]""")
"""Characters at which a shell splits, redirects or expands."""


def spelled(name: str | None = None, /, *value: Any, **options: Any) -> str:
    """Name an option as the user writes it; or write options with their values, for the user to copy.

    In a sentence, `spelled("window")` and `spelled("window", 4)` name an option; in a hint,
    `spelled(window=4)` is what to write, where the shell needs quotes with them.

    >>> spelled("heads"), spelled("heads", 11), spelled(layers=0, heads="all"), spelled(bias=False)
    ('heads', 'heads=11', 'layers=0, heads="all"', 'bias=False')
    >>> spelled("inputs", "x"), spelled(inputs="x=2,10"), spelled(window="N")
    ('inputs["x"]', 'inputs={"x": "2,10"}', 'window=N')

    Args:
        name: the option, by its name in the library.
        value: its value; none: the option alone.
        options: options and their values; a list has the values of a repeated option, or numbers, and
            `...` stands for a value that is left out.
    """
    notation = _notation.get()
    if name is not None:
        return notation.mention(name, *value)
    return notation.joint.join(notation.written(*each) for each in options.items())


def spelled_any(name: str, values: Iterable[Any], joint: str | None = None) -> str:
    """Write an option with each of several values: `--draw normal or uniform`.

    >>> spelled_any("draw", ["normal", "uniform"]), spelled_any("dtype", ["float16", "float32"], ", ")
    ('draw="normal" or "uniform"', 'dtype="float16", "float32"')

    Args:
        name: the option.
        values: the values.
        joint: what stands between two values; default: commas, and `or` before the last one.
    """
    first, *others = values
    notation = _notation.get()
    more = [notation.value(name, each) for each in others]
    between = [joint or ", "] * len(more)
    if joint is None and more:
        between[-1] = " or "
    return notation.written(name, first) + "".join(
        f"{comma}{each}" for comma, each in zip(between, more, strict=True)
    )


@contextmanager
def unnamed(*names: str) -> Iterator[None]:
    """Let hints write the values of options alone within a block: there they are arguments."""
    with use_notation(Unnamed(_notation.get(), names)):
        yield


@contextmanager
def in_fields(names: Collection[str]) -> Iterator[None]:
    """Let options be fields of a line of JSON within a block: `"answer": "…"`."""
    with use_notation(InFields(_notation.get(), names)):
        yield


def either(*, command_line: str, python: str) -> str:
    """Return one of two texts, where a thing is done differently on the command line and in Python."""
    return python if _notation.get().is_python else command_line


class Notation(Protocol):
    """A notation of options."""

    is_python: bool
    joint: str

    def mention(self, name: str, *value: Any) -> str:
        """Name an option in a sentence, perhaps with its value."""

    def written(self, name: str, value: Any) -> str:
        """Write an option with its value."""

    def value(self, name: str, value: Any) -> str:
        """Write a value."""


class Keywords:
    """Names options as keywords of a function.

    Args:
        names: returns the function's keywords; without it, an option has its own name.
    """

    is_python, joint = True, ", "

    def __init__(self, names: Callable[[], Collection[str]] = tuple) -> None:
        self._names = names

    def mention(self, name: str, *value: Any) -> str:
        """Name an option in a sentence, perhaps with its value."""
        if not value:
            return self._name(name)
        if name in BY_NAME and "=" not in str(value[0]):
            return f"{self._name(name)}[{json.dumps(str(value[0]), ensure_ascii=False)}]"
        return self.written(name, value[0])

    def written(self, name: str, value: Any) -> str:
        """Write an option with its value."""
        values = value if isinstance(value, list) else [value]
        if name in BY_NAME and all("=" in str(each) for each in values):
            pairs = [str(each).partition("=") for each in values]
            inside = ", ".join(f"{_literal(key, '')}: {_literal(text, '')}" for key, _, text in pairs)
            return f"{self._name(name)}={{{inside}}}"
        return f"{self._name(name)}={self.value(name, value)}"

    def value(self, name: str, value: Any) -> str:
        """Write a value."""
        if value is ...:
            return "…"
        if isinstance(value, list):
            return f"[{', '.join(_literal(each, name) for each in value)}]"
        return _literal(value, name)

    def _name(self, name: str) -> str:
        names = self._names()
        return next((each for each in _names_of(name) if each in names), name)


class Flags:
    """Names options as flags of a command.

    Args:
        flags: returns the command's flags by option, those that switch it on first.
    """

    is_python, joint = False, " "

    def __init__(self, flags: Callable[[], Mapping[str, tuple[str, ...]]] = dict) -> None:
        self._flags = flags

    def mention(self, name: str, *value: Any) -> str:
        """Name an option in a sentence, perhaps with its value."""
        if not value or isinstance(value[0], bool | list):
            return self.written(name, *value or (True,))
        return f"{self._flag(name)} {value[0]}"

    def written(self, name: str, value: Any) -> str:
        """Write an option with its value."""
        if isinstance(value, bool):
            return self._flag(name, is_on=value)
        if isinstance(value, list) and not all(isinstance(each, int) for each in value):
            return " ".join(self.written(name, each) for each in value)
        return f"{self._flag(name)} {self.value(name, value)}"

    def value(self, name: str, value: Any) -> str:
        """Write a value, in quotes if a shell needs them."""
        if value is ...:
            return "…"
        if isinstance(value, list):
            return ",".join(map(str, value))
        text = str(value)
        if name in TEXTS and not (text != "…" and PLACEHOLDER.fullmatch(text)):
            return quoted(text) if OF_THE_SHELL.search(text) else f'"{text}"'
        return quoted(text) if OF_THE_SHELL.search(text) and not _is_in_quotes(text) else text

    def _flag(self, name: str, *, is_on: bool = True) -> str:
        flags = self._flags()
        own = next((flags[each] for each in _names_of(name) if each in flags), ())
        if is_on:
            return own[0] if own else FLAGS.get(name) or flag_of(name)
        return own[1] if len(own) > 1 else flag_of(f"no_{name}")


class Unnamed:
    """Writes the values of some options alone."""

    def __init__(self, notation: Notation, names: Collection[str]) -> None:
        self._other, self._names = notation, names
        self.is_python, self.joint = notation.is_python, notation.joint
        self.mention, self.value = notation.mention, notation.value

    def written(self, name: str, value: Any) -> str:
        """Write an option with its value, or the value alone."""
        if name not in self._names:
            return self._other.written(name, value)
        return self.joint.join(map(str, value)) if isinstance(value, list) else str(value)


class InFields:
    """Names some options as fields of a line of JSON."""

    def __init__(self, notation: Notation, names: Collection[str]) -> None:
        self._other, self._names = notation, names
        self.is_python, self.joint = notation.is_python, notation.joint
        self.value = notation.value

    def mention(self, name: str, *value: Any) -> str:
        """Name an option in a sentence, perhaps with its value."""
        if name not in self._names:
            return self._other.mention(name, *value)
        return " ".join([name, *map(str, value)])

    def written(self, name: str, value: Any) -> str:
        """Write an option with its value."""
        if name not in self._names:
            return self._other.written(name, value)
        return f'"{name}": {_literal(value, name)}'


PYTHON = Keywords()
"""The notation where neither a command nor a public function has set one: of a result, for example."""

_notation: ContextVar[Notation] = ContextVar("notation", default=PYTHON)


@contextmanager
def use_notation(notation: Notation) -> Iterator[None]:
    """Write options in a notation within a block."""
    token = _notation.set(notation)
    try:
        yield
    finally:
        _notation.reset(token)


@contextmanager
def use_keywords(names: Collection[str]) -> Iterator[None]:
    """Write options as keywords within a block, unless a caller has set a notation."""
    with use_notation(Keywords(lambda: names) if _notation.get() is PYTHON else _notation.get()):
        yield


def flag_of(name: str) -> str:
    """Return the flag of an option's name: `--d-feat` for `d_feat`."""
    return "--" + name.replace("_", "-")


def quoted(text: str) -> str:
    """Return a word as it is written on a command line: in quotes if it has spaces or the like."""
    if re.fullmatch(r"[\w@%+=:,./…-]+", text):
        return text
    return shlex.quote(text) if re.search(r'["$`!\\]', text) else f'"{text}"'


def _names_of(name: str) -> tuple[str, ...]:
    """Return the names that an option may have: a function of one layer has `layer` for `layers`."""
    return (name, name.removesuffix("s"), f"{name}s", *ALSO.get(name, ()))


def _literal(value: Any, name: str) -> str:
    """Return a value as Python writes it; texts of numbers as numbers, and placeholders as they are."""
    if not isinstance(value, str):
        return repr(value) if isinstance(value, bool | int | float | None) else json.dumps(str(value))
    is_placeholder = PLACEHOLDER.fullmatch(value) and not (value == "…" and name in TEXTS)
    is_name = value in ("True", "False", "None")
    if is_placeholder or is_name or NUMBER.fullmatch(value) or _is_in_quotes(value):
        return value
    return json.dumps(value, ensure_ascii=False)


def _is_in_quotes(text: str) -> bool:
    return len(text) > 1 and text[0] == text[-1] and text[0] in "\"'"
