"""Finds the linear maps before and after attention: W_Q, W_K, W_V and W_O."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from math import prod

import torch

from attnscope.observe.operator_names import PRODUCTS
from attnscope.observe.operators.anatomy import Anatomy, Projection, Role, leaf
from attnscope.observe.operators.chain import (
    LAYOUT,
    calls_before,
    number_on,
    site_of_operand,
    site_of_split,
    way_between,
)
from attnscope.observe.operators.follow import Elements, followed, is_selection, values_at
from attnscope.observe.operators.products import contracts
from attnscope.observe.operators.tape import Tape, TorchCall, Value


def add_projections(anatomy: Anatomy) -> None:
    """Add the linear maps that Q, K and V come from, if they have weights."""
    for name in ("Q", "K", "V"):
        role = anatomy.roles[name]
        found = _projection_before(anatomy.tape, role)
        if found is None:
            source = _source(role.value)
            places = followed(anatomy.tape, source)
            elements = _origin(places, role)
        else:
            projection, places, elements = found
            source = projection.out
            anatomy.projections[name] = projection
            order = None if elements is None else token_order(elements, source.tensor.shape[-1])
            anatomy.add(_feature_role(f"{name}_feat", source, projection.features, order))
        if elements is None:
            anatomy.parts[name] = list(_parts(anatomy.tape, role))
            continue
        anatomy.origins[name] = elements
        kept = elements[distinct_leads(elements)].sort(-1).values  # whatever their later order
        split = Role.arranged(f"{name}_split", source, kept, ("heads", *role.axes[1:]))
        way = way_between(source, role.value, places)
        split.site, role.site = site_of_split(way), site_of_operand(way)
        anatomy.add(split)
        if name != "V" and "scores" in anatomy.roles:
            role.without(number_on(way))


def distinct_leads(elements: torch.Tensor) -> torch.Tensor:
    """Find the leads that hold other elements than those before, in the order of their first element.

    Heads that several queries share count once. So the order is that of the sequences and features in
    the source, whatever the order of the leads.

    Args:
        elements: `lead n d`, of one source.
    """
    rows = elements.flatten(1)
    order = rows.min(1).values.argsort(stable=True)
    kept = [int(order[0])]
    for lead in order[1:].tolist():
        if not torch.equal(rows[lead], rows[kept[-1]]):
            kept.append(lead)
    return torch.tensor(kept)


def _source(value: Value) -> Value:
    """Return the input that a tensor comes from, element by element; the first, if there are several."""
    while value.call is not None and value.name not in PRODUCTS and value.parents:
        value = value.parents[0]
    return value


def _origin(places: Mapping[Value, Elements], role: Role) -> torch.Tensor | None:
    """Return from which elements of a source a role's elements come; None if not all come from it."""
    origin = _origins(places, role)
    return origin if origin is not None and bool((origin >= 0).all()) else None


def _origins(places: Mapping[Value, Elements], role: Role) -> torch.Tensor | None:
    """Return from which elements of a source a role's elements come, -1 for those from elsewhere."""
    if role.value not in places or role.elements is None:
        return None
    return places[role.value].real.reshape(-1)[role.elements].long()


def _feature_role(
    name: str, value: Value, features: torch.Tensor | None = None, order: torch.Tensor | None = None
) -> Role:
    """Return a tensor as `tokens features`.

    Args:
        features: those to keep; None: all.
        order: the order of the tokens; None: as they are.
    """
    elements = value.flat_indices.reshape(-1, value.tensor.shape[-1])
    if features is not None:
        elements = elements[:, features]
    if order is not None and order.numel() == elements.shape[0]:
        elements = elements[order]
    return Role.arranged(name, value, elements, ("tokens", "features"))


