"""What a user can get wrong.

Core code raises these and never prints; `attnscope.cli` shows them on stderr as
one clear line and, where there is something to do about it, a line that says what.
"""

from __future__ import annotations

from math import isqrt


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


class SourceError(AttnscopeError):
    """Code that cannot be traced, because its source is not to be had."""


def heads_do_not_divide(d_feat: int, n_head: int) -> SizeError:
    """The error for a width that cannot be split evenly into heads.

    Args:
        d_feat: the model's width.
        n_head: the number of heads asked for, which does not divide it.
    """
    small = [n for n in range(1, min(isqrt(d_feat), 10**6) + 1) if d_feat % n == 0]
    dividing = sorted({*small, *(d_feat // n for n in small)})
    below = [n for n in dividing if n < n_head][-1:]
    above = [n for n in dividing if n > n_head][:1]
    return SizeError(
        f"d_feat is {d_feat}, which does not divide into {n_head} heads:"
        f" {d_feat} / {n_head} leaves {d_feat % n_head}.",
        hint=" or ".join(f"--heads {n}" for n in below + above)
        + f", nearest to {n_head} of those that divide {d_feat}",
    )


def first_line(error: Exception) -> str:
    """What another library's error says, on one line; its kind, if it says nothing."""
    return (str(error).strip() or type(error).__name__).split("\n")[0]
