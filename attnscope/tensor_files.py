"""Reads a tensor that a user names as FILE or FILE:NAME (.npy, .npz, .pt, .safetensors), or hands over.

Opening reads headers, for which only torch's own format needs torch; values are read when asked
for. Pickled objects are refused, and nothing in them is run.

Source: https://numpy.org/neps/nep-0001-npy-format.html, https://huggingface.co/docs/safetensors,
https://docs.pytorch.org/docs/stable/notes/serialization.html
"""

from __future__ import annotations

import os
import sys
import warnings
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import partial
from math import prod
from pathlib import Path
from stat import S_ISDIR, S_ISREG
from typing import IO, TYPE_CHECKING, Any

from attnscope.errors import (
    FileError,
    OptionError,
    first_line,
    is_out_of_memory,
    object_in_pickle,
)
from attnscope.text import printable, shortened

if TYPE_CHECKING:
    import torch

Member = str | None
"""A tensor's name in its file; None in a file of one tensor that has no name there."""

Header = tuple[tuple[int, ...], str] | str
"""A shape and the name of a dtype; or words that say why attnscope does not read the tensor."""

Contents = Iterator[tuple[Member, Header, Callable[[], "torch.Tensor"]]]
"""What is in a file, each with what reads its values. The file is open while one goes through it."""

DTYPES = "bool uint8 int8 int16 int32 int64 float16 bfloat16 float32 float64".split()
SAFETENSORS = dict(zip("BOOL U8 I8 I16 I32 I64 F16 BF16 F32 F64".split(), DTYPES, strict=True))
LISTED = 8
"""How many names an error lists."""


@dataclass(frozen=True)
class TensorFile:
    """One tensor in a file: its header is known, its values are read when asked for.

    Args:
        name: what it is to be: `Q`, `W_Q`, `mask`.
        path: the file.
        member: what it is called in the file, if the file holds names.
        shape: its shape.
        dtype: torch's name for its dtype, such as `bfloat16`.
    """

    name: str
    path: Path
    member: Member
    shape: tuple[int, ...]
    dtype: str

    def __str__(self) -> str:
        return _called(self.path, self.member)

    def load(self) -> torch.Tensor:
        """Its values: on the CPU, contiguous, in memory of their own, in the dtype that is stored.

        Raises:
            FileError: the file is gone, is damaged, or is not what it was when it was opened.
        """
        with _reading(self.path) as contents:
            for member, header, values in contents:
                if (member, header) == (self.member, (self.shape, self.dtype)):
                    return values()
        raise FileError(
            f"{self} has changed: it was {self.dtype} of shape {self.shape} when it was opened.",
            hint="try again when nothing else writes to the file",
        )


@dataclass(frozen=True)
class TensorInMemory(TensorFile):
    """A tensor that is in memory already, and is treated as one in a file.

    Args:
        value: a numpy array or a torch tensor.
        source: what messages call the place where it is.
    """

    value: Any = field(default=None, repr=False, compare=False)
    source: str = ""

    def __str__(self) -> str:
        return self.source

    def load(self) -> torch.Tensor:
        """A copy of its values: on the CPU, contiguous, in the dtype that it has."""
        import numpy as np
        import torch

        if isinstance(self.value, torch.Tensor):
            return _own(self.value)
        own = np.array(self.value, order="C")
        return torch.from_numpy(own.astype(own.dtype.newbyteorder("="), copy=False))


def tensor_of(name: str, value: Any, source: str) -> TensorFile:
    """A tensor that a caller hands over: as an array, a tensor, or the name of a file.

    Args:
        name: what it is to be, such as `Q`.
        value: FILE or FILE:NAME, a path, a torch tensor, or what numpy makes an array of.
        source: what messages call it where it is no file, such as `the argument q`.

    Raises:
        FileError: as `open_tensor`.
        OptionError: it is neither a file nor an array of numbers.
    """
    if isinstance(value, str | os.PathLike):
        return open_tensor(name, os.fspath(value))
    return in_memory(name, value, source)


def in_memory(name: str, value: Any, source: str) -> TensorInMemory:
    """A torch tensor, or what numpy makes an array of, as one in a file; as `tensor_of`."""
    if "torch" in sys.modules and isinstance(value, sys.modules["torch"].Tensor):
        header = _torch_header(value)
    else:
        import numpy as np

        try:
            value = np.asarray(value)
        except (ValueError, TypeError, RuntimeError) as error:
            raise OptionError(f"{source} is no array: {first_line(error).rstrip('.')}.") from error
        header = _header(value.shape, value.dtype.name)
    if isinstance(header, str):
        raise OptionError(f"{source} {header}", hint=f"a tensor of {', '.join(DTYPES)}")
    return TensorInMemory(name, Path(), None, *header, value, source)


