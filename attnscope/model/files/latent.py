"""Read one head's weights of multi-head latent attention, and those that all heads share.

Queries, keys and values are projected up from low-rank latents. With x a token, a norm on each latent,
and [a; b] the concatenation:

- c_Q = norm(W_DQ·x), and a head's query is [W_UQ·c_Q; RoPE(W_QR·c_Q)];
- c_KV = norm(W_DKV·x), a head's key is [W_UK·c_KV; RoPE(W_KR·x)], whose second part is the same for all
  heads; its value is W_UV·c_KV.

If queries have no latent, a query is [W_Q·x; RoPE(W_QR·x)]. Source: DeepSeek-AI 2024, "DeepSeek-V2",
section 2.1; the names are the paper's.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

from attnscope.base.errors import ModelError
from attnscope.document.result import UNMEASURED
from attnscope.model.files.layouts import Stack
from attnscope.model.files.result import Latent, WeightSlice
from attnscope.model.files.tensors import Weights

if TYPE_CHECKING:
    import numpy as np

DOWN_Q, DOWN_KV = "q_a_proj", "kv_a_proj_with_mqa"
NORM_Q, NORM_KV = "q_a_layernorm", "kv_a_layernorm"
"""The modules that all heads share."""

AXES = {
    "W_DQ": ("d_CQ", "d_feat"),
    "g_Q": ("d_CQ",),
    "W_UQ": ("d_nope", "d_CQ"),
    "W_Q": ("d_nope", "d_feat"),
    "W_DKV": ("d_CKV", "d_feat"),
    "g_KV": ("d_CKV",),
    "W_UK": ("d_nope", "d_CKV"),
    "W_UV": ("d_V", "d_CKV"),
    "W_KR": ("d_rope", "d_feat"),
    "W_O": ("d_feat", "d_V"),
    "b_DQ": ("d_CQ",),
    "b_DKV": ("d_CKV",),
    "b_KR": ("d_rope",),
    "b_O": ("d_feat",),
}
"""The axes of each part; W_QR has those of W_UQ or W_Q with `d_rope` in place of `d_nope`."""


def axes_of(name: str, latent: Latent) -> tuple[str, ...]:
    """Return the axes of a head's slice of a weight or a bias."""
    if name == "W_QR":
        return ("d_rope", "d_feat" if latent.d_CQ is None else "d_CQ")
    return AXES[name]


@dataclass(frozen=True)
class TensorPart:
    """The rows or columns of a stored tensor that form one part."""

    name: str  #: a key of `AXES`
    module: str  #: its path below the layer's attention
    kind: str  #: `weight` or `bias`
    axis: int  #: the axis that is sliced
    #: `start`, `stop`: the range along that axis.
    start: int
    stop: int
    shared: bool  #: whether it is the same for all heads


def columns_of(latent: Latent, part: str, head: int) -> slice:
    """Find the outputs of a projection (inputs of W_O) that belong to a head.

    Args:
        part: `Q`, including its part with RoPE; `K`, without its part with RoPE; `V`; `O`.
    """
    d_nope, d_rope, d_V = latent.d_nope, latent.d_rope, latent.d_V
    start, width = {
        "Q": (head * (d_nope + d_rope), d_nope + d_rope),
        "K": (head * (d_nope + d_V), d_nope),
        "V": (head * (d_nope + d_V) + d_nope, d_V),
        "O": (head * d_V, d_V),
    }[part]
    return slice(start, start + width)


def read_latent(
    weights: Weights,
    stack: Stack,
    layer: int,
    n_head: int,
    config: dict[str, Any],
    model: str,
) -> tuple[Latent, int, Callable[[int], list[WeightSlice]]]:
    """Open the tensors of a layer with latent attention.

    Args:
        stack, layer: the location of the layer; the stack's layout is one of latent attention.

    Returns:
        The sizes; d_feat; and a function that returns a head's parts by its index, in the order in which
        they are used.
    """
    names, place = set(weights.names), stack.place(layer)
    up_Q, up_KV, _, out = stack.layout.modules.split()

    def shape(module: str) -> tuple[int, ...]:
        tensor = f"{place}.{module}.weight"
        if tensor not in names:
            raise ModelError(
                f"{model} has no {tensor}, although it has {stack.tensor('Q', layer, 'weight')}."
            )
        found = tuple(weights.read(tensor)[0].shape)
        if len(found) != 2:
            raise ModelError(f"{tensor} of {model} has the shape {found}, which is not a matrix.")
        return found

    of_Q, of_KV, down_KV, of_O = (shape(module) for module in (up_Q, up_KV, DOWN_KV, out))
    down_Q = shape(DOWN_Q) if f"{place}.{DOWN_Q}.weight" in names else None
    if down_Q is None and up_Q != "q_proj":
        shape(DOWN_Q)
    d_CKV = of_KV[1]
    d_rope = down_KV[0] - d_CKV
    d_nope, d_V = of_Q[0] // n_head - d_rope, of_O[1] // n_head
    latent = Latent(d_nope, d_rope, d_V, down_Q[0] if down_Q else None, d_CKV)
    wide = {
        up_Q: (of_Q[0], n_head * (d_nope + d_rope)),
        up_KV: (of_KV[0], n_head * (d_nope + d_V)),
        out: (of_O[1], n_head * d_V),
    }
    for module, (found, expected) in wide.items():
        if found != expected or min(d_nope, d_V, d_rope + 1) < 1:
            raise ModelError(
                f"{place}.{module} of {model} is {found} wide, which does not fit {n_head} heads"
                f" of latent attention with keys {d_nope} + {d_rope} and values {d_V} wide."
            )
    _check_config(latent, config, model)
    opened: dict[str, tuple[np.ndarray, str]] = {}

    def slices(head: int) -> list[WeightSlice]:
        several = []
        for part in _parts(latent, head, up_Q, up_KV, out, of_O[0]):
            tensor = f"{place}.{part.module}.{part.kind}"
            if tensor in names and tensor not in opened:
                opened[tensor] = weights.read(tensor)
            if tensor in opened:
                own = slice_of(part.name, tensor, opened[tensor], part.axis, part.start, part.stop)
                is_whole = part.shared and own.head_shape == own.stored_shape
                several.append(replace(own, shared=part.shared, axis=None if is_whole else part.axis))
        return several

    return latent, of_O[0], slices


