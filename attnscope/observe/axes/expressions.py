"""Sizes as expressions, `d_feat/n_head` or `n_past+n_new`: the one algebra of shape comments, equations
and requirements.
"""

from __future__ import annotations

import ast
import re
from collections import defaultdict
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from fractions import Fraction
from functools import cached_property, lru_cache
from itertools import product
from typing import TypeAlias

MAX_TEXT = 100  # characters: a longer text is no axis

Powers: TypeAlias = tuple[tuple[str, int], ...]
"""The factors of a product with their powers; divisors have negative powers."""

_TOKEN = re.compile(r"\s*(?:(\d+)|([^\W\d]\w*)|(//|[*·×/+()-]))")


@dataclass(frozen=True, eq=False)
class Expression:
    """A sum of products of words and a number; the order of terms and factors does not matter."""

    #: each product's words, with their powers, and its number, in the order of the text
    terms: tuple[tuple[Powers, Fraction], ...]

    @cached_property
    def _unordered(self) -> frozenset[tuple[frozenset[tuple[str, int]], Fraction]]:
        return frozenset((frozenset(powers), number) for powers, number in self.terms)

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Expression) and self._unordered == other._unordered

    def __hash__(self) -> int:
        return hash(self._unordered)

    def __str__(self) -> str:
        text = ""
        for powers, number in self.terms:
            factors = [word for word, power in powers for _ in range(power)]
            divisors = [word for word, power in powers for _ in range(-power)]
            above, below = abs(number.numerator), number.denominator
            factors = [str(above), *factors] if above != 1 or not factors else factors
            divisors += [str(below)] if below != 1 else []
            sign = "-" if number < 0 else "+" if text else ""
            text += sign + "·".join(factors) + "".join(f"/{each}" for each in divisors)
        return text or "0"

    @cached_property
    def words(self) -> frozenset[str]:
        """The words in the expression."""
        return frozenset(word for powers, _ in self.terms for word, _ in powers)

    @property
    def word(self) -> str | None:
        """The word, if the expression is a single one; else None."""
        alone = next(iter(self.words), None)
        return alone if alone is not None and self == of_word(alone) else None

    @property
    def has_number(self) -> bool:
        """Whether the expression contains a number."""
        return any(number != 1 or not powers for powers, number in self.terms)

    @property
    def factors(self) -> tuple[str, ...]:
        """The factors of a product, repeated by their powers; empty for a sum."""
        ((powers, _),) = self.terms if len(self.terms) == 1 else (((), 0),)
        return tuple(word for word, power in powers for _ in range(power))

    @property
    def divisors(self) -> tuple[str, ...]:
        """The divisors of a product; empty for a sum."""
        return self.inverse().factors if len(self.terms) == 1 else ()

    def __add__(self, other: Expression) -> Expression:
        return _sum([*self.terms, *other.terms])

    def __sub__(self, other: Expression) -> Expression:
        return self + of_number(-1) * other

    def __mul__(self, other: Expression) -> Expression:
        if len(self.terms) == len(other.terms) == 1:  # the usual case, which is quick
            ((powers, number),), ((more, factor),) = self.terms, other.terms
            if number * factor:
                return Expression(((_product([*powers, *more]), number * factor),))
        return _sum(
            (_product([*powers, *more]), number * factor)
            for (powers, number), (more, factor) in product(self.terms, other.terms)
        )

    def inverse(self) -> Expression:
        """Return the reciprocal.

        Raises:
            ArithmeticError: it is a sum, or zero.
        """
        if len(self.terms) != 1:
            raise ArithmeticError("only a product can be divided by")
        ((powers, number),) = self.terms
        return _sum([(tuple((word, -power) for word, power in powers), 1 / number)])

    def of(self, values: Mapping[str, Expression]) -> Expression:
        """Substitute an expression for every word."""
        total = _sum([])
        for powers, number in self.terms:
            term = of_number(number)
            for word, power in powers:
                factor = values[word] if power > 0 else values[word].inverse()
                for _ in range(abs(power)):
                    term *= factor
            total += term
        return total

    def size(self, sizes: Mapping[str, int]) -> Fraction:
        """Return the value of the expression."""
        total = Fraction(0)
        for powers, number in self.terms:
            for word, power in powers:
                number *= Fraction(sizes[word]) ** power
            total += number
        return total


