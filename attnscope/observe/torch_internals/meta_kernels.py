"""Runs on the meta device without importing torch's compiler.

Many kernels of the meta device are Python functions. The first call of one imports torch's compiler,
to mark it as not to be compiled, and the library for symbolic shapes, to compare plain
shapes: two seconds, most of the time of a run.
"""

from __future__ import annotations

import importlib
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from types import ModuleType
from typing import Any


def _as_it_is(function: Any = None, *args: Any, **options: Any) -> Any:
    """Return a function unchanged: the stand-in for the decorator that disables compilation."""
    return function


class _NoExpression:
    """The stand-in for sympy's class of expressions; plain sizes are not instances of it."""


ANSWERS: dict[str, dict[str, Any]] = {
    "torch._dynamo": {"disable": _as_it_is},
    "sympy": {"Basic": _NoExpression},
    "torch.fx.experimental.symbolic_shapes": {
        **dict.fromkeys(("expect_true", "guard_or_false", "guard_or_true"), bool),
        **dict.fromkeys(("guard_size_oblivious", "statically_known_true"), bool),
        "sym_and": lambda *each: all(each),
        "sym_or": lambda *each: any(each),
        "sym_eq": lambda one, other: one == other,
        "is_nested_int": lambda size: False,
        "has_guarding_hint": lambda size: True,
        "guarding_hint_or_throw": lambda size: size,
        "guard_int": int,
        "free_unbacked_symbols": lambda sizes: set(),
    },
}
"""The attributes of modules that kernels use, with stand-ins that are right without symbolic sizes."""


@contextmanager
def without_compiler() -> Iterator[None]:
    """Replace these modules by stand-ins within the context, if they are not imported yet.

    Access to any other attribute imports the real module.
    """
    stand_ins = {name: _StandIn(name) for name in ANSWERS if name not in sys.modules}
    sys.modules.update(stand_ins)
    try:
        yield
    finally:
        for name, stand_in in stand_ins.items():
            if sys.modules.get(name) is stand_in:
                del sys.modules[name]


class _StandIn(ModuleType):
    def __init__(self, name: str) -> None:
        super().__init__(name)
        self.__dict__.update(ANSWERS[name])

    def __getattr__(self, name: str) -> Any:
        package = self.__name__ != "torch.fx.experimental.symbolic_shapes"
        if name.startswith("__") and not (package and name == "__path__"):
            raise AttributeError(name)
        if sys.modules.get(self.__name__) is self:
            del sys.modules[self.__name__]
        return getattr(importlib.import_module(self.__name__), name)
