"""What the tensors of a checkpoint say about each layer's attention, without its configuration.

W_Q has n_head · d_head columns, W_K n_kv_head · d_K, W_V n_kv_head · d_V. Columns follow from numbers of
parameters, so that they hold for packed, transposed and fused matrices, too.
"""

from __future__ import annotations

import re
from collections import Counter, defaultdict
from dataclasses import dataclass, replace
from typing import Any

from attnscope.model.card import tensor_parts as parts
from attnscope.model.card.checkpoint_tensors import (
    AttentionModule,
    ModuleTensor,
    find_modules,
    place_tensors,
)
from attnscope.model.files.headers import Headers

RECURRENT = re.compile(r"(?:A_log|dt_bias|[qkv]?_?conv1d|conv_1d|forget_gate|slope_rate|time_decay)\b")
"""Tensors that only a recurrence has: a decay, its step, a convolution before it."""
NORM_OF_HEADS = re.compile(r"(?:.*\.)?[qk]_?(?:layer)?_?norm(?:\.weight)?")
"""Norms of queries and keys. Their width is that of a head, or of all heads."""
PER_HEAD = re.compile(r"(?:.*\.)?(?:attn_)?(?:sinks|sinks\.weight|attention_sink_bias|softmax_offset)")
"""Vectors with a number for each query head."""
LATENT = re.compile(r"(?:.*\.)?(?:attn_)?kv_a(?:_proj_with)?_mqa(?:\.q?weight(?:_packed)?)?")
"""The projection to the latents of keys and values, with the part that is rotated."""
INDEXER_KEYS = re.compile(r"(?:.*\.)?indexer\.(?:wk|k_proj|attn_k)(?:\.q?weight(?:_packed)?)?")
"""The projection to the keys of an indexer, which has one head of them."""
OF_EXPERTS = re.compile(r"\.experts\.|_exps\.")
"""Tensors that say nothing about attention; there may be 100,000 of them."""
CROSS = re.compile(r"cross|encoder_attn|encdec|inter_", re.IGNORECASE)


@dataclass(frozen=True)
class ObservedLayer:
    """What the tensors of a layer's attention say. None: they do not say it."""

    module: str
    #: `n_Q`, `n_K`, `n_V`: the columns of W_Q, W_K, W_V, summed over heads.
    n_Q: int | None = None  # noqa: N815 - the field's names
    n_K: int | None = None  # noqa: N815
    n_V: int | None = None  # noqa: N815
    #: The rows of W_O, summed over heads.
    n_O: int | None = None  # noqa: N815
    latent: int | None = None  #: the numbers that latent attention keeps for a token
    indexer: int | None = None  #: the numbers that an indexer keeps for a token beside
    d_head: int | None = None  #: the width of a head's queries and keys
    n_head: int | None = None
    recurrent: bool = False
    extras: tuple[str, ...] = ()  #: what is computed beside


@dataclass(frozen=True)
class ObservedModel:
    """What the tensors of a checkpoint say about its attention."""

    d_feat: int | None  #: the width of the model; None: the tensors do not say it
    n_layer: int  #: one more than the largest number of a layer
    layers: dict[int, ObservedLayer]  #: the attention of layers that have it, by number
    states: frozenset[int]  #: the layers that have a recurrence, or nothing but that
    stacks: tuple[str, ...]  #: the prefixes of all stacks of layers with attention to their own tokens


def observe(headers: Headers, config: dict[str, Any] | None = None) -> ObservedModel:
    """Read what the tensors of a checkpoint say about its attention.

    Args:
        config: its config.json, used only for how integers are packed.
    """
    beside = tuple(each for each in headers.tensors if not OF_EXPERTS.search(each.name))
    tensors = place_tensors(replace(headers, tensors=beside), config or {})
    stacks: dict[str, list[AttentionModule]] = defaultdict(list)
    for module in find_modules(tensors):
        prefix = _prefix(module.name)
        if prefix is not None and not CROSS.search(module.name.removeprefix(prefix)):
            stacks[prefix].append(module)

    def rank(prefix: str) -> tuple[bool, bool, int]:  # the stack that reads or writes text comes first
        is_text = re.search("language_model|text|llm|decoder", prefix) is not None
        return is_text, "encoder" not in prefix, len(stacks[prefix])

    prefix = max(stacks, key=rank, default="")
    if not prefix:  # a model without attention
        prefixes = Counter(_prefix(name) for name in tensors)
        del prefixes[None]
        prefix = max(prefixes, key=lambda each: prefixes[each], default="") or ""
    d_feat = _width(tensors, prefix)
    found: dict[int, list[AttentionModule]] = defaultdict(list)
    for module in stacks.get(prefix, []):
        if module.layer is not None:
            found[module.layer].append(module)
    numbers = [
        each.place.layer
        for name, each in tensors.items()
        if name.startswith(prefix) and each.place.layer is not None and each.place.part != parts.DRAFT
    ]
    states = {
        each.place.layer
        for name, each in tensors.items()
        if name.startswith(prefix) and each.place.part == parts.RECURRENCE
    }
    layers = {
        number: _layer(modules[0], d_feat) for number, modules in found.items() if len(modules) == 1
    }
    return ObservedModel(
        d_feat,
        max(numbers, default=-1) + 1,
        layers,
        frozenset(each for each in states if each is not None),
        tuple(sorted(stacks)),
    )


