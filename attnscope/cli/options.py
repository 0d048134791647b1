"""Options that several commands share."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import fields, is_dataclass
from enum import StrEnum
from inspect import Parameter, Signature, signature
from pathlib import Path
from typing import Annotated, Any, get_type_hints

import typer

from attnscope.options import Flag


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
        raise typer.BadParameter("it is empty, and names no file.")
    return Path(text)


# Expanding the option groups of the library into flags.


def expanded(command: Callable[..., int]) -> Callable[..., int]:
    """Return a command with a flag for each option of its option groups.

    Args:
        command: takes groups of options, dataclasses whose fields `attnscope.options.option` declares,
            and perhaps parameters that are annotated for Typer.
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
            arguments[name] = group(**{each.name: arguments.pop(each.name) for each in fields(group)})
        return command(**arguments)

    run.__name__, run.__doc__ = command.__name__, command.__doc__
    run.__signature__ = Signature(parameters)  # type: ignore[attr-defined]
    run.__annotations__ = {each.name: each.annotation for each in parameters}
    return run


def _flags(group: Any) -> Iterator[Parameter]:
    """Yield a parameter for each option of a group, annotated for Typer."""
    hints = get_type_hints(group)
    for each in fields(group):
        flag: Flag = each.metadata["flag"]
        hint = hints[each.name]
        is_path = hint in (Path, Path | None)
        names = flag.names or ("--" + each.name.replace("_", "-"),)
        is_switch = each.default is False and "/" in names[0]  # as in --train/--eval
        has_default = is_switch or each.default not in (None, False, "")
        info = typer.Option(
            *names,
            help=flag.help,
            show_default=flag.shown or has_default,
            metavar=flag.metavar,
            min=flag.min,
            parser=file_name if is_path else flag.parser,
            rich_help_panel=flag.panel or getattr(group, "PANEL", None),
        )
        yield Parameter(
            each.name, Parameter.KEYWORD_ONLY, default=each.default, annotation=Annotated[hint, info]
        )


Source = Annotated[
    bool,
    typer.Option(
        "--source",
        help="Show the code that runs, with the axes and the shape that each line makes.",
        rich_help_panel=OUTPUT,
    ),
]
Stats = Annotated[
    bool,
    typer.Option(
        "--stats",
        help="Min, mean, max, std of each tensor's finite values; NaN and inf counted.",
        rich_help_panel=OUTPUT,
    ),
]
Wide = Annotated[
    bool,
    typer.Option(
        "--wide",
        help="All columns, however wide the terminal is (json and csv always have them).",
        rich_help_panel=OUTPUT,
    ),
]
Plot = Annotated[
    Path | None,
    typer.Option(
        "--plot",
        metavar="FILE",
        parser=file_name,
        help="Draw it: .png, .svg or .pdf.",
        rich_help_panel=OUTPUT,
    ),
]
OutputFormat = Annotated[
    Format, typer.Option("--format", "-f", help="How to print it.", rich_help_panel=OUTPUT)
]
Show = Annotated[
    list[str] | None,
    typer.Option(
        "--show",
        metavar="NAME[INDEX]",
        help='Print a tensor\'s values too: "attention", "attention[0,1]", "Q[0,:2]";'
        " again for several.",
        rich_help_panel=OUTPUT,
    ),
]
Save = Annotated[
    Path | None,
    typer.Option(
        "--save",
        metavar="FILE",
        parser=file_name,
        help="Write the tensors by name: .safetensors, .npz or .pt.",
        rich_help_panel=OUTPUT,
    ),
]
Force = Annotated[
    bool,
    typer.Option("--force", help="Let --save replace a file that is there.", rich_help_panel=OUTPUT),
]
