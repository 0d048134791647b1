"""Values of options that several functions take which run a model."""

from __future__ import annotations

from enum import StrEnum


class StackName(StrEnum):
    """Whose layers, in a model with several stacks of them."""

    SELF = "self"
    ENCODER = "encoder"
    DECODER = "decoder"
    CROSS = "cross"
    TEXT = "text"
    VISION = "vision"
    AUDIO = "audio"
