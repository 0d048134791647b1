"""The FLOPs of attention and of the rest, the bytes they move, and the sizes of attention maps.

Conventions: a multiply and an add are two FLOPs. Only products count: no softmax, norm, activation or
other elementwise step. Attention is causal and counts the keys that queries see: with a window,
Σ min(i + 1, window). Weights count two FLOPs for each active parameter and token, those of logits, too.
"""

from __future__ import annotations

from bisect import bisect_right
from collections import Counter
from dataclasses import dataclass

from attnscope.model.card.anatomy import LayerAnatomy, ModelAnatomy
from attnscope.model.card.result import Flops, WeightsCount, Work
from attnscope.model.card.tensor_parts import EMBEDDING, EXPERTS, OUTPUT

BLOCK = 128
"""The queries of a block of attention weights."""

RECURRENT = frozenset(("linear", "state space", "convolution"))
"""The kinds of layers that keep a state."""

MAX_CONTEXT = 2**50
"""The longest context that is looked at for the length from which attention dominates."""


@dataclass(frozen=True)
class Device:
    """What runs the model."""

    flops: int  #: the FLOPs of a second, in the dtype of the weights
    bandwidth: int  #: the bytes of its memory that it reads in a second


def work_of(
    anatomy: ModelAnatomy,
    n_tokens: int,
    batch: int,
    cache_bytes: int,
    itemsize: int,
    *,
    n_source: int = 0,
    weights: WeightsCount | None = None,
    device: Device | None = None,
) -> Work:
    """Return the work of a model at a context.

    Args:
        cache_bytes: what all sequences keep at the context.
        itemsize: the bytes of an attention weight.
    """
    layers = (*anatomy.layers, *anatomy.cross)
    is_encoder = keeps_nothing(anatomy)
    notices = _unknown_layers(layers)
    alike = Counter(layers)

    def of_token(context: int) -> int:
        return sum(token_flops(each, context, n_source) * count for each, count in alike.items())

    if notices:
        prefill = token = None
    else:
        prefill = sum(prefill_flops(each, n_tokens, n_source, is_encoder) for each in layers)
        token = of_token(n_tokens)
    rest = None if anatomy.cross or weights is None else _rest(weights, is_encoder)
    if anatomy.cross and weights is not None:
        notices.append("FLOPs of the weights are not known: some read only the encoder's tokens")
    elif weights is not None and rest is None:
        notices.append("FLOPs of the weights are not known: nothing says how many experts a token runs")
    step = None if is_encoder else Flops(_times(token, batch), _times(rest, batch))
    moved = None if anatomy.cross or is_encoder or weights is None else _moved(weights, batch)
    moved = None if moved is None else moved + cache_bytes
    limit, seconds = None, None  # Williams et al., 2009
    if step is not None and step.total is not None and moved is not None and device is not None:
        compute, memory = step.total / device.flops, moved / device.bandwidth
        limit, seconds = ("bandwidth", memory) if memory >= compute else ("compute", compute)
    rows = _map_rows(layers, n_tokens, n_source)
    from_length = None
    if not notices and rest is not None and not is_encoder:
        first = 1 + bisect_right(range(1, MAX_CONTEXT + 1), rest, key=of_token)
        from_length = first if first <= MAX_CONTEXT else None
    return Work(
        prefill=Flops(_times(prefill, batch), _times(rest, batch * n_tokens)),
        token=step,
        dominates_from=from_length,
        bytes_moved=moved,
        limit=limit,
        seconds=seconds,
        maps_bytes=_times(None if rows is None else sum(rows), n_tokens * batch * itemsize),
        block_bytes=_times(None if rows is None else max(rows), min(BLOCK, n_tokens) * batch * itemsize),
        block=min(BLOCK, n_tokens),
        notices=notices,
    )


def keeps_nothing(anatomy: ModelAnatomy) -> bool:
    """Check whether a model is an encoder: it attends, but keeps nothing for later tokens."""
    layers = (*anatomy.layers, *anatomy.cross)
    return all(each.cache.numbers(1, 1) == 0 for each in layers) and any(each.n_head for each in layers)


def seen_pairs(kind: str, window: int | None, n_tokens: int) -> int:
    """Count the keys that all queries of a causal sequence see together.

    >>> seen_pairs("full", None, 4), seen_pairs("sliding", 2, 4), seen_pairs("chunked", 3, 4)
    (10, 7, 7)

    Args:
        kind: `chunked`, or another.
        window: the most keys of a query, or the length of a chunk; None: all.
    """
    if window is None or n_tokens <= window:
        return n_tokens * (n_tokens + 1) // 2
    one = window * (window + 1) // 2
    if kind == "chunked":
        n_chunk, more = divmod(n_tokens, window)
        return n_chunk * one + more * (more + 1) // 2
    return one + (n_tokens - window) * window


