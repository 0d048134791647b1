"""The tensors inside a fused kernel, computed from the Q, K, V, mask and scale that it received."""

from __future__ import annotations

from collections.abc import Mapping

import torch

from attnscope.comparison.anatomy.anatomy import Anatomy, Role
from attnscope.comparison.anatomy.tape import Call, Value


def add_fused(anatomy: Anatomy, call: Call) -> None:
    """Add the roles of `scaled_dot_product_attention`; those inside have no elements on the tape.

    Source: the definition in
    https://docs.pytorch.org/docs/stable/generated/torch.nn.functional.scaled_dot_product_attention.html
    """
    anatomy.fused = call
    values = {name: call.argument(i, name) for i, name in enumerate(("query", "key", "value"))}
    out = call.outputs[0]
    lead = out.tensor.shape[:-2]
    groups = bool(call.kwargs.get("enable_gqa"))
    for role, (name, n, d) in zip(
        ("Q", "K", "V"),
        (("query", "n_Q", "d_head"), ("key", "n_K", "d_head"), ("value", "n_K", "d_V")),
        strict=True,
    ):
        value: Value = values[name]
        elements = value.flat_indices
        if groups and role != "Q":
            elements = elements.repeat_interleave(lead[-1] // elements.shape[-3], -3)
        elements = elements.expand(*lead, *elements.shape[-2:]).flatten(0, -3)
        elements = elements if elements.ndim == 3 else elements[None]
        anatomy.add(Role.arranged(role, value, elements, ("lead", n, d)))
    Q, K, V = (anatomy.roles[name].tensor for name in ("Q", "K", "V"))
    for name, tensor in inside(call, Q, K, V, {}).items():
        if name != "x_raw":  # the kernel returns it
            anatomy.add(Role(name, out, tensor, ("lead", "n_Q", "n_K")))
    elements = out.flat_indices.reshape(-1, *out.tensor.shape[-2:])
    anatomy.add(Role.arranged("x_raw", out, elements, ("lead", "n_Q", "d_V")))


def inside(
    call: Call,
    Q: torch.Tensor,
    K: torch.Tensor,
    V: torch.Tensor,
    replaced: Mapping[str, torch.Tensor],
) -> dict[str, torch.Tensor]:
    """Return the scores before and after the mask, attention, and the weighted values.

    Args:
        call: the call of the kernel.
        Q, K, V: `lead n d`.
        replaced: tensors by role, instead of those that follow from Q, K and V.
    """
    found: dict[str, torch.Tensor] = {}
    scale = call.argument(6, "scale")
    scores = Q @ K.mT * (Q.shape[-1] ** -0.5 if scale is None else scale)
    found["scores"] = replaced.get("scores", scores)
    masked = _masked(call, found["scores"])
    if masked is not None:
        found["scores_masked"] = replaced.get("scores_masked", masked)
    before = found.get("scores_masked", found["scores"])
    found["attention"] = replaced.get("attention", before.softmax(-1))
    found["x_raw"] = found["attention"] @ V
    return found


def _masked(call: Call, scores: torch.Tensor) -> torch.Tensor | None:
    """Return the masked scores; None if there is no mask."""
    n_Q, n_K = scores.shape[-2:]
    if call.argument(5, "is_causal", False):
        allowed = torch.ones(n_Q, n_K, dtype=torch.bool, device=scores.device).tril()
        return scores.masked_fill(~allowed, float("-inf"))
    mask = call.argument(3, "attn_mask")
    if mask is None:
        return None
    lead = call.outputs[0].tensor.shape[:-2]
    tensor = mask.tensor.expand(*lead, n_Q, n_K).reshape(scores.shape)
    if tensor.dtype == torch.bool:
        return scores.masked_fill(~tensor, float("-inf"))
    return scores + tensor
