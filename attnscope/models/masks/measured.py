"""Which keys each query sees, measured with the kernel itself.

With queries and keys of zeros, all scores are equal, so each query gives the same weight to every key
that it sees. With the rows of the identity as values, the output of a query is its weights.
"""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

from attnscope.models.attention_hook import KernelCall

if TYPE_CHECKING:
    import torch


def measured_keys(call: KernelCall) -> torch.Tensor:
    """Return True where a query gives a key a weight above 0: `n_batch n_head n_Q n_K`.

    The kernel is called as often as there are keys, divided by the width of a value, so that this works
    with kernels that allow only some widths. A query that sees no key may get the mean of all values,
    depending on the kernel: then it is True for all keys.

    Args:
        call: a call of a kernel. Its cache, if the kernel has one, must not be updated by the kernel.
    """
    import torch

    n_batch, n_head, n_Q, _ = call.query.shape
    n_K, d_V = call.value.shape[-2:]
    weights = call.value.new_zeros(n_batch, n_head, n_Q, n_K)
    query, key = torch.zeros_like(call.query), torch.zeros_like(call.key)
    for first in range(0, n_K, d_V):
        keys = torch.arange(first, min(first + d_V, n_K), device=call.value.device)
        value = torch.zeros_like(call.value)
        value[:, :, keys, keys - first] = 1
        output, _ = replace(call, query=query, key=key, value=value).compute()
        weights[..., keys] = output.transpose(1, 2)[..., : len(keys)]
    return weights > 0
