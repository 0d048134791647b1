"""Runs a program as Python would, and records the first calls of a target in it.

The target's file is not imported yet when the program begins. A meta path finder in front of Python's
finds what they find, but gives watched files code with recording calls. Until the target is called,
that code only waits for it; after the last requested call, it does nothing.

Python: https://docs.python.org/3/reference/import.html#the-meta-path
"""

from __future__ import annotations

import ast
import builtins
import contextlib
import gc
import io
import linecache
import mmap
import os
import runpy
import sys
import threading
import traceback
import warnings
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from difflib import get_close_matches
from functools import partial
from importlib.machinery import ModuleSpec, SourceFileLoader
from inspect import CO_ASYNC_GENERATOR, CO_COROUTINE, CO_GENERATOR
from pathlib import Path
from types import CodeType, FunctionType, ModuleType, TracebackType
from typing import TYPE_CHECKING, Any

from attnscope.base.errors import SourceError, is_a, safe_str, stored_in
from attnscope.base.spelling import spelled
from attnscope.base.tracebacks import OWN
from attnscope.observe.instrument.code_swap import OffsetRelay, Relay, Silence, with_relay
from attnscope.observe.instrument.rewrite import RecordingSite, rewrite
from attnscope.observe.torch_internals.compiler import found_by_others, hide

if TYPE_CHECKING:
    from attnscope.observe.axes.from_source import ObservedAxes
    from attnscope.observe.diagnose.findings import Watcher
    from attnscope.observe.instrument.recorder import Recorder
    from attnscope.observe.instrument.session import Session

FAILED, INTERRUPTED = 1, 130
"""The exit status of Python after an exception; that of a shell after Ctrl-C."""

SUSPENDS = CO_GENERATOR | CO_COROUTINE | CO_ASYNC_GENERATOR

Function = ast.FunctionDef | ast.AsyncFunctionDef
Definition = ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef


# The target.


@dataclass(frozen=True)
class Target:
    """A class or function of a module that may not be imported yet."""

    name: str
    file: str | None = None  #: its source file; None if only its module is known
    module: str | None = None  #: its module's name; None if only its file is known

    def is_in(self, module: str, file: str) -> bool:
        """Check whether a module, or its file, contains the target."""
        if self.file is not None:
            return os.path.realpath(self.file) == os.path.realpath(file)
        return self.module == module


def line_of(file: str, name: str) -> int:
    """Return the first line of the function that runs when `name` of a file is called.

    Nothing is imported. For a class, this is `forward`, or else `__call__`, which it may inherit from
    another class of the same file.
    """
    place = os.path.basename(file)
    tree = ast.parse("".join(linecache.getlines(file)), filename=file)
    found: ast.Module | Definition = tree
    for part in name.split("."):
        defined = _defined(found)
        if part not in defined:
            raise _no_such_name(tree, place, part, defined)
        found = defined[part]
    if isinstance(found, ast.ClassDef):
        found = _called(tree, found, place)
    assert isinstance(found, Function), "a name has at least one part"
    line = min([found.lineno, *(each.lineno for each in found.decorator_list)])
    for (_, qualified, first), code in rewrite([file]).codes.items():
        if first == line and qualified.endswith(found.name) and code.co_flags & SUSPENDS:
            raise SourceError(
                f"cannot trace {name}: it is a generator or a coroutine.",
                hint="watch the function that calls it; its tensors are recorded there",
            )
    return line


def _defined(owner: ast.AST) -> dict[str, Definition]:
    """Return the classes and functions that a module or class defines, also inside `if` and `try`."""
    found: dict[str, Definition] = {}
    for child in ast.iter_child_nodes(owner):
        if isinstance(child, Definition):
            found[child.name] = child
        elif isinstance(child, ast.stmt | ast.excepthandler):
            found |= _defined(child)
    return found


def _called(tree: ast.Module, owner: ast.ClassDef, place: str) -> Function:
    """Return the function that runs when an instance of a class is called."""
    known = _defined(tree)
    classes = [owner]
    foreign: list[str] = []
    for each in classes:  # grows
        for base in map(ast.unparse, each.bases):
            other = known.get(base)
            if isinstance(other, ast.ClassDef) and other not in classes:
                classes.append(other)
            elif other is None and base.rpartition(".")[2] not in ("Module", "object", "ABC"):
                foreign.append(base)
    for method in ("forward", "__call__"):
        for each in classes:
            found = _defined(each).get(method)
            if isinstance(found, Function):
                return found
    if foreign:
        parent = foreign[0].rpartition(".")[2]
        raise SourceError(
            f"{owner.name} has no forward in {place}: it inherits that of {foreign[0]}.",
            hint=f"{spelled(watch=f'FILE.py:{parent}')}, with the file that defines it",
        )
    methods = ", ".join(_defined(owner)) or "no function"
    raise SourceError(
        f"{owner.name} has neither forward nor __call__: it defines {methods}.",
        hint=spelled(watch=f"{place}:{owner.name}.METHOD"),
    )


