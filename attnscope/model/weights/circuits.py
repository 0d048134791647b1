"""Compute a head's circuits: QK determines what it attends to, OV what it moves.

W_Q and W_K, unless positions rotate what they compute, and W_O and W_V act only through their products,
each `d_feat d_feat` and of rank d_head at most. Source: Elhage et al. 2021, "A Mathematical Framework
for Transformer Circuits".
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from attnscope.model.families.table import family_of
from attnscope.model.files.config import Config, text_part
from attnscope.model.files.result import Circuit, HeadWeights
from attnscope.model.weights.matrix_change import exact

if TYPE_CHECKING:
    import numpy as np


ROTATED = (
    "QK leaves out rotary positions: it is the product of a query and a key at the same position, and at"
    " a distance, both are rotated."
)
"""What is said of the circuits of a head with rotary positions."""

ROTATION = ("rope_theta", "rope_parameters", "rope_scaling", "rotary_emb_base", "rotary_dim")
"""The fields of a configuration that speak of rotary positions."""


def rotates(config: Config, head: HeadWeights) -> bool:
    """Check by its configuration whether a head has rotary positions."""
    config = text_part(config)
    without = config.get("no_rope_layers")
    if head.stack == "cross" or (without and not without[head.layer]) or config.get("alibi"):
        return False
    formula = family_of(config.get("model_type")).formula
    if formula is None:
        return any(config.get(name) is not None for name in ROTATION)
    return formula.rotary or "rotary" in formula.missing


def circuits(head: HeadWeights) -> list[Circuit]:
    """Compute the two circuits of a head in float64: QK = W_Qᵀ·W_K and OV = W_O·W_V.

    Biases, positions and normalisations are not included.

    Args:
        head: as `read_head` returns it: `W_Q W_K W_V`: `d_head d_feat`; `W_O`: `d_feat d_head`.

    Returns:
        QK, then OV.
    """
    weights = {each.name: exact(each) for each in head.weights}
    return [
        circuit("QK", weights["W_Q"].T, weights["W_K"]),
        circuit("OV", weights["W_O"], weights["W_V"]),
    ]


def circuit(name: str, left: np.ndarray, right: np.ndarray) -> Circuit:
    """Describe the product of two thin matrices by its singular values.

    Args:
        left: `d_out d_head`.
        right: `d_head d_in`.
    """
    sigma = singular_values(left, right)
    return Circuit(
        name=name,
        singular_values=sigma.tolist(),
        effective_rank=effective_rank(sigma),
        norm=float((sigma @ sigma) ** 0.5),
        spectral_norm=float(sigma[0]),
    )


def singular_values(left: np.ndarray, right: np.ndarray) -> np.ndarray:
    """Return the singular values of `left · right`, the largest first, without forming the product.

    With left = Q₁·R₁ and rightᵀ = Q₂·R₂, the product is Q₁·(R₁·R₂ᵀ)·Q₂ᵀ. Q₁ and Q₂ have orthonormal
    columns, so R₁·R₂ᵀ, which is only `d_head d_head`, has the same nonzero singular values.

    Args:
        left: `d_out d_head`.
        right: `d_head d_in`.

    Returns:
        The `d_head` values that can be nonzero, fewer if d_out or d_in is smaller. All are NaN if a
        weight is not finite.
    """
    import numpy as np

    if not (np.isfinite(left).all() and np.isfinite(right).all()):
        return np.full(min(*left.shape, *right.shape), np.nan)
    _, R_left = np.linalg.qr(left)
    _, R_right = np.linalg.qr(right.T)
    return np.linalg.svd(R_left @ R_right.T, compute_uv=False)


def effective_rank(sigma: np.ndarray) -> float:
    """Return the effective rank: exp of the entropy of the shares σ/Σσ of the singular values.

    It is their number if all are equal, 1 if only one is nonzero, and 0 if all are 0.
    Source: Roy and Vetterli 2007, "The effective rank: a measure of effective dimensionality".
    """
    import numpy as np

    total = sigma.sum()
    if total == 0:
        return 0.0
    shares = sigma / total
    shares = shares[shares != 0]
    return float(np.exp(-(shares * np.log(shares)).sum()))