def open_tensor(name: str, text: str) -> TensorFile:
    """The tensor that the user names.

    Args:
        name: what it is to be, such as `Q`.
        text: FILE or FILE:NAME. Without NAME, it is the tensor that is called `name` in the file,
            or else the only one that is there.

    Raises:
        FileError: there is no such file or tensor, or it cannot be read.
    """
    path, member = _split(text)
    headers = _headers(path)
    if member is None:
        member = _choose(name, path, headers)
    elif None in headers:
        raise FileError(f"{path} holds no names, and so no {member!r}.", hint=str(path))
    elif member not in headers:
        raise FileError(f"{path} has no {member!r}: it holds {_listed(headers)}.", hint=f"{path}:NAME")
    return _tensor_file(name, path, member, headers[member])


def open_tensors(path: Path) -> dict[str, TensorFile]:
    """Every tensor of a file, by its name there; by the file's name without suffix, if it has none.

    What attnscope does not read is left out; `open_tensor` with FILE:NAME says why.

    Raises:
        FileError: there is no such file, it cannot be read, or nothing in it can.
    """
    headers = _headers(path)
    members = _readable(headers) or [_choose("", path, headers)]  # an error: it says why there is none
    names = [path.stem if member is None else member for member in members]
    return {n: _tensor_file(n, path, m, headers[m]) for n, m in zip(names, members, strict=True)}


def _split(text: str) -> tuple[Path, Member]:
    """The longest path before a colon, or of the whole text, that is there; and the name after it."""
    parts = text.split(":")
    for end in range(len(parts), 0, -1):
        path = ":".join(parts[:end])
        if os.path.exists(path):
            return Path(path), ":".join(parts[end:]) if end < len(parts) else None
    head, _, member = text.rpartition(":")
    return (Path(head), member) if Path(head).suffix in FORMATS else (Path(text), None)


def _choose(name: str, path: Path, headers: dict[Member, Header]) -> Member:
    """The tensor that is meant where the user names none."""
    readable = _readable(headers)
    if name in headers:
        return name
    if len(readable) > 1:
        raise FileError(
            f"{path} holds {len(readable)} tensors, and none is called {name}: {_listed(headers)}.",
            hint=f"{path}:NAME",
        )
    if not headers:
        raise FileError(f"{path} holds no tensors.")
    return next(iter(readable or headers))


def _tensor_file(name: str, path: Path, member: Member, header: Header) -> TensorFile:
    if isinstance(header, str):
        raise FileError(f"{_called(path, member)} {header}", hint=f"a tensor of {', '.join(DTYPES)}")
    return TensorFile(name, path, member, *header)


def _called(path: Path, member: Member) -> str:
    return str(path) if member is None else f"{path}:{printable(member)}"


def _readable(headers: dict[Member, Header]) -> list[Member]:
    return [member for member, header in headers.items() if not isinstance(header, str)]


def _listed(headers: dict[Member, Header]) -> str:
    names = [shortened(printable(member)) for member in _readable(headers)]
    more = f" and {len(names) - LISTED} more" if len(names) > LISTED else ""
    return ", ".join(names[:LISTED]) + more or "no tensors"


def _headers(path: Path) -> dict[Member, Header]:
    with _reading(path) as contents:
        return {member: header for member, header, _ in contents}


@contextmanager
def _reading(path: Path) -> Iterator[Contents]:
    """What is in a file. Whatever its library raises while it is gone through, is a FileError."""
    size = _check(path)
    try:
        with warnings.catch_warnings(action="ignore"):  # of old formats, deprecated classes
            yield FORMATS[path.suffix](path)
    except Exception as error:  # the libraries raise a dozen kinds
        if is_out_of_memory(error):
            raise
        unknown = object_in_pickle(error)
        if unknown:
            raise FileError(
                f"{path} holds {unknown}, which is no tensor; nothing in it was run.",
                hint="torch.save of a tensor, or of a flat dictionary of tensors by name",
            ) from error
        raise FileError(
            f"{path} is damaged, or no {path.suffix} file: {_reason(error)} ({size} bytes long).",
            hint="write it again: it may have been cut short",
        ) from error


