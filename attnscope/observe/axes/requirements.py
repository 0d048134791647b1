"""Requirements on sizes: a size equals an expression of others, or is a multiple of one."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from math import isqrt

from attnscope.observe.axes.expressions import Expression, of_number, of_word, product_of, sum_of


@dataclass(frozen=True)
class Requirement:
    """The requirement that a size equals an expression of other sizes, or a multiple of it.

    Attributes:
        name: the size's name.
        value: the expression; for a power of two and a square, the original size.
        multiple: whether the size is a multiple of it.
        form: `power of two` or `square`, if that is required.
    """

    name: str
    value: Expression
    multiple: bool = False
    form: str | None = None

    def __str__(self) -> str:
        if self.form is not None:
            return f"{self.name} is a {self.form}"
        return f"{self.name} {'is a multiple of' if self.multiple else '='} {self.value}"

    @property
    def of(self) -> tuple[str, ...]:
        """The names of the other sizes; a squared one is listed twice."""
        return self.value.factors or tuple(
            dict.fromkeys(word for powers, _ in self.value.terms for word, _ in powers)
        )

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


def sum_with_number(name: str, of: str, times: int, number: int) -> Requirement:
    """Require a size to be another size, or twice it, plus or minus a number: `2·L-1`."""
    return Requirement(name, product_of([of], times) + of_number(number))


def required_by(
    equations: Iterable[tuple[str, Expression]], original: Mapping[str, int]
) -> Iterator[Requirement]:
    """Turn the user's statements about sizes into requirements.

    Args:
        equations: names, each with the expression that it equals.
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
