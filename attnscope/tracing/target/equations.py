"""Equations between sizes: a name is a product or a quotient of names and numbers."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from fractions import Fraction
from math import prod

from attnscope.contracts import check_sizes
from attnscope.errors import OptionError, SizeError

NAME = r"[^\W\d]\w*"


@dataclass(frozen=True)
class Where:
    """An equation: a name is a product, divided by a product.

    >>> Where("d_head", ("d_feat",), ("n_head",), "d_head=d_feat/n_head").solve(
    ...     {"d_feat": 200, "n_head": 5}
    ... )
    ('d_head', 40)
    """

    name: str
    numerator: tuple[str | int, ...]
    denominator: tuple[str | int, ...]
    text: str

    @property
    def names(self) -> list[str]:
        """Every name in it, in the order in which they stand there."""
        factors = re.findall(NAME, self.text)
        return list(dict.fromkeys(factors))

    def solve(self, sizes: Mapping[str, int]) -> tuple[str, int] | None:
        """The one name that has no size, and the size that it must have; None if there is none such.

        Raises:
            SizeError: the sizes contradict the equation, or no whole number fulfills it.
        """
        left = [self.name, *self.denominator]
        unknown = [f for f in [*left, *self.numerator] if isinstance(f, str) and f not in sizes]
        if len(unknown) > 1:
            return None
        known_left, known_right = (
            prod(f if isinstance(f, int) else sizes[f] for f in side if f not in unknown)
            for side in (left, self.numerator)
        )
        if not unknown:
            if known_left != known_right:
                raise self._contradiction(sizes)
            return None
        name = unknown[0]
        ratio = Fraction(known_right, known_left)
        size = ratio if name in left else 1 / ratio
        if size.denominator != 1:
            said = ", ".join(f"{other} is {sizes[other]}" for other in self.names if other != name)
            raise SizeError(
                f"--where {self.text}: {said}, and so {name} would be {float(size):.4g},"
                " which is no whole number."
            )
        check_sizes({name: int(size)})
        return name, int(size)

    def _contradiction(self, sizes: Mapping[str, int]) -> SizeError:
        def value(factor: str | int) -> int:
            return factor if isinstance(factor, int) else sizes[factor]

        numerator, denominator = [[*map(value, side)] for side in (self.numerator, self.denominator)]
        right = "*".join(map(str, numerator)) + "".join(f"/{size}" for size in denominator)
        is_what = Fraction(prod(numerator), prod(denominator))
        shown = str(is_what) if is_what.denominator == 1 else f"{float(is_what):.4g}"
        equals = f" = {shown}" if right != shown else ""
        return SizeError(
            f"--where {self.text} does not hold: {self.name} is {sizes[self.name]},"
            f" and {self.text.split('=', 1)[1].strip()} is {right}{equals}."
        )


def read_where(text: str) -> Where:
    """An equation that `--where` gives.

    Raises:
        OptionError: it is not of the form name = product or quotient of names and numbers.
    """
    match = re.fullmatch(rf"\s*({NAME})\s*=([^=]+)", text)
    name, right = match.groups() if match else ("", "")
    pieces = [piece.strip() for piece in re.split(r"([*·/])", right)]
    factors, signs = pieces[::2], ["*", *pieces[1::2]]
    if not all(re.fullmatch(rf"{NAME}|[0-9]{{1,19}}", factor) for factor in factors):
        raise OptionError(
            f"--where {text} is not of the form NAME=A*B or NAME=A/B, of names and numbers.",
            hint="--where d_feat=n_head*d_head, or --where d_head=d_feat/n_head",
        )
    numbers = {f"{factor} in --where {text}": int(factor) for factor in factors if factor.isdecimal()}
    check_sizes(numbers)
    parsed = [int(factor) if factor.isdecimal() else factor for factor in factors]
    both = list(zip(signs, parsed, strict=True))
    above = tuple(factor for sign, factor in both if sign != "/")
    below = tuple(factor for sign, factor in both if sign == "/")
    return Where(name, above, below, text)
