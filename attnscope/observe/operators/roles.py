"""Finds the attention that a call computes, by what is done with its tensors, not by their names.

Attention is what a softmax returns and a product consumes; scores are the product that the softmax is
computed from.
"""

from __future__ import annotations

from collections.abc import Iterator
from itertools import islice
from typing import Any

import torch

from attnscope.observe.operator_names import PRODUCTS
from attnscope.observe.operators.anatomy import Anatomy, NoAttentionError, Role, leaf
from attnscope.observe.operators.chain import calls_before, number_after, scores_of
from attnscope.observe.operators.follow import Elements, followed, is_selection, places_in
from attnscope.observe.operators.fused import KERNELS, add_fused
from attnscope.observe.operators.products import Product, product_of
from attnscope.observe.operators.projections import add_output, add_projections
from attnscope.observe.operators.tape import Tape, TorchCall, Value
from attnscope.observe.operators.without_scores import grouped_anatomy, linear_anatomy, sums_over_keys


def anatomy_of(tape: Tape, output: Value) -> Anatomy:
    """Find the tensors of the attention that a call computes.

    Raises:
        NoAttentionError: there is none, or several.
    """
    anatomy = Anatomy(tape, output)
    fused = [call for call in tape.calls if call.name in KERNELS]
    cores = [core for call in tape.calls if (core := _core_at(tape, call)) is not None]
    if len({core[2].call for core in cores}) == 1:
        cores = cores[:1]  # a difference of two maps, say, is one attention
    is_of_scores = any(not any(map(leaf, before.call.parents)) for _, before, _ in cores)
    linear = None if fused or is_of_scores else linear_anatomy(tape, output)
    if linear is not None:
        add_projections(linear)
        if sums_over_keys(linear):
            add_output(linear)
            return linear
    grouped = None if fused or cores else grouped_anatomy(tape, output)
    if grouped is not None:
        add_output(grouped)
        return grouped
    if len(fused) + len(cores) != 1:
        found = len(fused) + len(cores)
        raise NoAttentionError(
            f"it computes {found} attentions in one call"
            if found
            else "it multiplies no softmax of scores by values"
        )
    if fused:
        add_fused(anatomy, fused[0])
    else:
        _add_core(anatomy, *cores[0])
    add_projections(anatomy)
    add_output(anatomy)
    return anatomy


def attentions_of(tape: Tape, output: Value) -> tuple[list[Anatomy], dict[Value, str]]:
    """Find the tensors of each attention that a call computes, in order.

    Returns:
        The attentions, without their outputs; and the results of a softmax that are none, with what is
        missing.
    """
    found: list[Anatomy] = []
    others: dict[Value, str] = {}
    for call in tape.calls:
        anatomy = Anatomy(tape, output)
        try:
            if call.name in KERNELS:
                add_fused(anatomy, call)
            elif core := _core_at(tape, call):
                _add_core(anatomy, *core)
            else:
                results = filter(_is_softmax, call.outputs)
                others |= dict.fromkeys(
                    results, "its softmax is not computed from Q·Kᵀ and multiplied by V"
                )
                continue
        except NoAttentionError as error:
            others[call.outputs[0]] = str(error)
            continue
        add_projections(anatomy)
        found.append(anatomy)
    return found, others


# Attention itself.


def weighted_values(tape: Tape) -> Iterator[TorchCall]:
    """Yield the calls that multiply attention by V: of fused kernels, or products with a softmax."""
    for call in tape.calls:
        if call.name == "scaled_dot_product_attention":
            yield call
            continue
        for value in call.outputs:
            after = _product_after(tape, value) if _is_softmax(value) else None
            if after is not None:
                yield after.call


def _core_at(tape: Tape, call: TorchCall) -> tuple[Value, Product, Product] | None:
    """Return a softmax, with the product before and the product after it, if a call computes one."""
    for value in filter(_is_softmax, call.outputs):
        before = _product_before(value)
        after = _product_after(tape, value) if before is not None else None
        if before is not None and after is not None:
            return value, before, after
    return None


def _is_softmax(value: Value) -> bool:
    """Check whether a tensor is the result of a softmax, of torch's or one written out.

    Written out, exponentials are divided by their sum, to which a sink may be added; or differences
    to a logarithm of a sum are exponentiated.
    """
    if value.name == "softmax":
        return True
    if value.name == "div" and len(value.parents) == 2:
        numerator, denominator = value.parents
        sums = (call for call in islice(calls_before(denominator), 6) if call.name == "sum")
        return numerator.name == "exp" and any(numerator in call.parents for call in sums)
    if value.name == "exp" and value.parents:
        nearest = (islice(calls_before(each), 3) for each in value.parents[0].parents)
        return any(call.name == "logsumexp" for calls in nearest for call in calls)
    return False


