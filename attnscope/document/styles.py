"""The colours of text and of axes, legible on light and on dark terminals.

All have a contrast of 4 to white and to a dark grey (#1e1e1e), which leaves no other lightness. The 16
colours that themes define lack that: yellow, green and cyan vanish on white, and blue on black. On
consoles with fewer colours, Rich takes the nearest.
"""

from __future__ import annotations

from collections.abc import Sequence

BLUE = "#606efe"
CYAN = "#0089a4"
GREEN = "#398f0e"
MAGENTA = "#c24ec2"
ORANGE = "#ca5e00"
RED = "#f81919"

GOOD = GREEN
WRONG = f"bold {RED}"
FINDING = f"bold {ORANGE}"

AXIS_STYLES = {
    "n_batch": BLUE,
    "n_head": MAGENTA,
    "n_kv_head": MAGENTA,
    "n_Q": CYAN,
    "n_K": ORANGE,
    "n_past": ORANGE,
    "n_new": ORANGE,
    "n_V": ORANGE,
}
"""A colour for each kind of axis, the same for its name and for its size."""
WIDTH_STYLE = GREEN


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
