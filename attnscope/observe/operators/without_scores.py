"""Attention without a matrix of scores: linear attention, and attention over an edge list.

In linear attention, Q·(KᵀV) is a product of the queries and a state, which sums over the keys. A
normaliser may divide it. Source: Katharopoulos et al. 2020, "Transformers are RNNs", section 3.2.

Over an edge list, a softmax over groups of edges weights messages, which are summed by group.
Source: Veličković et al. 2018, "Graph Attention Networks", equations 3 and 4.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from itertools import islice

import torch

from attnscope.observe.operator_names import PRODUCTS
from attnscope.observe.operators.anatomy import Anatomy, Role, leaf
from attnscope.observe.operators.chain import LAYOUT, calls_before
from attnscope.observe.operators.follow import Elements, followed, is_selection, places_in
from attnscope.observe.operators.products import Product, ProductOperand, product_of, scaled_product_of
from attnscope.observe.operators.tape import Tape, TorchCall, Value


def linear_anatomy(tape: Tape, output: Value) -> Anatomy | None:
    """Find the tensors of a linear attention but for its projections; None if there is no single one."""
    found = [each for call in tape.calls for each in _products_with_state(call)]
    if len(found) != 1:
        return None
    anatomy = Anatomy(tape, output)
    numerator, state, normaliser = found[0]
    _add_operands(anatomy, numerator, _aligned(numerator, state, followed(tape, state.call.outputs[0])))
    out = numerator.call.outputs[0]
    elements = numerator.out_of(out.flat_indices)  # lead n_Q d_V
    if normaliser is None:
        _add_result(anatomy, out, elements)
    else:
        arranged = numerator.arranged(normaliser, normaliser.value.flat_indices, numerator.rows)
        _add_normaliser(anatomy, normaliser.value, arranged[..., 0])
        anatomy.add(Role.arranged("x_raw", out, elements, ("lead", "n_Q", "d_V")))
    return anatomy


def sums_over_keys(anatomy: Anatomy) -> bool:
    """Check whether a state sums over positions, not over features as scores do: K has both apart."""
    elements, split = anatomy.origins.get("K"), anatomy.roles.get("K_split")
    if elements is None or split is None:
        return False
    features = elements % split.value.tensor.shape[-1]
    return bool((features == features[:, :1]).all())


def _products_with_state(call: TorchCall) -> Iterator[tuple[Product, Product, ProductOperand | None]]:
    """Yield Q·state, the product that the state is, and what divides the former in the same call."""
    if call.name not in PRODUCTS or is_selection(call):
        return
    product, normaliser = scaled_product_of(call) or (product_of(call), None)
    if product is None or any(leaf(each.value) for each in (product.first, product.second)):
        return
    for each in (product, product.swapped()):
        state = _state_before(each.second.value)
        if state is not None:
            yield each, state, normaliser


def _state_before(value: Value) -> Product | None:
    """Return the nearest product that a tensor comes from, if it is one of two computed tensors."""
    for call in calls_before(value, through=lambda call: call.name not in {*PRODUCTS, "linear"}):
        product = None if is_selection(call) else product_of(call)
        if product is not None:
            return None if any(map(leaf, call.parents)) else product
    return None


def _aligned(
    numerator: Product, state: Product, places: Mapping[Value, Elements]
) -> tuple[Product, torch.Tensor, torch.Tensor, torch.Tensor]:
    """Return the state's product with V as its first operand; and its leads, rows and columns."""
    at = numerator.second_of(places[numerator.second.value]).long()  # lead d_V d_head
    lead, row, column = state.positions_of(state.call.outputs[0].flat_indices, at)
    if bool((row == row[:, :1]).all()):  # V is the second operand
        return state.swapped(), lead[:, 0, 0], column[0, :, 0], row[0, 0]
    return state, lead[:, 0, 0], row[0, :, 0], column[0, 0]


def _add_operands(
    anatomy: Anatomy,
    numerator: Product,
    aligned: tuple[Product, torch.Tensor, torch.Tensor, torch.Tensor],
) -> None:
    """Add Q, K, V and the state."""
    state, lead, rows, columns = aligned
    first, second = numerator.first, numerator.second
    V = state.first_of(state.first.value.flat_indices)[lead][:, rows].mT
    K = state.second_of(state.second.value.flat_indices)[lead][:, columns].mT
    Q = numerator.first_of(first.value.flat_indices)
    elements = numerator.second_of(second.value.flat_indices)
    for name, value, operand, axes in (
        ("Q", first.value, Q, ("lead", "n_Q", "d_head")),
        ("K", state.second.value, K, ("lead", "n_K", "d_head")),
        ("V", state.first.value, V, ("lead", "n_K", "d_V")),
    ):
        anatomy.add(Role.arranged(name, *_before_views(value, operand), axes))
    anatomy.add(Role.arranged("state", second.value, elements, ("lead", "d_V", "d_head")))


