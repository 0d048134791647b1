"""Read tensors from a checkpoint's files: byte ranges of safetensors and GGUF, without torch."""

from __future__ import annotations

import re
import warnings
from abc import ABC, abstractmethod
from dataclasses import dataclass
from math import prod
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar, cast

from attnscope.base.dtypes import FLOATS, STORED
from attnscope.base.errors import ModelError, first_line, is_out_of_memory
from attnscope.model.families.table import ALTERNATING, architecture_of
from attnscope.model.files.checkpoint import Checkpoint
from attnscope.model.files.config import read_json
from attnscope.model.files.gguf_model import GgufModel
from attnscope.model.files.gguf_values import GgufMatrix, dtype_of, read_vector
from attnscope.model.files.loaded import LoadedModel
from attnscope.model.files.ranges import FileRanges, Ranges, hub_ranges
from attnscope.model.files.safetensors_header import read_safetensors_header

if TYPE_CHECKING:
    import numpy as np

LARGEST_DOWNLOAD = 2**30
"""The most bytes of a file that is downloaded as a whole, and then is in the cache of the hub."""
FIRST_REQUEST = 2**18
"""The bytes of the first request for a file, which most headers do not exceed."""

FILES = (
    *("model.safetensors", "model.safetensors.index.json"),
    *("pytorch_model.bin", "pytorch_model.bin.index.json"),
)
"""The names of files with weights, in order of preference."""


class Weights(ABC):
    """The tensors of a checkpoint, by name."""

    configuration: ClassVar[str] = "config.json"  #: what says how many heads they have, for errors

    @property
    @abstractmethod
    def names(self) -> list[str]:
        """The names of all tensors, sorted."""

    @abstractmethod
    def read(self, name: str) -> tuple[np.ndarray, str]:
        """Return a tensor as it is stored, and the name of its dtype.

        If the format allows, only the bytes that are used are read from the disk.
        """

    def quantised(self, name: str) -> str | None:
        """Return ggml's type of a tensor that `read` dequantises; None: it is read as it is stored."""
        return None

    def reordered(self, name: str) -> bool:
        """Check whether the file orders the rows of a head otherwise than `read` does."""
        return False


def open_weights(checkpoint: Checkpoint) -> Weights:
    """Open the weights of a checkpoint: safetensors, GGUF, in one file or several, or a pickle."""
    if isinstance(checkpoint, LoadedModel):
        return Tensors(checkpoint.module.state_dict(), copies=True)
    if isinstance(checkpoint, GgufModel):
        return GgufTensors(checkpoint)
    if not checkpoint.has(*FILES) and (large := _large_file_on_hub(checkpoint, FILES[0])):
        return large
    path = checkpoint.first_file(*FILES)
    if path is None:
        checkpoint.refuse_adapter()
        raise ModelError(
            f"{checkpoint.name} has no weights: neither model.safetensors, nor pytorch_model.bin,"
            " nor an index of shards.",
            hint="a folder written by save_pretrained",
        )
    return Shards(checkpoint, path) if path.suffix == ".json" else open_file(path)


def _large_file_on_hub(checkpoint: Checkpoint, filename: str) -> Safetensors | None:
    """Return a large safetensors file on the hub, to read tensors from it by ranges.

    Returns:
        None if it is here, small, or cannot be read so: then it is downloaded as a whole.
    """
    if checkpoint.folder is not None or checkpoint.file_here(filename):
        return None
    if not filename.endswith(".safetensors") or filename not in checkpoint.filenames():
        return None
    file = hub_ranges(checkpoint.name, filename)
    file.first = FIRST_REQUEST
    try:
        is_large = file.size > LARGEST_DOWNLOAD
    except ModelError:  # the download says why, or succeeds, if the server does not know ranges
        return None
    return Safetensors(file) if is_large else None


def shapes_of_weights(checkpoint: Checkpoint) -> dict[str, tuple[int, ...]]:
    """Return the shape of each tensor of a checkpoint whose safetensors are on this machine; else {}."""
    paths = _files_here(checkpoint)
    if any(path.suffix != ".safetensors" for path in paths):
        return {}
    return {
        tensor.name: tuple(tensor.shape)
        for path in paths
        for tensor in read_safetensors_header(FileRanges(path))
    }


