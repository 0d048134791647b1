"""Finds other sizes that the same code runs with, and what it asks of them.

Each named size gets a prime number, so that no two are equal or divide each other. Where the
code refuses them, it says by where it fails what it needs: a width that divides into heads, two
lengths that are equal. A requirement is added when the code gets further with it, until it gets
as far as it got with the sizes that were given.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from itertools import combinations, combinations_with_replacement
from math import prod

PRIMES = (7, 11, 13, 17, 19, 23, 29, 31, 37, 41, 43, 47, 53, 59, 61, 67, 71, 73, 79, 83, 89, 97)
PATIENCE = 150
"""How often code is run before its requirements are given up on."""


@dataclass(frozen=True)
class Product:
    """A size is the product of others and of a number; or a multiple of that."""

    name: str
    of: tuple[str, ...]
    multiple: bool = False
    number: int = 1

    def __str__(self) -> str:
        product = "·".join([*([str(self.number)] if self.number > 1 else []), *self.of])
        if self.multiple:
            return f"{self.name} is a multiple of {product}"
        return f"{self.name} = {product}"


@dataclass(frozen=True)
class Sum:
    """A size is the sum of others."""

    name: str
    of: tuple[str, ...]

    def __str__(self) -> str:
        return f"{self.name} = {'+'.join(self.of)}"


@dataclass(frozen=True)
class Multiple:
    """A size is a multiple of a number."""

    name: str
    number: int

    def __str__(self) -> str:
        return f"{self.name} is a multiple of {self.number}"


@dataclass(frozen=True)
class Fixed:
    """A size is what it was said to be."""

    name: str
    size: int

    def __str__(self) -> str:
        return f"{self.name} = {self.size}"


Requirement = Product | Sum | Multiple | Fixed


@dataclass(frozen=True)
class Plan:
    """Which sizes depend on which, and in which order the free ones get their primes."""

    given: Mapping[str, int]
    requirements: tuple[Requirement, ...] = ()
    later: tuple[str, ...] = ()  # of several that were equally large, these are the larger ones

    def sizes(self, turn: int) -> dict[str, int] | None:
        """Other sizes, others on every turn; None if the requirements contradict each other."""
        late = {name: place for place, name in enumerate(self.later, start=1)}
        order = sorted(self.given, key=lambda name: (self.given[name], late.get(name, 0)))
        start, step = turn * 3, 1 + turn % 2
        primes = dict(zip(order, PRIMES[start::step] + tuple(range(101, 400, 2)), strict=False))
        by_name: dict[str, list[Requirement]] = {}
        for each in self.requirements:
            by_name.setdefault(each.name, []).append(each)
        sizes: dict[str, int] = {}
        waiting = list(self.given)
        for _ in range(len(waiting) + 1):
            for name in list(waiting):
                size = self._size(name, by_name.get(name, []), sizes, primes[name])
                if size is not None:
                    sizes[name] = size
                    waiting.remove(name)
        return None if waiting else sizes

    @staticmethod
    def _size(
        name: str, requirements: list[Requirement], sizes: dict[str, int], prime: int
    ) -> int | None:
        factor, whole = 1, None
        for each in requirements:
            if isinstance(each, Fixed):
                return each.size
            if isinstance(each, Multiple):
                factor *= each.number
            elif not all(other in sizes for other in each.of):
                return None
            elif isinstance(each, Sum):
                whole = sum(sizes[other] for other in each.of)
            elif each.multiple:
                factor *= prod(sizes[other] for other in each.of)
            else:
                whole = each.number * prod(sizes[other] for other in each.of)
        return whole if whole is not None else factor * prime


@dataclass
class Attempt:
    """How far code got with some sizes.

    Attributes:
        reached: how many of the steps were made that were made with the given sizes, and then the
            line where it failed; the larger, the further.
        whole: whether it got as far as with the given sizes.
        run: whatever the caller keeps of it.
    """

    reached: tuple[int, ...]
    whole: bool
    run: object = None


@dataclass
class Search:
    """Finds the requirements of code.

    Args:
        attempt: runs the code with other sizes.
        given: the sizes that were given, by name.
        known: what is required, as the user says.
        kept: names whose sizes may only be what was given: what else the code needs is of less interest.
    """

    attempt: Callable[[dict[str, int]], Attempt]
    given: Mapping[str, int]
    known: tuple[Requirement, ...] = ()
    kept: frozenset[str] = frozenset()
    tried: int = 0
    refusals: list[tuple[Requirement, object]] = field(default_factory=list)

    def plan(self) -> Plan | None:
        """A plan with which the code gets as far as it got with the given sizes; None if there is none.

        `refusals` then holds what had to be required, each with the run that failed without it.
        """
        known = (*self.known, *(Fixed(name, self.given[name]) for name in self.kept))
        plan = Plan(self.given, known)
        best = self._try(plan)
        while best is not None and not best.whole:
            step = self._step(plan, best)
            if step is None:
                return None
            plan, requirement, further = step
            if requirement is not None:
                self.refusals.append((requirement, best.run))
            best = further
        return plan if best is not None else None

    def _try(self, plan: Plan) -> Attempt | None:
        sizes = plan.sizes(0)
        if sizes is None or self.tried >= PATIENCE:
            return None
        self.tried += 1
        return self.attempt(sizes)

    def _step(self, plan: Plan, best: Attempt) -> tuple[Plan, Requirement | None, Attempt] | None:
        """The first change of the plan with which the code gets further."""
        for changed, requirement in self._changes(plan):
            further = self._try(changed)
            if further is not None and (further.whole or further.reached > best.reached):
                return changed, requirement, further
        return None

    def _changes(self, plan: Plan) -> Iterator[tuple[Plan, Requirement | None]]:
        singles = list(self._candidates(plan))
        for each in singles:
            yield replace(plan, requirements=(*plan.requirements, each)), each
        equal = [pair for pair in combinations(self.given, 2) if len({self.given[n] for n in pair}) == 1]
        for name in dict.fromkeys(name for pair in equal for name in pair):
            yield replace(plan, later=(*plan.later, name)), None
        weak = list(self._weak_candidates(plan))
        for each in weak:
            yield replace(plan, requirements=(*plan.requirements, each)), each
        bound = {each.name for each in plan.requirements}
        loose = [name for name in self.given if name not in bound]
        for fixed in loose:  # all sizes as they were given, but for a factor
            multiples = [Multiple(n, self.given[n]) for n in loose if n != fixed and self.given[n] > 1]
            kept = Fixed(fixed, self.given[fixed])
            yield replace(plan, requirements=(*plan.requirements, kept, *multiples)), kept
        strong = [each for each in singles if isinstance(each, Product)]
        for one, other in combinations(strong, 2):
            if one.name != other.name:
                yield replace(plan, requirements=(*plan.requirements, one, other)), one

    def _candidates(self, plan: Plan) -> Iterator[Requirement]:
        """What is true of the given sizes, and would be no accident."""
        bound = {each.name for each in plan.requirements if not isinstance(each, Multiple)}
        free = [name for name in self.given if name not in bound]
        for name in free:
            others = [other for other in self.given if other != name]
            for other in others:
                if self.given[name] == self.given[other]:
                    yield Product(name, (other,))
            for pair in combinations_with_replacement(others, 2):
                sizes = [self.given[each] for each in pair]
                if prod(sizes) == self.given[name] and 1 not in sizes:
                    yield Product(name, pair)
        for name in free:
            for other in self.given:
                smaller = other != name and 1 < self.given[other] < self.given[name]
                if smaller and self.given[name] % self.given[other] == 0:
                    yield Product(name, (other,), multiple=True)
        for name in free:
            for pair in combinations([other for other in self.given if other != name], 2):
                if sum(self.given[n] for n in pair) == self.given[name]:
                    yield Sum(name, pair)

    def _weak_candidates(self, plan: Plan) -> Iterator[Requirement]:
        """What makes a size more like the one that was given."""
        bound = {each.name for each in plan.requirements if isinstance(each, Fixed | Sum)}
        exact = {
            each.name for each in plan.requirements if isinstance(each, Product) and not each.multiple
        }
        for number in (2, 4, 8, 0):
            for name in [name for name in self.given if name not in bound | exact]:
                size = self.given[name]
                if (number and size % number == 0) or (not number and size > 1):
                    yield Multiple(name, number or size)
        for name in self.given:
            if name not in bound:
                yield Fixed(name, self.given[name])


def required_by(
    equations: Iterable[tuple[str, tuple[str | int, ...], tuple[str | int, ...]]],
    given: Mapping[str, int],
) -> Iterator[Requirement]:
    """What a user says of sizes, as requirements.

    Args:
        equations: a name, the factors above and those below the line of what it is equal to.
        given: the sizes; those of equations that are neither a product nor a quotient stay as they are.
    """
    for name, above, below in equations:
        names_above, names_below = ([n for n in side if isinstance(n, str)] for side in (above, below))
        number_above, number_below = (
            prod(n for n in side if isinstance(n, int)) for side in (above, below)
        )
        if len(names_above) == 1 and number_above == 1:  # d_head = d_feat / n_head
            yield Product(names_above[0], (name, *names_below), number=number_below)
        elif not names_below and number_below == 1:
            yield Product(name, tuple(names_above), number=number_above)
        else:
            yield from (Fixed(each, given[each]) for each in (name, *names_above, *names_below))
