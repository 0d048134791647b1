"""A search for other sizes with which the same code runs, and for its requirements on them.

Each named size becomes a prime number, so that no two are equal or divide each other. Where the
code fails, the place of the failure suggests a requirement: a width that divides into heads, two
equal lengths. A requirement is added if the code gets further with it, until it gets
as far as with the original sizes. Then each requirement is dropped again or weakened, to test
whether the code needs it. Those that the code rejects all sizes without are its conditions; the others
only help to name axes.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from itertools import combinations, product
from math import prod

from attnscope.observe.axes.expressions import of_number, product_of
from attnscope.observe.axes.requirements import (
    Requirement,
    SizePlan,
    fixed,
    forms_of,
    multiple_of,
    product_is,
    sum_is,
)

PATIENCE = 150
"""The maximal number of runs of the code in a search."""

MORE_PATIENCE = 40
"""The maximal number of further runs where only some sizes can vary."""

MOST_NAMES = 64
"""The maximal number of sizes; beyond it, there are too many pairs and triples to search."""


@dataclass
class Attempt:
    """The progress of the code with some sizes."""

    #: the number of steps that the run shares with the original one, followed by the line where it
    #: failed; larger is further
    reached: tuple[int, ...]
    whole: bool  #: whether it got as far as with the original sizes
    unnamed: int = 0  #: the number of changing sizes that are neither names nor products of names
    #: whether the code raised an exception that it does not raise with the original sizes
    rejected: bool = False
    #: the names of sizes that are seen in the expression that failed
    names: frozenset[str] = frozenset()
    run: object = None  #: data of the caller


@dataclass
class Search:
    """The search for the requirements of code."""

    #: runs the code with other sizes, and once more with others, if it runs with the first
    attempt: Callable[[list[dict[str, int]]], Attempt]
    original: Mapping[str, int]
    known: tuple[Requirement, ...] = ()  #: the requirements that the user states
    #: names of the axes of the inputs; a size that another divides is probably split into it
    axes: frozenset[str] = frozenset()
    kept: frozenset[str] = frozenset()  #: names whose sizes must keep their original values
    refusals: list[tuple[Requirement, object]] = field(default_factory=list)
    required: list[Requirement] = field(default_factory=list)
    assumed: list[Requirement] = field(default_factory=list)
    others: list[SizePlan] = field(default_factory=list)
    _tried: dict[tuple[int, ...], Attempt] = field(default_factory=dict, repr=False)
    _patience: int = PATIENCE

    def plan(self) -> SizePlan | None:
        """Return a plan with which the code gets as far as with the original sizes, if there is one.

        `refusals` then holds the requirements of the plan without which the code rejected sizes, each
        with a run that failed. `required` holds those of them without which it rejected all sizes, and
        `assumed` the other requirements; `others` are plans without such an equality that run, too.
        """
        known = (*self.known, *(fixed(name, self.original[name]) for name in self.kept))
        if self.has_too_many:
            plain = SizePlan(self.original, known)
            attempt = self._try(plain)
            return plain if attempt is not None and attempt.whole else None
        plan = complete = self._complete_plan(known)
        if plan is None:
            plan = self._partial_plan(known)
        if plan is not None:
            found = [each for each in dict.fromkeys(plan.requirements) if each not in known]
            self._classify(plan, found if complete else [each for each in found if not each.is_fixed])
            self.assumed = [each for each in found if each not in self.required]
        return plan

    def _classify(self, plan: SizePlan, requirements: Iterable[Requirement]) -> None:
        """Set `refusals`, and `required`: those that all plans without them show, of all that run."""
        other_plans: list[SizePlan] = []
        for each in requirements:
            plans = [
                other
                for other in self._plans_violating(plan, each)
                if (sizes := other.sizes(0)) is not None and not each.holds(sizes)
            ]
            others = [other for other in plans if self._runs(other)]
            other_plans += others
            if each.decides:
                self.others += others
            rejections = [attempt for other in plans for attempt in self._rejections(other)]
            if rejections and rejections[0] is not None:
                weaker = self._weaker_plans(plan, each)
                later = [attempt for other in weaker for attempt in self._rejections(other)]
                attempts = [attempt for attempt in (*rejections, *later) if attempt is not None]
                self.refusals.append((each, max(attempts, key=lambda attempt: attempt.reached).run))
            if rejections and None not in rejections:
                self.required.append(each)
        self.required = [
            each
            for each in self.required
            if not any(self._runs(next(self._plans_without(other, each))) for other in other_plans)
        ]

    def _rejections(self, plan: SizePlan) -> list[Attempt | None]:
        """Return the attempts of a plan's turns, alone; None for those that the code does not reject."""
        turns = [sizes for turn in (0, 1) if (sizes := plan.sizes(turn)) is not None]
        attempts = [self._try_sizes([sizes]) for sizes in turns]
        return [attempt if attempt and attempt.rejected else None for attempt in attempts]

    def _runs(self, plan: SizePlan) -> bool:
        """Try a plan, and check whether the code gets as far with it as with the original sizes."""
        attempt = self._try(plan)
        return attempt is not None and attempt.whole

    def _complete_plan(self, known: tuple[Requirement, ...]) -> SizePlan | None:
        """Return a plan in which all sizes vary, except those that the code fixes."""
        *likely, plain = self._starts(SizePlan(self.original, known))
        furthest = self._furthest([*likely, plain])
        for start in (furthest, plain) if furthest != plain else (plain,):
            plan = self._add_requirements(start, unlikely=start == plain)
            if plan is not None:
                return self._named(self._drop_requirements(plan, kept=len(known)))
        return None

    def _partial_plan(self, known: tuple[Requirement, ...]) -> SizePlan | None:
        """Return a plan in which some sizes vary, one added after the other, and the rest stay."""
        self._patience = len(self._tried) + MORE_PATIENCE
        decided = {each.name for each in known}
        constant = {name: fixed(name, n) for name, n in self.original.items() if name not in decided}
        added: tuple[Requirement, ...] = ()
        best: SizePlan | None = None
        for name in sorted(constant, key=lambda name: name not in self.axes):
            plain = SizePlan(self.original, (*known, *added))
            likely = [each for each in self._candidates(plain) if name in (each.name, *each.of)]
            for some in [(), *((each,) for each in likely)] if name in constant else ():
                varied = {name, *(other for each in some for other in (each.name, *each.of))}
                rest = (each for other, each in constant.items() if other not in varied)
                plan = SizePlan(self.original, (*known, *added, *some, *rest))
                attempt = self._try(plan)
                if attempt is not None and attempt.whole:
                    constant = {each: r for each, r in constant.items() if each not in varied}
                    added, best = (*added, *some), plan
                    break
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
        into_heads = tuple(each for each in splits if any("head" in name for name in each.of))
        even_sizes = tuple(self._even_sizes(plain))
        even_splits = tuple(map(self._even_split, splits))
        wholes = tuple({each.name: each for each in likely if self._is_whole(each)}.values())
        with_even, with_wholes = (*splits, *even_sizes), (*splits, *wholes, *even_sizes)
        # Even sizes alone: sizes that divide each other by chance become large as splits.
        variants = (into_heads, splits, with_even, even_splits, with_wholes, even_sizes, ())
        for added in dict.fromkeys(variants):
            yield plain.adding(*added)

    def _even_sizes(self, plan: SizePlan) -> Iterator[Requirement]:
        """Require even sizes to stay even: rotary positions rotate pairs, other code halves a width."""
        for name, size in self.original.items():
            if size % 2 == 0 and name not in plan.decided:
                yield multiple_of(name, 2)

    def _even_split(self, split: Requirement) -> Requirement:
        """Require the parts of a split to stay even: a head of which rotary positions rotate pairs."""
        [of] = split.of
        is_even = self.original[split.name] // self.original[of] % 2 == 0
        return multiple_of(split.name, of, 2) if is_even else split

    def _add_requirements(self, plan: SizePlan, *, unlikely: bool) -> SizePlan | None:
        """Add requirements to a plan until the code gets as far as it should."""
        best = self._try(plan)
        while best is not None and not best.whole:
            step = self._step(plan, best, unlikely)
            if step is None:
                return None
            plan, best = step
        return plan if best is not None else None

    def _drop_requirements(self, plan: SizePlan, kept: int) -> SizePlan:
        """Remove the requirements that the code does not need from a plan, and weaken the others.

        Args:
            kept: the number of leading requirements to keep in any case.
        """
        even_sizes = [each for each in plan.requirements[kept:] if each in set(self._even_sizes(plan))]
        if len(even_sizes) > 1:
            plan = self._without(plan, *even_sizes)

        def strictness(each: Requirement) -> tuple[bool, int]:
            """Return a key: larger for stricter requirements, and for multiples of larger sizes."""
            return each.decides, prod(self.original[other] for other in each.of)

        weaken = (self._without_number, self._without_equality, self._loosened, self._without_others)
        before: SizePlan | None = None
        while plan != before:  # one may be needed only as long as another is there
            before = plan
            for each in sorted(plan.requirements[kept:], key=strictness, reverse=True):
                plan = self._without(plan, each)
            for change in weaken:
                for each in plan.requirements[kept:]:
                    plan = change(plan, each)
        return plan

    def _without(self, plan: SizePlan, *left_out: Requirement) -> SizePlan:
        """Remove requirements if the code runs as well without them."""
        for other in self._plans_without(plan, *left_out):
            if self._runs_as_well(other, plan):
                return other
        return plan

    def _plans_without(self, plan: SizePlan, *left_out: Requirement) -> Iterator[SizePlan]:
        """Yield plans without some requirements; either of two equal sizes may have to be larger."""
        rest = plan.without(*left_out)
        yield rest
        for each in left_out if len(left_out) == 1 else ():
            for name in (each.name, *each.of) if each.is_equality else ():
                yield from self._with_largest(rest, name)

    @staticmethod
    def _with_largest(plan: SizePlan, name: str) -> Iterator[SizePlan]:
        """Yield the plan with a size that is larger than all others, if it is free."""
        if name not in plan.decided:
            others = [other for other in plan.largest if other != name]
            yield replace(plan, largest=(*others, name))

    def _plans_violating(self, plan: SizePlan, requirement: Requirement) -> Iterator[SizePlan]:
        """Yield plans without a requirement: its size may be the largest, a square, another multiple.

        A length may have to be twice another one, or more; `d = 2·n` may stand for `d = n`, and
        `n = h·w+1` for a square.
        """
        yield from self._plans_without(plan, requirement)
        rest = plan.without(requirement)
        yield from self._with_largest(rest, requirement.name)
        if requirement.form is None:
            for form in forms_of(requirement.name, self.original[requirement.name]):
                yield rest.adding(form)
        if requirement.is_product and not requirement.multiple:
            ((_, number),) = requirement.value.terms
            for other in {1, int(number) + 1, 2 * int(number)} - {int(number)}:
                yield rest.adding(product_is(requirement.name, requirement.of, other))

    @staticmethod
    def _weaker_plans(plan: SizePlan, requirement: Requirement) -> Iterator[SizePlan]:
        """Yield plans with a multiple in place of a product: what they do not fulfil may come later."""
        for other in requirement.of if requirement.is_product and not requirement.multiple else ():
            yield plan.without(requirement).adding(multiple_of(requirement.name, other))

    def _without_others(self, plan: SizePlan, requirement: Requirement) -> SizePlan:
        """Require only that a size is a multiple of a number, the least one, if the code runs as well.

        A multiple of 16 may have been required where an even size is enough, or a multiple of a name
        that is 16 by chance.
        """
        name, size = requirement.name, self.original[requirement.name]
        rest = plan.without(requirement)

        def runs_with(other: Requirement) -> SizePlan | None:
            changed = rest.adding(other)
            return changed if self._runs_as_well(changed, plan) else None

        is_number = requirement.multiple and requirement.is_number
        largest = int(requirement.value.size({})) if is_number else size
        wholes = [each.name for each in rest.requirements if is_number and name in each.of]
        weaker = [multiple_of(whole, largest) for whole in wholes]  # half a width, not half of the heads
        weaker += forms_of(name, size) if not requirement.multiple and requirement.form is None else []
        for other in weaker:
            if (changed := runs_with(other)) is not None:
                return changed
        if not is_number and (size == 1 or runs_with(multiple_of(name, size)) is None):
            return plan
        for divisor in (n for n in range(2, largest + (not is_number)) if largest % n == 0):
            if (changed := runs_with(multiple_of(name, divisor))) is not None:
                return changed
        return plan

    def _without_number(self, plan: SizePlan, requirement: Requirement) -> SizePlan:
        """Require a multiple of a size, and perhaps of 2, in place of one of twice the size.

        What is a multiple of 2 as well need not be of twice an even size.
        """
        name, of = requirement.name, requirement.of
        if not (requirement.multiple and requirement.is_product and requirement.value.has_number):
            return plan
        plain = plan.without(requirement).adding(multiple_of(name, of[0]))
        if self._runs_as_well(plain, plan):
            return plain
        even = plain.adding(multiple_of(name, 2))
        of_even = even.adding(multiple_of(of[0], 2))
        return even if self._runs(of_even) and self._runs_as_well(even, plan) else plan

    def _without_equality(self, plan: SizePlan, requirement: Requirement) -> SizePlan:
        """Drop the equality of two sizes if the code runs with either of them in the other's place."""
        if not requirement.is_equality:
            return plan
        names = requirement.name, *requirement.of
        rest = plan.without(requirement).requirements
        for one, other in (names, names[::-1]):
            replaced = (each.with_name(one, other) for each in rest)
            other_plan = replace(plan, requirements=tuple(dict.fromkeys(replaced)))
            if rest != other_plan.requirements and self._runs_as_well(other_plan, plan):
                return other_plan
        return plan

    def _loosened(self, plan: SizePlan, requirement: Requirement) -> SizePlan:
        """Replace a product by multiples if the code runs as well: 4 may be 2·2 by chance."""
        name, rest = requirement.name, plan.without(requirement).requirements
        constant = {each.name for each in plan.requirements if each.is_fixed}
        if requirement.decides and requirement.of and constant.issuperset(requirement.of):
            return replace(plan, requirements=(*rest, fixed(name, self.original[name])))
        if not requirement.is_product or requirement.multiple or requirement.is_equality:
            return plan
        in_proportion = [self._in_proportion(other, name) for other in rest]
        of_it = [self._multiple_of_product(other, requirement) for other in rest]
        variants = dict.fromkeys(map(tuple, (rest, in_proportion, of_it)))
        for looser, others in product(self._multiples_of_factors(requirement), variants):
            other_plan = replace(plan, requirements=(*others, *looser))
            if self._runs_as_well(other_plan, plan):
                return other_plan
        return plan

    def _multiple_of_product(self, other: Requirement, requirement: Requirement) -> Requirement:
        """Require a multiple of a product, where a multiple of one of its factors is required."""
        size = self.original[requirement.name]
        of_factor = other.multiple and set(other.of) & set(requirement.of)
        if not of_factor or self.original[other.name] % size:
            return other
        return multiple_of(other.name, requirement.name)

    def _multiples_of_factors(self, requirement: Requirement) -> Iterator[tuple[Requirement, ...]]:
        """Yield multiples of a factor of a product, of a number, and of both, as in `3·n_head`."""
        name, size = requirement.name, self.original[requirement.name]
        factors = sorted(requirement.of, key=lambda other: other in self.axes)
        yield from ((multiple_of(name, factor),) for factor in factors)
        yield from ((multiple_of(name, number),) for number in (2, 4, 8) if size % number == 0)
        for factor in factors:
            ratio = size // self.original[factor]
            for number in (n for n in range(2, ratio + 1) if ratio % n == 0):
                yield multiple_of(name, factor), multiple_of(name, number)

    def _in_proportion(self, requirement: Requirement, name: str) -> Requirement:
        """Require the original ratio where a multiple of a size is required: `dim = 12·n_head`."""
        if not requirement.multiple or requirement.of != (name,):
            return requirement
        ratio = self.original[requirement.name] // self.original[name]
        return product_is(requirement.name, (name,), ratio)

    def _runs_as_well(self, plan: SizePlan, other: SizePlan) -> bool:
        """Try two plans, and check whether the code gets as far with the first, with as many names."""
        then, now = self._try(plan), self._try(other)
        return now is not None and then is not None and then.whole and then.unnamed <= now.unnamed

    def _named(self, plan: SizePlan) -> SizePlan:
        """Require splits, and even sizes to stay even, where that gives more sizes a name.

        Half a width has a name then, and so has the number of heads in a group.
        """
        now = self._try(plan)
        splits = [each for each in self._candidates(plan) if self._is_split(each)]
        for each in (*splits, *self._even_sizes(plan)):
            if now is None or not now.unnamed:
                break
            changed = plan.adding(each)
            then = self._try(changed)
            if then is not None and then.whole and then.unnamed < now.unnamed:
                plan, now = changed, then
        return plan

    def _is_split(self, requirement: Requirement) -> bool:
        """Check whether a requirement means that an argument splits a size into parts."""
        is_multiple = requirement.is_product and requirement.multiple
        return is_multiple and not set(requirement.of) & self.axes

    def _is_whole(self, requirement: Requirement) -> bool:
        """Check whether a requirement means that an axis is an argument times another size."""
        if not requirement.is_product or requirement.multiple:
            return False
        arguments = set(requirement.of) - self.axes
        plain = len(set(requirement.of)) == 2 and not requirement.value.has_number
        return plain and requirement.name in self.axes and bool(arguments)

    def _try(self, plan: SizePlan) -> Attempt | None:
        """Run the code with the sizes of a plan; return None if it has none, or patience has run out.

        Sizes may fulfil a condition by chance, as 10+7 = 17: other sizes must confirm that it runs.
        """
        return self._try_sizes([plan.sizes(0), plan.sizes(1)])

    def _try_sizes(self, turns: list[dict[str, int] | None]) -> Attempt | None:
        all_sizes = [sizes for sizes in turns if sizes is not None]
        key = tuple(sizes[name] for sizes in all_sizes for name in self.original)
        if len(all_sizes) < len(turns):
            return None
        if key not in self._tried and len(self._tried) < self._patience:
            self._tried[key] = self.attempt(all_sizes)
        return self._tried.get(key)

    def _step(self, plan: SizePlan, best: Attempt, unlikely: bool) -> tuple[SizePlan, Attempt] | None:
        """Return the first change of the plan with which the code gets further."""
        for changed in self._changes(plan, best.names, unlikely):
            if len(self._tried) >= self._patience:
                return None
            further = self._try(changed)
            if further is not None and (further.whole or further.reached > best.reached):
                return changed, further
        return None

    def _changes(self, plan: SizePlan, seen: frozenset[str], unlikely: bool) -> Iterator[SizePlan]:
        """Yield plans with one requirement more or less, or with two more; likely ones first.

        Args:
            seen: the names of sizes in the expression that fails with it: these are likely the cause.
        """
        singles = list(self._candidates(plan))
        splits = [each for each in singles if self._is_split(each)]
        even_sizes = [each for each in self._even_sizes(plan) if each not in plan.requirements]
        near = [each for each in singles if seen.issuperset((each.name, *each.of))]
        plain = [each for each in near if each.is_equality or each.multiple]
        yield from map(plan.adding, plain)
        yield from map(plan.adding, (each for each in even_sizes if each.name in seen))
        yield from map(plan.adding, (each for each in near if each not in plain))
        yield from map(plan.adding, (each for each in singles if each not in near))
        size_of = self.original
        equal = [pair for pair in combinations(size_of, 2) if size_of[pair[0]] == size_of[pair[1]]]
        for name in dict.fromkeys(name for pair in equal for name in pair):
            yield replace(plan, largest=(*plan.largest, name))
        for one, other in combinations(splits, 2):
            if one.name == other.name:
                yield plan.adding(one, other)
        weak = list(self._weak_candidates(plan)) if unlikely else []
        yield from map(plan.adding, weak)
        for each in plan.requirements[len(self.known) + len(self.kept) :]:
            yield plan.without(each)
        if not unlikely:
            return
        multiples = [each for each in weak if each.multiple and each.is_number]
        for one, other in [*combinations(splits, 2), *product(splits, multiples)]:
            if one.name != other.name:
                yield plan.adding(one, other)
        bound = {each.name for each in plan.requirements}
        loose = [name for name in self.original if name not in bound]
        for name in loose:  # multiples of all original sizes
            others = [multiple_of(n, size_of[n]) for n in loose if n != name and size_of[n] > 1]
            yield plan.adding(fixed(name, size_of[name]), *others)

    def _candidates(self, plan: SizePlan) -> Iterator[Requirement]:
        """Yield requirements that hold for the original sizes and are plausible; likely ones first."""
        free = [name for name in self.original if name not in plan.decided]
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
        for name in [name for name in self.original if name not in plan.decided]:
            for other in self.original:
                smaller = other != name and 1 < self.original[other] < self.original[name]
                multiple = multiple_of(name, other)
                divides = smaller and self.original[name] % self.original[other] == 0
                if divides and multiple not in plan.requirements:
                    yield multiple

    def _weak_candidates(self, plan: SizePlan) -> Iterator[Requirement]:
        """Yield requirements that make a size more like the original one."""
        decided = plan.decided
        exact = {each.name for each in plan.requirements if each.is_product and not each.multiple}
        bound = decided - exact
        for number in (2, 4, 8, 0):
            for name in [name for name in self.original if name not in bound | exact]:
                size = self.original[name]
                if (number and size % number == 0) or (not number and size > 1):
                    yield multiple_of(name, number or size)
        yield from (each for each in self._multiples(plan) if not self._is_split(each))
        loose = [name for name in self.original if name not in decided]
        for name in loose:
            for other in self.original:  # a head is as wide as a table that has no name
                ratio, rest = divmod(self.original[name], self.original[other])
                if other not in self.axes and ratio > 2 and rest == 0 and self.original[other] > 1:
                    yield product_is(name, (other,), ratio)
        yield from self._sums(loose)
        for name in loose:
            yield from forms_of(name, self.original[name])
        for name in self.original:
            if name not in exact:
                yield fixed(name, self.original[name])

    def _sums(self, names: list[str]) -> Iterator[Requirement]:
        """Yield requirements that sizes are sums of others, or of others and a number."""
        pairs = [
            (name, *pair)
            for name in names
            for pair in combinations(self.original, 2)
            if name not in pair
        ]
        for name, one, other in pairs:  # as many tokens as patches, and one for the class
            if self.original[one] * self.original[other] + 1 == self.original[name]:
                yield Requirement(name, product_of([one, other]) + of_number(1))
        for name, one, other in pairs:
            if self.original[one] + self.original[other] == self.original[name]:
                yield sum_is(name, [one, other])
        for name, other, times, number in product(names, self.original, (2, 1), (-1, 1)):
            if name != other and self.original[name] == times * self.original[other] + number:
                yield Requirement(name, product_of([other], times) + of_number(number))  # 2·L-1
