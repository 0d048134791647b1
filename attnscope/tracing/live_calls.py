"""Trace the first calls of a target that already exists, or that code defines before it calls it."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack, suppress
from types import CodeType, FunctionType, ModuleType
from typing import Any

from attnscope.errors import AttnscopeError, SourceError, is_a
from attnscope.observe.instrument.session import Session, function_of
from attnscope.text import shortened
from attnscope.tracing.program import Recording, Target, Watching, remove_own_frames
from attnscope.tracing.result import ProgramRun
from attnscope.tracing.watch import CallTraces, Dims, read_dims

ATTENTION = {
    "softmax",
    "scaled_dot_product_attention",
    "flex_attention",
    "ALL_ATTENTION_FUNCTIONS",  # the registry through which the models of transformers call attention
}
"""Names in code that computes attention."""


class LiveCalls:
    """Records the first calls of a target from the moment it is defined until `close`.

    Args:
        watch: the name of the class, function or module to trace, as in the namespace, or
            `file.py:NAME` or `package.module:NAME`; None: all in the namespace that compute attention.
        calls, dims, follow, depth, subexpressions, stats, source, note: as in `trace_script`.

    Raises:
        OptionError: an axis has no name.
    """

    def __init__(
        self,
        watch: str | None = None,
        *,
        calls: int = 1,
        dims: Dims | None = None,
        follow: list[str] | None = None,
        depth: int | None = None,
        subexpressions: bool = False,
        stats: bool = False,
        source: bool = False,
        note: Callable[[str, str | None], None] | None = None,
    ) -> None:
        axis_names = read_dims(dims or [])
        self.watch = watch
        self.follow, self.subexpressions = follow or [], subexpressions
        self.names: dict[tuple[str, int], str] = {}  # of targets, by the first line of their code
        self.error: AttnscopeError | None = None  # why a definition cannot be traced
        self.sessions = ExitStack()
        self.entered: list[Session] = []
        self.result = ProgramRun(watch or "", calls)
        self.traces = CallTraces(
            self.result, axis_names, stats=stats, source=source, recorded=None, note=note
        )
        self.watching = Watching(
            Target(watch or ""),
            calls,
            self._add,
            self.traces.refuse,
            dims=axis_names,
            options={"stats": stats, "depth": depth},
        )

    def begin(self, namespace: Mapping[str, Any]) -> None:
        """Begin to record what is defined already.

        Raises:
            AttnscopeError: the target cannot be traced, or its file or module does not exist.
        """
        if self.watch is None:
            for name, target in targets_of_attention(namespace):
                with suppress(SourceError):  # others may do
                    self._record(name, target)
            return
        if ":" in self.watch:
            from attnscope.user_code.load import load

            self._record(self.watch, load(self.watch).object)
            return
        first, *rest = self.watch.split(".")
        target = namespace.get(first)
        for part in rest:
            target = getattr(target, part, None)
        if target is not None:
            self._record(self.watch, target)

    def defined(self, namespace: Mapping[str, Any]) -> None:
        """Record what has been defined since, too; an error is noted at the end if nothing is traced."""
        if not self.watching.n_entered:
            try:
                self.begin(namespace)
            except AttnscopeError as error:
                self.error = error

    def close(self) -> ProgramRun:
        """Stop recording, and return the traces."""
        self.watching.report_unfinished()
        for code in (code for session in self.entered for code in session.compiled_codes):
            self.watching.is_compiled(code)
        if self.result.traces or (self.names and self.error is None):
            self.result.target = self.watch or " or ".join(dict.fromkeys(self.names.values()))
            self.traces.end(self.watching)
        elif self.error is not None:
            self.traces.note(self.error.message, self.error.hint)
        elif self.watch is not None:
            self.traces.note(f"{shortened(self.watch)} was not traced: it is not defined")
        else:
            self.traces.note(
                "there is no attention to trace: no class or function here calls softmax",
                "--watch NAME",
            )
        self.sessions.close()
        return self.result

    def _record(self, name: str, target: Any) -> None:
        """Record calls of a target."""
        function = function_of(target)
        place = function.__code__.co_filename, function.__code__.co_firstlineno
        if place not in self.names:
            session = Session(target, follow=self.follow, parts=self.subexpressions)
            self.sessions.enter_context(session)
            self.entered.append(session)
            self.names[place] = name
            self.watching.watch_session(session)

    def _add(self, recording: Recording) -> None:
        """Add the trace of a call, with the name of what was called."""
        self.result.target = self.names[recording.recorder.target]
        self.traces.add(recording)
        if recording.error is not None:  # it goes on to the cell, where people read its traceback
            remove_own_frames(recording.error)


def targets_of_attention(namespace: Mapping[str, Any]) -> Iterator[tuple[str, Any]]:
    """Yield the classes and functions that compute attention, with their names.

    Those are the ones of a namespace, and the classes of its modules (of torch) and their parts; also
    of modules that a value has as attributes, as pipelines and trainers have.
    """
    modules: list[Any] = []
    torch = sys.modules.get("torch")
    for name, value in list(namespace.items()):
        if name.startswith("_"):
            continue
        if is_a(value, type) or is_a(value, FunctionType):
            if _computes_attention(value):
                yield name, value
        elif torch is not None and not is_a(value, ModuleType):
            for each in (value, *_attributes(value).values()):
                if is_a(each, torch.nn.Module):
                    modules += torch.nn.Module.modules(each)
    for kind in dict.fromkeys(map(type, modules)):
        if not kind.__module__.startswith("torch.") and _computes_attention(kind):
            yield kind.__name__, kind


def _attributes(value: object) -> dict[str, Any]:
    """Return the attributes that a value itself has."""
    try:
        return dict(object.__getattribute__(value, "__dict__"))
    except AttributeError:
        return {}


def _computes_attention(target: Any) -> bool:
    """Check whether a function, or a method of a class, uses a name of `ATTENTION`."""
    parts = list(vars(target).values()) if is_a(target, type) else [target]
    codes = [part.__code__ for part in parts if is_a(part, FunctionType)]
    return any(ATTENTION & _names_in(code) for code in codes)


def _names_in(code: CodeType) -> set[str]:
    """Return the names that code uses, including nested functions."""
    nested = [each for each in code.co_consts if isinstance(each, CodeType)]
    return {*code.co_names, *(name for each in nested for name in _names_in(each))}
