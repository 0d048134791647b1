"""The anatomy of an attention: which tensors of a call are Q, K, V, scores, attention and output.

All are arranged alike: `lead n_Q d`, where `lead` counts heads of sequences.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

import torch

from attnscope.observe.operators.chain import LAYOUT, site_of_scale, way_between
from attnscope.observe.operators.follow import followed
from attnscope.observe.operators.tape import Tape, TorchCall, Value


@dataclass
class Role:
    """A tensor of an attention, and its values in the common arrangement."""

    name: str  #: its role, such as `scores`
    value: Value
    tensor: torch.Tensor  #: its values: `lead n_Q n_K`, `lead n d`, or `tokens features`
    axes: tuple[str, ...]  #: the names of these axes
    #: where each of these values is in the tensor on the tape, as a flat index; None if it was computed
    #: from others, as inside a fused kernel
    elements: torch.Tensor | None = None
    site: Value | None = None  #: the tensor whose expression says best what it is; None: `value`
    #: the number by which the code multiplies Q or K before their product, or divides scores after their
    #: mask. These values are without it: it belongs to the scale of the scores.
    factor: float = 1.0

    @classmethod
    def arranged(cls, name: str, value: Value, elements: torch.Tensor, axes: tuple[str, ...]) -> Role:
        """Return a tensor of a tape whose elements are arranged by their flat index."""
        return cls(name, value, value.tensor.reshape(-1)[elements], axes, elements)

    def without(self, factor: float) -> None:
        """Set the factor, and leave it out of the values."""
        self.factor = factor
        self.tensor = self.of(self.value.tensor)

    def of(self, tensor: torch.Tensor) -> torch.Tensor:
        """Return the values of a tensor like `value` in the common arrangement."""
        if self.elements is None:
            raise KeyError(self.name)
        arranged = tensor.reshape(-1)[self.elements]
        return arranged if self.factor == 1.0 else arranged / self.factor

    def replaced(self, values: torch.Tensor, current: torch.Tensor | None = None) -> torch.Tensor:
        """Return the tensor on the tape, with other values.

        Args:
            values: in the common arrangement.
            current: what the tensor holds beside them; None: what it held.
        """
        if self.elements is None:
            raise KeyError(self.name)
        current = self.value.tensor if current is None else current
        wider = torch.promote_types(current.dtype, values.dtype)
        result = current.to(wider, copy=True).reshape(-1)
        result[self.elements.reshape(-1)] = values.reshape(-1).to(wider) * self.factor
        return result.reshape(current.shape)


@dataclass
class Projection:
    """A linear map with weights, whose output becomes Q, K or V; or the map after attention."""

    call: TorchCall
    out: Value  #: its output, with the bias added
    weight: Value  #: the weight; bias: the bias, if any
    bias: Value | None
    features: torch.Tensor  #: which features of the output are used, in order
    #: whether all elements of Q, K or V come from it, and none from elsewhere, such as a cache
    is_all: bool = True

    @property
    def bias_name(self) -> str | None:
        """The name of the parameter that the bias is, or is part of."""
        whole = leaf(self.bias) if self.bias is not None else None
        return whole.weight if whole is not None else None


@dataclass
class Anatomy:
    """The tensors of an attention by role, as far as they were found."""

    tape: Tape
    #: the tensor that the code returns; of several, the one that `ranked_outputs` chooses
    output: Value
    roles: dict[str, Role] = field(default_factory=dict)
    #: the linear maps before attention, by `Q`, `K`, `V`; and after it, `O`
    projections: dict[str, Projection] = field(default_factory=dict)
    #: for Q, K and V as they enter the products, `lead n d`, the elements that they come from: of the
    #: projection's output, or of the input
    origins: dict[str, torch.Tensor] = field(default_factory=dict)
    #: where Q, K or V come from several outputs of linear maps, these, each with the elements of it, -1
    #: for those of another
    parts: dict[str, list[tuple[Value, torch.Tensor]]] = field(default_factory=dict)
    raw: Value | None = None  #: the product Q·Kᵀ; None for a fused kernel
    fused: TorchCall | None = None  #: the call of a fused kernel
    #: the names of the axes of arguments, as far as the user gave them
    input_axes: Mapping[str, tuple[str | int, ...] | None] = field(default_factory=dict)

    @property
    def form(self) -> str:
        """What kind of attention it is, by the tensors that it has."""
        if "state" in self.roles:
            return "a linear attention"
        return "one over an edge list" if "messages" in self.roles else "an attention with scores"

    @property
    def end(self) -> str:
        """The role of the tensor that is returned, whatever its layout; `output` if it has none."""
        for role in ("x", "x_merged"):
            if role in self.roles:
                start = self.roles[role].value
                places = followed(self.tape, start)
                if self.output in places:
                    way = way_between(start, self.output, places)
                    return role if all(map(_is_kept, way[1:])) else "output"
        return "output"

    @property
    def scaled(self) -> Value | None:
        """The last tensor that is multiplied by a number on the way to the scores; None if none is."""
        names = (("Q_split", "Q"), ("K_split", "K"))
        ways = [self.way(start, end) for start, end in names if start in self.roles]
        if self.raw is not None:
            last = self.roles.get("scores_masked") or self.roles["scores"]
            ways.append(self._way(self.raw, last.value))
        return site_of_scale(ways)

    def way(self, start: str, end: str) -> list[Value]:
        """Return the tensors from one role to another that hold its elements, in order."""
        return self._way(self.roles[start].value, self.roles[end].value)

    def _way(self, start: Value, end: Value) -> list[Value]:
        return way_between(start, end, followed(self.tape, start))

    def add(self, role: Role) -> None:
        """Add a tensor."""
        self.roles[role.name] = role


def _is_kept(value: Value) -> bool:
    """Check whether a tensor is another one in another layout, or one after dropout that is off."""
    if value.name in LAYOUT:
        return True
    if value.name != "dropout":
        return False
    after, before = (torch.nan_to_num(each) for each in (value.tensor, value.parents[0].tensor))
    return torch.equal(after, before)


WRITTEN = {"setitem", "copy", "alias", "scatter", "index_copy", "index_put", "masked_scatter"}
"""Functions after which a tensor, such as a cache that is a buffer, holds something else."""


class NoAttentionError(Exception):
    """The call computes no attention that can be recognised; the message says what is missing."""


def leaf(value: Value) -> Value | None:
    """Return the weight that a tensor is, or is a part or a view of; None if it is none."""
    while value.call is not None:
        if value.name not in LAYOUT or value.name in WRITTEN:
            return None
        value = value.parents[0]
    return value if value.is_weight else None
