"""What `run` does: let a program run, and show what was recorded of it as soon as it is there."""

from __future__ import annotations

import atexit
import contextlib
import io
import os
import sys
import threading
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, NoReturn

from attnscope.cli.options import Format
from attnscope.cli.output import refuse_in_csv
from attnscope.errors import (
    AttnscopeError,
    FileError,
    OptionError,
    SourceError,
    class_attribute,
    is_a,
    warn_idle,
)
from attnscope.files import check_file, shown_path, write_file
from attnscope.process import interrupt, streams
from attnscope.results.trace import Crash, Step, Trace
from attnscope.text import json_printable, printable, printable_lines, shortened

if TYPE_CHECKING:
    from rich.console import Console

    from attnscope.tracing.instrument.failure import Part
    from attnscope.tracing.program import Recording, Target, Watching

FORM = "--watch FILE.py:NAME or --watch package.module:NAME"
NAMELESS = "_"
"""Stands for an axis that gets no name."""


@dataclass(frozen=True)
class Wanted:
    """What a user wants of a program's calls: the options of `attnscope run`."""

    target: str
    calls: int = 1
    dims: tuple[str, ...] = ()
    follow: tuple[str, ...] = ()
    depth: int | None = None
    parts: bool = False
    strict: bool = False
    source: bool = False
    stats: bool = False
    format: Format = Format.TABLE
    wide: bool = False
    to: Path | None = None
    force: bool = False

    def check(self) -> None:
        """Raise an AttnscopeError for what cannot be done, before anything is."""
        refuse_in_csv(self.format, {"--source": self.source, "--calls": self.calls > 1})
        if self.to is not None:
            inside = f"--to {self.to / 'trace.txt'}"
            check_file(self.to, force=self.force, suffixes=None, kind="a trace", inside=inside)
        all_columns = f"{self.format} has all columns anyway"
        warn_idle(
            [
                (self.force and self.to is None, "--force", "no file is written"),
                (self.wide and self.format in (Format.CSV, Format.JSON), "--wide", all_columns),
            ]
        )


def watch_program(program: Sequence[str], module: str | None, wanted: Wanted) -> int:
    """Run a program, and show the first calls of what is watched in it.

    Args:
        program: the script and its arguments; the arguments alone, if there is a module.
        module: the module that is run in place of a script.
        wanted: what to watch, and how to show it.

    Returns:
        The status that the program ends with. If that is 0: 2 where the trace could not be written to
        its file, and 1 where there are findings, if that is asked for.
    """
    wanted.check()
    named = read_dims(wanted.dims)
    if module is None and not program:
        raise OptionError("there is no program to run.", hint=f"attnscope run {FORM} train.py")
    if module is None and not os.path.isfile(program[0]):  # pathlib's own fails for long names
        script, is_folder = shortened(program[0]), os.path.isdir(program[0])
        raise FileError(
            f"{script} is a folder, not a script." if is_folder else f"there is no script {script}.",
            hint="attnscope run --watch … SCRIPT.py",
        )
    target = _target(wanted.target, None if module else Path(program[0]).parent)
    from attnscope.tracing.program import Watching, run_module, run_script

    report = Report(wanted, named)
    watching = Watching(
        target,
        wanted.calls,
        report.add,
        report.refuse,
        follow=wanted.follow,
        parts=wanted.parts,
        options={"stats": wanted.stats, "depth": wanted.depth},
    )
    _forget_hook_of_typer()
    _report_before_exit(report, watching)
    interrupt.leave_to_python()
    streams.give_back()
    if module is None:
        status = run_script(program[0], program[1:], watching)
    else:
        status = run_module(module, program, watching)
    if os.getpid() != watching.process:
        return status  # a child that the program has forked
    if threading.active_count() > 1:  # it goes on
        atexit.register(report.end, watching)
    else:
        interrupt.take_back()
        report.end(watching)
    found = any(trace.findings for trace in report.traces)
    return status or (2 if report.unwritten else 1 if wanted.strict and found else 0)


