"""Parse indices of layers and heads, and check that a model has them."""

from __future__ import annotations

import re
from collections.abc import Collection, Iterable, Mapping

from attnscope.base.errors import ModelError, OptionError
from attnscope.base.spelling import spelled, spelled_any


def check_range(what: str, index: int, count: int, model: str) -> None:
    """Raise a ModelError if a layer or head index is out of range."""
    if not 0 <= index < count:
        raise ModelError(
            f"there is no {what} {index} in {model}: it has {what}s 0 to {count - 1}.",
            hint=spelled(**{f"{what}s": min(max(index, 0), count - 1)}),
        )


def check_layer(
    layer: int, with_attention: Collection[int], n_layer: int, model: str, kind: str | None = None
) -> None:
    """Raise a ModelError if a layer does not exist or has no attention.

    Args:
        kind: the layer's kind, if it has no attention and the kind is known: `linear attention`.
    """
    check_range("layer", layer, n_layer, model)
    if layer not in with_attention:
        layers = "layer" if len(with_attention) == 1 else "layers"
        have = "has" if len(with_attention) == 1 else "have"
        instead = "has no attention" if kind is None else f"has no softmax attention ({kind})"
        names = enumerated(map(str, sorted(with_attention)))
        raise ModelError(
            f"layer {layer} of {model} {instead}: {layers} {names} of its {n_layer} {have} it.",
            hint=spelled(layers=min(sorted(with_attention), key=lambda other: abs(other - layer))),
        )


def check_indices(
    model: str,
    stacks: Collection[str],
    layers: Collection[int],
    heads: Collection[int],
    *,
    n_layer: Mapping[str, int],
    n_head: Mapping[tuple[str, int], int],
) -> None:
    """Raise a ModelError if a layer or head does not exist, or if such a layer has no attention.

    Args:
        stacks: the stacks to search; each index has to exist in one of them.
        n_head: the number of heads of each layer with attention, by stack and layer index.
    """
    counts = {key: n for key, n in n_head.items() if key[0] in stacks}
    with_attention = sorted({layer for _, layer in counts})
    for layer in layers:
        check_layer(layer, with_attention, max(n_layer[stack] for stack in stacks), model)
    of_layers = [n for (_, layer), n in counts.items() if not layers or layer in layers]
    for head in heads:
        check_range("head", head, max(of_layers), model)


def enumerated(names: Iterable[str]) -> str:
    """Join names as in a sentence: `a, b and c`."""
    *others, last = names
    return f"{', '.join(others)} and {last}" if others else last


Indices = int | str | Iterable[int] | None
"""Layers or heads as a user gives them: a number, several, a range, `0-3`, or `all`."""


def parse_indices(option: str, indices: Indices) -> list[int] | None:
    """Return the indices of layers or heads that a user selects, in order; None for `all`.

    >>> parse_indices("layers", "0-2,5"), parse_indices("layers", range(2))
    ([0, 1, 2, 5], [0, 1])

    Args:
        indices: a number, several numbers, or a text: `3`, `0,2`, `0-3`, `all`; None: all.
    """
    if indices is None or indices == "all":
        return None
    if isinstance(indices, str):
        return _parse_text(option, indices)
    several = [indices] if isinstance(indices, int) else list(indices)
    if not several or not all(type(each) is int and each >= 0 for each in several):
        raise _no_indices(option, indices)
    return sorted(set(several))


def _parse_text(option: str, text: str) -> list[int]:
    part = "[0-9]{1,5}(-[0-9]{1,5})?"
    if not re.fullmatch(f"{part}(,{part})*", text):
        raise _no_indices(option, text)
    numbers: set[int] = set()
    for part in text.split(","):
        first, _, last = part.partition("-")
        if int(last or first) < int(first):
            forwards = spelled(**{option: f"{last}-{first}"})
            raise OptionError(f"{spelled(option, part)} ends before it starts.", hint=forwards)
        numbers.update(range(int(first), int(last or first) + 1))
    return sorted(numbers)


def _no_indices(option: str, indices: object) -> OptionError:
    hint = spelled_any(option, [3, "0-3", "0,2", "all"])
    return OptionError(f"{spelled(option)} is {indices!r}, but takes numbers from 0.", hint=hint)
