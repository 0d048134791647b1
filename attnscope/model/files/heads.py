"""Read the attention weights of all heads of a checkpoint, layer by layer."""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

from attnscope.base.errors import ModelError
from attnscope.model.files.checkpoint import Checkpoint
from attnscope.model.files.config import PARTS_OF_STACK, configs_of_stack, own_fields
from attnscope.model.files.indices import check_layer
from attnscope.model.files.latent import axes_of, read_latent, slice_of
from attnscope.model.files.layouts import PARTS, Layout, Packing, Stack, choose_stack, find_stacks
from attnscope.model.files.result import Latent, WeightSlice
from attnscope.model.files.tensors import Weights, open_weights

if TYPE_CHECKING:
    import numpy as np

Stored = dict[str, tuple[str, "np.ndarray", str]]
"""W_Q … b_O → the tensor that contains it: its name, its values as stored, its dtype."""


@dataclass(frozen=True)
class LayerHeads:
    """The heads of one layer."""

    #: `n_kv_head`, `d_feat`, `d_head`: the layer's sizes; `d_head` is the width of a query.
    n_kv_head: int
    d_feat: int
    d_head: int
    latent: Latent | None  #: the sizes of latent attention, if the model uses it
    #: Returns the slices of a head's weights and biases, as `read_head` describes them, by the head's
    #: index. Their statistics are `UNMEASURED`.
    weights: Callable[[int], list[WeightSlice]]


@dataclass(frozen=True)
class Heads:
    """The heads of one stack of a checkpoint."""

    model: str  #: its name in error messages
    config: dict[str, Any]
    tensors: Weights
    stack: Stack
    n_head: int
    #: The width that goes with `n_head` if both are defaults of transformers, since config.json does not
    #: say how many heads there are; None: it does.
    default_d_feat: int | None = None

    def check(self, layer: int) -> None:
        """Raise a ModelError if a layer does not exist or has no attention."""
        stack = self.stack
        check_layer(layer, stack.numbers, stack.n_layer, self.model, stack.others.get(layer))

    def layer(self, layer: int) -> LayerHeads:
        """Open the tensors of a layer, once for all of its heads.

        Of files, only the bytes of slices whose values are used are read.
        """
        layout, n_head, model = self.stack.layout, self.n_head, self.model
        if layout.packing is Packing.LATENT:
            return self._latent_layer(layer)
        config = self._of_layer(layer)
        stored = _stored(self.tensors, self.stack, layer, model, config)
        source = self.tensors.configuration
        d_head = _d_head(stored, layout, n_head, model, source)
        n_kv_head = _n_kv_head(stored, layout, n_head, d_head, model)
        _check_shapes(stored, layout, n_head, n_kv_head, d_head, model)
        _check_config(config, d_head, n_kv_head, self.stack.layout, model, source)
        d_feat = stored["W_Q"][1].shape[0 if layout.transposed else 1]
        if self.default_d_feat not in (None, d_feat):
            raise ModelError(
                f"the {source} of {model} does not say how many heads it has, and the default of"
                f" transformers, {n_head} heads of a model with d_feat {self.default_d_feat}, is not"
                f" that of its tensors, whose d_feat is {d_feat}.",
                hint=f"the {source} that the weights were saved with",
            )

        def weights(head: int) -> list[WeightSlice]:
            slots = {part: layout.packing.slot(part, head, n_head, n_kv_head) for part in PARTS}
            slices = [
                _slice(name, *tensor, layout.transposed, slots[name[-1]] * d_head, d_head)
                for name, tensor in stored.items()
            ]
            return [
                replace(
                    each,
                    dims=_dims(each, d_feat, self.stack.name),
                    quantised=self.tensors.quantised(each.tensor),
                    reordered=self.tensors.reordered(each.tensor) and each.name[-1] in "QK",
                )
                for each in slices
            ]

        return LayerHeads(n_kv_head, d_feat, d_head, None, weights)

    def _of_layer(self, layer: int) -> dict[str, Any]:
        """Return the fields of one layer: those of its stack, with its own where layers differ."""
        nested = configs_of_stack(self.config, self.stack.name)
        fields = {name: value for part in nested[:-1] or nested for name, value in part.items()}
        return fields | own_fields(fields, layer)

    def slices(self, layer: LayerHeads) -> dict[str, list[WeightSlice]]:
        """Return the slices of all heads of a layer by name, as they follow each other in a matrix.

        Those of W_K, W_V and their biases occur once for each key/value head; b_O occurs once.
        """
        group = self.n_head // layer.n_kv_head
        slices: dict[str, list[WeightSlice]] = {}
        for head in range(self.n_head):
            for each in layer.weights(head):
                is_new = head % group == 0 if each.name[-1] in "KV" else not (head and each.shared)
                if is_new:
                    slices.setdefault(each.name, []).append(each)
        return slices

    def _latent_layer(self, layer: int) -> LayerHeads:
        own_config = configs_of_stack(self.config, self.stack.name)[0]
        latent, d_feat, slices = read_latent(
            self.tensors, self.stack, layer, self.n_head, own_config, self.model
        )

        def weights(head: int) -> list[WeightSlice]:
            return [replace(each, dims=axes_of(each.name, latent)) for each in slices(head)]

        return LayerHeads(self.n_head, d_feat, latent.d_nope + latent.d_rope, latent, weights)


