"""The sizes of all names of axes and arguments, on which all specifications must agree."""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass

from attnscope.base.errors import SizeError
from attnscope.base.sizes import Sizes, called, check_sizes, shape_of
from attnscope.code.load.equations import Where
from attnscope.code.load.specs import (
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
    constructed = [(f"--init {name}", name, value) for name, value in init.items()]
    passed = [
        (f"--input {each.label}", each.label, each.value)
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
            sizes.learn(name, size, f"{place} says that {name} is {size}")
    specified = {name for name in shared if name in sizes}
    for name in shared & set(defaults):
        hint = f"{option} {name}={sizes.get(name, EXAMPLE)}"
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
            sizes.learn(axis.name, axis.size, f"--input {label} says that {axis.name} is {axis.size}")
    file = tensor.file
    if not file or tensor.axes is None:
        return
    names = " ".join(map(str, tensor.axes))
    if 0 in file.shape:
        raise SizeError(f"{called(file)} is {shape_of(file)}: it has no elements.")
    if len(tensor.axes) != len(file.shape):
        axes = "1 axis" if len(tensor.axes) == 1 else f"{len(tensor.axes)} axes"
        raise SizeError(
            f"{called(file)} is {shape_of(file)}, but --input {label} names {axes}: {names}."
        )
    for place, (axis, size) in enumerate(zip(tensor.axes, file.shape, strict=True)):
        where = f"axis {place} of {shape_of(file)}"
        if axis.name:
            sizes.learn(axis.name, size, f"{called(file)} has {axis.name} {size} ({where})")
        elif axis.size != size:
            raise SizeError(
                f"{called(file)} has size {size} on {where}, but --input {label} says {axis.size}."
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
                sizes.learn(*found, f"--where {equation.text} says that {found[0]} is {found[1]}")


def _check_all_known(sizes: Sizes, inputs: Sequence[Argument], where: Sequence[Where]) -> None:
    for argument in inputs:
        for label, tensor in argument.tensors():
            axes = tensor.axes or ()
            for unknown in [axis.name for axis in axes if axis.name and axis.name not in sizes]:
                texts = [f"{axis}:{EXAMPLE}" if axis.name == unknown else axis.text for axis in axes]
                option = "--input " + (f"{argument.name}=" if argument.name else "")
                raise SizeError(
                    f"the axis {unknown} of {label} has no size.",
                    hint=option
                    + (",".join(texts) if label == argument.label else f"(…{','.join(texts)}…)"),
                )
            if isinstance(tensor.high, str) and tensor.high not in sizes:
                raise SizeError(
                    f"{label}: {tensor.high}, the upper bound of its values, has no size.",
                    hint=f"a number: --input {label}=…<100",
                )
    for equation in where:
        if equation.follows_from_itself and equation.name not in sizes:
            raise SizeError(
                f"--where {equation.text}: {equation.name} follows from itself, and has no size.",
                hint=f"what it follows from, such as --where {equation.name}=2*m",
            )
        names = [name for name in equation.names if name not in sizes]
        if names:
            verb = "have" if len(names) > 1 else "has"
            raise SizeError(
                f"--where {equation.text}: {' and '.join(names)} {verb} no size.",
                hint="an equation gives the size of one name, which must occur in it once",
            )


def _check_computed(sizes: Sizes, computed: Iterable[tuple[str, str | None, Computed]]) -> None:
    """Check that numbers are computed from known sizes, and are whole."""
    for place, name, each in computed:
        unknown = sorted(word for word in each.value.words if word not in sizes)
        if unknown and re.fullmatch(r"[\w.-]+", each.text):  # it may be a text without quotes
            raise not_a_value(place, name, each.text, "neither a Python value nor the name of a size")
        if unknown:
            raise SizeError(
                f"{place}: {unknown[0]} in {each.text} has no size.",
                hint=f"--where {unknown[0]}={EXAMPLE}, or the name of an axis or argument",
            )
        try:
            each.size({word: sizes[word] for word in each.value.words})
        except SizeError as error:
            raise SizeError(f"{place}: {error.message}") from error
