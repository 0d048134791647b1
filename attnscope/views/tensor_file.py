"""Writes tensors by name into one file: `.safetensors`, `.npz` or `.pt`. The whole file or none."""

from __future__ import annotations

import os
from collections.abc import Callable, Collection
from pathlib import Path
from typing import TYPE_CHECKING

from attnscope.errors import FileError

if TYPE_CHECKING:
    import numpy as np

Tensors = dict[str, "tuple[np.ndarray, str]"]
"""Arrays as stored, and the names of their dtypes, by name."""


def check_target(path: Path, *, force: bool, dtypes: Collection[str]) -> None:
    """Find out whether a file can be written, before any work is done for it.

    Args:
        path: the file.
        force: whether it may replace one that is there.
        dtypes: the dtypes that it is to hold.

    Raises:
        FileError: it cannot: unknown suffix, no such folder, no right to write, there already.
    """
    if path.suffix not in WRITERS:
        raise FileError(
            f"{path} ends in {path.suffix or 'no suffix'}, which names no format for tensors.",
            hint=f"a name that ends in {', '.join(WRITERS)}",
        )
    if path.suffix == ".npz" and "bfloat16" in dtypes:
        raise FileError(
            f"{path} cannot hold bfloat16: numpy has no such dtype.",
            hint=f"--save {path.with_suffix('.safetensors')} (or .pt)",
        )
    if path.is_dir():
        raise FileError(f"{path} is a folder.", hint=f"--save {path / 'tensors.safetensors'}")
    if not path.parent.is_dir():
        raise FileError(f"there is no folder {path.parent} to write {path.name} into.")
    if not os.access(path.parent, os.W_OK):
        raise FileError(f"you may not write into the folder {path.parent}.")
    if path.exists() and not force:
        raise FileError(f"{path} exists already.", hint="another name, or --force to replace it")


def save(path: Path, tensors: Tensors, *, force: bool = False) -> None:
    """Write tensors into a file, in the format that its suffix names.

    Args:
        path: the file.
        tensors: what to write.
        force: whether it may replace a file that is there.

    Raises:
        FileError: it cannot be written; then nothing is.
    """
    import numpy as np
    from safetensors import SafetensorError

    check_target(path, force=force, dtypes=[dtype for _, dtype in tensors.values()])
    whole = {name: (np.asarray(array, order="C"), dtype) for name, (array, dtype) in tensors.items()}
    path = path.resolve()  # the file that a link points to is replaced, not the link
    unfinished = path.with_name(f".{path.name}.{os.getpid()}.part{path.suffix}")
    try:
        unfinished.touch()
        rights = (path if path.exists() else unfinished).stat().st_mode
        WRITERS[path.suffix](unfinished, whole)
        unfinished.chmod(rights)  # safetensors writes files that nobody else may read
        os.replace(unfinished, path)
    except (OSError, SafetensorError) as error:
        reason = getattr(error, "strerror", None) or error
        raise FileError(f"cannot write {path}: {reason}.") from error
    finally:
        unfinished.unlink(missing_ok=True)


def _write_safetensors(path: Path, tensors: Tensors) -> None:
    from safetensors import TensorSpec, serialize_file

    specs = {
        name: TensorSpec(dtype=dtype, shape=list(a.shape), data_ptr=a.ctypes.data, data_len=a.nbytes)
        for name, (a, dtype) in tensors.items()
    }
    serialize_file(specs, path)


def _write_npz(path: Path, tensors: Tensors) -> None:
    from zipfile import ZipFile

    from numpy.lib import format as npy

    # As np.savez does it, but for any name: savez takes none that it has an argument of.
    with ZipFile(path, "w") as archive:
        for name, (array, _) in tensors.items():
            with archive.open(f"{name}.npy", "w", force_zip64=True) as member:
                npy.write_array(member, array, allow_pickle=False)


def _write_pt(path: Path, tensors: Tensors) -> None:
    import torch

    torch.save(
        {
            name: torch.from_numpy(array.view("int16") if dtype == "bfloat16" else array.copy()).view(
                getattr(torch, dtype)
            )
            for name, (array, dtype) in tensors.items()
        },
        path,
    )


WRITERS: dict[str, Callable[[Path, Tensors], None]] = {
    ".safetensors": _write_safetensors,
    ".npz": _write_npz,
    ".pt": _write_pt,
}
