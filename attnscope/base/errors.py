"""Errors and warnings for mistakes of the user, and safe access to foreign exceptions.

The library raises these errors and never prints; `attnscope.cli` shows each on stderr as
one line and, if there is a remedy, a second line with a hint.
"""

from __future__ import annotations

import errno
import re
from collections.abc import Collection, Iterable
from difflib import get_close_matches
from math import isqrt
from pathlib import Path
from typing import Any, TypeGuard, TypeVar

from attnscope.base.spelling import spelled, spelled_any
from attnscope.base.text import nearest, shortened

T = TypeVar("T")


class AttnscopeError(Exception):
    """A mistake of the user, described in words that a user understands.

    Args:
        message: the problem, with the values concerned.
        hint: the remedy: a command to try, or a short sentence.
    """

    def __init__(self, message: str, hint: str | None = None) -> None:
        super().__init__(message)
        self.say(message, hint)

    def say(self, message: str, hint: str | None) -> None:
        """Say the same in other words."""
        self.args = (message,)
        self.message = message
        self.hint = hint
        self.__notes__ = [] if hint is None else [f"try  {hint}"]  # below the message in a traceback

    def _render_traceback_(self) -> list[str]:
        """Return the lines that IPython and Jupyter show: the message alone, without our frames."""
        return [f"{type(self).__name__}: {self.message}", *self.__notes__]


class SizeError(AttnscopeError, ValueError):
    """Sizes that are impossible for attention, or that do not fit together."""


class OptionError(AttnscopeError, ValueError):
    """An invalid value of an option: an unknown dtype, device, format or name."""


class ArgumentError(AttnscopeError, TypeError):
    """A function has no such argument."""


class PartError(AttnscopeError, KeyError):
    """A result has no such part; the message names those that there are."""

    __str__ = Exception.__str__  # that of KeyError shows quotes


class NoAttributeError(AttnscopeError, AttributeError):
    """A result, or attnscope itself, has no such attribute."""


def no_such_part(name: object, known: Iterable[object], of: str) -> PartError:
    """Return the error for a part that a result lacks; it names those that it has."""
    every = [*dict.fromkeys(map(str, known))]
    near = nearest(name, every) if isinstance(name, str) else None
    some = ", ".join(every[:MOST_NAMES]) + ", …" * (len(every) > MOST_NAMES)
    shown = shortened(repr(name) if isinstance(name, str) else str(name))
    return PartError(f"there is no {shown} in {of}: it has {some or 'nothing'}.", hint=near)


def no_such_attribute(name: str, known: Collection[str], of: str) -> NoAttributeError:
    """Return the error for an attribute that there is not; it names those that there are."""
    return NoAttributeError(
        f"{of} has no {name!r}: it has {', '.join(known)}.", hint=nearest(name, known)
    )


MOST_NAMES = 20
"""The names that an error lists."""


class FileError(AttnscopeError, OSError):
    """A file that cannot be read or written."""


class ModelError(AttnscopeError):
    """A checkpoint that does not exist, cannot be read, or lacks the requested layer or head."""


class OutOfMemoryError(AttnscopeError, MemoryError):
    """Memory could not be allocated, by attnscope or by a library."""


class SourceError(AttnscopeError):
    """Code that cannot be traced because its source is not available."""


class Interrupted(KeyboardInterrupt):
    """Ctrl-C while traced code was running.

    Attributes:
        trace: the trace recorded so far.
    """

    def __init__(self, trace: Any) -> None:
        super().__init__("interrupted")
        self.trace = trace


SHORT_DTYPES = {
    "fp16": "float16",
    "half": "float16",
    "bf16": "bfloat16",
    "fp32": "float32",
    "float": "float32",
    "fp64": "float64",
    "f16": "float16",
    "f32": "float32",
    "f64": "float64",
    "double": "float64",
}
"""Names of dtypes in other programs."""


