"""The tensors of a checkpoint by its headers: how many parameters each stores, and attention's modules.

Quantised checkpoints store several parameters in one integer, and scales, zero points and tables
beside them.

- AWQ, GPTQ: `qweight` of 32-bit integers; `scales` have a column for each output, `qzeros` as many
  numbers, packed as the weights are. So `bits = 32 · columns(qzeros) / columns(scales)`. GPTQ's `g_idx`
  is a number for each input. (https://github.com/ModelCloud/GPTQModel, `BaseQuantLinear`)
- bitsandbytes: 4 bits: `weight` of bytes, each for two parameters, with `weight.absmax` and so on
  (`QuantState.as_dict`); 8 bits: `weight` of int8 with `SCB`.
- FP8: `weight` with `weight_scale` or `weight_scale_inv`.
- compressed-tensors, NVFP4: `weight_packed`, or `weight` of bytes, with scales in FP8.
- MXFP4 of gpt-oss: `…_blocks` of bytes, each for two parameters, and `…_scales`.
- MLX: `weight` of 32-bit integers with `scales` and `biases`.
- BitNet: `weight` of bytes, each for four parameters.
"""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Iterable
from dataclasses import dataclass
from math import prod
from typing import Any, NamedTuple

from attnscope.base.text import printable, shortened
from attnscope.model.card import tensor_parts as parts
from attnscope.model.card.result import PartCount, WeightsCount
from attnscope.model.card.tensor_parts import NOTHING, ModelPart, Size, active_parameters, place_of
from attnscope.model.files.config import text_part
from attnscope.model.files.headers import Headers
from attnscope.model.files.ranges import TensorHeader


class StoredTensor(NamedTuple):
    """What a tensor stores."""

    n_parameter: int  #: the number of parameters; 0 for scales, tables and buffers
    kind: str  #: how they are stored: the dtype, or such as `4 bits in I32`
    known: bool = True  #: whether the number is known; if not, it is the number of elements


class ModuleTensor(NamedTuple):
    """A tensor, what it stores, and what it is a part of."""

    header: TensorHeader
    stored: StoredTensor
    place: ModelPart


@dataclass(frozen=True)
class AttentionModule:
    """An attention module of a checkpoint."""

    name: str  #: such as `model.layers.0.self_attn`
    layer: int | None  #: the number of its layer; None if it belongs to none
    #: The sizes of its parts, with a fused matrix split into W_Q, W_K and W_V if its shares follow from
    #: W_O.
    sizes: dict[str, Size]
    tensors: dict[str, ModuleTensor]  #: its tensors by name, without the module's


def count_weights(
    headers: Headers, config: dict[str, Any] | None = None, *, source: str = "headers"
) -> WeightsCount:
    """Count the parameters and bytes of a checkpoint's parts, from its headers.

    Args:
        config: its config.json; without one, draft layers may count as the model's own, and packed
            integers whose tensors do not say how they are packed count as one parameter each.
    """
    config = config or {}
    text = text_part(config)
    n_layer = text.get("num_hidden_layers") if headers.format == "safetensors" else None
    # Whether all layers belong to one stack, so that the configuration counts them all
    is_decoder = not any(re.search(r"(^|\.)encoder\.", each.name) for each in headers.tensors)
    n_layer = n_layer if type(n_layer) is int and is_decoder else None
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


def place_tensors(
    headers: Headers, config: dict[str, Any], n_layer: int | None = None
) -> dict[str, ModuleTensor]:
    """Return the tensors of a checkpoint by name, with what they store and what they are a part of.

    Args:
        config: its config.json, which may say how integers are packed.
        n_layer: the number of layers by the configuration; those after them are draft layers.
    """
    by_name = {tensor.name: tensor for tensor in headers.tensors}
    return {
        name: ModuleTensor(tensor, _stored(tensor, by_name, config), place_of(_owner_of(name), n_layer))
        for name, tensor in by_name.items()
    }


def find_modules(tensors: dict[str, ModuleTensor]) -> list[AttentionModule]:
    """Return the attention modules among the tensors of a checkpoint."""
    found: dict[str, list[tuple[str, str, Size]]] = defaultdict(list)
    layers: dict[str, int | None] = {}
    for name, tensor in tensors.items():
        place = tensor.place
        if place.in_attention:
            size = Size(tensor.stored.n_parameter, tensor.header.n_bytes)
            found[place.module].append((place.part, name, size))
            layers[place.module] = place.layer
    return [
        AttentionModule(
            module,
            layers[module],
            dict(_split(module, sizes)),
            {name.removeprefix(f"{module}."): tensors[name] for _, name, _ in sizes},
        )
        for module, sizes in found.items()
    ]


_SUFFIXES = dict.fromkeys(
    """qweight qzeros scales g_idx SCB weight_format biases weight_packed weight_scale weight_scale_inv
    weight_shape weight_scale_2 weight_global_scale weight_zero_point input_scale input_global_scale
    activation_scale""".split(),
    "weight",
) | dict.fromkeys(("absmax", "quant_map", "nested_absmax", "nested_quant_map"), "")


def _owner_of(name: str) -> str:
    """Return the name of the matrix that a tensor stores or describes, as if it were not quantised."""
    stem, _, last = name.rpartition(".")
    if last.startswith("bitsandbytes__"):
        return stem.removesuffix(".quant_state")
    if last in _SUFFIXES:
        return f"{stem}.{_SUFFIXES[last]}".rstrip(".")
    return name


