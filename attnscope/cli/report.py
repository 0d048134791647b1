"""Show the traces of a program's calls while the program runs."""

from __future__ import annotations

import contextlib
import io
import os
import sys
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, TextIO

from attnscope.base.errors import FileError
from attnscope.base.process.files import write_file
from attnscope.base.text import json_printable, printable, printable_lines

if TYPE_CHECKING:
    from rich.console import Console

    from attnscope.observe.trace import Trace


@dataclass
class Report:
    """Shows the traces of a program's calls while the program runs.

    Attributes:
        format: `table`, `json`, `csv` or `markdown`.
        wide: whether the table has all columns.
        calls: the number of calls to trace.
        to: the absolute path of the file that they are written to, if any.
        force: whether that file may replace an existing one.
        stream: where they are shown otherwise; the program may close or replace its stderr.
        process: the id of this process, which its children do not have.
        unwritten: whether writing the file failed.
    """

    format: str
    wide: bool
    calls: int
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
        from attnscope.document.console import Terminal

        end = "\n" if self.format in ("table", "markdown") else ""  # apart from what the program prints
        self._put(self._text(traces, Terminal(file=self.stream)) + end)

    def _write(self, traces: list[Trace], path: Path) -> None:
        from attnscope.document.console import Terminal

        text = self._text(traces, Terminal(file=io.StringIO()))
        write_file(path, text.encode(errors="backslashreplace"), force=self.force)

    def _text(self, traces: list[Trace], console: Console) -> str:
        """Return the traces as the console would show them."""
        from attnscope.code.trace.result import ProgramRun
        from attnscope.document.json import json_text
        from attnscope.document.markdown import markdown_document
        from attnscope.document.terminal import print_document

        run = ProgramRun("", self.calls, traces=traces)
        if self.format == "json":
            return json_printable(json_text(run.to_dict())) + "\n"
        if self.format == "csv":
            return printable_lines("\n".join(traces[0].csv())) + "\n"
        with console.capture() as captured:
            if self.format == "markdown":
                console.out(markdown_document(run.document(), wide=self.wide), highlight=False)
            else:
                print_document(run.document(), console, wide=self.wide)
        return captured.get()
