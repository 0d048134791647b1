"""Read one head's weights, its circuits, and compare them with a run of the model: `head_weights`."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from attnscope.base.arrays import numbers
from attnscope.base.errors import ModelError
from attnscope.base.options import with_keywords
from attnscope.base.process.progress import Progress, silent, stage
from attnscope.base.spelling import quoted, spelled
from attnscope.document.stats import stats_of
from attnscope.model.families.table import family_of
from attnscope.model.files.checkpoint import Checkpoint, find_checkpoint
from attnscope.model.files.config import Config, text_part
from attnscope.model.files.gguf_model import GgufModel, find_gguf, is_gguf
from attnscope.model.files.heads import open_heads
from attnscope.model.files.indices import check_range
from attnscope.model.files.loaded import find_model
from attnscope.model.files.result import Circuit, HeadWeights
from attnscope.model.files.tensors import FILES
from attnscope.model.weights.options import FIRST_HEAD, HeadChecks, OneHead, OneStack

if TYPE_CHECKING:
    import numpy as np


@with_keywords
def head_weights(
    model: Any = None,
    place: OneHead = FIRST_HEAD,
    *,
    of: OneStack,
    checks: HeadChecks,
    progress: Progress = silent,
) -> HeadWeights:
    """Read one head's part of W_Q, W_K, W_V, W_O and of their biases, as `attnscope bert` shows it.

    From files, the bytes of one layer are read, without torch or transformers. From a loaded model, its
    current weights are read. W_K and W_V of a query head are those of its key/value head.

    For example::

        head = attnscope.head_weights("minilm", layer=0, head=3)
        head["W_Q"].array  # d_head d_feat, numpy
        head.to_pandas()
        head.save("head.safetensors")

    Args:
        model: `minilm`, a folder, a hub name, a GGUF file, another file of weights beside its
            config.json, or a model that transformers has loaded; None: `minilm` where it is installed,
            else `bert-base-uncased`.
        progress: called with the progress of the work.

    Returns:
        The slices and their statistics; W_Q, W_K and W_V are `d_head d_feat`, W_O is `d_feat d_head`,
        b_Q, b_K and b_V are `d_head`, b_O is `d_feat`. Checks and circuits if requested, else None.

    Raises:
        ModelError: no such model, stack, layer or head, or its files cannot be read.
        OptionError: `model` is an object that transformers has not loaded.
    """
    checkpoint = find_weights(model)
    result = read_head(checkpoint, layer=place.layer, head=place.head, stack=of.stack)
    if checks.circuits and result.latent is not None:
        raise ModelError(
            f"layer {result.layer} of {checkpoint.name} has latent attention: a norm follows the"
            " latents, so QK and OV are not products of weights alone."
        )
    if checks.verify and isinstance(checkpoint, GgufModel):
        raise ModelError(
            f"{checkpoint.name} is a GGUF file, and {spelled('verify')} runs the model with"
            " transformers.",
            hint=f"attnscope compare {quoted(checkpoint.name)} FOLDER, with the model it was"
            " converted from",
        )
    if checks.verify:
        from attnscope.base.process.devices import kept_random_state
        from attnscope.base.process.memory import check_imports
        from attnscope.base.process.verbosity import kept_verbosity
        from attnscope.model.weights.verify import verify_head

        check_imports(transformers=True)
        doing = f"running {checkpoint.name} with transformers …"
        with stage(progress, doing), kept_verbosity(), kept_random_state("cpu"):
            result.checks = verify_head(checkpoint, result)
    if checks.circuits:
        result.circuits = circuits(result)
        if rotates(checkpoint.config(), result):
            result.notices.append(ROTATED)
    return result


@with_keywords
def read_head(model: Any = None, *, place: OneHead, of: OneStack) -> HeadWeights:
    """Read one head's slices of W_Q, W_K, W_V, W_O and of their biases.

    A Linear stores its weight as `out in`. Heads lie side by side along the *output* of the Q, K and V
    projections, so a head is a range of rows. They lie side by side along the *input* of O, so a head
    is a range of columns. The bias of O belongs to no head and is returned whole. GPT-2's Conv1D stores
    `in out`, which swaps rows and columns. In grouped-query attention, K and V are those of the
    key/value head that the query head reads.

    Neither torch nor transformers is imported for a safetensors checkpoint whose config.json gives the
    number of heads.

    Args:
        model: `minilm`, a folder, a hub name, or a loaded transformers model, as in `find_model`.

    Returns:
        The eight slices (fewer without biases) with their statistics and arrays. W_Q, W_K and W_V are
        `d_head d_feat`, W_O is `d_feat d_head`, b_Q, b_K and b_V are `d_head`, b_O is `d_feat`.
        In cross-attention, the input of W_K and W_V is as wide as the other stack; in MobileBERT, the
        input of W_V is the one before the bottleneck. Slices of latent attention (DeepSeek) have the
        names of its paper (`attnscope.model.files.latent`).

    Raises:
        ModelError: there is no such model, stack, layer or head, or its files cannot be read.
    """
    heads, head = open_heads(find_model(model), of.stack), place.head
    layer = min(heads.stack.numbers) if place.layer is None else place.layer
    heads.check(layer)
    check_range("head", head, heads.n_head, heads.model)
    own = heads.layer(layer)
    return HeadWeights(
        model=heads.model,
        stack=heads.stack.name,
        layer=layer,
        head=head,
        n_layer=heads.stack.n_layer,
        n_head=heads.n_head,
        n_kv_head=own.n_kv_head,
        d_feat=own.d_feat,
        d_head=own.d_head,
        weights=[
            replace(each, stats=stats_of(numbers(each.array, each.dtype))) for each in own.weights(head)
        ],
        latent=own.latent,
    )


def find_weights(model: Any) -> Checkpoint:
    """Find a model, also by a GGUF file, or a file of weights with its config.json beside it."""
    if is_gguf(model):
        return find_gguf(model)
    if isinstance(model, (str, Path)) and Path(model).name in FILES:
        path = Path(model).expanduser()
        if path.with_name("config.json").is_file():
            found = find_checkpoint(path.parent)
            return found if found.first_file(*FILES) == path else find_model(model)
    return find_model(model)


# Circuits: QK determines what a head attends to, OV what it moves.

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

    W_Q and W_K, unless positions rotate what they compute, and W_O and W_V act only through these
    products, each `d_feat d_feat` and of rank d_head at most. Biases, positions and normalisations are
    not included. Source: Elhage et al. 2021, "A Mathematical Framework for Transformer Circuits".

    Args:
        head: as `read_head` returns it: `W_Q W_K W_V`: `d_head d_feat`; `W_O`: `d_feat d_head`.

    Returns:
        QK, then OV.
    """
    from attnscope.model.weights.matrix_change import exact

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
