"""Read a corpus from a file, standard input or an iterable, one window of texts at a time.

A file is never held in memory as a whole. A run may be interrupted and resumed at the end of any window,
which depends on the file alone.

Source: https://jsonlines.org, RFC 8259 (JSON), RFC 1952 (gzip)
"""

from __future__ import annotations

import json
import sys
import zlib
from collections.abc import Callable, Iterable, Iterator, Mapping, Sized
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from gzip import BadGzipFile, GzipFile
from hashlib import sha256
from io import BufferedIOBase
from itertools import islice
from pathlib import Path
from reprlib import repr as short
from stat import S_ISDIR, S_ISREG
from typing import Any, BinaryIO

from attnscope.base.errors import FileError, OptionError, class_name, first_line, no_such_file
from attnscope.base.spelling import spelled
from attnscope.base.text import shortened
from attnscope.base.units import bytes_text

WINDOW = 64 * 1024  #: the bytes of text, in UTF-8 and with targets, at which a window ends

STRETCH = 16 * WINDOW
"""The bytes of the stream at which a window ends, even if they contain little text."""

MAX_LINE_BYTES = 16 * 1024 * 1024  #: the most bytes of a line, including its end

PIECE = 64 * 1024
"""The bytes read at once to skip them, and those at a file's beginning that identify it."""

JSON_LINES = (".jsonl", ".ndjson")
READ = ".txt (a text per line), .jsonl or .ndjson (an object per line), or one of them with .gz"
KINDS = {dict: "an object", list: "an array", str: "a string", bool: "true or false", float: "a number"}

Stream = BufferedIOBase | BinaryIO


@dataclass(frozen=True)
class Position:
    """A place between two lines of a corpus."""

    lines: int = 0  #: the number of lines before it
    offset: int = 0  #: the number of bytes before it, uncompressed


@dataclass(frozen=True)
class Text:
    """One text of a corpus."""

    text: str  #: the input of the model, or of its encoder
    target: str | None  #: the input of the decoder in an encoder-decoder model, if requested
    line: int  #: the line number, from 1


@dataclass(frozen=True)
class CorpusWindow:
    """Consecutive texts of a corpus."""

    texts: list[Text]  #: the texts; none, if a long stretch of the stream has none
    #: lines, offset: the numbers of lines and bytes of the corpus up to the window's end
    lines: int
    offset: int
    skipped: int  #: the number of lines without a text. Blank lines and blank texts are not counted.
    #: the line number of the first of them, and why: `is not UTF-8` and the like
    first_skipped: tuple[int, str] | None
    #: the share of the file up to the window's end, from 0 to 1; None for standard input
    share: float | None = field(default=None, compare=False)

    @property
    def end(self) -> Position:
        """The position at which the next window begins."""
        return Position(self.lines, self.offset)


class NoTextError(Exception):
    """A line that is skipped; its message says why."""


@dataclass(frozen=True)
class Corpus:
    """A corpus in a file or on standard input, as `open_corpus` returns it."""

    path: Path | None  #: the file; None for standard input, which can be read once
    #: field, target_field: the fields of each line's object that are read; None for plain lines, and if
    #: there is no target
    field: str | None
    target_field: str | None
    size: int | None = None  #: the bytes of the file as stored; None for standard input
    #: SHA-256 of the first 64 KiB of the file as stored; None for standard input
    head: str | None = None

    def __str__(self) -> str:
        return str(self.path or "standard input")

    def identity(self) -> dict[str, str | int | None]:
        """Identify the corpus, so that a resumed run can check that it is the same."""
        name = self.path.name if self.path else "-"
        fields = {"field": self.field, "target_field": self.target_field}
        return {"name": name, "size": self.size, "sha256": self.head, **fields}

    def windows(self, start: Position = Position()) -> Iterator[CorpusWindow]:
        """Yield the windows of the corpus from a position on: together, they have all of its lines."""
        position = start
        try:
            with self._opened() as (stream, stored):
                self._skip(stream, start.offset)
                while (window := _window(_lines_of(stream), self._text, position)).end != position:
                    position = window.end
                    share = stored.tell() / self.size if stored and self.size else None
                    yield replace(window, share=share)
        except (EOFError, BadGzipFile, zlib.error) as error:
            what = (
                f"damaged after line {position.lines}"
                if position.lines
                else "damaged, or not a gzip file"
            )
            hint = "compress it again: it may have been cut short"
            raise FileError(f"{self} is {what}: {first_line(error)}.", hint=hint) from error
        except FileError:
            raise
        except OSError as error:
            raise FileError(f"cannot read {self}: {error.strerror or error}.") from error

    @contextmanager
    def _opened(self) -> Iterator[tuple[Stream, BinaryIO | None]]:
        """Open the corpus: yield the stream of its lines, and the file in which they are stored."""
        if self.path is None:
            yield sys.stdin.buffer, None
            return
        with self.path.open("rb") as stored:
            yield GzipFile(fileobj=stored) if _is_gzip(self.path) else stored, stored

    def _skip(self, stream: Stream, offset: int) -> None:
        """Skip the first `offset` bytes: seek in a file, and read other streams up to there."""
        left = offset
        if self.path:
            left -= stream.seek(min(offset, self.path.stat().st_size))
        while left and (piece := stream.read(min(left, PIECE))):
            left -= len(piece)
        if left:
            raise FileError(
                f"{self} ends {bytes_text(left)} before the position at which to resume.",
                hint="the corpus of the first run",
            )

    def _text(self, line: bytes, number: int) -> Text | None:
        """Return the text of a line; None if it is blank. Raise a NoTextError if it is not a text."""
        if len(line) > MAX_LINE_BYTES:
            raise NoTextError(f"is longer than {bytes_text(MAX_LINE_BYTES)}")
        try:
            text = line.decode("utf-8-sig" if number == 1 else "utf-8")
        except UnicodeDecodeError as error:
            raise NoTextError("is not UTF-8") from error
        text, target = text.removesuffix("\n").removesuffix("\r"), None
        if self.field is not None and text.strip():
            fields = _object(text)
            text = _string(fields, self.field)
            target = None if self.target_field is None else _string(fields, self.target_field)
        return _checked(text, target, number)


