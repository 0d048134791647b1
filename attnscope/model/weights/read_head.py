"""Read one head's slices of a checkpoint's attention weights."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from attnscope.base.arrays import numbers
from attnscope.document.stats import stats_of
from attnscope.model.files.heads import open_heads
from attnscope.model.files.indices import check_range
from attnscope.model.files.loaded import find_model
from attnscope.model.files.result import HeadWeights


def read_head(
    model: Any = None,
    *,
    layer: int | None = None,
    head: int = 0,
    stack: str | None = None,
) -> HeadWeights:
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
        layer: counted from 0; None: the first layer with attention.
        head: a query head, counted from 0.
        stack: the stack of layers: `encoder`, `decoder` or `cross`, `text` or `vision`; None: the first.

    Returns:
        The eight slices (fewer without biases) with their statistics and arrays. W_Q, W_K and W_V are
        `d_head d_feat`, W_O is `d_feat d_head`, b_Q, b_K and b_V are `d_head`, b_O is `d_feat`.
        In cross-attention, the input of W_K and W_V is as wide as the other stack; in MobileBERT, the
        input of W_V is the one before the bottleneck. Slices of latent attention (DeepSeek) have the
        names of its paper (`attnscope.model.files.latent`).

    Raises:
        ModelError: there is no such model, stack, layer or head, or its files cannot be read.
    """
    heads = open_heads(find_model(model), stack)
    layer = min(heads.stack.numbers) if layer is None else layer
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
