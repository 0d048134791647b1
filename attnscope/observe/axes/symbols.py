"""Expressions for sizes, found from how they change with the named sizes."""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from fractions import Fraction
from functools import cache, cached_property
from itertools import combinations, combinations_with_replacement, permutations
from math import comb, prod
from typing import TYPE_CHECKING, NamedTuple

from attnscope.observe.axes.expressions import Expression, of_word, parse_expression, product_of

if TYPE_CHECKING:
    from attnscope.observe.axes.from_source import ObservedAxes
    from attnscope.observe.diagnose.crash import FailedTensor
    from attnscope.observe.trace import Step

Sizes = Sequence[int | None]
"""The values of one size in several runs; None for a run without it."""

LARGEST_FACTOR = 64
"""The largest factor of a name that counts as an explanation."""

LARGEST_OF_TWO, MOST_OF_TWO = 4, 3
"""The largest factor and the most names, where only two runs are compared: more may fit by chance."""


LARGE = 8
"""The least size that names an axis although it is one of several that were not found to vary."""

MOST_MONOMIALS, MOST_SUMS = 60_000, 12_000
"""The maximal numbers of products and sums to try; of many names, only simple ones are tried."""


class Monomial(NamedTuple):
    """A product of names over a product of others, and the value of each product in every run."""

    above: tuple[str, ...]
    below: tuple[str, ...]
    values_above: tuple[int, ...]
    values_below: tuple[int, ...]


class AxisOrigin(NamedTuple):
    """What the code says of an axis."""

    whole: frozenset[str] = frozenset()  #: the named sizes that it is
    within: frozenset[str] = frozenset()  #: those that its size consists of
    #: the sum, product or quotient of names that its size is, if all of it is known
    text: str | None = None


class Symbols:
    """The named sizes, each with its value in every run.

    >>> symbols = Symbols({"n_Q": (32, 7, 11), "d_feat": (200, 65, 119), "n_head": (5, 5, 7)})
    >>> [
    ...     symbols.explain(v)
    ...     for v in [(32, 7, 11), (40, 13, 17), (600, 195, 357), (3, 3, 3), (33, 8, None)]
    ... ]
    ['n_Q', 'd_feat/n_head', '3·d_feat', '3', 'n_Q+1']
    """

    def __init__(
        self,
        sizes: Mapping[str, Sequence[int]],
        unsure: Collection[str] = frozenset(),
        tied: Collection[str] = frozenset(),
    ) -> None:
        #: names of sizes that stay because nothing else was found to run. Several small ones of these
        #: name no axis: their products and sums fit by chance.
        self.unsure = unsure
        self.tied = tied  #: names of sizes that follow each other because nothing else was found to run
        #: by name, in order of preference
        self.sizes = {name: tuple(each) for name, each in sizes.items()}
        self._known: dict[tuple[Sizes, AxisOrigin | None], str] = {}
        self._of_runs: dict[tuple[tuple[int, ...], frozenset[str], frozenset[str] | None], Names] = {}

    def explain(self, sizes: Sizes, origin: AxisOrigin | None = None) -> str:
        """Express a size as a name, a product, quotient or sum of names, or else as its first value.

        Args:
            sizes: its value in each run; None for a run without it.
            origin: where the code takes it from: a name that kept its size in these runs may equal it by
                chance, and so may one that only followed others; it is used only if the code says so.
                None: it is used wherever it fits.
        """
        key = tuple(sizes), origin
        if key not in self._known:
            runs = tuple(run for run, size in enumerate(sizes) if size is not None)
            values = tuple(sizes[run] or 0 for run in runs)
            self._known[key] = self._explain(runs, values, origin) or str(values[0])
        return self._known[key]

    def _explain(
        self, runs: tuple[int, ...], values: tuple[int, ...], origin: AxisOrigin | None
    ) -> str | None:
        """Express a size in names; a sum rather in those that the code says it consists of."""
        if origin is None:
            return self._names(runs, None).explain(values)
        name = self._names(runs, origin.within).explain(values, origin.whole)
        if name is None:
            return origin.text
        if not origin.within or not {"+", "-"} & set(name):  # products do not fit by chance
            return name
        return self._names(runs, origin.within, origin.within).explain(values, origin.whole) or name

    def _names(
        self,
        runs: tuple[int, ...],
        within: frozenset[str] | None,
        names: frozenset[str] | None = None,
    ) -> Names:
        """Return all names, or some, with their values in some runs."""
        key = runs, frozenset(self.sizes) if names is None else names, within
        if key not in self._of_runs:
            some = {name: each for name, each in self.sizes.items() if name in key[1]}
            sizes = {name: tuple(each[i] for i in runs) for name, each in some.items()}
            self._of_runs[key] = Names(sizes, self.unsure, self.tied, within)
        return self._of_runs[key]


