"""Attention maps as tensors in a file: their names, and the further arrays of pooled maps."""

from __future__ import annotations

import json
from dataclasses import asdict
from typing import Any

from attnscope.document.tensor_file import Tensors
from attnscope.models.maps.result import AttentionMaps


def map_name(layer: int, head: int, *, is_only: bool) -> str:
    """Return the name of a head's map in a file: `attention` if it is the only one."""
    return "attention" if is_only else f"layer{layer}.head{head}"


def map_tensors(maps: AttentionMaps) -> Tensors:
    """Return the maps by their names in a file; pooled maps include all their arrays."""
    tensors: Tensors = {}
    is_only = len(maps.maps) == 1
    for each in maps.maps:
        for kind, array in each.arrays.items():
            name = kind if is_only else map_name(each.layer, each.head, is_only=False)
            suffix = "" if is_only or kind == "attention" else f".{kind}"
            tensors[name + suffix] = array, "float32"
    if maps.pooling is not None:
        import numpy as np

        for axis, cells in (("queries", maps.pooling.queries), ("keys", maps.pooling.keys)):
            starts = [[cell.start, cell.stop] for cell in cells]
            tensors[f"{axis}_of_cells"] = (np.array(starts), "int64")
    return tensors


def map_metadata(maps: AttentionMaps) -> dict[str, str] | None:
    """Return the metadata of maps, for file formats that support metadata.

    Of whole maps of tokens, `attnscope.maps` is what `attnscope.load` needs beside the weights.
    """
    if maps.pooling is None:
        if maps.picture is not None:
            return None
        names = ("model", "stack", "numbers", "n_layer", "n_head", "n_kv_head", "first_query", "notices")
        about: dict[str, Any] = {name: getattr(maps, name) for name in names}
        for axis in ("query_tokens", "key_tokens"):
            about[axis] = [asdict(token) for token in getattr(maps, axis)]
        is_only = len(maps.maps) == 1
        about["maps"] = [
            (map_name(each.layer, each.head, is_only=is_only), each.layer, each.head, each.kv_head)
            for each in maps.maps
        ]
        return {"attnscope.maps": json.dumps(about)}
    about = {"pooling": maps.pooling.shown, "weights": maps.size_text}
    return about | ({"numbers": maps.numbers} if maps.meaning else {})
