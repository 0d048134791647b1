"""A divergence to explain, and a hypothesis about its cause."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import cached_property

import torch

from attnscope.code.compare.divergence.first_difference import (
    TensorDifference,
    compared_pair,
    difference,
    numbers,
)
from attnscope.code.compare.divergence.first_operation import Operations, first_operations
from attnscope.code.compare.divergence.state import RoleTensors, n_head_of
from attnscope.observe.operators.anatomy import Projection
from attnscope.observe.operators.projections import tied_axis
from attnscope.observe.operators.tape import Value

NEGLIGIBLE = 1e-2
"""The part of a difference that an explanation may leave."""


@dataclass(frozen=True)
class Hypothesis:
    """A possible cause, and what it predicts."""

    #: The mistake in a few words, such as `another scale`.
    name: str
    #: A sentence about a and b, if it holds.
    text: str
    #: What a tensor would be if the cause accounted for the difference.
    predicted: torch.Tensor
    observed: torch.Tensor
    #: The tensor without this mistake, of the side that has it; None: the other side's.
    corrected: torch.Tensor | None = None
    #: The side that has the mistake, `a` or `b`.
    wrong: str = "b"
    #: By side, the tensor whose line shows it; the others are shown as usual.
    where: Mapping[str, Value] = field(default_factory=dict)

    @cached_property
    def rest(self) -> TensorDifference:
        """The difference that the hypothesis leaves."""
        return difference(self.predicted, self.observed)


@dataclass(frozen=True)
class Case:
    """A tensor that differs although all that it comes from is equal."""

    role: str
    a: RoleTensors
    b: RoleTensors
    found: TensorDifference
    #: The difference that rounding in the run's dtype may cause.
    tolerance: float = 0.0
    #: The side that is supposed to have the mistake, `a` or `b`.
    wrong: str = "b"

    @property
    def right(self) -> str:
        """The side that is supposed to have no mistake."""
        return "a" if self.wrong == "b" else "b"

    def of_wrong(self, role: str | None = None) -> torch.Tensor:
        """Return a tensor of the side that is supposed to have the mistake, as `of` does."""
        return self.of(self.wrong, role)

    def of_right(self, role: str | None = None) -> torch.Tensor:
        """Return a tensor of the other side, as `of` does."""
        return self.of(self.right, role)

    def projections(self, name: str) -> tuple[Projection | None, Projection | None]:
        """Return a projection of the side that is supposed to have no mistake, and of the other."""
        of_right, of_wrong = (self.state(side).anatomy.projections for side in (self.right, self.wrong))
        return of_right.get(name), of_wrong.get(name)

    def named(self, of_b: str, of_a: str) -> str:
        """Return the name of a mistake: that of b beside a, or that of a beside b."""
        return of_b if self.wrong == "b" else of_a

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
        role = role or self.role
        if role == "scores":  # what both masks hide does not count
            return numbers(compared_pair(self.a, self.b, role)["ab".index(side)])
        return numbers(self.state(side)[role])

    @cached_property
    def operations(self) -> Operations | None:
        """The first operations whose operands are equal and whose results are not; None if unknown."""
        return first_operations(self.a, self.b, self.role, self.tolerance)

    def is_same(self, one: torch.Tensor, other: torch.Tensor) -> bool:
        """Check whether two tensors on the way to this one are equal, up to rounding."""
        return difference(one, other, self.tolerance).is_equal

    def has_unrotated(self, name: str) -> bool:
        """Check whether Q, K or V is known on both sides as it was before any rotation."""
        first, second = self.a.unrotated(name), self.b.unrotated(name)
        return first is not None and second is not None and first.shape == second.shape

    def unrotated(self, side: str, name: str) -> torch.Tensor:
        """Return a side's Q, K or V before any rotation, arranged like Q, K or V."""
        tensor = self.state(side).unrotated(name)
        assert tensor is not None, "see has_unrotated"
        return tensor.double()

    def whole(self, tensor: torch.Tensor) -> torch.Tensor:
        """Return `lead n d` with the features of all heads together: `n_batch n (n_head d)`."""
        return tensor.unflatten(0, (-1, self.n_head or 1)).transpose(1, 2).flatten(2)

    @cached_property
    def widths(self) -> dict[str, int]:
        """The sizes that people divide scores by, by name."""
        width = d_head = self.of("a", "Q").shape[-1]
        tied = tied_axis(self.a.anatomy) or tied_axis(self.b.anatomy)
        if tied is not None:
            d_head = width // tied[1]
        widths = {"d_head": d_head, **({} if tied is None else {f"(d_head·{tied[0]})": width})}
        feat = self.a.tensor("Q_feat")
        if feat is None:
            feat = self.a.tensor("output")
        if feat is not None and feat.shape[-1] != d_head:
            widths["d_feat"] = feat.shape[-1]
        if self.n_head is not None and self.n_head > 1:
            widths |= {"d_feat": self.n_head * d_head, "n_head": self.n_head}
        scores = self.of("a", "scores")
        return widths | {
            "n_Q": scores.shape[-2],
            "n_K": scores.shape[-1],
            "d_V": self.of("a", "V").shape[-1],
        }

    @cached_property
    def n_head(self) -> int | None:
        """The number of heads, if it is known."""
        return n_head_of(self.a, self.b)

    @property
    def n_batch(self) -> int:
        """The number of sequences; 1 if it is unknown."""
        return self.of("a", "Q").shape[0] // self.n_head if self.n_head else 1
