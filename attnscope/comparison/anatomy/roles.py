"""The anatomy of an attention: which tensors of a call are Q, K, V, scores, attention and output.

They are found by what is done with them, not by their names: attention is what a softmax returns and a
product consumes; scores are the product that the softmax is computed from. All are arranged alike:
`lead n_Q d`, where `lead` counts heads of sequences.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from itertools import islice
from typing import Any

import torch

from attnscope.comparison.anatomy.chain import (
    LAYOUT,
    number_on,
    scores_of,
    site_of_operand,
    site_of_scale,
    site_of_split,
    way_between,
)
from attnscope.comparison.anatomy.follow import Elements, followed, values_at
from attnscope.comparison.anatomy.products import PRODUCTS, Product, product_of
from attnscope.comparison.anatomy.tape import Call, Tape, Value


@dataclass
class Role:
    """A tensor of an attention, and its values in the common arrangement.

    Attributes:
        name: its role, such as `scores`.
        value: the tensor on the tape.
        tensor: its values: `lead n_Q n_K`, `lead n d`, or `tokens features`.
        axes: the names of these axes.
        elements: where each of these values is in the tensor on the tape, as a flat index; None if
            it was computed from others, as inside a fused kernel.
        site: the tensor whose expression says best what it is; None: `value`.
        factor: the number by which the code multiplies Q or K before their product. These values are
            without it: it belongs to the scale of the scores.
    """

    name: str
    value: Value
    tensor: torch.Tensor
    axes: tuple[str, ...]
    elements: torch.Tensor | None = None
    site: Value | None = None
    factor: float = 1.0

    def of(self, tensor: torch.Tensor) -> torch.Tensor:
        """Return the values of a tensor like `value` in the common arrangement."""
        if self.elements is None:
            raise KeyError(self.name)
        arranged = tensor.reshape(-1)[self.elements]
        return arranged if self.factor == 1.0 else arranged / self.factor

    def replaced(self, values: torch.Tensor, current: torch.Tensor | None = None) -> torch.Tensor:
        """Return the tensor on the tape, with other values.

        Args:
            values: in the common arrangement.
            current: what the tensor holds beside them; None: what it held.
        """
        if self.elements is None:
            raise KeyError(self.name)
        current = self.value.tensor if current is None else current
        wider = torch.promote_types(current.dtype, values.dtype)
        result = current.to(wider, copy=True).reshape(-1)
        result[self.elements.reshape(-1)] = values.reshape(-1).to(wider) * self.factor
        return result.reshape(current.shape)


@dataclass
class Projection:
    """A linear map with weights, whose output becomes Q, K or V.

    Attributes:
        call: the product with the weight.
        out: its output, with the bias added.
        weight: the weight; bias: the bias, if any.
        features: which features of the output are used, in order.
        head_features: the feature of each head and position in it: `lead d`; None if they were mixed.
    """

    call: Call
    out: Value
    weight: Value
    bias: Value | None
    features: torch.Tensor
    head_features: torch.Tensor | None

    @property
    def bias_name(self) -> str | None:
        """The name of the parameter that the bias is, or is part of."""
        whole = leaf(self.bias) if self.bias is not None else None
        return whole.weight if whole is not None else None


@dataclass
class Anatomy:
    """The tensors of an attention by role, as far as they were found.

    Attributes:
        tape: the call.
        roles: the tensors.
        origins: for Q, K and V as they enter the products, `lead n d`, the elements that they come from:
            of the projection's output, or of the input.
        projections: the linear maps before attention, by `Q`, `K`, `V`; and after it, `O`.
        first, second: the products Q·Kᵀ and attention·V; None for a fused kernel.
        fused: the call of a fused kernel.
        output: the first tensor that the code returns.
    """

    tape: Tape
    output: Value
    roles: dict[str, Role] = field(default_factory=dict)
    projections: dict[str, Projection] = field(default_factory=dict)
    origins: dict[str, torch.Tensor] = field(default_factory=dict)
    first: Product | None = None
    second: Product | None = None
    fused: Call | None = None

    @property
    def end(self) -> str:
        """The role of the tensor that is returned, whatever its layout; `output` if it has none."""
        for role in ("x", "x_merged"):
            if role in self.roles:
                start = self.roles[role].value
                places = followed(self.tape, start)
                if self.output in places:
                    way = way_between(start, self.output, places)
                    return role if all(each.name in LAYOUT for each in way[1:]) else "output"
        return "output"

    @property
    def scaled(self) -> Value | None:
        """The last tensor that is multiplied by a number on the way to the scores; None if none is."""
        ways = []
        for start, end in (("Q_split", "Q"), ("K_split", "K")):
            if start in self.roles:
                ways.append(self._way(self.roles[start].value, self.roles[end].value))
        if self.first is not None:
            ways.append(self._way(self.first.call.outputs[0], self.roles["scores"].value))
        return site_of_scale(ways)

    def _way(self, start: Value, end: Value) -> list[Value]:
        return way_between(start, end, followed(self.tape, start))

    def add(self, role: Role) -> None:
        """Add a tensor."""
        self.roles[role.name] = role


class NoAttentionError(Exception):
    """The call computes no attention that can be recognised; the message says what is missing."""


def anatomy_of(tape: Tape, output: Value) -> Anatomy:
    """Find the tensors of the attention that a call computes.

    Raises:
        NoAttentionError: there is none, or several.
    """
    anatomy = Anatomy(tape, output)
    fused = [call for call in tape.calls if call.name == "scaled_dot_product_attention"]
    cores = [core for call in tape.calls if (core := _core_at(tape, call)) is not None]
    if len(fused) + len(cores) != 1:
        found = len(fused) + len(cores)
        raise NoAttentionError(
            f"it computes {found} attentions in one call"
            if found
            else "it multiplies no softmax of scores by values"
        )
    if fused:
        from attnscope.comparison.anatomy.fused import add_fused

        add_fused(anatomy, fused[0])
    else:
        _add_core(anatomy, *cores[0])
    _add_projections(anatomy)
    _add_output(anatomy)
    return anatomy


# Attention itself.


def _core_at(tape: Tape, call: Call) -> tuple[Value, Product, Product] | None:
    """Return a softmax, with the product before and the product after it, if a call computes one."""
    for value in call.outputs:
        if not _is_softmax(value):
            continue
        before = _product_before(value)
        if before is None:
            continue
        after = _product_after(tape, value)
        if after is not None:
            return value, before, after
    return None


def _is_softmax(value: Value) -> bool:
    """Return whether a tensor is the result of a softmax, of torch's or one written out.

    Written out, exponentials are divided by their sum, to which a sink may be added; or differences
    to a logarithm of a sum are exponentiated.
    """
    if value.name in ("softmax", "_softmax"):
        return True
    if value.name == "div" and len(value.parents) == 2:
        numerator, denominator = value.parents
        sums = [
            call
            for call in islice(_before(denominator, through=lambda _: True), 6)
            if call.name == "sum"
        ]
        return numerator.name == "exp" and any(numerator in call.parents for call in sums)
    if value.name == "exp" and value.parents:
        nearest = islice(_before(value.parents[0], through=lambda call: call.name not in PRODUCTS), 3)
        return any(call.name == "logsumexp" for call in nearest)
    return False


def _before(value: Value, *, through: Callable[[Call], bool]) -> Iterator[Call]:
    """Yield the calls that a tensor comes from, the nearest first of each argument, each once.

    Args:
        value: the tensor.
        through: whether to go on behind a call.
    """
    visited: set[Call] = set()
    left = [value.call]
    while left:
        call = left.pop()
        if call is None or call in visited:
            continue
        visited.add(call)
        yield call
        if through(call):
            left += [parent.call for parent in reversed(call.parents)]


def _product_before(value: Value) -> Product | None:
    """Return the product from which a tensor comes, element by element; None if there is none."""
    products = {*PRODUCTS, "linear"}
    for call in _before(value, through=lambda call: call.name not in products):
        if call.name in products and (product := product_of(call)) is not None:
            return product
    return None


def _product_after(tape: Tape, value: Value) -> Product | None:
    """Return the first product of which a tensor is an operand; the tensor's operand comes first."""
    places = followed(tape, value)
    for call in tape.calls:
        if call.outputs and call.outputs[0].index > value.index and call.name in PRODUCTS:
            product = product_of(call)
            if product is None:
                continue
            if product.first.value in places and product.second.value not in places:
                return product
            if product.second.value in places and product.first.value not in places:
                return product.swapped()
    return None


