"""What the projections of a side receive, and along which axis of its inputs it attends."""

from __future__ import annotations

import re
from dataclasses import dataclass
from math import prod

import torch

from attnscope.observe.operators.anatomy import Anatomy, Projection, leaf
from attnscope.observe.operators.chain import LAYOUT, calls_before
from attnscope.observe.operators.follow import followed
from attnscope.observe.operators.tape import Value

NOT_POSITIONS = re.compile(r"^(n_)?(b|bs|bsz|bh|h)$|batch|heads?$")
"""Names of axes that count sequences or heads."""


@dataclass(frozen=True)
class ProjectionInput:
    """What a projection receives.

    Attributes:
        value: the tensor, before it is only arranged otherwise for the product.
        input: the argument that it is; None if it is computed from arguments.
        sources: the arguments that it is computed from.
    """

    value: Value
    input: str | None
    sources: frozenset[str]

    def __str__(self) -> str:
        """Name the tensor: by its argument, or by its variable and expression, with the line."""
        place = self.value.place
        if place is None:
            return self.input or "another tensor"
        name = f"{place.variable} = " if place.variable else ""
        return f"{name}{place.text} (line {place.line})"


def operand_of(projection: Projection) -> ProjectionInput:
    """Find the tensor that a projection receives, and the arguments from which it is computed."""
    value = received_by(projection)
    while value.call is not None and value.name in LAYOUT:
        before = value.parents[0]
        if before.tensor.numel() != value.tensor.numel():
            break
        value = before
    calls = calls_before(value, through=lambda _: True)
    inputs = {each.input for call in calls for each in call.parents} | {value.input}
    return ProjectionInput(value, value.input, frozenset(each for each in inputs if each is not None))


def received_by(projection: Projection) -> Value:
    """Return the operand of a projection that is neither its weight nor its bias."""
    others = (each for each in projection.call.parents if each is not projection.bias)
    return next(each for each in others if leaf(each) is not projection.weight)


def axis_of_positions(anatomy: Anatomy) -> int | None:
    """Return the axis of the inputs, counted from their end, along which it attends.

    Returns:
        -2 for `… n d`; None where it is unknown.
    """
    for name in ("Q", "K"):
        found = tokens(anatomy, name)
        if found is None:
            continue
        value, elements = found
        n, shape = elements.shape[1], value.tensor.shape
        axes = [-i for i in range(2, len(shape) + 1) if shape[-i] == n]
        if n > 1:
            step = int(elements[0, 1, 0] - elements[0, 0, 0])
            axes = [axis for axis in axes if prod(shape[axis + 1 :]) == step]
        if axes and (n > 1 or name == "K"):
            return axes[0]
    return None


def has_sequence_for_each_input(anatomy: Anatomy, n_sequence: int) -> bool:
    """Check whether each sequence that is attended is one entry along an axis of the inputs.

    That axis is the batch. Windows are several sequences of one entry.

    Args:
        anatomy: the attention.
        n_sequence: the number of sequences, each of several heads.
    """
    found = tokens(anatomy, "Q")
    if n_sequence == 1:
        return True
    if found is None:
        return n_sequence in anatomy.output.tensor.shape[:1]
    value, elements = found
    leads = elements[elements[:, 0, 0].argsort(stable=True)]  # the heads of a sequence are neighbours
    shape = value.tensor.shape
    for axis, size in enumerate(shape[:-1]):
        entries = leads // prod(shape[axis + 1 :]) % size
        of_sequences = entries.reshape(n_sequence, -1)
        is_one = bool((of_sequences == of_sequences[:, :1]).all())
        if size == n_sequence and is_one and of_sequences[:, 0].unique().numel() == size:
            return True
    return False


def tokens(anatomy: Anatomy, name: str) -> tuple[Value, torch.Tensor] | None:
    """Return the input of Q or K, and which of its elements each position is: `lead n d`."""
    elements = anatomy.origins.get(name)
    if elements is None:
        return None
    projection = anatomy.projections.get(name)
    if projection is None:
        return anatomy.roles[f"{name}_split"].value, elements
    value, used = operand_of(projection).value, received_by(projection)
    places = followed(anatomy.tape, value)[used].long()
    places = places.reshape(-1, used.tensor.shape[-1])[:, 0]  # of each token's first feature
    rows = elements // projection.out.tensor.shape[-1]
    return None if int(rows.max()) >= places.numel() else (value, places[rows])
