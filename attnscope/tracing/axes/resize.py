"""Finds other sizes that the same code runs with, and what it asks of them.

Each named size gets a prime number, so that no two are equal or divide each other. Where the
code refuses them, it says by where it fails what it needs: a width that divides into heads, two
lengths that are equal. A requirement is added when the code gets further with it, until it gets
as far as it got with the sizes that were given. Then each requirement is left out again, to see
whether the code needs it: those that it needs are what is found out about it.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from functools import cache
from itertools import combinations, islice, product
from math import isqrt, lcm, prod

from attnscope.tracing.axes.expressions import Expression, of_number, of_word, product_of, sum_of

PRIMES = (7, 11, 13, 17, 19, 23, 29, 31, 37, 41, 43, 47, 53, 59, 61, 67, 71, 73, 79, 83, 89, 97)
SMALLEST = (3, 5)
"""These go to multiples of other sizes, which become large soon enough."""

PATIENCE = 150
"""How often code is run before its requirements are given up on."""

MOST_NAMES = 64
"""Of more sizes it is not searched what the code asks of them: there are too many pairs and triples."""


@dataclass(frozen=True)
class Requirement:
    """A size is what an expression of other sizes is, or a multiple of it."""

    name: str
    value: Expression
    multiple: bool = False

    def __str__(self) -> str:
        return f"{self.name} {'is a multiple of' if self.multiple else '='} {self.value}"

    @property
    def of(self) -> tuple[str, ...]:
        """The names of the other sizes; one that is squared twice."""
        return self.value.factors or tuple(self.value.words)

    @property
    def is_number(self) -> bool:
        """Whether it is about a number alone."""
        return not self.value.words

    @property
    def is_fixed(self) -> bool:
        """Whether the size must be what it was said to be."""
        return self.is_number and not self.multiple

    @property
    def is_product(self) -> bool:
        """Whether the size is the product of others and of a number, or a multiple of that."""
        return bool(self.value.factors)


def product_is(name: str, of: Iterable[str], number: int = 1) -> Requirement:
    """A size is the product of others and of a number."""
    return Requirement(name, product_of(of, number))


def sum_is(name: str, of: Iterable[str]) -> Requirement:
    """A size is the sum of others."""
    return Requirement(name, sum_of(of))


def multiple_of(name: str, of: str | int) -> Requirement:
    """A size is a multiple of another, or of a number."""
    value = of_number(of) if isinstance(of, int) else of_word(of)
    return Requirement(name, value, multiple=True)


def fixed(name: str, size: int) -> Requirement:
    """A size is what it was said to be."""
    return Requirement(name, of_number(size))


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
        primes = dict(zip(order, [*PRIMES[start::step], *_larger_primes(len(order))], strict=False))
        parts = {each.name for each in self.requirements if each.multiple and not each.is_number}
        primes |= dict(
            zip((n for n in order if n in parts), SMALLEST[:: 1 - turn % 2 * 2], strict=False)
        )
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
        number, parts, whole = 1, 1, None
        for each in requirements:
            if not each.value.words <= sizes.keys():
                return None
            value = int(each.value.size(sizes))
            if each.is_fixed:
                return value
            if not each.multiple:
                whole = value
            elif each.is_number:
                number = lcm(number, value)
            else:
                parts = lcm(parts, value)
        return whole if whole is not None else number * parts * prime


@cache
def _larger_primes(count: int) -> list[int]:
    """The first primes above those of `PRIMES`."""
    candidates = itertools.count(PRIMES[-1] + 2, 2)
    is_prime = (n for n in candidates if all(n % divisor for divisor in range(3, isqrt(n) + 1, 2)))
    return list(islice(is_prime, count))


@dataclass
class Attempt:
    """How far code got with some sizes.

    Attributes:
        reached: how many of the steps were made that were made with the given sizes, and then the
            line where it failed; the larger, the further.
        whole: whether it got as far as with the given sizes.
        unnamed: how many sizes in it are neither names nor products of names, and change.
        run: whatever the caller keeps of it.
    """

    reached: tuple[int, ...]
    whole: bool
    unnamed: int = 0
    run: object = None


@dataclass
class Search:
    """Finds the requirements of code.

    Args:
        attempt: runs the code with other sizes.
        given: the sizes that were given, by name.
        known: what is required, as the user says.
        axes: names of the inputs' axes; what others divide is likely to be split into them.
        kept: names whose sizes may only be what was given: what else the code needs is of less interest.
    """

    attempt: Callable[[dict[str, int]], Attempt]
    given: Mapping[str, int]
    known: tuple[Requirement, ...] = ()
    axes: frozenset[str] = frozenset()
    kept: frozenset[str] = frozenset()
    refusals: list[tuple[Requirement, object]] = field(default_factory=list)
    _tried: dict[tuple[int, ...], Attempt] = field(default_factory=dict, repr=False)

    def plan(self) -> Plan | None:
        """A plan with which the code gets as far as it got with the given sizes; None if there is none.

        `refusals` then holds what had to be required, each with the run that failed without it.
        """
        known = (*self.known, *(fixed(name, self.given[name]) for name in self.kept))
        if self.has_too_many:
            plain = Plan(self.given, known)
            attempt = self._try(plain)
            return plain if attempt is not None and attempt.whole else None
        starts = list(self._starts(Plan(self.given, known)))
        for start in (self._furthest(starts), starts[-1]):
            plan = self._climbed(start)
            if plan is not None:
                return self._named(self._relaxed(plan, kept=len(known)))
        return None

    @property
    def has_too_many(self) -> bool:
        """Whether there are too many sizes to find out what the code asks of them."""
        return len(self.given) > MOST_NAMES

    def _furthest(self, plans: list[Plan]) -> Plan:
        """The first with which the code gets all the way; else one with which it gets furthest.

        Not the very first then: the second requires what that does, and more.
        """
        first, *others = plans
        if (attempt := self._try(first)) and attempt.whole:
            return first
        best, furthest = plans[-1], None
        for plan in others:
            attempt = self._try(plan)
            if attempt and attempt.whole:
                return plan
            if attempt and (furthest is None or attempt.reached > furthest):
                best, furthest = plan, attempt.reached
        return best

    def _starts(self, plain: Plan) -> Iterator[Plan]:
        """Plans to begin with: with more and more of what attention is likely to need, and with nothing.

        Each is one try, and may require too much.
        """
        likely = list(self._candidates(plain))
        splits = tuple(each for each in likely if self._is_split(each))
        evens = tuple(self._evens(plain))
        wholes = tuple({each.name: each for each in likely if self._is_whole(each)}.values())
        for added in dict.fromkeys([splits, (*splits, *evens), (*splits, *wholes, *evens), ()]):
            yield replace(plain, requirements=(*plain.requirements, *added))

    def _evens(self, plan: Plan) -> Iterator[Requirement]:
        """What is even stays even: positions turn pairs of dimensions, half a width is cut off."""
        exact = {each.name for each in plan.requirements if _decides(each)}
        for name, size in self.given.items():
            if size % 2 == 0 and name not in exact:
                yield multiple_of(name, 2)

    def _climbed(self, plan: Plan) -> Plan | None:
        """A plan with more and more requirements, until the code gets as far as it should."""
        best = self._try(plan)
        while best is not None and not best.whole:
            step = self._step(plan, best)
            if step is None:
                return None
            plan, best = step
        return plan if best is not None else None

    def _relaxed(self, plan: Plan, kept: int) -> Plan:
        """A plan without those requirements that the code does as well without.

        Args:
            plan: with more than it needs, perhaps.
            kept: how many of its requirements, from the first, are not in question.
        """
        self.refusals = []
        evens = [each for each in plan.requirements[kept:] if each in set(self._evens(plan))]
        if len(evens) > 1:
            plan = self._without(plan, *evens)
        for each in sorted(plan.requirements[kept:], key=_decides, reverse=True):  # the strictest first
            plan = self._without(plan, each)
        for each in plan.requirements[kept:]:
            plan = self._loosened(plan, each)
        return plan

    def _loosened(self, plan: Plan, requirement: Requirement) -> Plan:
        """A plan with a multiple in place of a product, if the code does as well: 4 is 2·2 by chance."""
        if not requirement.is_product or requirement.multiple or len(requirement.of) < 2:
            return plan
        name, rest = requirement.name, [each for each in plan.requirements if each != requirement]
        others = sorted(requirement.of, key=lambda other: other in self.axes)
        looser = [multiple_of(name, other) for other in others]
        looser += [multiple_of(name, number) for number in (2, 4, 8) if self.given[name] % number == 0]
        now = self._try(plan)
        for each in looser:
            other_plan = replace(plan, requirements=(*rest, each))
            then = self._try(other_plan)
            if now is not None and then is not None and then.whole and then.unnamed <= now.unnamed:
                refused = [(each if r == requirement else r, run) for r, run in self.refusals]
                self.refusals = list({str(r): (r, run) for r, run in refused}.values())
                return other_plan
        return plan

    def _named(self, plan: Plan) -> Plan:
        """A plan that keeps even what is even, if more sizes have names then: what is halved, say."""
        now = self._try(plan)
        for even in self._evens(plan) if now is not None and now.unnamed else ():
            then = self._try(replace(plan, requirements=(*plan.requirements, even)))
            if then is not None and then.whole and then.unnamed < now.unnamed:  # type: ignore[union-attr]
                plan, now = replace(plan, requirements=(*plan.requirements, even)), then
        return plan

    def _without(self, plan: Plan, *left_out: Requirement) -> Plan:
        """A plan without some requirements, if the code does as well; one that it needs is noted."""
        rest = tuple(each for each in plan.requirements if each not in left_out)
        now, then = self._try(plan), self._try(replace(plan, requirements=rest))
        if now is None or then is None:
            return plan
        if then.whole and then.unnamed <= now.unnamed:
            return replace(plan, requirements=rest)
        if len(left_out) == 1:
            self.refusals.append((left_out[0], then.run))
        return plan

    def _is_split(self, requirement: Requirement) -> bool:
        """Whether it says that a size is split into as many parts as an argument says."""
        is_multiple = requirement.is_product and requirement.multiple
        return is_multiple and not set(requirement.of) & self.axes

    def _is_whole(self, requirement: Requirement) -> bool:
        """Whether it says that an axis is all parts together: an argument, times another size."""
        if not requirement.is_product or requirement.multiple:
            return False
        arguments = set(requirement.of) - self.axes
        plain = len(set(requirement.of)) == 2 and not requirement.value.has_number
        return plain and requirement.name in self.axes and bool(arguments)

    def _try(self, plan: Plan) -> Attempt | None:
        sizes = plan.sizes(0)
        if sizes is None:
            return None
        key = tuple(sizes[name] for name in self.given)
        if key not in self._tried:
            if len(self._tried) >= PATIENCE:
                return None
            self._tried[key] = self.attempt(sizes)
        return self._tried[key]

    def _step(self, plan: Plan, best: Attempt) -> tuple[Plan, Attempt] | None:
        """The first change of the plan with which the code gets further."""
        for changed in self._changes(plan):
            if len(self._tried) >= PATIENCE:
                return None
            further = self._try(changed)
            if further is not None and (further.whole or further.reached > best.reached):
                return changed, further
        return None

    def _changes(self, plan: Plan) -> Iterator[Plan]:
        """Other plans, with one requirement more, or less, or with two more; the likely ones first."""

        def adding(*added: Requirement) -> Plan:
            return replace(plan, requirements=(*plan.requirements, *added))

        singles, weak = list(self._candidates(plan)), list(self._weak_candidates(plan))
        yield from map(adding, singles)
        equal = [pair for pair in combinations(self.given, 2) if len({self.given[n] for n in pair}) == 1]
        for name in dict.fromkeys(name for pair in equal for name in pair):
            yield replace(plan, later=(*plan.later, name))
        yield from map(adding, weak)
        for each in plan.requirements[len(self.known) + len(self.kept) :]:
            rest = tuple(other for other in plan.requirements if other != each)
            yield replace(plan, requirements=rest)
        splits = [each for each in singles if self._is_split(each)]
        multiples = [each for each in weak if each.multiple and each.is_number]
        for one, other in [*combinations(splits, 2), *product(splits, multiples)]:
            if one.name != other.name:
                yield adding(one, other)
        bound = {each.name for each in plan.requirements}
        loose = [name for name in self.given if name not in bound]
        for name in loose:  # all sizes as they were given, but for a factor
            kept = fixed(name, self.given[name])
            others = [multiple_of(n, self.given[n]) for n in loose if n != name and self.given[n] > 1]
            yield adding(kept, *others)

    def _candidates(self, plan: Plan) -> Iterator[Requirement]:
        """What is true of the given sizes, and would be no accident; the likely first."""
        exact = {each.name for each in plan.requirements if _decides(each)}
        free = [name for name in self.given if name not in exact]
        for name in free:
            for other in self.given:
                if name != other and self.given[name] == self.given[other]:
                    yield product_is(name, (other,))
        yield from (each for each in self._multiples(plan) if self._is_split(each))
        for number, name in product((1, 2), free):  # two, where half a width is given
            others = [other for other in self.given if other != name and self.given[other] > 1]
            squares = [(other, other) for other in others if other not in self.axes]
            alone = [(other,) for other in others if number == 2]
            for some in [*alone, *combinations(others, 2), *squares]:
                if number * prod(self.given[each] for each in some) == self.given[name]:
                    yield product_is(name, some, number)

    def _multiples(self, plan: Plan) -> Iterator[Requirement]:
        """Sizes that are multiples of others."""
        exact = {each.name for each in plan.requirements if _decides(each)}
        for name in [name for name in self.given if name not in exact]:
            for other in self.given:
                smaller = other != name and 1 < self.given[other] < self.given[name]
                multiple = multiple_of(name, other)
                divides = smaller and self.given[name] % self.given[other] == 0
                if divides and multiple not in plan.requirements:
                    yield multiple

    def _weak_candidates(self, plan: Plan) -> Iterator[Requirement]:
        """What makes a size more like the one that was given."""
        decided = {each.name for each in plan.requirements if _decides(each)}
        exact = {each.name for each in plan.requirements if each.is_product and not each.multiple}
        bound = decided - exact
        for number in (2, 4, 8, 0):
            for name in [name for name in self.given if name not in bound | exact]:
                size = self.given[name]
                if (number and size % number == 0) or (not number and size > 1):
                    yield multiple_of(name, number or size)
        yield from (each for each in self._multiples(plan) if not self._is_split(each))
        for name in [name for name in self.given if name not in decided]:
            for pair in combinations([other for other in self.given if other != name], 2):
                if sum(self.given[each] for each in pair) == self.given[name]:
                    yield sum_is(name, pair)
        for name in self.given:
            if name not in exact:
                yield fixed(name, self.given[name])


def _decides(requirement: Requirement) -> bool:
    """Whether a size follows from it."""
    return not requirement.multiple


def required_by(
    equations: Iterable[tuple[str, Expression]], given: Mapping[str, int]
) -> Iterator[Requirement]:
    """What a user says of sizes, as requirements.

    Args:
        equations: a name, and what it is equal to.
        given: the sizes; those of equations that are neither a product nor a quotient stay as they are.
    """
    for name, value in equations:
        ((_, number),) = value.terms
        factors, divisors = value.factors, value.divisors
        if len(factors) == 1 and number.numerator == 1:  # d_head = d_feat / n_head
            yield product_is(factors[0], (name, *divisors), number.denominator)
        elif not divisors and number.denominator == 1:
            yield Requirement(name, value)
        else:
            yield from (fixed(each, given[each]) for each in (name, *factors, *divisors))
