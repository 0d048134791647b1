"""Options that the command line and the library share.

Options that belong together are the fields of a small frozen dataclass, each declared with `option`. A
public function takes them as keywords; a command takes the dataclass, which `attnscope.cli.options`
expands into flags. So each option has one name, one default and one sentence of help.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, fields
from enum import StrEnum
from typing import Any, TypeVar

from attnscope.dtypes import FLOATS
from attnscope.errors import OptionError

Choice = TypeVar("Choice", bound=StrEnum)
Group = TypeVar("Group")


class Distribution(StrEnum):
    """The distribution of drawn inputs: standard normal, or uniform in [0, 1)."""

    NORMAL = "normal"
    UNIFORM = "uniform"


class Alignment(StrEnum):
    """The alignment of queries and keys."""

    TOP_LEFT = "top-left"
    BOTTOM_RIGHT = "bottom-right"
    AFTER_PAST = "after-past"
    LENGTHS = "lengths"


class VectorLayout(StrEnum):
    """The orientation of vectors."""

    ROWS = "rows"
    COLUMNS = "columns"


DRAW = "Distribution of drawn inputs: normal (torch.randn), or uniform in [0, 1) (torch.rand)."
"""The help of `--draw`."""


@dataclass(frozen=True)
class Flag:
    """The appearance of an option on the command line.

    Attributes:
        help: a sentence on its effect.
        names: the flags; default: the field's name with hyphens, such as `--d-feat` for `d_feat`.
        panel: the heading of its group in the help.
        shown: the default as the help shows it, if it differs from the field's; True: the field's
            own, even if that is False.
        metavar: the placeholder of its value in the help; default: according to the type.
        min: the smallest number allowed.
        parser: converts the text to the value.
        common: whether `--help` lists it, and not only `--help-all`: in each command, or in these.
        values: values that the shell completes: texts, or a kind in `attnscope.completion`.
    """

    help: str
    names: tuple[str, ...] = ()
    panel: str | None = None
    shown: str | bool | None = None
    metavar: str | None = None
    min: int | None = None
    parser: Callable[[str], Any] | None = None
    common: bool | Sequence[str] = False
    values: Sequence[str] | str = ()


DTYPES = tuple(FLOATS)
DEVICES = ("cpu", "cuda", "cuda:1", "mps", "xpu")
"""Values that the shell completes."""


def option(help: str, *names: str, default: Any = None, **more: Any) -> Any:
    """Declare a field of a dataclass as an option; `more` as in `Flag`."""
    return field(default=default, metadata={"flag": Flag(help, names, **more)})


def inputs_of_calls(help: str) -> Any:
    """Declare `--input`, an argument of the calls of code; without it, the usual inputs are drawn."""
    return option(help, "--input", metavar="NAME=SPEC", shown="the usual ones", common=True)


def alignment_of_queries() -> Any:
    """Declare `--align`, where the queries are among the keys."""
    return option(
        "Position of the queries among the keys: top-left, bottom-right, after-past (from the first new"
        " key on) or lengths (the last keys of each sequence, with --mask lengths:…).",
        shown="bottom-right with --past, else top-left",
    )


def one_of(kind: type[Choice], flag: str, value: str | None) -> Choice | None:
    """Return the choice that a text names; None stays None.

    Raises:
        OptionError: there is no such choice.
    """
    try:
        return None if value is None else kind(value)
    except ValueError as error:
        raise OptionError(f"{flag} is {value!r}.", hint=f"{flag} {' or '.join(kind)}") from error


def is_code(target: Any) -> bool:
    """Check whether an argument is code, or its name: a class, function or module, but not a model.

    >>> is_code("mine.py:Attention"), is_code("gpt2")
    (True, False)
    """
    if isinstance(target, str):
        return ":" in target or target.endswith(".py")
    return callable(target) and not hasattr(target, "save_pretrained")


def refuse(options: Mapping[str, Any], why: str) -> None:
    """Raise an OptionError if an option is set.

    Args:
        options: the options by name; None and False are not set.
        why: the reason, such as `is for models`.
    """
    for name, value in options.items():
        if value is not None and value is not False:
            raise OptionError(f"{name} {why}.")


def flags_of(group: Any) -> dict[str, Any]:
    """Return the options of a group by their flags."""
    flags = {each.name: each.metadata["flag"].names for each in fields(group)}
    return {
        names[0] if names else "--" + name.replace("_", "-"): getattr(group, name)
        for name, names in flags.items()
    }


def keywords(*groups: Any) -> dict[str, Any]:
    """Return the options of groups as keywords for the function that takes them."""
    return {each.name: getattr(group, each.name) for group in groups for each in fields(group)}


def group_of(kind: type[Group], arguments: Mapping[str, Any], **others: Any) -> Group:
    """Pack the arguments of a function into a group of options, by their names.

    Args:
        kind: the group's class.
        arguments: the arguments of the function, which has more than these: its `locals()`.
        others: options whose arguments have other names or values.
    """
    names = [each.name for each in fields(kind) if each.name not in others]  # type: ignore[arg-type]
    return kind(**{name: arguments[name] for name in names}, **others)
