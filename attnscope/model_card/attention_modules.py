"""The attention modules of a checkpoint by its headers, and the sizes of the matrices in them."""

from __future__ import annotations

from collections import defaultdict
from dataclasses import dataclass
from typing import Any, NamedTuple

from attnscope.checkpoints.headers import Headers, TensorHeader
from attnscope.model_card import tensor_parts as parts
from attnscope.model_card.packed import StoredTensor, stored_parameters
from attnscope.model_card.tensor_parts import ModelPart, place_of


class Size(NamedTuple):
    """Parameters, and the bytes that store them; None: not known."""

    n_parameter: int
    n_bytes: int | None

    def plus(self, other: Size) -> Size:
        """Return the size of both together."""
        unknown = self.n_bytes is None or other.n_bytes is None
        n_bytes = None if unknown else (self.n_bytes or 0) + (other.n_bytes or 0)
        return Size(self.n_parameter + other.n_parameter, n_bytes)


NOTHING = Size(0, 0)


class ModuleTensor(NamedTuple):
    """A tensor, what it stores, and what it is a part of."""

    header: TensorHeader
    stored: StoredTensor
    place: ModelPart


@dataclass(frozen=True)
class AttentionModule:
    """An attention module of a checkpoint.

    Attributes:
        name: such as `model.layers.0.self_attn`.
        layer: the number of its layer; None if it belongs to none.
        sizes: the sizes of its parts, with a fused matrix split into W_Q, W_K and W_V if its shares
            follow from W_O.
        tensors: its tensors by name, without the module's.
    """

    name: str
    layer: int | None
    sizes: dict[str, Size]
    tensors: dict[str, ModuleTensor]


def place_tensors(
    headers: Headers, config: dict[str, Any], n_layer: int | None = None
) -> dict[str, ModuleTensor]:
    """Return the tensors of a checkpoint by name, with what they store and what they are a part of.

    Args:
        headers: of all files.
        config: its config.json, which may say how integers are packed.
        n_layer: the number of layers by the configuration; those after them are draft layers.
    """
    stored = stored_parameters(headers.tensors, config)
    return {
        name: ModuleTensor(tensor, how, place_of(owner_of(name), n_layer))
        for name, (tensor, how) in stored.items()
    }


def find_modules(tensors: dict[str, ModuleTensor]) -> list[AttentionModule]:
    """Return the attention modules among the tensors of a checkpoint.

    Args:
        tensors: what `place_tensors` returned.
    """
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


_SUFFIXES = {
    **dict.fromkeys(
        ("qweight", "qzeros", "scales", "g_idx", "SCB", "weight_format", "biases"), "weight"
    ),
    **dict.fromkeys(("weight_packed", "weight_scale", "weight_scale_inv", "weight_shape"), "weight"),
    **dict.fromkeys(("weight_scale_2", "weight_global_scale", "weight_zero_point"), "weight"),
    **dict.fromkeys(("input_scale", "input_global_scale", "activation_scale"), "weight"),
    **dict.fromkeys(("absmax", "quant_map", "nested_absmax", "nested_quant_map"), ""),
}


def owner_of(name: str) -> str:
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
        module: its name.
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
