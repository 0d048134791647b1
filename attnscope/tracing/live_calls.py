"""Trace the first calls of a target that exists already, or that code defines before it calls it."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from types import CodeType, FunctionType
from typing import Any

from attnscope.errors import OptionError, SourceError
from attnscope.results.trace import ProgramRun
from attnscope.text import shortened
from attnscope.tracing.instrument.session import Session, function_of
from attnscope.tracing.program import Target, Watching
from attnscope.tracing.watch import CallTraces, Dims, read_dims

ATTENTION = {"softmax", "scaled_dot_product_attention", "flex_attention"}
"""Names in code that computes attention."""


class LiveCalls:
    """Records the first calls of a target from the moment it is found until `close`.

    Args:
        watch: the name of the class, function or module to trace, as in the namespace, or
            `file.py:NAME` or `package.module:NAME`; None: the only one in the namespace that computes
            attention.
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
        self.session: Session | None = None
        self.follow, self.subexpressions = follow or [], subexpressions
        self.result = ProgramRun(watch or "", calls)
        self.traces = CallTraces(
            self.result, axis_names, stats=stats, source=source, recorded=None, note=note
        )
        self.watching = Watching(
            Target(watch or ""),
            calls,
            self.traces.add,
            self.traces.refuse,
            dims=axis_names,
            options={"stats": stats, "depth": depth},
        )

    def find_target(self, namespace: Mapping[str, Any]) -> None:
        """Begin to record the target, if it is defined by now; a new definition replaces the old one.

        Raises:
            SourceError: it cannot be traced.
            OptionError: several could be meant.
        """
        if self.watching.n_entered:
            return
        name, target = self._found(namespace)
        if target is None:
            return
        function = function_of(target)
        if self.session is not None and self.session.function is function:
            return
        self._end_session()
        self.session = Session(target, follow=self.follow, parts=self.subexpressions)
        self.result.target = name
        self.watching.watch_session(self.session)

    def close(self) -> ProgramRun:
        """Stop recording, and return the traces."""
        if self.session is None:
            self.traces.note(self._why_no_target())
        else:
            self.watching.report_unfinished()
            self.traces.end(self.watching)
        self._end_session()
        return self.result

    def _end_session(self) -> None:
        if self.session is not None:
            self.session.stack.close()
            self.session = None

    # The target.

    def _found(self, namespace: Mapping[str, Any]) -> tuple[str, Any]:
        """Return the target and its name; None if it is not defined yet."""
        if self.watch is None:
            names = names_of_attention(namespace)
            if len(names) > 1:
                raise OptionError(
                    f"several could be traced: {', '.join(names)}.", hint=f"--watch {names[-1]}"
                )
            return (names[0], namespace[names[0]]) if names else ("", None)
        if ":" in self.watch:
            from attnscope.tracing.target.load import load

            return self.watch, load(self.watch).object
        first, *rest = self.watch.split(".")
        target = namespace.get(first)
        for part in rest:
            target = getattr(target, part, None)
        return self.watch, target

    def _why_no_target(self) -> str:
        if self.watch is None:
            return "there is no attention to trace: no class or function here calls softmax"
        return f"{shortened(self.watch)} was not traced: it is not defined"


def names_of_attention(namespace: Mapping[str, Any]) -> list[str]:
    """Return the names of the classes and functions in a namespace that compute attention."""
    found: dict[FunctionType, str] = {}
    for name, value in namespace.items():
        if name.startswith("_") or not isinstance(value, type | FunctionType):
            continue
        parts = vars(value).values() if isinstance(value, type) else [value]
        codes = [part.__code__ for part in parts if isinstance(part, FunctionType)]
        if any(ATTENTION & _names_in(code) for code in codes):
            try:
                found.setdefault(function_of(value), name)
            except SourceError:
                continue
    return list(found.values())


def _names_in(code: CodeType) -> set[str]:
    """Return the names that code uses, including nested functions."""
    nested = [each for each in code.co_consts if isinstance(each, CodeType)]
    return {*code.co_names, *(name for each in nested for name in _names_in(each))}
