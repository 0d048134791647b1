"""`trace_script`: run a program as Python would, and trace the first calls of a target in it."""

from __future__ import annotations

import atexit
import contextlib
import os
import sys
import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from types import BuiltinFunctionType, FunctionType
from typing import TYPE_CHECKING, Any, NoReturn

from attnscope.base.errors import (
    FileError,
    OptionError,
    SourceError,
    class_attribute,
    is_a,
    no_such_file,
)
from attnscope.base.options import with_keywords
from attnscope.base.process import interrupt, streams
from attnscope.base.process.files import shown_path
from attnscope.base.spelling import spelled
from attnscope.base.suggestions import likely_target
from attnscope.base.text import shortened
from attnscope.base.units import counted
from attnscope.code.trace.options import Delivery, Dims, Scope, WatchedCalls
from attnscope.code.trace.result import ProgramRun
from attnscope.observe.trace import Crash, Step, Trace

if TYPE_CHECKING:
    from attnscope.code.trace.program import Recording, Target

NAMELESS = "_"
"""The placeholder for an axis without a name."""


@with_keywords
def trace_script(
    script: str | Path | None,
    arguments: Sequence[str] = (),
    *,
    watch: str,
    watched: WatchedCalls,
    scope: Scope,
    stats: bool = False,
    delivery: Delivery,
) -> ProgramRun:
    """Run a program in this process, as `python SCRIPT ARGUMENTS…` does, and trace calls in it.

    Tracing changes nothing in the program: neither its output, nor its random numbers, gradients or
    exit status. An exception that it does not catch is printed on stderr as Python prints it.

    Args:
        script: the program's file; None with `module`.
        arguments: the program's arguments.
        watch: the class or function to trace: `file.py:NAME` or `package.module:NAME`.
        stats: whether to compute six statistics of the values of each step.

    Returns:
        The program's exit status and the traces.

    Raises:
        AttnscopeError: the script or the target does not exist, as far as that is known before the
            program runs.

    For example::

        run = attnscope.trace_script("train.py", ["--epochs", "1"], watch="model.py:Attention")
        run.traces[0]["scores"].shape
    """
    read_dims(watched.dims or [])  # so that a mistake is reported first
    module = watched.module
    if module is None and script is None:
        raise OptionError("there is no program to run.", hint=f"attnscope run --watch {watch} SCRIPT.py")
    if module is None and not os.path.isfile(str(script)):  # pathlib's own fails for long names
        path, is_folder = shortened(str(script)), os.path.isdir(str(script))
        raise FileError(
            f"{path} is a folder, not a script." if is_folder else f"there is no script {path}.",
            hint=f"attnscope run --watch {watch} SCRIPT.py",
        )
    target = _parse_target(watch, None if module else Path(str(script)))
    from attnscope.code.trace.program import run_module, run_script

    result = ProgramRun(watch, watched.calls)
    recording = CallTraces(
        result, target, watched, scope, stats=stats, on_traces=delivery.recorded, on_note=delivery.note
    )
    watching, restore = recording.watching, delivery.restore
    with _restored() if restore else contextlib.nullcontext():
        _end_before_exit(recording)
        interrupt.restore_python_handler()
        streams.restore_stderr()
        if module is None:
            result.status = run_script(str(script), arguments, watching)
        else:
            result.status = run_module(module, arguments, watching)
    if os.getpid() != watching.process:  # a child that the program has forked
        return result
    if threading.active_count() > 1 and not restore:  # the program goes on
        atexit.register(recording.end)
    else:
        interrupt.reinstall()
        recording.end()
    return result


@contextlib.contextmanager
def _restored() -> Iterator[None]:
    """Restore the state of this process that running a program changes.

    The compiler keeps skipping recording calls, because modules that were imported keep them.
    """
    from attnscope.code.trace.program import Finder

    before = sys.argv, sys.path[:], sys.modules["__main__"], os._exit
    try:
        yield
    finally:
        sys.argv, sys.path[:], sys.modules["__main__"], os._exit = before
        sys.meta_path[:] = [each for each in sys.meta_path if not isinstance(each, Finder)]


def _end_before_exit(recording: CallTraces) -> None:
    """Make `os._exit` report the traces before it ends the process."""
    leave = os._exit

    def exit(status: int) -> NoReturn:
        if os.getpid() == recording.watching.process:
            if recording.watching.report_unfinished():
                recording.note(f"{recording.result.target} had not returned when the program ended")
            recording.end()
        leave(status)

    os._exit = exit


