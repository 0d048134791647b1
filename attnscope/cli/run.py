"""`attnscope run`: your own program, and the attention in it."""

from __future__ import annotations

import contextlib
import io
import os
import sys
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, TextIO

import typer
from typer.core import TyperCommand

from attnscope.cli import options
from attnscope.cli.options import OUTPUT, Format, expanded
from attnscope.cli.output import refuse_in_csv
from attnscope.errors import FileError, warn_idle
from attnscope.options import keywords
from attnscope.text import json_printable, printable, printable_lines
from attnscope.tracing.options import PROGRAM, Scope, WatchedCalls

if TYPE_CHECKING:
    from rich.console import Console

    from attnscope.results.trace import Trace


@expanded
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
    watched: WatchedCalls,
    scope: Scope,
    program: Annotated[
        list[str] | None,
        typer.Argument(
            metavar="SCRIPT [ARGS]...",
            help="The script, and all that is its own. Options of attnscope may follow, from --watch or"
            " --calls on; after a -- before its arguments, all is the script's.",
            show_default=False,
        ),
    ] = None,
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
    """Run `attnscope run` and return its exit status."""
    from attnscope.tracing.watch import trace_script

    refuse_in_csv(format, {"--source": source, "--calls": watched.calls > 1})
    if to is not None:
        inside = f"--to {to / 'trace.txt'}"
        from attnscope.files import check_file

        check_file(to, force=force, suffixes=None, kind="a trace", inside=inside)
    warn_idle(
        [
            (force and to is None, "--force", "no file is written"),
            (wide and format in (Format.CSV, Format.JSON), "--wide", f"{format} has all columns anyway"),
        ]
    )
    words = list(program or [])
    report = Report(format, wide, watched.calls, source, to and to.absolute(), force)
    _forget_hook_of_typer()
    ran = trace_script(
        words.pop(0) if words and watched.module is None else None,
        words,
        watch=watch,
        **keywords(watched),
        **keywords(scope),
        stats=stats,
        source=source,
        recorded=report.show,
        note=report.note,
        restore=False,
    )
    if os.getpid() != report.process:
        return ran.status  # this is a child that the program forked
    found = any(trace.findings for trace in ran.traces)
    incomplete = report.unwritten or any(trace.tracing_error for trace in ran.traces)
    return ran.status or (2 if incomplete else 1 if strict and found else 0)


def _forget_hook_of_typer() -> None:
    """Restore the hook for uncaught exceptions that Typer replaced."""
    from typer import main

    if sys.excepthook is getattr(main, "except_hook", None):
        sys.excepthook = getattr(main, "_original_except_hook", sys.__excepthook__)


@dataclass
class Report:
    """Shows the traces of a program's calls while the program runs.

    Attributes:
        format, wide, source: the options of the output.
        calls: the number of calls to trace.
        to: the absolute path of the file that they are written to, if any.
        force: whether that file may replace an existing one.
        stream: where they are shown otherwise; the program may close or replace its stderr.
        process: the id of this process, which its children do not have.
        unwritten: whether writing the file failed.
    """

    format: Format
    wide: bool
    calls: int
    source: bool
    to: Path | None
    force: bool
    stream: TextIO = field(default_factory=lambda: sys.stderr)
    process: int = field(default_factory=os.getpid)
    unwritten: bool = False

    def show(self, traces: list[Trace]) -> None:
        """Show all traces together; on stderr, if they cannot be written to the file."""
        if self.to is None:
            self._print(traces)
            return
        try:
            self._write(traces, self.to)
        except FileError as error:
            self.unwritten = True
            self._print(traces)
            self._print_message("error", error.message, error.hint)

    def note(self, message: str, hint: str | None = None) -> None:
        """Print a message that is not a trace."""
        self._print_message("note", message, hint)

    def _print_message(self, kind: str, message: str, hint: str | None) -> None:
        self._put(f"attnscope: {kind}: {printable(message)}\n")
        if hint:
            self._put(f"  try  {printable(hint)}\n")

    def _put(self, text: str) -> None:
        """Write after the output of the program."""
        with contextlib.suppress(Exception):  # its stream may be closed, or any object
            sys.stderr.flush()
        self.stream.write(text)
        self.stream.flush()

    def _print(self, traces: list[Trace]) -> None:
        from attnscope.render.terminal.console import Terminal

        self._put(self._text(traces, Terminal(file=self.stream)))

    def _write(self, traces: list[Trace], path: Path) -> None:
        from attnscope.render.terminal.console import Terminal

        text = self._text(traces, Terminal(file=io.StringIO()))
        from attnscope.files import write_file

        write_file(path, text.encode(errors="backslashreplace"), force=self.force)

    def _text(self, traces: list[Trace], console: Console) -> str:
        """Return the traces as the console would show them."""
        from attnscope.render.records import records
        from attnscope.render.terminal.source import print_source, source_text
        from attnscope.render.terminal.table import print_table

        if self.format is Format.JSON:
            each = [records.record(trace) for trace in traces]
            whole = each[0] if self.calls == 1 else records.several(each)
            return json_printable(records.json_text(whole)) + "\n"
        if self.format is Format.CSV:
            return printable_lines(records.csv_text(traces[0])) + "\n"
        with console.capture() as captured:
            for i, trace in enumerate(traces):
                if i:
                    console.print()
                if self.format is Format.MARKDOWN:
                    text = records.markdown_text(trace, wide=self.wide)
                    text += f"\n\n{source_text(trace)}" if self.source else ""
                    console.out(text, highlight=False)
                    continue
                print_table(trace, console, wide=self.wide)
                if self.source:
                    print_source(trace, console)
        return captured.get()


