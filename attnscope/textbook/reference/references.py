"""PyTorch's own attention, given what a run was given: two functions that attnscope did not write."""

from __future__ import annotations

from collections.abc import Callable
from math import sqrt
from typing import TYPE_CHECKING

from attnscope.textbook.reference.naive import merged
from attnscope.textbook.reference.run import Run, array

if TYPE_CHECKING:
    import numpy as np
    import torch


SCORES = 2**20
"""How many scores a reference computes at a time, or all of a few queries."""


def why_not_either(run: Run) -> str | None:
    """What neither of the two has a way to say, and why; None: there is no such thing."""
    if run.option("softcap") is not None:
        return "a soft cap: it has none"
    if run.dropout:
        return "this dropout: it draws its own"
    return None


def why_not_fused(run: Run) -> str | None:
    """What `F.scaled_dot_product_attention` has no way to say; None: it can say all of it."""
    if run.mask is not None and not all(
        run.entering(name).isfinite().all() for name in run.multiplied[:2]
    ):
        return "NaN or infinity behind a mask: it adds the mask to the scores, and they stay"
    return why_not_either(run)


def sdpa(run: Run) -> np.ndarray:
    """The weighted values by `F.scaled_dot_product_attention`, in the run's dtype and on its device.

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
        of_some = F.scaled_dot_product_attention(Q[:, :, some], K, V, attn_mask=mask, **options)
        results.append(of_some)
    return array(torch.cat(results, dim=2))


def why_not_module(run: Run) -> str | None:
    """What `nn.MultiheadAttention` has no way to say, and why; None: it can say all of it."""
    if run.is_mha and run.option("rope_theta") is not None:
        return "rotary positions: it projects Q and K by itself, and does not turn them"
    if run.is_mha and "K_past" in run:
        return "a past: it projects all of its keys by itself"
    if not all(tensor.isfinite().all() for tensor in _given_to_module(run)):
        return "NaN or infinity in its inputs: its projections spread them"
    return why_not_either(run)


def module(run: Run) -> np.ndarray:
    """The end result by `nn.MultiheadAttention`, with weights set so that it computes the same.

    It is computed in float64, on the CPU: a module's rounding would only blur the comparison.
    For sdpa its projections are identities, and each head is a sequence of its own. Its scale is
    1/√width and cannot be chosen, so what it should be is multiplied into W_Q; its heads of K and V
    are as many as those of Q, so the heads of a group get the same weights; its keys are as wide as
    its values, so the narrower ones are filled up with zeros.

    Returns:
        `n_batch n_head n_Q d_V`, or `n_batch n_Q …` where heads are merged; a query that sees no
        key gets NaN.
    """
    attend = _built(run)
    Q, K, V = (tensor.cpu().double() for tensor in _given_to_module(run))
    n_head = run.n_head if run.is_mha else 1
    n_sequence, n_Q = Q.shape[:2]
    together = n_head * K.size(1)  # the scores of a query
    rows = min(n_Q, max(SCORES // together, K.size(2)))  # it projects all keys anew for each block
    sequences = max(1, SCORES // (together * n_Q)) if rows == n_Q else 1
    result = Q.new_empty(n_sequence, n_Q, 0)
    for first in range(0, n_sequence, sequences):
        some = slice(first, first + sequences)
        for start in range(0, n_Q, rows):
            queries = slice(start, start + rows)
            of_some = attend(Q[some, queries], K[some], V[some], _hidden(run, some, queries))
            if not result.size(-1):
                result = Q.new_empty(n_sequence, n_Q, of_some.size(-1))
            result[some, queries] = of_some
    return array(result) if run.is_mha else merged(run, array(result.unflatten(0, run.blind.shape[:2])))


def _hidden(run: Run, sequences: slice, queries: slice) -> torch.Tensor | None:
    """The module's mask for some of its sequences, `sequences·n_head n_Q n_K`: True hides a key."""
    import torch

    if run.mask is None:
        return None
    n_batch, n_head, _ = run.blind.shape
    some = torch.arange(n_batch * n_head).view(n_batch, n_head)
    some = (some if run.is_mha else some.flatten())[sequences].flatten()
    mask = run.mask.cpu()
    mask = (
        mask[:, :, queries]
        if mask.size(2) > 1
        else mask.expand(-1, -1, run.blind[0, 0, queries].size, -1)
    )
    mask = mask[some // n_head if len(mask) > 1 else 0, some % n_head if mask.size(1) > 1 else 0]
    mask = mask.expand(len(some), -1, -1)
    return ~mask if mask.dtype == torch.bool else mask.double()


def _given_to_module(run: Run) -> list[torch.Tensor]:
    """The module's Q, K and V, as sequences of rows: for sdpa, one of each head."""
    if run.is_mha:
        return [run.rows(name) for name in "QKV"]
    Q, K, V = (run.entering(name) for name in run.multiplied)
    of_group = [head * run.n_kv_head // run.n_head for head in range(run.n_head)]
    return [Q.flatten(0, 1), *(x[:, of_group].flatten(0, 1) for x in (K, V))]


def _built(run: Run) -> Callable[..., torch.Tensor]:
    """An `nn.MultiheadAttention` with its weights set, as a function of sequences and their masks."""
    import torch
    from torch import nn

    n_head, n_kv_head = (run.n_head, run.n_kv_head) if run.is_mha else (1, 1)
    _, K, V = run.multiplied
    d_K, d_V = run.heads(K).size(-1), run.heads(V).size(-1)
    width = max(d_K, d_V)
    d_model = n_head * width
    weights = _weights(run, d_K, d_V)

    def of_heads(name: str, d: int, n: int) -> tuple[torch.Tensor, torch.Tensor]:
        """Weights and biases of `n` heads of `d` rows, as those of n_head heads of `width` rows."""
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
    d_in, d_out, scale = W_Q.size(1), len(weight), run.option("scale") * sqrt(width)
    W_O, b_O = weight.new_zeros(d_model, n_head, width), bias.new_zeros(d_model)
    W_O[:d_out, :, :d_V] = weight.unflatten(1, (n_head, d_V))
    b_O[:d_out] = bias

    # On meta nothing is drawn and nothing allocated.
    sizes = {"kdim": W_K.size(1), "vdim": W_V.size(1), "batch_first": True}
    made = nn.MultiheadAttention(d_model, n_head, **sizes, device="meta", dtype=torch.float64).eval()
    three = {"q": nn.functional.pad(W_Q * scale, (0, d_model - d_in)), "k": W_K, "v": W_V}
    state = {f"{name}_proj_weight": weight for name, weight in three.items()}
    if made.in_proj_weight is not None:  # it has one for all three, where they are square
        state = {"in_proj_weight": torch.cat(list(three.values()))}
    state["in_proj_bias"] = torch.cat((b_Q * scale, b_K, b_V))
    state |= {"out_proj.weight": W_O.flatten(1), "out_proj.bias": b_O}
    made.load_state_dict(state, assign=True)

    def attend(
        Q: torch.Tensor, K: torch.Tensor, V: torch.Tensor, mask: torch.Tensor | None
    ) -> torch.Tensor:
        Q = nn.functional.pad(Q, (0, d_model - d_in))
        result, _ = made(Q, K, V, attn_mask=mask)
        return result[:, :, :d_out]

    return attend


def _weights(run: Run, d_K: int, d_V: int) -> dict[str, tuple[torch.Tensor, torch.Tensor]]:
    """Weights, `output × input`, and biases by name: the run's, or one head's identities and zeros."""
    import torch

    found = {}
    for name, d in {"Q": d_K, "K": d_K, "V": d_V, "O": d_V}.items():
        weight, bias = torch.eye(d, dtype=torch.float64), torch.zeros(d)
        if run.is_mha:
            weight = run.weights[f"W_{name}.weight"].cpu()
            bias = run.weights.get(f"W_{name}.bias", torch.zeros(len(weight)))
        found[name] = weight.double(), bias.cpu().double()
    return found
