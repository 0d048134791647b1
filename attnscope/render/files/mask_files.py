"""Write masks: as tensors, as a figure, or as a page."""

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING, Any

from attnscope.errors import FileError
from attnscope.files import check_file, whole_file, write_file
from attnscope.render.files.tensor_file import WRITERS, Tensors
from attnscope.render.page.document import document
from attnscope.results.masks import AttentionMasks

if TYPE_CHECKING:
    import numpy as np

PAGES = (".html", ".htm")
NPY = ".npy"


def check_masks_file(path: Path, *, force: bool) -> None:
    """Check that a file of masks can be written, before any work is done for it.

    Raises:
        FileError: unknown suffix, no such folder, no permission to write, or the file exists.
    """
    inside = f"--save {path / 'mask.npy'}"
    check_file(path, force=force, suffixes=(NPY, *WRITERS), kind="masks", inside=inside)


def save_masks(result: AttentionMasks, path: Path, *, force: bool = False, **options: Any) -> int:
    """Write masks to a file, in the format that its suffix names; return its size in bytes.

    Args:
        result: the masks.
        path: `.npy` for a single mask; `.npz`, `.safetensors` or `.pt`; a figure; or a page.
        force: whether to overwrite an existing file.
        options: those of a figure.

    Raises:
        FileError: it cannot be written; nothing is left of it then.
        SizeError: the masks do not fit into memory.
    """
    kind = path.suffix.lower()
    if kind in PAGES:
        from attnscope.render.notebook.html import html

        content = document(f"{result.title} · masks", html(result)).encode()
        write_file(path, content, force=force)
        return len(content)
    if kind != NPY and kind not in WRITERS:
        from attnscope.render.figures.save_figure import save_masks_plot

        return save_masks_plot(path, result, force=force, **options)
    check_masks_file(path, force=force)
    tensors = mask_tensors(result)
    if kind != NPY:
        from attnscope.render.files.tensor_file import save

        layers = {name: each.layers for name, each in zip(tensors, result.masks, strict=True)}
        metadata = None if result.model is None else {"layers": json.dumps(layers)}
        return save(path, tensors, force=force, metadata=metadata)
    if len(tensors) > 1:
        raise FileError(
            f"{path} holds one array, and there are {len(tensors)} masks.",
            hint=f"--layer N, or --save {path.with_suffix('.npz')}",
        )
    [(array, _)] = tensors.values()
    return _write_npy(path, array, force=force)


def mask_tensors(result: AttentionMasks) -> Tensors:
    """Return each mask by its name: `mask` if it is the only one, else by its first layer.

    Each is `n_batch n_head n_Q n_K`, True where a query sees a key.
    """
    names = ["mask"]
    if len(result.masks) > 1:
        names = [f"{each.stack}.layer{(each.layers or [0])[0]}" for each in result.masks]
    return {name: (each.visible, "bool") for name, each in zip(names, result.masks, strict=True)}


def _write_npy(path: Path, array: np.ndarray, *, force: bool) -> int:
    import numpy as np

    with whole_file(path, force=force) as unfinished:
        with unfinished.open("wb") as file:
            np.lib.format.write_array(file, np.asarray(array, order="C"), allow_pickle=False)
        return unfinished.stat().st_size
