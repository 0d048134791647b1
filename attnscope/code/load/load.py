"""Finds the class or function that a user names as FILE.py:NAME or package.module:NAME.

Code is imported as `python file.py` and `python -m package.module` would find it, except that
nothing is written beside it and that `if __name__ == "__main__"` does not run.

Source: https://docs.python.org/3/library/importlib.html#importing-a-source-file-directly
"""

from __future__ import annotations

import importlib
import importlib.util
import inspect
import linecache
import os
import re
import sys
import zlib
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from difflib import get_close_matches
from pathlib import Path
from types import ModuleType
from typing import Any

from attnscope.base.errors import FileError, SourceError, no_such_file
from attnscope.base.process.files import refuse_pipe
from attnscope.base.suggestions import classes_with_forward
from attnscope.base.text import shortened
from attnscope.base.tracebacks import describe
from attnscope.observe.instrument.direct_calls import traceable
from attnscope.observe.torch_internals.compiler import uncompiled

FORM = "FILE.py:NAME or package.module:NAME"
LISTED = 8
"""The maximal number of names that an error lists."""


@dataclass(frozen=True)
class Loaded:
    """A loaded target."""

    object: Any
    name: str  #: its qualified name, as the user wrote it: `Outer.Inner`
    module: ModuleType


def load(text: str) -> Loaded:
    """Import a target."""
    place, colon, name = (part.strip() for part in text.replace("::", ":").rpartition(":"))
    if not (colon and place and name):
        raise no_name(text.strip(": "))
    is_file = place.endswith(".py") or "/" in place or os.sep in place or os.path.isfile(place)
    module = _import_file(Path(place)) if is_file else _import_module(place)
    found = _find(module, place, name)
    if not callable(found):
        if inspect.ismodule(found):
            hint = f"{found.__name__}:NAME"
        else:
            hint = _choice(place, [] if _reexports(module) else _defined(module))
        raise SourceError(
            f"{name} in {place} is of type {type(found).__name__}: neither a class nor a function.",
            hint=hint,
        )
    return Loaded(traceable(found), name, module)


def load_target(target: Any) -> Loaded:
    """Return a class, function or module with its name and its module; a text is imported."""
    if isinstance(target, str):
        return load(target)
    target = traceable(target)
    name = title_of(target).rpartition(".")[2]
    module = sys.modules[getattr(target, "__module__", None) or type(target).__module__]
    return Loaded(target, name, module)


def title_of(target: Any) -> str:
    """Return the qualified name of a class or function, or of a module's class; a text unchanged."""
    if isinstance(target, str):
        return target
    target = uncompiled(target)
    return str(getattr(target, "__qualname__", type(target).__qualname__))


# Importing


def _import_file(path: Path) -> ModuleType:
    """Import a file as a module, by its dotted name if it belongs to a package."""
    _check_file(path)
    path = Path(os.path.abspath(path))
    parts, root = [path.stem.replace(".", "_")], path.parent
    while (root / "__init__.py").is_file():
        parts, root = [root.name, *parts], root.parent
    if parts[-1] == "__init__":
        parts.pop()
    top = root / parts[0] / "__init__.py" if root != path.parent else path
    name = parts[0]
    if not _is_free(name, top):
        name = "_{}_{:08x}".format(re.sub(r"\W", "_", name), zlib.crc32(os.fsencode(top)))
    dotted = ".".join([name, *parts[1:]])
    _forget_if_changed(dotted, path)
    with _importing(root, path.name):
        _import_as(name, top)
        return importlib.import_module(dotted)


_sources: dict[str, bytes] = {}
"""The source of each file that was imported, by the module's name."""


def _forget_if_changed(name: str, path: Path) -> None:
    """Forget a module whose file was edited since it was imported, as people do in a notebook."""
    source = path.read_bytes()
    if name in sys.modules and _sources.get(name, source) != source:
        del sys.modules[name]
        linecache.checkcache(str(path))
    _sources[name] = source


def _is_free(name: str, file: Path) -> bool:
    """Check whether a file may be imported by this name: no other module has it."""
    if name in sys.modules:
        existing = getattr(sys.modules[name], "__file__", None)
        return existing is not None and os.path.abspath(existing) == str(file)
    return name not in sys.stdlib_module_names


def _import_as(name: str, file: Path) -> None:
    """Import a file, or a package's `__init__.py`, by a name, unless it is imported already."""
    if name in sys.modules:
        return
    folders = [str(file.parent)] if file.name == "__init__.py" else None
    spec = importlib.util.spec_from_file_location(name, file, submodule_search_locations=folders)
    if not (spec and spec.loader):
        raise ImportError(f"no loader for {file}")
    module = sys.modules[name] = importlib.util.module_from_spec(spec)
    try:
        spec.loader.exec_module(module)
    except BaseException:
        sys.modules.pop(name, None)
        raise


