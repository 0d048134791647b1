"""Other rotary positions: their pairs, base, offset and place; and a missing norm of queries or keys.

Source: Su et al. 2021, "RoFormer: Enhanced Transformer with Rotary Position Embedding", section 3.2.2.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from math import log, pi

import torch

from attnscope.comparison.causes.case import Case, Hypothesis

LAYOUTS = {"half-split": "pairs feature m with m + d/2", "interleaved": "pairs feature 2m with 2m + 1"}
CLOSE = 1e-8
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
        """Return whether another rotation is the same."""
        is_alike = self.width == other.width and self.is_near(other.turns, other.noise)
        return is_alike and (self.layout == other.layout or self.is_near(1.0))

    def is_near(self, turns: torch.Tensor | float, noise: float = 0.0) -> bool:
        """Return whether all turns are some others, up to the precision of both."""
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
        if not size or not bool(((ratio - turns).abs() <= CLOSE * size).all()):
            continue
        turns = turns / size
        off = float((turns.abs() - 1).abs().max())
        if off <= TABLE:
            angles = (
                2.0**-23 * turns.shape[0] if off > CLOSE else 0.0
            )  # of positions times inexact numbers
            noise = CLOSE + 4 * off + angles
            return Rotation(layout, width, turns, size, noise, *_base_and_offset(turns, noise))
    return None


def _width(before: torch.Tensor, after: torch.Tensor) -> int:
    """Return how many features change, an even number; all if all stay."""
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


def rotary(case: Case) -> Iterator[Hypothesis]:
    """Suppose that the two rotate their features by other angles, or in other pairs."""
    name = case.role[0]
    if not case.has_unrotated(name):
        return
    in_a = rotation_between(case.unrotated_a(name), case.of_a())
    in_b = rotation_between(case.unrotated_b(name), case.of_b())
    both = torch.cat([case.of_a(), case.of_b()])
    if in_a is None and in_b is not None:
        yield from _rotated_whole(case, "a", name)
    elif in_b is None and in_a is not None:
        yield from _rotated_whole(case, "b", name)
    if in_a is None or in_b is None:
        return
    if in_a.turns_like(in_b):
        yield from _rounded_tables(case, name, in_a, in_b)
        return
    predicted = torch.cat([in_a.apply(case.unrotated_a(name)), in_b.apply(case.unrotated_b(name))])
    corrected = in_a.apply(case.unrotated_b(name))
    yield Hypothesis(*_difference(name, in_a, in_b), predicted, both, corrected)


def _difference(name: str, a: Rotation, b: Rotation) -> tuple[str, str]:
    """Return the name of the mistake, and a sentence."""
    for one, other, words in ((b, "b", "a rotates it"), (a, "a", "b rotates it")):
        if one.is_near(1.0):
            kind = "rotary positions missing" if other == "b" else "rotary positions added"
            return kind, f"{other} does not rotate {name} by its positions, and {words}"
    found = list(_parts(name, a, b)) or [("rotary angles", f"b rotates {name} by other angles than a")]
    return " + ".join(kind for kind, _ in found), "; ".join(text for _, text in found)


def _rounded_tables(case: Case, name: str, a: Rotation, b: Rotation) -> Iterator[Hypothesis]:
    """Suppose that the two rotate by the same angles, one side with less exact cosines."""
    one, coarse, fine = ("a", a, b) if a.noise > b.noise else ("b", b, a)
    off = float((coarse.turns - fine.turns).abs().max())
    text = f"{one} rotates {name} by the same angles with less exact cosines, which are off by {off:.1e}"
    predicted = b.apply(case.unrotated_a(name))
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
    """Return whether the bases of two rotations differ by more than their precision explains."""
    if a.base is None or b.base is None:
        return False
    n_pair = a.turns.shape[1]
    speed = max(a.base, b.base) ** (-1 / n_pair)  # the base follows from that of the second pair
    return abs(log(a.base / b.base)) > 1e-3 + n_pair * (a.noise + b.noise) / speed


def _rotated_whole(case: Case, side: str, name: str) -> Iterator[Hypothesis]:
    """Suppose that one side rotates all features together, before they are split into heads."""
    n_head = case.n_head
    if not n_head:
        return
    of, unrotated = (case.of_b, case.unrotated_b) if side == "b" else (case.of_a, case.unrotated_a)

    def whole(tensor: torch.Tensor) -> torch.Tensor:
        return tensor.unflatten(0, (-1, n_head)).transpose(1, 2).flatten(2)

    before, after = whole(unrotated(name)), whole(of())
    rotation = rotation_between(before, after)
    if rotation is not None:
        other = "a" if side == "b" else "b"
        text = (
            f"{side} rotates all {before.shape[-1]} features together, before it splits them into heads;"
            f" {other} rotates each head"
        )
        yield Hypothesis("rotary before the split", text, rotation.apply(before), after)


def norm_missing(case: Case) -> Iterator[Hypothesis]:
    """Suppose that only one side normalises queries or keys, before their rotation."""
    name = case.role[0]
    if not case.has_unrotated(name):
        return
    for one, other, state in (("a", "b", case.a), ("b", "a", case.b)):
        of_one, of_other = (case.of_a, case.of_b) if one == "a" else (case.of_b, case.of_a)
        first, second = case.unrotated_a(name), case.unrotated_b(name)
        before, before_other = (first, second) if one == "a" else (second, first)
        rotation = rotation_between(before_other, of_other())
        if rotation is None:
            continue
        found = [
            (kind, each) for each in state.stages(name) if (kind := _norm(before, each)) is not None
        ]
        if found:
            kind, stage = found[-1]  # with its weight
            text = f"{one} normalises {name} ({kind}), and {other} does not"
            words = "norm missing" if one == "a" else "norm added"
            yield Hypothesis(words, text, rotation.apply(stage.double()), of_one())


def _norm(before: torch.Tensor, after: torch.Tensor) -> str | None:
    """Return the name of the norm that turns one tensor into another, up to a weight; or None."""
    before, after = before.double(), after.double()
    centred = before - before.mean(-1, keepdim=True)
    for name, tensor in (("RMSNorm", before), ("LayerNorm", centred)):
        scaled = tensor / tensor.pow(2).mean(-1, keepdim=True).sqrt()
        weight = (after * scaled).mean((0, 1)) / (scaled * scaled).mean((0, 1))
        if float((after - scaled * weight).abs().max()) <= 1e-3 * float(after.abs().max()):
            return name
    return None