def _check_config(latent: Latent, config: dict[str, Any], model: str) -> None:
    """Raise a ModelError if config.json gives other sizes."""
    fields = {
        "qk_nope_head_dim": latent.d_nope,
        "qk_rope_head_dim": latent.d_rope,
        "v_head_dim": latent.d_V,
        "q_lora_rank": latent.d_CQ,
        "kv_lora_rank": latent.d_CKV,
    }
    for field, found in fields.items():
        expected = config.get(field, found)
        if expected != found:
            raise ModelError(
                f"{field} is {expected} in the config.json of {model}, but"
                f" {'absent' if found is None else found} in its weights.",
                hint="the config.json that the weights were saved with",
            )


def _parts(latent: Latent, head: int, up_Q: str, up_KV: str, out: str, d_feat: int) -> list[TensorPart]:
    """List all possible parts; the caller skips biases that do not exist."""
    d_CKV, both = latent.d_CKV, latent.d_CKV + latent.d_rope
    Q, K, V, out_of = (columns_of(latent, part, head) for part in "QKVO")
    rope_start = Q.start + latent.d_nope
    up = "W_Q" if latent.d_CQ is None else "W_UQ"
    shared = [
        TensorPart("W_DQ", DOWN_Q, "weight", 0, 0, latent.d_CQ or 0, True),
        TensorPart("g_Q", NORM_Q, "weight", 0, 0, latent.d_CQ or 0, True),
    ]
    return [
        *(shared if latent.d_CQ is not None else []),
        TensorPart(up, up_Q, "weight", 0, Q.start, rope_start, False),
        TensorPart("W_QR", up_Q, "weight", 0, rope_start, Q.stop, False),
        TensorPart("W_DKV", DOWN_KV, "weight", 0, 0, d_CKV, True),
        TensorPart("g_KV", NORM_KV, "weight", 0, 0, d_CKV, True),
        TensorPart("W_UK", up_KV, "weight", 0, K.start, K.stop, False),
        TensorPart("W_UV", up_KV, "weight", 0, V.start, V.stop, False),
        TensorPart("W_KR", DOWN_KV, "weight", 0, d_CKV, both, True),
        TensorPart("W_O", out, "weight", 1, out_of.start, out_of.stop, False),
        TensorPart("b_DQ", DOWN_Q, "bias", 0, 0, latent.d_CQ or 0, True),
        TensorPart("b_DKV", DOWN_KV, "bias", 0, 0, d_CKV, True),
        TensorPart("b_KR", DOWN_KV, "bias", 0, d_CKV, both, True),
        TensorPart("b_O", out, "bias", 0, 0, d_feat, True),
    ]


def slice_of(
    name: str,
    tensor: str,
    stored: tuple[np.ndarray, str],
    axis: int | None,
    start: int,
    stop: int,
    transposed: bool = False,
) -> WeightSlice:
    """Return a range of a stored tensor along an axis; None: all of it, which no head has for its own.

    Args:
        stored: its values, and the name of its dtype.
        transposed: whether the slice is turned to `out in`.
    """
    whole, dtype = stored
    values = whole[:, start:stop] if axis == 1 else whole[start:stop]
    values = values.T if transposed else values
    return WeightSlice(
        name=name,
        tensor=tensor,
        stored_shape=tuple(whole.shape),
        axis=axis,
        start=start,
        stop=stop,
        head_shape=tuple(values.shape),
        dtype=dtype,
        stats=UNMEASURED,
        transposed=transposed,
        array=values,
        shared=axis is None,
    )