def token_order(elements: torch.Tensor, width: int) -> torch.Tensor | None:
    """Return the tokens of a source sequence by sequence; None if heads mix them.

    Args:
        elements: `lead n d`, the elements of a source with the tokens as all of its axes but the last.
        width: the size of its last axis.
    """
    tokens = elements // width
    if not bool((tokens == tokens[:, :, :1]).all()):
        return None
    rows = tokens[elements.flatten(1).min(1).values.argsort(stable=True), :, 0]
    kept = [rows[0]]
    for row in rows[1:]:
        if not torch.equal(row, kept[-1]):
            kept.append(row)
    order = torch.cat(kept)
    return order if order.unique().numel() == order.numel() else None


def _projection_before(
    tape: Tape, role: Role
) -> tuple[Projection, dict[Value, Elements], torch.Tensor | None] | None:
    """Return the linear map before a tensor, where its output goes, and which elements the tensor is.

    The elements are None if some come from elsewhere, as from a cache that is read beyond what was
    written. If they come from another linear map, it is not known which of them is meant.
    """
    parts = []
    for call, weight in _linear_maps(role.value):
        out, bias = _with_bias(tape, call)
        places = followed(tape, out)
        origins = _origins(places, role)  # lead n d
        if origins is None or not bool((origins >= 0).any()):
            continue
        is_all = bool((origins >= 0).all())
        features = (origins[origins >= 0] % out.tensor.shape[-1]).unique()
        projection = Projection(call, out, weight, bias, features, is_all)
        if is_all:
            return projection, places, origins
        parts.append((projection, places, None))
    return parts[0] if len(parts) == 1 else None


def _linear_maps(value: Value) -> Iterator[tuple[TorchCall, Value]]:
    """Yield the linear maps that a tensor comes from, each with its weight, the nearest first."""

    def goes_on(call: TorchCall) -> bool:
        return call.name not in PRODUCTS or is_selection(call)

    for call in calls_before(value, through=goes_on):
        weight = _weight_of(call)
        if weight is not None:
            yield call, weight


def _parts(tape: Tape, role: Role) -> Iterator[tuple[Value, Elements]]:
    """Yield the outputs of linear maps that some elements of Q, K or V come from, and which (or -1).

    The keys of latent attention, for example, have features of two linear maps side by side.
    """
    for call, _ in _linear_maps(role.value):
        out, _ = _with_bias(tape, call)
        origins = _origins(followed(tape, out), role)
        if origins is not None and bool((origins >= 0).any()):
            yield out, origins


def _weight_of(call: TorchCall) -> Value | None:
    """Return the weight of a linear map: a parameter, or a part or a view of one.

    A product of every position with every frequency does not sum over features: it is not a linear map.
    """
    if call.name == "linear":
        return leaf(call.parents[1])
    if call.name == "addmm" and len(call.parents) == 3:
        return leaf(call.parents[2])
    if call.name in PRODUCTS and len(call.parents) == 2 and contracts(call):
        weights = (leaf(each) for each in call.parents)
        return next((each for each in weights if each is not None), None)
    return None


def _with_bias(tape: Tape, linear: TorchCall) -> tuple[Value, Value | None]:
    """Return the output of a linear map with its bias added, and the bias."""
    if linear.name == "linear":
        bias = linear.argument(2, "bias")
        return linear.outputs[0], bias if isinstance(bias, Value) else None
    out = linear.outputs[0]
    if linear.name == "addmm":
        return _viewed(tape, out), linear.parents[0]
    for call in tape.calls:
        if call.name == "add" and len(call.parents) == 2 and out in call.parents:
            other = call.parents[0] if call.parents[1] is out else call.parents[1]
            if leaf(other) is not None and other.tensor.ndim <= 1:
                return call.outputs[0], other
    return out, None


def _viewed(tape: Tape, value: Value) -> Value:
    """Return the view that restores the axes of tokens after addmm, if there is one."""
    for call in tape.calls:
        is_view = call.name in ("view", "reshape") and call.parents[:1] == [value]
        if is_view and call.outputs[0].tensor.shape[-1] == value.tensor.shape[-1]:
            return call.outputs[0]
    return value


