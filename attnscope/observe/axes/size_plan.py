"""Other sizes for code: distinct primes, or sizes that fulfil requirements."""

from __future__ import annotations

import itertools
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cache
from math import isqrt, lcm

from attnscope.observe.axes.requirements import Requirement, next_of_form

LEAST = (7, 11, 17)
"""The least prime of each turn, for sizes that are not smaller than it."""

SMALLEST = (3, 5, 7)
"""The least prime of each turn, for small sizes and for the factor of a multiple."""

MUCH = 4
"""How many times larger the largest sizes are: a table may need twice as many rows as positions."""


@dataclass(frozen=True)
class SizePlan:
    """The dependencies between sizes, and the order in which the free ones get their primes.

    A size that was larger than another stays larger where possible: a sequence may not exceed a table
    of positions, and no requirement says so.

    Attributes:
        original: the original sizes, by name.
        requirements: what the sizes must fulfil.
        largest: names whose sizes become much larger than all others, in this order.
    """

    original: Mapping[str, int]
    requirements: tuple[Requirement, ...] = ()
    largest: tuple[str, ...] = ()

    def sizes(self, turn: int) -> dict[str, int] | None:
        """Return other sizes, different for each turn; None if requirements contradict each other."""
        late = {name: place for place, name in enumerate(self.largest, start=1)}
        waiting = sorted(self.original, key=lambda name: (late.get(name, 0), self.original[name]))
        by_name: dict[str, list[Requirement]] = {name: [] for name in self.original}
        for each in self.requirements:
            by_name[each.name].append(each)
        sizes: dict[str, int] = {}
        used: set[int] = set()
        earlier = [self.sizes(each) for each in range(turn)]
        while waiting:
            ready = (n for n in waiting if all(r.value.words <= sizes.keys() for r in by_name[n]))
            name = next(ready, None)
            if name is None:
                return None
            smaller = (
                size
                for other, size in sizes.items()
                if name in late or self.original[other] < self.original[name]
            )
            least = max(smaller, default=0) * (MUCH if name in late else 1) + 1
            others = [each[name] for each in earlier if each]
            size = self._size(name, by_name[name], sizes, others, least, used, turn)
            if size < 1:
                return None
            sizes[name] = size
            waiting.remove(name)
        return {name: sizes[name] for name in self.original}

    def _size(
        self,
        name: str,
        requirements: list[Requirement],
        sizes: Mapping[str, int],
        others: list[int],
        least: int,
        used: set[int],
        turn: int,
    ) -> int:
        """Return a size that fulfils its requirements; if it is free, one that is not below `least`.

        Args:
            name: the name of the size.
            requirements: its requirements.
            sizes: the sizes that are known.
            others: the sizes of this name in earlier turns.
            least: the least size.
            used: the primes of the known sizes.
            turn: the turn.
        """
        factor, exact = 1, None
        for each in requirements:
            value = int(each.value.size(sizes))
            if each.is_fixed:
                return value
            if each.form is not None:
                exact = next_of_form(each.form, max(least, (turn + 1) * value + 1))
            elif each.multiple:
                factor = lcm(factor, value)
            else:
                exact = value
        if exact is not None:
            return exact
        original = self.original[name]
        first = min(LEAST[turn], original + 3 * turn) if factor == 1 else SMALLEST[turn]
        skip = turn % 2 if factor == 1 else 0  # or gaps between sizes might be the same again
        same = {size // factor for size in (original, *others)}  # not once again
        prime = _prime(max(first, SMALLEST[0], -(-least // factor)), used | same, skip)
        used.add(prime)
        return factor * prime


def _prime(least: int, used: set[int], skip: int) -> int:
    """Return the least prime from a number on that is not used; after skipping some."""
    primes = (n for n in itertools.count(least) if n not in used and _is_prime(n))
    return next(itertools.islice(primes, skip, None))


@cache
def _is_prime(number: int) -> bool:
    return number > 1 and all(number % divisor for divisor in range(2, isqrt(number) + 1))
