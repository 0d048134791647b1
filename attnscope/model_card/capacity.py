"""What fits into a memory: the longest context, and the most sequences."""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Callable

MAX_CONTEXT = 2**50
"""No context is longer: what still fits there does not grow."""


def longest_context(needed: Callable[[int], int], memory: int, batch: int) -> int | None:
    """Return the most tokens of each sequence that fit; None if what is kept does not grow.

    Args:
        needed: returns the bytes that one sequence of so many tokens needs; it never falls.
        memory: the bytes that are free.
        batch: the number of sequences.
    """
    lengths = range(1, MAX_CONTEXT + 1)
    longest = bisect_right(lengths, memory, key=lambda length: needed(length) * batch)
    return None if longest == MAX_CONTEXT else longest


def largest_batch(needed: Callable[[int], int], memory: int, context: int) -> int:
    """Return the most sequences of so many tokens that fit; arguments as for `longest_context`."""
    each = needed(context)
    return max(memory, 0) // each if each else MAX_CONTEXT
