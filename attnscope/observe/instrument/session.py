"""A tracing session: a target with rewritten code, whose calls can be recorded repeatedly."""

from __future__ import annotations
import __future__

import functools
import inspect
import linecache
import os
import sys
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from inspect import CO_ASYNC_GENERATOR, CO_COROUTINE, CO_GENERATOR
from types import CodeType, FunctionType
from typing import TYPE_CHECKING, Any

from attnscope.base.errors import SourceError, class_name, safe_str
from attnscope.base.spelling import spelled
from attnscope.base.text import shortened
from attnscope.observe.instrument.code_swap import Relay, Silence, lent, live_objects, reachable
from attnscope.observe.instrument.direct_calls import traceable
from attnscope.observe.instrument.rewrite import RecordingSite, rewrite
from attnscope.observe.operator_names import PLACES
from attnscope.observe.torch_internals.compiler import (
    compiled_functions,
    hide,
    is_compiled,
    uncompiled,
)

if TYPE_CHECKING:
    from attnscope.observe.instrument.recorder import Recorder


_RELAYS: dict[int, Relay] = {}
"""The relays of the active sessions, by the id of the rewritten code that contains them."""


class Session:
    """A context in which a target and all functions of its file run with rewritten code.

    If a class inherits what is called, the functions of the class's own file do so, too.

    Args:
        owner: the class whose method `target` is, if it does not show that itself.
        parts: whether subexpressions get rows too, named `…`.
        uncompiled: whether the target runs uncompiled, even if `torch.compile` compiles it elsewhere.

    Raises:
        SourceError: a source is not available, or has changed since it was imported.
    """

    def __init__(
        self,
        target: Any,
        *,
        owner: type | None = None,
        follow: Sequence[str] = (),
        parts: bool = False,
        uncompiled: bool = False,
    ) -> None:
        target = traceable(target)
        self.function = function_of(target)
        #: names of modules whose functions are recorded too; a package stands for all of its imported
        #: modules
        self.follow = follow
        self.file = self.function.__code__.co_filename
        self.line = self.function.__code__.co_firstlineno
        overriding = _files_of_heirs(owner or _class_of(target), self.function)
        self.files = list(dict.fromkeys([self.file, *overriding, *_files_of(follow)]))
        torch = sys.modules.get("torch")
        modules = FunctionType if torch is None else torch.nn.Module
        live = live_objects(self.files, [self.function.__globals__], modules)
        compiled = set() if uncompiled else compiled_functions(live)
        self.compiled = not uncompiled and (self.function in compiled or is_compiled(target))
        self.compiled_codes: set[CodeType] = set()  # with recording calls, which do nothing there
        self.relay = Relay()
        self.stack = ExitStack()
        self.without_gradients = False  #: whether runs must not keep what gradients need; see `inspect`
        self.sites: tuple[RecordingSite, ...] = ()
        if not self.compiled:
            flags = self.function.__code__.co_flags & __future__.annotations.compiler_flag
            code = rewrite(self.files, parts=parts, flags=flags)
            self.sites = code.sites
            if id(code) in _RELAYS:  # another session runs this code already: share its relay
                self.relay = _RELAYS[id(code)]
                return
            before = self.function.__code__
            self.stack.enter_context(lent(code, self.relay, live, compiled))
            self.stack.callback(hide(Relay, Silence, self.compiled_codes.add))
            _RELAYS[id(code)] = self.relay
            self.stack.callback(_RELAYS.pop, id(code))
            if self.function.__code__ is before:
                self.stack.close()
                raise _other_source(self.function)

    def __enter__(self) -> Session:
        return self

    def __exit__(self, *exception: object) -> None:
        self.stack.close()

    def untraced(self) -> list[str]:
        """Return the functions of these files that torch has compiled, whose lines are not recorded."""
        return sorted({code.co_qualname for code in self.compiled_codes})

    def compiles_flex_attention(self) -> bool:
        """Check whether the program has FlexAttention compiled, whose kernel then shows no cost.

        What else in this process has compiled it does not matter, such as another program, or
        transformers, unless the program is a model of it.
        """
        module = sys.modules.get("torch.nn.attention.flex_attention")
        if module is None:
            return False
        namespaces = [self.function.__globals__]
        if any("/transformers/" in file for file in self.files):
            integration = sys.modules.get("transformers.integrations.flex_attention")
            namespaces += [vars(integration)] if integration is not None else []
        return module.flex_attention in compiled_functions(reachable(self.files, namespaces))

    @contextmanager
    def recording(self, **options: Any) -> Iterator[Recorder]:
        """Record the first call of the target within the context; options as in `Recorder`."""
        from attnscope.observe.instrument.recorder import Recorder

        recorder = Recorder(self.sites, self.file, self.line, follow=self.follow, **options)
        self.relay.attach(recorder)
        try:
            yield recorder
        finally:
            recorder.done = True
            self.relay.detach(recorder)


