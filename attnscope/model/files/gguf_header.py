"""Read the header of GGUF files by ranges: what is in them, and where, without their tensors.

The header of a file from anywhere is not trusted: every length and count is compared with the bytes
that are there, long values are stepped over, and what is kept has a limit.

Source: the GGUF format, https://github.com/ggml-org/ggml/blob/master/docs/gguf.md
"""

from __future__ import annotations

import re
import struct
from dataclasses import dataclass
from math import prod
from pathlib import Path
from typing import Any

from attnscope.base.dtypes import GGML_TYPES
from attnscope.base.errors import ModelError
from attnscope.base.text import printable, shortened
from attnscope.model.files.ranges import (
    FileRanges,
    HeaderBudget,
    MiB,
    Ranges,
    TensorHeader,
    shown_name,
    side_by_side,
)

MAGIC = b"GGUF"
VERSIONS = (2, 3)
"""Version 1 had other lengths, and is not used any more."""

LONGEST_HEADER = 100 * MiB
"""The most bytes of a header; those with large vocabularies have 15 MiB."""
MOST_KEPT = 16 * MiB
"""The most bytes of names and values that are kept."""
MOST_ENTRIES = 2**16
"""The most keys, and the most tensors. Models have fewer than 3,000 tensors, and 100 keys."""
MOST_ITEMS = 2**12
"""The most elements of an array that are kept. Longer arrays are vocabularies."""
LONGEST_NAME = 1024
"""The most bytes of a tensor's name; the format allows 64."""
LONGEST_KEY = 2**16 - 1
LONGEST_TEXT = MiB
"""The most bytes of a text that are kept; of a longer one, only its length is."""
DEEPEST = 8
"""The most arrays inside of each other; files in use have no array in an array."""
MOST_DIMENSIONS = 4
MOST_PARTS = 2**10
FIRST_OF_PART = 64 * 2**10
"""The bytes of the first request for a part without a vocabulary."""
LARGEST = 2**63 - 1

STRING, ARRAY, BOOL = 8, 9, 7
NUMBERS = {0: "B", 1: "b", 2: "H", 3: "h", 4: "I", 5: "i", 6: "f", 7: "?", 10: "Q", 11: "q", 12: "d"}
"""The types of values, as `struct` names them."""


@dataclass(frozen=True)
class LongValue:
    """A value of the metadata that was stepped over, because it is long."""

    kind: str  #: `text` or `array`
    length: int  #: its number of bytes or of elements


@dataclass(frozen=True)
class Gguf:
    """The header of a GGUF file, or of all parts of a split one."""

    name: str  #: the file's name; of the first part
    version: int  #: 2 or 3
    #: Keys such as `llama.attention.head_count` → numbers, texts, lists, or `LongValue`.
    metadata: dict[str, Any]
    tensors: dict[str, TensorHeader]  #: by name, in the order of the file
    files: tuple[Ranges, ...]  #: the file, or all parts


def open_gguf(source: str | Path | Ranges) -> Gguf:
    """Read the header of a GGUF file; of all parts, if it is one part of a split file.

    Args:
        source: a path, or a file somewhere else, such as `ranges.hub_ranges` returns.
    """
    file = source if isinstance(source, Ranges) else FileRanges(Path(source))
    first = _read_header(file)
    count = first.metadata.get("split.count", 1)
    if type(count) is not int or not 0 <= count <= MOST_PARTS:
        raise _damaged(file, f"split.count is {printable(shortened(count))}")
    return first if count <= 1 else _joined(file, first, count)


PART = re.compile(r"(.*)-(\d{5})-of-(\d{5})\.gguf", re.DOTALL)
"""The name of a part, counted from 1: `llama_split_path` of llama.cpp."""


def _joined(file: Ranges, part_of_file: Gguf, count: int) -> Gguf:
    """Return the header of all parts of a split file; the first one has the metadata."""
    filename = re.split(r"[/\\]", file.name)[-1]
    found = PART.fullmatch(filename)
    if found is None or int(found[3]) != count:
        raise ModelError(
            f"{file.name} is a part of {count} files, but its name does not say which.",
            hint=f"its name as it was published, such as NAME-00001-of-{count:05}.gguf",
        )
    names = [f"{found[1]}-{number:05}-of-{count:05}.gguf" for number in range(1, count + 1)]
    files = [file.beside(name) for name in names]
    for later in files[1:]:
        later.first = min(later.first, FIRST_OF_PART)
    budget = HeaderBudget(MOST_KEPT)

    def read(each: Ranges) -> Gguf:
        return part_of_file if each.name == file.name else _read_header(each, budget)

    parts = side_by_side(read, files, lambda share: None)
    for number, part in enumerate(parts, 1):
        number_in_file = part.metadata.get("split.no")
        if (number_in_file, part.metadata.get("split.count")) != (number - 1, count):
            raise _damaged(part.files[0], f"split.no is {number_in_file!r}, not {number - 1}")
    tensors: dict[str, TensorHeader] = {}
    for part in parts:
        for twice in tensors.keys() & part.tensors.keys():
            raise _damaged(part.files[0], f"another part has {shown_name(twice)}, too")
        tensors |= part.tensors
    expected = parts[0].metadata.get("split.tensors.count", len(tensors))
    if expected != len(tensors):
        raise _damaged(file, f"its parts have {len(tensors)} tensors, not {expected!r}")
    return Gguf(parts[0].name, parts[0].version, parts[0].metadata, tensors, tuple(files))


