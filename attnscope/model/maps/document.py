"""The document of attention maps."""

from __future__ import annotations

from functools import partial

from attnscope.document.blocks import Block, Plot
from attnscope.model.maps.drawing import MapsDrawing
from attnscope.model.maps.figure import draw_maps
from attnscope.model.maps.result import AttentionMaps


def document(maps: AttentionMaps) -> list[Block]:
    """Build the blocks of what is shown of the maps, or of the steps that lead to them."""
    if maps.steps is not None:
        return maps.steps.document()
    return [MapsDrawing(maps), Plot(partial(draw_maps, maps=maps, query=maps.query))]
