"""`trace_script`: run a program as Python would, and trace the first calls of a target in it."""

from __future__ import annotations

import atexit
import contextlib
import os
import sys
import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, NoReturn

from attnscope.errors import (
    FileError,
    OptionError,
    SourceError,
    class_attribute,
    is_a,
    no_such_file,
)
from attnscope.observe.trace import Crash, Step, Trace
from attnscope.process import interrupt, streams
from attnscope.process.files import shown_path
from attnscope.suggestions import likely_target
from attnscope.text import shortened
from attnscope.tracing.result import ProgramRun

if TYPE_CHECKING:
    from attnscope.tracing.program import Recording, Target, Watching

NAMELESS = "_"
"""The placeholder for an axis without a name."""

Dims = Sequence[str] | Mapping[str, str]
"""The names of the axes of arguments: `["x=B,T,C"]`, or `{"x": "B T C"}`."""


def trace_script(
    script: str | Path | None,
    arguments: Sequence[str] = (),
    *,
    watch: str,
    module: str | None = None,
    calls: int = 1,
    dims: Dims | None = None,
    follow: Sequence[str] | None = None,
    depth: int | None = None,
    subexpressions: bool = False,
    stats: bool = False,
    source: bool = False,
    recorded: Callable[[list[Trace]], None] | None = None,
    note: Callable[[str, str | None], None] | None = None,
    restore: bool = True,
) -> ProgramRun:
    """Run a program in this process, as `python SCRIPT ARGUMENTS…` does, and trace calls in it.

    Tracing changes nothing in the program: neither its output, nor its random numbers, gradients or
    exit status. An exception that it does not catch is printed on stderr as Python prints it.

    Args:
        script: the program's file; None with `module`.
        arguments: the program's arguments.
        watch: the class or function to trace: `file.py:NAME` or `package.module:NAME`.
        module: a module to run in place of a script, as `python -m` does.
        calls: the number of calls to trace, from the first on.
        dims: names for the axes of arguments of the call; axes that come from these get them too.
        follow: names of modules whose lines are recorded too.
        depth: calls deeper than this have no steps of their own.
        subexpressions: whether subexpressions get steps too, named `…`.
        stats: whether to compute six statistics of the values of each step.
        source: whether the traces contain the functions that ran.
        recorded: receives the traces as soon as all are complete, while the program continues; or, if
            there are fewer, when it ends.
        note: receives a message, and a hint or None, if traces are missing.
        restore: whether to restore `sys.argv`, `sys.path`, `__main__` and `os._exit` after the program.
            Not for a process that ends with it: its threads and exit handlers still run.

    Returns:
        The program's exit status and the traces.

    Raises:
        AttnscopeError: the script or the target does not exist, as far as that is known before the
            program runs.

    For example::

        run = attnscope.trace_script("train.py", ["--epochs", "1"], watch="model.py:Attention")
        run.traces[0]["scores"].shape
    """
    axis_names = read_dims(dims or [])
    if module is None and script is None:
        raise OptionError("there is no program to run.", hint=f"attnscope run --watch {watch} SCRIPT.py")
    if module is None and not os.path.isfile(str(script)):  # pathlib's own fails for long names
        path, is_folder = shortened(str(script)), os.path.isdir(str(script))
        raise FileError(
            f"{path} is a folder, not a script." if is_folder else f"there is no script {path}.",
            hint=f"attnscope run --watch {watch} SCRIPT.py",
        )
    target = _parse_target(watch, None if module else Path(str(script)))
    from attnscope.tracing.program import Watching, run_module, run_script

    result = ProgramRun(watch, calls)
    recording = CallTraces(result, axis_names, stats=stats, source=source, recorded=recorded, note=note)
    watching = Watching(
        target,
        calls,
        recording.add,
        recording.refuse,
        dims=axis_names,
        follow=tuple(follow or ()),
        parts=subexpressions,
        options={"stats": stats, "depth": depth},
    )
    with _restored() if restore else contextlib.nullcontext():
        _end_before_exit(recording, watching)
        interrupt.restore_python_handler()
        streams.restore_stderr()
        if module is None:
            result.status = run_script(str(script), arguments, watching)
        else:
            result.status = run_module(module, arguments, watching)
    if os.getpid() != watching.process:  # a child that the program has forked
        return result
    if threading.active_count() > 1 and not restore:  # the program goes on
        atexit.register(recording.end, watching)
    else:
        interrupt.reinstall()
        recording.end(watching)
    return result


