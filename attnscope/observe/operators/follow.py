"""Follows the elements of a tensor through views, copies and element-wise functions."""

from __future__ import annotations

from collections.abc import Mapping
from math import isfinite

import torch

from attnscope.observe.operator_names import CONTRACTIONS
from attnscope.observe.operators.tape import NotReplayableError, Tape, TorchCall, Value

MOVES = {
    "view", "reshape", "transpose", "permute", "swapaxes", "swapdims", "moveaxis", "movedim",
    "T", "mT", "H", "t", "flatten", "unflatten", "squeeze", "unsqueeze", "expand", "expand_as",
    "broadcast_to", "getitem", "chunk", "split", "split_with_sizes", "tensor_split", "unbind",
    "select", "narrow", "repeat", "repeat_interleave", "tile", "roll", "flip", "stack", "cat",
    "concat", "concatenate", "hstack", "vstack", "index_select", "take_along_dim", "gather",
    "view_as", "reshape_as", "view_as_complex", "view_as_real", "real", "imag", "setitem",
    "copy", "as_strided", "pad", "unsafe_chunk", "unsafe_split", "hsplit", "diagonal",
    "adjoint", "alias", "index_copy", "scatter", "index_put", "slice_scatter", "select_scatter",
    "masked_scatter",
}  # fmt: skip
"""Functions whose result consists of elements of their arguments."""

WRITES = {"setitem", "scatter", "index_put"}
"""Those that may write a number instead of elements of a tensor."""

REDUCTIONS = {*CONTRACTIONS, "sum", "mean"}

Elements = torch.Tensor
"""For each element of a tensor, the number of the element that it comes from; -1 if from elsewhere."""


def followed(tape: Tape, source: Value) -> dict[Value, Elements]:
    """Follow the elements of a tensor into all tensors that are computed from it.

    Functions that work element by element keep the place of each; of several arguments, the first
    that comes from the source counts. A product or a sum over an axis ends the way.

    Returns:
        By value, a tensor of its shape: the numbers of the elements of `source`, which counts row by
        row.
    """
    numbers = torch.arange(source.tensor.numel(), dtype=torch.float64).reshape(source.tensor.shape)
    found: dict[Value, Elements] = {source: numbers}
    begun = source.call is None
    for call in tape.calls:
        if begun and any(parent in found for parent in call.parents):
            for value, elements in zip(call.outputs, _through(call, found, source), strict=True):
                if elements is not None and value is not source:
                    found[value] = elements
        begun = begun or call is source.call
    return found


def _through(call: TorchCall, found: dict[Value, Elements], source: Value) -> list[Elements | None]:
    """Follow elements into the results of a call."""
    picks = is_selection(call)
    if picks or (call.name in MOVES and not _writes_number(call)):

        def elements_of(value: Value) -> torch.Tensor:
            if value in found:
                return found[value].contiguous()
            if picks:
                return value.tensor.double()
            if not value.tensor.is_floating_point() and not value.tensor.is_complex():
                return value.tensor  # an index
            return torch.full(value.tensor.shape, -1.0, dtype=torch.float64)

        try:
            if call.name == "pad":
                return [_padded(call, found)]
            return list(call.run(elements_of))
        except (NotReplayableError, RuntimeError, TypeError, IndexError, ValueError):
            return [None] * len(call.outputs)
    return [_beside(call, value, found, source) for value in call.outputs]


def _padded(call: TorchCall, found: Mapping[Value, Elements]) -> Elements | None:
    """Follow elements through padding, whose values are not elements of the source."""
    number = float(call.argument(3, "value") or 0.0)
    if not isfinite(number):
        return None
    [result] = call.run(lambda value: found[value] + (number + 1))
    return result - (number + 1)


