"""What the softmaxes of a run show: how many attentions follow each other, and fully masked rows."""

from __future__ import annotations

import torch

from attnscope.attention.masks import hidden
from attnscope.observe.operator_names import PRODUCTS, SOFTMAXES
from attnscope.observe.operators.tape import Tape, TorchCall, Value

FUSED = (
    "scaled_dot_product_attention",
    "flex_attention",
    "transformer_encoder_layer_fwd",
    "native_multi_head_attention",
)
"""Functions that attend on their own."""


def depths_of(tape: Tape) -> dict[Value, int]:
    """Return for each tensor how many attentions follow each other up to it; nothing if there are none.

    An attention is a softmax whose result enters a product, or a fused function. Heads beside each other
    are one.
    """
    depths: dict[Value, int] = {}
    weights: set[Value] = set()  # a softmax, and what was made of it, up to a product
    for call in tape.calls:
        depth = max((depths.get(parent, 0) for parent in call.parents), default=0)
        from_weights = any(parent in weights for parent in call.parents)
        if call.name in FUSED or (from_weights and call.name in {*PRODUCTS, "tensordot"}):
            depth += 1
        elif call.name in SOFTMAXES or (from_weights and call.name != "linear"):
            weights.update(call.outputs)
        depths.update(dict.fromkeys(call.outputs, depth))
    return depths if any(depths.values()) else {}


def fully_masked_rows(tape: Tape, n: int) -> set[int]:
    """Return the positions of queries that see no key in any softmax of a run."""
    rows: set[int] = set()
    for call in tape.calls:
        hidden = _hidden(call)
        if hidden is None or hidden.dim() < 2 or hidden.shape[-2] not in (1, n):
            continue
        empty = hidden.all(-1).reshape(-1, hidden.shape[-2]).any(0).expand(n)
        rows |= set(empty.nonzero().flatten().tolist())
    return rows


def n_softmaxes(tape: Tape) -> int:
    """Count the softmaxes of a run, and the fused functions that compute one."""
    return sum(_hidden(call) is not None for call in tape.calls)


def _hidden(call: TorchCall) -> torch.Tensor | None:
    """Find the keys that a softmax gives no weight to, `… n_Q n_K`; None for other calls."""
    if call.name in SOFTMAXES and call.parents:
        scores = call.parents[0].tensor
        dim = call.argument(1, "dim", -1)
        if not isinstance(dim, int) or scores.dim() < 2:
            return None
        return hidden(scores.movedim(dim, -1))
    if call.name == "scaled_dot_product_attention":
        mask = call.argument(3, "attn_mask")
        return torch.zeros(1, 1, dtype=torch.bool) if mask is None else hidden(mask.tensor)
    return None
