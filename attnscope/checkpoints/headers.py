"""Read the headers of all files of a checkpoint: name, shape, dtype and size of every tensor.

No weight is read. Files on the hub take one request each, or two if a header is long, side by side.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any, NamedTuple

from attnscope.checkpoints.model_files import ModelFiles
from attnscope.checkpoints.ranges import HeaderBudget, KiB, MiB, Ranges, shown_name, side_by_side
from attnscope.checkpoints.safetensors_header import LONGEST_HEADER, read_safetensors_header
from attnscope.errors import ModelError
from attnscope.process.progress import Progress, silent, stage
from attnscope.text import shortened

FIRST_REQUESTS = 4 * MiB
"""The bytes that the first requests for all files fetch together. The headers of 163 shards with 91,000
tensors have 12 MB; those of most models fit."""
LEAST, MOST = 16 * KiB, 256 * KiB
"""The fewest and the most bytes of a first request."""
MOST_TENSORS = 2**20


class TensorHeader(NamedTuple):
    """A tensor as the header of its file describes it.

    Attributes:
        name: such as `model.layers.0.self_attn.q_proj.weight` or `blk.0.attn_q.weight`.
        shape: its sizes as torch orders them.
        dtype: how the file stores it: `BF16`, `I32`, `Q4_K`, …; a number for an unknown type of GGUF.
        n_bytes: its size in bytes; None for an unknown type of GGUF.
    """

    name: str
    shape: tuple[int, ...]
    dtype: str
    n_bytes: int | None


@dataclass(frozen=True)
class Headers:
    """The headers of all files of a checkpoint.

    Attributes:
        name: the name of the model.
        format: `safetensors` or `GGUF`.
        tensors: all tensors, in the order of the files.
        n_file: the number of files.
        metadata: of GGUF: keys such as `llama.attention.head_count`; empty for safetensors.
    """

    name: str
    format: str
    tensors: tuple[TensorHeader, ...]
    n_file: int
    metadata: dict[str, Any] = field(default_factory=dict, repr=False)

    @property
    def n_bytes(self) -> int | None:
        """The size of all tensors in bytes; None if the size of one is unknown."""
        sizes = [tensor.n_bytes for tensor in self.tensors]
        return None if None in sizes else sum(size for size in sizes if size is not None)


def read_headers(files: ModelFiles, *, progress: Progress = silent) -> Headers:
    """Read the headers of a model's files of weights.

    Args:
        files: what `find_model_files` returned.
        progress: called with the share of files that have been read.

    Raises:
        NoWeightsError: the model has no weights whose header can be read.
        ModelError: a file is damaged or missing, or the hub does not give it.
        FileError: there is no such file.
    """
    doing = f"reading headers of {shortened(files.name)} …"
    with stage(progress, doing):
        ranges = files.weights()
        if ranges[0].name.endswith(".gguf"):
            return _of_gguf(files.name, ranges[0])
        return _of_safetensors(files.name, ranges, lambda share: progress(doing, share))


def _of_gguf(name: str, file: Ranges) -> Headers:
    from attnscope.checkpoints.gguf_header import open_gguf

    gguf = open_gguf(file)
    tensors = (
        TensorHeader(each.name, each.shape, each.type, each.n_bytes) for each in gguf.tensors.values()
    )
    return Headers(name, "GGUF", tuple(tensors), len(gguf.files), gguf.metadata)


def _of_safetensors(name: str, files: list[Ranges], report: Callable[[float], None]) -> Headers:
    """Read the headers of safetensors files side by side."""
    for file in files:
        file.first = min(MOST, max(LEAST, FIRST_REQUESTS // len(files)))
    budget = HeaderBudget(LONGEST_HEADER)

    def read(file: Ranges) -> list[TensorHeader]:
        return [
            TensorHeader(name, shape, dtype, n_bytes)
            for name, shape, dtype, n_bytes, _ in read_safetensors_header(file, budget)
        ]

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