# The target.


def _parse_target(text: str, script: Path | None) -> Target:
    """Parse `PLACE:NAME`; a file is searched in the working directory, and then beside the script."""
    from attnscope.code.load.load import FORM, no_name
    from attnscope.code.trace.program import Target, line_of

    likely = spelled(watch=likely_target([str(script)]))
    place, colon, name = (part.strip() for part in text.replace("::", ":").rpartition(":"))
    if not (colon and place and all(part.isidentifier() for part in name.split("."))):
        error = no_name(text.strip(": "))
        raise SourceError(
            error.message, hint=likely if error.hint == FORM else spelled(watch=error.hint)
        )
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


def _where_it_is_defined(target: Target) -> str | None:
    """Return what to watch instead of a name that a module does not define; None if it has none.

    The module is imported already.
    """
    found: Any = sys.modules.get(target.module or "")
    for part in target.name.split("."):
        found = getattr(found, part, None)
    if isinstance(found, type | FunctionType) and found.__module__ != target.module:
        return spelled(watch=f"{found.__module__}:{found.__qualname__}")
    if isinstance(found, BuiltinFunctionType):
        return "watch the function that calls it; its tensors are recorded there"
    return None


def read_dims(dims: Dims) -> dict[str, tuple[str, ...]]:
    """Return the names of the axes of each argument.

    >>> read_dims(["x=B,T,C", "mask=_,T"])
    {'x': ('B', 'T', 'C'), 'mask': ('_', 'T')}
    """
    named = {}
    if isinstance(dims, Mapping):
        dims = [f"{name}={','.join(axes.replace(',', ' ').split())}" for name, axes in dims.items()]
    for text in dims:
        name, _, axes = (part.strip() for part in text.partition("="))
        names = tuple(axis.strip() for axis in axes.split(","))
        if not name or not all(axis.isidentifier() for axis in names):
            raise OptionError(
                f"{spelled('dims', text)} does not name axes.", hint=spelled(dims="x=B,T,C")
            )
        if len({*names} - {NAMELESS}) < sum(axis != NAMELESS for axis in names):
            raise OptionError(
                f"{spelled('dims', text)} gives two axes the same name.",
                hint=f"a name for each axis, or {NAMELESS} for none",
            )
        named[name] = names
    return named


# The traces.