def add_output(anatomy: Anatomy) -> None:
    """Add the merged heads, and the output."""
    tape = anatomy.tape
    raw = anatomy.roles["x_raw"].value
    places = followed(tape, raw)
    found = _output_projection(tape, places)
    if found is None:
        output, width = anatomy.output, anatomy.roles["x_raw"].tensor.shape[-1]
        if output in places and output.tensor.shape[-1] != width:  # it holds the merged heads
            order = _merged_order(anatomy, output, places[output])
            anatomy.add(_feature_role("x_merged", output, order=order))
    else:
        call, merged, weight = found
        out, bias = _with_bias(tape, call)
        features = torch.arange(out.tensor.shape[-1])
        anatomy.projections["O"] = Projection(call, out, weight, bias, features)
        order = _merged_order(anatomy, merged, places[merged])
        anatomy.add(_feature_role("x_merged", merged, order=order))
        anatomy.add(_feature_role("x", out, order=order))
    if anatomy.output.tensor.ndim:
        anatomy.add(_feature_role("output", anatomy.output))


def _output_projection(
    tape: Tape, places: Mapping[Value, Elements]
) -> tuple[TorchCall, Value, Value] | None:
    """Find the first linear map of the heads, with its operand and weight; None if there is none.

    A linear map whose result multiplies the heads is their gate: the next one projects them.
    """
    found: tuple[TorchCall, Value, Value] | None = None
    for call in tape.calls:
        merged = next((each for each in call.parents if each in places), None)
        weight = _weight_of(call) if merged is not None else None
        is_next = merged is not None and (found is None or found[0] in calls_before(merged))
        if merged is not None and weight is not None and is_next:
            found = call, merged, weight
    return found


def _merged_order(anatomy: Anatomy, merged: Value, elements: Elements) -> torch.Tensor | None:
    """Return the tokens of the merged heads sequence by sequence; None if they are mixed."""
    raw = anatomy.roles["x_raw"]
    place = values_at(merged.flat_indices, elements, raw.value.tensor.numel())
    if place is None or raw.elements is None:
        return None
    elements = place[raw.elements].reshape(-1, *raw.elements.shape[-2:])  # lead n_Q d_V
    return token_order(elements, merged.tensor.shape[-1])


NOT_POSITIONS = re.compile(r"^(n_)?(b|bs|bsz|bh|h)$|batch|heads?$")
"""Names of axes that count sequences or heads."""


@dataclass(frozen=True)
class ProjectionInput:
    """What a projection receives."""

    value: Value  #: the tensor, before it is only arranged otherwise for the product
    input: str | None  #: the argument that it is; None if it is computed from arguments
    sources: frozenset[str]  #: the arguments that it is computed from

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
    calls = calls_before(value)
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


def tied_axis(anatomy: Anatomy) -> tuple[str, int] | None:
    """Return the axis of the inputs over which Q·Kᵀ sums beside the features of a head: name and size.

    So rows are tied in MSA Transformer (Rao et al. 2021). Its name is its size if the user gave none.

    Returns:
        None if Q·Kᵀ sums over features alone.
    """
    found = tokens(anatomy, "Q")
    if found is None:
        return None
    value, elements = found
    shape = value.tensor.shape
    entries = elements[0, 0] // shape[-1]  # the tokens that one query is
    if not 1 < entries.unique().numel() < entries.numel():
        return None
    names = anatomy.input_axes.get(value.input or "") or shape
    for axis, size in enumerate(shape[:-1]):
        places = entries // prod(shape[axis + 1 : -1]) % size
        if places.unique().numel() == entries.unique().numel():
            return str(names[axis]), places.unique().numel()
    return None


def has_sequence_for_each_input(anatomy: Anatomy, n_sequence: int) -> bool:
    """Check whether each sequence that is attended is one entry along an axis of the inputs.

    That axis is the batch. Windows are several sequences of one entry.

    Args:
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
