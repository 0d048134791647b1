"""The sizes of all names of axes and arguments, on which all specifications and equations must agree."""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from fractions import Fraction

from attnscope.base.errors import OptionError, SizeError
from attnscope.base.sizes import Sizes, called, check_sizes, shape_of
from attnscope.base.spelling import spelled
from attnscope.code.load.specs import (
    NAME,
    Computed,
    Configuration,
    Input,
    InputTuple,
    Plain,
    Same,
    TensorSpec,
    Value,
    nested,
    not_a_value,
    numbers_in,
)
from attnscope.observe.axes.expressions import Expression, parse_expression


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
                f"{spelled('where', self.text)}: {known}, and so {name} would be {float(size):.4g},"
                " which is not a whole number."
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
            f"{spelled('where', self.text)} does not hold: {self.name} is {sizes[self.name]}, and"
            f" {right} is {numbers}{equals}."
        )


def read_where(text: str) -> Where:
    """Parse an equation of `--where`."""
    match = re.fullmatch(rf"\s*({NAME})\s*=([^=]+)", text)
    name, right = match.groups() if match else ("", "")
    factors = [factor.strip() for factor in re.split(r"[*·/+()-]+", right) if factor.strip()]
    value = parse_expression(right, longest=len(right))
    if value is None or not all(re.fullmatch(rf"{NAME}|[0-9]{{1,19}}", factor) for factor in factors):
        raise OptionError(
            f"{spelled('where', text.strip() or '(nothing)')} is not of the form NAME=EXPRESSION,"
            " with names and numbers joined by * / + -.",
            hint=f"{spelled(where='d_feat=n_head*d_head')}, or {spelled(where='n_distance=2*n-1')}",
        )
    check_sizes(
        {
            f"{factor} in {spelled('where', text)}": int(factor)
            for factor in factors
            if factor.isdecimal()
        }
    )
    return Where(name, value, text)


EXAMPLE = 48
"""The size in hints."""


@dataclass(frozen=True)
class Argument:
    """One input."""

    label: str  #: the parameter's name; `args[0]` for the first of `*args`
    name: str | None  #: the name that the user gives; None for a positional argument
    value: Input | Same

    def tensors(self) -> list[tuple[str, TensorSpec]]:
        """Return its tensors, each with its label: `name[0]` for the first of a tuple."""
        return list(_tensors(self.label, self.value))


def agree_on_sizes(
    init: Mapping[str, Value],
    inputs: Sequence[Argument],
    where: Sequence[Where],
    defaults: Mapping[str, int],
    title: str,
    option: str,
) -> tuple[dict[str, int], set[str]]:
    """Return every size that has a name, and the names whose sizes the user sets.

    A name of an axis or of an equation stands for one size everywhere; without a specification, it has
    the default of that name. Integer arguments that are not axes are sizes too, unless two of them have
    the same name and differ, as in two configurations.

    The sizes are in the order of the inputs, the constructor's arguments and the equations; last come
    the inputs that are numbers. `title` and `option` name, in hints, what has the defaults and how to
    replace them.
    """
    tensors = [pair for argument in inputs for pair in argument.tensors()]
    axes = [axis.name for _, tensor in tensors for axis in tensor.axes or () if axis.name]
    bounds = [tensor.high for _, tensor in tensors if isinstance(tensor.high, str)]
    in_equations = [name for equation in where for name in equation.names]
    constructed = [(("init", name), name, value) for name, value in init.items()]
    passed = [
        (("inputs", each.label), each.label, each.value)
        for each in inputs
        if not isinstance(each.value, Same)
    ]
    computed = [
        (place, name, each)
        for place, label, value in [*constructed, *passed]
        for name, each in nested(label, value)
        if isinstance(each, Computed)
    ]
    in_values = [word for *_, each in computed for word in sorted(each.value.words)]
    shared = {*axes, *bounds, *in_equations, *in_values}

    sizes = Sizes({}, {})
    for label, tensor in tensors:
        _learn_axes(sizes, label, tensor)
    numbers = [
        (name, place, size)
        for place, label, value in [
            *constructed,
            *(each for each in passed if not isinstance(each[2], Plain)),
        ]
        for name, size in numbers_in(label, value)
    ]
    literals = [
        (label, place, value.size)
        for place, label, value in passed
        if isinstance(value, Plain) and value.size
    ]
    values_of: dict[str, set[int]] = defaultdict(set)
    for name, place, size in [*numbers, *literals]:
        values_of[name].add(size)
        if name in shared:
            sizes.learn(name, size, f"{spelled(*place)} says that {name} is {size}")
    specified = {name for name in shared if name in sizes}
    for name in shared & set(defaults):
        hint = spelled(**{option: f"{name}={sizes.get(name, EXAMPLE)}"})
        sizes.learn(name, defaults[name], f"{title} has {name} {defaults[name]} by default", note=hint)
    _solve(sizes, where, shared)
    _check_all_known(sizes, inputs, where)
    _check_computed(sizes, computed)

    of_numbers, of_literals = ([name for name, *_ in each] for each in (numbers, literals))
    known: dict[str, int] = {}
    for name in [*axes, *of_numbers, *in_equations, *bounds, *in_values, *of_literals]:
        if name in sizes:
            known[name] = sizes[name]
        elif len(values_of[name]) == 1:
            (known[name],) = values_of[name]
    in_configurations, elsewhere = (
        {
            name
            for _, label, value in [*constructed, *passed]
            if isinstance(value, Configuration) == is_configuration
            for name, _ in numbers_in(label, value)
        }
        for is_configuration in (True, False)
    )
    unset = {*defaults, *(in_configurations - elsewhere)}
    return known, {name for name in known if name in specified or name not in unset}


