"""Finds the class or function that a user names as FILE.py:NAME or package.module:NAME.

Code is imported as `python file.py` and `python -m package.module` would find it, except that
nothing is written beside it and that `if __name__ == "__main__"` does not run.

Source: https://docs.python.org/3/library/importlib.html#importing-a-source-file-directly
"""

from __future__ import annotations

import ast
import importlib
import importlib.util
import inspect
import os
import re
import sys
import traceback
import zlib
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from difflib import get_close_matches
from pathlib import Path
from types import ModuleType
from typing import Any

from attnscope.errors import FileError, SourceError, class_name, is_a, safe_str, stored_in
from attnscope.text import shortened

FORM = "FILE.py:NAME or package.module:NAME"
LISTED = 8
"""How many names an error lists."""


@dataclass(frozen=True)
class Loaded:
    """What the user named.

    Attributes:
        object: the class, function or other callable.
        name: its qualified name, as the user wrote it: `Outer.Inner`.
        module: where it was found.
    """

    object: Any
    name: str
    module: ModuleType


def load(text: str) -> Loaded:
    """Import what the user names.

    Args:
        text: `file.py:NAME` or `package.module:NAME`, where NAME may have dots.

    Raises:
        FileError: there is no such file, or it is no `.py` file.
        SourceError: it cannot be imported, or there is nothing callable of that name in it.
    """
    place, colon, name = (part.strip() for part in text.rpartition(":"))
    if not (colon and place and name):
        raise _no_name(text.strip(": "))
    module = _import_file(Path(place)) if _is_file(place) else _import_module(place)
    found = _find(module, place, name)
    if not callable(found):
        raise SourceError(
            f"{name} in {place} is of type {type(found).__name__}: neither a class nor a function.",
            hint=f"{found.__name__}:NAME" if inspect.ismodule(found) else _choice_of(module, place),
        )
    return Loaded(found, name, module)


def described(error: BaseException, folder: Path | None = None) -> str:
    """An exception on one line: its kind, what it says, and where it was raised.

    Args:
        error: the exception.
        folder: where the user's files lie: the innermost line in one of them is told, or the
            innermost of all if none is.
    """
    text = safe_str(error).strip().split("\n")[0]
    kind = class_name(error)
    if is_a(error, SyntaxError) and error.filename:
        text, file, number, code = error.msg, error.filename, error.lineno, error.text
    else:
        frames = traceback.extract_tb(stored_in(error, "__traceback__"))
        own = [frame for frame in frames if folder and _is_own(frame.filename, folder)]
        frame = (own or frames)[-1]
        file, number, code = frame.filename, frame.lineno, frame.line
    told = f"{kind}: {text}" if text else kind
    if file.startswith("<frozen"):  # Python's own import system
        return told
    return f"{told} (line {number} of {os.path.basename(file)}" + (f": {code.strip()})" if code else ")")


def _is_own(file: str, folder: Path) -> bool:
    """Whether a file is below a folder, and not in an environment that happens to lie there too."""
    path = Path(file)
    return path.is_relative_to(folder) and "site-packages" not in path.relative_to(folder).parts


def _is_file(place: str) -> bool:
    """Whether the user means a file, and not a module."""
    return place.endswith(".py") or "/" in place or os.sep in place or os.path.isfile(place)


# Importing


def _import_file(path: Path) -> ModuleType:
    """A file's module: by its dotted name where the file belongs to a package."""
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
    with _importing(root, str(path.name), root):
        _import_as(name, top)
        return importlib.import_module(".".join([name, *parts[1:]]))


def _is_free(name: str, file: Path) -> bool:
    """Whether a module may have this name: no other file is imported, or is to be found, under it."""
    if name in sys.modules:
        there = getattr(sys.modules[name], "__file__", None)
        return there is not None and os.path.abspath(there) == str(file)
    return name not in sys.stdlib_module_names


def _import_as(name: str, file: Path) -> None:
    """Import a file, or a package's `__init__.py`, under a name, unless that has been done."""
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
    """A module by its dotted name."""
    if not all(part.isidentifier() for part in name.split(".")):
        raise SourceError(
            f"{shortened(name)!r} is neither a .py file nor the name of a module.", hint=FORM
        )
    folder = Path.cwd()
    try:
        with _importing(folder, name, folder, asked=name):
            return importlib.import_module(name)
    except ModuleNotFoundError as error:
        near = get_close_matches(name, [path.stem for path in folder.glob("*.py")], n=1)
        raise SourceError(
            f"there is no module {shortened(error.name)}, neither here nor among the installed"
            " packages.",
            hint=f"{near[0]}.py" if near else FORM,
        ) from error