class Names:
    """The names and their values in a subset of the runs."""

    def __init__(
        self,
        sizes: Mapping[str, tuple[int, ...]],
        unsure: Collection[str] = frozenset(),
        tied: Collection[str] = frozenset(),
        within: Collection[str] | None = None,
    ) -> None:
        self.sizes = sizes  #: the values, by name
        self.varying = {
            name: each
            for name, each in sizes.items()
            if len(set(each)) > 1 and (within is None or name in within or name not in tied)
        }
        fixed = {each[0]: name for name, each in sizes.items() if len(set(each)) == 1 and each[0] > 3}
        small = [size for size, name in fixed.items() if name in unsure and size < LARGE]
        #: unchanged sizes that may name an axis: not a constant's, nor one of several small ones
        self.fixed = {
            size: name
            for size, name in fixed.items()
            if (len(small) < 2 or size not in small) and (within is None or name in within)
        }

    @property
    def _only_two_runs(self) -> bool:
        """Whether there are only two runs to compare."""
        return any(len(each) == 2 for each in self.sizes.values())

    def explain(self, sizes: tuple[int, ...], whole: Collection[str] | None = None) -> str | None:
        """Return the expression of a size with these values in the runs, if there is one.

        Args:
            whole: the names that a size may have which stays as they do; None: all.
        """
        same = [name for name, each in self.sizes.items() if each == sizes]
        if len(sizes) < 2:  # the code alone says what it is
            return next((name for name in same if whole and name in whole), None)
        if len(set(sizes)) == 1:  # it may equal an unchanged name by chance: ambiguous if there are two
            if whole is not None:
                return next((name for name in same if name in whole and sizes[0] > 1), None)
            return self.fixed.get(sizes[0]) if len(same) == 1 else None
        same = [name for name in same if name in self.varying]
        if same:
            return next((name for name in same if whole and name in whole), same[0])
        found = self._product(sizes) or _sum(sizes, self.varying, self.fixed)
        return found or self._sum_of_products(sizes)

    @cached_property
    def monomials(self) -> list[Monomial]:
        """Quotients of products of names; simple ones first."""
        products = _monomials(tuple(self.varying))
        if self._only_two_runs:
            products = [each for each in products if len(each[0]) + len(each[1]) <= MOST_OF_TWO]
        values = {names: self._values(names) for names in {names for each in products for names in each}}
        return [Monomial(above, below, values[above], values[below]) for above, below in products]

    @cached_property
    def _wholes(self) -> dict[tuple[int, ...], str]:
        """Products of up to three names, or of two over another, by their values (integers only)."""
        found: dict[tuple[int, ...], str] = {}
        for each in self.monomials:
            if len(each.above) + len(each.below) <= 3 and len(each.below) <= 1:
                pairs = list(zip(each.values_above, each.values_below, strict=True))
                if each.values_above != each.values_below and all(
                    high % low == 0 for high, low in pairs
                ):
                    text = _written(Fraction(1), each.above, each.below, {})
                    found.setdefault(tuple(high // low for high, low in pairs), text)
        return found

    def _values(self, names: tuple[str, ...]) -> tuple[int, ...]:
        columns = zip(*(self.sizes[name] for name in names), strict=True)
        return tuple(map(prod, columns)) if names else (1,) * len(next(iter(self.sizes.values())))

    def _product(self, sizes: tuple[int, ...]) -> str | None:
        """Return the simplest matching quotient of products of names."""
        if 0 in sizes:
            return None
        largest = LARGEST_OF_TWO if self._only_two_runs else LARGEST_FACTOR
        best: tuple[tuple, str] | None = None
        for above, below, high, low in self.monomials:
            count = len(above) + len(below)
            if best is not None and count > best[0][0]:
                break
            top, bottom = sizes[0] * low[0], high[0]  # the size is top/bottom times the monomial
            if sizes[1] * low[1] * bottom != top * high[1]:
                continue
            if any(sizes[i] * low[i] * bottom != top * high[i] for i in range(2, len(sizes))):
                continue
            number = Fraction(top, bottom)
            if any(n > largest and n not in self.fixed for n in number.as_integer_ratio()):
                continue
            cost = (count + 2 * (number != 1), number.denominator, len(below))
            if best is None or cost < best[0]:
                best = cost, _written(number, above, below, self.fixed)
        return best and best[1]

    def _sum_of_products(self, sizes: tuple[int, ...]) -> str | None:
        """Return a matching sum: a product plus or minus another, twice another, or a small number.

        A projection to queries, and to keys and values, is as wide as `d_feat+2·n_kv_head·d_head`; the
        channels that rotary positions leave alone number `d_feat/n_head-d_rot`.
        """
        constants = [(size, f"+{name}·") for size, name in self.fixed.items()]
        for values, text in self._wholes.items() if not self._only_two_runs else ():
            for times, sign in ((1, "+"), (2, "+2·"), (-1, "-"), *constants):
                rest = tuple(size - times * value for size, value in zip(sizes, values, strict=True))
                if rest in self._wholes:
                    return f"{self._wholes[rest]}{sign}{text}"
            numbers = {size - value for size, value in zip(sizes, values, strict=True)}
            if len(numbers) == 1 and abs(number := numbers.pop()) <= 2:
                return text + (f"{number:+d}" if number else "")
        return None


def _sum(
    sizes: Sequence[int], names: Mapping[str, Sequence[int]], fixed: Mapping[int, str]
) -> str | None:
    """Return a matching sum or difference of names, twice a name, and a small number or a fixed size."""
    for count in (1, 2, 3):
        if comb(len(names), count) > MOST_SUMS:
            break
        found: dict[int, str] = {}  # by the number that is left: a sum without one is simpler
        for some in combinations(names, count):
            for times in (1, 2) if count == 1 else (1,):
                rest = {
                    size - times * sum(names[n][run] for n in some) for run, size in enumerate(sizes)
                }
                if len(rest) == 1 and (abs(number := rest.pop()) <= 4 or number in fixed):
                    text = "+".join(some) if times == 1 else f"{times}·{some[0]}"
                    found.setdefault(number, text)
        if found:
            number = 0 if 0 in found else next(iter(found))
            end = f"+{fixed[number]}" if number in fixed else f"{number:+d}" if number else ""
            return found[number] + end
    for name, each in names.items():  # half a spectrum
        rest = {2 * size - each[run] for run, size in enumerate(sizes)}
        if len(rest) == 1 and (number := rest.pop()) in (2, 4):
            return f"{name}/2+{number // 2}"
    for one, other in permutations(names, 2) if len(names) ** 2 <= 2 * MOST_SUMS else ():
        if all(names[one][run] - names[other][run] == size for run, size in enumerate(sizes)):
            return f"{one}-{other}"
    return None


@cache
def _monomials(names: tuple[str, ...]) -> list[tuple[tuple[str, ...], tuple[str, ...]]]:
    """Return products of up to three names, over up to two others; simple ones first."""
    result: list[tuple[tuple[str, ...], tuple[str, ...]]] = []
    for below_count in range(3):
        for above_count in range(1, 4 if len(names) <= 8 else 3):
            counts = (above_count, below_count)
            if prod(comb(len(names) + each - 1, each) for each in counts if each) > MOST_MONOMIALS:
                continue
            for above in combinations_with_replacement(names, above_count):
                others = [name for name in names if name not in above]
                result += [
                    (above, below) for below in combinations_with_replacement(others, below_count)
                ]
    return sorted(result, key=lambda each: len(each[0]) + len(each[1]))


def _written(
    number: Fraction, above: Sequence[str], below: Sequence[str], names: Mapping[int, str]
) -> str:
    factors = sorted(above, key=lambda name: name.startswith("d_"))  # counts first, as in n_head·d_head
    divisors = list(below)
    if number.numerator in names:
        number, factors = number / number.numerator, [names[number.numerator], *factors]
    if number.denominator in names:
        number, divisors = number * number.denominator, [*divisors, names[number.denominator]]
    return str(product_of(factors, number, divisors))


class AxisOrigins:
    """What one run of the code says of the axes of its steps.

    Where a size is the same in all runs, an axis of the same size may be another one by chance: a third
    of a head is as long as the sequence. Then it has the name only if the code says that it is this one.
    """

    def __init__(
        self,
        observed: ObservedAxes,
        names: Collection[str],
        equations: Iterable[tuple[str, Expression]],
    ) -> None:
        self.observed = observed  #: where the axes come from
        self.sizes = observed.sizes_by_step()
        self.values = {name: observed.values_of(name) for name in names}
        quotients = ((name, parse_expression(name)) for name in names if not name.isidentifier())
        for name, expression in (*equations, *quotients):
            known = {
                word: self.values.get(word, ()) for word in (expression.words if expression else ())
            }
            if expression and name in self.values and all(len(each) == 1 for each in known.values()):
                value = expression.of({word: next(iter(each)) for word, each in known.items()})
                self.values[name].add(observed.flow.resolved(value))

    def of_step(self, step: Step) -> tuple[AxisOrigin, ...]:
        """Find where the code gets the size of each axis of a step."""
        return self._origins(self.sizes.get(id(step)), len(step.shape))

    def of_part(self, part: FailedTensor) -> tuple[AxisOrigin, ...]:
        """Find where the code gets the size of each axis of an expression."""
        return self._origins(self.observed.sizes_of_part(part), len(part.shape))

    def _origins(self, sizes: list[Expression | None] | None, n_axes: int) -> tuple[AxisOrigin, ...]:
        known = sizes if sizes is not None and len(sizes) == n_axes else [None] * n_axes
        return tuple(map(self._of_size, known))

    def _of_size(self, size: Expression | None) -> AxisOrigin:
        """Return the names that a size is, and those that it consists of."""
        if size is None:
            return AxisOrigin()
        whole = {name for name, values in self.values.items() if size in values}
        within = {
            name
            for name, values in self.values.items()
            if any(value.words and value.words <= size.words for value in values)
        }
        return AxisOrigin(frozenset(whole), frozenset(whole | within), self._in_names(size))

    def _in_names(self, size: Expression) -> str | None:
        """Return a sum, product or quotient of names; None if a part of it has no name."""
        if size.word is not None:
            return None
        names = {}
        for word in size.words:
            known = (name for name, values in self.values.items() if of_word(word) in values)
            names[word] = next(known, None)
        if not names or None in names.values():
            return None
        return str(size.of({word: of_word(name) for word, name in names.items() if name}))


# From call to call.

StepKey = tuple[str | None, int | None, str, int]
"""A step's file, line and name, and how often it has occurred."""


def name_by_changes(calls: Sequence[Sequence[Step]]) -> None:
    """Name axes without a name that change as an axis of an argument does, from call to call.

    Where an operator hides the origin of an axis, several calls may tell: an axis that has the size of
    `T` in each of them, while `T` changes, is `T`. Only axes of the call's arguments lend their names,
    because they are what a program changes; and only if one of them alone has these sizes, with a name
    or without.
    """
    by_key = [dict(zip(_keys(steps), steps, strict=True)) for steps in calls]
    rows = [
        [steps[key] for steps in by_key]
        for key in (by_key[0] if by_key else ())
        if all(key in steps and steps[key].dims for steps in by_key)
    ]
    names: dict[tuple[int, ...], set[str]] = {}  # of the arguments' axes
    for steps in rows:
        if steps[0].is_input:
            for sizes, words in _axes(steps):
                names.setdefault(sizes, set()).update(words)
    for steps in rows:
        for axis, (sizes, words) in enumerate(_axes(steps)):
            known = names.get(sizes, set())
            unnamed = all(word.isdigit() for word in words) and not steps[0].is_input
            if len(set(sizes)) > 1 and unnamed and len(known) == 1 and not next(iter(known)).isdigit():
                for step in steps:
                    dims = [*(step.dims or ())]
                    dims[axis : axis + 1] = known
                    step.dims = tuple(dims)


def _keys(steps: Sequence[Step]) -> Iterator[StepKey]:
    counts: Counter[tuple[str | None, int | None, str]] = Counter()
    for step in steps:
        place = step.file, step.line, step.name
        counts[place] += 1
        yield *place, counts[place]


def _axes(steps: Sequence[Step]) -> Iterator[tuple[tuple[int, ...], set[str]]]:
    """Yield the sizes of each axis of a tensor in all calls, and its names; none if they differ."""
    if len({len(step.shape) for step in steps}) == 1:
        dims = zip(*(step.dims or () for step in steps), strict=True)
        for sizes, words in zip(zip(*(step.shape for step in steps), strict=True), dims, strict=True):
            yield sizes, set(words)