def _beside(
    call: TorchCall, value: Value, found: dict[Value, Elements], source: Value
) -> Elements | None:
    """Return the elements of the argument that a function works on element by element.

    Of two terms, the one that holds more of its elements counts: in x·cos + y·sin, x stays in place,
    because the sine of the first position is 0, and most angles of rotary positions are small. If no
    position is the first, the term with the sine is known by its name. Of a difference, the first one
    counts.
    """
    if call.name in REDUCTIONS:
        return None
    shape = tuple(value.tensor.shape)
    known = [parent for parent in call.parents if parent in found]
    if call.name in ("add", "sub") and len(known) == 2:
        known.sort(
            key=lambda parent: (
                int((parent.tensor == 0).sum()),
                _has_sine(parent, found),
                -_share(parent, found[parent], source) if call.name == "add" else 0.0,
            )
        )
    try:
        return found[known[0]].expand(shape) if known else None
    except RuntimeError:
        return None


def _has_sine(value: Value, found: Mapping[Value, Elements]) -> bool:
    """Check whether a tensor is a product with sines, and not with cosines."""
    words: set[str] = set()
    left = [each for each in value.parents if each not in found] if value.name == "mul" else []
    while left:
        each = left.pop()
        words |= {word for word in (each.name, each.input, each.weight) if word}
        if each.name not in ("sin", "cos"):
            left += each.parents
    names = " ".join(words).lower()
    return "sin" in names and "cos" not in names


def _share(value: Value, elements: Elements, source: Value) -> float:
    """Return the mean square of a tensor's values relative to the elements that they come from."""
    flat = elements.real.reshape(-1).long()
    inside = flat >= 0
    before = source.tensor.reshape(-1)[flat[inside]]
    ratio = value.tensor.reshape(-1)[inside] / before
    ratio = ratio[ratio.isfinite()]
    return float(ratio.abs().square().mean()) if ratio.numel() else 0.0


def _writes_number(call: TorchCall) -> bool:
    """Check whether a number is assigned to elements, which stay where they are."""
    if call.name == "setitem":
        return not isinstance(call.args[-1], Value)
    others = [each.tensor for each in call.parents[1:]]
    is_number = not any(each.is_floating_point() or each.is_complex() for each in others)
    return call.name in WRITES and is_number


def is_selection(call: TorchCall) -> bool:
    """Check whether a call multiplies by a matrix of zeros and ones that picks one element each.

    Such a constant matrix copies heads, or permutes features.
    """
    if call.name not in REDUCTIONS or len(call.parents) != 2:
        return False
    binary = [each for each in call.parents if bool(((each.tensor == 0) | (each.tensor == 1)).all())]
    if len(binary) != 1 or not _is_constant(binary[0]):
        return False
    [picked] = call.run(lambda each: each.tensor if each is binary[0] else torch.ones_like(each.tensor))
    return bool((picked == 1).all())


ALIKE = {"to", "type_as", "expand_as", "view_as", "reshape_as"}
"""Functions that take only the dtype or the shape of their second argument."""


def _is_constant(value: Value) -> bool:
    """Check whether the values of a tensor depend on no argument and no weight."""
    left, visited = [value], set[Value]()
    while left:
        each = left.pop()
        if each.is_weight or each.input is not None:
            return False
        is_new = each.name.startswith("new_") or each.name.endswith("_like")
        parents = each.parents[: 0 if is_new else 1 if each.name in ALIKE else None]
        left += [parent for parent in parents if parent not in visited]
        visited.add(each)
    return True


def values_at(tensor: torch.Tensor, elements: Elements, n_source: int) -> torch.Tensor | None:
    """Return the values of a tensor in the order of the elements that they come from.

    Returns:
        `n_source`; None if an element is missing.
    """
    place = places_in(elements, n_source)
    return None if (place < 0).any() else tensor.reshape(-1)[place]


def places_in(elements: Elements, n_source: int) -> torch.Tensor:
    """Find the flat index in a tensor of each element of its source; -1 if it is not there."""
    flat = elements.real.reshape(-1).long()
    place = torch.full((n_source,), -1, dtype=torch.long)
    inside = flat >= 0
    place[flat[inside]] = torch.arange(flat.numel())[inside]
    return place