def _report_before_exit(report: Report, watching: Watching) -> None:
    """Let `os._exit` end the process after the report is shown, and not before."""
    leave = os._exit

    def exit(status: int) -> NoReturn:
        if os.getpid() == watching.process:
            if watching.cut():
                report.note(f"{report.wanted.target} had not returned when the program ended")
            report.end(watching)
        leave(status)

    os._exit = exit


def _forget_hook_of_typer() -> None:
    """Show exceptions that nobody catches as they would be shown without us."""
    from typer import main

    if sys.excepthook is getattr(main, "except_hook", None):
        sys.excepthook = getattr(main, "_original_except_hook", sys.__excepthook__)


# What to watch.


def _target(text: str, folder: Path | None) -> Target:
    """What the user names; a file is looked for here, and then beside the script.

    Raises:
        AttnscopeError: it cannot be watched, as far as that is known before the program runs.
    """
    from attnscope.tracing.program import Target, line_of

    place, colon, name = (part.strip() for part in text.rpartition(":"))
    if not (colon and place and all(part.isidentifier() for part in name.split("."))):
        raise SourceError(f"{shortened(text.strip(': '))!r} names no class or function.", hint=FORM)
    if not (place.endswith(".py") or os.sep in place):
        if not all(part.isidentifier() for part in place.split(".")):
            raise SourceError(
                f"{shortened(place)!r} is neither a .py file nor the name of a module.", hint=FORM
            )
        return Target(name, module=place)
    places = (Path(place), (folder or Path()) / place)
    file = next((each for each in places if os.path.isfile(each)), None)
    if file is None:
        raise FileError(f"there is no file {shortened(place)}.", hint=FORM)
    with contextlib.suppress(SyntaxError, RecursionError):  # told when the file is imported
        line_of(os.path.abspath(file), name)
    return Target(name, file=os.path.abspath(file))


def read_dims(texts: Sequence[str]) -> dict[str, tuple[str, ...]]:
    """The names of an argument's axes, by the argument's name.

    >>> read_dims(["x=B,T,C", "mask=_,T"])
    {'x': ('B', 'T', 'C'), 'mask': ('_', 'T')}

    Raises:
        OptionError: a text is not of the form NAME=AXES.
    """
    named = {}
    for text in texts:
        name, _, axes = (part.strip() for part in text.partition("="))
        names = tuple(axis.strip() for axis in axes.split(","))
        if not name or not all(axis.isidentifier() for axis in names):
            raise OptionError(
                f"--dims {text} does not say what the axes are called.", hint="--dims x=B,T,C"
            )
        if len({*names} - {NAMELESS}) < sum(axis != NAMELESS for axis in names):
            raise OptionError(
                f"--dims {text} gives two axes one name.",
                hint=f"a name for each, or {NAMELESS} for an axis without",
            )
        named[name] = names
    return named


# What was recorded.


