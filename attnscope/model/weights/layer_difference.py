"""Compare the weights of each head of two checkpoints of one architecture, a layer at a time.

Nothing is kept of a layer but its numbers, so that memory does not grow with the number of layers.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Iterator
from math import isclose
from typing import Any

from attnscope.base.errors import ModelError
from attnscope.model.families.rotary import Pairs, rotary_pairs, rotary_settings
from attnscope.model.files.heads import Heads
from attnscope.model.files.indices import enumerated
from attnscope.model.files.layouts import GGUF
from attnscope.model.files.result import WeightSlice
from attnscope.model.heads.result import HeadRow
from attnscope.model.weights.matrix_change import (
    EQUAL,
    BothPairs,
    MatrixChange,
    Order,
    RelativeChange,
    circuit_change,
    with_bias,
)

CIRCUITS = {"QK": ("W_Q", "W_K", "W_Qᵀ·W_K"), "OV": ("W_O", "W_V", "W_O·W_V")}
"""Each circuit's factors, and its formula."""

BIASES = {"W_Q": "b_Q", "W_K": "b_K", "W_V": "b_V"}
NORM = re.compile(r"(q|k|query|key)_?(layer_?)?norm\b")

MEANINGS = {
    "QK": "relative change of W_Qᵀ·W_K, which determines what the head attends to",
    "OV": "relative change of W_O·W_V, which determines what the head moves",
    "b_O": "relative change of the output's bias, which all heads of a layer share",
}


ROTATED = (
    "relative change of W_Qᵀ·R·W_K over all distances by which positions R rotate, which determines what"
    " the head attends to"
)
"""What QK is in a layer with rotary positions."""