def _add_core(anatomy: Anatomy, softmax: Value, before: Product, after: Product) -> None:
    """Add Q, K, V, the scores, attention, and the weighted values."""
    raw = before.call.outputs[0]
    places = followed(anatomy.tape, raw)
    weights = after.first.value
    if weights not in places:
        raise NoAttentionError("the scores cannot be followed to the product with V")
    after, at_product, (before, lead, rows, columns) = _aligned_products(
        before, after, raw, places[weights]
    )
    anatomy.first, anatomy.second = before, after
    n_raw = raw.tensor.numel()

    def core(name: str, value: Value, elements: Elements) -> Role | None:
        where = values_at(_numbers(value), elements, n_raw)
        return None if where is None else _role(name, value, where[at_product], ("lead", "n_Q", "n_K"))

    Q_elements = before.first_of(_numbers(before.first.value))[lead][:, rows]
    K_elements = before.second_of(_numbers(before.second.value))[lead][:, columns]
    V_elements = after.second_of(_numbers(after.second.value)).mT
    anatomy.add(_role("Q", before.first.value, Q_elements, ("lead", "n_Q", "d_head")))
    anatomy.add(_role("K", before.second.value, K_elements, ("lead", "n_K", "d_head")))
    anatomy.add(_role("V", after.second.value, V_elements, ("lead", "n_K", "d_V")))
    for role_name, value in scores_of(raw, softmax, places):
        role = core(role_name, value, places[value])
        if role is not None:
            anatomy.add(role)
    if weights is not softmax:
        role = core("attention_drop", weights, places[weights])
        if role is not None:
            anatomy.add(role)
    x_elements = after.out_of(_numbers(after.call.outputs[0]))
    anatomy.add(_role("x_raw", after.call.outputs[0], x_elements, ("lead", "n_Q", "d_V")))


