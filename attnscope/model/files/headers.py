"""Read the headers of all files of a checkpoint: name, shape, dtype and size of every tensor.

No weight is read. Files on the hub take one request each, or two if a header is long, side by side.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

from attnscope.base.errors import ModelError
from attnscope.base.process.progress import Progress, silent, stage
from attnscope.base.text import shortened
from attnscope.model.files.model_files import ModelFiles
from attnscope.model.files.ranges import (
    HeaderBudget,
    KiB,
    MiB,
    Ranges,
    TensorHeader,
    shown_name,
    side_by_side,
)
from attnscope.model.files.safetensors_header import LONGEST_HEADER, read_safetensors_header

FIRST_REQUESTS = 4 * MiB
"""The bytes that the first requests for all files fetch together. The headers of 163 shards with 91,000
tensors have 12 MB; those of most models fit."""
LEAST, MOST = 16 * KiB, 256 * KiB
"""The fewest and the most bytes of a first request."""
MOST_TENSORS = 2**20


@dataclass(frozen=True)
class Headers:
    """The headers of all files of a checkpoint."""

    name: str
    format: str  #: `safetensors` or `GGUF`
    tensors: tuple[TensorHeader, ...]  #: all tensors, in the order of the files
    n_file: int
    #: Of GGUF: keys such as `llama.attention.head_count`; empty for safetensors.
    metadata: dict[str, Any] = field(default_factory=dict, repr=False)

    @property
    def n_bytes(self) -> int | None:
        """The size of all tensors in bytes; None if the size of one is unknown."""
        sizes = [tensor.n_bytes for tensor in self.tensors]
        return None if None in sizes else sum(size for size in sizes if size is not None)


def read_headers(files: ModelFiles, *, progress: Progress = silent) -> Headers:
    """Read the headers of a model's files of weights.

    Raises:
        NoWeightsError: the model has no weights whose header can be read.
    """
    doing = f"reading headers of {shortened(files.name)} …"
    with stage(progress, doing):
        ranges = files.weights()
        if ranges[0].name.endswith(".gguf"):
            from attnscope.model.files.gguf_header import open_gguf

            gguf = open_gguf(ranges[0])
            tensors = tuple(gguf.tensors.values())
            return Headers(files.name, "GGUF", tensors, len(gguf.files), gguf.metadata)
        return _of_safetensors(files.name, ranges, lambda share: progress(doing, share))


def _of_safetensors(name: str, files: list[Ranges], report: Callable[[float], None]) -> Headers:
    """Read the headers of safetensors files side by side."""
    for file in files:
        file.first = min(MOST, max(LEAST, FIRST_REQUESTS // len(files)))
    budget = HeaderBudget(LONGEST_HEADER)

    def read(file: Ranges) -> list[TensorHeader]:
        return read_safetensors_header(file, budget)

    tensors: dict[str, TensorHeader] = {}
    for file, found in zip(files, side_by_side(read, files, report), strict=True):
        for tensor in found:
            if tensor.name in tensors:
                raise ModelError(
                    f"{file.name} is damaged: another file has {shown_name(tensor.name)}, too.",
                    hint="files of one model, as they were published",
                )
            tensors[tensor.name] = tensor
        if len(tensors) > MOST_TENSORS:
            raise ModelError(f"{shortened(name)} is damaged: it has more than {MOST_TENSORS} tensors.")
    return Headers(name, "safetensors", tuple(tensors.values()), len(files))