def prefill_flops(layer: LayerAnatomy, n_tokens: int, n_source: int, is_encoder: bool = False) -> int:
    """Return the FLOPs of a layer's attention that reads a sequence at once.

    Latents are expanded to each head's keys and values, as engines do for many queries: the
    compute-friendly way of vLLM's `v1/attention/backends/mla/common.py`. If an indexer chooses keys,
    they are not.

    Args:
        is_encoder: whether each query sees all tokens.
    """
    if layer.kind == "cross":
        return n_tokens * token_flops(layer, n_tokens, n_source)
    multiply_adds = n_tokens * (layer.recurrence or 0)
    if layer.indexer is not None:
        multiply_adds += seen_pairs("full", None, n_tokens) * _index(layer)
        chosen = seen_pairs("sliding", _most_keys(layer), n_tokens)
        return 2 * (multiply_adds + chosen * _absorbed(layer))
    pairs = n_tokens**2 if is_encoder else seen_pairs(_plain(layer), layer.window, n_tokens)
    return 2 * (multiply_adds + pairs * _expanded(layer))


def token_flops(layer: LayerAnatomy, n_tokens: int, n_source: int) -> int:
    """Return the FLOPs of a layer's attention for one query that sees the context, itself included.

    A query of a chunked layer sees a whole chunk, if the context is as long. Latents are not expanded:
    DeepSeek-V2 (arXiv:2405.04434), section 2.1.2; other arguments as for `prefill_flops`.
    """
    if layer.kind == "cross":
        return 2 * n_source * _expanded(layer)
    multiply_adds = (layer.recurrence or 0) + n_tokens * _index(layer)
    most = _most_keys(layer)
    seen = n_tokens if most is None else min(n_tokens, most)
    return 2 * (multiply_adds + seen * _absorbed(layer))


def _plain(layer: LayerAnatomy) -> str:
    return layer.kind.split(" + ", 1)[0]


def _most_keys(layer: LayerAnatomy) -> int | None:
    return layer.window if layer.indexer is None else layer.indexer.n_chosen


def _index(layer: LayerAnatomy) -> int:
    """Return the multiply-adds of a query and a key of the indexer."""
    return 0 if layer.indexer is None else layer.indexer.n_head * layer.indexer.d_head


def _expanded(layer: LayerAnatomy) -> int:
    """Return the multiply-adds of a query and a key of all heads: d_K for scores, d_V for values."""
    return (layer.n_head or 0) * ((layer.d_K or 0) + (layer.d_V or 0))


def _absorbed(layer: LayerAnatomy) -> int:
    """Return the same with latents that stand for keys and values, if the layer has them."""
    if layer.d_K_latent is None or layer.d_V_latent is None:
        return _expanded(layer)
    return (layer.n_head or 0) * (layer.d_K_latent + layer.d_V_latent)


def _map_rows(layers: tuple[LayerAnatomy, ...], n_tokens: int, n_source: int) -> list[int] | None:
    """Count the numbers of a query's attention in each layer, all heads; None: not known."""
    attending = [each for each in layers if _attends(each)]
    if any(each.n_head is None or each.cache.compressed for each in attending):
        return None
    keys = [n_source if each.kind == "cross" else n_tokens for each in attending]
    return [(each.n_head or 0) * n_key for each, n_key in zip(attending, keys, strict=True)] or [0]


def _attends(layer: LayerAnatomy) -> bool:
    return _plain(layer) not in (*RECURRENT, "none")


def _unknown_layers(layers: tuple[LayerAnatomy, ...]) -> list[str]:
    """Return a sentence for each kind of layer whose FLOPs are not known."""
    notices = []
    if any(_attends(each) and None in (each.n_head, each.d_K, each.d_V) for each in layers):
        notices.append(
            "FLOPs of attention are not known: nothing says how many heads of what width it has"
        )
    if any(each.kind == "sparse" and each.indexer is None for each in layers):
        notices.append("FLOPs of attention are not known: nothing says how many keys an indexer chooses")
    if any(each.cache.compressed for each in layers):
        notices.append("FLOPs of attention are not known: those of its compressed layers are not")
    if any(each.recurrence is None and RECURRENT & {*each.kind.split(" + ")} for each in layers):
        notices.append("FLOPs of attention are not known: those of its recurrent layers are not")
    return notices


def _rest(weights: WeightsCount, is_encoder: bool) -> int | None:
    """Return the FLOPs of all weights for one token; None: not known."""
    if weights.n_active is None:
        return None
    parts = {part.name: part.n_parameter for part in weights.rest}
    unused = parts.get(EMBEDDING, 0) if is_encoder and OUTPUT not in parts else 0
    return 2 * (weights.n_active - unused)


def _moved(weights: WeightsCount, batch: int) -> int | None:
    """Return the bytes of the weights that one more token of each sequence reads; None: not known.

    Each sequence chooses experts of its own, at most all of them.
    """
    idle = {"towers", "draft layers", EXPERTS}
    parts = {part.name: part for part in weights.rest}
    if OUTPUT in parts:
        idle.add(EMBEDDING)
    always = [*weights.attention, *(part for name, part in parts.items() if name not in idle)]
    if weights.n_active is None or any(part.n_bytes is None for part in always):
        return None
    n_bytes = sum(part.n_bytes or 0 for part in always)
    experts = parts.get(EXPERTS)
    if experts is None or not experts.n_parameter:
        return n_bytes
    if experts.n_bytes is None:
        return None
    chosen = (weights.n_active - sum(part.n_parameter for part in always)) * batch
    return n_bytes + experts.n_bytes * min(chosen, experts.n_parameter) // experts.n_parameter


def _times(count: int | None, factor: int) -> int | None:
    return None if count is None else count * factor