@lru_cache(maxsize=4096)
def of_word(word: str) -> Expression:
    """Return the expression of a single word."""
    return _sum([(((word, 1),), Fraction(1))])


@lru_cache(maxsize=4096)
def of_number(number: int | Fraction) -> Expression:
    """Return the expression of a number."""
    return _sum([((), Fraction(number))])


def product_of(
    factors: Iterable[str], number: int | Fraction = 1, divisors: Iterable[str] = ()
) -> Expression:
    """Return the product of words and a number, divided by other words."""
    powers = [*((word, 1) for word in factors), *((word, -1) for word in divisors)]
    return _sum([(_product(powers), Fraction(number))])


def sum_of(words: Iterable[str]) -> Expression:
    """Return the sum of words."""
    return _sum([(((word, 1),), Fraction(1)) for word in words])


def combined(
    operator: ast.operator, one: Expression | None, other: Expression | None
) -> Expression | None:
    """Return a sum, difference, product or quotient in Python; None if it is something else."""
    if one is None or other is None:
        return None
    match operator:
        case ast.Add():
            return one + other
        case ast.Sub():
            return one - other
        case ast.Mult():
            return one * other
        case ast.FloorDiv() | ast.Div() if len(other.terms) == 1:
            return one * other.inverse()
    return None


def parse_expression(text: str, longest: int = MAX_TEXT) -> Expression | None:
    """Parse an expression; return None if the text is not one, or longer than `longest` characters.

    >>> parse_expression("d_feat//n_head * n_head") == parse_expression("d_feat")
    True
    >>> str(parse_expression("2 * n_head * (d_K + d_V)"))
    '2·n_head·d_K+2·n_head·d_V'
    >>> parse_expression("see the paper") is None
    True
    """
    tokens, end, text = [], 0, text.strip()
    if not 0 < len(text) <= longest:
        return None
    while end < len(text):
        match = _TOKEN.match(text, end)
        if match is None:
            return None
        tokens.append(match.group().strip())
        end = match.end()
    reader = _Reader(tokens)
    try:
        result = reader.sum()
    except (ValueError, ArithmeticError):
        return None
    return None if reader.tokens else result


class _Reader:
    """A parser of expressions from tokens: sums of products of numbers, words and parentheses."""

    def __init__(self, tokens: list[str]) -> None:
        self.tokens = tokens[::-1]  # the next one is the last

    def sum(self) -> Expression:
        result = self.product()
        while self.tokens and self.tokens[-1] in "+-":
            sign = of_number(1 if self.tokens.pop() == "+" else -1)
            result += sign * self.product()
        return result

    def product(self) -> Expression:
        result = self.atom()
        while self.tokens and self.tokens[-1] in ("*", "·", "×", "/", "//"):
            divides = self.tokens.pop().startswith("/")
            factor = self.atom()
            result *= factor.inverse() if divides else factor
        return result

    def atom(self) -> Expression:
        token = self.tokens.pop() if self.tokens else ")"
        if token == "(":
            result = self.sum()
            if not self.tokens or self.tokens.pop() != ")":
                raise ValueError("a parenthesis is not closed")
            return result
        if token.isdecimal():
            return of_number(int(token))
        if not token.isidentifier():
            raise ValueError(f"{token} is not a word")
        return of_word(token)


def _sum(terms: Iterable[tuple[Powers, Fraction]]) -> Expression:
    total: dict[frozenset[tuple[str, int]], Fraction] = defaultdict(Fraction)
    order: dict[frozenset[tuple[str, int]], Powers] = {}
    for powers, number in terms:
        key = frozenset(powers)
        order.setdefault(key, powers)
        total[key] += number
    return Expression(tuple((order[key], number) for key, number in total.items() if number))


def _product(factors: Iterable[tuple[str, int]]) -> Powers:
    total: dict[str, int] = defaultdict(int)
    for word, power in factors:
        total[word] += power
    return tuple((word, power) for word, power in total.items() if power)