def _read_header(file: Ranges, budget: HeaderBudget | None = None) -> Gguf:
    """Read the header of one file.

    Args:
        budget: what the headers of all parts may keep together.
    """
    cursor = _Cursor(file, budget or HeaderBudget(MOST_KEPT))
    magic = cursor.take(4) if cursor.size >= 4 else b""
    if magic != MAGIC:
        raise ModelError(
            f"{file.name} is not a GGUF file: it does not begin with GGUF ({cursor.size} bytes long).",
            hint="download it again, if it should be one",
        )
    version = cursor.number("I")
    if version not in VERSIONS:
        swapped = int.from_bytes(version.to_bytes(4, "little"), "big")
        what = f"a GGUF file for big-endian machines (version {swapped})"
        what = what if swapped in VERSIONS else f"version {version} of GGUF"
        raise ModelError(f"{file.name} is {what}, which attnscope does not read: it reads 2 and 3.")
    n_tensor, n_pair = cursor.count("tensors", 24), cursor.count("keys", 13)
    metadata: dict[str, Any] = {}
    for _ in range(n_pair):
        key = cursor.text(LONGEST_KEY, "a key")
        if key in metadata:
            raise cursor.damaged(f"{shown_name(key)} occurs twice")
        metadata[key] = cursor.value(key, cursor.number("I"))
    alignment = metadata.get("general.alignment", 32)
    if type(alignment) is not int or not 1 <= alignment <= MiB or alignment & (alignment - 1):
        raise cursor.damaged(f"general.alignment is {printable(shortened(alignment))}, not a power of 2")
    entries: dict[str, _Entry] = {}
    for _ in range(n_tensor):
        entry = _entry(cursor)
        if entry.name in entries:
            raise cursor.damaged(f"{shown_name(entry.name)} occurs twice")
        entries[entry.name] = entry
    start = cursor.position + -cursor.position % alignment
    tensors = {name: _tensor(cursor, each, start, alignment) for name, each in entries.items()}
    return Gguf(file.name, version, metadata, tensors, (file,))


@dataclass(frozen=True)
class _Entry:
    """A tensor as the header lists it: its sizes innermost first, its offset after the header."""

    name: str
    sizes: tuple[int, ...]
    type: int
    offset: int


def _entry(cursor: _Cursor) -> _Entry:
    name = cursor.text(LONGEST_NAME, "the name of a tensor")
    n_dim = cursor.number("I")
    if n_dim > MOST_DIMENSIONS:
        raise cursor.damaged(f"{shown_name(name)} has {n_dim} axes, more than {MOST_DIMENSIONS}")
    sizes = tuple(cursor.number("Q") for _ in range(n_dim))
    return _Entry(name, sizes, cursor.number("I"), cursor.number("Q"))


def _tensor(cursor: _Cursor, entry: _Entry, start: int, alignment: int) -> TensorHeader:
    """Return a tensor, after its place has been compared with the file.

    Args:
        start: the first byte after the header, from which offsets count.
        alignment: what offsets are multiples of.
    """
    name, shape = shown_name(entry.name), entry.sizes[::-1]
    n_element = prod(shape)
    if n_element > LARGEST or any(size > LARGEST for size in shape):
        raise cursor.damaged(f"{name} has the shape {shape}, more elements than any file can have")
    if entry.offset % alignment:
        raise cursor.damaged(f"{name} begins at {entry.offset}, not a multiple of {alignment}")
    kind, n_bytes = GGML_TYPES.get(entry.type), None
    if kind is not None:
        row = shape[-1] if shape else 1
        if row % kind.block:
            raise cursor.damaged(f"{name} has rows of {row}, but {kind.name} has blocks of {kind.block}")
        n_bytes = n_element // kind.block * kind.n_bytes
    offset = start + entry.offset
    if offset + (n_bytes or 0) > cursor.size:
        raise cursor.damaged(f"{name} ends at byte {offset + (n_bytes or 0)}")
    type_name = kind.name if kind else str(entry.type)
    return TensorHeader(entry.name, shape, type_name, n_bytes, offset, cursor.file)


