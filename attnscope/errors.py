"""What a user can get wrong.

Core code raises these and never prints; `attnscope.cli` shows them on stderr as
one clear line and, where there is something to do about it, a line that says what.
"""

from __future__ import annotations

import errno
import re
from collections.abc import Iterable
from math import isqrt
from typing import Any, TypeGuard, TypeVar

from attnscope.text import shortened

T = TypeVar("T")


class AttnscopeError(Exception):
    """A mistake in what was asked for, told in words that a user understands.

    Args:
        message: what disagrees, with the values.
        hint: what to do about it: a command to try, or a short sentence.
    """

    def __init__(self, message: str, hint: str | None = None) -> None:
        super().__init__(message)
        self.message = message
        self.hint = hint


class SizeError(AttnscopeError, ValueError):
    """Sizes that no attention can have, or that do not fit together."""


class OptionError(AttnscopeError, ValueError):
    """An option's value that attnscope does not know: a dtype, a device, a format, a name."""


class FileError(AttnscopeError, OSError):
    """A file that cannot be read or written as asked."""


class ModelError(AttnscopeError):
    """A checkpoint that is not there, cannot be read, or has no such layer or head."""


class OutOfMemoryError(AttnscopeError, MemoryError):
    """Memory that was not to be had, whoever wanted it."""


class SourceError(AttnscopeError):
    """Code that cannot be traced, because its source is not to be had."""


class Interrupted(KeyboardInterrupt):
    """Ctrl-C in the middle of code that was traced.

    Attributes:
        trace: what was recorded until then.
    """

    def __init__(self, trace: Any) -> None:
        super().__init__("interrupted")
        self.trace = trace


def heads_do_not_divide(width: int, n_head: int, axis: str = "d_feat") -> SizeError:
    """The error for a width that cannot be split evenly into heads.

    Args:
        width: such as the model's width.
        n_head: the number of heads asked for, which does not divide it.
        axis: what the width is called.
    """
    return SizeError(
        f"{axis} is {width}, which does not divide into {n_head} heads:"
        f" {width} / {n_head} leaves {width % n_head}.",
        hint=_nearest("--heads", n_head, width),
    )


def groups_are_uneven(n_head: int, n_kv_head: int) -> SizeError:
    """The error for key heads that cannot be shared evenly by the query heads."""
    return SizeError(
        f"n_head is {n_head} and n_kv_head is {n_kv_head}: every key head is shared by equally many"
        " query"
        f" heads, but {n_head} / {n_kv_head} leaves {n_head % n_kv_head}.",
        hint=_nearest("--kv-heads", n_kv_head, n_head),
    )


def width_is_odd(axis: str, width: int, hint: str | None = None) -> SizeError:
    """The error for a width that does not fall into the pairs that rotary positions turn."""
    return SizeError(
        f"{axis} is {width}, but rotary positions turn pairs of numbers: it must be even.",
        hint=hint or "an even width, or no rotary positions",
    )


