"""Where weights lie: in a picture, as a density over its pixels, and in the segments of a prompt."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from typing import TYPE_CHECKING

from attnscope.model.answers.prompt import Patch, PatchedPicture

if TYPE_CHECKING:
    import numpy as np

    from attnscope.model.answers.result import Answer


def density(
    picture: PatchedPicture,
    weights: np.ndarray,
    height: int,
    width: int,
    *,
    left_out: Collection[int] = (),
) -> np.ndarray:
    """Spread each patch's weight evenly over its box, and return the density in a grid of cells.

    Patches of tiles and of the whole picture overlap: their densities add. Weights are those of one row,
    `n_K`. The result is `height width` in float64: the mean density of each cell, in weights per area of
    the picture. The mean over all cells is the weight of the patches that are not left out.
    """
    import numpy as np

    patches = [patch for patch in picture.patches if patch.position not in left_out]
    if not patches:
        return np.zeros((height, width))
    boxes = np.array([patch.box for patch in patches], dtype=float)  # left, top, right, bottom
    boxes /= np.tile(picture.image.size, 2)  # shares of the picture's width and height
    across = _overlaps(boxes[:, 0], boxes[:, 2], width)
    down = _overlaps(boxes[:, 1], boxes[:, 3], height)
    areas = (boxes[:, 2] - boxes[:, 0]) * (boxes[:, 3] - boxes[:, 1])
    per_area = np.asarray(weights, dtype=float)[[patch.position for patch in patches]] / areas
    return (down * per_area[:, None]).T @ across


def _overlaps(starts: np.ndarray, ends: np.ndarray, n: int) -> np.ndarray:
    """Return which share of each of n equal cells each interval covers, `n_interval n`."""
    import numpy as np

    cells = np.arange(n)
    covered = np.minimum(ends[:, None] * n, cells + 1) - np.maximum(starts[:, None] * n, cells)
    return covered.clip(0, 1)


def grid_size(picture: PatchedPicture, most: int) -> tuple[int, int]:
    """Return the height and width of a grid of square cells over a picture, at most `most` of each."""
    width, height = picture.image.size
    scale = min(1.0, most / max(width, height))
    return max(1, round(height * scale)), max(1, round(width * scale))


def shown_weights(answer: Answer) -> np.ndarray:
    """Return the shares of the row that is shown alone, or the mean over all rows, `n_K`."""
    of_rows = row_shares(answer)
    return of_rows.mean(0) if answer.query is None else of_rows[answer.query]


def row_shares(answer: Answer) -> np.ndarray:
    """Return the share of each row's weight that goes to each key, `n_row n_K` in float64.

    Rows of means sum to 1, or to less if a learned sink takes a part. Rows of maxima sum to anything,
    so that their weights are divided by the row's sum.
    """
    import numpy as np

    weights = answer.weights.astype(float)
    if answer.pool != "max":
        return weights
    return weights / np.maximum(weights.sum(1, keepdims=True), 1e-30)


def shares(answer: Answer) -> np.ndarray:
    """Return the share of each row's weight that goes to each segment, `n_row n_segment`."""
    return _shares_of(answer, [segment.positions for segment in answer.segments])


def picture_shares(answer: Answer) -> np.ndarray:
    """Return the share of each row's weight that goes to each picture's patches, `n_row n_picture`."""
    return _shares_of(answer, [positions(picture.patches) for picture in answer.pictures])


def _shares_of(answer: Answer, keys: list[list[int]]) -> np.ndarray:
    """Return the share of each row's weight that goes to each of some sets of keys."""
    import numpy as np

    weights = row_shares(answer)
    columns = [weights[:, each].sum(1) for each in keys]
    return np.stack(columns, 1) if columns else np.zeros((len(weights), 0))


def segment_shares(answer: Answer) -> np.ndarray:
    """Return the share of each segment's weight that goes to each segment, `n_segment n_segment`.

    The row of a segment is the mean of its tokens' own rows, pooled over layers and heads; NaN where no
    query is of the segment. Of maxima, these are shares of the row's sum.
    """
    import numpy as np

    assert answer.segment_rows is not None
    of_heads = answer.segment_rows.astype(float).reshape(-1, *answer.segment_rows.shape[2:])
    of_heads = of_heads[~np.isnan(of_heads).all((1, 2))]  # a layer may have fewer heads
    if answer.pool != "max":
        return of_heads.mean(0)
    pooled = of_heads.max(0)
    return pooled / np.maximum(pooled.sum(1, keepdims=True), 1e-30)


def bars(answer: Answer) -> tuple[list[int], np.ndarray]:
    """Return the rows that bars show: of the answer's tokens, or of segments if these were collected.

    They are the index of each token in the answer, or of each segment that has tokens; and the shares of
    what it reads, `n_bar n_segment`.
    """
    if answer.segment_rows is None:
        of_tokens = shares(answer)
        return list(range(len(of_tokens))), of_tokens
    known = [i for i, segment in enumerate(answer.segments) if segment.n_token]
    return known, segment_shares(answer)[known]


def even_shares(answer: Answer) -> np.ndarray:
    """Return the shares of segments if each row read all keys that it sees equally, `n_row n_segment`.

    A row sees the keys up to its query's position; of `cross`, all keys.
    """
    import numpy as np

    n_K = len(answer.tokens)
    n_seen = [n_K if answer.stack == "cross" else query + 1 for query in answer.queries]
    counts = [
        [sum(max(0, min(end, n) - first) for first, end in segment.spans) for segment in answer.segments]
        for n in n_seen
    ]
    return np.array(counts, dtype=float).reshape(len(n_seen), -1) / np.array(n_seen)[:, None]


def positions(patches: Sequence[Patch]) -> list[int]:
    """Return the positions of patches in the sequence."""
    return [patch.position for patch in patches]


def strongest_patches(answer: Answer) -> list[tuple[PatchedPicture, Patch] | None]:
    """Return the patch that each row reads most, without those left out; None if it reads none."""
    patches = [(picture, patch) for picture in answer.pictures for patch in picture.patches]
    patches = [each for each in patches if each[1].position not in answer.sinks]
    if not patches:
        return [None] * len(answer.written)
    best = _strongest(answer.weights[:, [patch.position for _, patch in patches]])
    return [None if i is None else patches[i] for i in best]


def strongest_keys(answer: Answer) -> list[int | None]:
    """Return the position of the key that each row reads most, without those left out."""
    weights = answer.weights.copy()
    weights[:, answer.sinks] = 0
    return _strongest(weights)


def _strongest(weights: np.ndarray) -> list[int | None]:
    """Return the column of the largest weight of each row; None: none is above 0."""
    best = weights.argmax(1).tolist()
    return [i if weights[row, i] > 0 else None for row, i in enumerate(best)]
