"""The functions and modules of a program, frozen ones included."""

from __future__ import annotations

import gc
import sys
from collections.abc import Collection, Iterator
from itertools import compress
from types import FrameType, FunctionType, ModuleType, TracebackType
from typing import Any

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
        files: the names of source files.
        namespaces: the globals of functions.
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
