"""Swapping rewritten code into existing functions, and swapping it out again.

Only code objects are replaced, so whatever holds a function (a class, a decorator, another module)
runs the rewritten code, and nothing is imported twice. A relay is a constant of that code: it
needs no name, traces may be nested, and a closure that outlives the trace in which it was
created keeps working.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Collection, Iterable, Iterator
from contextlib import contextmanager
from types import CodeType, FunctionType
from typing import TYPE_CHECKING, Any

from attnscope.errors import is_a
from attnscope.observe.instrument.rewrite import RELAY, VIEWS, Rewritten

if TYPE_CHECKING:
    from attnscope.observe.instrument.recorder import Recorder


class Relay:
    """Receives the calls of rewritten code, and forwards them to the attached recorders, if any."""

    __slots__ = ("_recorders", "_several", "begin", "bound", "end", "enter", "leave", "part")

    _recorders: list[Recorder]
    _several: bool  # whether several recorders were attached at once since the last time there was none
    enter: Callable[[int], None]
    leave: Callable[[], None]
    begin: Callable[[int], Any]
    end: Callable[[int, Any, Any], Any]
    bound: Callable[[int, Any], Any]
    part: Callable[[int, Any], Any]

    def __init__(self) -> None:
        self.detach()

    def attach(self, recorder: Recorder) -> None:
        """Forward calls to this recorder too."""
        self._recorders = [*self._recorders, recorder]
        self._several |= len(self._recorders) > 1
        for name in ("begin", "bound", "end", "enter", "leave", "part"):
            setattr(
                self, name, getattr(self, f"_{name}_all") if self._several else getattr(recorder, name)
            )

    def detach(self, recorder: Recorder | None = None) -> None:
        """Stop forwarding calls to this recorder; without an argument, to all recorders."""
        remaining = (
            [] if recorder is None else [each for each in self._recorders if each is not recorder]
        )
        self._recorders = remaining
        if not remaining:
            self._several = False
            self.enter = lambda site: None
            self.leave = lambda: None
            self.begin = lambda site: 0
            self.end = lambda site, mark, value: value
            self.bound = self.part = lambda site, value: value

    # Several simultaneous traces of the same code, each with its own marks.

    def _enter_all(self, site: int) -> None:
        for recorder in self._recorders:
            recorder.enter(site)

    def _leave_all(self) -> None:
        for recorder in reversed(self._recorders):
            recorder.leave()

    def _begin_all(self, site: int) -> dict[int, int]:
        return {id(recorder): recorder.begin(site) for recorder in self._recorders}

    def _end_all(self, site: int, mark: Any, value: Any) -> Any:
        for i, recorder in enumerate(self._recorders):
            own_mark = mark.get(id(recorder), 0) if isinstance(mark, dict) else mark if i == 0 else 0
            value = recorder.end(site, None if mark is None else own_mark, value)
        return value

    def _bound_all(self, site: int, value: Any) -> Any:
        return self._end_all(site, self._begin_all(site), value)

    def _part_all(self, site: int, value: Any) -> Any:
        for recorder in self._recorders:
            recorder.part(site, value)
        return value

    @staticmethod
    def attribute(owner: Any, name: str) -> Any:
        """Return an attribute stored in an object, or None, without running the user's code."""
        torch = sys.modules.get("torch")
        if torch is not None and type(owner) is torch.Tensor and name in VIEWS:
            from attnscope.observe.torch_internals.dispatch import (
                without_torch_dispatch,
                without_torch_function,
            )

            with without_torch_function(), without_torch_dispatch():
                return getattr(owner.detach(), name)
        try:
            attributes = object.__getattribute__(owner, "__dict__")
        except AttributeError:
            return None
        stores = (
            attributes,
            *(attributes.get(f"_{kind}") for kind in ("parameters", "buffers", "modules")),
        )
        return next((store[name] for store in stores if isinstance(store, dict) and name in store), None)

    @staticmethod
    def item(owner: Any, index: Any) -> Any:
        """Return a stored item of a list, dict or tensor, or None, without running the user's code."""
        if is_a(owner, dict):
            return dict.get(owner, index)
        if is_a(owner, list):
            try:
                return list.__getitem__(owner, index)
            except (IndexError, TypeError):
                return None
        torch = sys.modules.get("torch")
        if torch is None or type(owner) is not torch.Tensor:
            return None
        from attnscope.observe.torch_internals.dispatch import (
            without_torch_dispatch,
            without_torch_function,
        )

        with without_torch_function(), without_torch_dispatch():
            return owner.detach()[index]


