"""What one of several devices keeps that share the heads of every layer: tensor parallelism.

Each device has a share of the heads. Where there are more devices than heads of keys, several keep the
same head. Latents, and the keys of an indexer, are one head for all queries, so every device keeps them.
Source: `ModelConfig.get_num_kv_heads` in vLLM's config/model.py; SGLang and llama.cpp do the same.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from attnscope.base.errors import OptionError
from attnscope.model.card.anatomy import LayerAnatomy

WHOLE = frozenset({"latent", "sparse", "compressed", "compressed sparse", "shared", "none"})
"""The kinds of layers of which every device keeps all."""


def of_one_device(layers: Sequence[LayerAnatomy], n_device: int) -> tuple[LayerAnatomy, ...]:
    """Return layers whose caches are those of one device."""
    return tuple(_of_one_device(each, n_device) for each in layers)


def _of_one_device(layer: LayerAnatomy, n_device: int) -> LayerAnatomy:
    is_whole = layer.kind in WHOLE and (layer.kind != "sparse" or layer.d_K_latent is not None)
    if n_device == 1 or is_whole:
        return layer
    n_head, n_kv_head = layer.n_head, layer.n_kv_head
    if n_head is None or n_head % n_device:
        raise _undivided(f"{n_head or 'no'} heads", layer, n_device)
    if layer.kind == "linear":
        return _of_states(layer, n_device)
    if layer.kind not in ("full", "sliding", "chunked", "cross") or n_kv_head is None:
        raise OptionError(
            f"how layers of the kind {layer.kind!r} are shared by several devices is not known here.",
            hint="the card without --tensor-parallel",
        )
    if n_kv_head % n_device and n_device % n_kv_head:
        raise _undivided(f"{n_kv_head} heads of keys", layer, n_device)
    own = max(n_kv_head // n_device, 1)
    cache = layer.cache
    if layer.indexer is not None or cache.constant or cache.constant_float32:
        raise _undivided("what it keeps", layer, n_device)
    shared = replace(
        cache,
        per_token=cache.per_token * own // n_kv_head,
        per_source_token=cache.per_source_token * own // n_kv_head,
    )
    return replace(layer, cache=shared)


def _of_states(layer: LayerAnatomy, n_device: int) -> LayerAnatomy:
    cache = layer.cache
    if any(each % n_device for each in (cache.constant, cache.constant_float32, cache.newest)):
        raise _undivided("its states", layer, n_device)
    shared = replace(
        cache,
        constant=cache.constant // n_device,
        constant_float32=cache.constant_float32 // n_device,
        newest=cache.newest // n_device,
    )
    return replace(layer, cache=shared)


def _undivided(what: str, layer: LayerAnatomy, n_device: int) -> OptionError:
    return OptionError(
        f"{n_device} devices cannot share {what} of a layer of the kind {layer.kind!r}.",
        hint="--tensor-parallel 2, or another divisor",
    )