def _no_such_name(
    tree: ast.Module, place: str, name: str, defined: dict[str, Definition]
) -> SourceError:
    for node in ast.walk(tree):
        if isinstance(node, ast.ImportFrom) and any((a.asname or a.name) == name for a in node.names):
            home = node.module or ""
            module = "." * node.level + home
            return SourceError(
                f"{place} does not define {name}: it imports it from {module}.",
                hint=f"{spelled(watch=f'{home}:{name}')}, or the file that defines it",
            )
    near = get_close_matches(name, defined, n=1)
    return SourceError(
        f"{place} has no {name}: it defines {', '.join(defined) or 'no class and no function'}.",
        hint=spelled(watch=f"{place}:{near[0]}") if near else None,
    )


# Recording its calls.


@dataclass(frozen=True)
class Recording:
    """A call that was recorded."""

    recorder: Recorder
    watcher: Watcher
    axes: ObservedAxes
    error: BaseException | None
    files: set[str]
    number: int


@dataclass
class Watching:
    """Puts recording calls into modules when they are imported, and records a target's first calls."""

    target: Target
    calls: int
    on_recorded: Callable[[Recording], None]  #: receives each call after it has returned or raised
    on_refused: Callable[[SourceError], None]  #: receives the error if the target cannot be recorded
    #: the user's names for the axes of arguments of the call
    dims: Mapping[str, Sequence[str]] = field(default_factory=dict)
    #: modules whose functions are recorded too; a package stands for all of its modules
    follow: Sequence[str] = ()
    parts: bool = False
    options: dict[str, Any] = field(default_factory=dict)
    from_call: int = 1  #: the number of the first call to record
    until_not_finite: bool = False  #: whether recordings in which all tensors are finite are dropped
    loaded: bool = False  #: whether the target's file was imported
    compiled: bool = False  #: whether `torch.compile` has compiled the target

    def __post_init__(self) -> None:
        self.process = os.getpid()
        self.n_calls = self.n_entered = self.n_recorded = 0  # of these, those recorded, and reported
        self.called_in_child = mmap.mmap(-1, 1)  # shared memory: not 0 if a child process called it
        self.loaded_before = self._is_imported()
        self._sites: list[RecordingSite] = []  # of all files
        self._files: set[str] = set()
        self._relays: list[tuple[Relay, int]] = []  # one per file, with the index of its first site
        self._places: set[tuple[str, int]] = set()  # where the target's code begins
        self._recorder: Recorder | None = None
        self._lock = threading.Lock()

    def _is_imported(self) -> bool:
        """Check whether the target's module is imported already."""
        target = self.target
        if target.file is None:
            return target.module in sys.modules
        files = [getattr(module, "__file__", None) for module in list(sys.modules.values())]
        return any(isinstance(file, str) and target.is_in("", file) for file in files)

    def was_missed(self) -> bool:
        """Check whether the target was loaded in a way that cannot be watched."""
        functions = [each for each in gc.get_objects() if type(each) is FunctionType]
        files = {function.__code__.co_filename for function in functions}
        is_there = self.target.file is not None and any(self.target.is_in("", each) for each in files)
        return not self.loaded and (is_there or self._is_imported())

    # Importing modules.

    def may_watch(self, module: str) -> bool:
        """Check whether a module of this name may be watched; its file is not known yet."""
        if self.target.file is not None:
            path = Path(self.target.file)
            if module.rpartition(".")[2] in (path.stem, path.parent.name):
                return True
        return self._is_named(module)

    def _is_named(self, module: str) -> bool:
        """Check whether a module is the target's or a followed one, by its name."""
        followed = (f"{module}.".startswith(f"{each}.") for each in self.follow)
        return module == self.target.module or any(followed)

    def code(self, module: str, file: str) -> CodeType | None:
        """Return the code of a module with recording calls; None if it is not watched."""
        has_target = self.target.is_in(module, file)
        if not (has_target or self._is_named(module)):
            return None
        try:
            with warnings.catch_warnings():
                warnings.simplefilter("ignore")  # Python shows them when it compiles the file itself
                line = line_of(file, self.target.name) if has_target else None
                rewritten = rewrite([file], parts=self.parts)
        except SyntaxError:  # Python reports it itself
            return None
        except (SourceError, RecursionError) as error:
            if has_target:
                self.loaded = True
                deep = SourceError(
                    f"cannot trace {self.target.name}: an expression in its file is nested too deeply."
                )
                self.on_refused(error if isinstance(error, SourceError) else deep)
            return None
        if line is not None:
            self.loaded = True
            self._places.add((file, line))
        relay = LocalRelay()
        self._relays.append((relay, len(self._sites)))
        self._sites += rewritten.sites
        self._files.add(file)
        self._connect()
        return with_relay(relay, rewritten.modules[file])

    def watch_session(self, session: Session) -> None:
        """Watch functions that are imported already, and run with the code of a session."""
        self.loaded = True
        self.compiled |= session.compiled
        self._places.add((session.file, session.line))
        if any(relay is session.relay for relay, _ in self._relays):
            return  # another function of the same file
        self._relays.append((session.relay, len(self._sites)))
        self._sites += session.sites
        self._files |= {site.file for site in session.sites}
        self._connect()

    def is_compiled(self, code: CodeType) -> None:
        """Note that torch compiles this code."""
        self.compiled |= (code.co_filename, code.co_firstlineno) in self._places

    # Recording the target.

    @property
    def is_waiting(self) -> bool:
        """Whether the next call of a target is recorded."""
        return self._recorder is None and self.n_recorded < self.calls

    def _connect(self) -> None:
        """Attach all relays to the recorder, or make them wait for a call if more are requested."""
        for relay, first in self._relays:
            relay.detach()
            if self._recorder is not None:
                relay.attach(OffsetRelay(self._recorder, first))  # type: ignore[arg-type]
            elif self.n_recorded < self.calls:
                relay.enter = partial(self._enter, first)

    def _enter(self, first: int, number: int) -> None:
        """Start a recording if the function that begins here is the target."""
        site = self._sites[first + number]
        if (site.file, site.line) not in self._places:
            return
        if os.getpid() != self.process:
            self.called_in_child[0] = 1
            return
        with self._lock:
            if self._recorder is not None or self.n_recorded == self.calls:
                return  # another thread was first
            self.n_calls += 1
            if self.n_calls < self.from_call:
                return
            self.n_entered += 1
            from attnscope.observe.axes.from_source import ObservedAxes
            from attnscope.observe.diagnose.findings import Watcher
            from attnscope.observe.instrument.recorder import Recorder

            before = sys.exc_info()[1]  # the exception that is being handled during the call
            self._watcher, self._axes = Watcher(self._files), ObservedAxes(self.dims)
            self._recorder = recorder = Recorder(
                self._sites,
                site.file,
                site.line,
                watch=self._watcher,
                axes=self._axes,
                finished=lambda: self._finished(recorder, before),
                follow=self.follow,
                **self.options,
            )
            recorder.enter(first + number)
            self._connect()

    def report_unfinished(self) -> bool:
        """Report a call as recorded so far, if the process ends during one; return whether it does."""
        recorder, self._recorder = self._recorder, None
        if recorder is None:
            return False
        self.n_recorded += 1
        self.on_recorded(self._recording(recorder, None))
        return True

    def _recording(self, recorder: Recorder, error: BaseException | None) -> Recording:
        return Recording(recorder, self._watcher, self._axes, error, self._files, self.n_calls)

    def _finished(self, recorder: Recorder, before: BaseException | None) -> None:
        """Report a call that has returned or raised."""
        error = sys.exc_info()[1]
        self._recorder = None
        is_dropped = self.until_not_finite and not self._watcher.saw_not_finite and error is before
        self.n_recorded += not is_dropped
        self._connect()
        if os.getpid() != self.process or is_dropped:  # a child process
            return
        try:
            error = None if error is before else error
            self.on_recorded(self._recording(recorder, error))
        except Exception:  # a mistake of ours must not reach the program
            traceback.print_exc()


