"""Which weight of one side is which of the other."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any


@dataclass(frozen=True)
class WeightCopy:
    """Weights that both sides have: one side's were copied to the other.

    Attributes:
        role: `W_Q`, `b_Q` and so on; None if they were copied by name or shape.
        a, a_part: the parameter of a, and which part of it.
        b, b_part: the parameter of b, and which part of it.
        shape: the shape of the part.
        a_elements, b_elements: the flat index of its elements in both; None: all.
    """

    role: str | None
    a: str
    a_part: str
    b: str
    b_part: str
    shape: tuple[int, ...]
    a_elements: Any = field(default=None, repr=False, compare=False)
    b_elements: Any = field(default=None, repr=False, compare=False)

    def reversed(self) -> WeightCopy:
        """Return the same weights with a and b exchanged."""
        a, b = (self.a, self.a_part), (self.b, self.b_part)
        return WeightCopy(self.role, *b, *a, self.shape, self.b_elements, self.a_elements)