def open_heads(checkpoint: Checkpoint, stack: str | None = None) -> Heads:
    """Open one stack of a checkpoint."""
    config, tensors = checkpoint.config(), open_weights(checkpoint)
    chosen = choose_stack(find_stacks(tensors.names, config, checkpoint.name), stack, checkpoint.name)
    return heads_of(checkpoint.name, config, tensors, chosen)


def heads_of(model: str, config: dict[str, Any], tensors: Weights, stack: Stack) -> Heads:
    """Return the heads of a stack."""
    n_head, default_d_feat = _n_head(config, stack, model)
    return Heads(model, config, tensors, stack, n_head, default_d_feat)


def _dims(slice_: WeightSlice, d_feat: int, stack: str) -> tuple[str, ...]:
    """Return the axes of a head's slice; the input of keys and values may be wider than d_feat."""
    if slice_.name in ("W_O", "b_O"):
        dims: tuple[str, ...] = ("d_feat", "d_head")
    else:
        d_in = slice_.head_shape[-1] if len(slice_.head_shape) == 2 else d_feat
        other = "d_context" if stack == "cross" else "d_in"
        dims = ("d_head", "d_feat" if d_in == d_feat else other)
    return dims[: len(slice_.head_shape)]


def _stored(weights: Weights, stack: Stack, layer: int, model: str, config: dict[str, Any]) -> Stored:
    """Read the tensors that contain a layer's weights and biases; a fused tensor contains several.

    Args:
        config: the fields of the layer: they may say that its values are its keys (Gemma 4), or that its
            keys and values are those of an earlier layer.
    """
    names = set(weights.names)
    stored: Stored = {}
    for kind, letter in (("weight", "W"), ("bias", "b")):
        for part in PARTS:
            tensor = stack.tensor(part, layer, kind)
            if tensor not in names and part == "V" and config.get("attention_k_eq_v"):
                tensor = stack.tensor("K", layer, kind)
            if tensor in names:
                stored[f"{letter}_{part}"] = (tensor, *weights.read(tensor))
            elif kind == "weight" and part in "KV" and (n_shared := config.get("num_kv_shared_layers")):
                raise ModelError(
                    f"layer {layer} of {model} has no keys and values of its own: it takes those of an"
                    f" earlier layer (num_kv_shared_layers is {n_shared}).",
                    hint="an earlier layer",
                )
            elif kind == "weight":
                raise ModelError(
                    f"{model} has no {tensor}, although it has {stack.tensor('Q', layer, kind)}."
                )
    return stored


def _slice(
    name: str, tensor: str, stored: np.ndarray, dtype: str, transposed: bool, start: int, d_head: int
) -> WeightSlice:
    """Return one head's slice of a stored tensor; the whole tensor if it belongs to no head."""
    axis = None if name == "b_O" else 0 if stored.ndim == 1 else int((name == "W_O") != transposed)
    start, stop = (0, stored.shape[0]) if axis is None else (start, start + d_head)
    is_transposed = transposed and stored.ndim == 2
    return slice_of(name, tensor, (stored, dtype), axis, start, stop, is_transposed)


def _d_head(stored: Stored, layout: Layout, n_head: int, model: str, source: str) -> int:
    """Return a head's width: W_O takes n_head of them as input, however Q, K and V are packed."""
    tensor, values, _ = stored["W_O"]
    if values.ndim != 2 or not all(values.shape):
        raise _wrong_shape("W_O", stored, model)
    width = values.shape[0 if layout.transposed else 1]
    if width % n_head:
        raise ModelError(
            f"{tensor} is {width} wide, which is not divisible by the {n_head} heads in {model}'s"
            f" {source}."
        )
    return width // n_head


def _n_kv_head(stored: Stored, layout: Layout, n_head: int, d_head: int, model: str) -> int:
    """Return the number of key/value heads, which follows from the size of the matrix of W_K."""
    values = stored["W_K"][1]
    if values.ndim != 2:
        raise _wrong_shape("W_K", stored, model)
    slots = values.shape[1 if layout.transposed else 0] // d_head
    n_kv_head = (slots - n_head) // 2 if layout.packing.fused else slots
    if n_kv_head < 1 or n_head % n_kv_head:
        raise _wrong_shape("W_K", stored, model)
    return n_kv_head


