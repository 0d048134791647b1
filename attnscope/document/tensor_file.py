"""Write tensors by name to a `.safetensors`, `.npz` or `.pt` file: the complete file or none."""

from __future__ import annotations

from collections.abc import Callable, Collection
from pathlib import Path
from typing import TYPE_CHECKING

from attnscope.base.arrays import to_tensor
from attnscope.base.errors import FileError
from attnscope.base.process.files import check_file, whole_file
from attnscope.base.spelling import spelled

if TYPE_CHECKING:
    import numpy as np

Tensors = dict[str, "tuple[np.ndarray, str]"]
"""Arrays as stored, and the names of their dtypes, by name."""


def check_target(path: Path, *, force: bool, dtypes: Collection[str]) -> None:
    """Check that a file can be written, before any work is done for it; raise a FileError if not."""
    if path.suffix == ".npz" and "bfloat16" in dtypes:
        raise FileError(
            f"{path} cannot hold bfloat16: numpy has no such dtype.",
            hint=f"{spelled(save=path.with_suffix('.safetensors'))} (or .pt)",
        )
    check_file(
        path,
        force=force,
        suffixes=WRITERS,
        kind="tensors",
        inside=spelled(save=path / "tensors.safetensors"),
    )


def save(
    path: Path, tensors: Tensors, *, force: bool = False, metadata: dict[str, str] | None = None
) -> int:
    """Write tensors to a file, in the format that its suffix names; return its size in bytes.

    Only a `.safetensors` file has metadata. If it cannot be written, nothing is left of it.
    """
    import numpy as np
    from safetensors import SafetensorError

    check_target(path, force=force, dtypes=[dtype for _, dtype in tensors.values()])
    whole = {name: (np.asarray(array, order="C"), dtype) for name, (array, dtype) in tensors.items()}
    failures = (SafetensorError, RuntimeError)  # the latter is torch's
    with whole_file(path, *failures, force=force) as unfinished:
        WRITERS[path.suffix](unfinished, whole, metadata)
        return unfinished.stat().st_size


def _write_safetensors(path: Path, tensors: Tensors, metadata: dict[str, str] | None) -> None:
    from safetensors import TensorSpec, serialize_file

    specs = {
        name: TensorSpec(dtype=dtype, shape=list(a.shape), data_ptr=a.ctypes.data, data_len=a.nbytes)
        for name, (a, dtype) in tensors.items()
    }
    serialize_file(specs, path, metadata)


def _write_npz(path: Path, tensors: Tensors, metadata: dict[str, str] | None) -> None:
    from zipfile import ZipFile

    from numpy.lib import format as npy

    # Like np.savez, but for any name: savez does not accept names of its own arguments.
    with ZipFile(path, "w") as archive:
        for name, (array, _) in tensors.items():
            with archive.open(f"{name}.npy", "w", force_zip64=True) as member:
                npy.write_array(member, array, allow_pickle=False)


def _write_pt(path: Path, tensors: Tensors, metadata: dict[str, str] | None) -> None:
    import torch

    whole = {
        # torch warns of arrays that are read-only
        name: to_tensor(array if array.flags.writeable else array.copy(), dtype)
        for name, (array, dtype) in tensors.items()
    }
    with path.open("wb") as file:  # given a path, torch reports a full disk as "basic_ios::clear"
        torch.save(whole, file)


WRITERS: dict[str, Callable[[Path, Tensors, dict[str, str] | None], None]] = {
    ".safetensors": _write_safetensors,
    ".npz": _write_npz,
    ".pt": _write_pt,
}
