"""The names and sizes of a tensor's axes, each in the colour of its kind."""

from __future__ import annotations

from collections.abc import Sequence

from attnscope.document.styles import AXIS_STYLES, WIDTH_STYLE


def dims_pieces(dims: Sequence[str] | None) -> list[tuple[str, str]]:
    """Return the axes' names, each in its colour; nothing if they are unknown."""
    return [(axis, _axis_style(axis)) for axis in dims or ()]


def shape_pieces(dims: Sequence[str] | None, shape: Sequence[int]) -> list[tuple[str, str]]:
    """Return the axes' sizes, each in the colour of its axis, or `scalar`."""
    axes = zip(dims or ("",) * len(shape), shape, strict=True)
    return [(str(size), _axis_style(axis)) for axis, size in axes] or [("scalar", "")]


def _axis_style(axis: str) -> str:
    is_width = axis.split("·")[-1].startswith("d_")  # so is n_head·d_head, the width of merged heads
    return AXIS_STYLES.get(axis, WIDTH_STYLE if is_width else "")
