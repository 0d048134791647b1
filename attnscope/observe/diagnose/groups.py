"""Softmaxes over groups, as over the edges of a graph that reach one node.

Where attention has a list of edges and no matrix, a softmax is three steps: exp of the scores, their sum
in each group, and the quotient (Veličković et al. 2018, "Graph Attention Networks", equation 3, over the
neighbours of a node). A group is all elements with the same index.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

import torch

from attnscope.observe.by_tensor import ByTensor
from attnscope.observe.operator_names import ATEN_SAME, ATEN_VIEWS
from attnscope.observe.torch_internals.dispatch import has_values, unseen

Line = tuple[str, int]
"""A file and a line number."""

KEEPS = (
    ATEN_SAME | ATEN_VIEWS | {"unsqueeze", "squeeze", "expand", "add", "clamp", "clamp_min", "maximum"}
)
"""Operators after which a tensor is still what it was: a small number keeps a sum from being zero."""

SUMS = {"index_add", "scatter_add", "scatter_reduce"}
"""Sums of groups, of an axis, an index and the elements."""


@dataclass(frozen=True, eq=False)
class Grouped:
    """What a tensor is in a softmax over groups."""

    role: str  #: `exp`, its `sum` in each group, the `total` of each element's group, or the `weights`
    index: torch.Tensor | None = None  #: the group of each element; None for `exp`
    line: Line = ("", 0)  #: the file and line of the quotient


class GroupedSoftmaxes:
    """Follows operators, and finds softmaxes over groups, and sums of their weights over others."""

    def __init__(self) -> None:
        self.notices: list[str] = []  #: a sentence about each tensor that is a softmax over groups
        #: where weights are summed over other groups than those in which they sum to one: the message
        #: and the file and line of the softmax
        self.mistakes: list[tuple[str, Line]] = []
        self._known = ByTensor[Grouped]()
        self._names: list[tuple[str, torch.Tensor]] = []  # of tensors that may be an index

    def operator(self, name: str, args: tuple, kwargs: dict, out: Any, line: Callable[[], Line]) -> None:
        """Receive an ATen operator that has run.

        Args:
            name: its name, without the underscore of an operator in place.
            line: returns the file and line that is running.
        """
        if name == "exp":
            self._set(out, Grouped("exp"))
        elif not self._known:
            return
        elif name in SUMS:
            _, axis, index, source = args[:4]
            self._summed(_along(axis, index), self._known.get(source), out, line)
        elif name == "segment_reduce":
            lengths = kwargs.get("lengths")
            if lengths is not None and lengths.dim() == 1:
                with unseen():
                    index = torch.arange(lengths.numel()).repeat_interleave(lengths.cpu())
                self._summed(index, self._known.get(args[0]), out, line)
        elif name in ("index_select", "gather", "index"):
            axis, index = (0, args[1][0]) if name == "index" else args[1:3]
            known = self._known.get(args[0])
            if known is not None and known.role == "sum" and _is_same(_along(axis, index), known.index):
                self._set(out, replace(known, role="total"))
        elif name == "div":
            above, below = map(self._known.get, args[:2])
            if above is not None and below is not None and (above.role, below.role) == ("exp", "total"):
                self._set(out, Grouped("weights", below.index, line()))
        elif name == "mul":
            for each in map(self._known.get, args[:2]):
                if each is not None and each.role == "weights":
                    self._set(out, each)
        elif name in KEEPS and (known := self._known.get(args[0])) is not None:
            self._set(out, known)

    def row(self, name: str, line: int | None, tensor: torch.Tensor) -> None:
        """Receive a tensor that was bound to a name."""
        known = self._known.get(tensor)
        if not tensor.is_floating_point() and tensor.dim() == 1:
            self._names.append((name, tensor.detach()))
        elif known is not None and known.role == "weights" and line == known.line[1]:
            self.notices.append(
                f"line {line}: {name} is a softmax over the groups of equal {self._name(known.index)}"
            )

    def _summed(
        self, index: torch.Tensor | None, known: Grouped | None, out: Any, line: Callable[[], Line]
    ) -> None:
        """Handle the sum of each group of elements."""
        if known is None or index is None:
            return
        if known.role == "exp":
            self._set(out, Grouped("sum", index))
        elif known.role == "weights" and not _is_same(index, known.index):
            message = (
                f"the softmax normalizes over the groups of equal {self._name(known.index)}, but line"
                f" {line()[1]} sums over those of equal {self._name(index)}: the weights of one sum do"
                " not sum to one. Is the index of the softmax right?"
            )
            self.mistakes.append((message, known.line))

    def _name(self, index: torch.Tensor | None) -> str:
        """Return the name that the code has for an index."""
        return next((name for name, each in self._names if _is_same(each, index)), "index")

    def _set(self, tensor: Any, grouped: Grouped) -> None:
        if isinstance(tensor, torch.Tensor):
            self._known[tensor] = grouped


def _along(axis: int, index: Any) -> torch.Tensor | None:
    """Return an index along one axis: it may be repeated along others; None for another."""
    if not isinstance(index, torch.Tensor) or index.is_floating_point() or not has_values(index):
        return None
    with unseen():
        columns = index.movedim(axis, 0).flatten(1) if index.dim() > 1 else index.reshape(-1, 1)
        first = columns[:, :1]
        return first[:, 0].detach() if bool((columns == first).all()) else None


def _is_same(one: torch.Tensor | None, other: torch.Tensor | None) -> bool:
    """Check whether two indices have the same values."""
    if one is None or other is None or one.shape != other.shape or not has_values(one):
        return False
    with unseen():
        return bool((one == other).all())