def _import_module(name: str) -> ModuleType:
    """Import a module by its dotted name."""
    if not all(part.isidentifier() for part in name.split(".")):
        raise SourceError(
            f"{shortened(name)!r} is neither a .py file nor the name of a module.", hint=FORM
        )
    folder = Path.cwd()
    try:
        with _importing(folder, name, requested=name):
            return importlib.import_module(name)
    except ModuleNotFoundError as error:
        near = get_close_matches(name, [path.stem for path in folder.glob("*.py")], n=1)
        raise SourceError(
            f"there is no module {shortened(error.name)}, here or among the installed packages.",
            hint=f"{near[0]}.py" if near else FORM,
        ) from error


@contextmanager
def _importing(folder: Path, name: str, *, requested: str = "") -> Iterator[None]:
    """Import with a folder at the front of the path, and without writing `.pyc` files.

    The folder stays there, because functions may import when they are called. If there is no module
    `requested`, or no package of it, the caller handles the error.
    """
    if str(folder) not in sys.path[:1]:
        sys.path.insert(0, str(folder))
    importlib.invalidate_caches()
    before, sys.dont_write_bytecode = sys.dont_write_bytecode, True
    try:
        yield
    except (Exception, SystemExit) as error:
        missing = isinstance(error, ModuleNotFoundError) and f"{requested}.".startswith(f"{error.name}.")
        if requested and missing:
            raise
        raise SourceError(f"importing {name} raises {describe(error, folder)}.") from error
    finally:
        sys.dont_write_bytecode = before


def _check_file(path: Path) -> None:
    name = shortened(path)
    if os.path.isdir(path):
        raise FileError(f"{name} is a folder.", hint=FORM)
    if path.suffix != ".py":
        raise FileError(f"{name} is not a .py file.", hint=FORM)
    refuse_pipe(path)
    if not os.path.isfile(path):  # pathlib's own fails for names that are too long
        raise no_such_file(path)


# Names


def _find(module: ModuleType, place: str, name: str) -> Any:
    """Return the object with a qualified name in a module."""
    found: Any = module
    owner = place
    for part in name.split("."):
        try:
            found = getattr(found, part)
        except AttributeError as error:
            raise _no_such_name(found, owner, part, text=f"{place}:{name}") from error
        except Exception as error:  # some packages import their modules when they are accessed
            raise SourceError(f"importing {part} from {owner} raises {describe(error)}.") from error
        owner = part
    return found


def _no_such_name(found: Any, owner: str, part: str, text: str) -> SourceError:
    if _reexports(found):
        message, hint = f"{owner} has no {part}.", None
    else:
        defined = _defined(found)
        message = f"{owner} has no {part}: it defines {_listed(defined)}."
        hint = _choice(owner, defined)
    names = {each.lower(): each for each in _visible(found)}
    near = get_close_matches(part.lower(), names, n=1)
    before = text[: text.rindex(part)] if text.endswith(part) else f"{owner}:"
    return SourceError(message, hint=before + names[near[0]] if near else hint)


def _visible(owner: Any) -> list[str]:
    """Return the public classes and functions of a module or class, also imported ones."""
    return [
        name
        for name in dir(owner)
        if not name.startswith("_") and callable(inspect.getattr_static(owner, name, None))
    ]


def _reexports(owner: Any) -> bool:
    """Check whether an object is a package that imports most of its names, such as `torch.nn`."""
    is_package = inspect.ismodule(owner) and hasattr(owner, "__path__")
    return is_package and len(_visible(owner)) > 2 * len(_defined(owner))


def _defined(owner: Any) -> list[str]:
    """Return the classes and functions that a module or class defines itself."""
    home = owner.__name__ if inspect.ismodule(owner) else getattr(owner, "__module__", None)
    return [
        name
        for name, value in getattr(owner, "__dict__", {}).items()
        if (inspect.isclass(value) or inspect.isfunction(inspect.unwrap(value)))
        and getattr(value, "__module__", None) == home
        and not name.startswith("__")
    ]


def _listed(names: list[str]) -> str:
    more = f" and {len(names) - LISTED} more" if len(names) > LISTED else ""
    return ", ".join(names[:LISTED]) + more or "no class or function"


def _choice(place: str, names: list[str]) -> str:
    """Return a hint: the only name, or the form."""
    return f"{place}:{names[0]}" if len(names) == 1 else f"{place}:NAME"


def no_name(place: str) -> SourceError:
    """Return the error for a text without the name of a class or function.

    The hint is a class in the file, or in the file that is meant, or the last part of a dotted name.
    """
    message = f"{shortened(place)!r} does not name a class or function."
    module, _, last = place.rpartition(".")
    if place.isidentifier() and os.path.isfile(f"{place}.py"):
        return SourceError(message, hint=_choice(f"{place}.py", classes_with_forward(f"{place}.py")))
    if all(part.isidentifier() for part in place.split(".")) and last[:1].isupper() and module:
        file = f"{module.replace('.', os.sep)}.py"
        return SourceError(message, hint=f"{file if os.path.isfile(file) else module}:{last}")
    if not (place.endswith(".py") and os.path.isfile(place)):
        return SourceError(message, hint=FORM)
    names = classes_with_forward(place)
    return SourceError(
        f"{place} is a file: name the class or function in it as well.",
        hint=_choice(place, names) + (f", such as {_listed(names)}" if len(names) > 1 else ""),
    )
