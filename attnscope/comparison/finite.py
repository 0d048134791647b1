"""Finds what is not finite in two runs: NaN and infinity on both sides show nothing."""

from __future__ import annotations

import torch

from attnscope.errors import SourceError
from attnscope.implementations.implementation import Recorded, Side
from attnscope.observe.operators.chain import first_not_finite
from attnscope.observe.operators.tape import Value
from attnscope.process.files import place_text, shown_path


def require_finite(a: tuple[Side, Recorded], b: tuple[Side, Recorded]) -> None:
    """Raise if neither output has a finite number: then nothing can be compared.

    Raises:
        SourceError: that is so; the message says where both begin.
    """
    outputs = [run.output.tensor for _, run in (a, b)]
    if all(each.numel() and not bool(each.isfinite().any()) for each in outputs):
        raise SourceError(
            f"the outputs of {a[0].title} and {b[0].title} are not comparable, because neither has a"
            f" finite number: {origin(a[1])} in a, {origin(b[1])} in b."
        )


def undecided_because(
    exact: tuple[Recorded, Recorded], narrow: tuple[Recorded, Recorded], end: torch.Tensor, dtype: str
) -> str | None:
    """Explain why it is undecided whether two sides are equal; None if it is decided.

    Args:
        exact: both runs in float64.
        narrow: both runs in the run's dtype.
        end: the last tensor of a that was compared; b's is equal where it is not NaN.
        dtype: the run's dtype.
    """
    n_nan = int(end.isnan().sum())
    if n_nan:
        share = n_nan / end.numel()
        return (
            f"{share:.0%} of the compared numbers are NaN on both sides, which shows nothing; the others"
            f" are equal: {origin(exact[0])} in a"
        )
    for letter, wide, run in zip("ab", exact, narrow, strict=True):
        before, after = wide.output.tensor, run.output.tensor
        if bool((before.isfinite() & ~after.isfinite()).any()):
            return (
                f"equal in float64, but in {dtype} not all of {letter}'s output is finite: {origin(run)}"
            )
    return None


def origin(run: Recorded) -> str:
    """Return in words where the first number that is not finite arises, of those in the output."""
    first, _, is_nan = first_not_finite(run.output)
    return f"{'NaN' if is_nan else 'infinity'} begins {_words(first)}"


def _words(value: Value) -> str:
    """Return a tensor as an argument, a weight, or an expression with its line."""
    name = value.input or value.weight
    if name is not None or value.place is None:
        return f"with {name or 'a constant'}"
    return f"with {value.place.text} ({place_text(shown_path(value.place.file), value.place.line)})"