def _product_before(value: Value) -> Product | None:
    """Return the product from which a tensor comes, element by element; None if there is none.

    Of several, as where a bias is added, the first of two tensors that are computed; or else the first.
    """
    products = {*PRODUCTS, "linear"}

    def is_product(call: TorchCall) -> bool:
        return call.name in products and not is_selection(call)

    calls = filter(is_product, calls_before(value, through=lambda call: not is_product(call)))
    found = [product for call in calls if (product := product_of(call)) is not None]
    return next(
        (each for each in found if not any(map(leaf, each.call.parents))), next(iter(found), None)
    )


def _product_after(tape: Tape, value: Value) -> Product | None:
    """Return the first product of which a tensor is an operand; the tensor's operand comes first."""
    places = followed(tape, value)
    for call in tape.calls:
        if call.outputs and call.outputs[0].index > value.index and call.name in PRODUCTS:
            product = product_of(call)
            if product is None or is_selection(call):
                continue
            if product.first.value in places and product.second.value not in places:
                return product
            if product.second.value in places and product.first.value not in places:
                return product.swapped()
    return None


def _add_core(anatomy: Anatomy, softmax: Value, before: Product, after: Product) -> None:
    """Add Q, K, V, the scores, attention, and the weighted values."""
    _check_product(before)
    raw = before.call.outputs[0]
    places = followed(anatomy.tape, raw)
    weights = after.first.value
    if weights not in places:
        raise NoAttentionError("the scores cannot be followed to the product with V")
    after, at_product, (before, lead, rows, columns) = _aligned_products(
        before, after, raw, places[weights]
    )
    anatomy.raw = raw

    def add_core(name: str, value: Value, elements: Elements) -> None:
        where = places_in(elements, raw.tensor.numel())[at_product]
        if bool((where >= 0).all()):
            anatomy.add(Role.arranged(name, value, where, ("lead", "n_Q", "n_K")))

    Q_elements = before.first_of(before.first.value.flat_indices)[lead][:, rows]
    K_elements = before.second_of(before.second.value.flat_indices)[lead][:, columns]
    V_elements = after.second_of(after.second.value.flat_indices).mT
    anatomy.add(Role.arranged("Q", before.first.value, Q_elements, ("lead", "n_Q", "d_head")))
    anatomy.add(Role.arranged("K", before.second.value, K_elements, ("lead", "n_K", "d_head")))
    anatomy.add(Role.arranged("V", after.second.value, V_elements, ("lead", "n_K", "d_V")))
    for role_name, value in scores_of(raw, softmax, places):
        add_core(role_name, value, places[value])
    if {"scores", "scores_masked"} <= set(anatomy.roles):
        anatomy.roles["scores"].without(1 / number_after(anatomy.way("scores", "scores_masked")))
    if weights is not softmax:
        add_core("attention_drop", weights, places[weights])
    x_elements = after.out_of(after.call.outputs[0].flat_indices)
    anatomy.add(Role.arranged("x_raw", after.call.outputs[0], x_elements, ("lead", "n_Q", "d_V")))


def _check_product(before: Product) -> None:
    """Check that scores are a product of Q and K, and not of something else with a weight."""
    operands = before.first.value, before.second.value
    weight = next((each for each in map(leaf, operands) if each is not None), None)
    if weight is None:
        return
    for each in operands:
        earlier = calls_before(each)
        is_mixed = any(call.name in PRODUCTS and not any(map(leaf, call.parents)) for call in earlier)
        if is_mixed or before.call.name == "linear":
            raise NoAttentionError(f"its scores are a product with the weight {weight.weight}, not Q·Kᵀ")


def _aligned_products(
    before: Product, after: Product, raw: Value, elements: Elements
) -> tuple[Product, torch.Tensor, Any]:
    """Return attention·V, the element of Q·Kᵀ at each lead, query and key there, and Q·Kᵀ aligned.

    Args:
        raw: the result of the former.
        elements: its elements in the operand of the latter.
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
    """
    for each in (before, before.swapped()):
        lead, row, column = each.positions_of(raw.flat_indices, at_product)
        first = lead[:, :1, :1], row[:1, :, :1], column[:1, :1, :]
        if all(
            bool((full == part).all()) for full, part in zip((lead, row, column), first, strict=True)
        ):
            return each, lead[:, 0, 0], row[0, :, 0], column[0, 0, :]
    raise NoAttentionError("the scores of several heads or queries are mixed before the product with V")