class LocalRelay(Relay):
    """A relay that does nothing in a process that unpickles it."""

    def __reduce__(self) -> tuple[type[Relay], tuple[()]]:
        return Relay, ()


class Finder:
    """A meta path finder that delegates to those after it, and replaces the code of watched modules."""

    def __init__(self, watching: Watching) -> None:
        self.watching = watching

    def find_spec(
        self, name: str, path: Sequence[str] | None = None, target: ModuleType | None = None
    ) -> ModuleSpec | None:
        """Find a module's spec; see `importlib.abc.MetaPathFinder.find_spec`."""
        if not self.watching.may_watch(name):
            return None
        spec = found_by_others(self, name, path, target)
        loader = spec.loader if spec is not None else None
        if type(loader) is not SourceFileLoader or spec is None or spec.origin is None:
            return spec
        if (code := self.watching.code(name, spec.origin)) is not None:
            loader.get_code = lambda fullname: code  # type: ignore[method-assign]
        return spec


# Running a program.


def run_script(script: str, arguments: Sequence[str], watching: Watching) -> int:
    """Run a file as `python FILE ARGUMENTS…` does."""
    path = os.path.abspath(script)
    sys.argv = [script, *arguments]
    if not sys.flags.safe_path:
        sys.path[0] = os.path.dirname(os.path.realpath(path))
    main = _new_main()
    loader = SourceFileLoader("__main__", path)
    main.__dict__.update(__file__=path, __cached__=None, __loader__=loader)

    def run() -> None:
        with io.open_code(path) as file:
            code = compile(file.read(), path, "exec", dont_inherit=True)
        exec(watching.code("__main__", path) or code, main.__dict__)

    return _run(run, watching)


