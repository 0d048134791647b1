"""Count the parameters of attention and of the rest, and the bytes that store them."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable
from typing import Any, NamedTuple

from attnscope.checkpoints.headers import Headers, TensorHeader
from attnscope.checkpoints.tensor_names import NO_ATTENTION
from attnscope.cost import tensor_parts as parts
from attnscope.cost.packed import stored_parameters, unknown_packing
from attnscope.cost.tensor_parts import place_of
from attnscope.results.weights_count import PartCount, WeightsCount

NAMES_OF_EXPERTS = ("num_experts", "num_local_experts", "n_routed_experts", "moe_num_experts")
NAMES_OF_CHOSEN = ("num_experts_per_tok", "moe_topk", "moe_k", "top_k_experts", "num_experts_per_token")


class _Size(NamedTuple):
    """Parameters, and the bytes that store them; None: not known."""

    n_parameter: int
    n_bytes: int | None

    def plus(self, other: _Size) -> _Size:
        unknown = self.n_bytes is None or other.n_bytes is None
        n_bytes = None if unknown else (self.n_bytes or 0) + (other.n_bytes or 0)
        return _Size(self.n_parameter + other.n_parameter, n_bytes)


NOTHING = _Size(0, 0)


def count_weights(headers: Headers, config: dict[str, Any] | None = None) -> WeightsCount:
    """Count the parameters and bytes of a checkpoint's parts, from its headers.

    Args:
        headers: of all files.
        config: its config.json; without one, draft layers may count as the model's own, and packed
            integers whose tensors do not say how they are packed count as one parameter each.
    """
    config = config or {}
    text = text_config(config)
    n_layer = text.get("num_hidden_layers") if headers.format == "safetensors" else None
    n_layer = n_layer if type(n_layer) is int and _is_decoder(headers.tensors) else None
    stored = stored_parameters(headers.tensors, config)
    attention: dict[str, _Size] = defaultdict(lambda: NOTHING)
    rest: dict[str, _Size] = defaultdict(lambda: NOTHING)
    dtypes: dict[str, _Size] = defaultdict(lambda: NOTHING)
    modules: dict[str, list[tuple[str, str, _Size]]] = defaultdict(list)
    unknown: dict[str, list[str]] = defaultdict(list)
    recurrent = config.get("model_type") in NO_ATTENTION
    for name, (tensor, how) in stored.items():
        place = place_of(_owner(name), n_layer)
        size = _Size(how.n_parameter, tensor.n_bytes)
        dtypes[how.kind] = dtypes[how.kind].plus(size)
        if not how.known:
            unknown[tensor.dtype].append(name)
        if place.in_attention and not recurrent:
            modules[place.module].append((place.part, name, size))
        else:
            part = parts.RECURRENCE if place.in_attention else place.part
            rest[part] = rest[part].plus(size)
    for module, found in modules.items():
        for part, size in _split(module, found):
            attention[part] = attention[part].plus(size)
    return WeightsCount(
        attention=_counts(attention, parts.ATTENTION),
        rest=_counts(rest, parts.REST),
        dtypes=_counts(dtypes, sorted(dtypes, key=lambda kind: (-(dtypes[kind].n_bytes or 0), kind))),
        source="headers",
        n_active=_active(attention, rest, text),
        uncertain=tuple(unknown_packing(names, dtype) for dtype, names in unknown.items()),
    )


def text_config(config: dict[str, Any]) -> dict[str, Any]:
    """Return the configuration of the language model in a config.json: a part, or the whole."""
    for name in ("text_config", "llm_config", "language_config", "thinker_config"):
        part = config.get(name)
        if isinstance(part, dict):
            return text_config(part)
    return config


def _counts(sizes: dict[str, _Size], order: Iterable[str]) -> tuple[PartCount, ...]:
    return tuple(PartCount(part, *sizes[part]) for part in order if part in sizes)


def _is_decoder(tensors: tuple[TensorHeader, ...]) -> bool:
    """Return whether all layers belong to one stack, so that the configuration counts them all."""
    return not any(".encoder." in each.name or each.name.startswith("encoder.") for each in tensors)


_SUFFIXES = {
    **dict.fromkeys(
        ("qweight", "qzeros", "scales", "g_idx", "SCB", "weight_format", "biases"), "weight"
    ),
    **dict.fromkeys(("weight_packed", "weight_scale", "weight_scale_inv", "weight_shape"), "weight"),
    **dict.fromkeys(("weight_scale_2", "weight_global_scale", "weight_zero_point"), "weight"),
    **dict.fromkeys(("input_scale", "input_global_scale", "activation_scale"), "weight"),
    **dict.fromkeys(("absmax", "quant_map", "nested_absmax", "nested_quant_map"), ""),
}


def _owner(name: str) -> str:
    """Return the name of the matrix that a tensor stores or describes, as if it were not quantised."""
    stem, _, last = name.rpartition(".")
    if last.startswith("bitsandbytes__"):
        return stem.removesuffix(".quant_state")
    if last in _SUFFIXES:
        return f"{stem}.{_SUFFIXES[last]}".rstrip(".")
    return name


def _split(module: str, found: list[tuple[str, str, _Size]]) -> list[tuple[str, _Size]]:
    """Return the parts of one attention module, with a fused matrix split into W_Q, W_K and W_V.

    W_O has as many rows as W_Q has columns: n_head · d_head, or in linear attention as W_V has. So the
    shares of a fused matrix follow from the size of W_O, however both are stored.

    Args:
        module: its name.
        found: part, name and size of each of its tensors.
    """
    sizes: dict[str, _Size] = defaultdict(lambda: NOTHING)
    names: dict[str, str] = {}
    for part, name, size in found:
        sizes[part] = sizes[part].plus(size)
        names[part] = names.get(part, name)
    if parts.FUSED not in sizes or parts.O not in sizes:
        return [*sizes.items()]
    fused, out = sizes[parts.FUSED], sizes[parts.O].n_parameter
    word = names[parts.FUSED].removeprefix(module).lower()
    n_out = 2 if "gqkv" in word or "qkvz" in word else 1
    other, left = divmod(fused.n_parameter - n_out * out, 2)
    if left or other <= 0:
        return [*sizes.items()]
    linear = "linear" in module
    shares = {parts.Q: other if linear else out, parts.K: other, parts.V: out if linear else other}
    if n_out == 2:
        shares[parts.GATES] = out
    del sizes[parts.FUSED]
    rest = fused.n_bytes
    for i, (part, share) in enumerate(shares.items()):
        n_bytes = None
        if fused.n_bytes is not None and rest is not None:
            last = i == len(shares) - 1
            n_bytes = rest if last else fused.n_bytes * share // fused.n_parameter
            rest -= n_bytes
        sizes[part] = sizes[part].plus(_Size(share, n_bytes))
    return [*sizes.items()]


def _active(attention: dict[str, _Size], rest: dict[str, _Size], config: dict[str, Any]) -> int | None:
    """Return the number of parameters that one token of text is computed with; None: not known."""
    idle = {parts.TOWERS, parts.DRAFT, parts.EXPERTS}
    if parts.OUTPUT in rest:
        idle.add(parts.EMBEDDING)  # else the embedding is the output, too
    active = sum(size.n_parameter for size in attention.values())
    active += sum(size.n_parameter for part, size in rest.items() if part not in idle)
    if parts.EXPERTS not in rest:
        return active
    n_expert = next((config[name] for name in NAMES_OF_EXPERTS if type(config.get(name)) is int), 0)
    chosen = next((config[name] for name in NAMES_OF_CHOSEN if type(config.get(name)) is int), 0)
    if not 0 < chosen <= n_expert:
        return None
    return active + rest[parts.EXPERTS].n_parameter * chosen // n_expert