def dtype_hint(dtype: str, dtypes: Iterable[str], name: str = "dtype") -> str:
    """Return a hint with the dtype that is meant, or else all.

    >>> dtype_hint("fp16", ["float32", "float16"]), dtype_hint("x", ["float32", "float16"])
    ('dtype="float16"', 'dtype="float32", "float16"')
    """
    every = list(dtypes)
    near = nearest(SHORT_DTYPES.get(dtype.lower().removeprefix("torch."), dtype), every)
    return spelled_any(name, [near] if near else every, ", ")


def check_kept(keep: Iterable[str] | bool, steps: Iterable[str], title: str) -> None:
    """Raise an OptionError if a tensor to keep is not among the steps of a trace."""
    names = [] if isinstance(keep, bool) else [keep] if isinstance(keep, str) else list(keep)
    known = list(dict.fromkeys(steps))
    for name in names:
        if name not in known:
            raise OptionError(
                f"there is no {shortened(repr(name))} in the steps of {title}.",
                hint=f"one of {', '.join(known)}",
            )


def no_such_file(path: Path) -> FileError:
    """Return the error for a missing file; its hint is a file with a similar name beside it."""
    try:
        names = [each.stem for each in path.parent.iterdir() if each.suffix == path.suffix]
    except OSError:
        names = []
    near = get_close_matches(path.stem, names, n=1)
    hint = f"{path.with_stem(near[0])}, which exists" if near else None
    return FileError(f"there is no file {shortened(path)}.", hint=hint)


def heads_do_not_divide(width: int, n_head: int, axis: str = "d_feat") -> SizeError:
    """Return the error for a width that cannot be split evenly into heads.

    Args:
        width: such as the width of the model.
        n_head: the number of heads, which does not divide it.
        axis: the name of the width.
    """
    return SizeError(
        f"{axis} is {width}, which does not divide into {n_head} heads:"
        f" {width} / {n_head} leaves {width % n_head}.",
        hint=_nearest("heads", n_head, width),
    )


def groups_are_uneven(n_head: int, n_kv_head: int) -> SizeError:
    """Return the error for key heads that the query heads cannot share evenly."""
    return SizeError(
        f"n_head is {n_head} and n_kv_head is {n_kv_head}: every key head must serve equally many"
        f" query heads, but {n_head} / {n_kv_head} leaves {n_head % n_kv_head}.",
        hint=_nearest("kv_heads", n_kv_head, n_head),
    )


def width_is_odd(axis: str, width: int, hint: str | None = None) -> SizeError:
    """Return the error for an odd width, which rotary positions cannot rotate in pairs."""
    return SizeError(
        f"{axis} is {width}, but rotary positions rotate pairs of numbers: it must be even.",
        hint=hint or "an even width, or no rotary positions",
    )