@contextlib.contextmanager
def _restored() -> Iterator[None]:
    """Restore the state of this process that running a program changes.

    The compiler keeps skipping recording calls, because modules that were imported keep them.
    """
    from attnscope.tracing.program import Finder

    before = sys.argv, sys.path[:], sys.modules["__main__"], os._exit
    try:
        yield
    finally:
        sys.argv, sys.path[:], sys.modules["__main__"], os._exit = before
        sys.meta_path[:] = [each for each in sys.meta_path if not isinstance(each, Finder)]


def _end_before_exit(recording: CallTraces, watching: Watching) -> None:
    """Make `os._exit` report the traces before it ends the process."""
    leave = os._exit

    def exit(status: int) -> NoReturn:
        if os.getpid() == watching.process:
            if watching.report_unfinished():
                recording.note(f"{recording.result.target} had not returned when the program ended")
            recording.end(watching)
        leave(status)

    os._exit = exit


# The target.


def _parse_target(text: str, script: Path | None) -> Target:
    """Parse `PLACE:NAME`; a file is searched in the working directory, and then beside the script.

    Raises:
        AttnscopeError: the target cannot be watched, as far as that is known before the program runs.
    """
    from attnscope.tracing.program import Target, line_of
    from attnscope.user_code.load import FORM, no_name

    likely = f"--watch {likely_target([str(script)])}"
    place, colon, name = (part.strip() for part in text.replace("::", ":").rpartition(":"))
    if not (colon and place and all(part.isidentifier() for part in name.split("."))):
        error = no_name(text.strip(": "))
        raise SourceError(error.message, hint=likely if error.hint == FORM else f"--watch {error.hint}")
    if not (place.endswith(".py") or os.sep in place):
        if not all(part.isidentifier() for part in place.split(".")):
            raise SourceError(
                f"{shortened(place)!r} is neither a .py file nor the name of a module.", hint=likely
            )
        return Target(name, module=place)
    places = (Path(place), (script or Path()).parent / place)
    file = next((each for each in places if os.path.isfile(each)), None)
    if file is None:
        missing = no_such_file(Path(place))
        raise FileError(missing.message, hint=missing.hint or likely)
    with contextlib.suppress(SyntaxError, RecursionError):  # reported when the file is imported
        line_of(os.path.abspath(file), name)
    return Target(name, file=os.path.abspath(file))


def read_dims(dims: Dims) -> dict[str, tuple[str, ...]]:
    """Return the names of the axes of each argument.

    >>> read_dims(["x=B,T,C", "mask=_,T"])
    {'x': ('B', 'T', 'C'), 'mask': ('_', 'T')}

    Raises:
        OptionError: a text is not of the form NAME=AXES.
    """
    named = {}
    if isinstance(dims, Mapping):
        dims = [f"{name}={','.join(axes.replace(',', ' ').split())}" for name, axes in dims.items()]
    for text in dims:
        name, _, axes = (part.strip() for part in text.partition("="))
        names = tuple(axis.strip() for axis in axes.split(","))
        if not name or not all(axis.isidentifier() for axis in names):
            raise OptionError(f"--dims {text} does not name axes.", hint="--dims x=B,T,C")
        if len({*names} - {NAMELESS}) < sum(axis != NAMELESS for axis in names):
            raise OptionError(
                f"--dims {text} gives two axes the same name.",
                hint=f"a name for each axis, or {NAMELESS} for none",
            )
        named[name] = names
    return named


# The traces.