class Report:
    """Gathers the traces of a program's calls, and shows them when the last one is there.

    Args:
        wanted: what the user wants of them.
        named: the names of axes, by argument.
    """

    def __init__(self, wanted: Wanted, named: Mapping[str, tuple[str, ...]]) -> None:
        self.wanted = wanted
        self.named = named
        self.traces: list[Trace] = []
        self.refused = self.unwritten = self.ended = False
        # The program may close its stderr, put another one there, and change its folder.
        self.stream = sys.stderr
        self.here = Path.cwd()
        self.to = wanted.to.absolute() if wanted.to is not None else None

    def add(self, recording: Recording) -> None:
        """A call was recorded."""
        trace = self._trace(recording)
        if self.wanted.calls > 1:
            trace.options["call"] = len(self.traces) + 1
        self.traces.append(trace)
        if len(self.traces) == self.wanted.calls:
            self._show()

    def refuse(self, error: SourceError) -> None:
        """The target cannot be recorded."""
        self.refused = True
        self._say("note", error)

    def end(self, watching: Watching) -> None:
        """The program has ended: say what it has not done."""
        called, target = len(self.traces), self.wanted.target
        if called == self.wanted.calls or self.refused or self.ended:
            return
        self.ended = True
        place = target.rpartition(":")[0]
        if called:
            self._show()
            self.note(f"{target} was called {called} times, and not {self.wanted.calls}")
        elif watching.compiled:
            self.note(f"{target} is compiled by torch.compile: it ran untraced")
        elif watching.begun:
            self.note(f"{target} was called, and the program ended before it returned")
        elif watching.elsewhere[0]:
            self.note(f"{target} was called in another process: only calls in the first are traced")
        elif watching.loaded:
            self.note(f"{target} was not called")
        elif watching.loaded_before:
            self.note(f"{target} was not traced: {place} is used by attnscope itself")
        elif watching.was_missed():
            self.note(f"{target} was not traced: {place} was loaded in a way that cannot be watched")
        else:
            self.note(f"{target} was not called: {place} was not imported by this program")

    def note(self, message: str) -> None:
        """Say something that is no trace."""
        self._put(f"attnscope: note: {printable(message)}\n")

    def _say(self, kind: str, error: AttnscopeError) -> None:
        self._put(f"attnscope: {kind}: {printable(error.message)}\n")
        if error.hint:
            self._put(f"  try  {printable(error.hint)}\n")

    def _put(self, text: str) -> None:
        """Write after what the program has written."""
        with contextlib.suppress(Exception):  # its stream may be closed, or be anything
            sys.stderr.flush()
        self.stream.write(text)
        self.stream.flush()

    def _trace(self, recording: Recording) -> Trace:
        """What is known of a call."""
        from attnscope.tracing.axes.inference import Inferred, Run
        from attnscope.tracing.axes.symbols import Symbols
        from attnscope.tracing.diagnose.findings import scale_findings
        from attnscope.tracing.instrument.loops import folded

        recorder, watcher = recording.recorder, recording.watcher
        trace = Trace(
            title=self.wanted.target,
            device=recorder.device or "cpu",
            dtype=_dtype(recorder.steps),
            steps=recorder.steps,
            source=recorder.sources() if self.wanted.source else [],
            file=shown_path(recorder.target[0], self.here),
        )
        trace.sizes, trace.notices = _name_axes(trace.steps, self.named)
        inferred = Inferred(
            Symbols({name: (size,) for name, size in trace.sizes.items()}),
            [Run(recorder.steps, recorder.parts, watcher.amounts)],
            complete=False,
        )
        trace.findings = sorted(
            [*scale_findings(inferred), *watcher.findings], key=lambda finding: finding.line or 0
        )
        trace.crash = self._crash(recording, trace.sizes)
        for step in trace.steps:
            step.file = step.file and shown_path(step.file, self.here)
        if not self.wanted.stats:  # these are of one turn of a loop
            trace.steps = folded(trace.steps)
        return trace

    def _crash(self, recording: Recording, sizes: Mapping[str, int]) -> Crash | None:
        """Why the call failed, if it did; that checkpointing ends it early is no failure."""
        from attnscope.tracing.diagnose.crash import crash_of, failure_of

        error = recording.error
        if error is None or not is_a(error, Exception):
            return None
        if class_attribute(error, "__module__") == "torch.utils.checkpoint":
            return None
        failure = failure_of(error, recording.files, recording.recorder.parts)
        if failure is None:
            return None

        def dims_of(part: Part) -> tuple[str, ...]:
            return _dims(part.shape, sizes)

        return crash_of(
            failure, dims_of if sizes else lambda part: None, shown_path(failure.file, self.here)
        )

    # Showing them.

    def _show(self) -> None:
        """Show all traces, at once; what cannot be written to a file, on stderr."""
        if self.to is None:
            self._print()
        else:
            try:
                self._write(self.to)
            except FileError as error:
                self.unwritten = True
                self._print()
                self._say("error", error)
        for notice in dict.fromkeys(each for trace in self.traces for each in trace.notices):
            self.note(notice)

    def _print(self) -> None:
        from attnscope.render.terminal.console import Terminal

        self._put(self._text(Terminal(file=self.stream)))

    def _write(self, path: Path) -> None:
        from attnscope.render.terminal.console import Terminal

        write_file(
            path,
            self._text(Terminal(file=io.StringIO())).encode(errors="backslashreplace"),
            force=self.wanted.force,
        )

    def _text(self, console: Console) -> str:
        """The traces, as the console would show them."""
        from attnscope.render.records import records
        from attnscope.render.terminal.source import print_source, source_text
        from attnscope.render.terminal.table import print_table

        wanted = self.wanted
        if wanted.format is Format.JSON:
            each = [records.record(trace) for trace in self.traces]
            several = {"schema": "attnscope.traces/1", "traces": each}
            return json_printable(records.json_text(each[0] if wanted.calls == 1 else several)) + "\n"
        if wanted.format is Format.CSV:
            return printable_lines(records.csv_text(self.traces[0])) + "\n"
        with console.capture() as captured:
            for i, trace in enumerate(self.traces):
                if i:
                    console.print()
                if wanted.format is Format.MARKDOWN:
                    text = records.markdown_text(trace, wide=wanted.wide)
                    text += f"\n\n{source_text(trace)}" if wanted.source else ""
                    console.out(text, highlight=False)
                    continue
                print_table(trace, console, wide=wanted.wide)
                if wanted.source:
                    print_source(trace, console)
        return captured.get()


