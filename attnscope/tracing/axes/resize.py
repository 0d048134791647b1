"""A search for other sizes with which the same code runs, and for its requirements on them.

Each named size becomes a prime number, so that no two are equal or divide each other. Where the
code fails, the place of the failure suggests a requirement: a width that divides into heads, two
equal lengths. A requirement is added if the code gets further with it, until it gets
as far as with the original sizes. Then each requirement is dropped again, to test
whether the code needs it; the needed ones are the result.
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
"""Primes for the factors of multiples, which quickly become large."""

PATIENCE = 150
"""The maximal number of runs of the code in a search."""

MOST_NAMES = 64
"""The maximal number of sizes; beyond it, there are too many pairs and triples to search."""


@dataclass(frozen=True)
class Requirement:
    """The requirement that a size equals an expression of other sizes, or a multiple of it."""

    name: str
    value: Expression
    multiple: bool = False

    def __str__(self) -> str:
        return f"{self.name} {'is a multiple of' if self.multiple else '='} {self.value}"

    @property
    def of(self) -> tuple[str, ...]:
        """The names of the other sizes; a squared one is listed twice."""
        return self.value.factors or tuple(self.value.words)

    def with_name(self, name: str, other: str) -> Requirement:
        """Return the requirement with another size in place of one that it refers to."""
        if name not in self.of or not self.value.factors or other == self.name:
            return self
        ((_, number),) = self.value.terms
        of = [other if each == name else each for each in self.of]
        return Requirement(self.name, product_of(of, number), self.multiple)

    @property
    def is_number(self) -> bool:
        """Whether the expression is just a number."""
        return not self.value.words

    @property
    def is_fixed(self) -> bool:
        """Whether the size must keep its original value."""
        return self.is_number and not self.multiple

    @property
    def is_equality(self) -> bool:
        """Whether the size must equal one other size."""
        return self.is_product and not self.multiple and len(self.of) == 1 and not self.value.has_number

    @property
    def is_product(self) -> bool:
        """Whether the size is the product of other sizes and a number, or a multiple of that."""
        return bool(self.value.factors)


def product_is(name: str, of: Iterable[str], number: int = 1) -> Requirement:
    """Require a size to be the product of other sizes and a number."""
    return Requirement(name, product_of(of, number))


def sum_is(name: str, of: Iterable[str]) -> Requirement:
    """Require a size to be the sum of other sizes."""
    return Requirement(name, sum_of(of))


def multiple_of(name: str, of: str | int) -> Requirement:
    """Require a size to be a multiple of another size or of a number."""
    value = of_number(of) if isinstance(of, int) else of_word(of)
    return Requirement(name, value, multiple=True)


def fixed(name: str, size: int) -> Requirement:
    """Require a size to keep its original value."""
    return Requirement(name, of_number(size))


@dataclass(frozen=True)
class SizePlan:
    """The dependencies between sizes, and the order in which the free ones get their primes."""

    original: Mapping[str, int]
    requirements: tuple[Requirement, ...] = ()
    later: tuple[str, ...] = ()  # of several equal sizes, these become the larger ones

    def sizes(self, turn: int) -> dict[str, int] | None:
        """Return other sizes, different for each turn; None if requirements contradict each other."""
        late = {name: place for place, name in enumerate(self.later, start=1)}
        order = sorted(self.original, key=lambda name: (self.original[name], late.get(name, 0)))
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
        waiting = list(self.original)
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
    """Return the first primes above those of `PRIMES`."""
    candidates = itertools.count(PRIMES[-1] + 2, 2)
    is_prime = (n for n in candidates if all(n % divisor for divisor in range(3, isqrt(n) + 1, 2)))
    return list(islice(is_prime, count))


@dataclass
class Attempt:
    """The progress of the code with some sizes.

    Attributes:
        reached: the number of steps that the run shares with the original one, followed by the
            line where it failed; larger is further.
        whole: whether it got as far as with the original sizes.
        unnamed: the number of changing sizes that are neither names nor products of names.
        run: data of the caller.
    """

    reached: tuple[int, ...]
    whole: bool
    unnamed: int = 0
    run: object = None


@dataclass
class Search:
    """The search for the requirements of code.

    Args:
        attempt: runs the code with other sizes.
        original: the original sizes, by name.
        known: the requirements that the user states.
        axes: names of the axes of the inputs; a size that another divides is probably split into it.
        kept: names whose sizes must keep their original values.
    """

    attempt: Callable[[dict[str, int]], Attempt]
    original: Mapping[str, int]
    known: tuple[Requirement, ...] = ()
    axes: frozenset[str] = frozenset()
    kept: frozenset[str] = frozenset()
    refusals: list[tuple[Requirement, object]] = field(default_factory=list)
    _tried: dict[tuple[int, ...], Attempt] = field(default_factory=dict, repr=False)
    _patience: int = PATIENCE

    def plan(self) -> SizePlan | None:
        """Return a plan with which the code gets as far as with the original sizes, if there is one.

        `refusals` then holds the needed requirements, each with the run that failed without it.
        """
        known = (*self.known, *(fixed(name, self.original[name]) for name in self.kept))
        if self.has_too_many:
            plain = SizePlan(self.original, known)
            attempt = self._try(plain)
            return plain if attempt is not None and attempt.whole else None
        starts = list(self._starts(SizePlan(self.original, known)))
        for start in (self._furthest(starts), starts[-1]):
            plan = self._add_requirements(start)
            if plan is not None:
                return self._named(self._drop_requirements(plan, kept=len(known)))
        return self._partial_plan(known)

    def _partial_plan(self, known: tuple[Requirement, ...]) -> SizePlan | None:
        """Return a plan in which some sizes vary, one added after the other, and the rest stay."""
        self.refusals, self._patience = [], len(self._tried) + len(self.original)
        decided = {each.name for each in known}
        constant = [name for name in self.original if name not in decided]
        best: SizePlan | None = None
        for name in sorted(constant, key=lambda name: name not in self.axes):
            rest = tuple(fixed(each, self.original[each]) for each in constant if each != name)
            plan = SizePlan(self.original, (*known, *rest))
            attempt = self._try(plan)
            if attempt is not None and attempt.whole:
                constant.remove(name)
                best = plan
        return best

    @property
    def has_too_many(self) -> bool:
        """Whether there are too many sizes to search for requirements."""
        return len(self.original) > MOST_NAMES

    def _furthest(self, plans: list[SizePlan]) -> SizePlan:
        """Return the first plan that gets the code all the way, or the one that gets it furthest.

        The first plan is not returned otherwise, because the second one has all of its requirements.
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

    def _starts(self, plain: SizePlan) -> Iterator[SizePlan]:
        """Yield initial plans: with growing sets of the likely requirements of attention, and with none.

        Each costs one attempt, and may require too much.
        """
        likely = list(self._candidates(plain))
        splits = tuple(each for each in likely if self._is_split(each))
        even_sizes = tuple(self._even_sizes(plain))
        wholes = tuple({each.name: each for each in likely if self._is_whole(each)}.values())
        for added in dict.fromkeys(
            [splits, (*splits, *even_sizes), (*splits, *wholes, *even_sizes), ()]
        ):
            yield replace(plain, requirements=(*plain.requirements, *added))

    def _even_sizes(self, plan: SizePlan) -> Iterator[Requirement]:
        """Require even sizes to stay even: rotary positions rotate pairs, other code halves a width."""
        exact = {each.name for each in plan.requirements if _decides(each)}
        for name, size in self.original.items():
            if size % 2 == 0 and name not in exact:
                yield multiple_of(name, 2)

    def _add_requirements(self, plan: SizePlan) -> SizePlan | None:
        """Add requirements to a plan until the code gets as far as it should."""
        best = self._try(plan)
        while best is not None and not best.whole:
            step = self._step(plan, best)
            if step is None:
                return None
            plan, best = step
        return plan if best is not None else None

    def _drop_requirements(self, plan: SizePlan, kept: int) -> SizePlan:
        """Remove the requirements that the code does not need from a plan.

        Args:
            plan: the plan, which may require too much.
            kept: the number of leading requirements to keep in any case.
        """
        even_sizes = [each for each in plan.requirements[kept:] if each in set(self._even_sizes(plan))]
        if len(even_sizes) > 1:
            plan = self._without(plan, *even_sizes)
        before: SizePlan | None = None
        while plan != before:  # one may be needed only as long as another is there
            before, self.refusals = plan, []
            for each in sorted(plan.requirements[kept:], key=_decides, reverse=True):  # strictest first
                plan = self._without(plan, each)
            for each in plan.requirements[kept:]:
                plan = self._without_equality(plan, each)
            for each in plan.requirements[kept:]:
                plan = self._loosened(plan, each)
        return plan

    def _without_equality(self, plan: SizePlan, requirement: Requirement) -> SizePlan:
        """Drop the equality of two sizes if the code runs with either of them in the other's place."""
        if not requirement.is_equality:
            return plan
        names = requirement.name, *requirement.of
        rest = [each for each in plan.requirements if each != requirement]
        for one, other in (names, names[::-1]):
            replaced = (each.with_name(one, other) for each in rest)
            other_plan = replace(plan, requirements=tuple(dict.fromkeys(replaced)))
            if rest != list(other_plan.requirements) and self._runs_as_well(other_plan, plan):
                return other_plan
        return plan

    def _loosened(self, plan: SizePlan, requirement: Requirement) -> SizePlan:
        """Replace a product by a multiple if the code runs as well: 4 may be 2·2 by chance."""
        if not requirement.is_product or requirement.multiple or requirement.is_equality:
            return plan
        name, rest = requirement.name, [each for each in plan.requirements if each != requirement]
        others = sorted(requirement.of, key=lambda other: other in self.axes)
        looser = [multiple_of(name, other) for other in others]
        looser += [
            multiple_of(name, number) for number in (2, 4, 8) if self.original[name] % number == 0
        ]
        in_proportion = [self._in_proportion(other, name) for other in rest]
        for each, others in product(looser, dict.fromkeys(map(tuple, (rest, in_proportion)))):
            other_plan = replace(plan, requirements=(*others, each))
            if self._runs_as_well(other_plan, plan):
                refused = [(each if r == requirement else r, run) for r, run in self.refusals]
                self.refusals = list({str(r): (r, run) for r, run in refused}.values())
                return other_plan
        return plan

    def _in_proportion(self, requirement: Requirement, name: str) -> Requirement:
        """Require the original ratio where a multiple of a size is required: `dim = 12·n_head`."""
        if not requirement.multiple or requirement.of != (name,):
            return requirement
        ratio = self.original[requirement.name] // self.original[name]
        return product_is(requirement.name, (name,), ratio)

    def _runs_as_well(self, plan: SizePlan, other: SizePlan) -> bool:
        """Return whether the code gets as far with a plan as with another, with as many named sizes."""
        then, now = self._try(plan), self._try(other)
        return now is not None and then is not None and then.whole and then.unnamed <= now.unnamed

    def _named(self, plan: SizePlan) -> SizePlan:
        """Require even sizes to stay even where that gives more sizes a name, such as half a width."""
        now = self._try(plan)
        for even in self._even_sizes(plan) if now is not None and now.unnamed else ():
            then = self._try(replace(plan, requirements=(*plan.requirements, even)))
            if then is not None and then.whole and then.unnamed < now.unnamed:  # type: ignore[union-attr]
                plan, now = replace(plan, requirements=(*plan.requirements, even)), then
        return plan

    def _without(self, plan: SizePlan, *left_out: Requirement) -> SizePlan:
        """Remove requirements if the code runs as well without them; otherwise record the refusal."""
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
        """Return whether a requirement means that an argument splits a size into parts."""
        is_multiple = requirement.is_product and requirement.multiple
        return is_multiple and not set(requirement.of) & self.axes

    def _is_whole(self, requirement: Requirement) -> bool:
        """Return whether a requirement means that an axis is an argument times another size."""
        if not requirement.is_product or requirement.multiple:
            return False
        arguments = set(requirement.of) - self.axes
        plain = len(set(requirement.of)) == 2 and not requirement.value.has_number
        return plain and requirement.name in self.axes and bool(arguments)

    def _try(self, plan: SizePlan) -> Attempt | None:
        sizes = plan.sizes(0)
        if sizes is None:
            return None
        key = tuple(sizes[name] for name in self.original)
        if key not in self._tried:
            if len(self._tried) >= self._patience:
                return None
            self._tried[key] = self.attempt(sizes)
        return self._tried[key]

    def _step(self, plan: SizePlan, best: Attempt) -> tuple[SizePlan, Attempt] | None:
        """Return the first change of the plan with which the code gets further."""
        for changed in self._changes(plan):
            if len(self._tried) >= self._patience:
                return None
            further = self._try(changed)
            if further is not None and (further.whole or further.reached > best.reached):
                return changed, further
        return None

    def _changes(self, plan: SizePlan) -> Iterator[SizePlan]:
        """Yield plans with one requirement more or less, or with two more; likely ones first."""

        def adding(*added: Requirement) -> SizePlan:
            return replace(plan, requirements=(*plan.requirements, *added))

        singles, weak = list(self._candidates(plan)), list(self._weak_candidates(plan))
        yield from map(adding, singles)
        equal = [
            pair for pair in combinations(self.original, 2) if len({self.original[n] for n in pair}) == 1
        ]
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
        loose = [name for name in self.original if name not in bound]
        for name in loose:  # multiples of all original sizes
            kept = fixed(name, self.original[name])
            others = [
                multiple_of(n, self.original[n]) for n in loose if n != name and self.original[n] > 1
            ]
            yield adding(kept, *others)

    def _candidates(self, plan: SizePlan) -> Iterator[Requirement]:
        """Yield requirements that hold for the original sizes and are plausible; likely ones first."""
        exact = {each.name for each in plan.requirements if _decides(each)}
        free = [name for name in self.original if name not in exact]
        for name in free:
            for other in self.original:
                if name != other and self.original[name] == self.original[other]:
                    yield product_is(name, (other,))
        yield from (each for each in self._multiples(plan) if self._is_split(each))
        for number, name in product((1, 2), free):  # two, for the case that half a width is an argument
            others = [other for other in self.original if other != name and self.original[other] > 1]
            squares = [(other, other) for other in others if other not in self.axes]
            alone = [(other,) for other in others if number == 2]
            for some in [*alone, *combinations(others, 2), *squares]:
                if number * prod(self.original[each] for each in some) == self.original[name]:
                    yield product_is(name, some, number)

    def _multiples(self, plan: SizePlan) -> Iterator[Requirement]:
        """Yield requirements that sizes are multiples of others."""
        exact = {each.name for each in plan.requirements if _decides(each)}
        for name in [name for name in self.original if name not in exact]:
            for other in self.original:
                smaller = other != name and 1 < self.original[other] < self.original[name]
                multiple = multiple_of(name, other)
                divides = smaller and self.original[name] % self.original[other] == 0
                if divides and multiple not in plan.requirements:
                    yield multiple

    def _weak_candidates(self, plan: SizePlan) -> Iterator[Requirement]:
        """Yield requirements that make a size more like the original one."""
        decided = {each.name for each in plan.requirements if _decides(each)}
        exact = {each.name for each in plan.requirements if each.is_product and not each.multiple}
        bound = decided - exact
        for number in (2, 4, 8, 0):
            for name in [name for name in self.original if name not in bound | exact]:
                size = self.original[name]
                if (number and size % number == 0) or (not number and size > 1):
                    yield multiple_of(name, number or size)
        yield from (each for each in self._multiples(plan) if not self._is_split(each))
        for name in [name for name in self.original if name not in decided]:
            for other in self.original:  # a head is as wide as a table that has no name
                ratio, rest = divmod(self.original[name], self.original[other])
                if other not in self.axes and ratio > 2 and rest == 0 and self.original[other] > 1:
                    yield product_is(name, (other,), ratio)
        for name in [name for name in self.original if name not in decided]:
            for pair in combinations([other for other in self.original if other != name], 2):
                if sum(self.original[each] for each in pair) == self.original[name]:
                    yield sum_is(name, pair)
        for name in self.original:
            if name not in exact:
                yield fixed(name, self.original[name])


def _decides(requirement: Requirement) -> bool:
    """Return whether a requirement determines its size."""
    return not requirement.multiple


def required_by(
    equations: Iterable[tuple[str, Expression]], original: Mapping[str, int]
) -> Iterator[Requirement]:
    """Turn the user's statements about sizes into requirements.

    Args:
        equations: names, each with the expression that it equals.
        original: the sizes; those of equations that are neither a product nor a quotient stay fixed.
    """
    for name, value in equations:
        ((_, number),) = value.terms
        factors, divisors = value.factors, value.divisors
        if len(factors) == 1 and number.numerator == 1:  # d_head = d_feat / n_head
            yield product_is(factors[0], (name, *divisors), number.denominator)
        elif not divisors and number.denominator == 1:
            yield Requirement(name, value)
        else:
            yield from (fixed(each, original[each]) for each in (name, *factors, *divisors))