def _prefix(name: str) -> str | None:
    """Return the part of a name before the number of its layer; None if it has no number."""
    found = re.match(r"(.*?(?:^|\.))\d+(?:\.|$)", name)
    return found[1] if found else None


def _width(tensors: dict[str, ModuleTensor], prefix: str) -> int | None:
    """Return the width of the model: of the norms in its layers, or where these have no weights, of the
    embedding.
    """
    widths: Counter[int] = Counter()
    for name, tensor in tensors.items():
        in_layer = tensor.place.layer is not None and name.startswith(prefix)
        is_norm = "norm" in name.lower() or re.search(r"\.ln_?\d?\.", name) is not None
        if in_layer and is_norm and not tensor.place.in_attention and len(tensor.header.shape) == 1:
            widths[tensor.header.shape[0]] += 1
    if widths:
        return max(widths, key=lambda width: widths[width])
    of_embedding = (
        each.header.shape[-1]
        for each in tensors.values()
        if each.place.part == parts.EMBEDDING and len(each.header.shape) == 2
    )
    return next(of_embedding, None)


def _layer(module: AttentionModule, d_feat: int | None) -> ObservedLayer:
    """Read what the tensors of an attention module say."""
    names = module.tensors
    sizes = {part: _columns(module, part, d_feat) for part in (parts.Q, parts.K, parts.V, parts.O)}
    n_K = sizes[parts.K]
    d_head = _d_head(module, n_K)
    n_head = next(
        (
            each.header.shape[0]
            for name, each in names.items()
            if PER_HEAD.fullmatch(name) and len(each.header.shape) == 1
        ),
        None,
    )
    n_Q = sizes[parts.Q]
    if d_head is None and n_head and n_Q and n_Q % n_head == 0:
        d_head = n_Q // n_head
    extras = {
        "q/k norm": any(NORM_OF_HEADS.fullmatch(name) for name in names),
        "sinks": n_head is not None,
        "biases": parts.BIASES in module.sizes,
        "indexer": parts.INDEXER in module.sizes,
    }
    return ObservedLayer(
        module.name,
        n_Q,
        n_K,
        sizes[parts.V],
        sizes[parts.O],
        latent=_kept(module, LATENT, d_feat),
        indexer=_kept(module, INDEXER_KEYS, d_feat),
        d_head=d_head,
        n_head=n_head,
        recurrent=any(RECURRENT.match(name) for name in names),
        extras=tuple(extra for extra, there in extras.items() if there),
    )


def _columns(module: AttentionModule, part: str, d_feat: int | None) -> int | None:
    """Count the columns of a matrix whose other axis is the width of the model."""
    if part not in module.sizes or not d_feat:
        return None
    columns, left = divmod(module.sizes[part].n_parameter, d_feat)
    return None if left else columns


def _d_head(module: AttentionModule, n_K: int | None) -> int | None:
    """Return the width of a head by the norms of queries and keys; None if they span all heads."""
    widths = {
        each.header.shape[0]
        for name, each in module.tensors.items()
        if NORM_OF_HEADS.fullmatch(name) and len(each.header.shape) == 1
    }
    width = next(iter(widths)) if len(widths) == 1 else None
    return width if width and n_K and n_K % width == 0 and width < n_K else None


def _kept(module: AttentionModule, form: re.Pattern[str], d_feat: int | None) -> int | None:
    """Return the columns of a projection from the width of the model, found by its name."""
    for name, each in module.tensors.items():
        if d_feat and each.stored.n_parameter and form.fullmatch(name):
            columns, left = divmod(each.stored.n_parameter, d_feat)
            return None if left else columns
    return None
