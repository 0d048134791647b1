"""The budget of a search for other sizes: memory, time, and the number of runs."""

from __future__ import annotations

import time
from collections.abc import Iterable, Iterator, Mapping
from functools import cache
from itertools import combinations_with_replacement, permutations
from math import inf, prod

from attnscope.base.spelling import spelled
from attnscope.base.units import bytes_text

LEAST_BYTES, TIMES_THE_BYTES = 2**30, 4
"""A run with other sizes may take this many bytes, or this many times those of the first run."""

SECONDS = 5.0
"""The runs with other sizes may take this many seconds of the process's CPU time."""

WAITING = 10
"""They may last this many times longer where they wait, or share their processor with other work."""

BETWEEN_LOOKS = 0.01
"""Seconds. A run asks no more often for its CPU time, which takes as long as a small operator."""

MOST_RUNS = 400
"""The maximal number of runs with other sizes."""

CONSTANT = 8
"""An axis of this size or less that no name explains is a constant, such as a kernel's width."""

Shape = tuple[int, ...]


class OverBudget(BaseException):
    """The end of a run that exceeds the budget; no `except Exception` of the code catches it."""


class RunBudget:
    """The limits of the runs with other sizes, and what has been spent."""

    def __init__(self, n_bytes: int, seconds: float, n_runs: int = MOST_RUNS) -> None:
        self.n_bytes = n_bytes  #: the bytes that one run may take
        self.seconds = seconds  #: the seconds that all runs may compute
        self.n_runs = n_runs  #: the maximal number of runs
        self.begun = time.process_time(), time.monotonic()
        self.looked, self.late = -inf, False
        self.spent_runs = 0
        self.is_running = False
        self.ended: str | None = None  #: why the search ended early; None if it did not
        self.too_large = False  #: whether a run was too large

    def start(self) -> bool:
        """Count another run, if the budget allows it, and say whether it does."""
        if self.ended is None and self._is_late():
            self.ended = f"after {self.seconds:.0f} seconds"
        elif self.ended is None and self.spent_runs >= self.n_runs:
            self.ended = f"after {self.n_runs} runs"
        self.spent_runs += self.ended is None
        return self.ended is None

    def allows(self, n_bytes: int) -> bool:
        """Check whether a run may take this many bytes."""
        self.too_large |= n_bytes > self.n_bytes
        return n_bytes <= self.n_bytes

    def check(self, n_bytes: int, most: int) -> None:
        """Raise OverBudget if the run under way, which has allocated these bytes, has to end."""
        if n_bytes > most or self.ended is not None or self._is_late():
            self.allows(n_bytes)
            raise OverBudget

    def interrupt(self) -> None:
        """End the search, and the run that is under way."""
        self.ended = "by Ctrl-C"
        if self.is_running:
            raise KeyboardInterrupt

    def _is_late(self) -> bool:
        now = time.monotonic()
        if not self.late and now - self.looked >= BETWEEN_LOOKS:
            self.looked = now
            computing, waiting = self.begun
            self.late = time.process_time() - computing > self.seconds
            self.late |= now - waiting > WAITING * self.seconds
        return self.late

    def notice(self, *, is_complete: bool) -> str | None:
        """Describe in a sentence what the limits have prevented; None if nothing."""
        if self.ended is not None:
            return (
                f"the search for axis names stopped {self.ended}: some axes may have no name, and no"
                f" conditions are shown. Smaller sizes, or a {spelled('where')} condition that the"
                " code requires, make the search shorter"
            )
        if self.too_large and not is_complete:
            return (
                "some axes may have no name: runs with other sizes would need more memory than their"
                f" limit of {bytes_text(self.n_bytes)}. {spelled('memory')} raises it"
            )
        return None


def budget_after(n_bytes: int, memory: int | None) -> RunBudget:
    """Return the budget of a search, after a first run that took that many bytes."""
    allowed = max(LEAST_BYTES, TIMES_THE_BYTES * n_bytes) if memory is None else memory
    return RunBudget(allowed, SECONDS)


class MemoryEstimate:
    """An estimate of the memory of runs with other sizes, scaled from that of the first run.

    >>> estimate = MemoryEstimate([((4, 48), 768), ((192, 48), 36864)], {"n": 4, "d": 48})
    >>> estimate.n_bytes, estimate.with_sizes({"n": 8, "d": 48}), estimate.with_sizes({"n": 4, "d": 96})
    (37632, 75264, 148992)
    """

    def __init__(self, tensors: Iterable[tuple[Shape, int]], original: Mapping[str, int]) -> None:
        #: the shapes of the weights, inputs and results of the first run, each with its bytes
        self.tensors = list(tensors)
        self.original = original  #: the sizes of the first run, by name
        self.n_bytes = sum(n_bytes for _, n_bytes in self.tensors)
        self._origins = {
            size: list(_origins(size, original)) for shape, _ in self.tensors for size in shape
        }
        named = {
            name
            for origins in self._origins.values()
            for pair in origins
            for names in pair
            for name in names
        }
        self._counts = [name for name in original if name not in named]

    def with_sizes(self, sizes: Mapping[str, int]) -> int:
        """Estimate how many bytes a run with other sizes takes; rather more than less.

        A size that explains no axis, such as a number of layers, may be a number of tensors.
        """
        ratio = {name: sizes[name] / size for name, size in self.original.items() if size}

        @cache
        def growth(size: int) -> float:
            products = (
                prod(ratio.get(name, 1.0) for name in above)
                / prod(ratio.get(name, 1.0) for name in below)
                for above, below in self._origins[size]
            )
            return max([1.0, *products])

        total = sum(n_bytes * prod(map(growth, shape)) for shape, n_bytes in self.tensors)
        return int(total * prod(max(1.0, ratio.get(name, 1.0)) for name in self._counts))


def _origins(
    size: int, original: Mapping[str, int]
) -> Iterator[tuple[tuple[str, ...], tuple[str, ...]]]:
    """Yield products of names over others that an axis of this size may be, of the simplest kind."""
    names = [name for name, each in original.items() if each == size]
    if names:
        yield from (((name,), ()) for name in names)
        return
    larger = {name: each for name, each in original.items() if each > 1}
    pairs = [
        ((one, other), ())
        for one, other in combinations_with_replacement(larger, 2)
        if larger[one] * larger[other] == size
    ]
    quotients = [
        ((one,), (other,))
        for one, other in permutations(larger, 2)
        if larger[one] == size * larger[other]
    ]
    multiples = [((name,), ()) for name, each in larger.items() if size % each == 0]
    unknown = [((name,), ()) for name in larger] if size > CONSTANT else []
    yield from [*pairs, *quotients] or multiples or unknown
