"""Keeps what compiles out of runs on the meta device, which have no use for it.

Many of meta's kernels are Python functions. The first call of one imports torch's compiler, to
say that it is not to be compiled, and an algebra of symbolic shapes, to ask whether plain shapes
are right: two seconds, most of the time of a run.
"""

from __future__ import annotations

import importlib
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from types import ModuleType
from typing import Any


def _as_it_is(function: Any = None, *args: Any, **options: Any) -> Any:
    """What marks a function as not to be compiled: nobody compiles."""
    return function


class _NoExpression:
    """What sizes that are plain numbers are not."""


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
"""What is asked of modules, and what they would answer where nothing is symbolic."""


@contextmanager
def without_compiler() -> Iterator[None]:
    """Answer for these modules while they are not imported, and this context lasts.

    Whoever asks for anything else of one of them gets the module itself.
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
