"""Determine the stack and the layer of a module, and the fields of a layer's configuration."""

from __future__ import annotations

import re
from collections.abc import Collection, Mapping
from typing import Any

from attnscope.base.errors import OptionError
from attnscope.base.spelling import spelled
from attnscope.model.files.indices import check_indices, check_range
from attnscope.model.run.tokenize import Reading

STACKS = ("self", "text", "encoder", "decoder", "cross", "vision")
"""All stacks that can be observed; those of one model run in this order."""


def has_towers(config: Any) -> bool:
    """Check whether a model has separate stacks for text and for images."""
    return hasattr(config, "text_config") and hasattr(config, "vision_config")


def stacks_that_run(config: Any, *, picture: bool, decodes: bool) -> list[str]:
    """Return the stacks of a model that run, in order."""
    if config.is_encoder_decoder:
        return ["encoder", "decoder", "cross"] if decodes else ["encoder"]
    if has_towers(config):
        return ["vision" if picture else "text"]
    return ["self"]


def stack_of(path: str, config: Any, *, cross: bool) -> str:
    """Return the stack that a module belongs to, according to its name in the model."""
    if cross:
        return "cross"
    if config.is_encoder_decoder:
        return "decoder" if re.search(r"(^|\.)decoder\.", path) else "encoder"
    if has_towers(config):
        return "vision" if re.search(r"vision|visual|image", path) else "text"
    return "self"


def layer_of(model: Any, stack: str, path: str, known: Collection[tuple[str, int]]) -> tuple[int, int]:
    """Return the index of the layer that a module belongs to, and the number of layers."""
    config = model.config
    if getattr(config, "num_hidden_groups", None):  # ALBERT runs the same modules repeatedly
        n_known = sum(each == stack for each, _ in known)
        return n_known, config.num_hidden_layers * getattr(config, "inner_group_num", 1)
    match = re.match(r"(?:(.*?)\.)?(\d+)(?:\.|$)", path)
    if match is None:
        return 0, 1
    return int(match[2]), len(model.get_submodule(match[1] or ""))


def why_repeated(stack: str, layer: int, known: Collection[tuple[str, int]]) -> str | None:
    """Explain why a layer cannot be shown if its attention ran before: it attends more than once."""
    return f"layer {layer} attends more than once" if (stack, layer) in known else None


def check_selected(
    model: str,
    stack: str | None,
    layers: Collection[int],
    heads: Collection[int],
    *,
    n_layer: Mapping[str, int],
    n_head: Mapping[tuple[str, int], int],
) -> None:
    """Raise an AttnscopeError if a model that ran has no such stack, layer or head.

    Args:
        stack: the selected stack; None: all.
        layers, heads: the selected indices; empty: all.
        n_head: the number of heads of each layer with attention, by stack and index.
    """
    stacks: Collection[str] = [stack] if stack else list(n_layer)
    for each in stacks:
        if not any(other == each for other, _ in n_head):
            raise OptionError(
                f"{model} runs no {each} attention here, only {', '.join(n_layer)}.",
                hint=spelled(stack=next(iter(n_layer))),
            )
    check_indices(model, stacks, layers, heads, n_layer=n_layer, n_head=n_head)


def check_numbers(
    model: str, config: Any, reading: Reading, layers: Collection[int], heads: Collection[int]
) -> None:
    """Raise a ModelError if a layer or head is out of range according to the configuration."""
    n_layer, n_head = counts(config, reading)
    if config.is_encoder_decoder:
        return  # its two stacks may differ
    for layer in layers:
        check_range("layer", layer, n_layer or layer + 1, model)
    for head in heads:
        check_range("head", head, n_head or head + 1, model)


def counts(config: Any, reading: Reading) -> tuple[int | None, int | None]:
    """Return the numbers of layers and heads in the configuration of the stack that runs, if given."""
    vision = getattr(config, "vision_config", config)
    part = vision if reading.picture else config.get_text_config()
    n_layer, n_head = (
        max((each for each in values_of(part, name) if isinstance(each, int)), default=None)
        for name in ("num_hidden_layers", "num_attention_heads")
    )
    return n_layer, n_head


# Fields of a configuration, which may differ from layer to layer.


def field_of(config: Any, name: str, layer: int | None) -> Any:
    """Return a field of one layer; None if the configuration lacks it.

    transformers refuses to read a field that differs from layer to layer of the whole model: Gemma 4's
    heads are wider in some layers.

    Args:
        layer: the layer's index; None: the first layer.
    """
    values = values_of(config, name)
    return values[layer] if layer is not None and layer < len(values) else values[0]


def values_of(config: Any, name: str) -> list[Any]:
    """Return a field of every layer, or once if all have the same; None where it is missing."""
    if not getattr(config, "is_heterogeneous", False):
        return [getattr(config, name, None)]
    return [getattr(each, name, None) for each in config.per_layer_config]
