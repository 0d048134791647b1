"""Tensors from the user: FILE or FILE:NAME (.npy, .npz, .pt, .safetensors), or arrays in memory.

Opening a file reads only headers, and needs torch only for torch's own format; `load` reads the
values. Pickled objects are refused, and nothing in them is run.

Source: https://numpy.org/neps/nep-0001-npy-format.html, https://huggingface.co/docs/safetensors,
https://docs.pytorch.org/docs/stable/notes/serialization.html
"""

from __future__ import annotations

import ast
import os
import re
import sys
import warnings
from array import array
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import partial
from math import prod
from pathlib import Path
from stat import S_ISDIR, S_ISREG
from typing import IO, TYPE_CHECKING, Any

from attnscope.base.dtypes import SAFETENSORS
from attnscope.base.errors import (
    FileError,
    OptionError,
    first_line,
    is_out_of_memory,
    no_such_file,
    object_in_pickle,
)
from attnscope.base.text import printable, shortened

if TYPE_CHECKING:
    import torch

Member = str | None
"""A tensor's name in its file; None in a file of a single unnamed tensor."""

Header = tuple[tuple[int, ...], str] | str
"""A shape and the name of a dtype; or the reason why attnscope does not read the tensor."""

Contents = Iterator[tuple[Member, Header, Callable[[], "torch.Tensor"]]]
"""The tensors in a file, each with a function that loads its values while the file is open."""

DTYPES = "bool uint8 int8 int16 int32 int64 float16 bfloat16 float32 float64".split()
COMPLEX = ("complex64", "complex128")
MATRIX_TEXT = "[[1, 0], [0, 1]]: a list of rows, all of the same length"
LISTED = 8
"""The maximal number of names that an error lists."""


@dataclass(frozen=True)
class TensorFile:
    """One tensor in a file, of which only the header has been read.

    Args:
        name: its role: `Q`, `W_Q`, `mask`.
        path: the file.
        member: its name in the file, if it has one there.
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
        """Read its values: on the CPU, contiguous, in memory of their own, in the stored dtype.

        Raises:
            FileError: the file is missing, is damaged, or has changed since it was opened.
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
    """A tensor in memory, with the interface of one in a file.

    Args:
        value: a numpy array or a torch tensor.
        source: its description in messages.
    """

    value: Any = field(default=None, repr=False, compare=False)
    source: str = ""

    def __str__(self) -> str:
        return self.source

    def load(self) -> torch.Tensor:
        """Return a copy of its values: on the CPU, contiguous, in its own dtype."""
        import numpy as np
        import torch

        if isinstance(self.value, torch.Tensor):
            return _own(self.value)
        copy = np.array(self.value, order="C")
        return torch.from_numpy(copy.astype(copy.dtype.newbyteorder("="), copy=False))


def tensor_of(name: str, value: Any, source: str) -> TensorFile:
    """Return the tensor for a caller's array, tensor or file name.

    Args:
        name: its role, such as `Q`.
        value: FILE or FILE:NAME, a path, a text such as `[[1, 0], [0, 1]]`, a torch tensor, or anything
            that numpy converts to an array.
        source: its description in messages if it is not a file, such as `the argument q`.

    Raises:
        FileError: as in `open_tensor`.
        OptionError: it is neither a file nor an array of numbers.
    """
    if isinstance(value, str) and is_matrix_text(value):
        return _in_text(name, value)
    if isinstance(value, str) and not os.path.exists(value) and _split(value)[0].suffix not in FORMATS:
        raise FileError(
            f"{name} is {shortened(repr(value))}, which is neither a file nor a matrix.",
            hint=rows_in(value) or f'"[[1,2],[3,4]]", or a file that ends in {", ".join(FORMATS)}',
        )
    if isinstance(value, str | os.PathLike):
        return open_tensor(name, os.fspath(value))
    return in_memory(name, value, source)


def is_matrix_text(text: str) -> bool:
    """Check whether a text lists numbers, as `[[1, 0], [0, 1]]`, and names no file."""
    text = text.strip()
    return text.startswith("[") and text.endswith("]") and not os.path.exists(text)


def rows_in(text: str) -> str | None:
    r"""Return the matrix that a text means, as a user writes it; None if it does not list numbers.

    >>> rows_in("1 2; 3 4"), rows_in("[[.5 2]\n [3 4]]")
    ('"[[1,2],[3,4]]"', '"[[.5,2],[3,4]]"')
    """
    rows = [re.split(r"[\s,]+", row.strip(" ,[]()")) for row in re.split(r"[;\n]|\]\s*,?\s*\[", text)]
    if not all(re.fullmatch(r"-?(\d+\.?\d*|\.\d+)", each) for row in rows for each in row):
        return None
    listed = ",".join(f"[{','.join(row)}]" for row in rows)
    return f'"[{listed}]"'