def _other_source(function: FunctionType) -> SourceError:
    """Return an error that says that a function's code is not that of its source."""
    file = function.__code__.co_filename
    if os.path.exists(file):
        return SourceError(
            f"the source of {function.__qualname__} in {file} has changed since it was imported.",
            hint="restart Python to run the code that is in the file",
        )
    return SourceError(
        f"the code of {function.__qualname__} does not match its source in {file}.",
        hint="put it into a file",
    )


def function_of(target: Any) -> FunctionType:
    """Return the function that runs when `target` is called.

    Raises:
        SourceError: it is not Python code, or is a generator, a coroutine or a lambda.
    """
    while isinstance(target, functools.partial):
        target = target.func
    if is_compiled(target) and not isinstance(target, FunctionType):
        target = uncompiled(target)
    _check_not_scripted(target)
    if not inspect.isroutine(target):
        if not callable(target):
            raise SourceError(
                f"cannot trace a {type(target).__name__}: it is not callable.",
                hint="a module or a function first, and then the tensors to call it with",
            )
        owner = target if isinstance(target, type) else type(target)
        attributes = {} if isinstance(target, type) else getattr(target, "__dict__", {})
        target = attributes.get("forward") or getattr(owner, "forward", None) or owner.__call__
    target = inspect.unwrap(target)
    target = getattr(target, "__func__", target)
    _check_not_scripted(target)
    if not isinstance(target, FunctionType):
        name = getattr(target, "__name__", None) or type(target).__qualname__
        raise SourceError(
            f"cannot trace {name}: it is compiled from C or a similar language, and has no Python"
            " lines to record.",
            hint="trace the Python function or module that calls it",
        )
    _check_runs_at_once(target)
    return target


def _check_not_scripted(target: Any) -> None:
    """Raise a SourceError if a function or module is TorchScript."""
    jit = getattr(sys.modules.get("torch"), "jit", None)
    owner = target if isinstance(target, type) else type(target)
    scripted = jit is not None and issubclass(owner, jit.ScriptFunction | jit.ScriptModule)
    if not scripted and owner.__name__ != "ScriptMethod":
        return
    attribute = "original_name" if hasattr(target, "original_name") else "name"
    name = getattr(target, attribute, owner.__name__)
    raise SourceError(
        f"cannot trace {name}: it is TorchScript, which does not run the Python code that it was"
        " compiled from.",
        hint="trace the original Python code; PYTORCH_JIT=0 turns torch.jit.script off",
    )


def _check_runs_at_once(function: FunctionType) -> None:
    """Raise a SourceError if a function is a lambda, or returns before its code has run."""
    flags, name = function.__code__.co_flags, function.__qualname__
    if function.__name__ == "<lambda>":
        why = "a lambda: it assigns no names, so there is nothing to record"
        hint = "write it as a function with def, or trace the function that calls it"
    elif flags & (CO_GENERATOR | CO_ASYNC_GENERATOR):
        why = f"{name}: it is a generator, whose code runs while another function iterates"
        hint = "trace the function that iterates over it; the generator's tensors are recorded there"
    elif flags & CO_COROUTINE:
        why = f"{name}: it is a coroutine, whose code runs when another function awaits it"
        hint = "trace a function that runs it with asyncio.run"
    else:
        return
    raise SourceError(f"cannot trace {why}.", hint=hint)


def _class_of(target: Any) -> type:
    """Return the class that a target is, or the class of the object that is called."""
    while isinstance(target, functools.partial):
        target = target.func
    target = uncompiled(target)
    owner = getattr(target, "__self__", target) if inspect.ismethod(target) else target
    return owner if isinstance(owner, type) else type(owner)


def _files_of_heirs(owner: type, function: FunctionType) -> list[str]:
    """Return the files of a class, and of its bases up to the one that defines a function.

    The function may call what they define. Files without a source are left out.
    """
    files: list[str] = []
    for each in owner.__mro__:
        attributes = [getattr(value, "__func__", value) for value in vars(each).values()]
        methods = [inspect.unwrap(value) for value in attributes if isinstance(value, FunctionType)]
        if function in methods:
            return [file for file in dict.fromkeys(files) if linecache.getlines(file)]
        files += [method.__code__.co_filename for method in methods if isinstance(method, FunctionType)]
    return []


def _files_of(modules: Sequence[str]) -> list[str]:
    """Return the files of modules, and of all imported modules of packages."""
    from importlib import import_module

    files = []
    hint = "a module's name, such as torch.nn.modules.linear"
    for name in modules:
        if name in PLACES.values():
            continue
        if not all(part.isidentifier() for part in name.split(".")):
            raise SourceError(
                f"{spelled('follow', f'{shortened(name)!r}')} is not the name of a module.", hint=hint
            )
        try:
            import_module(name)
        except ImportError as error:
            raise SourceError(
                f"there is no module {shortened(name)} to follow: {error}.", hint=hint
            ) from error
        except (Exception, SystemExit) as error:
            kind = class_name(error)
            raise SourceError(
                f"importing {shortened(name)}, which {spelled('follow')} names, raises {kind}:"
                f" {safe_str(error)}"
            ) from error
        for other, module in list(sys.modules.items()):
            file = getattr(module, "__file__", None) or ""
            if (other == name or other.startswith(f"{name}.")) and file.endswith(".py"):
                files.append(file)
    return files