def _tensors(label: str, value: Input | Same) -> Iterator[tuple[str, TensorSpec]]:
    if isinstance(value, TensorSpec):
        yield label, value
    elif isinstance(value, InputTuple):
        for i, member in enumerate(value.members):
            yield from _tensors(f"{label}[{i}]", member)


def _learn_axes(sizes: Sizes, label: str, tensor: TensorSpec) -> None:
    """Learn the sizes in a tensor's specification, and compare a file's shape with them."""
    for axis in tensor.axes or ():
        if axis.name and axis.size:
            check_sizes({axis.name: axis.size})
            sizes.learn(
                axis.name, axis.size, f"{spelled('inputs', label)} says that {axis.name} is {axis.size}"
            )
    file = tensor.file
    if not file or tensor.axes is None:
        return
    names = " ".join(map(str, tensor.axes))
    if 0 in file.shape:
        raise SizeError(f"{called(file)} is {shape_of(file)}: it has no elements.")
    if len(tensor.axes) != len(file.shape):
        axes = "1 axis" if len(tensor.axes) == 1 else f"{len(tensor.axes)} axes"
        raise SizeError(
            f"{called(file)} is {shape_of(file)}, but {spelled('inputs', label)} names {axes}: {names}."
        )
    for place, (axis, size) in enumerate(zip(tensor.axes, file.shape, strict=True)):
        where = f"axis {place} of {shape_of(file)}"
        if axis.name:
            sizes.learn(axis.name, size, f"{called(file)} has {axis.name} {size} ({where})")
        elif axis.size != size:
            raise SizeError(
                f"{called(file)} has size {size} on {where}, but {spelled('inputs', label)} says"
                f" {axis.size}."
            )


def _solve(sizes: Sizes, where: Sequence[Where], names: set[str]) -> None:
    """Learn sizes from the equations until nothing changes, and check those without unknowns."""

    def known() -> dict[str, int]:
        return {name: sizes[name] for name in names if name in sizes}

    before = None
    while before != known():
        before = known()
        for equation in where:
            found = equation.solve(known())
            if found:
                sizes.learn(
                    *found, f"{spelled('where', equation.text)} says that {found[0]} is {found[1]}"
                )


def _check_all_known(sizes: Sizes, inputs: Sequence[Argument], where: Sequence[Where]) -> None:
    for argument in inputs:
        for label, tensor in argument.tensors():
            axes = tensor.axes or ()
            for unknown in [axis.name for axis in axes if axis.name and axis.name not in sizes]:
                texts = [f"{axis}:{EXAMPLE}" if axis.name == unknown else axis.text for axis in axes]
                spec = ",".join(texts) if label == argument.label else f"(…{','.join(texts)}…)"
                raise SizeError(
                    f"the axis {unknown} of {label} has no size.",
                    hint=spelled(inputs=f"{argument.name}={spec}" if argument.name else spec),
                )
            if isinstance(tensor.high, str) and tensor.high not in sizes:
                raise SizeError(
                    f"{label}: {tensor.high}, the upper bound of its values, has no size.",
                    hint=f"a number: {spelled(inputs=f'{label}=…<100')}",
                )
    for equation in where:
        if equation.follows_from_itself and equation.name not in sizes:
            raise SizeError(
                f"{spelled('where', equation.text)}: {equation.name} follows from itself, and has no"
                " size.",
                hint=f"what it follows from, such as {spelled(where=f'{equation.name}=2*m')}",
            )
        names = [name for name in equation.names if name not in sizes]
        if names:
            verb = "have" if len(names) > 1 else "has"
            raise SizeError(
                f"{spelled('where', equation.text)}: {' and '.join(names)} {verb} no size.",
                hint="an equation gives the size of one name, which must occur in it once",
            )


def _check_computed(
    sizes: Sizes, computed: Iterable[tuple[tuple[str, str], str | None, Computed]]
) -> None:
    """Check that numbers are computed from known sizes, and are whole."""
    for place, name, each in computed:
        unknown = sorted(word for word in each.value.words if word not in sizes)
        if unknown and re.fullmatch(r"[\w.-]+", each.text):  # it may be a text without quotes
            raise not_a_value(place, name, each.text, "neither a Python value nor the name of a size")
        if unknown:
            raise SizeError(
                f"{spelled(*place)}: {unknown[0]} in {each.text} has no size.",
                hint=f"{spelled(where=f'{unknown[0]}={EXAMPLE}')}, or the name of an axis or argument",
            )
        try:
            each.size({word: sizes[word] for word in each.value.words})
        except SizeError as error:
            raise SizeError(f"{spelled(*place)}: {error.message}") from error