class Silence:
    """The replacement of a relay in compiled code: its calls do nothing and leave no trace."""

    @staticmethod
    def enter(site: int) -> None:
        """Do nothing."""

    @staticmethod
    def leave() -> None:
        """Do nothing."""

    @staticmethod
    def begin(site: int) -> int:
        """Return a mark without meaning."""
        return 0

    @staticmethod
    def end(site: int, mark: int | None, value: Any) -> Any:
        """Return the value unchanged."""
        return value

    @staticmethod
    def bound(site: int, value: Any) -> Any:
        """Return the value unchanged."""
        return value

    @staticmethod
    def part(site: int, value: Any) -> Any:
        """Return the value unchanged."""
        return value

    @staticmethod
    def attribute(owner: Any, name: str) -> None:
        """Do nothing."""

    @staticmethod
    def item(owner: Any, index: Any) -> None:
        """Do nothing."""


@contextmanager
def lent(
    code: Rewritten,
    relay: Relay,
    functions: Iterable[Any],
    compiled: Collection[FunctionType] = (),
) -> Iterator[None]:
    """Run functions with rewritten code, which reports to `relay`, within the context.

    A function is left alone if its code does not match its source, because the file has
    changed since it was imported.

    Args:
        code: the rewritten source.
        relay: receives the reports of the functions.
        functions: the functions of the program; other objects are ignored.
        compiled: functions to leave alone because torch compiles them.
    """
    codes = {key: with_relay(relay, each) for key, each in code.codes.items()}
    files = {file for file, *_ in codes}
    lent: list[tuple[FunctionType, CodeType]] = []
    for function in functions:
        if type(function) is FunctionType and function.__code__.co_filename in files:
            old = function.__code__
            key = old.co_filename, old.co_qualname, old.co_firstlineno
            originals = code.originals[key] if key in codes and function not in compiled else []
            if any(_is_same_code(old, original) for original in originals):
                lent.append((function, old))
                function.__code__ = codes[key]
    del functions, function  # a trace must keep nothing alive
    try:
        yield
    finally:
        ours = {id(new) for new in codes.values()}
        for function, old in lent:
            if id(function.__code__) in ours:  # otherwise a later trace has replaced it
                function.__code__ = old


def with_relay(relay: Relay, code: CodeType) -> CodeType:
    """Insert a relay into code and all nested code."""
    constants: list[Any] = list(code.co_consts)
    for i, constant in enumerate(constants):
        if isinstance(constant, CodeType):
            constants[i] = with_relay(relay, constant)
        elif isinstance(constant, str) and constant == RELAY:
            constants[i] = relay
    return code.replace(co_consts=tuple(constants))


def _is_same_code(code: CodeType, original: CodeType) -> bool:
    """Check whether code matches its source, or is another trace's rewritten version of it."""
    if any(isinstance(constant, Relay) for constant in code.co_consts):
        return code.co_freevars == original.co_freevars
    parts = ("co_code", "co_names", "co_varnames", "co_freevars")
    plain, other = (
        [each for each in one.co_consts if not isinstance(each, CodeType)] for one in (code, original)
    )
    return plain == other and all(getattr(code, part) == getattr(original, part) for part in parts)
