"""Reads tensors out of a checkpoint's files: byte ranges of safetensors, without torch.

Source: the safetensors format: 8 bytes, the header's length as a little-endian number; the
header, a JSON object of names with dtype, shape and the two ends of a byte range; the bytes.
https://huggingface.co/docs/safetensors
"""

from __future__ import annotations

import json
from abc import ABC, abstractmethod
from pathlib import Path
from typing import TYPE_CHECKING, Any

from attnscope.errors import ModelError
from attnscope.models.checkpoint import Checkpoint, read_json

if TYPE_CHECKING:
    import numpy as np

# A stored dtype -> our name for it, and how numpy reads its bytes.
STORED = {
    "F64": ("float64", "<f8"),
    "F32": ("float32", "<f4"),
    "F16": ("float16", "<f2"),
    "BF16": ("bfloat16", "<u2"),
}


class Weights(ABC):
    """The tensors of a checkpoint, by name."""

    @property
    @abstractmethod
    def names(self) -> list[str]:
        """The names of all tensors, sorted."""

    @abstractmethod
    def read(self, name: str) -> tuple[np.ndarray, str]:
        """One tensor as it is stored, and the name of its dtype.

        Only the bytes that are looked at are read from the disk, where the format allows.

        Raises:
            ModelError: the file is damaged, or its dtype is not a float that attnscope knows.
        """


def open_weights(checkpoint: Checkpoint) -> Weights:
    """The weights of a checkpoint: safetensors, in one file or in shards, or a torch pickle.

    Raises:
        ModelError: it has no weights, or they cannot be read.
    """
    if path := checkpoint.file("model.safetensors"):
        return SafetensorsFile(path)
    if path := checkpoint.file("model.safetensors.index.json"):
        return SafetensorsShards(checkpoint, read_json(path).get("weight_map", {}))
    if path := checkpoint.file("pytorch_model.bin"):
        return TorchPickle(path)
    raise ModelError(
        f"{checkpoint.name} has no weights: no model.safetensors,"
        " model.safetensors.index.json or pytorch_model.bin.",
        hint="--model FOLDER, as save_pretrained writes it",
    )


class SafetensorsFile(Weights):
    """One safetensors file. Its header is read at once, its tensors when they are looked at.

    Raises:
        ModelError: the file is truncated, or no safetensors at all.
    """

    def __init__(self, path: Path) -> None:
        from safetensors import SafetensorError, safe_open

        try:
            safe_open(path, framework="np")  # the library judges whether the file is whole
            with path.open("rb") as file:
                length = int.from_bytes(file.read(8), "little")
                self.header: dict[str, Any] = json.loads(file.read(length))
        except (SafetensorError, OSError, ValueError) as error:
            raise ModelError(
                f"{path} is damaged, or no safetensors file: {error}"
                f" ({path.stat().st_size} bytes long).",
                hint="download it again: it may have been cut short",
            ) from error
        self.header.pop("__metadata__", None)
        self.path = path
        self.start = 8 + length

    @property
    def names(self) -> list[str]:
        return sorted(self.header)

    def read(self, name: str) -> tuple[np.ndarray, str]:
        import numpy as np

        entry = self.header[name]
        if entry["dtype"] not in STORED:
            raise ModelError(
                f"{name} is stored as {entry['dtype']}, which attnscope does not read.",
                hint=f"a checkpoint that is not quantised: attnscope reads {', '.join(STORED)}",
            )
        dtype, numpy_dtype = STORED[entry["dtype"]]
        offset = self.start + entry["data_offsets"][0]
        shape = tuple(entry["shape"])
        return np.memmap(self.path, numpy_dtype, mode="r", offset=offset, shape=shape), dtype


class SafetensorsShards(Weights):
    """Safetensors split over several files; only those that are asked for are fetched.

    Args:
        checkpoint: whose files they are.
        weight_map: each tensor's file.
    """

    def __init__(self, checkpoint: Checkpoint, weight_map: dict[str, str]) -> None:
        self.checkpoint = checkpoint
        self.weight_map = weight_map
        self.shards: dict[str, SafetensorsFile] = {}

    @property
    def names(self) -> list[str]:
        return sorted(self.weight_map)

    def read(self, name: str) -> tuple[np.ndarray, str]:
        filename = self.weight_map[name]
        if filename not in self.shards:
            path = self.checkpoint.file(filename)
            if path is None:
                raise ModelError(
                    f"{self.checkpoint.name} has no {filename}, where its index says {name} is.",
                    hint="download it again: it may have been cut short",
                )
            self.shards[filename] = SafetensorsFile(path)
        if name not in self.shards[filename].header:
            raise ModelError(f"{filename} has no {name}, though the index of its shards says so.")
        return self.shards[filename].read(name)


class TorchPickle(Weights):
    """A `pytorch_model.bin`, through torch. Nothing in it is run: weights only.

    Raises:
        ModelError: the file is damaged, or holds something other than weights.
    """

    def __init__(self, path: Path) -> None:
        import torch

        try:
            self.tensors = torch.load(path, map_location="cpu", weights_only=True, mmap=True)
        except Exception as error:  # torch raises half a dozen kinds here, RuntimeError among them
            first_line = str(error).strip().split("\n")[0]
            raise ModelError(
                f"{path} is damaged, or holds something other than weights: {first_line}",
                hint="a checkpoint with model.safetensors (nothing in this one was run)",
            ) from error
        if not isinstance(self.tensors, dict):
            raise ModelError(f"{path} holds no dictionary of tensors.")

    @property
    def names(self) -> list[str]:
        import torch

        return sorted(n for n, value in self.tensors.items() if isinstance(value, torch.Tensor))

    def read(self, name: str) -> tuple[np.ndarray, str]:
        from attnscope.values import from_tensor

        stored, dtype = from_tensor(self.tensors[name])
        if dtype not in {known for known, _ in STORED.values()}:
            raise ModelError(f"{name} is stored as {dtype}, which attnscope does not read.")
        return stored, dtype
