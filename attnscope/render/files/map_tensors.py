"""Attention maps as tensors in a file: what they are called, and what is known of pooled ones."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from attnscope.render.files.matrix_file import MatrixFile
from attnscope.render.files.tensor_file import Tensors
from attnscope.results.maps import AttentionMap, AttentionMaps

if TYPE_CHECKING:
    import numpy as np


def map_name(layer: int, head: int, *, one: bool) -> str:
    """Return what a head's map is called in a file: of `one` alone, `attention`."""
    return "attention" if one else f"layer{layer}.head{head}"


def map_tensors(maps: AttentionMaps) -> Tensors:
    """Return the maps by their names in a file; of pooled maps, all that is known of them."""
    tensors: Tensors = {}
    one = len(maps.maps) == 1
    for each in maps.maps:
        name = map_name(each.layer, each.head, one=False)
        tensors[map_name(each.layer, each.head, one=one)] = (each.attention, "float32")
        for kind, array in pooled_arrays(each).items():
            tensors[kind if one else f"{name}.{kind}"] = (array, "float32")
    if maps.pooling is not None:
        import numpy as np

        for axis, cells in (("queries", maps.pooling.queries), ("keys", maps.pooling.keys)):
            starts = [[cell.start, cell.stop] for cell in cells]
            tensors[f"{axis}_of_cells"] = (np.array(starts), "int64")
    return tensors


def map_metadata(maps: AttentionMaps) -> dict[str, str] | None:
    """Return what a file says of pooled maps beside its tensors, where its format has a place for it."""
    if maps.pooling is None:
        return None
    return {"pooling": maps.pooling.shown, "weights": map_size(maps)}


def map_size(maps: AttentionMaps) -> str:
    """Return how many queries and keys a whole map has, in words."""
    return f"{len(maps.query_tokens):,} × {len(maps.key_tokens):,}"


def pooled_arrays(map: AttentionMap) -> dict[str, Any]:
    """Return what is known of a pooled map beside what it shows, by name."""
    arrays = {"mean": map.mean, "max": map.max, "row": map.row}
    return {name: array for name, array in arrays.items() if array is not None}


class MapsFile:
    """Names whole maps, and hands them to a file while they are computed.

    Args:
        file: of matrices.
    """

    def __init__(self, file: MatrixFile) -> None:
        self.file = file
        self._one = False

    def begin(self, heads: Sequence[tuple[int, int]], shape: tuple[int, int]) -> None:
        """Get ready for the maps of these layers and heads, `n_Q n_K` each."""
        self._one = len(heads) == 1
        self.file.begin([map_name(*each, one=self._one) for each in heads], shape)

    def write(self, layer: int, head: int, row: int, rows: np.ndarray) -> None:
        """Write some rows of a map, from number `row` on."""
        self.file.write(map_name(layer, head, one=self._one), row, rows)
