"""`attnscope run`: your own program, and the attention in it."""

from __future__ import annotations

import os
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any

import typer

from attnscope.base.errors import warn_unused
from attnscope.base.options import keywords, option
from attnscope.base.process.script_words import options_first
from attnscope.cli.command import Command
from attnscope.cli.completion import completion
from attnscope.cli.options import STATS, TableOptions, expanded
from attnscope.cli.output import refuse_in_csv
from attnscope.code.trace.options import PROGRAM, Scope, WatchedCalls

EXAMPLES = {
    "attnscope run --watch model.py:Attention train.py": "the first call of a class in a program",
    "attnscope run --watch model.py:Attention.forward --calls 3 train.py -n 1": (
        "three calls of a method; the script has arguments of its own"
    ),
    "attnscope run --watch model.py:Attention -m train": "a module in place of a script",
}


@dataclass(frozen=True)
class ProgramOutput(TableOptions):
    """The options of the output."""

    strict: bool = option(
        "Exit with status 1 if there are findings and the program succeeds.", default=False
    )
    to: Path | None = option(
        "Write the trace to a file.", "--to", "-o", metavar="FILE", shown="standard error"
    )
    force: bool = option("Replace an existing file.", default=False)
    stats: bool = option(STATS, default=False)


@expanded
def run(
    watch: Annotated[
        str,
        typer.Option(
            "--watch",
            metavar="TARGET",
            help="The code to trace: file.py:Class, file.py:function or package.module:Class.method.",
            show_default=False,
            autocompletion=completion("targets"),
            rich_help_panel=PROGRAM,
        ),
    ],
    watched: WatchedCalls,
    scope: Scope,
    program: Annotated[
        list[str] | None,
        typer.Argument(
            metavar="SCRIPT [ARGS]...",
            help="The script and its arguments. Options of attnscope may follow them, starting with"
            " --watch or --calls; after a --, every word belongs to the script.",
            show_default=False,
        ),
    ] = None,
    *,
    output: ProgramOutput,
) -> int:
    """Run `attnscope run` and return its exit status."""
    from attnscope.cli.report import Report
    from attnscope.code.trace.watch import trace_script

    to, format, source = output.to, output.format, scope.source
    refuse_in_csv(format, {"source": source, "calls": watched.calls > 1})
    if to is not None:
        inside = f"--to {to / 'trace.txt'}"
        from attnscope.base.process.files import check_file

        check_file(to, force=output.force, suffixes=None, kind="a trace", inside=inside)
    warn_unused(
        [
            (output.force and to is None, "force", "no file is written"),
            (output.wide and output.always_wide, "wide", f"{format} has all columns anyway"),
        ]
    )
    words = list(program or [])
    report = Report(
        format,
        wide=output.wide,
        calls=watched.calls,
        to=to and to.absolute(),
        force=output.force,
    )
    _forget_hook_of_typer()
    ran = trace_script(
        words.pop(0) if words and watched.module is None else None,
        words,
        watch=watch,
        **keywords(watched, scope),
        stats=output.stats,
        recorded=report.show,
        note=report.note,
        restore=False,
    )
    if os.getpid() != report.process:
        return ran.status  # this is a child that the program forked
    found = any(trace.findings for trace in ran.traces)
    incomplete = report.unwritten or any(trace.tracing_error for trace in ran.traces)
    return ran.status or (2 if incomplete else 1 if output.strict and found else 0)


def _forget_hook_of_typer() -> None:
    """Restore the hook for uncaught exceptions that Typer replaced."""
    from typer import main

    if sys.excepthook is getattr(main, "except_hook", None):
        sys.excepthook = getattr(main, "_original_except_hook", sys.__excepthook__)


class ScriptCommand(Command):
    """`[OPTIONS] SCRIPT [ARGS]…`, where options may also follow the script's arguments.

    Options before SCRIPT are attnscope's. All words after it are the script's, up to a `--watch` or
    `--calls`; from there on, attnscope's options are its own. After a `--` before the script's first
    argument, all words are the script's.
    """

    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:
        """Parse as Typer does, after moving the script's words behind a `--`."""
        return super().parse_args(ctx, options_first(args, self.takes_value))


COMMAND_CLASS = ScriptCommand
"""The class with which Typer parses this command's arguments."""
