"""Requirements on sizes, which equal an expression of others or a multiple of it; plans of sizes."""

from __future__ import annotations

import itertools
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, replace
from functools import cache
from math import isqrt, lcm

from attnscope.observe.axes.expressions import Expression, of_number, of_word, product_of, sum_of


@dataclass(frozen=True)
class Requirement:
    """The requirement that a size equals an expression of other sizes, or a multiple of it."""

    name: str
    value: Expression  #: the expression; for a power of two and a square, the original size
    multiple: bool = False  #: whether the size is a multiple of it
    form: str | None = None  #: `power of two` or `square`, if that is required

    def __str__(self) -> str:
        if self.form is not None:
            return f"{self.name} is a {self.form}"
        return f"{self.name} {'is a multiple of' if self.multiple else '='} {self.value}"

    @property
    def of(self) -> tuple[str, ...]:
        """The names of the other sizes; a squared one is listed twice."""
        words = (word for powers, _ in self.value.terms for word, _ in powers)
        return self.value.factors or tuple(dict.fromkeys(words))

    def holds(self, sizes: Mapping[str, int]) -> bool:
        """Check whether sizes fulfil the requirement."""
        size = sizes[self.name]
        if self.form is not None:
            return next_of_form(self.form, size) == size
        value = self.value.size(sizes)
        return size % value == 0 if self.multiple else size == value

    def with_name(self, name: str, other: str) -> Requirement:
        """Return the requirement with another size in place of one that it refers to."""
        if name not in self.of or not self.value.factors or other == self.name:
            return self
        ((_, number),) = self.value.terms
        of = [other if each == name else each for each in self.of]
        return Requirement(self.name, product_of(of, number), self.multiple)

    @property
    def decides(self) -> bool:
        """Whether it determines the size."""
        return not self.multiple and self.form is None

    @property
    def is_number(self) -> bool:
        """Whether the expression is just a number."""
        return not self.value.words

    @property
    def is_fixed(self) -> bool:
        """Whether the size must keep its original value."""
        return self.is_number and not self.multiple and self.form is None

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


def multiple_of(name: str, of: str | int, number: int = 1) -> Requirement:
    """Require a size to be a multiple of another one or of a number, or of both: `2·n_head`."""
    value = of_number(number * of) if isinstance(of, int) else product_of([of], number)
    return Requirement(name, value, multiple=True)


def fixed(name: str, size: int) -> Requirement:
    """Require a size to keep its original value."""
    return Requirement(name, of_number(size))


def forms_of(name: str, size: int) -> Iterator[Requirement]:
    """Yield the requirements that a size is a power of two, or a square, if it is one."""
    if size >= 4 and size.bit_count() == 1:
        yield Requirement(name, of_number(size), form="power of two")
    if size >= 4 and isqrt(size) ** 2 == size:
        yield Requirement(name, of_number(size), form="square")


def next_of_form(form: str, least: int) -> int:
    """Return the least power of two, or square, that is not smaller than a number."""
    return 1 << (least - 1).bit_length() if form == "power of two" else (isqrt(least - 1) + 1) ** 2


def required_by(
    equations: Iterable[tuple[str, Expression]], original: Mapping[str, int]
) -> Iterator[Requirement]:
    """Turn the user's statements about sizes into requirements.

    Args:
        original: the sizes; those of equations that determine none of their names from the others stay
            fixed.
    """
    for name, value in equations:
        if name in value.words:  # it determines no size
            if value != of_word(name):
                yield fixed(name, original[name])
            continue
        plain = all(number.denominator == 1 for _, number in value.terms) and not any(
            power < 0 for powers, _ in value.terms for _, power in powers
        )
        if len(value.terms) == 1 and not plain:
            ((_, number),) = value.terms
            factors, divisors = value.factors, value.divisors
            if len(factors) == 1 and number.numerator == 1:  # d_head = d_feat / n_head
                yield product_is(factors[0], (name, *divisors), number.denominator)
                continue
        added = [(powers, number) for powers, number in value.terms if powers and number > 0]
        subtracted = [(powers, number) for powers, number in value.terms if powers and number < 0]
        if plain and not subtracted:
            yield Requirement(name, value)
        elif plain and len(added) == 1 and (whole := Expression((added[0],)).word) is not None:
            rest = of_word(name) + of_word(whole) + of_number(-1) * value  # n_new = n_K-n_past
            yield Requirement(whole, rest)
        else:
            yield from (fixed(each, original[each]) for each in (name, *sorted(value.words)))


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
    """

    original: Mapping[str, int]
    requirements: tuple[Requirement, ...] = ()  #: what the sizes must fulfil
    #: names whose sizes become much larger than all others, in this order
    largest: tuple[str, ...] = ()

    @property
    def decided(self) -> set[str]:
        """The names of sizes that a requirement determines."""
        return {each.name for each in self.requirements if each.decides}

    def adding(self, *added: Requirement) -> SizePlan:
        """Return the plan with more requirements."""
        return replace(self, requirements=(*self.requirements, *added))

    def without(self, *left_out: Requirement) -> SizePlan:
        """Return the plan without some requirements."""
        rest = tuple(each for each in self.requirements if each not in left_out)
        return replace(self, requirements=rest)

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
            size, factor = _required_size(by_name[name], sizes, least, turn)
            if size is None:
                others = {each[name] for each in earlier if each}
                taken = used | {each // factor for each in (self.original[name], *others)}  # not again
                first = (
                    min(LEAST[turn], self.original[name] + 3 * turn) if factor == 1 else SMALLEST[turn]
                )
                first = max(first, SMALLEST[0], -(-least // factor))
                primes = (n for n in itertools.count(first) if n not in taken and _is_prime(n))
                skip = turn % 2 if factor == 1 else 0  # or gaps between sizes might be the same again
                prime = next(itertools.islice(primes, skip, None))
                used.add(prime)
                size = factor * prime
            if size < 1:
                return None
            sizes[name] = size
            waiting.remove(name)
        return {name: sizes[name] for name in self.original}


def _required_size(
    requirements: Iterable[Requirement], sizes: Mapping[str, int], least: int, turn: int
) -> tuple[int | None, int]:
    """Return the size that requirements determine, None if they determine none; and what divides it."""
    factor, exact = 1, None
    for each in requirements:
        value = int(each.value.size(sizes))
        if each.is_fixed:
            return value, 1
        if each.form is not None:
            exact = next_of_form(each.form, max(least, (turn + 1) * value + 1))
        elif each.multiple:
            factor = lcm(factor, value)
        else:
            exact = value
    return exact, factor


@cache
def _is_prime(number: int) -> bool:
    return number > 1 and all(number % divisor for divisor in range(2, isqrt(number) + 1))