# A command line that contains the command line of a script.

AFTER_SCRIPT = ("--watch", "--calls")
"""The options with which attnscope's options may start after the script's arguments."""


class ScriptCommand(TyperCommand):
    """`[OPTIONS] SCRIPT [ARGS]…`, where options may also follow the script's arguments.

    Options before SCRIPT are attnscope's. All words after it are the script's, up to a `--watch` or
    `--calls`; from there on, attnscope's options are its own. After a `--` before the script's first
    argument, all words are the script's.
    """

    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:
        """Parse as Typer does, after moving the script's words behind a `--`."""
        takes_value = {
            flag: not getattr(parameter, "is_flag", False)
            for parameter in self.params
            if parameter.param_type_name == "option"
            for flag in (*parameter.opts, *parameter.secondary_opts)
        }
        return super().parse_args(ctx, options_first(args, takes_value))


COMMAND_CLASS = ScriptCommand
"""The class with which Typer parses this command's arguments."""


def options_first(words: list[str], takes_value: dict[str, bool]) -> list[str]:
    """Sort the words of a command line: attnscope's options, `--`, the script and its arguments.

    Args:
        words: the words in their original order.
        takes_value: attnscope's options, and whether each takes the next word as its value.

    >>> takes_value = {"--watch": True, "--calls": True, "--wide": False, "-m": True}
    >>> " ".join(options_first("train.py --wide 3 --watch m.py:A --wide".split(), takes_value))
    '--watch m.py:A --wide -- train.py --wide 3'
    >>> " ".join(options_first("--watch m.py:A train.py -- --calls 3".split(), takes_value))
    '--watch m.py:A -- train.py --calls 3'
    """
    left, flags = list(words), []
    of_script: list[str] = []  # without a module's name, which is the value of -m
    is_module = rest_is_script = False
    while left and left[0].startswith("-") and left[0] != "-" and not is_module:
        word = left.pop(0)
        if word == "--":
            rest_is_script = True
            break
        flags.append(word)
        is_module = word[:2] == "-m"
        if takes_value.get(word) and left:
            flags.append(left.pop(0))
    if not is_module and left:
        of_script.append(left.pop(0))
    before = len(of_script)
    watching = False
    while left and not rest_is_script:
        word = left.pop(0)
        option, has_value, _ = word.partition("=")
        watching = watching or option in AFTER_SCRIPT
        if word == "--":
            rest_is_script = True
            of_script += [word] if len(of_script) > before else []
        elif watching and option in takes_value and option != "-m":
            flags.append(word)
            if takes_value[option] and not has_value and left:
                flags.append(left.pop(0))
        else:
            of_script.append(word)
    return [*flags, "--", *of_script, *left]
