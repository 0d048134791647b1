"""Attention computed directly from its formula, query by query, in float64: slow and obvious.

It shares no code with `attnscope.attention`, and uses numpy instead of torch.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import product
from typing import TYPE_CHECKING

from attnscope.formula.reference.run import VerifiedRun, array
from attnscope.formula.reference.visible import as_its_words_say

if TYPE_CHECKING:
    import numpy as np


BLOCK = 2**17
"""The number of weights computed at a time: a megabyte in float64."""


@dataclass(frozen=True)
class ProductInputs:
    """The queries, keys and values that enter the product.

    Attributes:
        unturned: Q, K and V before rotary positions, `n_batch n_head n d`, by name.
        Q, K, V: the factors: `n_batch n_head n_Q d_K`, and with those of the past
            `n_batch n_kv_head n_K d_K` and `n_batch n_kv_head n_K d_V`.
    """

    unturned: dict[str, np.ndarray]
    Q: np.ndarray
    K: np.ndarray
    V: np.ndarray


@dataclass(frozen=True)
class QueryBlock:
    """The loop's results for a block of queries of one head.

    Attributes:
        batch, head: the indices of the sequence and the head.
        queries: the range of the queries.
        weights: the weights before dropout: `n_Q n_K`.
        weighted: the weighted values: `n_Q d_V`.
    """

    batch: int
    head: int
    queries: slice
    weights: np.ndarray
    weighted: np.ndarray

    @property
    def place(self) -> tuple[int, int, slice]:
        """The index of these queries in arrays of shape `n_batch n_head n_Q …`."""
        return self.batch, self.head, self.queries


def inputs_of(run: VerifiedRun) -> ProductInputs:
    """Recompute the queries, keys and values that enter the product from a run's inputs.

    Source: Vaswani et al. 2017, "Attention Is All You Need", section 3.2.2.
    """
    import numpy as np

    unturned = {name: with_heads(run, name, _projected(run, name)) for name in "QKV"}
    Q, K, V = unturned.values()
    if (theta := run.option("rope_theta")) is not None:
        Q, K = turned(Q, run.starts["Q"], theta), turned(K, run.starts["K"], theta)
    if "K_past" in run:
        K = np.concatenate((array(run.heads("K_past")), K), axis=2)
        V = np.concatenate((array(run.heads("V_past")), V), axis=2)
    if run.query is not None:
        Q = Q[:, :, run.query : run.query + 1]
    return ProductInputs(unturned, Q, K, V)


def attended(run: VerifiedRun, inputs: ProductInputs) -> Iterator[QueryBlock]:
    """Compute attention in blocks of queries, because all weights together would take too much memory.

    Source: Vaswani et al. 2017, "Attention Is All You Need", equation 1.
    """
    import numpy as np

    Q, K, V = inputs.Q, inputs.K, inputs.V
    n_batch, n_head, n_Q, _ = Q.shape
    n_K, group = K.shape[2], n_head // K.shape[1]
    step = max(1, BLOCK // n_K)
    for b, h, start in product(range(n_batch), range(n_head), range(0, n_Q, step)):
        some = slice(start, min(start + step, n_Q))
        keys, values = K[b, h // group], V[b, h // group]
        mask = as_its_words_say(run, run.mask_of(b, h, some), b, some)
        kept = run.kept(b, h, some)
        weights = np.empty((some.stop - start, n_K))
        weighted = np.empty((some.stop - start, V.shape[3]))
        for i in range(len(weights)):
            visible = None if mask is None else mask[i if len(mask) > 1 else 0]
            fully_masked = run.fully_masked[b, h, start + i]
            w = weights[i] = weights_of(
                Q[b, h, start + i], keys, visible, run, fully_masked=fully_masked
            )
            weighted[i] = (w if kept is None else dropped(w, kept[i], run.dropout)) @ values
        yield QueryBlock(b, h, some, weights, weighted)


def weights_of(
    q: np.ndarray, K: np.ndarray, mask: np.ndarray | None, run: VerifiedRun, *, fully_masked: bool
) -> np.ndarray:
    """Compute the weights of one query: softmax(q · Kᵀ · scale).

    Args:
        q: the query, `d_K`.
        K: the keys, `n_K d_K`.
        mask: the query's row of the mask, `n_K`.
        run: has the options: scale, soft cap, fill.
        fully_masked: whether the query sees no key at all.

    Returns:
        `n_K`.
    """
    import numpy as np

    scores = K @ q * run.option("scale")
    if (cap := run.option("softcap")) is not None:
        scores = cap * np.tanh(scores / cap)
    if mask is not None:
        scores = np.where(mask, scores, run.fill) if mask.dtype == bool else scores + mask
    if fully_masked and (rows := run.option("masked_rows")):
        return np.full(len(scores), {"nan": np.nan, "uniform": 1 / len(scores), "zero": 0.0}[rows])
    powers = np.exp(scores - scores.max())
    return powers / powers.sum()


def dropped(weights: np.ndarray, kept: np.ndarray, share: float) -> np.ndarray:
    """Apply dropout: zero the dropped weights, and scale the others by 1 / (1 − share).

    Source: Srivastava et al. 2014, "Dropout", section 10 (scaled during training).
    """
    import numpy as np

    return np.where(kept, weights / (1 - share), 0.0) if share < 1 else weights * 0.0


def turned(x: np.ndarray, starts: Sequence[int], theta: float) -> np.ndarray:
    """Apply rotary positions, treating each pair of numbers as a complex number.

    Args:
        x: `n_batch n_head n d`; numbers i and i + d/2 are pair i.
        starts: the first vector's position in each sequence.
        theta: the base: pair i is rotated by position · theta^(-2i/d).

    Source: Su et al. 2021, "RoFormer: Enhanced Transformer with Rotary Position Embedding",
    equations 13 and 15.
    """
    import numpy as np

    half = x.shape[-1] // 2
    positions = np.reshape(starts, (-1, 1, 1, 1)) + np.arange(x.shape[-2])[:, None]
    turns = np.exp(1j * positions * theta ** (-np.arange(half) / half))
    pairs = (x[..., :half] + 1j * x[..., half:]) * turns
    return np.concatenate((pairs.real, pairs.imag), axis=-1)


def projected(x: np.ndarray, by: tuple[np.ndarray, np.ndarray | float] | None) -> np.ndarray:
    """Multiply each row by the weights, `input × output`, and add the biases; None: return x."""
    import numpy as np

    return x if by is None else np.tensordot(x, by[0], axes=1) + by[1]


def _projected(run: VerifiedRun, name: str) -> np.ndarray:
    return projected(run.source(name), run.projection(name))


def with_heads(run: VerifiedRun, name: str, x: np.ndarray) -> np.ndarray:
    """Return `n_batch n_head n d`, splitting each row into heads if the run does so."""
    import numpy as np

    if "Q_split" in run:
        return np.stack(np.split(x, run.n_head if name == "Q" else run.n_kv_head, axis=-1), axis=1)
    if "n_head" not in run.trace.sizes:
        x = np.expand_dims(x, -3)
    return x[(None,) * (4 - x.ndim)]


def final_of(run: VerifiedRun, weighted: np.ndarray) -> np.ndarray:
    """Return the end result: merge the heads and apply the output projection, if the run does so."""
    return projected(merged(run, weighted), run.projection("O"))


def merged(run: VerifiedRun, weighted: np.ndarray) -> np.ndarray:
    """Merge the heads, `n_batch n_head n_Q d_V` to `n_batch n_Q n_head·d_V`, if the run does so."""
    import numpy as np

    if run.final == "out":
        return weighted
    return np.concatenate([weighted[:, h] for h in range(weighted.shape[1])], axis=-1)