def _aligned_products(
    before: Product, after: Product, raw: Value, elements: Elements
) -> tuple[Product, torch.Tensor, Any]:
    """Return attention·V, the element of Q·Kᵀ at each lead, query and key there, and Q·Kᵀ aligned.

    Args:
        before, after: the products Q·Kᵀ and attention·V.
        raw: the result of the former.
        elements: its elements in the operand of the latter.

    Raises:
        NoAttentionError: the elements of scores are mixed on the way.
    """
    failure: NoAttentionError | None = None
    for each in after.with_other_rows():
        at_product = each.first_of(elements).long()  # lead n_Q n_K
        try:
            return each, at_product, _aligned(before, raw, at_product)
        except NoAttentionError as error:
            failure = failure or error
    raise failure or NoAttentionError("")


def _aligned(
    before: Product, raw: Value, at_product: torch.Tensor
) -> tuple[Product, torch.Tensor, torch.Tensor, torch.Tensor]:
    """Arrange Q·Kᵀ as attention·V needs it.

    Args:
        at_product: for each lead, query and key of attention, the element of Q·Kᵀ.

    Returns:
        The product with Q as its first operand; and for each lead, query and key, its number there.

    Raises:
        NoAttentionError: the elements of scores are mixed on the way.
    """
    numbers = _numbers(raw)
    for each in (before, before.swapped()):
        arranged = each.out_of(numbers)
        _, n_rows, n_columns = arranged.shape
        place = torch.empty(arranged.numel(), dtype=torch.long)
        place[arranged.reshape(-1)] = torch.arange(arranged.numel())
        position = place[at_product]
        lead = position // (n_rows * n_columns)
        row = position // n_columns % n_rows
        column = position % n_columns
        first = lead[:, :1, :1], row[:1, :, :1], column[:1, :1, :]
        if all(
            bool((full == part).all()) for full, part in zip((lead, row, column), first, strict=True)
        ):
            return each, lead[:, 0, 0], row[0, :, 0], column[0, 0, :]
    raise NoAttentionError("the scores of several heads or queries are mixed before the product with V")


