"""Keeping recording calls out of code that `torch.compile` compiles.

Compiled functions are not rewritten; and where torch compiles rewritten code anyway
(such as a helper that a compiled function calls), it sees recording calls that do nothing.

Runs on the meta device do not import it: many kernels of that device are Python functions, whose first
call imports the compiler, to mark them as not to be compiled, and the library for symbolic shapes, to
compare plain shapes: two seconds, most of the time of a run.
"""

from __future__ import annotations

import importlib
import sys
import warnings
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from importlib.machinery import ModuleSpec, SourceFileLoader
from inspect import getattr_static
from types import CodeType, FunctionType, MethodType, ModuleType
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from torch import nn


TRANSLATOR = "torch._dynamo.symbolic_convert"
"""The module that reads a function's code when `torch.compile` compiles it."""


def compiled_functions(objects: Iterable[Any]) -> set[FunctionType]:
    """Return the functions that `torch.compile` compiles, which must not get recording calls."""
    if "torch._dynamo" not in sys.modules:
        return set()
    from torch import nn

    functions: set[FunctionType] = set()
    modules: list[nn.Module] = []
    for each in objects:
        if type(each) is FunctionType and "_torchdynamo_orig_callable" in each.__dict__:
            original = each.__dict__["_torchdynamo_orig_callable"]
            original = getattr(original, "__func__", original)
            functions |= {original} if isinstance(original, FunctionType) else set()
        elif issubclass(type(each), nn.Module) and compiled_module(each) is not None:
            modules += compiled_module(each).modules()  # type: ignore[union-attr]
    for owner in {base for module in modules for base in type(module).__mro__}:
        functions |= {each for each in vars(owner).values() if isinstance(each, FunctionType)}
    return functions


def compiled_module(module: nn.Module) -> nn.Module | None:
    """Return the module that runs compiled when this one is called; None if it is not compiled."""
    if module.__dict__.get("_compiled_call_impl") is not None:
        return module
    return module._modules.get("_orig_mod") if type(module).__name__ == "OptimizedModule" else None


def is_compiled(target: Any) -> bool:
    """Check whether calling the target runs code compiled by `torch.compile`."""
    if "torch._dynamo" not in sys.modules:
        return False
    from torch import nn

    if isinstance(target, nn.Module):
        forward = getattr_static(type(target), "forward", None)
        return compiled_module(target) is not None or is_compiled(forward)
    return "_torchdynamo_orig_callable" in getattr(target, "__dict__", {})


def uncompiled(target: Any) -> Any:
    """Return the function or module that `torch.compile` compiles; any other target unchanged."""
    if not is_compiled(target):
        return target
    if isinstance(target, MethodType):
        return MethodType(uncompiled(target.__func__), target.__self__)
    from torch import nn

    if isinstance(target, nn.Module):
        return compiled_module(target) or target
    return target.__dict__["_torchdynamo_orig_callable"]


def run_uncompiled(module: nn.Module) -> None:
    """Make a module run uncompiled, although `torch.compile` compiles it or its `forward`."""
    if "torch._dynamo" in sys.modules:
        module._compiled_call_impl = None
        forward = getattr_static(type(module), "forward", None)
        if is_compiled(forward):
            object.__setattr__(module, "forward", MethodType(uncompiled(forward), module))


@contextmanager
def calls_run_uncompiled() -> Iterator[None]:
    """Run what `torch.compile` has compiled as it is written, and FlexAttention, which compiles itself.

    Modes see what such functions call then; the compiler cannot run within a mode.
    """
    if not {"torch._dynamo", "torch.nn.attention.flex_attention"} & set(sys.modules):
        yield
        return
    import torch

    with torch.compiler.set_stance("force_eager"), warnings.catch_warnings():
        warnings.filterwarnings("ignore", "flex_attention called without torch.compile")
        yield


def hide_from_compiler(
    translator: ModuleType,
    relay: type,
    silence: type,
    compiles: Callable[[CodeType], object] = lambda code: None,
) -> Callable[[], None]:
    """Make `torch.compile` compile code with recording calls as if it had none.

    A relay is a constant of that code, and the compiler only accepts literals as constants.

    Args:
        silence: the class that is compiled in place of a relay; its methods do nothing.
        compiles: called with each code object with recording calls that is compiled.

    Returns:
        What takes it back.
    """
    base = getattr(translator, "InstructionTranslatorBase", None)
    load = getattr(base, "_load_const", None)
    if base is None or load is None:
        return lambda: None

    def load_const(self: Any, instruction: Any) -> Any:
        if not isinstance(instruction.argval, relay):
            return load(self, instruction)
        from torch._dynamo.variables.base import VariableTracker

        own = getattr(instruction.argval, "silence", None)  # in code that is not the user's
        if own is None:
            compiles(self.f_code)
        return VariableTracker.build(self, own or silence)

    base._load_const = load_const
    return lambda: setattr(base, "_load_const", load)


def hide(
    relay: type, silence: type, compiles: Callable[[CodeType], object] = lambda code: None
) -> Callable[[], None]:
    """Apply `hide_from_compiler`, with the same arguments, as soon as the compiler is imported.

    Returns:
        What takes it back.
    """
    if TRANSLATOR in sys.modules:
        return hide_from_compiler(sys.modules[TRANSLATOR], relay, silence, compiles)
    taken_back: list[Callable[[], None]] = []

    def imported(translator: ModuleType) -> None:
        taken_back.append(hide_from_compiler(translator, relay, silence, compiles))

    finder = _CompilerFinder(imported)
    sys.meta_path.insert(0, finder)

    def take_back() -> None:
        if finder in sys.meta_path:
            sys.meta_path.remove(finder)
        for each in taken_back:
            each()

    return take_back


def found_by_others(
    finder: Any, name: str, path: Sequence[str] | None, target: ModuleType | None
) -> ModuleSpec | None:
    """Return the module spec that the finders after this one find."""
    after = sys.meta_path[sys.meta_path.index(finder) + 1 :]
    specs = (each.find_spec(name, path, target) for each in after if hasattr(each, "find_spec"))
    return next((spec for spec in specs if spec is not None), None)


class _CompilerFinder:
    """A meta path finder that delegates to the others, and calls back once the compiler is imported."""

    def __init__(self, imported: Callable[[ModuleType], None]) -> None:
        self.imported = imported

    def find_spec(
        self, name: str, path: Sequence[str] | None = None, target: ModuleType | None = None
    ) -> ModuleSpec | None:
        """Find the compiler's spec; see `importlib.abc.MetaPathFinder.find_spec`."""
        if name != TRANSLATOR:
            return None
        spec = found_by_others(self, name, path, target)
        if spec is not None and type(spec.loader) is SourceFileLoader:
            execute = spec.loader.exec_module

            def exec_module(module: ModuleType) -> None:
                execute(module)
                self.imported(module)

            spec.loader.exec_module = exec_module  # type: ignore[method-assign]
        return spec


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
