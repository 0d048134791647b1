"""Other rotary positions: their pairs, base, offset and place.

Source: Su et al. 2021, "RoFormer: Enhanced Transformer with Rotary Position Embedding", section 3.2.2.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from itertools import accumulate
from math import exp, isclose, log
from operator import mul

import torch

from attnscope.code.compare.causes.case import Case, Hypothesis
from attnscope.code.compare.causes.rotation_angles import (
    LAYOUTS,
    Rotation,
    frequencies_between,
    ntk_factor,
    paired_otherwise,
    rotation_between,
)
from attnscope.code.compare.divergence.state import RoleTensors


@dataclass(frozen=True)
class RotatedTensor:
    """What one side rotates, and how."""

    #: Q, K or V before its rotation: as it is split, or after a norm.
    before: torch.Tensor
    rotation: Rotation


def _rotated_tensors(case: Case, name: str, side: str) -> Iterator[RotatedTensor]:
    """Yield each stage from which on one side does nothing but rotate, the earliest first."""
    for before in (case.unrotated(side, name), *case.state(side).stages(name)):
        rotation = rotation_between(before.double(), case.of(side, name))
        if rotation is not None:
            yield RotatedTensor(before.double(), rotation)


def _rotations_of_same_tensor(case: Case, name: str) -> tuple[RotatedTensor, RotatedTensor] | None:
    """Find the rotations of both sides that start from the same tensor; None if there are none."""
    of_b = list(_rotated_tensors(case, name, "b"))
    pairs = (
        (a, b)
        for a in _rotated_tensors(case, name, "a")
        for b in of_b
        if case.is_same(a.before, b.before)
    )
    return next(pairs, None)


def _rotations_of_same_heads(case: Case, name: str) -> tuple[RotatedTensor, RotatedTensor] | None:
    """Find the rotation of each side, if both have the same heads, in whatever order."""
    a, b = (next(_rotated_tensors(case, name, side), None) for side in "ab")
    n_head = case.n_head
    if a is None or b is None or not n_head or a.before.shape != b.before.shape:
        return None
    of_a, of_b = (each.before.unflatten(0, (-1, n_head)).unbind(1) for each in (a, b))
    same_heads = all(any(case.is_same(one, other) for one in of_a) for other in of_b)
    return (a, b) if same_heads else None


def rotary(case: Case) -> Iterator[Hypothesis]:
    """Suppose that the two rotate their features by other angles, or in other pairs."""
    name = case.role[0]
    if not case.has_unrotated(name):
        return
    pair = _rotations_of_same_tensor(case, name)
    if pair is None:
        yield from _rotated_whole(case, name)
        yield from _along_another_axis(case, name)
        pair = _rotations_of_same_heads(case, name)
    if pair is None:
        return
    a, b = pair
    if a.rotation.is_near(1.0) and b.rotation.is_near(1.0):  # no side rotates: each multiplies at most
        return
    if a.rotation.turns_like(b.rotation):
        if case.is_same(a.before, b.before):
            yield from _rounded_tables(case, name, a, b)
        return
    predicted = torch.cat([a.rotation.apply(a.before), b.rotation.apply(b.before)])
    kind, text = _difference(name, a.rotation, b.rotation)
    both = torch.cat([case.of("a"), case.of("b")])
    yield Hypothesis(kind, text, predicted, both, a.rotation.apply(b.before))


def magnitude(case: Case) -> Iterator[Hypothesis]:
    """Suppose that one side multiplies the cosines and sines of Q and K by a number, as YaRN does.

    Then each of Q and K is the other side's times that number, and the scores times its square.
    """
    rotations = {(side, name): _rotation_of(case, side, name) for side in "ab" for name in "QK"}
    sizes = {key: 1.0 if each is None else each.size for key, each in rotations.items()}
    in_a, in_b = (sizes[side, "Q"] * sizes[side, "K"] for side in "ab")
    if isclose(in_a, in_b, rel_tol=1e-6):
        return
    text = "; ".join(
        magnitude_text(name, sizes["a", name], sizes["b", name])
        for name in "QK"
        if not isclose(sizes["a", name], sizes["b", name], rel_tol=1e-6)
    )
    where = {side: case.state(side).role("Q").site or case.state(side).role("Q").value for side in "ab"}
    predicted, observed = case.of("a") * (in_b / in_a), case.of("b")
    yield Hypothesis("rotary magnitude", text, predicted, observed, where=where)


def _rotation_of(case: Case, side: str, name: str) -> Rotation | None:
    """Return the rotation of Q or K on a side; None if it has none."""
    if not case.has_unrotated(name):
        return None
    turned = (each.rotation for each in _rotated_tensors(case, name, side))
    return next((each for each in turned if not each.is_near(1.0)), None)


def _along_another_axis(case: Case, name: str) -> Iterator[Hypothesis]:
    """Suppose that one side takes the axis of heads, or of sequences, for that of positions."""
    if not case.n_head:
        return
    side, other = case.wrong, case.right
    axes = {0: ("sequences", case.n_batch), 1: ("heads", case.n_head)}
    turned = list(_rotated_tensors(case, name, other))
    for axis, (words, size) in axes.items():
        if size < 2:
            continue

        def moved(tensor: torch.Tensor, axis: int = axis) -> torch.Tensor:
            """Return `lead n d` with another axis in the place of n."""
            return tensor.double().unflatten(0, (-1, case.n_head)).transpose(axis, 2).flatten(0, 1)

        after = moved(case.of(side))
        for before in (case.unrotated(side, name), *case.state(side).stages(name)):
            rotation = rotation_between(moved(before), after)
            usual = [each.rotation for each in turned if case.is_same(each.before, before)]
            if rotation is None or rotation.is_near(1.0) or not usual:
                continue
            text = (
                f"{side} rotates {name} by the index of its {words}, as if these were positions;"
                f" {other} rotates it along the sequence"
            )
            kind = f"rotary positions along the {words}"
            yield Hypothesis(kind, text, rotation.apply(moved(before)), after, usual[0].apply(before))
            return


def pairs_joined_otherwise(case: Case) -> Iterator[Hypothesis]:
    """Suppose that one side joins the pairs that it rotated as halves, and the other side by side."""
    name = case.role[0]
    a, b = case.of("a"), case.of("b")
    if a.shape[-1] % 2 or name == "V":
        return
    for predicted, in_b, in_a in paired_otherwise(a):
        text = f"b's {name} has the features of a's in another order: pairs {in_b}, in a {in_a}"
        yield Hypothesis("pairs joined otherwise", text, predicted, b)


def _difference(name: str, a: Rotation, b: Rotation) -> tuple[str, str]:
    """Return the name of the mistake, and a sentence."""
    for one, other, words in ((b, "b", "a rotates it"), (a, "a", "b rotates it")):
        if one.is_near(1.0):
            kind = "rotary positions missing" if other == "b" else "rotary positions added"
            return kind, f"{other} does not rotate {name} by its positions, and {words}"
    found = list(_parts(name, a, b)) or [("rotary angles", f"b rotates {name} by other angles than a")]
    return " + ".join(kind for kind, _ in found), "; ".join(text for _, text in found)


def _rounded_tables(
    case: Case, name: str, in_a: RotatedTensor, in_b: RotatedTensor
) -> Iterator[Hypothesis]:
    """Suppose that the two rotate by the same angles, one side with less exact cosines."""
    a, b = in_a.rotation, in_b.rotation
    one, coarse, fine = ("a", a, b) if a.noise > b.noise else ("b", b, a)
    off = float((coarse.turns * coarse.size - fine.turns * fine.size).abs().max())
    if case.found.largest > 2 * off * float(in_a.before.abs().max()):  # two features for each
        return
    text = f"{one} rotates {name} by the same angles with less exact cosines, which are off by {off:.1e}"
    predicted = b.apply(in_a.before)
    yield Hypothesis("rotary angles rounded", text, predicted, case.of("b"))


def _parts(name: str, a: Rotation, b: Rotation) -> Iterator[tuple[str, str]]:
    """Yield what differs between two rotations: the name of the mistake, and a sentence."""
    if a.width != b.width:
        text = f"b rotates {b.width} features of each head, a {a.width}"
        yield "rotary width", text
        return
    if a.start != b.start:
        of_a, of_b = (f"{each.start} to {each.start + each.width - 1}" for each in (a, b))
        text = f"b rotates features {of_b} of each head, a features {of_a}"
        yield "rotary features", text
    if a.layout != b.layout:
        yield (
            f"rotary {b.layout}",
            f"b's rotary positions are {b.layout}, a's {a.layout}: b {LAYOUTS[b.layout]},"
            f" a {LAYOUTS[a.layout]}",
        )
    if a.offset is not None and b.offset is not None and a.offset != b.offset:
        text = f"b's rotary positions of {name} begin with {b.offset:g}, a's with {a.offset:g}"
        yield "rotary offset", text
    if not isclose(a.size, b.size, rel_tol=1e-6 + a.noise + b.noise):
        yield "rotary magnitude", magnitude_text(name, a.size, b.size)
    yield from _frequency_parts(a, b)
    if a.layout == b.layout and a.is_near(b.turns.conj(), b.noise):
        yield "rotary direction", f"b rotates {name} in the opposite direction"


def magnitude_text(name: str, a: float, b: float) -> str:
    """Say by what the sides multiply the cosines and sines of a tensor."""
    words = [
        f"{side} multiplies the cosines and sines of {name} by {size:.6g}"
        for side, size in (("b", b), ("a", a))
        if not isclose(size, 1, rel_tol=1e-6)
    ]
    factor = exp((max(a, b) / min(a, b) - 1) / 0.1)
    usual = round(factor)
    if usual > 1 and isclose(factor, usual, rel_tol=1e-4):
        words.append(f"YaRN's magnitude for a factor of {usual} is 0.1·ln {usual} + 1")
    return "; ".join(words)


def _frequency_parts(a: Rotation, b: Rotation) -> Iterator[tuple[str, str]]:
    """Yield how the frequencies of two rotations differ."""
    if a.base is not None and b.base is not None:
        n_pair = a.turns.shape[1]
        speed = max(a.base, b.base) ** (-1 / n_pair)  # the base follows from that of the second pair
        if abs(log(a.base / b.base)) > 1e-3 + n_pair * (a.noise + b.noise) / speed:
            text = f"b's rotary base is {b.base:.6g}, a's {a.base:.6g}"
            factor = ntk_factor(a.base, b.base, a.width)
            if factor is not None:
                text += f": times {factor:g}^(d/(d-2)), as in NTK for a factor of {factor:g}"
            yield "rotary base", text
        return
    if a.speeds is None or b.speeds is None or a.layout != b.layout:
        return
    one, other = (a, b) if float(a.speeds[-1]) >= float(b.speeds[-1]) else (b, a)
    found = frequencies_between(one, other)
    if found is not None and found.kind != "other" and not isclose(found.factor, 1, rel_tol=1e-3):
        side, rest = ("b", "a") if other is b else ("a", "b")
        text = f"{side} divides the rotary frequencies of {rest} {found}"
        yield f"rotary frequencies ({found.kind})", text


def _rotated_whole(case: Case, name: str) -> Iterator[Hypothesis]:
    """Suppose that one side rotates all features together, before they are split into heads."""
    n_head, side = case.n_head, case.wrong
    if not n_head or n_head == 1 or not _changes_merged(case.state(side), name, n_head):
        return

    before, after = (case.whole(each) for each in (case.unrotated(side, name), case.of(side)))
    rotation = rotation_between(before, after)
    if rotation is not None and not rotation.is_near(1.0):
        text = (
            f"{side} rotates all {before.shape[-1]} features together, before it splits them into heads;"
            f" {case.right} rotates each head"
        )
        yield Hypothesis("rotary before the split", text, rotation.apply(before), after)


def _changes_merged(state: RoleTensors, name: str, n_head: int) -> bool:
    """Check whether the first tensor that changes Q, K or V has the features of all heads in one axis.

    Pairs of features may have axes of their own there.
    """
    first = state.first_change(name)
    if first is None:
        return False
    sizes = [2] * first.is_complex() + list(reversed(first.shape))  # complex numbers are pairs
    widths = list(accumulate(sizes, mul))
    d_head = state.role(name).tensor.shape[-1]
    return n_head * d_head in widths and d_head not in widths
