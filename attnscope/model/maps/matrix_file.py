"""Attention maps as tensors in a file: whole, or written a few rows at a time while they are computed.

What is larger than memory is written as a complete file, or none.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import asdict
from pathlib import Path
from shutil import disk_usage
from tempfile import TemporaryFile
from typing import IO, TYPE_CHECKING, Any

from attnscope.base.errors import FileError
from attnscope.base.process.files import whole_file
from attnscope.base.units import bytes_text
from attnscope.document.tensor_file import Tensors, check_target
from attnscope.model.maps.result import METADATA, AttentionMaps

if TYPE_CHECKING:
    import numpy as np

ITEM = 4
"""The size of a float32 in bytes."""

AT_ONCE = 2**24
"""The number of bytes copied at a time."""


class MatrixFile:
    """Float32 matrices of one shape in a file, whose rows can be written in any order.

    A `.safetensors` file is written in place, because the offset of each matrix is known in advance. For
    the other formats, rows are collected in an unnamed temporary file in the same folder, because a
    `.npz` has a checksum after every matrix, and torch writes a `.pt` from complete storages.

    Args:
        called: its final name; the suffix decides the format.
    """

    def __init__(self, path: Path, called: Path, about: Mapping[str, str] | None = None) -> None:
        self.path, self.called, self.about = path, called, dict(about or {})
        self.names: list[str] = []
        self.size = 0
        self.shape = (0, 0)
        self._start = 0  # of the first matrix in the file
        self._file: IO[bytes] | None = None
        self._starts: dict[str, int] = {}  # of each matrix, after the first
        self._rows: dict[str, int] = {}  # how many of each matrix have been written

    @property
    def matrix_bytes(self) -> int:
        """The size of one matrix in bytes."""
        return self.shape[0] * self.shape[1] * ITEM

    def begin(self, names: Sequence[str], shape: tuple[int, int]) -> None:
        """Allocate space for the matrices.

        Args:
            names: their names, in the order of the file.
            shape: the shape of each, `n_Q n_K`.
        """
        self.names, self.shape = list(names), shape
        self._rows = dict.fromkeys(names, 0)
        self._starts = {name: i * self.matrix_bytes for i, name in enumerate(names)}
        in_place = self.called.suffix == ".safetensors"
        size = self.matrix_bytes * len(names)
        needed = size * (1 if in_place else 2)
        free = disk_usage(self.path.parent).free
        if needed > free:
            meanwhile, instead = ("", "") if in_place else (" while it is written", "; or .safetensors")
            raise FileError(
                f"{self.called} takes {bytes_text(needed)}{meanwhile}, but its disk has"
                f" {bytes_text(free)} free.",
                hint=f"fewer heads, or a shorter text{instead}",
            )
        if in_place:
            header = self._header()
            self._file, self._start = self.path.open("r+b"), len(header)
            self._file.write(header)
        else:
            self._file = TemporaryFile(dir=self.path.parent)  # noqa: SIM115 - closed by `close`
        self._file.truncate(self._start + size)

    def write(self, name: str, row: int, rows: np.ndarray) -> None:
        """Write some rows of a matrix.

        Args:
            rows: `… n_K`.
        """
        import numpy as np

        assert self._file is not None
        self._file.seek(self._start + self._starts[name] + row * self.shape[1] * ITEM)
        self._file.write(np.ascontiguousarray(rows, dtype="<f4").data)
        self._rows[name] += len(rows)

    def finish(self) -> None:
        """Convert the collected rows to the file's format."""
        assert self._file is not None
        lacking = [name for name, n in self._rows.items() if n != self.shape[0]]
        assert not lacking, f"{lacking[0]} has {self._rows[lacking[0]]} of {self.shape[0]} rows"
        self._file.flush()
        if self.called.suffix in FORMATS:
            FORMATS[self.called.suffix](self)
        self.size = self.path.stat().st_size

    def close(self) -> None:
        """Close the file."""
        if self._file is not None:
            self._file.close()

    def _header(self) -> bytes:
        """Return the header before the matrices: https://huggingface.co/docs/safetensors, "Format"."""
        size = self.matrix_bytes
        about: dict[str, Any] = {"__metadata__": self.about} if self.about else {}
        about |= {
            name: {"dtype": "F32", "shape": self.shape, "data_offsets": [start, start + size]}
            for name, start in self._starts.items()
        }
        text = json.dumps(about, separators=(",", ":")).encode()
        text += b" " * (-len(text) % 8)  # so that the matrices are aligned for float32
        return len(text).to_bytes(8, "little") + text

    def _write_npz(self) -> None:
        from zipfile import ZipFile

        from numpy.lib import format as npy

        assert self._file is not None
        header = {"descr": "<f4", "fortran_order": False, "shape": self.shape}
        self._file.seek(0)
        with ZipFile(self.path, "w") as archive:
            for name in self.names:
                with archive.open(f"{name}.npy", "w", force_zip64=True) as member:
                    npy.write_array_header_1_0(member, header)
                    for start in range(0, self.matrix_bytes, AT_ONCE):
                        member.write(self._file.read(min(AT_ONCE, self.matrix_bytes - start)))

    def _write_pt(self) -> None:
        import numpy as np
        import torch

        assert self._file is not None
        mapped = np.memmap(self._file, "<f4", "r+", shape=(len(self.names), *self.shape))
        # Each matrix needs a storage of its own: torch saves the whole storage of a view.
        matrices = {
            name: torch.from_numpy(np.asarray(each))
            for name, each in zip(self.names, mapped, strict=True)
        }
        try:
            with self.path.open("wb") as file:
                torch.save(matrices, file)
        except RuntimeError as error:  # torch raises it if the disk is full
            raise OSError(str(error)) from error


FORMATS: dict[str, Callable[[MatrixFile], None]] = {
    ".npz": MatrixFile._write_npz,
    ".pt": MatrixFile._write_pt,
}
"""The formats that are written at the end, from the collected rows."""


@contextmanager
def matrix_file(
    path: Path, *, force: bool = False, about: Mapping[str, str] | None = None
) -> Iterator[MatrixFile]:
    """Open a file of matrices, which appears under its name once all of them are written.

    Args:
        path: the file; its suffix decides the format.
    """
    check_target(path, force=force, dtypes=["float32"])
    with whole_file(path, force=force) as unfinished:
        file = MatrixFile(unfinished, path, about)
        try:
            yield file
            file.finish()
        finally:
            file.close()


class MapsFile:
    """Named whole maps, written to a file while they are computed."""

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

    Of whole maps of tokens, `METADATA` names what `attnscope.load` needs beside the weights.
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
        return {METADATA: json.dumps(about)}
    about = {"pooling": maps.pooling.shown, "weights": maps.size_text}
    return about | ({"numbers": maps.numbers} if maps.meaning else {})
