"""Read what one head owns of a checkpoint's attention weights."""

from __future__ import annotations

import re
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from attnscope.arrays import numbers, stats_of
from attnscope.checkpoints.indices import check_layer, check_range
from attnscope.checkpoints.latent import axes_of, read_latent
from attnscope.checkpoints.layouts import PARTS, Layout, Packing, Stack, choose_stack, find_stacks
from attnscope.checkpoints.loaded import find_model
from attnscope.checkpoints.tensors import Weights, open_weights
from attnscope.errors import ModelError
from attnscope.results.weights import HeadWeights, WeightSlice

if TYPE_CHECKING:
    import numpy as np

Stored = dict[str, tuple[str, "np.ndarray", str]]
"""W_Q … b_O → the tensor that holds it: its name, its values as stored, its dtype."""


def read_head(
    model: Any = None,
    *,
    layer: int | None = None,
    head: int = 0,
    stack: str | None = None,
) -> HeadWeights:
    """One head's part of W_Q, W_K, W_V, W_O and of their biases.

    A Linear stores its weight as `out in`. Heads lie side by side in what Q, K and V are
    projected *to*: rows. They lie side by side in what O projects *from*: columns. The bias
    of O belongs to no head: all of it is given. GPT-2's Conv1D stores `in out`: rows are columns
    there. Where query heads share a key head, each is given the key head that it reads.

    Neither torch nor transformers is imported for a safetensors checkpoint whose config.json says how
    many heads it has.

    Args:
        model: what `find_model` takes: `minilm`, a folder, a hub name, or a model that transformers has
            loaded.
        layer: counted from 0; None: the first that attends.
        head: counted from 0: a query head.
        stack: whose layers: `encoder`, `decoder` or `cross`, `text` or `vision`; None: the first.

    Returns:
        The eight slices (fewer, if the model has no biases) with their statistics and arrays:
        `W_Q W_K W_V`: `d_head d_feat`; `W_O`: `d_feat d_head`; `b_Q b_K b_V`: `d_head`; `b_O`: `d_feat`.
        In cross-attention, what W_K and W_V take in is as wide as the other stack; MobileBERT's W_V
        takes in what stands before its bottleneck. Of latent attention (DeepSeek), the parts have its
        paper's names (`attnscope.checkpoints.latent`).

    Raises:
        ModelError: no such model, stack, layer or head, or its files cannot be read.
    """
    checkpoint = find_model(model)
    config, weights = checkpoint.config(), open_weights(checkpoint)
    chosen = choose_stack(find_stacks(weights.names, config, checkpoint.name), stack, checkpoint.name)
    n_head = _n_head(config, chosen, checkpoint.name)
    layer = min(chosen.numbers) if layer is None else layer
    check_layer(layer, chosen.numbers, chosen.n_layer, checkpoint.name, chosen.others.get(layer))
    check_range("head", head, n_head, checkpoint.name)

    if chosen.layout.packing is Packing.LATENT:
        nested = [config.get(part) for part in PARTS_OF_CONFIG.get(chosen.name, ())]
        said = next((part for part in nested if isinstance(part, dict)), config)
        parts, latent = read_latent(weights, chosen, layer, head, n_head, said, checkpoint.name)
        [outward] = [each for each in parts if each.name == "W_O"]
        return HeadWeights(
            model=checkpoint.name,
            stack=chosen.name,
            layer=layer,
            head=head,
            n_layer=chosen.n_layer,
            n_head=n_head,
            n_kv_head=n_head,
            d_feat=outward.head_shape[0],
            d_head=latent.d_nope + latent.d_rope,
            weights=[replace(part, dims=axes_of(part.name, latent)) for part in parts],
            latent=latent,
        )
    stored = _stored(weights, chosen, layer, checkpoint.name)
    d_head = _d_head(stored, chosen.layout, n_head, checkpoint.name)
    n_kv_head = _n_kv_head(stored, chosen.layout, n_head, d_head, checkpoint.name)
    _check_shapes(stored, chosen.layout, n_head, n_kv_head, d_head, checkpoint.name)
    _check_said(config, chosen, d_head, n_kv_head, checkpoint.name)

    slots = {part: chosen.layout.packing.slot(part, head, n_head, n_kv_head) for part in PARTS}
    slices = [
        _slice(name, *tensor, chosen.layout.transposed, slots[name[-1]] * d_head, d_head)
        for name, tensor in stored.items()
    ]
    d_feat = slices[0].head_shape[1]
    return HeadWeights(
        model=checkpoint.name,
        stack=chosen.name,
        layer=layer,
        head=head,
        n_layer=chosen.n_layer,
        n_head=n_head,
        n_kv_head=n_kv_head,
        d_feat=d_feat,
        d_head=d_head,
        weights=[replace(each, dims=_dims(each, d_feat, chosen.name)) for each in slices],
    )


