"""Planes of a mask for each pair, which sequences and heads share where they see the same."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from attnscope.masks.planes import MatrixPlane, Plane


def planes_of_matrix(visible: Any, sizes: Mapping[str, int]) -> list[Plane]:
    """Return the distinct planes of a mask.

    Args:
        visible: a boolean torch tensor on the CPU that broadcasts to `n_batch n_head n_Q n_K`.
        sizes: the sizes of these axes.
    """
    import numpy as np

    visible = visible.reshape((1,) * (4 - visible.dim()) + tuple(visible.shape))
    n_head = visible.shape[1]
    same_in_all = visible.shape[0] == 1 or visible.stride(0) == 0
    array = visible[:1].numpy() if same_in_all else visible.numpy()
    array = np.broadcast_to(array, (*array.shape[:2], sizes["n_Q"], sizes["n_K"]))
    groups: dict[bytes, list[tuple[int, int]]] = {}
    for sequence in range(len(array)):
        for head in range(n_head):
            key = np.packbits(array[sequence, head]).tobytes()
            groups.setdefault(key, []).append((sequence, head))
    n_copy = sizes["n_batch"] if same_in_all else 1
    return [
        MatrixPlane(
            [(copy + sequence, head) for copy in range(n_copy) for sequence, head in places],
            sizes["n_Q"],
            sizes["n_K"],
            array[places[0]],
        )
        for places in groups.values()
    ]