def _nearest(option: str, wanted: int, whole: int) -> str:
    """An option with the two divisors of `whole` that are nearest to the one wanted."""
    small = [n for n in range(1, min(isqrt(whole), 10**6) + 1) if whole % n == 0]
    dividing = sorted({*small, *(whole // n for n in small)})
    below = [n for n in dividing if n < wanted][-1:]
    above = [n for n in dividing if n > wanted][:1]
    return (
        " or ".join(f"{option} {n}" for n in below + above)
        + f", nearest to {wanted} of those that divide {whole}"
    )


def is_a(value: object, kind: type[T]) -> TypeGuard[T]:
    """Whether a value is of a class. `isinstance` would ask it for `__class__`: code of the user."""
    return issubclass(type(value), kind)


def class_name(value: object) -> str:
    """The name of a value's class; no code of its metaclass runs."""
    return str(type.__dict__["__name__"].__get__(type(value)))


def class_attribute(value: object, name: str) -> Any:
    """What a value's class, or a base of it, stores by a name; no code of a metaclass runs.

    Returns:
        As it is stored, a descriptor too; None if there is none.
    """
    for each in type.__dict__["__mro__"].__get__(type(value)):
        stored = type.__dict__["__dict__"].__get__(each)
        if name in stored:
            return stored[name]
    return None


def stored_in(error: BaseException, name: str, kind: type[BaseException] = BaseException) -> Any:
    """An attribute of an exception as Python stores it; no code of its class runs.

    Args:
        error: the exception.
        name: the attribute, such as `__traceback__`.
        kind: the built-in exception that has such an attribute.
    """
    return kind.__dict__[name].__get__(error)


def said(value: object) -> str:
    """What an exception, or any value, says; that it cannot, if its own code fails when it is asked."""
    try:
        return str(value)
    except BaseException:  # whatever it is: it is raised by what is told already
        return f"<its __str__ fails: {class_name(value)}>"


LONGEST_LINE = 400
"""Characters that are repeated of what another library says."""


def first_line(error: Exception) -> str:
    """What another library's error says, on one line; its kind, if it says nothing.

    Where the first line only announces what follows, that is added; a long one is shortened. Of a
    pickle that torch refuses to load, it is said what it holds: torch itself goes on to say how to load
    it all the same.
    """
    refusal = _refusal_of_pickle(error)
    if refusal is not None:
        return refusal
    if issubclass(type(error), LookupError | AttributeError):  # says little but of what
        return f"{class_name(error)}: {said(error).strip()}".split("\n")[0]
    lines = [line.strip() for line in (said(error).strip() or class_name(error)).split("\n")]
    return shortened(" ".join(lines[:2]) if lines[0].endswith(":") else lines[0], LONGEST_LINE)


def is_out_of_memory(error: BaseException) -> bool:
    """Whether an exception says that memory was not to be had.

    Those count too that another library raised while it handled one. Of errors that may mean anything
    (`RuntimeError`, `OSError`, …) only these words do.
    """
    several: type | tuple[type, ...] = (RuntimeError, OSError, ImportError)
    seen: BaseException | None = error
    while seen is not None:
        if isinstance(seen, MemoryError) or type(seen).__name__ == "OutOfMemoryError":
            return True
        if isinstance(seen, OSError) and seen.errno == errno.ENOMEM:
            return True
        vague = isinstance(seen, several) or type(seen).__name__ == "SafetensorError"
        if vague and _NO_MEMORY.search(str(seen)):
            return True
        seen = seen.__cause__ or (None if seen.__suppress_context__ else seen.__context__)
    return False


_NO_MEMORY = re.compile(
    r"DefaultCPUAllocator: (can't allocate|not enough) memory|bad_alloc|Cannot allocate memory"
    r"|failed to map segment from shared object|backend out of memory|STATUS_ALLOC_FAILED"
)
"""What torch's allocators, C++, the C library, the dynamic linker, MPS and cuBLAS say."""


def object_in_pickle(error: Exception) -> str | None:
    """The class or function that torch refused to load from a pickle, by its module and name."""
    found = re.search(r"GLOBAL (\w[\w.]*)", said(error))
    return found[1] if found else None


def _refusal_of_pickle(error: Exception) -> str | None:
    """Why torch did not load a pickle, without its advice; None for any other error."""
    text = said(error)
    if not re.search("weights.only|WeightsUnpickler|add_safe_globals", text, re.IGNORECASE):
        return None
    name = object_in_pickle(error)
    if name is not None:
        return f"it holds {name}, which is no tensor; nothing in it was run"
    _, marked, reason = text.rpartition("WeightsUnpickler error:")
    sentence = re.split(r"\n|\. ", reason.strip())[0].rstrip(".") if marked else ""
    if not sentence or re.search("weights.only", sentence, re.IGNORECASE):
        return "it holds something other than tensors; nothing in it was run"
    return sentence


class OptionWarning(UserWarning):
    """An option has no effect in this run."""


def warn_idle(idle: Iterable[tuple[object, str, str]]) -> None:
    """Warn of options that have no effect in this run.

    They say how something is done that is not done here, or what is so anyway. An option that asks for
    something that cannot be done, or that contradicts another, is an `OptionError` instead.

    Args:
        idle: for each whether that is so, the option, and why.
    """
    import warnings

    for given, option, why in idle:
        if given:
            warnings.warn(f"{option} has no effect: {why}", OptionWarning, stacklevel=3)
