"""Axes as expressions, `d_feat/n_head` or `n_past + n_new`, so that equal ones are found to be equal."""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from fractions import Fraction
from itertools import product
from typing import TypeAlias

LONGEST = 100  # characters: what is longer is no axis

Powers: TypeAlias = tuple[tuple[str, int], ...]
"""The factors of a product, sorted; the power of what is divided by is negative."""

_TOKEN = re.compile(r"\s*(?:(\d+)|([^\W\d]\w*)|(//|[*·×/+()-]))")


@dataclass(frozen=True)
class Expression:
    """A sum of products of words and a number.

    Attributes:
        terms: each product's words, with their powers, and its number.
    """

    terms: frozenset[tuple[Powers, Fraction]]

    @property
    def words(self) -> set[str]:
        """The words in it."""
        return {word for powers, _ in self.terms for word, _ in powers}

    @property
    def word(self) -> str | None:
        """The word, if it is nothing else."""
        alone = next(iter(self.words), None)
        return alone if alone is not None and self == of_word(alone) else None

    @property
    def has_number(self) -> bool:
        """Whether there is a number in it."""
        return any(number != 1 or not powers for powers, number in self.terms)

    def __add__(self, other: Expression) -> Expression:
        return _sum([*self.terms, *other.terms])

    def __mul__(self, other: Expression) -> Expression:
        return _sum(
            (_product([*powers, *more]), number * factor)
            for (powers, number), (more, factor) in product(self.terms, other.terms)
        )

    def inverse(self) -> Expression:
        """One over it.

        Raises:
            ArithmeticError: it is a sum, or zero.
        """
        if len(self.terms) != 1:
            raise ArithmeticError("only a product can be divided by")
        ((powers, number),) = self.terms
        return _sum([(tuple((word, -power) for word, power in powers), 1 / number)])

    def of(self, values: Mapping[str, Expression]) -> Expression:
        """The expression with every word replaced by what it stands for.

        Raises:
            ArithmeticError: this would divide by a sum.
        """
        total = _sum([])
        for powers, number in self.terms:
            term = _sum([((), number)])
            for word, power in powers:
                factor = values[word] if power > 0 else values[word].inverse()
                for _ in range(abs(power)):
                    term *= factor
            total += term
        return total

    def size(self, sizes: Mapping[str, int]) -> Fraction:
        """How much it is.

        Raises:
            ArithmeticError: this would divide by zero.
        """
        total = Fraction(0)
        for powers, number in self.terms:
            for word, power in powers:
                number *= Fraction(sizes[word]) ** power
            total += number
        return total


def of_word(word: str) -> Expression:
    """The expression that is one word."""
    return _sum([(((word, 1),), Fraction(1))])


def parsed(text: str) -> Expression | None:
    """The expression that a text is; None if it is none.

    >>> parsed("d_feat//n_head * n_head") == parsed("d_feat")
    True
    >>> parsed("see the paper") is None
    True
    """
    tokens, end, text = [], 0, text.strip()
    if not 0 < len(text) <= LONGEST:
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
    """Reads an expression from its tokens: a sum of products of numbers, words and parentheses."""

    def __init__(self, tokens: list[str]) -> None:
        self.tokens = tokens[::-1]  # the next one is the last

    def sum(self) -> Expression:
        result = self.product()
        while self.tokens and self.tokens[-1] in "+-":
            sign = Fraction(1 if self.tokens.pop() == "+" else -1)
            result += _sum([((), sign)]) * self.product()
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
            return _sum([((), Fraction(int(token)))])
        if not token.isidentifier():
            raise ValueError(f"{token} is no word")
        return of_word(token)


def _sum(terms: Iterable[tuple[Powers, Fraction]]) -> Expression:
    total: dict[Powers, Fraction] = defaultdict(Fraction)
    for powers, number in terms:
        total[powers] += number
    return Expression(frozenset((powers, number) for powers, number in total.items() if number))


def _product(factors: Iterable[tuple[str, int]]) -> Powers:
    total: dict[str, int] = defaultdict(int)
    for word, power in factors:
        total[word] += power
    return tuple(sorted((word, power) for word, power in total.items() if power))
