"""Which layers and heads there are, told where one is asked for that is not."""

from __future__ import annotations

from collections.abc import Collection, Iterable

from attnscope.errors import ModelError


def check_range(what: str, index: int, count: int, model: str) -> None:
    """Raise a ModelError if there is no layer, or no head, of this number."""
    if not 0 <= index < count:
        raise ModelError(
            f"there is no {what} {index} in {model}: it has {what}s 0 to {count - 1}.",
            hint=f"--{what} {min(max(index, 0), count - 1)}",
        )


def check_layer(
    layer: int, having: Collection[int], n_layer: int, model: str, kind: str | None = None
) -> None:
    """Raise a ModelError if there is no such layer, or if it has no attention.

    Args:
        layer: its number.
        having: the layers that have attention.
        n_layer: how many there are in all.
        model: what to call it.
        kind: what the layer is instead, if it is known: `linear attention`.
    """
    check_range("layer", layer, n_layer, model)
    if layer not in having:
        layers = "layer" if len(having) == 1 else "layers"
        instead = "has no attention" if kind is None else f"has no softmax attention ({kind})"
        raise ModelError(
            f"layer {layer} of {model} {instead}: {layers} {enumerated(map(str, sorted(having)))}"
            f" of its {n_layer} {'has' if len(having) == 1 else 'have'} it.",
            hint=f"--layer {min(sorted(having), key=lambda other: abs(other - layer))}",
        )


def enumerated(names: Iterable[str]) -> str:
    """Names as a sentence lists them."""
    *others, last = names
    return f"{', '.join(others)} and {last}" if others else last