def metrics_of(slices: list[WeightSlice], *, rotated: bool = False) -> dict[str, str]:
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
    if rotated and "QK" in metrics:
        metrics["QK"] = ROTATED
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
        exact: whether `b` was computed from the very values of `a`, so that only `b` is rounded.

    Attributes:
        metrics: the names and meanings of what is measured for each head.
        dtypes: the dtypes, or quantised types, of the weights that were compared, in `a` and in `b`.
        undecided: why W_Q and W_K that change, but whose product does not, may attend to other keys;
            None: they do not.
        permuted: the matrices of a head whose features have another order, that order, and such heads.
    """

    def __init__(self, a: Heads, b: Heads, layer: int, *, exact: bool = False) -> None:
        self.a, self.b, self.layer, self.exact = a, b, layer, exact
        self._sides = a, b
        self.of_a, self.of_b = a.layer(layer), b.layer(layer)
        where = f" in layer {layer}" + ("" if a.stack.name == "self" else f" of {a.stack.name}")
        _check_width(a, b, f"d_feat{where}", self.of_a.d_feat, self.of_b.d_feat)
        _check_width(a, b, f"d_head{where}", self.of_a.d_head, self.of_b.d_head)
        _check_size(a, b, f"key/value heads{where}", self.of_a.n_kv_head, self.of_b.n_kv_head)
        first = self._pairs(0)
        self.tensors = {of_a.tensor for of_a, _ in first}
        self.rotated = self._rotated()
        self.pairs = _both_pairs(*self.rotated)
        self.undecided = self._why_undecided(unknown=self.rotated == [None, None])
        self.permuted: dict[tuple[tuple[str, ...], Order], list[int]] = {}
        self.metrics = metrics_of([of_a for of_a, _ in first], rotated=bool(self.pairs))
        self.dtypes = {(of_a.stored_as, of_b.stored_as) for of_a, of_b in first}

    def rows(self, heads: Collection[int]) -> Iterator[HeadRow]:
        """Measure heads, in order."""
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
                    measured[name] = self._circuit(name, changes)
            orders = {name: order for name, each in changes.items() if (order := each.permutation)}
            for order in dict.fromkeys(orders.values()):
                names = tuple(name for name in orders if orders[name] == order)
                self.permuted.setdefault((names, order), []).append(head)
            values = {
                name: measured[name.removeprefix("rank_")].rank
                if name.startswith("rank_")
                else measured[name].relative
                for name in self.metrics
            }
            yield HeadRow(self.a.stack.name, self.layer, head, values, dict.fromkeys(values))

    def _circuit(self, name: str, changes: dict[str, MatrixChange]) -> RelativeChange:
        """Measure the change of QK or OV; if the changes of its weights cancel, with the biases."""
        left, right = (changes[each] for each in CIRCUITS[name][:2])
        pairs = self.pairs if name == "QK" else None
        change = circuit_change(left, right, pairs)
        if change != EQUAL or left.equal or right.equal:
            return change
        if name == "QK" and self.undecided:
            return RelativeChange(None, 0)
        # (W_Q·x)ᵀ·b_K is the same for all keys, unless positions rotate it.
        biased = ("W_Q", "W_K") if name == "QK" and pairs else ("W_Q", "W_V")
        factors = [
            with_bias(changes[each], changes.get(BIASES[each])) if each in biased else changes[each]
            for each in CIRCUITS[name][:2]
        ]
        return circuit_change(factors[0], factors[1], pairs)

    def _rotated(self) -> list[Pairs | None]:
        """Return the pairs of features that positions rotate in A and in B.

        GGUF does not say which layers have rotary positions, nor always how many features they
        rotate: llama.cpp's code knows. What a file does not say is as in the other checkpoint.
        """
        rotated = [rotary_pairs(each, self.layer, self.of_a.d_head) for each in self._sides]
        of_gguf = [each.stack.layout in GGUF for each in self._sides]
        if of_gguf[0] != of_gguf[1]:
            known = rotated[of_gguf.index(False)]
            if not known or "rotary_dim" not in self._sides[of_gguf.index(True)].config:
                return [known, known]
        return rotated

    def _why_undecided(self, *, unknown: bool) -> str | None:
        """Return why the product of W_Q and W_K does not decide what the heads attend to."""
        if unknown:
            types = enumerated(dict.fromkeys(str(each.config.get("model_type")) for each in self._sides))
            return f"attnscope does not know the positions of {types}"
        for each in self._sides:
            place = each.stack.prefix_of(self.layer)
            own = [name.removeprefix(place) for name in each.tensors.names if name.startswith(place)]
            if any(map(NORM.match, own)):
                return "their queries and keys are normalised"
        return None

    def other_rotation(self) -> list[str]:
        """Return what the configurations say of rotary positions, where they differ."""
        if not self.pairs:
            return []
        of_gguf = any(each.stack.layout in GGUF for each in self._sides)
        both = [rotary_settings(each, self.layer, stated=of_gguf) for each in self._sides]
        differ = [
            f"{name} is {both[0][name]} in A and {both[1][name]} in B"
            for name in ROTARY_SETTINGS
            if name in both[0] and name in both[1] and not _alike(both[0][name], both[1][name])
        ]
        if None not in self.rotated and self.rotated[0] != self.rotated[1]:
            differ.append("A and B rotate other pairs of features")
        return differ

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
        """Pair the slices of a head by name."""
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


ROTARY_SETTINGS = ("rope_theta", "factor", "rope_type")


def _both_pairs(a: Pairs | None, b: Pairs | None) -> BothPairs | None:
    """Return the pairs that positions rotate in A and in B, as many in both.

    Where one is not known, or rotates fewer, it is compared by the pairs of the other.
    """
    longer = max(a or [], b or [], key=len)
    if not longer:
        return None
    return (a if a and len(a) == len(longer) else longer), (b if b and len(b) == len(longer) else longer)


def _alike(one: Any, other: Any) -> bool:
    """Check whether two settings are equal, as far as GGUF's float32 says."""
    if isinstance(one, int | float) and isinstance(other, int | float):
        return isclose(one, other, rel_tol=1e-6)
    return bool(one == other)


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