def _dims(slice_: WeightSlice, d_feat: int, stack: str) -> tuple[str, ...]:
    """The axes of a head's part of a weight or a bias; keys and values may be made of what is wider."""
    if slice_.name in ("W_O", "b_O"):
        dims: tuple[str, ...] = ("d_feat", "d_head")
    else:
        taken_in = slice_.head_shape[-1] if len(slice_.head_shape) == 2 else d_feat
        other = "d_context" if stack == "cross" else "d_in"
        dims = ("d_head", "d_feat" if taken_in == d_feat else other)
    return dims[: len(slice_.head_shape)]


def _stored(weights: Weights, stack: Stack, layer: int, model: str) -> Stored:
    """The tensors that hold a layer's weights and biases; what is fused holds several."""
    names = set(weights.names)
    stored: Stored = {}
    for kind, letter in (("weight", "W"), ("bias", "b")):
        for part in PARTS:
            tensor = stack.tensor(part, layer, kind)
            if tensor in names:
                stored[f"{letter}_{part}"] = (tensor, *weights.read(tensor))
            elif kind == "weight":
                raise ModelError(
                    f"{model} has no {tensor}, though it has {stack.tensor('Q', layer, kind)}."
                )
    return stored


def _slice(
    name: str, tensor: str, stored: np.ndarray, dtype: str, transposed: bool, start: int, d_head: int
) -> WeightSlice:
    """One head's part of one stored tensor; all of it where it belongs to no head.

    Args:
        name: W_Q … b_O.
        tensor, stored, dtype: the tensor's name, its values, their dtype.
        transposed: whether weights are stored as `in out`.
        start, d_head: where the head's part begins, and how wide it is.
    """
    axis = None if name == "b_O" else 0 if stored.ndim == 1 else int((name == "W_O") != transposed)
    start, stop = (0, stored.shape[0]) if axis is None else (start, start + d_head)
    own = stored[:, start:stop] if axis == 1 else stored[start:stop]
    turned = transposed and stored.ndim == 2
    own = own.T if turned else own
    return WeightSlice(
        name=name,
        tensor=tensor,
        shape=tuple(stored.shape),
        axis=axis,
        start=start,
        stop=stop,
        head_shape=tuple(own.shape),
        dtype=dtype,
        stats=stats_of(numbers(own, dtype)),
        transposed=turned,
        array=own,
        shared=axis is None,
    )


def _d_head(stored: Stored, layout: Layout, n_head: int, model: str) -> int:
    """A head's width: W_O takes in n_head of them, however Q, K and V are packed."""
    tensor, whole, _ = stored["W_O"]
    if whole.ndim != 2 or not all(whole.shape):
        raise _no_shape_for("W_O", stored, model)
    wide = whole.shape[0 if layout.transposed else 1]
    if wide % n_head:
        raise ModelError(
            f"{tensor} is {wide} wide, which does not divide into the {n_head} heads of"
            f" {model}'s config.json."
        )
    return wide // n_head


def _n_kv_head(stored: Stored, layout: Layout, n_head: int, d_head: int, model: str) -> int:
    """How many key heads there are: as many as the matrix of W_K has room for."""
    whole = stored["W_K"][1]
    if whole.ndim != 2:
        raise _no_shape_for("W_K", stored, model)
    slots = whole.shape[1 if layout.transposed else 0] // d_head
    n_kv_head = (slots - n_head) // 2 if layout.packing.fused else slots
    if n_kv_head < 1 or n_head % n_kv_head:
        raise _no_shape_for("W_K", stored, model)
    return n_kv_head