class _Cursor:
    """Reads a file from its start, a part of it in memory at a time."""

    def __init__(self, file: Ranges, budget: HeaderBudget) -> None:
        self.file, self.size, self.budget = file, file.size, budget
        self.end = min(self.size, LONGEST_HEADER)
        self.position = 0
        self._start, self._buffer = 0, b""

    def damaged(self, why: str) -> ModelError:
        """Return the error for a file that contradicts itself."""
        return _damaged(self.file, why)

    def take(self, length: int) -> bytes:
        """Return the next bytes."""
        start = self._need(length)
        self.position += length
        return self._buffer[start : start + length]

    def skip(self, length: int) -> None:
        """Step over bytes, without reading them."""
        if length > self.end - self.position:
            raise self._too_long(length)
        self.position += length

    def number(self, letter: str) -> Any:
        """Return the next number, of a type that `struct` names with a letter."""
        return struct.unpack("<" + letter, self.take(struct.calcsize("<" + letter)))[0]

    def count(self, what: str, smallest: int) -> int:
        """Return the next number, of things of which each takes at least `smallest` bytes."""
        count: int = self.number("Q")
        if count > MOST_ENTRIES or count * smallest > self.size:
            raise self.damaged(f"it should have {count} {what}")
        return count

    def text(self, longest: int, what: str) -> str:
        """Return the next text.

        Args:
            what: what it is, for the error if it has more.
        """
        length = self.number("Q")
        if length > longest:
            raise self.damaged(f"{what} should have {length} bytes, more than {longest}")
        return self._keep(self.take(length))

    def value(self, key: str, kind: int) -> Any:
        """Return the next value of the metadata; a `LongValue` if it is long."""
        if kind == STRING:
            length = self.number("Q")
            if length > LONGEST_TEXT:
                self.skip(length)
                return LongValue("text", length)
            return self._keep(self.take(length))
        if kind == ARRAY:
            return self._array(key, DEEPEST)
        return self._number(key, kind)

    def _number(self, key: str, kind: int) -> Any:
        if kind not in NUMBERS:
            raise self.damaged(f"{shown_name(key)} has a value of the type {kind}, which is none")
        self._count_kept(8)
        return self.number(NUMBERS[kind])

    def _array(self, key: str, deeper: int) -> Any:
        """Return the next array; only its length if it is long."""
        if not deeper:
            raise self.damaged(f"{shown_name(key)} has more than {DEEPEST} arrays inside of each other")
        self._count_kept(64)
        kind, length = self.number("I"), self.number("Q")
        if kind in NUMBERS:
            smallest = struct.calcsize("<" + NUMBERS[kind])
        elif kind in (STRING, ARRAY):
            smallest = 8 if kind == STRING else 12
        else:
            raise self.damaged(f"{shown_name(key)} has elements of the type {kind}, which is none")
        if length * smallest > self.end - self.position:
            raise self._too_long(length * smallest)
        if length > MOST_ITEMS:
            self._skip_items(key, kind, length, deeper)
            return LongValue("array", length)
        if kind == ARRAY:
            return [self._array(key, deeper - 1) for _ in range(length)]
        return [self.value(key, kind) for _ in range(length)]

    def _skip_items(self, key: str, kind: int, length: int, deeper: int) -> None:
        """Step over the elements of a long array: a vocabulary, or whatever an attacker made of it."""
        if kind in NUMBERS:
            self.skip(length * struct.calcsize("<" + NUMBERS[kind]))
        elif kind == ARRAY:
            for _ in range(length):
                self._array(key, deeper - 1)
        else:
            self._skip_texts(length)

    def _skip_texts(self, length: int) -> None:
        """Step over texts. There may be millions, so this calls as little as possible."""
        read = struct.Struct("<Q").unpack_from
        for _ in range(length):
            start = self.position - self._start
            if start + 8 > len(self._buffer):
                start = self._need(8)
            n_bytes = read(self._buffer, start)[0]
            self.position += 8
            if n_bytes > self.end - self.position:
                raise self._too_long(n_bytes)
            self.position += n_bytes

    def _keep(self, text: bytes) -> str:
        self._count_kept(len(text))
        return text.decode("utf-8", "backslashreplace")

    def _count_kept(self, n_bytes: int) -> None:
        kept = n_bytes + 64  # what Python needs for the smallest text
        if self.budget.spent + kept > self.budget.most:
            raise self.damaged(f"its names and values take more than {MOST_KEPT // MiB} MiB")
        self.budget.spend(self.file, kept)

    def _need(self, length: int) -> int:
        """Have the next bytes in the buffer; return where they begin in it."""
        start = self.position - self._start
        if start + length <= len(self._buffer):
            return start
        if length > self.end - self.position:
            raise self._too_long(length)
        n_bytes = max(length, self.file.further if self.position else self.file.first)
        self._start = self.position
        self._buffer = self.file.read(self.position, min(n_bytes, self.end - self.position))
        if len(self._buffer) < length:
            raise self.damaged(f"it ends at byte {self.position + len(self._buffer)}")
        return 0

    def _too_long(self, length: int) -> ModelError:
        if self.end < self.size:
            return self.damaged(f"its header takes more than {LONGEST_HEADER // MiB} MiB")
        return self.damaged(f"{length} bytes should follow byte {self.position}")


def _damaged(file: Ranges, why: str) -> ModelError:
    return ModelError(
        f"{file.name} is damaged: {why} ({file.size} bytes long).",
        hint="download it again: it may have been cut short",
    )
