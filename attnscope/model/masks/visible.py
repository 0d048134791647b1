"""Which keys each query sees, according to what a kernel of attention receives.

Kernels express masks differently: as a tensor that is added, as booleans, as a `BlockMask`, or only by
flags such as `is_causal` and `sliding_window`. And each ignores what it has no use for: eager attention
never looks at `is_causal`, for example. So each kernel has its own function here.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any

from attnscope.model.run.attention_hook import KernelCall

if TYPE_CHECKING:
    import torch


@dataclass(frozen=True)
class MaskArguments:
    """What a kernel receives that decides which keys a query sees."""

    kernel: str
    #: n_batch, n_head, n_Q, n_K: the sizes of the attention.
    n_batch: int
    n_head: int
    n_Q: int  # noqa: N815 - the field's name
    n_K: int  # noqa: N815
    #: a tensor of 4 axes (boolean, or added to the scores); for flash kernels of 2 axes, `n_batch n_K`,
    #: True for real tokens; a `BlockMask`; or None.
    mask: Any = field(default=None, repr=False)
    is_causal: bool = False
    #: `sliding_window`: the number of keys that a query sees, itself included.
    window: int | None = None
    #: `1 n_Q`; flash kernels begin a sequence wherever its smallest number stands.
    position_ids: torch.Tensor | None = field(default=None, repr=False)
    #: added to the scores; broadcasts to `n_batch n_head n_Q n_K`.
    position_bias: torch.Tensor | None = field(default=None, repr=False)
    #: `cu_seq_lens_q` and `cu_seq_lens_k`: where sequences begin that share a row.
    lengths: tuple[torch.Tensor, torch.Tensor] | None = field(default=None, repr=False)
    device: Any = "cpu"


def arguments_of(call: KernelCall) -> MaskArguments:
    """Return the arguments of a call that decide which keys a query sees."""
    options = call.options
    n_batch, n_head, n_Q, _ = call.query.shape
    names = ("cu_seq_lens_q", "cu_seq_lens_k", "max_length_q", "max_length_k")
    is_packed = all(options.get(name) is not None for name in names)
    return MaskArguments(
        kernel=call.name,
        n_batch=n_batch,
        n_head=n_head,
        n_Q=n_Q,
        n_K=call.key.shape[-2],
        mask=call.mask,
        is_causal=call.is_causal,
        window=options.get("sliding_window"),
        position_ids=options.get("position_ids"),
        position_bias=options.get("position_bias"),
        lengths=(options[names[0]], options[names[1]]) if is_packed else None,
        device=call.query.device,
    )


def visible_keys(arguments: MaskArguments) -> torch.Tensor | None:
    """Return True where a query sees a key: `n_batch n_head n_Q n_K`, `n_head` being 1 if heads agree.

    A key whose score is lowered by 10,000 or more counts as hidden: its weight is exactly 0, unless the
    query sees no other key.

    Returns:
        None for a kernel whose arguments are not known here: `measured_keys` asks the kernel itself.

    Source: transformers 5.23, `integrations/{sdpa,flex,flash}_attention.py`,
        `modeling_flash_attention_utils.py` and the `eager_attention_forward` of its models.
    """
    rule = _rule_of(arguments.kernel)
    if rule is None:
        return None
    visible = rule(arguments)
    visible = visible.reshape((1,) * (4 - visible.dim()) + visible.shape)
    if bool((visible == visible[:, :1]).all()):
        visible = visible[:, :1]
    return visible.expand(arguments.n_batch, -1, arguments.n_Q, arguments.n_K)


def measured_keys(call: KernelCall) -> torch.Tensor:
    """Ask the kernel itself: return True where a query gives a key a weight: `n_batch n_head n_Q n_K`.

    With queries and keys of zeros, all scores are equal, so each query gives the same weight to every
    key that it sees. With the rows of the identity as values, the output of a query is its weights. The
    kernel is called as often as there are keys, divided by the width of a value, so that this works
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


def _rule_of(kernel: str) -> Callable[[MaskArguments], torch.Tensor] | None:
    """Return the function for a kernel."""
    if "flash" in kernel:
        return _flash
    return {"eager": _eager, "sdpa": _sdpa, "flex_attention": _flex}.get(kernel)


# Kernels with a mask for each pair.


def _eager(arguments: MaskArguments) -> torch.Tensor:
    """Apply the rule of eager attention: the mask is added, whatever it is; flags are ignored."""
    return ~_lowered(arguments, arguments.mask)


def _sdpa(arguments: MaskArguments) -> torch.Tensor:
    """Apply the rule of `F.scaled_dot_product_attention` as transformers calls it.

    Without a mask, `is_causal` aligns the first query with the first key; a single query sees all keys.
    """
    import torch

    mask, n_Q, n_K = arguments.mask, arguments.n_Q, arguments.n_K
    if mask is None and arguments.is_causal and n_Q > 1:
        causal = torch.ones(n_Q, n_K, dtype=torch.bool, device=arguments.device).tril()
        return causal & ~_lowered(arguments, None)
    if mask is not None and mask.dtype == torch.bool:
        return mask[..., : arguments.n_K] & ~_lowered(arguments, None)
    return ~_lowered(arguments, mask)


def _flex(arguments: MaskArguments) -> torch.Tensor:
    """Apply the rule of `flex_attention` as transformers calls it: a block mask, or an added one.

    Of an added mask, all heads use the first head's.
    """
    mask = arguments.mask
    if hasattr(mask, "mask_mod"):
        return _of_block_mask(mask, arguments) & ~_lowered(arguments, None)
    return ~_lowered(arguments, None if mask is None else mask[:, :1])


