"""Options that several commands share."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, is_dataclass
from enum import StrEnum
from inspect import Parameter, Signature, signature
from pathlib import Path
from typing import Annotated, Any, get_args, get_type_hints

import typer

from attnscope.base.options import Flag, check_conflicts, flag_names, on_command_line, option, with_flags
from attnscope.cli.completion import completion


class Format(StrEnum):
    """The formats in which results are printed."""

    TABLE = "table"
    JSON = "json"
    CSV = "csv"
    MARKDOWN = "markdown"


RUN, OUTPUT = "Run", "Output"
"""Headings of groups of options in the help."""


def file_name(text: str) -> Path:
    """Parse a file name; `Path("")` would be the current folder.

    Raises:
        BadParameter: the name is empty.
    """
    if not text:
        raise typer.BadParameter("the name of the file is empty.")
    return Path(text)


# Expanding the option groups of the library into flags.


def expanded(command: Callable[..., int]) -> Callable[..., int]:
    """Return a command with a flag for each option of its option groups.

    Args:
        command: takes groups of options, dataclasses whose fields `option` of attnscope.base.options
            declares, and perhaps parameters that are annotated for Typer.
    """
    hints = get_type_hints(command, include_extras=True)
    groups: dict[str, Any] = {name: hint for name, hint in hints.items() if is_dataclass(hint)}
    parameters: list[Parameter] = []
    for name, parameter in signature(command).parameters.items():
        if name in groups:
            parameters += _flags(groups[name])
        else:
            parameters.append(parameter.replace(annotation=hints[name], kind=Parameter.KEYWORD_ONLY))

    def run(**arguments: Any) -> int:
        for name, group in groups.items():
            arguments[name] = group(
                **{each.name: arguments.pop(each.name) for each in with_flags(group)}
            )
        check_conflicts(arguments[name] for name in groups)
        return command(**arguments)

    run.__name__, run.__doc__ = command.__name__, command.__doc__
    run.flags = {  # type: ignore[attr-defined]
        each.name: each.metadata["flag"] for group in groups.values() for each in with_flags(group)
    }
    run.__signature__ = Signature(parameters)  # type: ignore[attr-defined]
    run.__annotations__ = {each.name: each.annotation for each in parameters}
    return run


def _flags(group: Any) -> Iterator[Parameter]:
    """Yield a parameter for each option of a group, annotated for Typer."""
    hints = get_type_hints(group)
    for each in with_flags(group):
        flag: Flag = each.metadata["flag"]
        hint = flag.type or hints[each.name]
        is_path = hint in (Path, Path | None)
        names = flag_names(each)
        is_switch = each.default is False and "/" in names[0]  # as in --train/--eval
        has_default = is_switch or each.default not in (None, False, "")
        shown: str | bool = has_default or bool(flag.shown)
        if isinstance(flag.shown, str):
            shown = on_command_line(flag.shown, None)
        info = typer.Option(
            *names,
            help=on_command_line(flag.help, hint),
            show_default=shown,
            metavar=flag.metavar or _metavar(hint, each.name),
            min=flag.min,
            parser=file_name if is_path else flag.parser,
            autocompletion=completion(flag.values),
            rich_help_panel=flag.panel or getattr(group, "PANEL", None),
        )
        yield Parameter(
            each.name, Parameter.KEYWORD_ONLY, default=each.default, annotation=Annotated[hint, info]
        )


def _metavar(hint: Any, name: str) -> str | None:
    """Return the placeholder of an option's value: according to its type, or else its name."""
    kinds = set(get_args(hint)) or {hint}
    if bool in kinds:
        return None
    return "N" if int in kinds else "X" if float in kinds else name.upper()


# Options that several commands share.

STATS = "Add min, mean, max and std of each tensor's finite values, and the number of NaN and inf."


@dataclass(frozen=True)
class FormatOptions:
    """The format of a printed result."""

    PANEL = OUTPUT

    format: Format = option(
        "Format: table, json, csv or markdown.",
        "--format",
        "-f",
        default=Format.TABLE,
        common=True,
    )


@dataclass(frozen=True)
class TableOptions(FormatOptions):
    """The format of a printed table, and its columns."""

    wide: bool = option(
        "Print all columns, even if the terminal is too narrow (json and csv always have them).",
        default=False,
    )

    @property
    def always_wide(self) -> bool:
        """Whether the format always has all columns."""
        return self.format in (Format.CSV, Format.JSON)


@dataclass(frozen=True)
class FigureOptions:
    """The figure and the page of a result."""

    PANEL = OUTPUT

    plot: Path | None = option("Draw a figure: .png, .svg or .pdf.", metavar="FILE", common=True)
    page: Path | None = option(
        "Write an interactive page of all heads: one file.", metavar="FILE.html", common=True
    )
    force: bool = option("Replace an existing file.", default=False)

    def check_drawings(self, page_name: str) -> None:
        """Raise an AttnscopeError if a file cannot be written, or already exists.

        Args:
            page_name: the name of the page that is suggested for a folder.
        """
        if self.plot is not None:
            from attnscope.document.figure import check_plot

            check_plot(self.plot, force=self.force)
        if self.page is not None:
            from attnscope.document.page.page import check_page

            check_page(self.page, name=page_name, force=self.force)


ModelName = Annotated[
    str,
    typer.Argument(
        metavar="MODEL",
        help="minilm (bundled), a folder, or a hub name such as bert-base-uncased.",
        autocompletion=completion("models"),
    ),
]
