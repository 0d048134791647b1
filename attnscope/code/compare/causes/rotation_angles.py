"""Rotations of pairs of features by angles that depend on the position, and what two of them differ by.

Sources: Su et al. 2021, "RoFormer: Enhanced Transformer with Rotary Position Embedding", section 3.2.2;
Peng et al. 2023, "YaRN: Efficient Context Window Extension of Large Language Models", sections 3.1 to
3.4, for frequencies that are divided by band, and for the magnitude; Grattafiori et al. 2024, "The
Llama 3 Herd of Models", for theirs.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from math import exp, isclose, log, pi

import torch

LAYOUTS = {"half-split": "pairs feature m with m + d/2", "interleaved": "pairs feature 2m with 2m + 1"}
SAME_ANGLES = 1e-8
"""The largest relative difference between two heads that are rotated by the same angles."""

TABLE = 1e-2
"""The largest error of a cosine from a table, which may have the precision of bfloat16."""


@dataclass(frozen=True)
class Rotation:
    """A rotation of pairs of features by angles that depend on the position."""

    layout: str
    #: The first feature that is rotated, and how many are; the others stay as they are.
    start: int
    width: int
    #: The factor of each pair as a complex number: `n n_pair`. Its absolute value is 1 up to the
    #: precision of the code's cosines.
    turns: torch.Tensor
    #: A number by which these features are multiplied, too, as by YaRN's magnitude.
    size: float
    #: How far turns may be off because of that precision.
    noise: float
    #: The angles are (n + offset) · base^(-m/n_pair); None if they are others.
    base: float | None
    offset: float | None
    #: How far each pair is turned from one position to the next; None if that changes.
    speeds: torch.Tensor | None = None

    @property
    def features(self) -> tuple[int, int]:
        """The first feature that is rotated, and the one after the last."""
        return self.start, self.start + self.width

    def turns_like(self, other: Rotation) -> bool:
        """Check whether another rotation is the same as this one."""
        is_alike = self.features == other.features and self.is_near(other.turns, other.noise)
        is_alike = is_alike and isclose(self.size, other.size, rel_tol=self.noise + other.noise)
        return is_alike and (self.layout == other.layout or self.is_near(1.0))

    def is_near(self, turns: torch.Tensor | float, noise: float = 0.0) -> bool:
        """Check whether all turns equal some others, up to the precision of both."""
        return bool(((self.turns - turns).abs() <= self.noise + noise).all())

    def apply(self, tensor: torch.Tensor) -> torch.Tensor:
        """Rotate `lead n d`."""
        first, end = self.features
        before, rotated, after = tensor.double().tensor_split([first, end], -1)
        pairs = _pairs(rotated, self.layout) * self.turns
        parts = (pairs.real, pairs.imag)
        is_halves = self.layout == "half-split"
        rotated = torch.cat(parts, -1) if is_halves else torch.stack(parts, -1).flatten(-2)
        return torch.cat([before, rotated * self.size, after], -1)


def _pairs(tensor: torch.Tensor, layout: str) -> torch.Tensor:
    """Return pairs of features as complex numbers: `lead n n_pair`."""
    if layout == "half-split":
        first, second = tensor.chunk(2, -1)
    else:
        first, second = tensor[..., ::2], tensor[..., 1::2]
    return torch.complex(first.double(), second.double())


def paired_otherwise(tensor: torch.Tensor) -> Iterator[tuple[torch.Tensor, str, str]]:
    """Yield a tensor with its features in the order of the other layout, which is named, and its own."""
    halves, beside = "as two halves", "side by side"
    yield torch.cat([tensor[..., ::2], tensor[..., 1::2]], -1), halves, beside
    yield torch.stack(tensor.chunk(2, -1), -1).flatten(-2), beside, halves


def rotation_between(before: torch.Tensor, after: torch.Tensor) -> Rotation | None:
    """Return the rotation that turns one tensor into another; None if there is none.

    Both are `lead n d`.
    """
    if before.shape != after.shape:
        return None
    start, width = _rotated_features(before, after)
    if start + width > before.shape[-1]:
        return None
    first, second = (each[..., start : start + width] for each in (before, after))
    for layout in LAYOUTS:
        ratio = _pairs(second, layout) / _pairs(first, layout)
        turns = ratio.mean(0)
        size = float(turns.abs().mean())
        if not size or not bool(((ratio - turns).abs() <= SAME_ANGLES * size).all()):
            continue
        turns = turns / size
        off = float((turns.abs() - 1).abs().max())
        if off <= TABLE:
            angles = (
                2.0**-23 * turns.shape[0] if off > SAME_ANGLES else 0.0
            )  # of positions times inexact numbers
            noise = SAME_ANGLES + 4 * off + angles
            return Rotation(layout, start, width, turns, size, noise, *_angles(turns, noise))
    return None


def _rotated_features(before: torch.Tensor, after: torch.Tensor) -> tuple[int, int]:
    """Find the first feature that a rotation covers, and how many; all of them if none changes.

    The first pair begins with an even feature.
    """
    changed = (before.double() != after.double()).flatten(0, 1).any(0).nonzero()
    if not changed.numel():
        return 0, before.shape[-1] // 2 * 2
    start, last = int(changed.min()) // 2 * 2, int(changed.max()) + 1
    return start, (last - start + 1) // 2 * 2


def _angles(turns: torch.Tensor, noise: float) -> tuple[float | None, float | None, torch.Tensor | None]:
    """Return the base and the offset of the usual angles, and the speeds; None for what is not so."""
    close = max(1e-6, noise)
    n, n_pair = turns.shape
    steps = (turns[1:] / turns[:-1]).angle()
    if n < 2 or float((steps - steps[:1]).abs().max()) > close:
        return None, None, None
    speeds, mean = steps[0].abs(), steps.mean(0).abs()
    if abs(float(speeds[0]) - 1) > close:
        return None, None, mean
    base = 1.0 if n_pair == 1 else float(speeds[1]) ** -float(n_pair)
    expected = base ** (-torch.arange(n_pair, dtype=torch.float64) / n_pair)
    if float((speeds - expected).abs().max()) > close:
        return None, None, mean
    slowest = int(speeds.argmin())
    offset = float(turns[0, slowest].angle() / steps[0, slowest])
    rounded = round(offset)
    wrapped = (turns[0].angle() - rounded * steps[0] + pi) % (2 * pi) - pi
    return base, float(rounded) if float(wrapped.abs().max()) < close else None, mean


@dataclass(frozen=True)
class Frequencies:
    """How the frequencies of a rotation come from those of another one."""

    #: `linear`, `NTK`, `YaRN`, `llama3`; `by band` if it is one of the last two; or `other`.
    kind: str
    #: The number by which the lowest frequency is divided.
    factor: float
    #: The pairs whose frequencies stay, and are divided by the whole factor.
    kept: int = 0
    divided: int = 0
    #: How many pairs there are.
    n_pair: int = 0

    def __str__(self) -> str:
        """Say what is done with the frequencies."""
        if self.kind == "linear":
            return f"by {self.factor:.6g}, all alike (linear)"
        if self.kind == "other":
            return "each by a number of its own"
        middle = self.n_pair - self.kept - self.divided
        words = "as in YaRN or llama3" if self.kind == "by band" else f"as in {self.kind}"
        between = f", by less in the {middle} between" if middle else ""
        return (
            f"by {self.factor:.6g} in the {self.divided} lowest of {self.n_pair} pairs, and not in the"
            f" {self.kept} highest{between} ({words})"
        )


def frequencies_between(one: Rotation, other: Rotation) -> Frequencies | None:
    """Find how the second's lower frequencies come from the first's; None if these are not known.

    The lowest pair counts as divided by the whole factor.
    """
    if one.speeds is None or other.speeds is None or one.speeds.shape != other.speeds.shape:
        return None
    ratio = other.speeds / one.speeds
    near = 1e-3 + 4 * (one.noise + other.noise) / one.speeds
    least = float(ratio[-1])
    n_pair = ratio.numel()
    if bool(((ratio - least).abs() <= near).all()):
        return Frequencies("linear", 1 / least)
    share = (ratio - least) / (1 - least)  # of what stays: 1 in high frequencies, 0 in low ones
    near = near / abs(1 - least)
    kept, divided = (share - 1).abs() <= near, share.abs() <= near
    n_kept, n_divided = int(kept.sum()), int(divided.sum())
    is_band = bool(kept[:n_kept].all()) and bool(divided[n_pair - n_divided :].all())
    if not n_kept or not is_band or bool((share.diff() > near[1:]).any()):
        return Frequencies("other", 1 / least)
    ramps = {"YaRN": torch.arange(n_pair, dtype=torch.float64), "llama3": one.speeds}
    kinds = [
        kind
        for kind, ramp in ramps.items()
        if _is_ramp(share, ramp, slice(n_kept, n_pair - n_divided), near)
    ]
    return Frequencies(kinds[0] if len(kinds) == 1 else "by band", 1 / least, n_kept, n_divided, n_pair)


def _is_ramp(share: torch.Tensor, ramp: torch.Tensor, between: slice, near: torch.Tensor) -> bool:
    """Check whether a share grows evenly with something, between where it is 0 and where it is 1."""
    x, y = ramp[between], share[between]
    if x.numel() < 2:
        return True
    slope = float((y[-1] - y[0]) / (x[-1] - x[0]))
    fitted = (y[0] + slope * (ramp - x[0])).clamp(0, 1)
    return bool(((fitted - share).abs() <= 4 * near).all())


def ntk_factor(base: float, other: float, width: int) -> float | None:
    """Return s if one base is another one times s^(d/(d−2)), for a usual s; None if not.

    Source: bloc97 2023, "NTK-Aware Scaled RoPE", as in Peng et al. 2023, section 3.2.
    """
    if width <= 2:
        return None
    factor = exp(log(max(base, other) / min(base, other)) * (width - 2) / width)
    rounded = round(2 * factor) / 2
    return rounded if rounded > 1 and isclose(factor, rounded, rel_tol=1e-4) else None
