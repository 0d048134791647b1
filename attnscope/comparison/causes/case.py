"""A divergence to explain, and a hypothesis about its cause."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property

import torch

from attnscope.comparison.divergence.first_difference import (
    TensorDifference,
    difference,
    numbers,
    require_tensor,
    tensor_of,
)
from attnscope.comparison.divergence.state import RoleTensors, n_head_of

EACH_WAY = (("a", "b"), ("b", "a"))
"""Each side with the other one, for causes that either side may have."""

NEGLIGIBLE = 1e-2
"""The part of a difference that an explanation may leave."""


@dataclass(frozen=True)
class Hypothesis:
    """A possible cause, and what it predicts.

    Attributes:
        name: the mistake in a few words, such as `another scale`.
        text: a sentence about a and b, if it holds.
        predicted: what a tensor would be if the cause accounted for the difference.
        observed: what it is.
        corrected: b's tensor without this mistake; None: a's tensor.
    """

    name: str
    text: str
    predicted: torch.Tensor
    observed: torch.Tensor
    corrected: torch.Tensor | None = None

    @cached_property
    def rest(self) -> TensorDifference:
        """The difference that the hypothesis leaves."""
        return difference("", self.predicted, self.observed)


@dataclass(frozen=True)
class Case:
    """A tensor that differs although all that it comes from is equal.

    Attributes:
        role: the tensor's role.
        a, b: the two sides.
        found: its difference.
        tolerance: the difference that rounding in the run's dtype may cause.
    """

    role: str
    a: RoleTensors
    b: RoleTensors
    found: TensorDifference
    tolerance: float = 0.0

    def is_explained_by(self, hypothesis: Hypothesis) -> bool:
        """Check whether a hypothesis accounts for the difference, up to rounding.

        What earlier tensors differ by, such as rotary angles from a table in float32, may remain; but
        nothing near the difference itself.
        """
        rest = hypothesis.rest.largest
        is_small = rest <= self.tolerance and rest <= NEGLIGIBLE * self.found.largest
        return hypothesis.rest.is_equal or is_small

    def state(self, side: str) -> RoleTensors:
        """Return the tensors of a side, `a` or `b`."""
        return self.a if side == "a" else self.b

    def of(self, side: str, role: str | None = None) -> torch.Tensor:
        """Return a tensor of a side in float64, arranged like a's; by default the one that differs."""
        return numbers(require_tensor(self.state(side), role or self.role))

    def of_a(self, role: str | None = None) -> torch.Tensor:
        """Return a tensor of a, as `of` does."""
        return self.of("a", role)

    def of_b(self, role: str | None = None) -> torch.Tensor:
        """Return a tensor of b, as `of` does."""
        return self.of("b", role)

    def is_same(self, one: torch.Tensor, other: torch.Tensor) -> bool:
        """Check whether two tensors on the way to this one are equal, up to rounding."""
        return difference("", one, other, self.tolerance).is_equal

    def has_unrotated(self, name: str) -> bool:
        """Check whether Q, K or V is known on both sides as it was before any rotation."""
        first, second = self.a.unrotated(name), self.b.unrotated(name)
        return first is not None and second is not None and first.shape == second.shape

    def unrotated(self, side: str, name: str) -> torch.Tensor:
        """Return a side's Q, K or V before any rotation, arranged like Q, K or V."""
        tensor = self.state(side).unrotated(name)
        if tensor is None:
            raise KeyError(name)
        return tensor.double()

    @cached_property
    def widths(self) -> dict[str, int]:
        """The sizes that people divide scores by, by name."""
        d_head = self.of_a("Q").shape[-1]
        widths = {"d_head": d_head}
        feat = tensor_of(self.a, "Q_feat")
        if feat is None:
            feat = tensor_of(self.a, "output")
        if feat is not None and feat.shape[-1] != d_head:
            widths["d_feat"] = feat.shape[-1]
        heads = self.n_head
        if heads is not None:
            widths |= {"d_feat": heads * d_head, "n_head": heads} if heads > 1 else {}
        scores = self.of_a("scores")
        return widths | {
            "n_Q": scores.shape[-2],
            "n_K": scores.shape[-1],
            "d_V": self.of_a("V").shape[-1],
        }

    @cached_property
    def n_head(self) -> int | None:
        """The number of heads, if it is known."""
        return n_head_of(self.a, self.b)

    @property
    def n_batch(self) -> int:
        """The number of sequences; 1 if it is unknown."""
        return self.of_a("Q").shape[0] // self.n_head if self.n_head else 1
