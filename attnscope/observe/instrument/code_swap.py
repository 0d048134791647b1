"""Swapping rewritten code into existing functions, and swapping it out again.

Only code objects are replaced, so whatever holds a function (a class, a decorator, another module)
runs the rewritten code, and nothing is imported twice. A relay is a constant of that code: it
needs no name, traces may be nested, and a closure that outlives the trace in which it was
created keeps working.
"""

from __future__ import annotations

import gc
import sys
from collections.abc import Callable, Collection, Iterable, Iterator
from contextlib import contextmanager
from itertools import compress
from types import CodeType, FrameType, FunctionType, ModuleType, TracebackType
from typing import TYPE_CHECKING, Any

from attnscope.base.errors import is_a
from attnscope.observe.instrument.rewrite import RELAY, VIEWS, Rewritten

if TYPE_CHECKING:
    from attnscope.observe.instrument.recorder import Recorder


class Silence:
    """What recording calls do where nothing listens, and in compiled code: nothing, without a trace."""

    @staticmethod
    def enter(*_: Any) -> None:
        """Do nothing."""

    leave = attribute = item = enter

    @staticmethod
    def begin(site: int) -> int:
        """Return a mark without meaning."""
        return 0

    @staticmethod
    def end(*site_mark_and_value: Any) -> Any:
        """Return the value unchanged."""
        return site_mark_and_value[-1]

    bound = part = end


REPORTS = ("begin", "bound", "end", "enter", "leave", "part")
"""The recording calls."""


class Relay:
    """Receives the calls of rewritten code, and forwards them to the attached recorders, if any."""

    __slots__ = ("_recorders", "_several", *REPORTS)

    _recorders: list[Recorder]
    _several: bool  # whether several recorders were attached at once since the last time there was none
    enter: Callable[[int], None]
    leave: Callable[[], None]
    begin: Callable[[int], Any]
    end: Callable[[int, Any, Any], Any]
    bound: Callable[[int, Any], Any]
    part: Callable[[int, Any], Any]

    def __init__(self) -> None:
        self._recorders = []
        self.detach()

    def attach(self, recorder: Recorder) -> None:
        """Forward calls to this recorder too."""
        self._recorders = [*self._recorders, recorder]
        self._several |= len(self._recorders) > 1
        for name in REPORTS:
            report = getattr(self, f"_{name}_all") if self._several else getattr(recorder, name)
            setattr(self, name, report)

    def detach(self, recorder: Recorder | None = None) -> None:
        """Stop forwarding calls to this recorder; without an argument, to all recorders."""
        others = [each for each in self._recorders if each is not recorder]
        self._recorders = others if recorder is not None else []
        if not self._recorders:
            self._several = False
            for name in REPORTS:
                setattr(self, name, getattr(Silence, name))

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
            return _read(owner, lambda tensor: getattr(tensor, name))
        try:
            attributes = object.__getattribute__(owner, "__dict__")
        except AttributeError:
            return None
        kinds = ("_parameters", "_buffers", "_modules")
        stores = (attributes, *map(attributes.get, kinds))
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
        return _read(owner, lambda tensor: tensor[index])


def _read(tensor: Any, part: Callable[[Any], Any]) -> Any:
    """Return a part of a plain tensor, unseen by modes."""
    from attnscope.observe.torch_internals.dispatch import without_torch_dispatch, without_torch_function

    with without_torch_function(), without_torch_dispatch():
        return part(tensor.detach())


class OffsetRelay:
    """Forwards the calls of one file's code to a recorder of all files, whose site indices differ.

    Args:
        first: its index of the first site of the file.
    """

    def __init__(self, recorder: Recorder, first: int) -> None:
        self.enter = lambda site: recorder.enter(first + site)
        self.leave = recorder.leave
        self.begin = lambda site: recorder.begin(first + site)
        self.end = lambda site, mark, value: recorder.end(first + site, mark, value)
        self.bound = lambda site, value: recorder.bound(first + site, value)
        self.part = lambda site, value: recorder.part(first + site, value)


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


LARGE = 1000
"""Lists, tuples, sets and dictionaries with more elements are data, which holds no functions."""

_PASSED_OVER = (ModuleType, FrameType, TracebackType)


def live_objects(
    files: Collection[str], namespaces: Collection[dict[str, Any]] = (), base: type = FunctionType
) -> list[Any]:
    """Return the functions that Python's garbage collector knows; some of them perhaps twice.

    After `gc.freeze()` it no longer lists the objects that were there. Then those follow that can be
    reached from the modules of some files and from some namespaces, without the contents of other
    modules.

    Args:
        base: a class whose instances are returned too, in the same pass through all objects.
    """
    objects = gc.get_objects()
    if gc.get_freeze_count():
        objects += reachable(files, namespaces)
    kinds = [FunctionType, base]
    for kind in kinds:  # grows
        kinds += type.__subclasses__(kind)
    chosen = set(map(id, kinds))  # a class may have no hash, or one of its own
    return list(compress(objects, map(chosen.__contains__, map(id, map(type, objects)))))


def reachable(files: Collection[str], namespaces: Collection[dict[str, Any]]) -> Iterator[Any]:
    """Yield the objects that can be reached from the modules of some files and some namespaces."""
    modules = [each for each in list(sys.modules.values()) if type(each) is ModuleType]
    roots = [vars(each) for each in modules if vars(each).get("__file__") in files]
    left: list[Any] = [value for root in (*roots, *namespaces) for value in list(root.values())]
    reached: dict[int, Any] = {}  # keeps the objects, so that no address is used again
    while left:
        each = left.pop()
        if id(each) in reached or not gc.is_tracked(each) or issubclass(type(each), _PASSED_OVER):
            continue
        reached[id(each)] = each
        yield each
        left += _contents(each)


def _contents(each: Any) -> list[Any]:
    """Return the objects that an object refers to; not the globals of a function."""
    kind = type(each)
    if kind is FunctionType:
        return [each.__closure__, each.__defaults__, each.__kwdefaults__, each.__dict__]
    if issubclass(kind, type):
        return list(type.__dict__["__dict__"].__get__(each).values())
    if kind in (list, tuple, set, frozenset, dict) and len(each) > LARGE:
        return []
    return gc.get_referents(each)
