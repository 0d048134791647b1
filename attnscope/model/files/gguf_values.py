"""Read the values of a tensor in a GGUF file: only the blocks that a slice needs, dequantised.

Sources: the formats of blocks, `gguf.quants` of llama.cpp's package gguf; the order of rows,
`LlamaModel.permute` in its `conversion/llama.py`.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from attnscope.base.dtypes import GGML_BLOCKS, STORED
from attnscope.base.errors import ModelError, first_line
from attnscope.model.files.ranges import FileRanges, TensorHeader

if TYPE_CHECKING:
    import numpy as np

QUANTISED = "float32"
"""The dtype of dequantised values."""

Range = tuple[int, int]
"""Start and stop."""


@dataclass
class GgufMatrix:
    """A weight in a GGUF file, of which a range of rows or of columns can be taken."""

    tensor: TensorHeader  #: the tensor, with two axes
    #: The width of a head if the halves of each head's rows alternate in the file, else 0. What is taken
    #: is in the order of transformers.
    reordered: int = 0
    _last: tuple[tuple[Range, Range], np.ndarray] | None = field(default=None, init=False)
    _whole: np.ndarray | None = field(default=None, init=False)

    def __post_init__(self) -> None:
        self.block, self.n_bytes = _block(self.tensor)

    @property
    def shape(self) -> tuple[int, ...]:
        """The shape of the whole tensor, as torch orders it."""
        return self.tensor.shape

    @property
    def ndim(self) -> int:
        """The number of its axes."""
        return len(self.tensor.shape)

    def __getitem__(self, index: slice | tuple[slice, slice]) -> np.ndarray:
        """Return a range of rows, or of rows and columns. The last one is kept: heads share W_K."""
        rows, columns = index if isinstance(index, tuple) else (index, slice(None))
        n_row, n_column = self.shape
        key = rows.indices(n_row)[:2], columns.indices(n_column)[:2]
        if self._last is None or self._last[0] != key:
            self._last = key, self._read(*key)
        return self._last[1]

    def __array__(self, dtype: object = None, copy: bool | None = None) -> np.ndarray:
        return self[:]

    def _read(self, rows: Range, columns: Range) -> np.ndarray:
        """Read and dequantise the blocks that contain a range; with reordered rows, of whole heads."""
        (start, stop), (left, right) = rows, columns
        d_head = self.reordered or 1
        first, last = start - start % d_head, stop + -stop % d_head
        blocks = left // self.block, -(-right // self.block)
        values = dequantised(self.tensor, self._bytes((first, last), blocks))
        if self.reordered:
            values = in_order(values, d_head)
        left, right = (each - blocks[0] * self.block for each in columns)
        return values[start - first : stop - first, left:right]

    def _bytes(self, rows: Range, blocks: Range) -> np.ndarray:
        """Return the bytes of ranges of rows and of blocks in them: `n_row n_byte`.

        From a file on this machine, nothing else is read. From a server, whole rows are read, or the
        whole tensor, once, if the ranges are columns of all rows.
        """
        import numpy as np

        n_row, per_row = self.shape[0], self.shape[1] // self.block * self.n_bytes
        part = slice(blocks[0] * self.n_bytes, blocks[1] * self.n_bytes)
        file, offset = self.tensor.file, self.tensor.offset
        if self._whole is None and isinstance(file, FileRanges):
            if offset + n_row * per_row > file.size:
                raise _too_short(self.tensor)
            self._whole = np.memmap(file.path, "u1", mode="r", offset=offset, shape=(n_row, per_row))
        elif self._whole is None and rows == (0, n_row):
            self._whole = _read_rows(self.tensor, rows, per_row)
        if self._whole is not None:
            return np.ascontiguousarray(self._whole[slice(*rows), part])
        return np.ascontiguousarray(_read_rows(self.tensor, rows, per_row)[:, part])


def read_vector(tensor: TensorHeader, reordered: int = 0) -> np.ndarray:
    """Return all values of a tensor with one axis, such as a bias."""
    block, n_bytes = _block(tensor)
    (size,) = tensor.shape
    values = dequantised(tensor, _read_rows(tensor, (0, 1), size // block * n_bytes))[0]
    return in_order(values, reordered) if reordered else values


def dtype_of(tensor: TensorHeader) -> str:
    """Return attnscope's name for the dtype of a tensor's values once they are read."""
    return STORED[tensor.dtype].name if tensor.dtype in STORED else QUANTISED


def dequantised(tensor: TensorHeader, stored: np.ndarray) -> np.ndarray:
    """Return the values of rows of blocks.

    Args:
        stored: their bytes: `n_row n_byte`.
    """
    if tensor.dtype in STORED:
        return stored.view(STORED[tensor.dtype].numpy)
    try:
        from gguf.constants import GGMLQuantizationType
        from gguf.quants import dequantize
    except ImportError as error:
        raise ModelError(
            f"{tensor.name} is stored as {tensor.dtype}, which only the package gguf can read"
            f" ({first_line(error)}).",
            hint="pip install 'attnscope[gguf]'",
        ) from error
    import numpy as np

    try:
        with np.errstate(all="ignore"):  # a damaged file may have infinite scales
            return np.asarray(dequantize(stored, GGMLQuantizationType[tensor.dtype]), np.float32)
    except (NotImplementedError, KeyError) as error:
        raise _unknown_type(tensor) from error


def in_order(values: np.ndarray, d_head: int) -> np.ndarray:
    """Undo the order of rows in files: row `2b + a` of a head becomes row `a·d_head/2 + b`."""
    pairs = values.reshape(-1, d_head // 2, 2, *values.shape[1:])
    return pairs.swapaxes(1, 2).reshape(values.shape)


def _block(tensor: TensorHeader) -> tuple[int, int]:
    """Return the number of elements and of bytes of a tensor's blocks."""
    if tensor.dtype not in GGML_BLOCKS:
        raise _unknown_type(tensor)
    _, size, n_bytes = GGML_BLOCKS[tensor.dtype]
    return size, n_bytes


def _unknown_type(tensor: TensorHeader) -> ModelError:
    return ModelError(
        f"{tensor.name} is stored as ggml's type {tensor.dtype}, which attnscope does not read.",
        hint=f"a file with {', '.join(STORED)} or the types that pip's gguf dequantises, such as Q4_K",
    )


def _read_rows(tensor: TensorHeader, rows: Range, per_row: int) -> np.ndarray:
    """Read rows of a tensor: `n_row n_byte`."""
    import numpy as np

    start, stop = rows
    n_byte = (stop - start) * per_row
    assert tensor.file is not None
    found = tensor.file.read(tensor.offset + start * per_row, n_byte)
    if len(found) != n_byte:
        raise _too_short(tensor)
    return np.frombuffer(found, "u1").reshape(-1, per_row)


def _too_short(tensor: TensorHeader) -> ModelError:
    assert tensor.file is not None
    return ModelError(f"{tensor.file.name} ends within {tensor.name}.", hint="download it again")
