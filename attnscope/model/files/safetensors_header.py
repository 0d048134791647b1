"""Read the header of a safetensors file by ranges: which tensors are in it, and where.

The header of a file from anywhere is not trusted. It is cut into entries, and each is parsed as JSON
alone: whatever is not an entry is refused where it begins, and is never built in memory.

Source: the safetensors format: the header's length as a little-endian number of 8 bytes; the header,
a JSON object that maps names to dtype, shape and byte range; the bytes of the tensors.
https://huggingface.co/docs/safetensors
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from math import prod

from attnscope.base.dtypes import SAFETENSORS
from attnscope.base.errors import ModelError
from attnscope.base.text import printable, shortened
from attnscope.model.files.ranges import HeaderBudget, Ranges, TensorHeader, shown_name

LONGEST_HEADER = 100_000_000
"""The most bytes of a header: `MAX_HEADER_SIZE` of the safetensors library."""
MOST_TENSORS = 2**18
"""The most tensors of a file. The largest mixtures of experts have about 200,000, in all their files."""
MOST_AXES = 64
LONGEST_NAME = 2**10
LARGEST = 2**63 - 1


def read_safetensors_header(file: Ranges, budget: HeaderBudget | None = None) -> list[TensorHeader]:
    """Read which tensors are in a safetensors file, in the order of its header.

    Args:
        file: on this machine or on another one. Two ranges are read, or one, if the header is short.
        budget: the bytes that the headers of all files of a model may have together.
    """
    size = file.size
    length = int.from_bytes(file.read(0, 8), "little")
    if size < 10 or length < 2 or length > size - 8:
        raise _damaged(file, f"its header should have {length} bytes")
    if length > LONGEST_HEADER:
        raise _damaged(file, f"its header should have {length} bytes, more than {LONGEST_HEADER}")
    if budget is not None:
        budget.spend(file, length)
    start, n_data = 8 + length, size - 8 - length
    tensors: dict[str, TensorHeader] = {}
    for name, dtype, shape, begin, end in _entries(file, file.read(8, length)):
        if name in tensors:
            raise _damaged(file, f"{shown_name(name)} occurs twice")
        n_element = prod(shape)
        if n_element > LARGEST or begin > end or end > n_data:
            raise _damaged(
                file, f"{shown_name(name)} {shortened(shape)} ends at byte {shortened(start + end)}"
            )
        known = SAFETENSORS.get(dtype)
        if known is not None and n_element * known.bits != (end - begin) * 8:
            raise _damaged(
                file, f"{shown_name(name)} {dtype} {shortened(shape)} has {end - begin} bytes"
            )
        tensors[name] = TensorHeader(name, shape, dtype, end - begin, start + begin, file)
    n_used = sum(tensor.n_bytes or 0 for tensor in tensors.values())
    if n_used != n_data:
        raise _damaged(file, f"its tensors have {n_used} bytes, but {n_data} follow its header")
    end = start
    for tensor in sorted(tensors.values(), key=lambda each: (each.offset, each.n_bytes or 0)):
        if tensor.offset != end:
            raise _damaged(file, f"{shown_name(tensor.name)} begins within another tensor")
        end += tensor.n_bytes or 0
    return list(tensors.values())


STRING = r'"(?:[^"\\\x00-\x1f]|\\.)*+"'
NEXT = re.compile(
    r"""
    \s*+ (?: "__metadata__" \s*+ : \s*+ \{ (?: \s*+ STRING \s*+ : \s*+ STRING (?: \s*+ ,)?+ )*+ \s*+ \}
         | (STRING) \s*+ : \s*+ (\{ [^{}]{0,4096}+ \}) )
    \s*+ ([,}])
    """.replace("STRING", STRING).encode(),
    re.VERBOSE,
)
"""An object of texts, of which nothing is kept, or a tensor's name and fields; a comma or the end."""

Entry = tuple[str, str, tuple[int, ...], int, int]


def _entries(file: Ranges, header: bytes) -> Iterator[Entry]:
    """Yield name, dtype, shape, first byte and the byte after the last one of each tensor."""
    start = re.match(rb"\s*+\{", header)
    if start is None:
        raise ModelError(
            f"{file.name} is not a safetensors file: its header is not JSON ({file.size} bytes long).",
            hint="download it again, if it should be one",
        )
    if re.fullmatch(rb"\s*+\{\s*+\}\s*+", header):
        return
    position, last, count = start.end(), b",", 0
    while last == b",":
        found = NEXT.match(header, position)
        if found is None:
            raise _damaged(file, f"byte {8 + position} of its header does not begin an entry")
        name, fields, last = found.groups()
        if name is not None:
            yield _entry(file, name, fields)
        position = found.end()
        count += 1
        if count > MOST_TENSORS:
            raise _damaged(file, f"it should have more than {MOST_TENSORS} tensors")
    if header[position:].strip(b" \t\r\n\0"):
        raise _damaged(file, f"something follows its header's last entry, at byte {8 + position}")


_parse = json.JSONDecoder().raw_decode


def _entry(file: Ranges, quoted: bytes, fields: bytes) -> Entry:
    """Parse the name of a tensor, and its fields in any order."""
    if len(quoted) - 2 > LONGEST_NAME:
        raise _damaged(file, f"a name has {len(quoted) - 2} bytes, more than {LONGEST_NAME}")
    try:
        name = json.loads(quoted) if b"\\" in quoted else quoted[1:-1].decode()
        name.encode()  # half of a surrogate pair is no text
    except ValueError as error:
        shown = printable(shortened(quoted[1:-1].decode("utf-8", "replace")))
        raise _damaged(file, f"a name is not valid: {shown}") from error
    try:
        entry, _ = _parse(fields.decode())
        dtype, shape, (begin, end) = entry["dtype"], entry["shape"], entry["data_offsets"]
    except (ValueError, KeyError, TypeError, RecursionError) as error:
        raise _damaged(file, f"{shown_name(name)} has no dtype, shape and offsets") from error
    sizes = [begin, end, *shape] if isinstance(shape, list) and len(shape) <= MOST_AXES else [-1]
    if not isinstance(dtype, str) or {*map(type, sizes)} != {int} or min(sizes) < 0:
        raise _damaged(file, f"{shown_name(name)} has no dtype, shape and offsets")
    return name, dtype, tuple(shape), begin, end


def _damaged(file: Ranges, why: str) -> ModelError:
    return ModelError(
        f"{file.name} is damaged, or not a safetensors file: {why} ({file.size} bytes long).",
        hint="download it again: it may have been cut short",
    )
