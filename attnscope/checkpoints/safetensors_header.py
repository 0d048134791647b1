"""Read the header of a safetensors file by ranges: which tensors are in it, and where.

The header of a file from anywhere is not trusted. Its JSON has one fixed form, so it is read entry by
entry with regular expressions: whatever has another form is refused where it begins, and nothing of it
is ever built in memory.

Source: the safetensors format: the header's length as a little-endian number of 8 bytes; the header,
a JSON object that maps names to dtype, shape and byte range; the bytes of the tensors.
https://huggingface.co/docs/safetensors
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from math import prod
from typing import Any, NamedTuple

from attnscope.checkpoints.ranges import Ranges
from attnscope.errors import ModelError
from attnscope.text import printable, shortened

LONGEST_HEADER = 100_000_000
"""The most bytes of a header: `MAX_HEADER_SIZE` of the safetensors library."""
MOST_TENSORS = 2**18
"""The most tensors of a file. The largest mixtures of experts have about 200,000, in all their files."""
MOST_AXES = 64
LONGEST_NAME = 2**10
LARGEST = 2**63 - 1

BITS = {
    dtype: bits
    for bits, dtypes in {
        4: "F4",
        6: "F6_E2M3 F6_E3M2",
        8: "BOOL U8 I8 F8_E4M3 F8_E5M2 F8_E8M0 F8_E4M3FNUZ F8_E5M2FNUZ",
        16: "F16 BF16 I16 U16",
        32: "F32 I32 U32",
        64: "F64 I64 U64 C64",
    }.items()
    for dtype in dtypes.split()
}
"""The size of an element of each dtype in bits: `Dtype::bitsize` of the safetensors library."""


class SafetensorsTensor(NamedTuple):
    """A tensor in a safetensors file.

    Attributes:
        name: such as `model.layers.0.self_attn.q_proj.weight`.
        shape: its sizes, the innermost last.
        dtype: as the file names it, such as `BF16`.
        offset: its first byte in the file.
        n_bytes: its size in bytes.
    """

    name: str
    shape: tuple[int, ...]
    dtype: str
    offset: int
    n_bytes: int


def header_length(file: Ranges) -> int:
    """Return the length of a file's header in bytes, without the 8 bytes that say so.

    Raises:
        ModelError: the file is too short for it, or the header is longer than the format allows.
        FileError: there is no such file.
    """
    size = file.size
    length = int.from_bytes(file.read(0, 8), "little")
    if size < 10 or length < 2 or length > size - 8:
        raise _damaged(file, f"its header should have {length} bytes")
    if length > LONGEST_HEADER:
        raise _damaged(file, f"its header should have {length} bytes, more than {LONGEST_HEADER}")
    return length


def read_safetensors_header(file: Ranges) -> list[SafetensorsTensor]:
    """Return the tensors of a safetensors file, in the order of its header.

    Args:
        file: on this machine or on another one. Two ranges are read, or one, if the header is short.

    Raises:
        ModelError: it is damaged, cut short, or not a safetensors file.
        FileError: there is no such file.
    """
    length = header_length(file)
    text = file.read(8, length)
    start, n_data = 8 + length, file.size - 8 - length
    found: list[SafetensorsTensor] = []
    names: set[str] = set()
    n_used = 0
    for name, dtype, shape, begin, end in _entries(file, text):
        if name in names:
            raise _damaged(file, f"{_shown(name)} occurs twice")
        names.add(name)
        n_element = prod(shape)
        if n_element > LARGEST or begin > end or end > n_data:
            raise _damaged(file, f"{_shown(name)} {shape} ends at byte {shortened(start + end)}")
        bits = BITS.get(dtype)
        if bits is not None and n_element * bits != (end - begin) * 8:
            raise _damaged(file, f"{_shown(name)} {dtype} {shape} has {end - begin} bytes")
        found.append(SafetensorsTensor(name, shape, dtype, start + begin, end - begin))
        n_used += end - begin
    if n_used != n_data:
        raise _damaged(file, f"its tensors have {n_used} bytes, but {n_data} follow its header")
    return found


S = rb"[ \t\r\n]*+"
STRING = rb'"((?:[^"\\\x00-\x1f]|\\.)*+)"'


def _joined(*parts: bytes) -> bytes:
    """Return a pattern of parts, with white space before each of them."""
    return b"".join(S + part for part in parts)


_SIZES = rb"\[([0-9, \t\r\n]*+)\]"
_FIELDS = _joined(
    *(rb'\{"dtype"', b":", rb'"(\w++)"', b",", rb'"shape"', b":", _SIZES, b","),
    *(rb'"data_offsets"', b":", rb"\[" + S + rb"(\d++)", b",", rb"(\d++)", rb"\]", rb"\}"),
)
USUAL = re.compile(_joined(STRING, b":") + _FIELDS + _joined(rb"([,}])"))
"""An entry as the library writes it: `"name": {"dtype": …, "shape": […], "data_offsets": […]},`."""
ANY_ORDER = re.compile(_joined(STRING, b":", rb"(\{[^{}]{0,4096}+\})", rb"([,}])"))
"""An entry whose fields may have another order."""
_TEXTS = rb"\{(?:" + _joined(STRING, b":", STRING) + rb"(?:" + S + rb",)?+)*+" + S + rb"\}"
METADATA = re.compile(_joined(rb'"__metadata__"', b":", _TEXTS, rb"([,}])"))
"""An object of texts, of which nothing is kept."""

Entry = tuple[str, str, tuple[int, ...], int, int]


def _entries(file: Ranges, text: bytes) -> Iterator[Entry]:
    """Yield name, dtype, shape, first byte and the byte after the last one of each tensor."""
    start = re.compile(_joined(rb"\{")).match(text)
    if start is None:
        raise ModelError(
            f"{file.name} is not a safetensors file: its header is not JSON ({file.size} bytes long).",
            hint="download it again, if it should be one",
        )
    position, last = start.end(), b","
    if re.compile(_joined(rb"\}", rb"\Z")).match(text, position):
        return
    count = 0
    while last == b",":
        if found := USUAL.match(text, position):
            name, dtype, shape, begin, end, last = found.groups()
            first, after = _numbers(file, begin, end)
            yield _text(file, name), dtype.decode(), _sizes(file, shape), first, after
        elif found := METADATA.match(text, position):
            last = found[found.lastindex or 0]
        elif found := ANY_ORDER.match(text, position):
            last = found[3]
            yield _entry(file, found[1], found[2])
        else:
            raise _damaged(file, f"byte {8 + position} of its header does not begin an entry")
        position = found.end()
        count += 1
        if count > MOST_TENSORS:
            raise _damaged(file, f"it should have more than {MOST_TENSORS} tensors")
    if text[position:].strip(b" \t\r\n\0"):
        raise _damaged(file, f"something follows its header's last entry, at byte {8 + position}")


def _entry(file: Ranges, name: bytes, fields: bytes) -> Entry:
    """Return an entry whose fields have any order."""
    try:
        entry: Any = json.loads(fields)
        dtype, shape, (begin, end) = entry["dtype"], entry["shape"], entry["data_offsets"]
    except (ValueError, KeyError, TypeError, RecursionError) as error:
        raise _damaged(file, f"{_shown(_text(file, name))} has no dtype, shape and offsets") from error
    sizes = [begin, end, *shape] if isinstance(shape, list) and len(shape) <= MOST_AXES else [-1]
    if not isinstance(dtype, str) or any(type(size) is not int or size < 0 for size in sizes):
        raise _damaged(file, f"{_shown(_text(file, name))} has no dtype, shape and offsets")
    return _text(file, name), dtype, tuple(shape), begin, end


def _text(file: Ranges, quoted: bytes) -> str:
    """Return the text between quotes, whose escapes are those of JSON."""
    if len(quoted) > LONGEST_NAME:
        raise _damaged(file, f"a name has {len(quoted)} bytes, more than {LONGEST_NAME}")
    try:
        text = quoted.decode()
        text = json.loads(f'"{text}"') if "\\" in text else text
        text.encode()  # half of a surrogate pair is no text
    except ValueError as error:
        shown = printable(shortened(quoted.decode("utf-8", "replace")))
        raise _damaged(file, f"a name is not valid: {shown}") from error
    return text


def _sizes(file: Ranges, listed: bytes) -> tuple[int, ...]:
    """Return the numbers of a list."""
    if not listed.strip():
        return ()
    return _numbers(file, *listed.split(b",", MOST_AXES))


def _numbers(file: Ranges, *numbers: bytes) -> tuple[int, ...]:
    """Return numbers from their digits."""
    try:
        return tuple(map(int, numbers))
    except ValueError as error:  # no digits, or thousands of them
        raise _damaged(
            file, f"{printable(shortened(b','.join(numbers).decode()))} is not a size"
        ) from error


def _shown(name: str) -> str:
    """Return a name from a file on one line, short enough for a message."""
    return printable(shortened(name)) or "a tensor without a name"


def _damaged(file: Ranges, why: str) -> ModelError:
    return ModelError(
        f"{file.name} is damaged, or not a safetensors file: {why} ({file.size} bytes long).",
        hint="download it again: it may have been cut short",
    )
