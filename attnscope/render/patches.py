"""Weights as patches of a picture."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from attnscope.render.tokens import label
from attnscope.results.maps import AttentionMaps, Picture, Token

if TYPE_CHECKING:
    import numpy as np


def first_query(picture: Picture) -> int | None:
    """The query that stands for the whole picture: the first token before the patches, or None."""
    return 0 if picture.first else None


def weights_of(attention: np.ndarray, query: int | None) -> np.ndarray:
    """The weights that a query gives, `n_K`; where that is None, all queries on average."""
    return attention.mean(axis=0) if query is None else attention[query]


def without(maps: AttentionMaps, weights: np.ndarray) -> np.ndarray:
    """Weights of one query, `n_K`, of which those that are left out are 0."""
    weights = weights.copy()
    weights[maps.left_out] = 0
    return weights


def on_patches(weights: np.ndarray, picture: Picture) -> np.ndarray:
    """The weights that go to patches, as they lie in the picture: `rows columns`."""
    end = picture.first + picture.rows * picture.columns
    return weights[picture.first : end].reshape(picture.rows, picture.columns)


def asked_text(tokens: Sequence[Token], query: int | None) -> str:
    """Which query looks, or that all of them do."""
    if query is None:
        return f"all {len(tokens)} queries on average"
    return f"query {query} {label(tokens[query].text)}"
