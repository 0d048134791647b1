"""Reads what one head owns of a checkpoint's attention weights."""

from __future__ import annotations

from typing import TYPE_CHECKING

from attnscope.errors import ModelError
from attnscope.models.checkpoint import Checkpoint, find_checkpoint
from attnscope.models.layouts import PARTS, locate
from attnscope.models.weights import open_weights
from attnscope.results import HeadWeights, WeightSlice
from attnscope.values import numbers, stats_of

if TYPE_CHECKING:
    import numpy as np


def read_head(model: str | Checkpoint | None = None, *, layer: int = 0, head: int = 0) -> HeadWeights:
    """One head's part of W_Q, W_K, W_V, W_O and of their biases.

    A Linear stores its weight as `out in`. Heads lie side by side in what Q, K and V are
    projected *to*: rows. They lie side by side in what O projects *from*: columns. The bias
    of O belongs to no head: all of it is given.

    Neither torch nor transformers is imported for a safetensors checkpoint.

    Args:
        model: a checkpoint, or what `find_checkpoint` takes: `minilm`, a folder, a hub name.
        layer, head: counted from 0.

    Returns:
        The eight slices (fewer, if the model has no biases) with their statistics and arrays:
        `W_Q W_K W_V`: `d_head d_feat`; `W_O`: `d_feat d_head`; `b_Q b_K b_V`: `d_head`; `b_O`: `d_feat`.

    Raises:
        ModelError: no such model, layer or head, or its files cannot be read.
    """
    checkpoint = model if isinstance(model, Checkpoint) else find_checkpoint(model)
    n_head = _n_head(checkpoint)
    weights = open_weights(checkpoint)
    names = weights.names
    located = locate(names, checkpoint.name)
    _check_range("layer", layer, located.n_layer, checkpoint.name)
    _check_range("head", head, n_head, checkpoint.name)

    slices: list[WeightSlice] = []
    for kind, letter in (("weight", "W"), ("bias", "b")):
        for part in PARTS:
            name, tensor = f"{letter}_{part}", located.tensor(part, layer, kind)
            if tensor in names:
                stored, dtype = weights.read(tensor)
                shape_of_W_Q = slices[0].shape if slices else stored.shape
                _check_shape(name, stored.shape, shape_of_W_Q, tensor, checkpoint.name)
                slices.append(_slice(name, tensor, stored, dtype, head, n_head, checkpoint.name))
            elif kind == "weight":
                raise ModelError(f"{checkpoint.name} has no {tensor}, though it has {names[0]}.")
    d_head, d_feat = slices[0].head_shape
    return HeadWeights(
        model=checkpoint.name,
        layer=layer,
        head=head,
        n_layer=located.n_layer,
        n_head=n_head,
        n_kv_head=n_head,
        d_feat=d_feat,
        d_head=d_head,
        weights=slices,
    )


def _slice(
    name: str, tensor: str, stored: np.ndarray, dtype: str, head: int, n_head: int, model: str
) -> WeightSlice:
    """One head's part of one stored tensor."""
    axis = {"W_O": 1, "b_O": None}.get(name, 0)
    start, stop = 0, stored.shape[0]
    if axis is not None:
        d_head, rest = divmod(stored.shape[axis], n_head)
        if rest:
            raise ModelError(
                f"{tensor} is {stored.shape[axis]} wide, which does not divide into the {n_head} heads"
                f" of {model}'s config.json."
            )
        start, stop = head * d_head, (head + 1) * d_head
    own = stored[:, start:stop] if axis == 1 else stored[start:stop]
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
        array=own,
    )


def _check_shape(
    name: str, shape: tuple[int, ...], shape_of_W_Q: tuple[int, ...], tensor: str, model: str
) -> None:
    """Raise a ModelError unless a whole weight or bias fits beside W_Q, `n_head·d_head d_feat`."""
    fits = len(shape_of_W_Q) == 2 and all(shape_of_W_Q)
    if fits:
        wide, d_feat = shape_of_W_Q
        weight, bias = (wide, d_feat), (wide,)
        expected = {"W_O": (d_feat, wide), "b_O": (d_feat,)}
        fits = shape == expected.get(name, weight if name.startswith("W") else bias)
    if not fits:
        raise ModelError(f"{tensor} of {model} has the shape {tuple(shape)}, which is none for {name}.")


def _n_head(checkpoint: Checkpoint) -> int:
    n_head = checkpoint.config().get("num_attention_heads")
    if type(n_head) is not int or n_head < 1:
        raise ModelError(
            f"{checkpoint.name}'s config.json does not say how many heads it has"
            f" (num_attention_heads is {n_head!r})."
        )
    return n_head


def _check_range(what: str, index: int, count: int, model: str) -> None:
    if not 0 <= index < count:
        raise ModelError(
            f"there is no {what} {index} in {model}: it has {what}s 0 to {count - 1}.",
            hint=f"--{what} {min(max(index, 0), count - 1)}",
        )
