"""Attention maps as tensors in a file: their names, and the further arrays of pooled maps."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from attnscope.render.files.matrix_file import MatrixFile
from attnscope.render.files.tensor_file import Tensors
from attnscope.results.maps import AttentionMap, AttentionMaps

if TYPE_CHECKING:
    import numpy as np


def map_name(layer: int, head: int, *, is_only: bool) -> str:
    """Return the name of a head's map in a file: `attention` if it is the only one."""
    return "attention" if is_only else f"layer{layer}.head{head}"


def map_tensors(maps: AttentionMaps) -> Tensors:
    """Return the maps by their names in a file; pooled maps include all their arrays."""
    tensors: Tensors = {}
    is_only = len(maps.maps) == 1
    for each in maps.maps:
        name = map_name(each.layer, each.head, is_only=False)
        tensors[map_name(each.layer, each.head, is_only=is_only)] = (each.attention, "float32")
        for kind, array in pooled_arrays(each).items():
            tensors[kind if is_only else f"{name}.{kind}"] = (array, "float32")
    if maps.pooling is not None:
        import numpy as np

        for axis, cells in (("queries", maps.pooling.queries), ("keys", maps.pooling.keys)):
            starts = [[cell.start, cell.stop] for cell in cells]
            tensors[f"{axis}_of_cells"] = (np.array(starts), "int64")
    return tensors


def map_metadata(maps: AttentionMaps) -> dict[str, str] | None:
    """Return the metadata of pooled maps, for file formats that support metadata."""
    if maps.pooling is None:
        return None
    return {"pooling": maps.pooling.shown, "weights": map_size(maps)}


def map_size(maps: AttentionMaps) -> str:
    """Describe the numbers of queries and keys of a whole map."""
    return f"{len(maps.query_tokens):,} × {len(maps.key_tokens):,}"


def pooled_arrays(map: AttentionMap) -> dict[str, Any]:
    """Return the arrays of a pooled map in addition to the one it shows, by name."""
    arrays = {"mean": map.mean, "max": map.max, "row": map.row}
    return {name: array for name, array in arrays.items() if array is not None}


class MapsFile:
    """Named whole maps, written to a file while they are computed.

    Args:
        file: the file of matrices.
    """

    def __init__(self, file: MatrixFile) -> None:
        self.file = file
        self._is_only = False

    def begin(self, heads: Sequence[tuple[int, int]], shape: tuple[int, int]) -> None:
        """Prepare the file for the maps of these layers and heads, `n_Q n_K` each."""
        self._is_only = len(heads) == 1
        self.file.begin([map_name(*each, is_only=self._is_only) for each in heads], shape)

    def write(self, layer: int, head: int, row: int, rows: np.ndarray) -> None:
        """Write some rows of a map, beginning with `row`."""
        self.file.write(map_name(layer, head, is_only=self._is_only), row, rows)
