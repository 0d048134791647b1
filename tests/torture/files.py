"""Small files of every kind that attnscope reads, and what may be done to them."""

from __future__ import annotations

import gzip
import io
import json
import random
import zipfile
from collections.abc import Callable
from pathlib import Path

import numpy as np
import torch
from safetensors.torch import save


def tensors() -> dict[str, torch.Tensor]:
    """Queries, keys and values of one sequence."""
    drawing = torch.Generator().manual_seed(0)
    shapes = {"Q": (1, 3, 4), "K": (1, 5, 4), "V": (1, 5, 2)}
    return {name: torch.randn(*shape, generator=drawing) for name, shape in shapes.items()}


def tensor_files() -> dict[str, bytes]:
    """The same tensors in every format, or the queries alone where a format holds only one."""
    arrays = {name: value.numpy() for name, value in tensors().items()}
    return {
        "all.safetensors": save(tensors()),
        "all.npz": _written(lambda file: np.savez(file, **arrays)),
        "small.npz": _written(lambda file: np.savez_compressed(file, **arrays)),
        "Q.npy": _written(lambda file: np.save(file, arrays["Q"])),
        "all.pt": _written(lambda file: torch.save(tensors(), file)),
        "old.pth": _written(
            lambda file: torch.save(tensors(), file, _use_new_zipfile_serialization=False)
        ),
    }


def _written(write: Callable[[io.BytesIO], object]) -> bytes:
    file = io.BytesIO()
    write(file)
    return file.getvalue()


def header(name: str, content: bytes) -> list[int]:
    """The places of the bytes that say what is in a file, rather than its tensors' values.

    Of an archive they are the headers of its members, what stands in those that are pickles, and its
    directory; of a file without a header, all places.
    """
    if name.endswith(".safetensors"):
        return list(range(8 + int.from_bytes(content[:8], "little")))
    if name.endswith(".npy"):
        return list(range(10 + int.from_bytes(content[8:10], "little")))
    if not zipfile.is_zipfile(io.BytesIO(content)):
        return list(range(len(content)))
    places: set[int] = set()
    with zipfile.ZipFile(io.BytesIO(content)) as archive:
        for member in archive.infolist():
            start = member.header_offset
            names = sum(
                int.from_bytes(content[start + at : start + at + 2], "little") for at in (26, 28)
            )
            says = member.compress_size if member.filename.endswith(".pkl") else 24
            places.update(range(start, start + 30 + min(names, 60) + says))
        places.update(range(archive.start_dir, len(content)))
    return sorted(place for place in places if place < len(content))


def corpora() -> dict[str, bytes]:
    """The same texts as a file of lines, of objects, and compressed."""
    texts = ["the cat sat on the mat", "a dog ran", "it was tired .", "the dog sat"]
    lines = "\n".join(texts).encode()
    objects = "\n".join(json.dumps({"text": text, "n": [1, None]}) for text in texts).encode()
    return {
        "c.txt": lines,
        "c.jsonl": objects,
        "c.txt.gz": gzip.compress(lines, mtime=0),
        "c.jsonl.gz": gzip.compress(objects, mtime=0),
    }


def flipped(content: bytes, drawing: random.Random, places: list[int]) -> bytes:
    """A file with one to three of its bytes changed."""
    changed = bytearray(content)
    for place in drawing.choices(places, k=drawing.choice([1, 1, 2, 3])):
        changed[place] = drawing.choice(
            [changed[place] ^ (1 << drawing.randrange(8)), drawing.randrange(256), 0, 255]
        )
    return bytes(changed)


def copy_links(folder: Path, to: Path, *, but: str = "") -> Path:
    """A folder with links to another's files, all but one."""
    to.mkdir(parents=True, exist_ok=True)
    for path in folder.iterdir():
        if path.name != but:
            (to / path.name).symlink_to(path)
    return to
