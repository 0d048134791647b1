"""Options that the command line and the library share.

Options that belong together are the fields of a small frozen dataclass, each declared with `option`. A
public function takes them as keywords; a command takes the dataclass, which `attnscope.cli.options`
expands into flags. So each option has one name, one default and one sentence of help.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field, fields
from typing import Any


@dataclass(frozen=True)
class Flag:
    """The appearance of an option on the command line.

    Attributes:
        help: what it does, in a sentence.
        names: the flags; none: the field's name with hyphens, as `--d-feat` for `d_feat`.
        panel: the heading of its group in the help.
        shown: the default as the help shows it, where that is not the field's own; True: the field's
            own, although it is False.
        metavar: what stands for its value in the help.
        min: the least number allowed.
        parser: makes the value of the text that was given.
    """

    help: str
    names: tuple[str, ...] = ()
    panel: str | None = None
    shown: str | bool | None = None
    metavar: str | None = None
    min: int | None = None
    parser: Callable[[str], Any] | None = None


def option(help: str, *names: str, default: Any = None, **more: Any) -> Any:
    """A field of a dataclass that is an option; `more` as in `Flag`."""
    return field(default=default, metadata={"flag": Flag(help, names, **more)})


def keywords(group: Any) -> dict[str, Any]:
    """The options of a group by name, as keywords for the function that takes them."""
    return {each.name: getattr(group, each.name) for each in fields(group)}