def _in_text(name: str, text: str) -> TensorInMemory:
    """Return the tensor that a text lists, in float64; without another dtype it runs in float32.

    Raises:
        OptionError: it is not a list of numbers, or its rows have different lengths.
    """
    source = shortened(printable(text.strip()), 40)
    numbers: list[Any] = []
    try:
        shape = _read_rows(name, ast.literal_eval(text.strip()), numbers)
        is_bool = all(isinstance(each, bool) for each in numbers)
        values = array("b" if is_bool else "d", numbers)
        value = memoryview(values).cast("B").cast("?" if is_bool else "d", shape)
    except (ValueError, TypeError, SyntaxError, OverflowError, MemoryError, RecursionError) as error:
        if isinstance(error, OptionError):
            raise
        message = f"{name} is {source}, and not numbers in rows."
        raise OptionError(message, hint=rows_in(text) or MATRIX_TEXT) from error
    return TensorInMemory(name, Path(), None, shape, "bool" if is_bool else "float32", value, source)


def _read_rows(name: str, rows: Any, numbers: list[Any]) -> tuple[int, ...]:
    """Return the shape of nested lists, and append their numbers to a list.

    Raises:
        OptionError: rows have different lengths.
        ValueError: a list is empty.
    """
    if not isinstance(rows, list | tuple):
        numbers.append(rows)
        return ()
    if not rows:
        raise ValueError
    first, *others = [_read_rows(name, row, numbers) for row in rows]
    for i, shape in enumerate(others, 1):
        if shape != first:
            lengths = ["×".join(map(str, each)) or "no list" for each in (first, shape)]
            raise OptionError(
                f"{name} has rows of different lengths: row 0 has {lengths[0]}, row {i} has"
                f" {lengths[1]}.",
                hint=MATRIX_TEXT,
            )
    return (len(rows), *first)


def in_memory(name: str, value: Any, source: str) -> TensorInMemory:
    """Wrap a torch tensor, or anything that numpy converts to an array; arguments as in `tensor_of`."""
    if "torch" in sys.modules and isinstance(value, sys.modules["torch"].Tensor):
        header = _torch_header(value)
    else:
        import numpy as np

        try:
            if isinstance(value, list | tuple) and value:
                _read_rows(source, value, [])
            value = np.asarray(value)
        except OptionError:
            raise
        except (ValueError, TypeError, RuntimeError) as error:
            raise OptionError(f"{source} is not an array: {first_line(error).rstrip('.')}.") from error
        header = _header(value.shape, value.dtype.name)
    if isinstance(header := _without_complex(header), str):
        raise OptionError(f"{source} {header}", hint=f"a tensor of {', '.join(DTYPES)}")
    return TensorInMemory(name, Path(), None, *header, value, source)


def open_tensor(name: str, text: str, *, allow_complex: bool = False) -> TensorFile:
    """Open the tensor that FILE or FILE:NAME names, reading only its header.

    Args:
        name: its role, such as `Q`.
        text: FILE or FILE:NAME. Without NAME, the tensor called `name` in the file is opened, or
            else the only one.
        allow_complex: whether it may contain complex numbers.

    Raises:
        FileError: there is no such file or tensor, or it cannot be read.
    """
    path, member = _split(text)
    headers = _headers(path, allow_complex=allow_complex)
    if member is None:
        member = _choose(name, path, headers)
    elif None in headers:
        raise FileError(f"{path} has no named tensors, so no {member!r}.", hint=str(path))
    elif member not in headers:
        raise FileError(f"{path} has no {member!r}: it holds {_listed(headers)}.", hint=f"{path}:NAME")
    return _tensor_file(name, path, member, headers[member])


def open_tensors(path: Path) -> dict[str, TensorFile]:
    """Open all tensors of a file, by name; an unnamed one by the file's name without its suffix.

    Tensors that attnscope cannot read are left out; `open_tensor` with FILE:NAME raises the reason.

    Raises:
        FileError: there is no such file, it cannot be read, or no tensor in it can.
    """
    headers = _headers(path)
    members = _readable(headers) or [_choose("", path, headers)]  # leads to an error with the reason
    names = [path.stem if member is None else member for member in members]
    return {n: _tensor_file(n, path, m, headers[m]) for n, m in zip(names, members, strict=True)}


def _split(text: str) -> tuple[Path, Member]:
    """Split FILE:NAME at a colon so that FILE is the longest path that exists."""
    parts = text.split(":")
    for end in range(len(parts), 0, -1):
        path = ":".join(parts[:end])
        if os.path.exists(path):
            return Path(path), ":".join(parts[end:]) if end < len(parts) else None
    head, _, member = text.rpartition(":")
    return (Path(head), member) if Path(head).suffix in FORMATS else (Path(text), None)


def _choose(name: str, path: Path, headers: dict[Member, Header]) -> Member:
    """Return the tensor to open if the user names none."""
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