def _before_views(value: Value, elements: torch.Tensor) -> tuple[Value, torch.Tensor]:
    """Return the tensor that an operand is a view of, and its elements there, for normalisers."""
    while value.call is not None and value.name in LAYOUT:
        before = value.parents[0]
        if before.tensor.numel() != value.tensor.numel():
            break
        [places] = value.call.run(lambda each: each.flat_indices)
        value, elements = before, places.reshape(-1)[elements]
    return value, elements


def _add_result(anatomy: Anatomy, out: Value, elements: torch.Tensor) -> None:
    """Add the numerator and what divides it, or the result alone if nothing does."""
    axes = ("lead", "n_Q", "d_V")
    places = followed(anatomy.tape, out)
    for call in anatomy.tape.calls:
        before = next((each for each in call.parents if each in places), None)
        others = [each for each in call.parents if each is not before and each.tensor.numel() > 1]
        if before is None or call.name not in ("div", "mul") or len(others) != 1:
            continue
        value = call.outputs[0]
        place = places_in(places[value], out.tensor.numel())[elements]
        divisor = others[0].flat_indices.expand(value.tensor.shape).reshape(-1)[place]
        if bool((divisor == divisor[..., :1]).all()):  # the same for all features
            above = places_in(places[before], out.tensor.numel())[elements]
            anatomy.add(Role.arranged("numerator", before, above, axes))
            _add_normaliser(anatomy, others[0], divisor[..., 0])
            anatomy.add(Role.arranged("x_raw", value, place, axes))
            return
    anatomy.add(Role.arranged("x_raw", out, elements, axes))


def _add_normaliser(anatomy: Anatomy, value: Value, elements: torch.Tensor) -> None:
    """Add what divides each query's sum, `lead n_Q`; of a reciprocal, what it is the reciprocal of."""
    is_inverse = value.name == "reciprocal" or (
        value.name == "div" and value.call is not None and not isinstance(value.call.args[-1], Value)
    )
    if is_inverse and value.parents[0].tensor.shape == value.tensor.shape:
        value = value.parents[0]
    anatomy.add(Role.arranged("denominator", value, elements, ("lead", "n_Q")))


SUMS = {"index_add", "scatter_add", "scatter_reduce", "index_reduce"}
"""Functions that sum by group: of a tensor, an axis, the group of each entry along it, and a source."""


def grouped_anatomy(tape: Tape, output: Value) -> Anatomy | None:
    """Find the tensors of an attention over groups of edges; None if there is no single one."""
    found = [(call, total) for call in tape.calls for total in _total_of(call)]
    if len(found) != 1:
        return None
    anatomy = Anatomy(tape, output)
    division, total = found[0]
    attention, exponentials = division.outputs[0], division.parents[0]
    scores = exponentials.parents[0]
    if scores.name == "sub":  # of the largest score of each group
        scores = scores.parents[0]
    axis = int(total.argument(1, "dim"))
    names = ("n_edge", "features")
    for name, value in (("edge_scores", scores), ("edge_attention", attention)):
        anatomy.add(_along(name, value, axis, names))
    anatomy.add(Role("groups", total.parents[1], total.parents[1].tensor, ("n_edge",)))
    places = followed(tape, attention)
    for call in tape.calls:
        message = call.parents[-1] if call.name in SUMS and len(call.parents) >= 3 else None
        if message in places and message is not None and message.index > attention.index:
            axis = int(call.argument(1, "dim"))
            anatomy.add(_along("messages", message, axis, names))
            anatomy.add(_along("x_raw", call.outputs[0], axis, ("n_node", "features")))
            return anatomy
    return None


def _total_of(call: TorchCall) -> Iterator[TorchCall]:
    """Yield the sum by group by which a call divides the exponentials that it sums."""
    if call.name != "div" or len(call.parents) != 2 or call.parents[0].name != "exp":
        return
    for each in islice(calls_before(call.parents[1]), 8):
        if each.name in SUMS and len(each.parents) >= 3 and each.parents[-1] is call.parents[0]:
            yield each
            return


def _along(name: str, value: Value, axis: int, names: tuple[str, str]) -> Role:
    """Return a tensor as one row for each entry along an axis."""
    indices = value.flat_indices.movedim(axis, 0)
    elements = indices.reshape(len(indices), -1)
    return Role.arranged(name, value, elements, names)