def _lowered(arguments: MaskArguments, mask: torch.Tensor | None) -> torch.Tensor:
    """Return True where what is added to a score hides the key."""
    import torch

    from attnscope.attention.masks import hidden

    added = torch.zeros(arguments.n_Q, arguments.n_K, device=arguments.device)
    for each in (arguments.position_bias, mask):
        if each is not None:
            added = added + each[..., : arguments.n_K].float().to(arguments.device)
    return hidden(added)


def _of_block_mask(mask: Any, arguments: MaskArguments) -> torch.Tensor:
    """Return the keys that a `BlockMask` lets each query see: `n_batch n_head n_Q n_K`.

    Its function decides within partial blocks. Full blocks are computed without it, and empty ones not
    at all, whatever it says.
    """
    from torch.nn.attention.flex_attention import create_mask

    n_batch, n_head = mask.shape[:2]
    sizes = (n_batch, n_head, arguments.n_Q, arguments.n_K)
    inside = create_mask(mask.mask_mod, *sizes, device=str(arguments.device))
    partial = _blocks(mask.kv_num_blocks, mask.kv_indices, mask.BLOCK_SIZE, arguments)
    if mask.full_kv_num_blocks is None:
        return inside & partial
    full = _blocks(mask.full_kv_num_blocks, mask.full_kv_indices, mask.BLOCK_SIZE, arguments)
    return full | (inside & partial)


def _blocks(
    counts: torch.Tensor, indices: torch.Tensor, block: tuple[int, int], arguments: MaskArguments
) -> torch.Tensor:
    """Return the pairs in the blocks that a `BlockMask` lists: `n_batch n_head n_Q n_K`.

    Args:
        counts: the number of blocks in each row of blocks, `n_batch n_head n_row`.
        indices: their columns, `n_batch n_head n_row n_column`; those beyond the count do not matter.
    """
    import torch

    listed = torch.arange(indices.shape[-1], device=indices.device) < counts[..., None]
    blocks = torch.zeros_like(listed).scatter(-1, indices.long(), listed)
    pairs = blocks.repeat_interleave(block[0], -2).repeat_interleave(block[1], -1)
    return pairs[..., : arguments.n_Q, : arguments.n_K]


# Flash kernels: real tokens without padding, a flag and a window.


def _flash(arguments: MaskArguments) -> torch.Tensor:
    """Apply the rule of flash attention as transformers calls it.

    Padding is removed first. Then each sequence's last query is at its last key, and it sees itself and
    `window - 1` keys before it (without `is_causal`, as many after it).
    """
    import torch

    n_batch, n_Q, n_K = arguments.n_batch, arguments.n_Q, arguments.n_K
    visible = torch.zeros(n_batch * n_Q, n_batch * n_K, dtype=torch.bool, device=arguments.device)
    for queries, keys in _sequences(arguments):
        visible[queries[:, None], keys] = _flash_sequence(arguments, len(queries), len(keys))
    visible = visible.view(n_batch, n_Q, n_batch, n_K)
    rows = torch.arange(n_batch, device=arguments.device)
    within = visible[rows, :, rows]  # [n_batch, n_Q, n_K]
    if within.sum() != visible.sum():
        raise ValueError("packed sequences span several rows")
    return within[:, None]


def _flash_sequence(arguments: MaskArguments, n_Q: int, n_K: int) -> torch.Tensor:
    """Return the keys that each query of one sequence sees: `n_Q n_K`."""
    import torch

    q = torch.arange(n_Q, device=arguments.device)[:, None] + n_K - n_Q
    k = torch.arange(n_K, device=arguments.device)
    visible = torch.ones(n_Q, n_K, dtype=torch.bool, device=arguments.device)
    if arguments.is_causal:
        visible &= k <= q
    if arguments.window is not None and arguments.n_K > arguments.window:
        visible &= (q - arguments.window < k) & (k < q + arguments.window)
    return visible


def _sequences(arguments: MaskArguments) -> Iterator[tuple[torch.Tensor, torch.Tensor]]:
    """Yield the queries and the keys of each sequence, as indices into all rows one after another."""
    import torch

    n_batch, n_Q, n_K = arguments.n_batch, arguments.n_Q, arguments.n_K
    queries = torch.arange(n_batch * n_Q, device=arguments.device).view(n_batch, n_Q)
    keys = torch.arange(n_batch * n_K, device=arguments.device).view(n_batch, n_K)
    if arguments.mask is not None:
        real = arguments.mask.bool()  # a static cache has more keys than the mask
        keys = keys[:, : real.shape[-1]]
        real_queries = torch.ones_like(queries, dtype=torch.bool) if n_Q == 1 else real[:, -n_Q:]
        for row in range(n_batch):
            yield queries[row, real_queries[row]], keys[row, real[row]]
        return
    starts = arguments.lengths or _starts_of(arguments.position_ids, n_batch)
    if starts is None:
        yield from zip(queries, keys, strict=True)
        return
    of_queries, of_keys = (each.tolist() for each in starts)
    ends = zip(of_queries, of_queries[1:], of_keys, of_keys[1:], strict=False)
    for first_query, last_query, first_key, last_key in ends:
        yield queries.flatten()[first_query:last_query], keys.flatten()[first_key:last_key]


def _starts_of(
    position_ids: torch.Tensor | None, n_batch: int
) -> tuple[torch.Tensor, torch.Tensor] | None:
    """Find where the sequences in a row begin, and its end, by position ids; None if unknown."""
    import torch

    if position_ids is None or n_batch != 1 or position_ids.shape[-1] == 1:
        return None
    positions = position_ids.flatten()
    n = len(positions)
    if torch.equal(positions - positions.min(), torch.arange(n, device=positions.device)):
        return None
    starts = (positions == positions.min()).nonzero().flatten()
    starts = torch.cat([starts, starts.new_tensor([n])])
    return starts, starts
