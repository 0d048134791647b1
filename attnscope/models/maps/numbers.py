"""What the numbers of attention maps are: weights, or what is computed from them."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class MapNumbers:
    """What the numbers of maps are, in words.

    Attributes:
        name: as records name it.
        label: one of them, as an axis of colours names it.
        meaning: how they are computed and what they sum to; empty for the weights themselves.
        as_weights: whether they are shares of 1, as weights are.
        of_heads: whether a map is that of a head; else of all layers up to one.
    """

    name: str
    label: str
    meaning: str
    as_weights: bool = True
    of_heads: bool = True


WEIGHTS = MapNumbers("weights", "weight", "")
"""The weights after the softmax."""

VALUE_WEIGHTED = MapNumbers(
    "value-weighted",
    "α‖v W_O‖",
    "value-weighted: weight α_ij times the norm ‖v_j W_O^h‖ of the key's value; rows do not sum to 1",
    as_weights=False,
)
"""Weights times the norms of values behind the output projection: `attnscope.models.value_norms`."""

ROLLOUT = MapNumbers(
    "rollout",
    "rollout",
    "rollout: R = ½(Ā + I) R of the layer below, with Ā the mean of a layer's heads; no head's weights",
    of_heads=False,
)
"""Products of maps over layers: `attnscope.models.maps.rollout`."""

NUMBERS = {each.name: each for each in (WEIGHTS, VALUE_WEIGHTED, ROLLOUT)}
"""All kinds, by name."""
