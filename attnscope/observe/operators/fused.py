"""The tensors inside a fused kernel, computed from the Q, K, V, mask and scale that it received."""

from __future__ import annotations

from collections.abc import Callable, Mapping

import torch

from attnscope.observe.operators.anatomy import Anatomy, Role
from attnscope.observe.operators.tape import TorchCall, Value

SDPA, FLEX = KERNELS = ("scaled_dot_product_attention", "flex_attention")
"""Functions of torch that compute attention as a whole."""


def add_fused(anatomy: Anatomy, call: TorchCall) -> None:
    """Add the roles of a kernel; those inside have no elements on the tape.

    Source: the definitions in
    https://docs.pytorch.org/docs/stable/generated/torch.nn.functional.scaled_dot_product_attention.html
    and https://docs.pytorch.org/docs/stable/nn.attention.flex_attention.html
    """
    anatomy.fused = call
    values = {name: call.argument(i, name) for i, name in enumerate(("query", "key", "value"))}
    out = call.outputs[0]
    lead = out.tensor.shape[:-2]
    groups = bool(call.kwargs.get("enable_gqa")) or call.name == FLEX  # which has checked the heads
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
    call: TorchCall,
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
    scale = call.argument(5 if call.name == FLEX else 6, "scale")
    scores = Q @ K.mT * (Q.shape[-1] ** -0.5 if scale is None else scale)
    found["scores"] = replaced.get("scores", scores)
    masked = (_modified if call.name == FLEX else _masked)(call, found["scores"])
    if masked is not None:
        found["scores_masked"] = replaced.get("scores_masked", masked)
    before = found.get("scores_masked", found["scores"])
    weights = before.softmax(-1)
    if call.name == FLEX:  # a query that sees no key gets zeros
        weights = weights.masked_fill((before == float("-inf")).all(-1, keepdim=True), 0.0)
    found["attention"] = replaced.get("attention", weights)
    found["x_raw"] = found["attention"] @ V
    return found


def _masked(call: TorchCall, scores: torch.Tensor) -> torch.Tensor | None:
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


def _modified(call: TorchCall, scores: torch.Tensor) -> torch.Tensor | None:
    """Return the scores after FlexAttention's `score_mod` and mask; None if these change nothing."""
    shape = (*call.outputs[0].tensor.shape[:2], *scores.shape[-2:])
    by_head = scores.reshape(shape)
    modified = _everywhere(call.argument(3, "score_mod"), shape, by_head)
    visible = _everywhere(call.argument(4, "block_mask")[-1], shape)
    masked = modified.to(scores.dtype).masked_fill(~visible, float("-inf")).reshape(scores.shape)
    return None if torch.equal(masked, scores) else masked


def _everywhere(
    function: Callable[..., torch.Tensor], shape: tuple[int, ...], *scores: torch.Tensor
) -> torch.Tensor:
    """Call a function at each place: sequence, head, query, key."""
    for axis in reversed(range(4)):
        places = tuple(0 if each == axis else None for each in range(4))
        function = torch.vmap(function, in_dims=(*[0 for _ in scores], *places))
    return function(*scores, *[torch.arange(n) for n in shape])


def dropout_of(call: TorchCall | None) -> float:
    """Return the rate at which a kernel drops weights, in any mode; 0 if it does not."""
    return float(call.argument(4, "dropout_p", 0.0)) if call is not None and call.name == SDPA else 0.0
