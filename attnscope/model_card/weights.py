"""Count the parameters of attention and of the rest, and the bytes that store them."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable
from typing import Any

from attnscope.checkpoints.config import text_part
from attnscope.checkpoints.headers import Headers, TensorHeader
from attnscope.model_card import tensor_parts as parts
from attnscope.model_card.checkpoint_tensors import find_modules, place_tensors, unknown_packing
from attnscope.model_card.result import PartCount, WeightsCount
from attnscope.model_card.tensor_parts import NOTHING, Size, active_parameters


def count_weights(
    headers: Headers, config: dict[str, Any] | None = None, *, source: str = "headers"
) -> WeightsCount:
    """Count the parameters and bytes of a checkpoint's parts, from its headers.

    Args:
        headers: of all files.
        config: its config.json; without one, draft layers may count as the model's own, and packed
            integers whose tensors do not say how they are packed count as one parameter each.
        source: what the headers are of, as for `WeightsCount`.
    """
    config = config or {}
    text = text_part(config)
    n_layer = text.get("num_hidden_layers") if headers.format == "safetensors" else None
    n_layer = n_layer if type(n_layer) is int and _is_decoder(headers.tensors) else None
    tensors = place_tensors(headers, config, n_layer)
    attention: dict[str, Size] = defaultdict(lambda: NOTHING)
    rest: dict[str, Size] = defaultdict(lambda: NOTHING)
    dtypes: dict[str, Size] = defaultdict(lambda: NOTHING)
    unknown: dict[str, list[str]] = defaultdict(list)
    recurrent = config.get("model_type") == "rwkv"  # its recurrence is called attention
    for name, tensor in tensors.items():
        stored, place = tensor.stored, tensor.place
        size = Size(stored.n_parameter, tensor.header.n_bytes)
        dtypes[stored.kind] = dtypes[stored.kind].plus(size)
        if not stored.known:
            unknown[tensor.header.dtype].append(name)
        if not place.in_attention or recurrent:
            part = parts.RECURRENCE if place.in_attention else place.part
            rest[part] = rest[part].plus(size)
    for module in [] if recurrent else find_modules(tensors):
        for part, size in module.sizes.items():
            attention[part] = attention[part].plus(size)
    return WeightsCount(
        attention=_counts(attention, parts.ATTENTION),
        rest=_counts(rest, parts.REST),
        dtypes=_counts(dtypes, sorted(dtypes, key=lambda kind: (-(dtypes[kind].n_bytes or 0), kind))),
        source=source,
        n_active=active_parameters(attention, rest, text),
        uncertain=tuple(unknown_packing(names, dtype) for dtype, names in unknown.items()),
    )


def _counts(sizes: dict[str, Size], order: Iterable[str]) -> tuple[PartCount, ...]:
    return tuple(PartCount(part, *sizes[part]) for part in order if part in sizes)


def _is_decoder(tensors: tuple[TensorHeader, ...]) -> bool:
    """Check whether all layers belong to one stack, so that the configuration counts them all."""
    return not any(".encoder." in each.name or each.name.startswith("encoder.") for each in tensors)