def _numbers(value: Value) -> torch.Tensor:
    """Return the flat index of each element of a tensor, in its shape."""
    return torch.arange(value.tensor.numel()).reshape(value.tensor.shape)


def _role(name: str, value: Value, elements: torch.Tensor, axes: tuple[str, ...]) -> Role:
    """Return a tensor with its elements in the common arrangement."""
    return Role(name, value, value.tensor.reshape(-1)[elements], axes, elements)


# Projections before attention.


def _add_projections(anatomy: Anatomy) -> None:
    """Add the linear maps that Q, K and V come from, if they have weights."""
    for name in ("Q", "K", "V"):
        role = anatomy.roles[name]
        projection = _projection_before(anatomy.tape, role)
        if projection is not None:
            anatomy.projections[name] = projection
            origin = _origin(anatomy.tape, role, projection.out)
            order = None if origin is None else token_order(origin, projection.out.tensor.shape[-1])
            anatomy.add(_feature_role(f"{name}_feat", projection.out, projection.features, order))
        source = _source(role.value) if projection is None else projection.out
        elements = _origin(anatomy.tape, role, source)
        if elements is None:
            continue
        anatomy.origins[name] = elements
        split = _role(
            f"{name}_split", source, elements[distinct_leads(elements)], ("heads", *role.axes[1:])
        )
        way = way_between(source, role.value, followed(anatomy.tape, source))
        split.site, role.site = site_of_split(way), site_of_operand(way)
        anatomy.add(split)
        if name != "V":
            role.factor = number_on(way)
            role.tensor = role.of(role.value.tensor)


def distinct_leads(elements: torch.Tensor) -> torch.Tensor:
    """Return which leads hold other elements than those before, in the order of their first element.

    Heads that several queries share count once. So the order is that of the sequences and features in
    the source, whatever the order of the leads.

    Args:
        elements: `lead n d`, of one source.
    """
    rows = elements.flatten(1)
    order = rows.min(1).values.argsort(stable=True)
    kept = [int(order[0])]
    for lead in order[1:].tolist():
        if not any(torch.equal(rows[lead], rows[other]) for other in kept[-1:]):
            kept.append(lead)
    return torch.tensor(kept)


def _source(value: Value) -> Value:
    """Return the input that a tensor comes from, element by element; the first, if there are several."""
    while value.call is not None and value.name not in PRODUCTS and value.parents:
        value = value.parents[0]
    return value


def _origin(tape: Tape, role: Role, source: Value) -> torch.Tensor | None:
    """Return from which elements of a source a role's elements come; None if not all come from it."""
    places = followed(tape, source)
    if role.value not in places or role.elements is None:
        return None
    origin = places[role.value].real.reshape(-1)[role.elements].long()
    return origin if bool((origin >= 0).all()) else None


def _feature_role(
    name: str, value: Value, features: torch.Tensor | None = None, order: torch.Tensor | None = None
) -> Role:
    """Return a tensor as `tokens features`.

    Args:
        name: the role.
        value: the tensor.
        features: those to keep; None: all.
        order: the order of the tokens; None: as they are.
    """
    elements = _numbers(value).reshape(-1, value.tensor.shape[-1])
    if features is not None:
        elements = elements[:, features]
    if order is not None and order.numel() == elements.shape[0]:
        elements = elements[order]
    return _role(name, value, elements, ("tokens", "features"))


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


