"""The tensors inside a fused kernel, computed from the Q, K, V, mask and scale that it received."""

from __future__ import annotations

from collections.abc import Mapping

import torch

from attnscope.observe.instrument.written_out import hidden_later, masked, modified, softmax
from attnscope.observe.operator_names import FLEX, SDPA
from attnscope.observe.operators.anatomy import Anatomy, Role
from attnscope.observe.operators.tape import TorchCall, Value

KERNELS = (SDPA, FLEX)
"""Functions of torch that compute attention as a whole."""


def add_fused(anatomy: Anatomy, call: TorchCall) -> None:
    """Add the roles of a kernel; those inside have no elements on the tape.

    Source: the definitions in
    https://docs.pytorch.org/docs/stable/generated/torch.nn.functional.scaled_dot_product_attention.html
    and https://docs.pytorch.org/docs/stable/nn.attention.flex_attention.html
    """
    anatomy.fused = call
    out = call.outputs[0]
    lead = out.tensor.shape[:-2]
    groups = bool(call.kwargs.get("enable_gqa")) or call.name == FLEX  # which has checked the heads
    arguments = (("Q", "query", "n_Q d_head"), ("K", "key", "n_K d_head"), ("V", "value", "n_K d_V"))
    for place, (role, name, axes) in enumerate(arguments):
        value: Value = call.argument(place, name)
        elements = value.flat_indices
        if groups and role != "Q":
            elements = elements.repeat_interleave(lead[-1] // elements.shape[-3], -3)
        elements = elements.expand(*lead, *elements.shape[-2:]).flatten(0, -3)
        elements = elements if elements.ndim == 3 else elements[None]
        anatomy.add(Role.arranged(role, value, elements, ("lead", *axes.split())))
    Q, K, V = (anatomy.roles[name].tensor for name in ("Q", "K", "V"))
    for name, tensor in inside(call, Q, K, V, {}).items():
        if name != "x_raw":  # the kernel returns it
            anatomy.add(Role(name, out, tensor, ("lead", "n_Q", "n_K")))
    elements = out.flat_indices.reshape(-1, *out.tensor.shape[-2:])
    anatomy.add(Role.arranged("x_raw", out, elements, ("lead", "n_Q", "d_V")))


def inside(
    call: TorchCall,
    Q: torch.Tensor,
    K: torch.Tensor,
    V: torch.Tensor,
    replaced: Mapping[str, torch.Tensor],
) -> dict[str, torch.Tensor]:
    """Return the scores before and after the mask, attention, and the weighted values.

    Args:
        replaced: tensors by role, instead of those that follow from Q, K and V.
    """
    found: dict[str, torch.Tensor] = {}
    scale = call.argument(5 if call.name == FLEX else 6, "scale")
    scores = Q @ K.mT * (Q.shape[-1] ** -0.5 if scale is None else scale)
    found["scores"] = replaced.get("scores", scores)
    after = (_modified if call.name == FLEX else _masked)(call, found["scores"])
    if after is not None:
        found["scores_masked"] = replaced.get("scores_masked", after)
    before = found.get("scores_masked", found["scores"])
    found["attention"] = replaced.get("attention", softmax(before, "zero"))
    found["x_raw"] = found["attention"] @ V
    return found


def _masked(call: TorchCall, scores: torch.Tensor) -> torch.Tensor | None:
    """Return the masked scores; None if there is no mask."""
    if call.argument(5, "is_causal", False):
        return masked(scores, hidden_later(scores))
    mask = call.argument(3, "attn_mask")
    if mask is None:
        return None
    lead = call.outputs[0].tensor.shape[:-2]
    return masked(scores, mask.tensor.expand(*lead, *scores.shape[-2:]).reshape(scores.shape))


def _modified(call: TorchCall, scores: torch.Tensor) -> torch.Tensor | None:
    """Return the scores after FlexAttention's `score_mod` and mask; None if these change nothing."""
    shape = (*call.outputs[0].tensor.shape[:2], *scores.shape[-2:])
    by_head = scores.reshape(shape)
    functions = call.argument(3, "score_mod"), (), call.argument(4, "block_mask")[-1], ()
    result = modified(by_head, *functions).reshape(scores.shape)
    return None if torch.equal(result, scores) else result


def dropout_of(call: TorchCall | None) -> float:
    """Return the rate at which a kernel drops weights, in any mode; 0 if it does not."""
    return float(call.argument(4, "dropout_p", 0.0)) if call is not None and call.name == SDPA else 0.0
