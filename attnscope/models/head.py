"""Reads what one head owns of a checkpoint's attention weights."""

from __future__ import annotations

from attnscope.errors import ModelError
from attnscope.models.checkpoint import Checkpoint, find_checkpoint
from attnscope.models.layouts import PARTS, locate
from attnscope.models.weights import open_weights
from attnscope.results import HeadWeights, WeightSlice
from attnscope.values import numbers, stats_of


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
            tensor = located.tensor(part, layer, kind)
            if tensor not in names:
                if kind == "bias":
                    continue
                raise ModelError(f"{checkpoint.name} has no {tensor}, though it has {names[0]}.")
            stored, dtype = weights.read(tensor)
            expected = stored.shape if not slices else _shape(f"{letter}_{part}", slices[0].shape)
            if (
                stored.shape != expected
                or stored.ndim != (2 if kind == "weight" else 1)
                or not stored.size
            ):
                raise ModelError(
                    f"{tensor} of {checkpoint.name} has the shape {tuple(stored.shape)},"
                    f" which is none for {letter}_{part}."
                )
            axis = {"W_O": 1, "b_O": None}.get(f"{letter}_{part}", 0)
            width = stored.shape[0] if axis is None else stored.shape[axis]
            if axis is not None and width % n_head:
                raise ModelError(
                    f"{tensor} is {width} wide, which does not divide into the {n_head} heads"
                    f" of {checkpoint.name}'s config.json."
                )
            start = 0 if axis is None else head * (width // n_head)
            stop = width if axis is None else start + width // n_head
            part_of_head = stored[:, start:stop] if axis == 1 else stored[start:stop]
            slices.append(
                WeightSlice(
                    name=f"{letter}_{part}",
                    tensor=tensor,
                    shape=tuple(stored.shape),
                    axis=axis,
                    start=start,
                    stop=stop,
                    head_shape=tuple(part_of_head.shape),
                    dtype=dtype,
                    stats=stats_of(numbers(part_of_head, dtype)),
                    array=part_of_head,
                )
            )
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


def _shape(name: str, shape_of_W_Q: tuple[int, ...]) -> tuple[int, ...]:
    """The whole shape that a weight or a bias must have beside W_Q, `d_head·n_head d_feat`."""
    wide, d_feat = shape_of_W_Q
    return {"W_O": (d_feat, wide), "b_O": (d_feat,)}.get(name, (wide, d_feat)[: 2 - (name[0] == "b")])


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
