"""`attnscope run`: your own program, and the attention in it."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from attnscope.cli import options
from attnscope.cli.options import CODE, OUTPUT, Format

PROGRAM = "Your program"


def run(
    watch: Annotated[
        str,
        typer.Option(
            "--watch",
            metavar="TARGET",
            help="What to trace: file.py:Class, file.py:function or package.module:Class.method.",
            show_default=False,
            rich_help_panel=PROGRAM,
        ),
    ],
    program: Annotated[
        list[str] | None,
        typer.Argument(
            metavar="SCRIPT [ARGS]...",
            help="The script, and all that is its own. Options of attnscope may follow, from --watch or"
            " --calls on; after a -- before its arguments, all is the script's.",
            show_default=False,
        ),
    ] = None,
    module: Annotated[
        str | None,
        typer.Option(
            "-m",
            metavar="MODULE",
            help="Run a module in place of a script, as python -m does.",
            rich_help_panel=PROGRAM,
        ),
    ] = None,
    calls: Annotated[
        int,
        typer.Option(
            "--calls",
            metavar="N",
            help="How many calls of it to trace: the first N.",
            min=1,
            rich_help_panel=PROGRAM,
        ),
    ] = 1,
    dims: Annotated[
        list[str] | None,
        typer.Option(
            "--dims",
            metavar="NAME=AXES",
            help="Names for the axes of an argument of the call: x=B,T,C. Other axes of these sizes get"
            " them too.",
            rich_help_panel=CODE,
        ),
    ] = None,
    follow: options.Follow = None,
    depth: options.Depth = None,
    subexpressions: options.Subexpressions = False,
    strict: Annotated[
        bool,
        typer.Option(
            "--strict",
            help="Exit 1 if there are findings and the program itself went well.",
            rich_help_panel=OUTPUT,
        ),
    ] = False,
    to: Annotated[
        Path | None,
        typer.Option(
            "--to",
            "-o",
            metavar="FILE",
            parser=options.file_name,
            help="Write the trace into a file.",
            show_default="standard error",
            rich_help_panel=OUTPUT,
        ),
    ] = None,
    force: Annotated[
        bool,
        typer.Option("--force", help="Let --to replace a file that is there.", rich_help_panel=OUTPUT),
    ] = False,
    source: options.Source = False,
    stats: options.Stats = False,
    format: options.OutputFormat = Format.TABLE,
    wide: options.Wide = False,
) -> int:
    """Your own program, as it is: the first calls of your attention in it, with what they are given."""
    from attnscope.cli.watching import Wanted, watch_program

    wanted = Wanted(
        target=watch,
        calls=calls,
        dims=tuple(dims or ()),
        follow=tuple(follow or ()),
        depth=depth,
        parts=subexpressions,
        strict=strict,
        source=source,
        stats=stats,
        format=format,
        wide=wide,
        to=to,
        force=force,
    )
    return watch_program(program or [], module, wanted)
