"""Which keys a query may see according to the words of the masks, from positions alone."""

from __future__ import annotations

import re
from math import inf
from typing import TYPE_CHECKING

from attnscope.formula.reference.run import HIDES, VerifiedRun

if TYPE_CHECKING:
    import numpy as np

WORD = re.compile(r"causal|(window|chunk|prefix|lengths):[\d,]+")
"""A mask in words; any other mask is a file or an array, whose values only the run has."""


def as_its_words_say(
    run: VerifiedRun, mask: np.ndarray | None, batch: int, queries: slice
) -> np.ndarray | None:
    """Return the mask of some queries of a sequence, with what its words determine computed again.

    Args:
        run: the run, whose options have the words.
        mask: the mask that ran, `n_Q n_K` or `1 n_K`: True where a query sees a key, or added.
        batch: the index of the sequence.
        queries: their range.

    Returns:
        `n_Q n_K`; without masks in words, the mask that ran.
    """
    import numpy as np

    texts = run.option("mask", [])
    words = [text for text in texts if WORD.fullmatch(text)]
    if mask is None or not words:
        return mask
    first = run.first_query(batch) + (run.query or 0)
    q = first + np.arange(queries.start, queries.stop)[:, None]
    k = np.arange(mask.shape[-1])[None]
    sees = np.logical_and.reduce([_sees(word, q, k, batch) for word in words])
    from_files = len(words) < len(texts)
    if mask.dtype == bool:
        return mask & sees if from_files else sees
    return np.where(sees, mask if from_files else 0.0, np.where(mask <= HIDES, mask, -inf))


def _sees(word: str, q: np.ndarray, k: np.ndarray, batch: int) -> np.ndarray:
    """Return True where a mask lets the query at position q see the key at position k, `n_Q n_K`."""
    import numpy as np

    kind, _, rest = word.partition(":")
    numbers = [float(number) if number else inf for number in rest.split(",")] if rest else []
    if kind == "causal":
        return k <= q
    if kind == "window":
        return (q - k <= numbers[0]) & (k - q <= numbers[-1])
    if kind == "chunk":
        return np.floor_divide(q, numbers[0]) == np.floor_divide(k, numbers[0])
    if kind == "prefix":
        return (k < numbers[0]) | (k <= q)
    return (k < numbers[batch]) & (q == q)