class CallTraces:
    """Watches a target's calls, turns them into traces, and delivers these after the last one.

    `result` receives the traces and the notes; `on_traces` and `on_note` are `recorded` and `note` of
    `trace_script`.
    """

    def __init__(
        self,
        result: ProgramRun,
        target: Target,
        watched: WatchedCalls,
        scope: Scope,
        *,
        stats: bool = False,
        on_traces: Callable[[list[Trace]], None] | None = None,
        on_note: Callable[[str, str | None], None] | None = None,
    ) -> None:
        from attnscope.code.trace.program import Watching

        self.result = result
        self.axis_names = read_dims(watched.dims or [])
        self.stats = stats
        self.source = scope.source
        self.on_traces = on_traces
        self.on_note = on_note
        self.refusal: SourceError | None = None
        self.ended = False
        self.folder = Path.cwd()  # the program may change it
        self.watching = Watching(
            target,
            watched.calls,
            self.add,
            self.refuse,
            dims=self.axis_names,
            follow=tuple(scope.follow or ()),
            parts=scope.subexpressions,
            options={"stats": stats, "depth": scope.depth},
            from_call=watched.from_call,
            until_not_finite=watched.until_not_finite,
        )

    def add(self, recording: Recording) -> None:
        """Add the trace of a recorded call."""
        trace = self._trace(recording)
        trace.options["call"] = recording.number
        self.result.traces.append(trace)
        if len(self.result.traces) == self.result.calls:
            self._deliver()

    def refuse(self, error: SourceError) -> None:
        """Note why the target cannot be recorded; without a hint, after the program has run."""
        self.refusal = error
        if error.hint is not None:
            self.note(error.message, error.hint)

    def end(self) -> None:
        """Deliver incomplete traces at the end of the program, and note why calls are missing."""
        called = len(self.result.traces)
        if self.ended or called == self.result.calls:
            return
        self.ended = True
        if self.refusal is None:
            if called:
                self._deliver()
            self.note(self._why_calls_are_missing(called))
        elif self.refusal.hint is None:  # only now is its module imported
            self.note(self.refusal.message, _where_it_is_defined(self.watching.target))

    def _why_calls_are_missing(self, called: int) -> str:
        watching, target = self.watching, self.result.target
        place, n_calls = target.rpartition(":")[0], watching.n_calls
        if called and watching.until_not_finite:
            return f"{called} of {counted(n_calls, 'call')} of {target} had NaN or inf"
        if called:
            times = f"{n_calls}" if watching.from_call > 1 else f"{called} of {self.result.calls}"
            return f"{target} was called {times} times"
        if watching.compiled:
            return f"{target} is compiled by torch.compile: it was not traced"
        if watching.n_entered and watching.until_not_finite:
            return f"{target} was called {counted(n_calls, 'time')}, and never had NaN or inf"
        if watching.n_entered:
            return f"{target} was called, but the program ended before it returned"
        if n_calls:
            first = watching.from_call
            return f"{target} was called {counted(n_calls, 'time')}: there was no call {first}"
        if watching.called_in_child[0]:
            return f"{target} was called in another process: only calls in the main process are traced"
        if watching.loaded:
            return f"{target} was not called"
        if watching.loaded_before:
            return f"{target} was not traced: {place} is used by attnscope itself"
        if watching.was_missed():
            return f"{target} was not traced: {place} was loaded in a way that cannot be watched"
        return f"{target} was not called: {place} was not imported by this program"

    def note(self, message: str, hint: str | None = None) -> None:
        """Add a message about the recording."""
        self.result.notes.append(message)
        if self.on_note is not None:
            self.on_note(message, hint)

    def _deliver(self) -> None:
        from attnscope.observe.axes.symbols import name_by_changes

        name_by_changes([trace.steps for trace in self.result.traces])
        if self.on_traces is not None:
            self.on_traces(self.result.traces)
        for notice in dict.fromkeys(each for trace in self.result.traces for each in trace.notices):
            self.note(notice)

    def _trace(self, recording: Recording) -> Trace:
        from attnscope.base.tracebacks import describe
        from attnscope.observe.diagnose.findings import findings_of_one_run
        from attnscope.observe.trace import fold_loops

        recorder = recording.recorder
        inputs = [each.dtype for each in recorder.steps if each.how == "input" and "float" in each.dtype]
        dtypes = [*inputs, *(each.dtype for each in recorder.steps)]
        trace = Trace(
            title=self.result.target,
            device=recorder.device or "cpu",
            dtype=next(iter(dtypes), None),
            steps=recorder.steps,
            source=recorder.sources() if self.source else None,
            file=shown_path(recorder.target[0], self.folder),
        )
        trace.sizes = recording.axes.name_axes()
        trace.notices = [*_name_inputs(trace.steps, self.axis_names), *dict.fromkeys(recorder.notes)]
        trace.findings = findings_of_one_run(
            recorder.steps, recorder.parts, recording.watcher, trace.sizes
        )
        trace.saw_softmax = recording.watcher.saw_softmax
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


def _name_inputs(steps: Sequence[Step], axis_names: Mapping[str, tuple[str, ...]]) -> list[str]:
    """Set the dims of inputs to the user's names; return notices of names that do not fit the call."""
    sizes: dict[str, int] = {}
    notices = []
    inputs = {step.name: step for step in reversed(steps) if step.how == "input" and step.depth == 0}
    for name, axes in axis_names.items():
        if name not in inputs:
            there = ", ".join(reversed(inputs)) or "none"
            notices.append(f"{spelled('dims', name)}: the call has no such tensor; it has {there}")
            continue
        step = inputs[name]
        if len(axes) != len(step.shape):
            notices.append(
                f"{spelled('dims', name)}: {len(axes)} names for the {len(step.shape)} axes of {name}"
            )
            continue
        dims = step.dims or tuple(map(str, step.shape))
        step.dims = tuple(a if a != NAMELESS else dim for a, dim in zip(axes, dims, strict=True))
        for axis, size in zip(axes, step.shape, strict=True):
            if axis != NAMELESS and sizes.setdefault(axis, size) != size:
                notices.append(
                    f"{spelled('dims', name)}: {axis} is {size} there, and {sizes[axis]} elsewhere"
                )
    return notices