def _checked(text: str, target: str | None, number: int) -> Text | None:
    """Return a text; None if it or its target is blank. Raise a NoTextError for a NUL character."""
    if "\0" in text + (target or ""):
        raise NoTextError("has a NUL character")
    blank = not text.strip() or (target is not None and not target.strip())
    return None if blank else Text(text, target, number)


@dataclass(frozen=True)
class IterableCorpus:
    """A corpus in memory: an iterable of strings, or of objects with a field that is a string.

    It is read once, from its beginning; a resumed run skips the texts that it has read before.
    """

    #: a list, a generator, a data set or the like. A text counts as a line.
    texts: Iterable[str | Mapping[str, Any]]
    #: field, target_field: the fields of objects that are read; strings have no target
    field: str | None
    target_field: str | None

    def __str__(self) -> str:
        return "the corpus"

    @property
    def size(self) -> int | None:
        """The number of texts; None if it is unknown, as for a generator."""
        return len(self.texts) if isinstance(self.texts, Sized) else None

    def identity(self) -> dict[str, str | int | None]:
        """Identify the texts to a resumed run by what is known before they are read."""
        fields = {"field": self.field, "target_field": self.target_field}
        return {"name": "texts", "size": self.size, "sha256": None, **fields}

    def windows(self, start: Position = Position()) -> Iterator[CorpusWindow]:
        """Yield the windows of the corpus, as `Corpus.windows` does; bytes are counted as in a file."""
        size, items = self.size, iter(self.texts)
        entries = ((item, None) for item in items)
        n_skipped = sum(1 for _ in islice(items, start.lines))
        if n_skipped < start.lines:
            raise FileError(
                f"{self} has {n_skipped:,} texts, and {start.lines:,} of it were already read.",
                hint="the corpus of the first run",
            )
        position = start
        while (window := _window(entries, self._text, position)).end != position:
            position = window.end
            yield replace(window, share=position.lines / size if size else None)

    def _text(self, item: str | Mapping[str, Any], number: int) -> Text | None:
        """Return the text of a string or an object; None if it is blank. Raise a NoTextError if none."""
        if isinstance(item, Mapping):
            text = _string(item, self.field or "text")
            target = None if self.target_field is None else _string(item, self.target_field)
            return _checked(text, target, number)
        if not isinstance(item, str):
            raise OptionError(
                f"text {number} of {self} is a {class_name(item)}, but a text is a string or an"
                " object with a string field.",
                hint='["…", "…"], or [{"text": "…"}, …]',
            )
        if self.field is not None or self.target_field is not None:
            raise NoTextError("is a string, which has no fields")
        try:
            item.encode()
        except UnicodeEncodeError as error:
            raise NoTextError("has half of a surrogate pair") from error
        return _checked(item, None, number)