@contextmanager
def _importing(front: Path, name: str, own: Path, asked: str = "") -> Iterator[None]:
    """Import with a folder at the front of the path, and without writing `.pyc` files.

    Args:
        front: the folder. It stays there: functions may import when they are called.
        name: what is imported, for a message.
        own: where the user's files lie.
        asked: a module's dotted name; that it is not there is left to the caller to tell.
    """
    if str(front) not in sys.path[:1]:
        sys.path.insert(0, str(front))
    importlib.invalidate_caches()
    before, sys.dont_write_bytecode = sys.dont_write_bytecode, True
    try:
        yield
    except (Exception, SystemExit) as error:
        missing = isinstance(error, ModuleNotFoundError) and f"{asked}.".startswith(f"{error.name}.")
        if asked and missing:
            raise
        raise SourceError(f"importing {name} raises {described(error, own)}.") from error
    finally:
        sys.dont_write_bytecode = before


def _check_file(path: Path) -> None:
    name = shortened(path)
    if os.path.isdir(path):
        raise FileError(f"{name} is a folder.", hint=FORM)
    if path.suffix != ".py":
        raise FileError(f"{name} is no .py file.", hint=FORM)
    if not os.path.isfile(path):  # pathlib's own fails for names that are too long
        in_folder = path.parent.glob("*.py") if os.path.isdir(path.parent) else []
        there = sorted(other.name for other in in_folder)
        near = get_close_matches(path.name, there, n=1)
        raise FileError(
            f"there is no file {name}.",
            hint=f"{path.with_name(near[0])}, which is there" if near else None,
        )


# Names


def _find(module: ModuleType, place: str, name: str) -> Any:
    """What a module has under a qualified name."""
    found: Any = module
    owner = place
    for part in name.split("."):
        try:
            found = getattr(found, part)
        except AttributeError as error:
            raise _no_such_name(found, owner, part, text=f"{place}:{name}") from error
        except Exception as error:  # some packages import their parts when they are asked for them
            raise SourceError(f"importing {part} from {owner} raises {described(error)}.") from error
        owner = part
    return found


def _no_such_name(found: Any, owner: str, part: str, text: str) -> SourceError:
    if _gathers(found):
        message, hint = f"{owner} has no {part}.", None
    else:
        defined = _defined(found)
        message, hint = f"{owner} has no {part}: it defines {_listed(defined)}.", _choice(owner, defined)
    near = _similar(part, found)
    before = text[: text.rindex(part)] if text.endswith(part) else f"{owner}:"
    return SourceError(message, hint=before + near if near else hint)


def _similar(name: str, owner: Any) -> str | None:
    """The class or function of a module or class whose name is most like one that is not there."""
    own = {each.lower(): each for each in _visible(owner)}
    near = get_close_matches(name.lower(), own, n=1)
    return own[near[0]] if near else None


def _visible(owner: Any) -> list[str]:
    """The classes and functions that a module or class has, wherever they are defined."""
    return [
        name
        for name in dir(owner)
        if not name.startswith("_") and callable(inspect.getattr_static(owner, name, None))
    ]


def _gathers(owner: Any) -> bool:
    """Whether something is a package that has most of its names from its modules, as `torch.nn` has."""
    is_package = inspect.ismodule(owner) and hasattr(owner, "__path__")
    return is_package and len(_visible(owner)) > 2 * len(_defined(owner))


def _defined(owner: Any) -> list[str]:
    """The classes and functions that a module, or a class, defines itself."""
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
    return ", ".join(names[:LISTED]) + more or "no class and no function"


def _choice_of(module: ModuleType, place: str) -> str:
    """A hint: what a module defines, if that is one thing, or the form."""
    return f"{place}:NAME" if _gathers(module) else _choice(place, _defined(module))


def _choice(place: str, names: list[str]) -> str:
    """A hint: the only name there is, or the form."""
    return f"{place}:{names[0]}" if len(names) == 1 else f"{place}:NAME"


def _no_name(place: str) -> SourceError:
    """The error for a text that says where, but not what."""
    path = Path(place)
    if not place or not (_is_file(place) and os.path.isfile(path) and path.suffix == ".py"):
        return SourceError(f"{shortened(place)!r} names no class or function.", hint=FORM)
    names = _attentions(path)
    return SourceError(
        f"{place} is a file: name the class or function in it, too.",
        hint=_choice(place, names) + (f", such as {_listed(names)}" if len(names) > 1 else ""),
    )


def _attentions(path: Path) -> list[str]:
    """The classes of a file that have a `forward`, as they stand there; nothing is run."""
    try:
        body = ast.parse(path.read_bytes()).body
    except (SyntaxError, ValueError):
        return []
    return [
        node.name
        for node in body
        if isinstance(node, ast.ClassDef)
        and any(isinstance(part, ast.FunctionDef) and part.name == "forward" for part in node.body)
    ]