def _check_shapes(
    stored: Stored, layout: Layout, n_head: int, n_kv_head: int, d_head: int, model: str
) -> None:
    """Raise a ModelError unless all of a layer's weights and biases fit beside each other."""
    _, outward, _ = stored["W_O"]
    d_feat = outward.shape[1 if layout.transposed else 0]
    d_key = stored["W_K"][1].shape[0 if layout.transposed else 1]
    for name, (_, whole, _) in stored.items():
        part = name[-1]
        wide = layout.packing.slots(part, n_head, n_kv_head) * d_head
        if part == "O":
            expected = (d_feat, wide) if name == "W_O" else (d_feat,)
        else:
            taken_in = d_key if layout.cross and part != "Q" else d_feat
            if layout.values_apart and name == "W_V":
                taken_in = whole.shape[-1]
            expected = (wide, taken_in) if name.startswith("W") else (wide,)
        turned = layout.transposed and len(expected) == 2
        if whole.shape != (expected[::-1] if turned else expected):
            raise _no_shape_for(name, stored, model)


OTHER_WIDTHS = ("linear", "mamba", "ssm", "index", "rope", "nope", "lora", "kda")
WIDTH_OF_HEAD = re.compile(r".*(head_dim|head_size|d_kv|kv_channels)")
KEY_HEADS = re.compile(r".*(key_value_heads|kv_heads|query_groups|n_head_kv)")
"""How configurations call a head's width, and how many key heads there are; and what is about others."""


def _check_said(config: dict[str, Any], stack: Stack, d_head: int, n_kv_head: int, model: str) -> None:
    """Raise a ModelError if the heads' width or number is not what config.json says.

    Where layers differ, there are several fields, and one of them has to agree.
    """
    parts = [config.get(part) for part in PARTS_OF_CONFIG.get(stack.name, ())]
    nested = [part for part in parts if isinstance(part, dict)] or [config]
    own = {
        name: value
        for part in nested
        for name, value in part.items()
        if type(value) is int and not any(word in name for word in OTHER_WIDTHS)
    }
    one_key_head = n_kv_head == 1 and any(part.get("multi_query") for part in nested)
    for pattern, found, what in (
        (WIDTH_OF_HEAD, d_head, f"heads {d_head} wide"),
        (KEY_HEADS, n_kv_head, f"{n_kv_head} heads of keys"),
    ):
        said = {name: value for name, value in own.items() if pattern.fullmatch(name)}
        if not said or found in said.values() or (pattern is KEY_HEADS and one_key_head):
            continue
        fields = " and ".join(f"{name} is {value}" for name, value in said.items())
        raise ModelError(
            f"the {stack.layout.path('K').strip('.')} of {model} has {what}, and in its config.json"
            f" {fields}.",
            hint="the config.json that the weights were saved with",
        )


def _no_shape_for(name: str, stored: Stored, model: str) -> ModelError:
    tensor, whole, _ = stored[name]
    return ModelError(
        f"{tensor} of {model} has the shape {tuple(whole.shape)}, which is none for {name}."
    )


PARTS_OF_CONFIG = {
    "self": ("text_config",),
    "text": ("text_config",),
    "encoder": ("encoder",),
    "decoder": ("decoder",),
    "cross": ("decoder", "text_config"),
    "vision": ("vision_config", "encoder"),
    "audio": ("audio_config", "encoder"),
}
"""In which part of a config.json a stack's sizes stand, if it is divided."""


def _n_head(config: dict[str, Any], stack: Stack, model: str) -> int:
    """How many query heads a stack has, as config.json says; else as transformers takes for granted."""
    side = "decoder" if stack.name == "cross" or "decoder." in stack.prefix else "encoder"
    of_side = (f"{side}_attention_heads", f"{side}_num_attention_heads")
    words = (*of_side, "num_attention_heads", "n_head", "n_heads", "num_heads")
    parts = PARTS_OF_CONFIG.get(stack.name, ())
    nested = [config[part] for part in parts if isinstance(config.get(part), dict)]
    said = [each[word] for each in [*nested, config] for word in words if word in each]
    n_head = said[0] if said else _usual_n_head(config, parts)
    if type(n_head) is not int or n_head < 1:
        raise ModelError(
            f"{model}'s config.json does not say how many heads it has"
            f" (num_attention_heads is {n_head!r})."
        )
    return n_head


def _usual_n_head(config: dict[str, Any], parts: tuple[str, ...]) -> Any:
    """What a model of this type has where its config.json leaves it out, as Gemma 3's and LLaVA's do."""
    if "model_type" not in config:
        return None
    from transformers import AutoConfig

    try:
        whole = AutoConfig.for_model(**config)
    except Exception:  # of a type that it does not know, or with sizes that it refuses
        return None
    nested = [getattr(whole, part) for part in parts if hasattr(whole, part)]
    return getattr([*nested, whole][0], "num_attention_heads", None)