def open_corpus(name: str, field: str | None = None, target_field: str | None = None) -> Corpus:
    """Open a file, whose suffix determines its format, or `-`, standard input.

    Standard input has plain lines, or objects if a field is named. The default field is `text`.
    """
    has_fields = field is not None or target_field is not None
    text_field = "text" if field is None else field
    if name == "-":
        if sys.stdin is None:
            raise FileError("standard input is closed.", hint=spelled(corpus="FILE"))
        return Corpus(None, text_field if has_fields else None, target_field)
    path = Path(name)
    size, head = _identify(path)
    plain = path.with_suffix("") if _is_gzip(path) else path
    if plain.suffix.lower() in JSON_LINES:
        return Corpus(path, text_field, target_field, size, head)
    if plain.suffix.lower() != ".txt":
        raise FileError(
            f"{path} ends in {path.name.removeprefix(plain.stem) or 'no suffix'}, which is not a"
            " format for texts.",
            hint=f"a file that ends in {READ}; or - for standard input",
        )
    if has_fields:
        raise OptionError(
            f"{spelled('target_field' if field is None else 'field')} names a field of objects, and"
            f" the lines of {path} are plain text.",
            hint=f"a file that ends in {' or '.join(JSON_LINES)}",
        )
    return Corpus(path, None, None, size, head)


def _is_gzip(path: Path) -> bool:
    return path.suffix.lower() == ".gz"


def _identify(path: Path) -> tuple[int, str]:
    """Return a file's size in bytes and the SHA-256 of its beginning; or raise a FileError."""
    try:
        status = path.stat()
        if S_ISREG(status.st_mode):
            with path.open("rb") as file:
                return status.st_size, sha256(file.read(PIECE)).hexdigest()
    except FileNotFoundError as error:
        raise no_such_file(path) from error
    except OSError as error:
        raise FileError(f"cannot read {path}: {error.strerror}.") from error
    if S_ISDIR(status.st_mode):
        raise FileError(f"{path} is a folder.", hint=spelled(corpus=path / "FILE"))
    raise FileError(f"{path} is not a regular file.", hint="- reads standard input: cat … | attnscope …")


def _lines_of(stream: Stream) -> Iterator[tuple[bytes, int]]:
    """Yield each line that is left, or the beginning of one that is too long, and its length."""
    while line := stream.readline(MAX_LINE_BYTES + 1):
        length, piece = len(line), line[-1:]
        while length > MAX_LINE_BYTES and piece and not piece.endswith(b"\n"):
            piece = stream.readline(PIECE)
            length += len(piece)
        yield line, length


def _window(
    entries: Iterator[tuple[Any, int | None]],
    text_of: Callable[[Any, int], Text | None],
    start: Position,
) -> CorpusWindow:
    """Read the window at `start`; return an empty one at the end of the corpus.

    Args:
        entries: the lines or texts that come next, each with its bytes in the stream; None: those of its
            text, and of a line's end.
        text_of: returns the text of an entry with a line number; None if it is blank.
    """
    texts: list[Text] = []
    lines, offset, n_text_bytes, skipped, first_skipped = start.lines, start.offset, 0, 0, None
    while n_text_bytes < WINDOW and offset - start.offset < STRETCH:
        entry, length = next(entries, (None, 0))
        if entry is None:
            break
        lines, n_bytes = lines + 1, 0
        try:
            text = text_of(entry, lines)
            if text is not None:
                texts.append(text)
                n_bytes = len((text.text + (text.target or "")).encode())
        except NoTextError as why:
            skipped += 1
            first_skipped = first_skipped or (lines, str(why))
        n_text_bytes += n_bytes
        offset += n_bytes + 1 if length is None else length
    return CorpusWindow(texts, lines, offset, skipped, first_skipped)


def _object(text: str) -> dict[str, Any]:
    """Parse a line as a JSON object; raise a NoTextError if it is none."""
    try:
        # Python refuses to parse integers of thousands of digits; no number is needed here.
        value = json.loads(text, parse_int=float)
    except json.JSONDecodeError as error:
        raise NoTextError(f"is not JSON: {error.msg}, column {error.colno}") from error
    except RecursionError as error:
        raise NoTextError("is nested too deeply for JSON") from error
    if not isinstance(value, dict):
        raise NoTextError(f"is not a JSON object but {KINDS.get(type(value), 'null')}")
    return value


def _string(fields: Mapping[str, Any], name: str) -> str:
    """Return the text in an object's field; raise a NoTextError if there is none."""
    if name not in fields:
        present = ", ".join(map(short, islice(fields, 6))) + (", …" if len(fields) > 6 else "")
        raise NoTextError(
            f"has no field {shortened(repr(name))}" + (f"; it has {present}" if fields else "")
        )
    value = fields[name]
    if not isinstance(value, str):
        raise NoTextError(f"has {KINDS.get(type(value), 'null')} in field {shortened(repr(name))}")
    try:
        value.encode()
    except UnicodeEncodeError as error:
        raise NoTextError(f"has half of a surrogate pair in field {name!r}") from error
    return value