def _check_shapes(
    stored: Stored, layout: Layout, n_head: int, n_kv_head: int, d_head: int, model: str
) -> None:
    """Raise a ModelError unless the shapes of a layer's weights and biases are consistent."""
    d_feat = stored["W_O"][1].shape[1 if layout.transposed else 0]
    d_key = stored["W_K"][1].shape[0 if layout.transposed else 1]
    for name, (_, values, _) in stored.items():
        part = name[-1]
        width = layout.packing.slots(part, n_head, n_kv_head) * d_head
        if part == "O":
            expected = (d_feat, width) if name == "W_O" else (d_feat,)
        else:
            d_in = d_key if layout.cross and part != "Q" else d_feat
            if layout.values_apart and name == "W_V":
                d_in = values.shape[-1]
            expected = (width, d_in) if name.startswith("W") else (width,)
        is_transposed = layout.transposed and len(expected) == 2
        if values.shape != (expected[::-1] if is_transposed else expected):
            raise _wrong_shape(name, stored, model)


OTHER_WIDTHS = ("linear", "mamba", "ssm", "index", "rope", "nope", "lora", "kda")
WIDTH_OF_HEAD = re.compile(r".*(head_dim|head_size|d_kv|kv_channels)")
KEY_HEADS = re.compile(r".*(key_value_heads|kv_heads|query_groups|n_head_kv)")
"""The names of config.json's fields for a head's width and the number of key/value heads. OTHER_WIDTHS
are parts of names of similar fields that mean something else."""


def _check_config(
    config: dict[str, Any], d_head: int, n_kv_head: int, layout: Layout, model: str, source: str
) -> None:
    """Raise a ModelError if the heads' width or number contradicts the fields of a layer.

    A model whose layers differ may have several such fields; one of them has to agree.
    """
    sizes = {
        name: value
        for name, value in config.items()
        if type(value) is int and not any(word in name for word in OTHER_WIDTHS)
    }
    one_key_head = n_kv_head == 1 and bool(config.get("multi_query"))
    for pattern, found, what in (
        (WIDTH_OF_HEAD, d_head, f"heads {d_head} wide"),
        (KEY_HEADS, n_kv_head, f"{n_kv_head} key heads"),
    ):
        expected = {name: value for name, value in sizes.items() if pattern.fullmatch(name)}
        if not expected or found in expected.values() or (pattern is KEY_HEADS and one_key_head):
            continue
        fields = " and ".join(f"{name} is {value}" for name, value in expected.items())
        raise ModelError(
            f"the {layout.path('K').strip('.')} of {model} has {what}, but in its {source} {fields}.",
            hint=f"the {source} that the weights were saved with",
        )


def _wrong_shape(name: str, stored: Stored, model: str) -> ModelError:
    tensor, values, _ = stored[name]
    return ModelError(
        f"{tensor} of {model} has the shape {tuple(values.shape)}, which does not fit {name}."
    )


def _n_head(config: dict[str, Any], stack: Stack, model: str) -> tuple[int, int | None]:
    """Return the number of query heads that config.json gives, or the default in transformers.

    Returns:
        The number, and if it is a default, the width of the model that it goes with; else None.
    """
    side = "decoder" if stack.name == "cross" or "decoder." in stack.prefix else "encoder"
    of_side = (f"{side}_attention_heads", f"{side}_num_attention_heads")
    words = (*of_side, "num_attention_heads", "n_head", "n_heads", "num_heads")
    nested = configs_of_stack(config, stack.name)
    configured = [each[word] for each in nested for word in words if word in each]
    n_head, d_feat = (configured[0], None) if configured else _default_sizes(config, stack.name)
    if type(n_head) is not int or n_head < 1:
        raise ModelError(
            f"{model}'s config.json does not say how many heads it has"
            f" (num_attention_heads is {n_head!r})."
        )
    return n_head, d_feat if type(d_feat) is int else None


def _default_sizes(config: dict[str, Any], stack: str) -> tuple[Any, Any]:
    """Return the heads and the width that transformers gives a model whose config.json has no heads.

    Gemma 3 and LLaVA omit their number: it is the default of their type.
    """
    if "model_type" not in config:
        return None, None
    from transformers import AutoConfig

    try:
        complete = AutoConfig.for_model(**config)
    except Exception:  # an unknown type, or sizes that it rejects
        return None, None
    parts = PARTS_OF_STACK.get(stack, ())
    of_stack = [*(getattr(complete, part) for part in parts if hasattr(complete, part)), complete][0]
    return getattr(of_stack, "num_attention_heads", None), getattr(of_stack, "hidden_size", None)
