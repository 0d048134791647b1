"""Compare the weights of each head of two checkpoints of one architecture, a layer at a time.

Nothing is kept of a layer but its numbers, so that memory does not grow with the number of layers.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator

from attnscope.checkpoints.heads import Heads
from attnscope.checkpoints.indices import enumerated
from attnscope.checkpoints.layouts import GGUF
from attnscope.checkpoints.result import WeightSlice
from attnscope.errors import ModelError
from attnscope.models.heads.result import HeadRow
from attnscope.weights.matrix_change import MatrixChange, RelativeChange, circuit_change

CIRCUITS = {"QK": ("W_Q", "W_K", "W_Qᵀ·W_K"), "OV": ("W_O", "W_V", "W_O·W_V")}
"""Each circuit's factors, and its formula."""

MEANINGS = {
    "QK": "relative change of W_Qᵀ·W_K, which determines what the head attends to",
    "OV": "relative change of W_O·W_V, which determines what the head moves",
    "b_O": "relative change of the output's bias, which all heads of a layer share",
}


def metrics_of(slices: list[WeightSlice]) -> dict[str, str]:
    """Return the names and meanings of what is measured for a head with these slices."""
    weights = [each.name for each in slices if each.array.ndim == 2]
    biases = [each.name for each in slices if each.array.ndim == 1]
    circuits = [name for name, (left, right, _) in CIRCUITS.items() if {left, right} <= {*weights}]
    several = "heads of a layer share"
    shared = {each.name for each in slices if each.shared}
    metrics = {}
    for name in [*weights, *circuits, *biases]:
        meaning = f"relative change of {name}: ‖B − A‖/‖A‖"
        metrics[name] = MEANINGS.get(name, f"{meaning}; all {several} it" if name in shared else meaning)
    for name in [*weights, *circuits]:
        formula = CIRCUITS[name][2] if name in CIRCUITS else name
        metrics[f"rank_{name}"] = f"rank of the change of {formula}, without what rounding could cause"
    return metrics


def check_comparable(a: Heads, b: Heads) -> None:
    """Raise a ModelError if two stacks have different numbers of layers or of heads."""
    stack = "" if a.stack.name == "self" else f" in {a.stack.name} attention"
    _check_size(a, b, f"layers{stack}", a.stack.n_layer, b.stack.n_layer)
    _check_size(a, b, f"heads{stack}", a.n_head, b.n_head)
    if a.stack.numbers.keys() != b.stack.numbers.keys():
        layers = enumerated(map(str, sorted(a.stack.numbers.keys() ^ b.stack.numbers.keys())))
        raise _not_comparable(a, b, f"only one of them has attention in layer {layers}{stack}")


HINT = "two checkpoints of one architecture"


