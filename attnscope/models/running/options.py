"""Values of options shared by functions that run a model."""

from __future__ import annotations

from enum import StrEnum


class StackName(StrEnum):
    """The stacks of layers that models may have."""

    SELF = "self"
    ENCODER = "encoder"
    DECODER = "decoder"
    CROSS = "cross"
    TEXT = "text"
    VISION = "vision"
    AUDIO = "audio"
