"""PyTorch's own two implementations of attention, applied to the inputs of a run."""

from __future__ import annotations

from collections.abc import Callable
from math import ceil, sqrt
from typing import TYPE_CHECKING

from attnscope.formula.reference.naive import merged
from attnscope.formula.reference.run import VerifiedRun, array

if TYPE_CHECKING:
    import numpy as np
    import torch


SCORES = 2**20
"""The number of scores that a reference computes at a time, or more for a single query."""


def why_not_either(run: VerifiedRun) -> str | None:
    """Return the option that neither reference supports, with the reason; None if there is none."""
    if run.option("softcap") is not None:
        return "a soft cap, which it does not have"
    if run.dropout:
        return "this dropout: it draws its own random values"
    return None


def why_not_fused(run: VerifiedRun) -> str | None:
    """Name what `F.scaled_dot_product_attention` cannot express in this run; None if nothing."""
    if run.mask is not None and not all(
        run.entering(name).isfinite().all() for name in run.multiplied[:2]
    ):
        return (
            "NaN or infinity behind a mask: it adds the mask to the scores, which leaves them in place"
        )
    return why_not_either(run)


def sdpa(run: VerifiedRun) -> np.ndarray:
    """Compute the weighted values with `F.scaled_dot_product_attention`, in the run's dtype and device.

    Returns:
        `n_batch n_head n_Q d_V`; a query that sees no key gets zeros.
    """
    import torch
    import torch.nn.functional as F  # noqa: N812

    Q, K, V = (run.entering(name) for name in run.multiplied)
    options = {"scale": run.option("scale")}
    if run.n_kv_head != run.n_head:
        options["enable_gqa"] = True
    step = max(1, SCORES // (Q.size(0) * Q.size(1) * K.size(2)))
    results = []
    for start in range(0, Q.size(2), step):
        some = slice(start, start + step)
        mask = run.mask
        if mask is not None and mask.size(2) > 1:
            mask = mask[:, :, some]
        block = F.scaled_dot_product_attention(Q[:, :, some], K, V, attn_mask=mask, **options)
        results.append(block)
    return array(torch.cat(results, dim=2))


def why_not_module(run: VerifiedRun) -> str | None:
    """Name what `nn.MultiheadAttention` cannot express in this run, with the reason; else None."""
    if run.is_mha and run.option("rope_theta") is not None:
        return "rotary positions: it projects Q and K itself and does not rotate them"
    if run.is_mha and "K_past" in run:
        return "a past: it projects all of its keys itself"
    if not all(tensor.isfinite().all() for tensor in _module_inputs(run)):
        return "NaN or infinity in its inputs, which its projections spread"
    return why_not_either(run)


def module(run: VerifiedRun) -> np.ndarray:
    """Compute the end result with `nn.MultiheadAttention`, with weights set to those of the run.

    It runs in float64 on the CPU, so that its own rounding does not blur the comparison.
    For sdpa its projections are identities, and each head is a sequence of its own. Its scale is
    fixed to 1/√width, so W_Q is multiplied by a correction; it has as many heads of K and V as of Q,
    so the heads of a group get the same weights; its keys are as wide as its values, and its heads
    together as wide as its input, so what is narrower is padded with zeros.

    Returns:
        `n_batch n_head n_Q d_V`, or `n_batch n_Q …` where heads are merged; a query that sees no
        key gets NaN.
    """
    attend = _module_function(run)
    Q, K, V = (tensor.cpu().double() for tensor in _module_inputs(run))
    n_head = run.n_head if run.is_mha else 1
    n_sequence, n_Q = Q.shape[:2]
    n_scores = n_head * K.size(1)  # of one query
    rows = min(n_Q, max(SCORES // n_scores, K.size(2)))  # each block projects all keys again
    sequences = max(1, SCORES // (n_scores * n_Q)) if rows == n_Q else 1
    result = Q.new_empty(n_sequence, n_Q, 0)
    for first in range(0, n_sequence, sequences):
        some = slice(first, first + sequences)
        for start in range(0, n_Q, rows):
            queries = slice(start, start + rows)
            block = attend(Q[some, queries], K[some], V[some], _hidden(run, some, queries))
            if not result.size(-1):
                result = Q.new_empty(n_sequence, n_Q, block.size(-1))
            result[some, queries] = block
    return (
        array(result)
        if run.is_mha
        else merged(run, array(result.unflatten(0, run.fully_masked.shape[:2])))
    )


def _hidden(run: VerifiedRun, sequences: slice, queries: slice) -> torch.Tensor | None:
    """Return the module's mask for some sequences, `sequences·n_head n_Q n_K`: True hides a key."""
    import torch

    if run.mask is None:
        return None
    n_batch, n_head, _ = run.fully_masked.shape
    some = torch.arange(n_batch * n_head).view(n_batch, n_head)
    some = (some if run.is_mha else some.flatten())[sequences].flatten()
    mask = run.mask.cpu()
    mask = (
        mask[:, :, queries]
        if mask.size(2) > 1
        else mask.expand(-1, -1, run.fully_masked[0, 0, queries].size, -1)
    )
    mask = mask[some // n_head if len(mask) > 1 else 0, some % n_head if mask.size(1) > 1 else 0]
    mask = mask.expand(len(some), -1, -1)
    return ~mask if mask.dtype == torch.bool else mask.double()


def _module_inputs(run: VerifiedRun) -> list[torch.Tensor]:
    """Return the module's inputs Q, K and V as sequences of rows; for sdpa, one sequence per head."""
    if run.is_mha:
        return [run.rows(name) for name in "QKV"]
    Q, K, V = (run.entering(name) for name in run.multiplied)
    kv_heads = [head * run.n_kv_head // run.n_head for head in range(run.n_head)]
    return [Q.flatten(0, 1), *(x[:, kv_heads].flatten(0, 1) for x in (K, V))]


def _module_function(run: VerifiedRun) -> Callable[..., torch.Tensor]:
    """Build an `nn.MultiheadAttention` with the run's weights; return a function that calls it."""
    import torch
    from torch import nn

    n_head, n_kv_head = (run.n_head, run.n_kv_head) if run.is_mha else (1, 1)
    _, K, V = run.multiplied
    d_K, d_V = run.heads(K).size(-1), run.heads(V).size(-1)
    weights = _weights(run, d_K, d_V)
    d_in, d_out = weights["Q"][0].size(1), len(weights["O"][0])
    width = max(d_K, d_V, ceil(d_in / n_head), ceil(d_out / n_head))
    d_model = n_head * width

    def of_heads(name: str, d: int, n: int) -> tuple[torch.Tensor, torch.Tensor]:
        """Expand the weights and biases of `n` heads with `d` rows to n_head heads with `width` rows."""
        weight, bias = weights[name]
        both = torch.cat((weight, bias[:, None]), dim=1).unflatten(0, (n, d))
        wide = both.new_zeros(n_head, width, both.size(-1))
        for head in range(n_head):
            wide[head, :d] = both[head * n // n_head]
        wide = wide.flatten(0, 1)
        return wide[:, :-1], wide[:, -1]

    (W_Q, b_Q), (W_K, b_K) = of_heads("Q", d_K, n_head), of_heads("K", d_K, n_kv_head)
    W_V, b_V = of_heads("V", d_V, n_kv_head)
    weight, bias = weights["O"]
    scale = run.option("scale") * sqrt(width)
    W_O, b_O = weight.new_zeros(d_model, n_head, width), bias.new_zeros(d_model)
    W_O[:d_out, :, :d_V] = weight.unflatten(1, (n_head, d_V))
    b_O[:d_out] = bias

    # On the meta device, no weights are allocated or drawn.
    sizes = {"kdim": W_K.size(1), "vdim": W_V.size(1), "batch_first": True}
    mha = nn.MultiheadAttention(d_model, n_head, **sizes, device="meta", dtype=torch.float64).eval()
    three = {"q": nn.functional.pad(W_Q * scale, (0, d_model - d_in)), "k": W_K, "v": W_V}
    state = {f"{name}_proj_weight": weight for name, weight in three.items()}
    if mha.in_proj_weight is not None:  # the module joins the three if they are square
        state = {"in_proj_weight": torch.cat(list(three.values()))}
    state["in_proj_bias"] = torch.cat((b_Q * scale, b_K, b_V))
    state |= {"out_proj.weight": W_O.flatten(1), "out_proj.bias": b_O}
    mha.load_state_dict(state, assign=True)

    def attend(
        Q: torch.Tensor, K: torch.Tensor, V: torch.Tensor, mask: torch.Tensor | None
    ) -> torch.Tensor:
        Q = nn.functional.pad(Q, (0, d_model - d_in))
        result, _ = mha(Q, K, V, attn_mask=mask)
        return result[:, :, :d_out]

    return attend


def _weights(run: VerifiedRun, d_K: int, d_V: int) -> dict[str, tuple[torch.Tensor, torch.Tensor]]:
    """Return weights, `output × input`, and biases by name; for sdpa, identities and zeros."""
    import torch

    weights = {}
    for name, d in {"Q": d_K, "K": d_K, "V": d_V, "O": d_V}.items():
        weight, bias = torch.eye(d, dtype=torch.float64), torch.zeros(d)
        if run.is_mha:
            weight = run.weights[f"W_{name}.weight"].cpu()
            bias = run.weights.get(f"W_{name}.bias", torch.zeros(len(weight)))
        weights[name] = weight.double(), bias.cpu().double()
    return weights