class CallTraces:
    """Turns recorded calls of a program into traces, and delivers them after the last one.

    Args:
        result: receives the traces and the notes.
        axis_names: the names of axes, by argument.
        stats, source, recorded, note: as in `trace_script`.
    """

    def __init__(
        self,
        result: ProgramRun,
        axis_names: Mapping[str, tuple[str, ...]],
        *,
        stats: bool,
        source: bool,
        recorded: Callable[[list[Trace]], None] | None,
        note: Callable[[str, str | None], None] | None,
    ) -> None:
        self.result = result
        self.axis_names = axis_names
        self.stats = stats
        self.source = source
        self.recorded = recorded
        self.on_note = note
        self.refused = self.ended = False
        self.folder = Path.cwd()  # the program may change it

    def add(self, recording: Recording) -> None:
        """Add the trace of a recorded call."""
        trace = self._trace(recording)
        traces, calls = self.result.traces, self.result.calls
        trace.options["call"] = len(traces) + 1
        traces.append(trace)
        if len(traces) == calls:
            self._deliver()

    def refuse(self, error: SourceError) -> None:
        """Note why the target cannot be recorded."""
        self.refused = True
        self.note(error.message, error.hint)

    def end(self, watching: Watching) -> None:
        """Deliver incomplete traces at the end of the program, and note why calls are missing."""
        called, calls, target = len(self.result.traces), self.result.calls, self.result.target
        if called == calls or self.refused or self.ended:
            return
        self.ended = True
        place = target.rpartition(":")[0]
        if called:
            self._deliver()
            self.note(f"{target} was called {called} of {calls} times")
        elif watching.compiled:
            self.note(f"{target} is compiled by torch.compile: it was not traced")
        elif watching.n_entered:
            self.note(f"{target} was called, but the program ended before it returned")
        elif watching.called_in_child[0]:
            self.note(
                f"{target} was called in another process: only calls in the main process are traced"
            )
        elif watching.loaded:
            self.note(f"{target} was not called")
        elif watching.loaded_before:
            self.note(f"{target} was not traced: {place} is used by attnscope itself")
        elif watching.was_missed():
            self.note(f"{target} was not traced: {place} was loaded in a way that cannot be watched")
        else:
            self.note(f"{target} was not called: {place} was not imported by this program")

    def note(self, message: str, hint: str | None = None) -> None:
        """Add a message about the recording."""
        self.result.notes.append(message)
        if self.on_note is not None:
            self.on_note(message, hint)

    def _deliver(self) -> None:
        from attnscope.observe.axes.from_calls import name_by_changes

        name_by_changes([trace.steps for trace in self.result.traces])
        if self.recorded is not None:
            self.recorded(self.result.traces)
        for notice in dict.fromkeys(each for trace in self.result.traces for each in trace.notices):
            self.note(notice)

    def _trace(self, recording: Recording) -> Trace:
        from attnscope.observe.diagnose.findings import findings_of_one_run
        from attnscope.observe.instrument.loops import fold_loops
        from attnscope.user_code.load import describe

        recorder = recording.recorder
        trace = Trace(
            title=self.result.target,
            device=recorder.device or "cpu",
            dtype=_dtype(recorder.steps),
            steps=recorder.steps,
            source=recorder.sources() if self.source else None,
            file=shown_path(recorder.target[0], self.folder),
        )
        trace.sizes = recording.axes.name_axes()
        trace.notices = _name_inputs(trace.steps, self.axis_names)
        trace.findings = findings_of_one_run(
            recorder.steps, recorder.parts, recording.watcher, trace.sizes
        )
        trace.crash = self._crash(recording)
        if recorder.error is not None:
            trace.set_tracing_error(describe(recorder.error), code_runs=trace.crash is None)
        for step in trace.steps:
            step.file = step.file and shown_path(step.file, self.folder)
        if not self.stats:  # statistics belong to one iteration of a loop
            trace.steps = fold_loops(trace.steps)
        return trace

    def _crash(self, recording: Recording) -> Crash | None:
        """Return the cause of a failure of the call; None if checkpointing ended it early."""
        from attnscope.observe.diagnose.crash import crash_of, failure_of

        error = recording.error
        if error is None or not is_a(error, Exception):
            return None
        if class_attribute(error, "__module__") == "torch.utils.checkpoint":
            return None
        failure = failure_of(error, recording.files, recording.recorder.parts)
        if failure is None:
            return None

        return crash_of(failure, recording.axes.dims_of, shown_path(failure.file, self.folder))


def _dtype(steps: Sequence[Step]) -> str | None:
    """Return the dtype of the first floating-point input, or else of the first tensor."""
    inputs = [step.dtype for step in steps if step.how == "input" and "float" in step.dtype]
    return next(iter(inputs or [step.dtype for step in steps]), None)


def _name_inputs(steps: Sequence[Step], axis_names: Mapping[str, tuple[str, ...]]) -> list[str]:
    """Set the dims of inputs to the user's names; return notices of names that do not fit the call."""
    sizes: dict[str, int] = {}
    notices = []
    inputs = {step.name: step for step in reversed(steps) if step.how == "input" and step.depth == 0}
    for name, axes in axis_names.items():
        if name not in inputs:
            there = ", ".join(reversed(inputs)) or "none"
            notices.append(f"--dims {name}: the call has no such tensor; it has {there}")
            continue
        step = inputs[name]
        if len(axes) != len(step.shape):
            notices.append(f"--dims {name}: {len(axes)} names for the {len(step.shape)} axes of {name}")
            continue
        dims = step.dims or tuple(map(str, step.shape))
        step.dims = tuple(a if a != NAMELESS else dim for a, dim in zip(axes, dims, strict=True))
        for axis, size in zip(axes, step.shape, strict=True):
            if axis != NAMELESS and sizes.setdefault(axis, size) != size:
                notices.append(f"--dims {name}: {axis} is {size} there, and {sizes[axis]} elsewhere")
    return notices