def _split(module: str, found: list[tuple[str, str, Size]]) -> list[tuple[str, Size]]:
    """Return the parts of one attention module, with a fused matrix split into W_Q, W_K and W_V.

    W_O has as many rows as W_Q has columns: n_head · d_head, or in linear attention as W_V has. So the
    shares of a fused matrix follow from the size of W_O, however both are stored.

    Args:
        found: part, name and size of each of its tensors.
    """
    sizes: dict[str, Size] = defaultdict(lambda: NOTHING)
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
        sizes[part] = sizes[part].plus(Size(share, n_bytes))
    return [*sizes.items()]


def _stored(
    tensor: TensorHeader, by_name: dict[str, TensorHeader], config: dict[str, Any]
) -> StoredTensor:
    name, n_element = tensor.name, prod(tensor.shape)
    is_mask = re.search(r"att(n|ention)\.bias$", name) is not None and len(tensor.shape) == 4  # GPT-2's
    if is_mask or _BUFFERS.fullmatch(name) or _is_description(name, by_name):
        return StoredTensor(0, tensor.dtype)
    if tensor.dtype in ("U8", "I8", "I32", "U32", "I16", "U16", "I64"):
        bits = _bits(tensor, by_name, config)
        if bits is None:
            return StoredTensor(n_element, tensor.dtype, known=name.rsplit(".", 1)[-1] == "SCB")
        width = int(tensor.dtype[1:])
        kind = tensor.dtype if bits == width else f"{bits} bits in {tensor.dtype}"
        return StoredTensor(n_element * width // bits, kind)
    return StoredTensor(n_element, tensor.dtype)


_DESCRIPTION = re.compile(
    r"(.*?)[._](?:qzeros|g_idx|absmax|quant_map|nested_absmax|nested_quant_map|quant_state\.\w+|SCB"
    r"|weight_format|biases|(?:weight_|input_|activation_|output_|k_|v_|q_)?(?:global_)?"
    r"(?:scales?|scale_inv|scale_2|zero_point|shape|g_idx))"
)
"""Names of tensors that describe how another one is stored."""
_DESCRIBED = (".weight", ".qweight", ".weight_packed", "", "_blocks")
"""What follows the common part in the other one's name."""
_NARROW = re.compile("[IUF]8|[IU]32|F[46]")
"""The dtypes of tensors that need a description."""


def _is_description(name: str, by_name: dict[str, TensorHeader]) -> bool:
    """Check whether a tensor describes how another one is stored, in a narrow dtype."""
    found = _DESCRIPTION.fullmatch(name)
    if found is None:
        return False
    described = (by_name.get(found[1] + ending) for ending in _DESCRIBED)
    return any(each is not None and _NARROW.match(each.dtype) for each in described)


_BUFFERS = re.compile(
    r"(.*\.)?(inv_freq|position_ids|relative_position_index|(cos|sin)_cached|masked_bias|tid2eid"
    r"|(query|key|diagonal)_decay|slope_rate|final_logits_bias|num_batches_tracked|running_(mean|var)"
    r"|rope_freqs\.weight|rope_factors_\w+\.weight)"
)
"""Names of tensors that are computed, not learned."""


def _bits(tensor: TensorHeader, by_name: dict[str, TensorHeader], config: dict[str, Any]) -> int | None:
    """Find the bits of a tensor of integers that store one parameter; None: not known."""
    stem, _, kind = tensor.name.rpartition(".")
    if kind == "qweight":
        zeros, scales = by_name.get(f"{stem}.qzeros"), by_name.get(f"{stem}.scales")
        if zeros and scales and zeros.shape and scales.shape and scales.shape[-1]:
            bits, left = divmod(int(tensor.dtype[1:]) * zeros.shape[-1], scales.shape[-1])
            return bits if left == 0 and 1 <= bits <= 8 else None
        return _configured_bits(config)
    if kind == "weight_packed":
        return 4 if tensor.dtype == "U8" else _configured_bits(config)
    if tensor.name.endswith("_blocks") and f"{tensor.name.removesuffix('_blocks')}_scales" in by_name:
        return 4
    if f"{tensor.name}.absmax" in by_name:
        return 4
    scale = by_name.get(f"{stem}.weight_scale")
    if tensor.dtype == "U8" and scale is not None:
        settings = config.get("quantization_config")
        method = settings.get("quant_method") if isinstance(settings, dict) else None
        return 4 if scale.dtype.startswith("F8") else 2 if method == "bitnet" else None
    if tensor.dtype == "U32" and f"{stem}.scales" in by_name:
        return _configured_bits(config)
    if tensor.dtype == "I8" and (scale is not None or f"{stem}.SCB" in by_name):
        return 8
    return None


def _configured_bits(config: dict[str, Any]) -> int | None:
    """Return the bits of a weight by config.json; None if it does not say, or says several numbers."""
    settings = config.get("quantization_config", config.get("quantization"))
    if not isinstance(settings, dict):
        return None
    found = {settings.get("bits", settings.get("w_bit"))}
    groups = settings.get("config_groups")
    for group in groups.values() if isinstance(groups, dict) else ():
        weights = group.get("weights") if isinstance(group, dict) else None
        found.add(weights.get("num_bits") if isinstance(weights, dict) else None)
    found.discard(None)
    bits = next(iter(found), None)
    return bits if len(found) == 1 and type(bits) is int and 1 <= bits <= 8 else None


def unknown_packing(names: list[str], dtype: str) -> str:
    """Return the sentence for tensors whose packing is not known."""
    example = printable(shortened(names[0]))
    others = f" and {len(names) - 1} others" if len(names) > 1 else ""
    verb = "are" if len(names) > 1 else "is"
    return (
        f"{example}{others} {verb} stored as {dtype}, in a format that is not known:"
        " every integer counts as one parameter"
    )