class LayerDifference:
    """The comparison of one layer.

    Args:
        a, b: the stacks of two checkpoints that `check_comparable` accepts.
        layer: the index of a layer with attention.
        exact: whether `b` was computed from the very values of `a`, so that only `b` is rounded.

    Attributes:
        metrics: the names and meanings of what is measured for each head.
        dtypes: the dtypes, or quantised types, of the weights that were compared, in `a` and in `b`.

    Raises:
        ModelError: the layer has other sizes, or other tensors, in the two.
    """

    def __init__(self, a: Heads, b: Heads, layer: int, *, exact: bool = False) -> None:
        self.a, self.b, self.layer, self.exact = a, b, layer, exact
        self.of_a, self.of_b = a.layer(layer), b.layer(layer)
        where = f" in layer {layer}" + ("" if a.stack.name == "self" else f" of {a.stack.name}")
        _check_width(a, b, f"d_feat{where}", self.of_a.d_feat, self.of_b.d_feat)
        _check_width(a, b, f"d_head{where}", self.of_a.d_head, self.of_b.d_head)
        _check_size(a, b, f"key/value heads{where}", self.of_a.n_kv_head, self.of_b.n_kv_head)
        first = self._pairs(0)
        self.tensors = {of_a.tensor for of_a, _ in first}
        self.metrics = metrics_of([of_a for of_a, _ in first])
        self.dtypes = {(of_a.stored_as, of_b.stored_as) for of_a, of_b in first}

    def rows(self, heads: Collection[int]) -> Iterator[HeadRow]:
        """Measure heads, in order.

        Args:
            heads: the indices of query heads.
        """
        shared: dict[tuple[str, int], MatrixChange] = {}  # what several heads read is measured once
        for head in heads:
            changes = {}
            for of_a, of_b in self._pairs(head):
                change = MatrixChange(of_a, of_b, exact=self.exact)
                if of_a.shared or of_a.name[-1] in "KV":
                    change = shared.setdefault((of_a.name, of_a.start), change)
                changes[of_a.name] = change
            measured = {name: change.measured for name, change in changes.items()}
            for name, (left, right, _) in CIRCUITS.items():
                if left in changes and right in changes:
                    measured[name] = circuit_change(changes[left], changes[right])
            values = {name: _value(name, measured) for name in self.metrics}
            yield HeadRow(self.a.stack.name, self.layer, head, values, dict.fromkeys(values))

    def other_tensors(self) -> list[str]:
        """Return the names in `a` of other tensors of this attention that differ: norms, gates.

        Those of GGUF and of safetensors are not compared: llama.cpp's converter adds 1 to some norms.
        """
        import numpy as np

        layouts = {each.stack.layout for each in (self.a, self.b)}
        if len(layouts) > 1 and not layouts.isdisjoint(GGUF):
            return []
        place_a, place_b = (each.stack.prefix_of(self.layer) for each in (self.a, self.b))
        theirs, differ = set(self.b.tensors.names), []
        for name in self.a.tensors.names:
            name_b = name.replace(place_a, place_b, 1)
            if not name.startswith(place_a) or name in self.tensors or name_b not in theirs:
                continue
            try:
                (x, _), (y, _) = self.a.tensors.read(name), self.b.tensors.read(name_b)
            except ModelError:  # masks and positions, which are not floats
                continue
            if not np.array_equal(x, y):
                differ.append(name)
        return differ

    def _pairs(self, head: int) -> list[tuple[WeightSlice, WeightSlice]]:
        """Pair the slices of a head by name.

        Raises:
            ModelError: a slice has no counterpart of its shape.
        """
        a, b, ours = self.a, self.b, self.of_a.weights(head)
        theirs = {each.name: each for each in self.of_b.weights(head)}
        if alone := {each.name for each in ours} ^ theirs.keys():
            name = next(name for name in [*theirs, *(each.name for each in ours)] if name in alone)
            has, lacks = (b, a) if name in theirs else (a, b)
            why = f"{has.model} has {name} in layer {self.layer}, {lacks.model} does not"
            raise _not_comparable(a, b, why)
        pairs = [(each, theirs[each.name]) for each in ours]
        for one, other in pairs:
            for axis, *sizes in zip(one.dims, one.head_shape, other.head_shape, strict=True):
                _check_width(a, b, f"{axis} of {one.name} in layer {self.layer}", *sizes)
        return pairs


def _value(name: str, measured: dict[str, RelativeChange]) -> float | None:
    """Return the value of a metric."""
    if name.startswith("rank_"):
        return measured[name.removeprefix("rank_")].rank
    return measured[name].relative


def _check_size(a: Heads, b: Heads, what: str, one: int, other: int) -> None:
    """Raise a ModelError if two numbers of heads or layers differ."""
    if one != other:
        raise _not_comparable(a, b, f"{a.model} has {one} {what}, {b.model} has {other}")


def _check_width(a: Heads, b: Heads, axis: str, one: int, other: int) -> None:
    """Raise a ModelError if the sizes of an axis differ."""
    if one != other:
        raise _not_comparable(a, b, f"{axis} is {one} in {a.model} and {other} in {b.model}")


def _not_comparable(a: Heads, b: Heads, why: str) -> ModelError:
    return ModelError(f"{a.model} and {b.model} cannot be compared: {why}.", hint=HINT)