def _nearest(name: str, number: int, whole: int) -> str:
    """Return an option with the two divisors of `whole` that are nearest to `number`."""
    small = [n for n in range(1, min(isqrt(whole), 10**6) + 1) if whole % n == 0]
    divisors = sorted({*small, *(whole // n for n in small)})
    below = [n for n in divisors if n < number][-1:]
    above = [n for n in divisors if n > number][:1]
    return (
        " or ".join(spelled(**{name: n}) for n in below + above)
        + f", the divisors of {whole} nearest to {number}"
    )


def is_a(value: object, kind: type[T]) -> TypeGuard[T]:
    """Check whether a value is of a class; `isinstance` could run the user's `__class__` property."""
    return issubclass(type(value), kind)


def class_name(value: object) -> str:
    """Return the name of a value's class without running code of its metaclass."""
    return str(type.__dict__["__name__"].__get__(type(value)))


def class_attribute(value: object, name: str) -> Any:
    """Return an attribute of a value's class or its bases without running code of a metaclass.

    Returns:
        The stored object, which may be a descriptor; None if there is none.
    """
    for each in type.__dict__["__mro__"].__get__(type(value)):
        stored = type.__dict__["__dict__"].__get__(each)
        if name in stored:
            return stored[name]
    return None


def stored_in(error: BaseException, name: str, kind: type[BaseException] = BaseException) -> Any:
    """Return an attribute of an exception as Python stores it, without running code of its class.

    Args:
        error: the exception.
        name: the attribute, such as `__traceback__`.
        kind: the built-in exception class that defines the attribute.
    """
    return kind.__dict__[name].__get__(error)


def safe_str(value: object) -> str:
    """Return the text of an exception or any other value; a placeholder if its `__str__` fails."""
    try:
        return str(value)
    except BaseException:  # of any kind: the caller is already reporting an error
        return f"<its __str__ fails: {class_name(value)}>"


LONGEST_LINE = 400
"""The number of characters of another library's message that are shown."""


def first_line(error: Exception) -> str:
    """Return the message of another library's error on one line; its class name if it has none.

    If the first line ends in a colon, the second one is added; long lines are shortened. If torch
    refuses to load a pickle, the message names the object in it, and leaves out torch's advice how to
    load it anyway.
    """
    refusal = _refusal_of_pickle(error)
    if refusal is not None:
        return refusal
    if issubclass(type(error), LookupError | AttributeError):  # often only a key or a name
        return f"{class_name(error)}: {safe_str(error).strip()}".split("\n")[0]
    lines = [line.strip() for line in (safe_str(error).strip() or class_name(error)).split("\n")]
    return shortened(" ".join(lines[:2]) if lines[0].endswith(":") else lines[0], LONGEST_LINE)


def is_out_of_memory(error: BaseException) -> bool:
    """Check whether an exception, or one in its chain of causes, means that memory ran out.

    Errors that may mean anything (`RuntimeError`, `OSError`, …) count only if their message says so.
    """
    several: type | tuple[type, ...] = (RuntimeError, OSError, ImportError)
    cause: BaseException | None = error
    while cause is not None:
        if is_a(cause, MemoryError) or class_name(cause) == "OutOfMemoryError":
            return True
        if is_a(cause, OSError) and cause.errno == errno.ENOMEM:
            return True
        vague = issubclass(type(cause), several) or class_name(cause) == "SafetensorError"
        if vague and _NO_MEMORY.search(safe_str(cause)):
            return True
        hidden = stored_in(cause, "__suppress_context__")
        context = None if hidden else stored_in(cause, "__context__")
        cause = stored_in(cause, "__cause__") or context
    return False


_NO_MEMORY = re.compile(
    r"DefaultCPUAllocator: (can't allocate|not enough) memory|bad_alloc|Cannot allocate memory"
    r"|failed to map segment from shared object|backend out of memory|STATUS_ALLOC_FAILED"
)
"""The messages of torch's allocators, C++, the C library, the dynamic linker, MPS and cuBLAS."""


def object_in_pickle(error: Exception) -> str | None:
    """Return the module and name of the object that torch refused to load from a pickle."""
    found = re.search(r"GLOBAL (\w[\w.]*)", safe_str(error))
    return found[1] if found else None


def _refusal_of_pickle(error: Exception) -> str | None:
    """Explain why torch did not load a pickle, without its advice; None for any other error."""
    text = safe_str(error)
    if not re.search("weights.only|WeightsUnpickler|add_safe_globals", text, re.IGNORECASE):
        return None
    name = object_in_pickle(error)
    if name is not None:
        return f"it contains {name}, which is not a tensor; nothing in it was run"
    _, marked, reason = text.rpartition("WeightsUnpickler error:")
    sentence = re.split(r"\n|\. ", reason.strip())[0].rstrip(".") if marked else ""
    if not sentence or re.search("weights.only", sentence, re.IGNORECASE):
        return "it contains something other than tensors; nothing in it was run"
    return sentence


class OptionWarning(UserWarning):
    """An option has no effect in this run."""


def warn_unused(idle: Iterable[tuple[object, str, str]]) -> None:
    """Warn about options that have no effect in this run.

    Such an option configures something that does not happen here, or repeats what holds anyway. An
    option that is impossible, or that contradicts another, is an `OptionError` instead.

    Args:
        idle: for each option whether to warn, its name, and the reason.
    """
    import warnings

    for is_idle, option, why in idle:
        if is_idle:
            message = f"{spelled(option)} has no effect: {why}"
            warnings.warn(message, OptionWarning, stacklevel=3)