def _headers(path: Path, *, allow_complex: bool = False) -> dict[Member, Header]:
    with _reading(path) as contents:
        headers = {member: header for member, header, _ in contents}
    if allow_complex:
        return headers
    return {member: _without_complex(header) for member, header in headers.items()}


@contextmanager
def _reading(path: Path) -> Iterator[Contents]:
    """Open a file, and turn everything that its library raises while it is read into a FileError."""
    size = _check(path)
    try:
        with warnings.catch_warnings(action="ignore"):  # of old formats, deprecated classes
            yield FORMATS[path.suffix](path)
    except Exception as error:  # the libraries raise a dozen different classes
        if is_out_of_memory(error):
            raise
        unknown = object_in_pickle(error)
        if unknown:
            raise FileError(
                f"{path} contains {unknown}, which is not a tensor; nothing in it was run.",
                hint="torch.save of a tensor, or of a flat dictionary of tensors by name",
            ) from error
        raise FileError(
            f"{path} is damaged, or not a {path.suffix} file: {_reason(error)} ({size} bytes long).",
            hint="write it again: it may have been cut short",
        ) from error


def _check(path: Path) -> int:
    """Return the size of a file in bytes; raise a FileError if it cannot be read."""
    try:
        status = path.stat()
        if S_ISREG(status.st_mode):
            path.open("rb").close()
    except FileNotFoundError as error:
        raise no_such_file(path) from error
    except OSError as error:
        raise FileError(f"cannot read {path}: {error.strerror}.") from error
    if not S_ISREG(status.st_mode):
        what = "a folder" if S_ISDIR(status.st_mode) else "not a regular file"
        raise FileError(f"{path} is {what}.", hint=f"a file that ends in {', '.join(FORMATS)}")
    if path.suffix not in FORMATS:
        raise FileError(
            f"{path} ends in {path.suffix or 'no suffix'}, which is not a format for tensors.",
            hint=f"a file that ends in {', '.join(FORMATS)}",
        )
    if not status.st_size:
        raise FileError(f"{path} is empty: 0 bytes long.")
    return status.st_size


def _reason(error: Exception) -> str:
    """Return the message of a library's error in one sentence."""
    message = type(error).__name__ if isinstance(error, LookupError) else first_line(error)
    return shortened(printable(message.split(". ")[0].rstrip(".")), 120)


def _header(shape: Iterable[int], dtype: str) -> Header:
    if dtype not in (*DTYPES, *COMPLEX):
        return _unread(dtype)
    return tuple(map(int, shape)), dtype


def _without_complex(header: Header) -> Header:
    """Return a header, or for complex numbers the reason why attnscope does not read them here."""
    is_complex = isinstance(header, tuple) and header[1] in COMPLEX
    return _unread(header[1]) if is_complex else header


def _unread(dtype: str) -> str:
    return f"is stored as {dtype}, which attnscope does not read."


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

    # Version 3 differs from 2 only in the encoding of field names, and tensors have no fields.
    old = npy.read_magic(file) == (1, 0)
    shape, _, dtype = (npy.read_array_header_1_0 if old else npy.read_array_header_2_0)(file)
    if dtype.hasobject:
        return "holds pickled Python objects; nothing in it was run."
    needed, there = prod(shape) * dtype.itemsize, size - file.tell()
    if min(shape, default=0) < 0:
        raise ValueError(f"its header gives the shape {shape}, with a size below 0")
    if needed > there:
        raise ValueError(f"its header announces {needed} bytes of values, but the file has {there}")
    return _header(shape, dtype.name)


def _npy_values(file: IO[bytes]) -> torch.Tensor:
    import torch
    from numpy.lib import format as npy

    array = npy.read_array(file, allow_pickle=False)
    return torch.from_numpy(array.astype(array.dtype.newbyteorder("="), order="C", copy=False))


def _pt(path: Path) -> Contents:
    from zipfile import is_zipfile

    import torch

    # Files that torch before 1.6 wrote are not zip files, and cannot be memory-mapped.
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
            known, dtype = SAFETENSORS.get(part.get_dtype()), part.get_dtype()
            is_read = known is not None and known.name in (*DTYPES, *COMPLEX)
            header = _header(part.get_shape(), known.name if known and is_read else dtype)
            yield name, header, partial(_safetensors_values, path, name)


def _safetensors_values(path: Path, name: str) -> torch.Tensor:
    from safetensors import safe_open

    with safe_open(path, framework="pt") as file:  # numpy has no bfloat16
        return _own(file.get_tensor(name))


def _own(tensor: torch.Tensor) -> torch.Tensor:
    """Return a plain copy, because a mapped file may change, and a parameter requires gradients."""
    import torch

    return torch.empty(tensor.shape, dtype=tensor.dtype).copy_(tensor.detach())


FORMATS: dict[str, Callable[[Path], Contents]] = {
    ".npy": _npy,
    ".npz": _npz,
    ".pt": _pt,
    ".pth": _pt,
    ".safetensors": _safetensors,
}
