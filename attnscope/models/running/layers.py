"""Find out which stack and which layer a module belongs to, and how many of them a model has."""

from __future__ import annotations

import re
from collections.abc import Collection
from typing import Any

from attnscope.checkpoints.indices import check_range
from attnscope.models.running.tokenize import Reading

STACKS = ("self", "text", "encoder", "decoder", "cross", "vision")
"""All stacks that can be observed; those of one model run in this order."""


def has_towers(config: Any) -> bool:
    """Whether a model has one stack of layers for text and another for pictures."""
    return hasattr(config, "text_config") and hasattr(config, "vision_config")


def stacks_that_run(config: Any, *, picture: bool, decodes: bool) -> list[str]:
    """The stacks of a model that a reading runs through, the first to run first."""
    if config.is_encoder_decoder:
        return ["encoder", "decoder", "cross"] if decodes else ["encoder"]
    if has_towers(config):
        return ["vision" if picture else "text"]
    return ["self"]


def stack_of(path: str, config: Any, *, cross: bool) -> str:
    """Which stack a module belongs to, by its name in the model."""
    if cross:
        return "cross"
    if config.is_encoder_decoder:
        return "decoder" if re.search(r"(^|\.)decoder\.", path) else "encoder"
    if has_towers(config):
        return "vision" if re.search(r"vision|visual|image", path) else "text"
    return "self"


def layer_of(model: Any, stack: str, path: str, known: Collection[tuple[str, int]]) -> tuple[int, int]:
    """The number of the layer that a module attends for, and how many there are.

    Args:
        model: whose module it is.
        stack: which of its stacks the module belongs to.
        path: the module's name in the model.
        known: the layers that have attended before it, by stack and number.
    """
    config = model.config
    if getattr(config, "num_hidden_groups", None):  # ALBERT runs the same modules again and again
        n_known = sum(each == stack for each, _ in known)
        return n_known, config.num_hidden_layers * getattr(config, "inner_group_num", 1)
    match = re.match(r"(?:(.*?)\.)?(\d+)(?:\.|$)", path)
    if match is None:
        return 0, 1
    return int(match[2]), len(model.get_submodule(match[1] or ""))


def check_numbers(
    model: str, config: Any, reading: Reading, layers: Collection[int], heads: Collection[int]
) -> None:
    """Raise a ModelError if a configuration tells that there is no such layer or head."""
    n_layer, n_head = counts(config, reading)
    if config.is_encoder_decoder:
        return  # its two stacks may differ
    for layer in layers:
        check_range("layer", layer, n_layer or layer + 1, model)
    for head in heads:
        check_range("head", head, n_head or head + 1, model)


def counts(config: Any, reading: Reading) -> tuple[int | None, int | None]:
    """How many layers and heads a configuration tells of, in the stack that reads."""
    seen = getattr(config, "vision_config", config)
    own = seen if reading.picture else config.get_text_config()
    counts = [getattr(own, name, None) for name in ("num_hidden_layers", "num_attention_heads")]
    n_layer, n_head = (each if isinstance(each, int) else None for each in counts)
    return n_layer, n_head
