"""Sentences about what the numbers of two checkpoints do not say."""

from __future__ import annotations

from dataclasses import dataclass, field
from math import isinf
from typing import TYPE_CHECKING

from attnscope.model.files.indices import enumerated
from attnscope.model.heads.result import HeadRow, head_name
from attnscope.model.weights.layer_difference import CIRCUITS, ROTATED, LayerDifference
from attnscope.model.weights.matrix_change import Order, described

if TYPE_CHECKING:
    from attnscope.model.weights.differences import HeadDifferences

MOST_NAMED = 3
"""The most tensors or heads that a notice names."""


@dataclass
class Noticed:
    """What is noticed in layers, one after the other."""

    others: list[str] = field(default_factory=list)
    #: what the two say of rotary positions, where they differ.
    rotations: dict[str, None] = field(default_factory=dict)
    #: by the matrices whose features have another order, and that order: the heads.
    permuted: dict[tuple[tuple[str, ...], Order], list[HeadRow]] = field(default_factory=dict)
    #: by the reason: the heads whose W_Q and W_K change, but not their product.
    undecided: dict[str, list[HeadRow]] = field(default_factory=dict)

    def add(self, difference: LayerDifference, rows: list[HeadRow]) -> None:
        """Add what is noticed in a layer."""
        self.others += difference.other_tensors()
        self.rotations |= dict.fromkeys(difference.other_rotation())
        for key, heads in difference.permuted.items():
            self.permuted.setdefault(key, []).extend(row for row in rows if row.head in heads)
        undecided = [row for row in rows if _is_undecided(row)]
        if undecided and difference.undecided:
            self.undecided.setdefault(difference.undecided, []).extend(undecided)

    def sentences(self, table: HeadDifferences) -> list[str]:
        """Return what is to be said beside the numbers of a table."""
        notices = []
        if self.others:
            notices.append(
                f"other tensors of attention differ, which belong to no head: {some(self.others)}"
            )
        if self.rotations:
            notices.append(
                "positions are rotated otherwise, so that heads with equal weights attend otherwise:"
                f" {some([*self.rotations])}"
            )
        notices += _of_circuits(table.rows)
        rotated = table.metrics.get("QK") == ROTATED
        notices += [_permutation(*each, rotated=rotated) for each in self.permuted.items()]
        notices += [
            "W_Q and W_K change, but W_Qᵀ·W_K does not; what heads attend to is undecided, because"
            f" {why}: {_places(rows)}"
            for why, rows in self.undecided.items()
        ]
        return notices + _of_values(table)


def _of_circuits(rows: list[HeadRow]) -> list[str]:
    """Name the heads whose weights change, but not what these do."""
    notices = []
    for name, (left, right, _) in CIRCUITS.items():
        cancelled = [row for row in rows if _cancels(row, name, left, right)]
        if cancelled:
            notices.append(
                f"{left} and {right} change, but {name} does not up to rounding, as if the head's basis"
                f" was rotated: {_places(cancelled)}"
            )
    return notices


def _of_values(table: HeadDifferences) -> list[str]:
    """Name the heads with changes that are infinite, or are none."""
    notices = []
    for name in table.metrics:
        undefined = [row for row in table.rows if isinf(row.values.get(name) or 0)]
        if undefined:
            notices.append(
                f"{name} is 0 in A and not in B, so that its relative change is infinite:"
                f" {_places(undefined)}"
            )
    missing = [row for row in table.rows if None in row.values.values() and not _is_undecided(row)]
    if missing:
        notices.append(f"NaN or infinity among the weights, which have no change: {_places(missing)}")
    return notices


def _cancels(row: HeadRow, circuit: str, left: str, right: str) -> bool:
    """Check whether the changes of a circuit's factors leave the circuit unchanged."""
    values = row.values
    return values.get(circuit) == 0 and bool(values.get(left)) and bool(values.get(right))


def _is_undecided(row: HeadRow) -> bool:
    """Check whether a head's weights have changes, but its QK has none."""
    values = row.values
    return values.get("QK", 0) is None and None not in (values["W_Q"], values["W_K"])


def _permutation(found: tuple[tuple[str, ...], Order], rows: list[HeadRow], *, rotated: bool) -> str:
    """Say which matrices have the features of a head in another order, and what follows."""
    names, order = found
    what = "features" if "W_O" in names else "rows"
    other_pairs = rotated and {"W_Q", "W_K"} <= {*names} and all(row.values["QK"] for row in rows)
    follows = ", so that positions rotate other features together" if other_pairs else ""
    return (
        f"{what} of {enumerated(names)} are permuted within heads, {described(order)}{follows}:"
        f" {_places(rows)}"
    )


def _places(rows: list[HeadRow]) -> str:
    """Name the first few heads."""
    return some([head_name(row.layer, row.head) for row in rows])


def some(names: list[str]) -> str:
    """Name the first few, and count the others."""
    more = f" and {len(names) - MOST_NAMED} more" if len(names) > MOST_NAMED else ""
    return ", ".join(names[:MOST_NAMED]) + more
