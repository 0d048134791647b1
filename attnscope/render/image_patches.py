"""Weights of one query on the patches of an image."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from attnscope.render.tokens import label
from attnscope.results.maps import AttentionMaps, Picture, Token

if TYPE_CHECKING:
    import numpy as np


def first_query(picture: Picture) -> int | None:
    """Return the query that represents the whole image: the first token before the patches, or None."""
    return 0 if picture.first else None


def weights_of(attention: np.ndarray, query: int | None) -> np.ndarray:
    """Return the weights of a query, `n_K`; if it is None, the mean over all queries."""
    return attention.mean(axis=0) if query is None else attention[query]


def without(maps: AttentionMaps, weights: np.ndarray) -> np.ndarray:
    """Return the weights of one query, `n_K`, with 0 for the keys that are left out."""
    weights = weights.copy()
    weights[maps.left_out] = 0
    return weights


def on_patches(weights: np.ndarray, picture: Picture) -> np.ndarray:
    """Arrange the weights of the patches as in the image: `rows columns`."""
    end = picture.first + picture.rows * picture.columns
    return weights[picture.first : end].reshape(picture.rows, picture.columns)


def query_text(tokens: Sequence[Token], query: int | None) -> str:
    """Name the query whose weights are shown, or the mean over all queries."""
    if query is None:
        return f"all {len(tokens)} queries on average"
    return f"query {query} {label(tokens[query].text)}"