def run_module(name: str, arguments: Sequence[str], watching: Watching) -> int:
    """Run a module as `python -m NAME ARGUMENTS…` does."""
    sys.argv = ["-m", *arguments]
    if not sys.flags.safe_path:
        sys.path[0] = os.getcwd()
    _new_main()
    return _run(lambda: runpy._run_module_as_main(name), watching)  # type: ignore[attr-defined]


def _new_main() -> ModuleType:
    """Install a new `__main__` module, which stays for threads and exit handlers of the program."""
    main = sys.modules["__main__"] = ModuleType("__main__")
    main.__dict__.update(__builtins__=builtins, __annotations__={})
    return main


def _run(program: Callable[[], object], watching: Watching) -> int:
    sys.meta_path.insert(0, Finder(watching))
    hide(Relay, Silence, watching.is_compiled)
    try:
        program()
    except SystemExit as error:
        status, text = status_of(error)
        if text is not None:
            with contextlib.suppress(Exception):  # the program may have closed it
                print(text, file=sys.stderr or sys.__stderr__)
        return status
    except BaseException as error:
        _show(error)
        return INTERRUPTED if is_a(error, KeyboardInterrupt) else FAILED
    return 0


def status_of(error: SystemExit) -> tuple[int, str | None]:
    """Return the exit status after `sys.exit`, and the text that Python prints on stderr, if any."""
    code = stored_in(error, "code", SystemExit)
    if code is None:
        return 0, None
    return (code, None) if is_a(code, int) else (FAILED, safe_str(error))


def _show(error: BaseException) -> None:
    """Print an uncaught exception as Python does, without frames of attnscope."""
    remove_own_frames(error)
    sys.last_type, sys.last_value, sys.last_traceback = (
        type(error),
        error,
        stored_in(error, "__traceback__"),
    )
    if sys.version_info >= (3, 12):
        sys.last_exc = error
    try:
        sys.excepthook(type(error), error, stored_in(error, "__traceback__"))
    except Exception as other:
        print("Error in sys.excepthook:", file=sys.stderr)
        sys.__excepthook__(type(other), other, other.__traceback__)
        print("\nOriginal exception was:", file=sys.stderr)
        sys.__excepthook__(type(error), error, stored_in(error, "__traceback__"))


def remove_own_frames(error: BaseException) -> None:
    """Remove the frames of attnscope from the tracebacks of an exception, and of all printed with it."""
    for each in _chain(error):
        BaseException.__dict__["__traceback__"].__set__(
            each, _without_own_frames(stored_in(each, "__traceback__"))
        )


def _chain(error: BaseException) -> Iterator[BaseException]:
    """Yield an exception, and all that are printed with it: causes, contexts, members of groups."""
    visited: set[int] = set()
    left: list[BaseException | None] = [error]
    while left:
        each = left.pop()
        if each is None or id(each) in visited:
            continue
        visited.add(id(each))
        yield each
        left += [stored_in(each, "__cause__"), stored_in(each, "__context__")]
        if is_a(each, BaseExceptionGroup):
            left += stored_in(each, "exceptions", BaseExceptionGroup)


def _without_own_frames(tb: TracebackType | None) -> TracebackType | None:
    """Return a traceback without the frames of attnscope, and of torch on its behalf.

    What shows a trace calls no code of the user's, so nothing below it is kept.
    """
    kept: list[TracebackType] = []
    own = tuple(f"{OWN / name}{os.sep}" for name in ("code/trace", "observe", "code/load"))
    output = tuple(str(OWN / name) for name in ("cli/report.py", "document/", "base/process/"))
    is_own = False
    while tb is not None:
        file = tb.tb_frame.f_code.co_filename
        if file.startswith(output):
            break
        is_own = file.startswith(own) or (is_own and file.endswith(f"torch{os.sep}_ops.py"))
        if not is_own:
            kept.append(tb)
        tb = tb.tb_next
    result = None
    for each in reversed(kept):
        result = TracebackType(result, each.tb_frame, each.tb_lasti, each.tb_lineno)
    return result
