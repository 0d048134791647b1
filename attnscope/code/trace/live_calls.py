"""Trace the first calls of a target that already exists, or that code defines before it calls it."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack, suppress
from types import CodeType, FunctionType, ModuleType
from typing import TYPE_CHECKING, Any

from attnscope.base.errors import AttnscopeError, SourceError, is_a
from attnscope.base.spelling import spelled
from attnscope.base.text import shortened
from attnscope.code.trace.options import Scope, WatchedCalls
from attnscope.code.trace.program import Recording, Target, remove_own_frames
from attnscope.code.trace.result import ProgramRun
from attnscope.code.trace.watch import CallTraces
from attnscope.observe.instrument import direct_calls
from attnscope.observe.instrument.session import Session, function_of
from attnscope.observe.operator_names import FLEX, MHA, SDPA

if TYPE_CHECKING:
    from attnscope.observe.torch_internals.whole_calls import WholeCall

WHOLE = {SDPA, FLEX, MHA, "_transformer_encoder_layer_fwd"}
"""Functions of torch that compute attention as a whole."""

ATTENTION = {
    *WHOLE,
    "softmax",
    "ALL_ATTENTION_FUNCTIONS",  # the registry through which the models of transformers call attention
}
"""Names in code that computes attention."""


class LiveCalls(CallTraces):
    """Records the first calls of a target from the moment it is defined until `close`.

    `watch` is the name of a class, function or module in the namespace, or `file.py:NAME`, or
    `package.module:NAME`; None: all in the namespace that compute attention.
    """

    def __init__(
        self,
        watch: str | None,
        watched: WatchedCalls,
        scope: Scope,
        stats: bool,
        on_note: Callable[[str, str | None], None],
    ) -> None:
        result = ProgramRun(watch or "", watched.calls)
        super().__init__(result, Target(watch or ""), watched, scope, stats=stats, on_note=on_note)
        self.watch = watch
        self.scope = scope
        self.names: dict[tuple[str, int], str] = {}  # of targets, by the first line of their code
        self.error: AttnscopeError | None = None  # why a definition cannot be traced
        self.sessions = ExitStack()
        self.entered: list[Session] = []
        self.is_received = False  # whether torch's own attention is
        self.is_called = False  # by this code

    def begin(self, namespace: Mapping[str, Any]) -> None:
        """Begin to record what is defined already."""
        if self.watch is None:
            for name, target in targets_of_attention(namespace):
                with suppress(SourceError):  # others may do
                    self._record(name, target)
            if "torch" in sys.modules and not self.is_received:
                self._receive()
            return
        if ":" in self.watch:
            from attnscope.code.load.load import load

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
        is_called = bool(self.watching.n_entered or self.watching.compiled)
        if self.result.traces or (is_called and self.error is None) or (self.watch and self.names):
            own = [name for (file, _), name in self.names.items() if file != direct_calls.__file__]
            self.result.target = self.watch or " or ".join(dict.fromkeys(own))
            self.end()
        elif self.error is not None:
            self.note(self.error.message, self.error.hint)
        elif self.watch is not None:
            self.note(f"{shortened(self.watch)} was not traced: it is not defined")
        else:
            self.note(
                "no attention was called: neither torch's own, nor a class or function of this notebook"
                " that calls softmax",
                spelled(watch="NAME"),
            )
        self.sessions.close()
        return self.result

    def _receive(self) -> None:
        """Record calls of torch's own attention that no function makes of which calls are recorded."""
        from attnscope.observe.torch_internals.whole_calls import received

        for name in (SDPA, MHA):
            self._record(name, getattr(direct_calls, name))
        self.sessions.enter_context(received(self._whole_call))
        self.is_received = True

    def _whole_call(self, call: WholeCall) -> Any:
        """Run a call of torch's own attention; by Python code, if that is to be recorded."""
        function = vars(direct_calls).get(call.name)
        if function is None or self.is_called or not self.watching.is_waiting:
            return call.run()
        self.is_called = True
        try:
            return function(*call.args, **call.kwargs)
        finally:
            self.is_called = False

    def _record(self, name: str, target: Any) -> None:
        """Record calls of a target."""
        function = function_of(target)
        place = function.__code__.co_filename, function.__code__.co_firstlineno
        if place not in self.names:
            session = Session(target, follow=self.scope.follow or (), parts=self.scope.subexpressions)
            self.sessions.enter_context(session)
            self.entered.append(session)
            self.names[place] = name
            self.watching.watch_session(session)

    def add(self, recording: Recording) -> None:
        """Add the trace of a call, with the name of what was called."""
        self.result.target = self.names[recording.recorder.target]
        super().add(recording)
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
            if _computes_attention(value, ATTENTION):
                yield name, value
        elif torch is not None and not is_a(value, ModuleType):
            for each in (value, *_attributes(value).values()):
                if is_a(each, torch.nn.Module):
                    modules += torch.nn.Module.modules(each)
    for kind in dict.fromkeys(map(type, modules)):
        names = WHOLE if kind.__module__.startswith("torch.") else ATTENTION  # nn.Softmax is none
        if _computes_attention(kind, names):
            yield kind.__name__, kind


def _attributes(value: object) -> dict[str, Any]:
    """Return the attributes that a value itself has."""
    try:
        return dict(object.__getattribute__(value, "__dict__"))
    except AttributeError:
        return {}


def _computes_attention(target: Any, names: set[str]) -> bool:
    """Check whether a function, or a method of a class, uses one of some names."""
    parts = list(vars(target).values()) if is_a(target, type) else [target]
    codes = [part.__code__ for part in parts if is_a(part, FunctionType)]
    return any(names & _names_in(code) for code in codes)


def _names_in(code: CodeType) -> set[str]:
    """Return the names that code uses, including nested functions."""
    nested = [each for each in code.co_consts if isinstance(each, CodeType)]
    return {*code.co_names, *(name for each in nested for name in _names_in(each))}
