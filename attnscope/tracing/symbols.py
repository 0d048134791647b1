"""Says what a size is, from how it changes when the sizes that have names change."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from fractions import Fraction
from itertools import combinations, combinations_with_replacement, permutations
from math import prod

Sizes = Sequence[int | None]
"""What one size was in each of several runs; None in those that it was not seen in."""

LARGEST_FACTOR = 64
"""A number of more than this in front of a name explains nothing."""


class Symbols:
    """The names that sizes have, each with what it stood for in every run.

    Args:
        sizes: by name; in the order in which they were said, which is how well they are liked.

    >>> symbols = Symbols({"n_Q": (32, 7, 11), "d_feat": (200, 65, 119), "n_head": (5, 5, 7)})
    >>> [
    ...     symbols.explain(v)
    ...     for v in [(32, 7, 11), (40, 13, 17), (600, 195, 357), (3, 3, 3), (33, 8, None)]
    ... ]
    ['n_Q', 'd_feat/n_head', '3·d_feat', '3', 'n_Q+1']
    """

    def __init__(self, sizes: Mapping[str, Sequence[int]]) -> None:
        self.sizes = {name: tuple(each) for name, each in sizes.items()}
        self._known: dict[Sizes, str] = {}

    def explain(self, sizes: Sizes) -> str:
        """A size as a name, a product or quotient of names, or a sum; else as the number it is first.

        Args:
            sizes: what it was in each run.
        """
        key = tuple(sizes)
        if key not in self._known:
            runs = [run for run, size in enumerate(key) if size is not None]
            seen = [size for size in key if size is not None]
            names = {name: [each[run] for run in runs] for name, each in self.sizes.items()}
            self._known[key] = _explanation(seen, names) or str(seen[0])
        return self._known[key]


def _explanation(sizes: list[int], names: dict[str, list[int]]) -> str | None:
    if len(sizes) == 1:
        return None
    same = [name for name, each in names.items() if each == sizes]
    if len(set(sizes)) == 1:  # it may be equal by chance to a name that did not change: not if to two
        return same[0] if len(same) == 1 and sizes[0] > 3 else None
    varying = {name: each for name, each in names.items() if len(set(each)) > 1}
    fixed = {each[0]: name for name, each in names.items() if len(set(each)) == 1 and each[0] > 3}
    return same[0] if same else _product(sizes, varying, fixed) or _sum(sizes, varying)


def _product(sizes: list[int], names: Mapping[str, list[int]], fixed: Mapping[int, str]) -> str | None:
    """A product of names, over a product of others; the simplest that there is."""
    if 0 in sizes:
        return None
    best: tuple[tuple, str] | None = None
    for above, below in _monomials(list(names)):
        factor: set[Fraction] = {
            Fraction(size)
            * prod(Fraction(names[name][run]) for name in below)
            / prod(Fraction(names[name][run]) for name in above)
            for run, size in enumerate(sizes)
        }
        if len(factor) > 1:
            continue
        (number,) = factor
        if any(n > LARGEST_FACTOR and n not in fixed for n in number.as_integer_ratio()):
            continue
        cost = (len(above) + len(below) + 2 * (number != 1), number.denominator, len(below))
        if best is None or cost < best[0]:
            best = cost, _written(number, above, below, fixed)
    return best and best[1]


def _sum(sizes: list[int], names: Mapping[str, list[int]]) -> str | None:
    """A sum of names, or the double of one, and a small number; or a difference."""
    for count in (1, 2, 3):
        for some in combinations(names, count):
            for times in (1, 2) if count == 1 else (1,):
                rest = {
                    size - times * sum(names[n][run] for n in some) for run, size in enumerate(sizes)
                }
                if len(rest) == 1 and abs(number := rest.pop()) <= 4:
                    text = "+".join(some) if times == 1 else f"{times}·{some[0]}"
                    return text + (f"{number:+d}" if number else "")
    for one, other in permutations(names, 2):
        if all(names[one][run] - names[other][run] == size for run, size in enumerate(sizes)):
            return f"{one}-{other}"
    return None


def _monomials(names: list[str]) -> list[tuple[tuple[str, ...], tuple[str, ...]]]:
    """Products of up to three names, over up to two others; the simple ones first."""
    result = []
    for below_count in range(3):
        for above_count in range(1, 4 if len(names) <= 8 else 3):
            for above in combinations_with_replacement(names, above_count):
                others = [name for name in names if name not in above]
                result += [
                    (above, below) for below in combinations_with_replacement(others, below_count)
                ]
    return sorted(result, key=lambda each: len(each[0]) + len(each[1]))


def _written(
    number: Fraction, above: Sequence[str], below: Sequence[str], names: Mapping[int, str]
) -> str:
    numerator, denominator = (names.get(n, str(n)) if n != 1 else "" for n in number.as_integer_ratio())
    counts_first = sorted(above, key=lambda name: name.startswith("d_"))  # as in n_head·d_head
    factors = [each for each in (numerator, *counts_first) if each]
    return "·".join(factors) + "".join(f"/{each}" for each in (*below, denominator) if each)