def _dtype(steps: Sequence[Step]) -> str | None:
    """The dtype of the first input that has real numbers, or else of the first tensor."""
    inputs = [step.dtype for step in steps if step.how == "input" and "float" in step.dtype]
    return next(iter(inputs or [step.dtype for step in steps]), None)


def _name_axes(
    steps: Sequence[Step], named: Mapping[str, tuple[str, ...]]
) -> tuple[dict[str, int], list[str]]:
    """Give the steps their dims: what the user says of inputs, and the same names to the same sizes.

    Returns:
        The names with their sizes; and what the user says that is not so.
    """
    sizes: dict[str, int] = {}
    notices = []
    inputs = {step.name: step for step in reversed(steps) if step.how == "input" and step.depth == 0}
    said: dict[str, tuple[str, ...]] = {}
    for name, axes in named.items():
        if name not in inputs:
            there = ", ".join(reversed(inputs)) or "none"
            notices.append(f"--dims {name}: the call has no such tensor; it has {there}")
            continue
        shape = inputs[name].shape
        if len(axes) != len(shape):
            notices.append(f"--dims {name}: {len(axes)} names for the {len(shape)} axes of {name}")
            continue
        said[name] = axes
        for axis, size in zip(axes, shape, strict=True):
            if axis != NAMELESS and sizes.setdefault(axis, size) != size:
                notices.append(f"--dims {name}: {axis} is {size} there, and {sizes[axis]} elsewhere")
    for step in steps if sizes else ():
        step.dims = _dims(step.shape, sizes)
        if step is inputs.get(step.name) and step.name in said:
            step.dims = tuple(
                axis if axis != NAMELESS else dim
                for axis, dim in zip(said[step.name], step.dims, strict=True)
            )
    return sizes, notices


def _dims(shape: Sequence[int], sizes: Mapping[str, int]) -> tuple[str, ...]:
    """Each axis by the name of its size, if one name alone has it. An axis of 1 may be any."""
    count = Counter(sizes.values())
    names = {size: name for name, size in sizes.items() if size > 1 and count[size] == 1}
    return tuple(names.get(size, str(size)) for size in shape)