def _check(path: Path) -> int:
    """The size of a file in bytes. Raises a FileError unless it is one that can be read."""
    try:
        status = path.stat()
        if S_ISREG(status.st_mode):
            path.open("rb").close()
    except FileNotFoundError as error:
        raise FileError(f"there is no file {path}.") from error
    except OSError as error:
        raise FileError(f"cannot read {path}: {error.strerror}.") from error
    if not S_ISREG(status.st_mode):
        raise FileError(f"{path} is {'a folder' if S_ISDIR(status.st_mode) else 'no regular file'}.")
    if path.suffix not in FORMATS:
        raise FileError(
            f"{path} ends in {path.suffix or 'no suffix'}, which names no format for tensors.",
            hint=f"a file that ends in {', '.join(FORMATS)}",
        )
    if not status.st_size:
        raise FileError(f"{path} is empty: 0 bytes long.")
    return status.st_size


def _reason(error: Exception) -> str:
    """What a library says, in one sentence."""
    said = type(error).__name__ if isinstance(error, LookupError) else first_line(error)
    return shortened(printable(said.split(". ")[0].rstrip(".")), 120)


def _header(shape: Iterable[int], dtype: str) -> Header:
    if dtype not in DTYPES:
        return f"is stored as {dtype}, which attnscope does not read."
    return tuple(map(int, shape)), dtype


def _npy(path: Path) -> Contents:
    with path.open("rb") as file:
        header = _npy_header(file, path.stat().st_size)
        file.seek(0)
        yield None, header, partial(_npy_values, file)


def _npz(path: Path) -> Contents:
    from zipfile import ZipFile

    with ZipFile(path) as archive:
        for name in archive.namelist():
            if name.endswith(".npy"):
                header = _npy_header(archive.open(name), archive.getinfo(name).file_size)
                yield name.removesuffix(".npy"), header, partial(_npy_values, archive.open(name))


def _npy_header(file: IO[bytes], size: int) -> Header:
    from numpy.lib import format as npy

    # Version 3 differs from 2 in how the names of fields are written, and no tensor has fields.
    old = npy.read_magic(file) == (1, 0)
    shape, _, dtype = (npy.read_array_header_1_0 if old else npy.read_array_header_2_0)(file)
    if dtype.hasobject:
        return "holds pickled Python objects; nothing in it was run."
    needed, there = prod(shape) * dtype.itemsize, size - file.tell()
    if min(shape, default=0) < 0:
        raise ValueError(f"its header gives the shape {shape}, with a size below 0")
    if needed > there:
        raise ValueError(f"its header announces {needed} bytes of values, and there are {there}")
    return _header(shape, dtype.name)


def _npy_values(file: IO[bytes]) -> torch.Tensor:
    import torch
    from numpy.lib import format as npy

    array = npy.read_array(file, allow_pickle=False)
    return torch.from_numpy(array.astype(array.dtype.newbyteorder("="), order="C", copy=False))


def _pt(path: Path) -> Contents:
    from zipfile import is_zipfile

    import torch

    # What torch wrote before 1.6 is no zip file, and cannot be mapped.
    whole = torch.load(path, map_location="cpu", weights_only=True, mmap=is_zipfile(path))
    for name, value in whole.items() if isinstance(whole, dict) else [(None, whole)]:
        if isinstance(name, str) or value is whole:
            yield name, _torch_header(value), partial(_own, value)


def _torch_header(value: Any) -> Header:
    import torch

    if not isinstance(value, torch.Tensor):
        return f"holds no tensor: its type is {type(value).__name__}."
    dtype = str(value.dtype).removeprefix("torch.")
    if value.is_nested or value.is_meta or value.layout != torch.strided:
        kind = "nested" if value.is_nested else "meta" if value.is_meta else "sparse"
        return _header((), f"{kind} {dtype}")
    return _header(value.shape, dtype)


def _safetensors(path: Path) -> Contents:
    from safetensors import safe_open

    with safe_open(path, framework="np") as file:
        for name in file.offset_keys():
            part = file.get_slice(name)
            dtype = part.get_dtype()
            header = _header(part.get_shape(), SAFETENSORS.get(dtype, dtype))
            yield name, header, partial(_safetensors_values, path, name)


def _safetensors_values(path: Path, name: str) -> torch.Tensor:
    from safetensors import safe_open

    with safe_open(path, framework="pt") as file:  # numpy has no bfloat16
        return _own(file.get_tensor(name))


def _own(tensor: torch.Tensor) -> torch.Tensor:
    """A plain copy: what lies in a file may change, and a parameter wants gradients."""
    import torch

    return torch.empty(tensor.shape, dtype=tensor.dtype).copy_(tensor.detach())


FORMATS: dict[str, Callable[[Path], Contents]] = {
    ".npy": _npy,
    ".npz": _npz,
    ".pt": _pt,
    ".pth": _pt,
    ".safetensors": _safetensors,
}
