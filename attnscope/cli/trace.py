"""`attnscope trace`: your own attention, line by line."""

from __future__ import annotations

from typing import Annotated

import typer

from attnscope.cli import options
from attnscope.cli.options import CODE, OUTPUT, RUN, Format

COMMENTS = "Shape comments"


def trace(
    target: Annotated[
        str,
        typer.Argument(
            metavar="TARGET",
            help="file.py:Class, file.py:function or package.module:Class.",
            show_default=False,
        ),
    ],
    init: Annotated[
        list[str] | None,
        typer.Option(
            "--init",
            metavar="NAME=VALUE",
            help="An argument of the class: a Python literal, or module:Class(name=value, …).",
            rich_help_panel=CODE,
        ),
    ] = None,
    input: Annotated[
        list[str] | None,
        typer.Option(
            "--input",
            metavar="NAME=SPEC",
            help="An argument of the call: axes as name:size, name or a number, and then @dtype, <high"
            " (whole numbers below it) or @FILE: Q=n_batch:128,n_Q:32,d_feat; or any literal: mask=None."
            " Without NAME=, by its place.",
            rich_help_panel=CODE,
        ),
    ] = None,
    where: Annotated[
        list[str] | None,
        typer.Option(
            "--where",
            metavar="NAME=EXPRESSION",
            help="What is true of the sizes, and a name for it: d_head=d_feat/n_head.",
            rich_help_panel=CODE,
        ),
    ] = None,
    call: Annotated[
        str | None,
        typer.Option(
            "--call",
            metavar="METHOD",
            help="The method that is traced.",
            show_default="forward",
            rich_help_panel=CODE,
        ),
    ] = None,
    follow: options.Follow = None,
    depth: options.Depth = None,
    subexpressions: options.Subexpressions = False,
    annotate: Annotated[
        bool,
        typer.Option(
            "--annotate",
            help="Show a diff that adds the axes to the end of each line, as a comment.",
            rich_help_panel=COMMENTS,
        ),
    ] = False,
    write: Annotated[
        bool,
        typer.Option("--write", help="Let --annotate change the file.", rich_help_panel=COMMENTS),
    ] = False,
    check: Annotated[
        bool,
        typer.Option(
            "--check",
            help="Compare the shape comments in the file with what ran; exit 1 if one is not true.",
            rich_help_panel=COMMENTS,
        ),
    ] = False,
    dtype: Annotated[
        str,
        typer.Option("--dtype", help="float64, float32, float16 or bfloat16.", rich_help_panel=RUN),
    ] = "float32",
    device: options.Device = "cpu",
    seed: options.Seed = None,
    train: Annotated[
        bool, typer.Option("--train/--eval", help="The module's mode.", rich_help_panel=RUN)
    ] = False,
    strict: Annotated[
        bool,
        typer.Option("--strict", help="Exit 1 if there are findings.", rich_help_panel=OUTPUT),
    ] = False,
    source: options.Source = False,
    stats: options.Stats = False,
    show: options.Show = None,
    save: options.Save = None,
    force: options.Force = False,
    format: options.OutputFormat = Format.TABLE,
    wide: options.Wide = False,
) -> int:
    """Your own attention: every tensor that your code names, and what looks wrong in it."""
    from attnscope.cli.examine import Wanted, examine
    from attnscope.cli.output import Output

    wanted = Wanted(
        output=Output(format, wide, show or (), save, force),
        follow=tuple(follow or ()),
        depth=depth,
        parts=subexpressions,
        stats=stats,
        source=source,
        strict=strict,
        annotate=annotate,
        write=write,
        check=check,
        device=device,
        seed=seed or 0,
        seed_given=seed is not None,
        train=train,
    )
    return examine(target, init or [], input or [], where or [], call, dtype, wanted)
