"""Write masks as tensors."""

from __future__ import annotations

import json
from pathlib import Path

from attnscope.base.errors import FileError
from attnscope.base.process.files import check_file, whole_file
from attnscope.base.spelling import spelled
from attnscope.document.tensor_file import WRITERS, Tensors
from attnscope.masks.result import AttentionMasks

NPY = ".npy"


def check_masks_file(path: Path, *, force: bool) -> None:
    """Check that a file of masks can be written, before any work is done for it."""
    inside = spelled(save=path / "mask.npy")
    check_file(path, force=force, suffixes=(NPY, *WRITERS), kind="masks", inside=inside)


def save_masks(result: AttentionMasks, path: Path, *, force: bool = False) -> int:
    """Write masks to a file, in the format that its suffix names; return its size in bytes."""
    kind = path.suffix.lower()
    check_masks_file(path, force=force)
    tensors = mask_tensors(result)
    if kind != NPY:
        from attnscope.document.tensor_file import save

        layers = {name: each.layers for name, each in zip(tensors, result.masks, strict=True)}
        metadata = None if result.model is None else {"layers": json.dumps(layers)}
        return save(path, tensors, force=force, metadata=metadata)
    if len(tensors) > 1:
        raise FileError(
            f"{path} holds one array, and there are {len(tensors)} masks.",
            hint=("" if result.model is None else f"{spelled(layers='N')}, or ")
            + spelled(save=path.with_suffix(".npz")),
        )
    import numpy as np

    [(array, _)] = tensors.values()
    with whole_file(path, force=force) as unfinished:
        with unfinished.open("wb") as file:
            np.lib.format.write_array(file, np.asarray(array, order="C"), allow_pickle=False)
        return unfinished.stat().st_size


def mask_tensors(result: AttentionMasks) -> Tensors:
    """Return each mask by its name: `mask` if it is the only one, else by its first layer, or numbered.

    Each is `n_batch n_head n_Q n_K`, True where a query sees a key.
    """
    names = ["mask"]
    if len(result.masks) > 1 and result.model is None:
        names = [f"mask{i}" for i in range(len(result.masks))]
    elif len(result.masks) > 1:
        names = [f"{each.stack}.layer{(each.layers or [0])[0]}" for each in result.masks]
    return {name: (each.visible, "bool") for name, each in zip(names, result.masks, strict=True)}