def bytes_of_weights(checkpoint: Checkpoint, itemsize: int | None = None) -> int | None:
    """Return the size in bytes of a model's weights once loaded, according to the headers of its files.

    Args:
        checkpoint: the model; nothing is downloaded from the hub.
        itemsize: the size in bytes of the dtype that the model runs in; None: the dtype stored.

    Returns:
        None if the files are not on this machine. For a torch pickle, whose header has no dtypes, the
        size of the file.
    """
    paths = _files_here(checkpoint)
    if not paths:
        return None
    total = 0
    for path in paths:
        if path.suffix != ".safetensors":
            total += path.stat().st_size
            continue
        for tensor in read_safetensors_header(FileRanges(path)):
            floating = tensor.dtype in STORED and itemsize is not None
            total += prod(tensor.shape) * (itemsize or 0) if floating else tensor.n_bytes or 0
    return total


def stored_dtype(checkpoint: Checkpoint) -> str | None:
    """Return the dtype of the first floating-point tensor in a model's safetensors files.

    Returns:
        None if it has no such files on this machine.
    """
    files = [path for path in _files_here(checkpoint) if path.suffix == ".safetensors"]
    tensors = (tensor for path in files for tensor in read_safetensors_header(FileRanges(path)))
    return next((STORED[each.dtype].name for each in tensors if each.dtype in STORED), None)


def _files_here(checkpoint: Checkpoint) -> list[Path]:
    """Return the files of a model's weights; none if one of them is not on this machine."""
    if not checkpoint.has(*FILES):
        return []
    path = checkpoint.first_file(*FILES)
    if path is None or path.suffix != ".json":
        return [path] if path else []
    files = sorted(set(Shards(checkpoint, path).weight_map.values()))
    found = [checkpoint.file(name) for name in files if checkpoint.has(name)]
    return [each for each in found if each is not None] if len(found) == len(files) else []


def open_file(path: Path) -> Weights:
    """Open one file of weights: safetensors, or a torch pickle."""
    return Safetensors(FileRanges(path)) if path.suffix == ".safetensors" else TorchPickle(path)


class Safetensors(Weights):
    """One safetensors file. Its header is read immediately, its tensors when they are used.

    Of a file on the hub, nothing is downloaded but the tensors that are read.
    """

    def __init__(self, file: Ranges) -> None:
        self.file = file
        self.tensors = {tensor.name: tensor for tensor in read_safetensors_header(file)}

    @property
    def names(self) -> list[str]:
        return sorted(self.tensors)

    def read(self, name: str) -> tuple[np.ndarray, str]:
        tensor = self.tensors[name]
        if tensor.dtype not in STORED:
            raise ModelError(
                f"{name} is stored as {tensor.dtype}, which attnscope does not read.",
                hint=f"a checkpoint that is not quantised: attnscope reads {', '.join(STORED)}",
            )
        dtype = STORED[tensor.dtype]
        return self.file.array(dtype.numpy, tensor.offset, tensor.shape), dtype.name


class Shards(Weights):
    """Weights split over several files. A file on the hub is downloaded when one of its tensors is read;
    of a large one, only that tensor.

    Args:
        checkpoint: the checkpoint that the files belong to.
        index: the file that maps tensors to files.
    """

    def __init__(self, checkpoint: Checkpoint, index: Path) -> None:
        self.checkpoint = checkpoint
        self.weight_map: Any = read_json(index).get("weight_map")
        self.shards: dict[str, Weights] = {}
        if not isinstance(self.weight_map, dict) or not all(
            isinstance(filename, str) for filename in self.weight_map.values()
        ):
            raise ModelError(f"{index} is damaged: its weight_map does not name files.")

    @property
    def names(self) -> list[str]:
        return sorted(self.weight_map)

    def read(self, name: str) -> tuple[np.ndarray, str]:
        filename = self.weight_map[name]
        large = None if filename in self.shards else _large_file_on_hub(self.checkpoint, filename)
        if large is not None:
            self.shards[filename] = large
        if filename not in self.shards:
            path = self.checkpoint.file(filename)
            if path is None:
                raise ModelError(
                    f"{self.checkpoint.name} has no {filename}, which should contain {name}"
                    " according to its index.",
                    hint="download it again: it may have been cut short",
                )
            self.shards[filename] = open_file(path)
        if name not in self.shards[filename].names:
            raise ModelError(
                f"{filename} has no {name}, although the index of its shards lists it there."
            )
        return self.shards[filename].read(name)


