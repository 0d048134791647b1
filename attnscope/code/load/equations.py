"""Equations between sizes: a name equals an expression of names and numbers."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from fractions import Fraction

from attnscope.base.errors import OptionError, SizeError
from attnscope.base.sizes import check_sizes
from attnscope.observe.axes.expressions import Expression, parse_expression

NAME = r"[^\W\d]\w*"


@dataclass(frozen=True)
class Where:
    """An equation: a name equals a sum of products of names and numbers, possibly divided by others.

    >>> read_where("d_head=d_feat/n_head").solve({"d_feat": 200, "n_head": 5})
    ('d_head', 40)
    >>> read_where("n_distance=2*n-1").solve({"n_distance": 13})
    ('n', 7)
    """

    name: str
    value: Expression
    text: str

    @property
    def names(self) -> list[str]:
        """The names in the equation, in order."""
        factors = re.findall(NAME, self.text)
        return list(dict.fromkeys(factors))

    def solve(self, sizes: Mapping[str, int]) -> tuple[str, int] | None:
        """Return the only name without a size, and the size that it must have; None if there is none."""
        unknown = [each for each in dict.fromkeys((self.name, *self._words)) if each not in sizes]
        if len(unknown) > 1 or (unknown == [self.name] and self.follows_from_itself):
            return None
        if not unknown:
            if self.value.size(sizes) != sizes[self.name]:
                raise self._contradiction(sizes)
            return None
        name = unknown[0]
        size = self.value.size(sizes) if name == self.name else self._solve_for(name, sizes)
        if size is None:
            return None
        if size.denominator != 1:
            known = ", ".join(f"{other} is {sizes[other]}" for other in self.names if other != name)
            raise SizeError(
                f"--where {self.text}: {known}, and so {name} would be {float(size):.4g}, which is"
                " not a whole number."
            )
        check_sizes({name: int(size)})
        return name, int(size)

    @property
    def follows_from_itself(self) -> bool:
        """Whether the name is on the right, too: such an equation is checked, but determines no size."""
        return self.name in self._words

    @property
    def _words(self) -> list[str]:
        """The names on the right, in order."""
        return [word for powers, _ in self.value.terms for word, _ in powers]

    def _solve_for(self, name: str, sizes: Mapping[str, int]) -> Fraction | None:
        """Return the size of a name on the right; None if it occurs twice, or squared."""
        terms = [term for term in self.value.terms if name in dict(term[0])]
        ((powers, number),) = terms if len(terms) == 1 else (((), Fraction(1)),)
        if abs(dict(powers).get(name, 0)) != 1:
            return None
        others = Expression(tuple(term for term in self.value.terms if term not in terms))
        difference = sizes[self.name] - others.size(sizes)
        factor = Expression((((*(each for each in powers if each[0] != name),), number),)).size(sizes)
        if not difference:
            raise self._contradiction({**sizes, name: 0})
        return difference / factor if dict(powers)[name] == 1 else factor / difference

    def _contradiction(self, sizes: Mapping[str, int]) -> SizeError:
        right = self.text.split("=", 1)[1].strip()
        numbers = re.sub(NAME, lambda name: str(sizes.get(name[0], name[0])), right)
        numbers = re.sub(r"\s", "", numbers).replace("·", "*")
        value = self.value.size(sizes)
        shown = str(value) if value.denominator == 1 else f"{float(value):.4g}"
        equals = f" = {shown}" if numbers != shown else ""
        return SizeError(
            f"--where {self.text} does not hold: {self.name} is {sizes[self.name]},"
            f" and {right} is {numbers}{equals}."
        )


def read_where(text: str) -> Where:
    """Parse an equation of `--where`."""
    match = re.fullmatch(rf"\s*({NAME})\s*=([^=]+)", text)
    name, right = match.groups() if match else ("", "")
    factors = [factor.strip() for factor in re.split(r"[*·/+()-]+", right) if factor.strip()]
    value = parse_expression(right, longest=len(right))
    if value is None or not all(re.fullmatch(rf"{NAME}|[0-9]{{1,19}}", factor) for factor in factors):
        raise OptionError(
            f"--where {text.strip() or '(nothing)'} is not of the form NAME=EXPRESSION, with names and"
            " numbers joined by * / + -.",
            hint="--where d_feat=n_head*d_head, or --where n_distance=2*n-1",
        )
    check_sizes({f"{factor} in --where {text}": int(factor) for factor in factors if factor.isdecimal()})
    return Where(name, value, text)
