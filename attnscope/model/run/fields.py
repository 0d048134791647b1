"""Fields of a model's configuration, which may differ from layer to layer.

transformers refuses to read such a field of the whole model: Gemma 4's heads are wider in some layers.
"""

from __future__ import annotations

from typing import Any


def field_of(config: Any, name: str, layer: int | None) -> Any:
    """Return a field of one layer; None if the configuration lacks it.

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