@dataclass(frozen=True)
class GgufTensors(Weights):
    """The tensors of a GGUF file, by the names that they have there."""

    model: GgufModel
    configuration = "metadata"

    @property
    def names(self) -> list[str]:
        return sorted(self.model.gguf.tensors)

    def read(self, name: str) -> tuple[np.ndarray, str]:
        """Return a tensor, with the rows of W_Q and W_K in the order of transformers.

        A matrix is read when its rows or columns are taken, and is dequantised to float32.
        """
        tensor = self.model.gguf.tensors[name]
        scale = re.sub(r"\.weight$", ".scale", name)
        if scale != name and scale in self.model.gguf.tensors:
            raise ModelError(
                f"{name} of {self.model.name} is multiplied by {scale}, which attnscope does not read.",
                hint="a file with Q8_0 or Q4_K",
            )
        d_head = self._d_head(name) if self.reordered(name) else 0
        if len(tensor.shape) == 1:
            return read_vector(tensor, d_head), dtype_of(tensor)
        return cast("np.ndarray", GgufMatrix(tensor, d_head)), dtype_of(tensor)

    def quantised(self, name: str) -> str | None:
        kind = self.model.gguf.tensors[name].dtype
        return None if kind in STORED else kind

    def reordered(self, name: str) -> bool:
        is_rotated = re.fullmatch(r"blk\.\d+\.attn_(q|k|qkv)\.(weight|bias)", name)
        return is_rotated is not None and architecture_of(self.model.architecture).rows == ALTERNATING

    def _d_head(self, name: str) -> int:
        """Return the width of a head of W_Q or W_K, whose rows are reordered."""
        tensors, n_head = self.model.gguf.tensors, self.model.n_head
        queries = tensors.get(re.sub(r"attn_\w+\.\w+", "attn_q.weight", name))
        if queries is None:
            raise ModelError(
                f"{self.model.name} has Q, K and V in one matrix, {name}: {self.model.architecture} has"
                " several, so the order of its rows is unknown."
            )
        d_head, rest = divmod(queries.shape[0], n_head)
        n_row = tensors[name].shape[0]
        if rest or d_head < 2 or d_head % 2 or n_row % d_head:
            raise ModelError(
                f"{name} of {self.model.name} has {n_row} rows, which does not fit {n_head} heads in"
                f" {queries.shape[0]} rows of W_Q."
            )
        return d_head


class Tensors(Weights):
    """Torch tensors by their names, such as a loaded model's `state_dict`.

    Args:
        tensors: the tensors by name.
        copies: whether `read` returns copies, because the model may change its weights later.
    """

    def __init__(self, tensors: dict[Any, Any], *, copies: bool = False) -> None:
        self.tensors, self.copies = tensors, copies

    @property
    def names(self) -> list[str]:
        import torch

        return sorted(
            name
            for name, value in self.tensors.items()
            if isinstance(name, str) and isinstance(value, torch.Tensor)
        )

    def read(self, name: str) -> tuple[np.ndarray, str]:
        from attnscope.base.arrays import from_tensor

        tensor = self.tensors[name]
        kind = str(tensor.dtype).removeprefix("torch.")
        if kind not in FLOATS or tensor.is_sparse:
            stored_as = f"sparse {kind}" if tensor.is_sparse else kind
            raise ModelError(f"{name} is stored as {stored_as}, which attnscope does not read.")
        if tensor.is_meta:
            raise ModelError(f"{name} has no values: it is on the meta device.")
        return from_tensor(tensor.clone() if self.copies else tensor)


class TorchPickle(Tensors):
    """A `pytorch_model.bin`, read by torch with `weights_only`: no code in it is run."""

    def __init__(self, path: Path) -> None:
        from zipfile import is_zipfile

        import torch

        try:
            zipped = is_zipfile(path)  # older files are not, and cannot be memory-mapped
            with warnings.catch_warnings(action="ignore"):  # about old formats, deprecated classes
                tensors = torch.load(path, map_location="cpu", weights_only=True, mmap=zipped)
        except Exception as error:  # torch raises half a dozen types here, RuntimeError among them
            if is_out_of_memory(error):
                raise
            raise ModelError(
                f"{path} is damaged, or contains something other than weights:"
                f" {first_line(error).rstrip('.')}.",
                hint="a checkpoint with model.safetensors (no code in this one was run)",
            ) from error
        if not isinstance(tensors, dict):
            raise ModelError(f"{path} does not contain a dictionary of tensors.")
        super().__init__(tensors)
