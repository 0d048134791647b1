"""Other rotary positions: their pairs, base, offset and place; and a missing norm of queries or keys.

Source: Su et al. 2021, "RoFormer: Enhanced Transformer with Rotary Position Embedding", section 3.2.2.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from itertools import accumulate
from math import log, pi
from operator import mul

import torch

from attnscope.comparison.causes.case import EACH_WAY, Case, Hypothesis
from attnscope.comparison.divergence.state import RoleTensors

LAYOUTS = {"half-split": "pairs feature m with m + d/2", "interleaved": "pairs feature 2m with 2m + 1"}
SAME_ANGLES = 1e-8
"""The largest relative difference between two heads that are rotated by the same angles."""

TABLE = 1e-2
"""The largest error of a cosine from a table, which may have the precision of bfloat16."""


@dataclass(frozen=True)
class Rotation:
    """A rotation of pairs of features by angles that depend on the position.

    Attributes:
        layout: which features form a pair.
        width: the number of features that are rotated; the others follow, and stay as they are.
        turns: the factor of each pair as a complex number: `n n_pair`. Its absolute value is 1 up to
            the precision of the code's cosines.
        size: a number by which everything is multiplied, too.
        noise: how far turns may be off because of that precision.
        base, offset: the angles are (n + offset) · base^(-m/n_pair); None if they are others.
    """

    layout: str
    width: int
    turns: torch.Tensor
    size: float
    noise: float
    base: float | None
    offset: float | None

    def turns_like(self, other: Rotation) -> bool:
        """Check whether another rotation is the same as this one."""
        is_alike = self.width == other.width and self.is_near(other.turns, other.noise)
        return is_alike and (self.layout == other.layout or self.is_near(1.0))

    def is_near(self, turns: torch.Tensor | float, noise: float = 0.0) -> bool:
        """Check whether all turns equal some others, up to the precision of both."""
        return bool(((self.turns - turns).abs() <= self.noise + noise).all())

    def apply(self, tensor: torch.Tensor) -> torch.Tensor:
        """Rotate `lead n d`."""
        rotated, rest = tensor.double().split([self.width, tensor.shape[-1] - self.width], -1)
        rotated = _features(_pairs(rotated, self.layout) * self.turns, self.layout)
        return torch.cat([rotated, rest], -1) * self.size


def _pairs(tensor: torch.Tensor, layout: str) -> torch.Tensor:
    """Return pairs of features as complex numbers: `lead n n_pair`."""
    if layout == "half-split":
        first, second = tensor.chunk(2, -1)
    else:
        first, second = tensor[..., ::2], tensor[..., 1::2]
    return torch.complex(first.double(), second.double())


def _features(pairs: torch.Tensor, layout: str) -> torch.Tensor:
    parts = (pairs.real, pairs.imag)
    return torch.cat(parts, -1) if layout == "half-split" else torch.stack(parts, -1).flatten(-2)


def rotation_between(before: torch.Tensor, after: torch.Tensor) -> Rotation | None:
    """Return the rotation that turns one tensor into another; None if there is none.

    Args:
        before, after: `lead n d`.
    """
    if before.shape != after.shape or before.shape[-1] % 2:
        return None
    width = _width(before, after)
    for layout in LAYOUTS:
        ratio = _pairs(after[..., :width], layout) / _pairs(before[..., :width], layout)
        turns = ratio.mean(0)
        size = float(turns.abs().mean()) if width == before.shape[-1] else 1.0
        if not size or not bool(((ratio - turns).abs() <= SAME_ANGLES * size).all()):
            continue
        turns = turns / size
        off = float((turns.abs() - 1).abs().max())
        if off <= TABLE:
            angles = (
                2.0**-23 * turns.shape[0] if off > SAME_ANGLES else 0.0
            )  # of positions times inexact numbers
            noise = SAME_ANGLES + 4 * off + angles
            return Rotation(layout, width, turns, size, noise, *_base_and_offset(turns, noise))
    return None


def _width(before: torch.Tensor, after: torch.Tensor) -> int:
    """Find how many leading features a rotation covers, an even number; all of them if none changes."""
    changed = (before.double() != after.double()).flatten(0, 1).any(0).nonzero()
    if not changed.numel():
        return before.shape[-1]
    last = int(changed.max()) + 1
    return last + last % 2


def _base_and_offset(turns: torch.Tensor, noise: float) -> tuple[float | None, float | None]:
    """Return the base and the offset of the usual angles; None if the angles are others."""
    close = max(1e-6, noise)
    n, n_pair = turns.shape
    if n < 2:
        return None, None
    speed = (turns[1:] / turns[:-1]).angle()
    if float((speed - speed[:1]).abs().max()) > close:
        return None, None
    speeds = speed[0].abs()
    if abs(float(speeds[0]) - 1) > close:
        return None, None
    base = 1.0 if n_pair == 1 else float(speeds[1]) ** -float(n_pair)
    expected = base ** (-torch.arange(n_pair, dtype=torch.float64) / n_pair)
    if float((speeds - expected).abs().max()) > close:
        return None, None
    slowest = int(speeds.argmin())
    offset = float(turns[0, slowest].angle() / speed[0, slowest])
    rounded = round(offset)
    wrapped = (turns[0].angle() - rounded * speed[0] + pi) % (2 * pi) - pi
    return base, float(rounded) if float(wrapped.abs().max()) < close else None


@dataclass(frozen=True)
class RotatedTensor:
    """What one side rotates, and how.

    Attributes:
        before: Q, K or V before its rotation: as it is split, or after a norm.
        rotation: its rotation until the product.
    """

    before: torch.Tensor
    rotation: Rotation


def _rotated_tensors(case: Case, name: str, side: str) -> Iterator[RotatedTensor]:
    """Yield each stage from which on one side does nothing but rotate, the earliest first."""
    for before in (case.unrotated(side, name), *case.state(side).stages(name)):
        rotation = rotation_between(before.double(), case.of(side))
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
        for side in "ab":
            yield from _rotated_whole(case, side, name)
            yield from _along_another_axis(case, side, name)
        pair = _rotations_of_same_heads(case, name)
    if pair is None:
        return
    a, b = pair
    if a.rotation.turns_like(b.rotation):
        if case.is_same(a.before, b.before):
            yield from _rounded_tables(case, name, a, b)
        return
    predicted = torch.cat([a.rotation.apply(a.before), b.rotation.apply(b.before)])
    kind, text = _difference(name, a.rotation, b.rotation)
    both = torch.cat([case.of_a(), case.of_b()])
    yield Hypothesis(kind, text, predicted, both, a.rotation.apply(b.before))


def _along_another_axis(case: Case, side: str, name: str) -> Iterator[Hypothesis]:
    """Suppose that one side takes the axis of heads, or of sequences, for that of positions."""
    if not case.n_head:
        return
    other = "b" if side == "a" else "a"
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
            right = usual[0].apply(before)
            yield Hypothesis(
                f"rotary positions along the {words}",
                text,
                rotation.apply(moved(before)),
                after,
                right if side == "b" else None,
            )
            return


def pairs_joined_otherwise(case: Case) -> Iterator[Hypothesis]:
    """Suppose that one side joins the pairs that it rotated as halves, and the other side by side."""
    name = case.role[0]
    a, b = case.of_a(), case.of_b()
    if a.shape[-1] % 2 or name == "V":
        return
    halves, beside = "as two halves", "side by side"
    apart = torch.cat([a[..., ::2], a[..., 1::2]], -1)
    joined = torch.stack(a.chunk(2, -1), -1).flatten(-2)
    for predicted, in_b, in_a in ((apart, halves, beside), (joined, beside, halves)):
        text = f"b's {name} has the features of a's in another order: pairs {in_b}, in a {in_a}"
        yield Hypothesis("pairs joined otherwise", text, predicted, b)


def norm_order(case: Case) -> Iterator[Hypothesis]:
    """Suppose that one side normalises queries or keys after their rotation, and the other before."""
    name = case.role[0]
    if not case.has_unrotated(name):
        return
    before, after = case.unrotated("a", name), case.of_a()
    for stage, exchanged in case.a.exchanged(name):
        stage, exchanged = stage.double(), exchanged.double()
        if _norm(before, stage) and rotation_between(stage, after) is not None:
            place, words = "after", "before"
        elif rotation_between(before, stage) is not None and _norm(stage, after):
            place, words = "before", "after"
        else:
            continue
        if not case.is_same(stage, before) and not case.is_same(stage, after):
            text = f"b normalises {name} {place} its rotary positions, a {words} them"
            yield Hypothesis(f"norm {place} the rotary positions", text, exchanged, case.of_b())


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
    off = float((coarse.turns - fine.turns).abs().max())
    text = f"{one} rotates {name} by the same angles with less exact cosines, which are off by {off:.1e}"
    predicted = b.apply(in_a.before)
    yield Hypothesis("rotary angles rounded", text, predicted, case.of_b())


def _parts(name: str, a: Rotation, b: Rotation) -> Iterator[tuple[str, str]]:
    """Yield what differs between two rotations: the name of the mistake, and a sentence."""
    if a.width != b.width:
        text = f"b rotates {b.width} features of each head, a {a.width}"
        yield "rotary width", text
        return
    if a.layout != b.layout:
        yield (
            f"rotary {b.layout}",
            f"b's rotary positions are {b.layout}, a's {a.layout}: b {LAYOUTS[b.layout]},"
            f" a {LAYOUTS[a.layout]}",
        )
    if a.offset is not None and b.offset is not None and a.offset != b.offset:
        text = f"b's rotary positions of {name} begin with {b.offset:g}, a's with {a.offset:g}"
        yield "rotary offset", text
    if _differ(a, b):
        yield "rotary base", f"b's rotary base is {b.base:.6g}, a's {a.base:.6g}"
    if a.layout == b.layout and a.is_near(b.turns.conj(), b.noise):
        yield "rotary direction", f"b rotates {name} in the opposite direction"


def _differ(a: Rotation, b: Rotation) -> bool:
    """Check whether the bases of two rotations differ by more than their precision explains."""
    if a.base is None or b.base is None:
        return False
    n_pair = a.turns.shape[1]
    speed = max(a.base, b.base) ** (-1 / n_pair)  # the base follows from that of the second pair
    return abs(log(a.base / b.base)) > 1e-3 + n_pair * (a.noise + b.noise) / speed


def _rotated_whole(case: Case, side: str, name: str) -> Iterator[Hypothesis]:
    """Suppose that one side rotates all features together, before they are split into heads."""
    n_head = case.n_head
    if not n_head or n_head == 1 or not _changes_merged(case.state(side), name, n_head):
        return

    def whole(tensor: torch.Tensor) -> torch.Tensor:
        return tensor.unflatten(0, (-1, n_head)).transpose(1, 2).flatten(2)

    before, after = whole(case.unrotated(side, name)), whole(case.of(side))
    rotation = rotation_between(before, after)
    if rotation is not None and not rotation.is_near(1.0):
        other = "a" if side == "b" else "b"
        text = (
            f"{side} rotates all {before.shape[-1]} features together, before it splits them into heads;"
            f" {other} rotates each head"
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


def norm_missing(case: Case) -> Iterator[Hypothesis]:
    """Suppose that only one side normalises queries or keys, before their rotation."""
    name = case.role[0]
    if not case.has_unrotated(name):
        return
    for one, other in EACH_WAY:
        rotation = rotation_between(case.unrotated(other, name), case.of(other))
        if rotation is None:
            continue
        before, stages = case.unrotated(one, name), case.state(one).stages(name)
        found = [(kind, each) for each in stages if (kind := _norm(before, each)) is not None]
        if found:
            kind, stage = found[-1]  # with its weight
            text = f"{one} normalises {name} ({kind}), and {other} does not"
            words = "norm missing" if one == "a" else "norm added"
            yield Hypothesis(words, text, rotation.apply(stage.double()), case.of(one))


def _norm(before: torch.Tensor, after: torch.Tensor) -> str | None:
    """Find the norm that turns one tensor into another, up to its weight and bias; None if none does."""
    before, after = before.double(), after.double()
    centred = before - before.mean(-1, keepdim=True)
    for name, tensor in (("RMSNorm", before), ("LayerNorm", centred)):
        scaled = tensor / tensor.pow(2).mean(-1, keepdim=True).sqrt()
        mean, mean_after = scaled.mean((0, 1)), after.mean((0, 1))
        if name == "RMSNorm":  # has no bias
            mean, mean_after = torch.zeros_like(mean), torch.zeros_like(mean)
        weight = ((after - mean_after) * (scaled - mean)).mean((0, 1))
        weight = weight / (scaled - mean).square().mean((0, 1))
        rest = after - mean_after - (scaled - mean) * weight
        if float(rest.abs().max()) <= 1e-3 * float(after.abs().max()):
            return name
    return None
