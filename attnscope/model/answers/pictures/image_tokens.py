"""The tokens that stand for a picture, and the rectangle of its pixels that each of them covers."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from attnscope.model.answers.prompt import Box

Size = tuple[int, int]  #: Width and height of a picture in pixels


@dataclass(frozen=True)
class ImageToken:
    """One token that a model puts features of a picture into."""

    label: str  #: what it is called: row and column of its grid, from 1: `3, 5`; or `end of row`
    #: the pixels of the original picture that it covers; None: none, since it ends a row, or covers
    #: padding
    box: Box | None
    part: str = "whole"  #: the copy of the picture that it belongs to, as in `Patch`
    frame: int = 0  #: the index of the frame of a video


def grid_of_tokens(
    rows: int, columns: int, size: Size, area: Box | None = None, part: str = "whole", frame: int = 0
) -> list[ImageToken]:
    """Divide an area, by default the picture, evenly among the tokens of a grid, row by row.

    Where a picture is padded, its area, in pixels of the original, reaches beyond its borders.
    """
    left, top, right, bottom = area or (0.0, 0.0, float(size[0]), float(size[1]))
    xs = [left + (right - left) * column / columns for column in range(columns + 1)]
    ys = [top + (bottom - top) * row / rows for row in range(rows + 1)]
    return [
        ImageToken(
            f"{row + 1}, {column + 1}",
            within((xs[column], ys[row], xs[column + 1], ys[row + 1]), size),
            part,
            frame,
        )
        for row in range(rows)
        for column in range(columns)
    ]


LEAST = 1e-6  #: Boxes narrower than this, in pixels, are nothing but rounding


def within(box: Box, size: Size) -> Box | None:
    """Return the part of a box that lies within a picture; None if none does."""
    left, top, right, bottom = box
    left, top = max(left, 0.0), max(top, 0.0)
    right, bottom = min(right, float(size[0])), min(bottom, float(size[1]))
    return (left, top, right, bottom) if min(right - left, bottom - top) > LEAST else None


def lost_share(boxes: Iterable[Box], size: Size) -> float:
    """Return the share of a picture that none of some boxes covers, which may overlap."""
    import numpy as np

    array = np.array(list(boxes), dtype=np.float64).reshape(-1, 4)
    xs = np.unique(array[:, [0, 2]].round(6))
    ys = np.unique(array[:, [1, 3]].round(6))
    covered = np.zeros((max(len(ys) - 1, 0), max(len(xs) - 1, 0)), dtype=bool)
    first_x, first_y, last_x, last_y = (
        np.searchsorted(edges, array[:, side].round(6))
        for side, edges in ((0, xs), (1, ys), (2, xs), (3, ys))
    )
    for x0, y0, x1, y1 in zip(first_x, first_y, last_x, last_y, strict=True):
        covered[y0:y1, x0:x1] = True
    area = float(np.diff(ys) @ covered @ np.diff(xs)) if covered.size else 0.0
    share = 1 - area / (size[0] * size[1])
    return share if share > LEAST else 0.0