def _projection_before(tape: Tape, role: Role) -> Projection | None:
    """Return the linear map from which a tensor comes."""
    linear = _linear_before(role.value)
    if linear is None or role.elements is None:
        return None
    out, bias = _with_bias(tape, linear)
    origin = _origin(tape, role, out)  # lead n d
    if origin is None:
        return None
    width = out.tensor.shape[-1]
    features = torch.where(origin >= 0, origin % width, -1)
    used = features.unique()
    same = bool((features == features[:, :1]).all())
    return Projection(
        linear, out, _weight_of(linear), bias, used[used >= 0], features[:, 0] if same else None
    )


def _linear_before(value: Value) -> Call | None:
    """Return the nearest product with a weight before a tensor."""
    for call in _before(value, through=lambda call: call.name not in PRODUCTS):
        if _weight_of_or_none(call) is not None:
            return call
    return None


def _weight_of_or_none(call: Call) -> Value | None:
    """Return the weight of a linear map: a matrix that nothing computes but transposing."""
    if call.name == "linear":
        return leaf(call.parents[1])
    if call.name == "addmm" and len(call.parents) == 3:
        return leaf(call.parents[2])
    if call.name in PRODUCTS and len(call.parents) == 2:
        weights = [leaf(each) for each in call.parents]
        computed = [leaf(each) is None for each in call.parents]
        for weight in (weights[1], weights[0]):
            if weight is not None and (any(computed) or isinstance(weight.tensor, torch.nn.Parameter)):
                return weight if weight.is_weight else None
        return next((each for each in weights if each is not None and each.is_weight), None)
    return None


def _weight_of(call: Call) -> Value:
    weight = _weight_of_or_none(call)
    assert weight is not None
    return weight


def leaf(value: Value) -> Value | None:
    """Return the weight that a tensor is, or is a part or a view of; None if it is none."""
    while value.call is not None:
        if value.name not in LAYOUT:
            return None
        value = value.parents[0]
    return value if value.is_weight else None


def _with_bias(tape: Tape, linear: Call) -> tuple[Value, Value | None]:
    """Return the output of a linear map with its bias added, and the bias."""
    if linear.name == "linear":
        bias = linear.argument(2, "bias")
        return linear.outputs[0], bias if isinstance(bias, Value) else None
    if linear.name == "addmm":
        out: Value = linear.outputs[0]
        return _viewed(tape, out), linear.parents[0]
    out = linear.outputs[0]
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


# After attention.


def _add_output(anatomy: Anatomy) -> None:
    """Add the merged heads, and the output."""
    tape = anatomy.tape
    raw = anatomy.roles["x_raw"].value
    places = followed(tape, raw)
    linear = next(
        (
            call
            for call in tape.calls
            if any(each in places for each in call.parents) and _weight_of_or_none(call)
        ),
        None,
    )
    if linear is not None:
        merged = next(each for each in linear.parents if each in places)
        out, bias = _with_bias(tape, linear)
        features = torch.arange(out.tensor.shape[-1])
        anatomy.projections["O"] = Projection(linear, out, _weight_of(linear), bias, features, None)
        order = _merged_order(anatomy, merged, places[merged])
        anatomy.add(_feature_role("x_merged", merged, order=order))
        anatomy.add(_feature_role("x", out, order=order))
    elif (
        anatomy.output in places
        and anatomy.output.tensor.shape[-1] != anatomy.roles["x_raw"].tensor.shape[-1]
    ):
        order = _merged_order(anatomy, anatomy.output, places[anatomy.output])
        anatomy.add(_feature_role("x_merged", anatomy.output, order=order))
    if anatomy.output.tensor.ndim:
        anatomy.add(_feature_role("output", anatomy.output))


def _merged_order(anatomy: Anatomy, merged: Value, elements: Elements) -> torch.Tensor | None:
    """Return the tokens of the merged heads sequence by sequence; None if they are mixed."""
    raw = anatomy.roles["x_raw"]
    place = values_at(_numbers(merged), elements, raw.value.tensor.numel())
    if place is None or raw.elements is None:
        return None
    return token_order(place[raw.elements], merged.tensor.shape[-1])
