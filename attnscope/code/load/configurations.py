"""Configurations: objects of the caller whose attributes or items are sizes.

These are dataclasses, named tuples, namespaces, mappings such as OmegaConf's, and objects of plain
classes. A run with other sizes gets a copy; the caller's object never changes. Where the class can
construct it again from its attributes, it does, so that attributes computed from others follow.
"""

from __future__ import annotations

from collections.abc import Mapping
from copy import deepcopy
from inspect import Parameter
from itertools import permutations
from typing import Any

from attnscope.base.errors import SourceError, first_line
from attnscope.base.spelling import spelled
from attnscope.code.load.signatures import VARIADIC, signature_of


def settings_of(value: Any) -> dict[str, Any]:
    """Return the attributes or items that a copy can have with other values.

    Those that the object computes from others are left out. Other objects have none.
    """
    if isinstance(value, type) or callable(value) or hasattr(value, "__array__"):
        return {}
    try:
        value = _copied(value)  # because the constructor may change what it gets
    except Exception:
        return {}
    if _is_mapping(value):
        items = {key: value[key] for key in value if isinstance(key, str)}
        computed = _computed_items(value, items)
    elif (arguments := _arguments(value)) is not None:
        items, computed = arguments, {*_computed(value, arguments)}
    else:
        attributes = getattr(value, "__dict__", {})
        items, computed = attributes, {name for name in attributes if name.startswith("_")}
    return {name: each for name, each in items.items() if name not in computed}


def copy_of(value: Any, changes: Mapping[str, Any]) -> Any:
    """Return a copy of a configuration with other settings."""
    try:
        copy = _copied(value)
    except Exception as error:
        raise SourceError(
            f"cannot copy {type(value).__name__}, which must stay unchanged: {first_line(error)}.",
            hint=f"a specification, such as {spelled(init='config=module:Config(…)')}, which"
            " constructs it for each run",
        ) from error
    if not changes:
        return copy
    if _is_mapping(copy):
        for key, item in changes.items():
            copy[key] = item
        return copy
    arguments = _arguments(copy)
    if arguments is not None:
        return type(copy)(**{**arguments, **_computed(copy, arguments), **changes})
    for name, each in changes.items():
        object.__setattr__(copy, name, each)  # also of a frozen class
    return copy


def _copied(value: Any) -> Any:
    """Return a deep copy, also of a dictionary that is its own `__dict__`, as `deepcopy` does not."""
    is_own = isinstance(value, dict) and getattr(value, "__dict__", None) is value
    if not is_own:
        return deepcopy(value)
    copy: Any = dict.__new__(type(value))
    dict.update(copy, {key: _copied(item) for key, item in dict.items(value)})
    copy.__dict__ = copy
    return copy


def _is_mapping(value: Any) -> bool:
    return all(hasattr(value, each) for each in ("keys", "__getitem__", "__setitem__", "__iter__"))


def _computed_items(mapping: Any, items: Mapping[str, Any]) -> set[str]:
    """Return the keys of numbers that change when another one does, such as interpolations."""
    numbers = [key for key, item in items.items() if type(item) is int]
    found = set()
    for key, other in permutations(numbers, 2):
        if key not in found:
            copy = _copied(mapping)
            copy[key] = items[key] + 1
            found |= {other} if copy[other] != items[other] else set()
    return found


# Objects that their class constructs again.


def _arguments(value: Any) -> dict[str, Any] | None:
    """Return the constructor's arguments, which have to be attributes of the same names.

    None if the constructor, called with them, makes an object with other attributes.
    """
    parameters = _parameters(value)
    try:
        arguments = {each.name: getattr(value, each.name) for each in parameters}
        again = type(value)(**arguments)
        equal = vars(again) == vars(value) if hasattr(value, "__dict__") else again == value
    except Exception:  # the user's class, which may raise anything
        return None
    return arguments if equal and arguments else None


def _parameters(value: Any) -> list[Parameter]:
    """Return the parameters of an object's constructor, without `**kwargs`."""
    signature = signature_of(type(value))
    parameters = signature.parameters.values() if signature is not None else ()
    return [each for each in parameters if each.kind not in VARIADIC]


def _computed(value: Any, arguments: Mapping[str, Any]) -> dict[str, Any]:
    """Return the arguments that the class computes by itself if they are left out, with their defaults.

    >>> from dataclasses import dataclass
    >>> @dataclass
    ... class Config:
    ...     n_head: int
    ...     n_kv_head: int | None = None
    ...
    ...     def __post_init__(self):
    ...         self.n_kv_head = self.n_kv_head or self.n_head
    >>> settings_of(Config(4))
    {'n_head': 4}
    >>> settings_of(Config(4, 2))
    {'n_head': 4, 'n_kv_head': 2}
    """
    computed = {}
    for each in _parameters(value):
        number, default = arguments[each.name], each.default
        if type(number) is int and default is not each.empty and default != number:
            try:
                again = type(value)(**{**arguments, each.name: default})
            except Exception:  # the user's class, which may raise anything
                continue
            if getattr(again, each.name) == number:
                computed[each.name] = default
    return computed
