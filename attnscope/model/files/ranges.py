"""Byte ranges of a file, on disk or on the Hugging Face hub, so that no file is read as a whole."""

from __future__ import annotations

import os
import re
from abc import ABC, abstractmethod
from collections import deque
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from math import prod
from pathlib import Path
from threading import Lock, Thread
from time import sleep
from typing import TYPE_CHECKING, Any, TypeVar

from attnscope.base.errors import ModelError, first_line, no_such_file
from attnscope.base.text import printable, shortened

if TYPE_CHECKING:
    import numpy as np

T = TypeVar("T")

KiB, MiB = 2**10, 2**20

AT_ONCE = 16
"""The number of files that are read at the same time."""

BUSY = (429, 500, 502, 503, 504)
"""Answers that may be other ones a moment later."""
PAUSES = (0.5, 2.0)
"""How long to wait in seconds, before the same request is sent again."""


class Ranges(ABC):
    """A file whose bytes are read in ranges."""

    #: `first`, `further`: how many bytes a reader of its header asks for first, and then at a time. A
    #: request costs more than a megabyte; a read from the disk costs nothing.
    first: int
    further: int

    @property
    @abstractmethod
    def name(self) -> str:
        """Its name in error messages."""

    @property
    @abstractmethod
    def size(self) -> int:
        """The size of the file in bytes."""

    @abstractmethod
    def read(self, start: int, length: int) -> bytes:
        """Return `length` bytes from `start` on; fewer at the end of the file, and no more."""

    def array(self, dtype: str, start: int, shape: tuple[int, ...]) -> np.ndarray:
        """Return numbers from `start` on; of a file on this machine, only those that are used are read.

        Args:
            dtype: numpy's name for how they are stored, such as `<f4`.
        """
        import numpy as np

        n_byte = prod(shape) * np.dtype(dtype).itemsize
        return np.frombuffer(self.read(start, n_byte), dtype).reshape(shape)

    @abstractmethod
    def beside(self, filename: str) -> Ranges:
        """Return another file of the same folder or repository, which may not exist."""


@dataclass
class FileRanges(Ranges):
    """A file on this machine."""

    path: Path
    first: int = 64 * KiB
    further: int = 64 * KiB

    @property
    def name(self) -> str:
        return str(self.path)

    @property
    def size(self) -> int:
        if not os.path.isfile(self.path):  # Path.is_file raises for a name that is too long
            raise (
                no_such_file(self.path) if not self.path.is_dir() else _unreadable(self.name, "a folder")
            )
        return self.path.stat().st_size

    def read(self, start: int, length: int) -> bytes:
        try:
            with self.path.open("rb") as file:
                file.seek(start)
                return file.read(length)
        except OSError as error:
            raise _unreadable(self.name, first_line(error)) from error

    def array(self, dtype: str, start: int, shape: tuple[int, ...]) -> np.ndarray:
        import numpy as np

        return np.memmap(self.path, dtype, mode="r", offset=start, shape=shape)

    def beside(self, filename: str) -> Ranges:
        return FileRanges(self.path.with_name(filename))


@dataclass
class HttpRanges(Ranges):
    """A file behind a URL, whose server answers range requests (RFC 9110, section 14).

    The first read says how large the file is: that takes no request of its own.
    """

    url: str
    #: Of each request, such as a token.
    headers: dict[str, str] = field(default_factory=dict, repr=False)
    first: int = MiB
    further: int = 16 * MiB
    _size: int | None = field(default=None, init=False)
    _head: bytes = field(default=b"", init=False, repr=False)

    @property
    def name(self) -> str:
        return self.url

    @property
    def size(self) -> int:
        if self._size is None:
            self._head = self._request(0, self.first)
        assert self._size is not None
        return self._size

    def read(self, start: int, length: int) -> bytes:
        length = min(length, self.size - start)
        if length <= 0:
            return b""
        known = self._head[start : start + length]
        if len(known) == length:
            return known
        return known + self._request(start + len(known), length - len(known))

    def beside(self, filename: str) -> Ranges:
        return HttpRanges(f"{self.url.rpartition('/')[0]}/{filename}", self.headers)

    def _request(self, start: int, length: int) -> bytes:
        from huggingface_hub import get_session

        plain = {"Accept-Encoding": "identity"}
        headers = {**self.headers, **plain, "Range": f"bytes={start}-{start + length - 1}"}
        for wait in (*PAUSES, None):
            try:
                with get_session().stream("GET", self.url, headers=headers, timeout=30) as response:
                    if wait is None or response.status_code not in BUSY:
                        return self._body(response, start, length)
            except ModelError:
                raise
            except Exception as error:  # whatever the network library raises, which changes
                raise _unreadable(self.url, first_line(error).rstrip(".")) from error
            sleep(wait)
        raise AssertionError("the last answer is the body or an error")

    def _body(self, response: Any, start: int, length: int) -> bytes:
        """Return the body of a response, of which no more than `length` bytes are ever in memory."""
        status = response.status_code
        if status in (401, 403):
            raise ModelError(
                f"{self.url} is private or gated: the server answers {status}.",
                hint="request access on its page on the hub, then hf auth login, or HF_TOKEN",
            )
        if status == 404:
            raise ModelError(f"there is no file {self.url}.")
        if status == 429:
            raise ModelError(
                f"cannot read {self.url}: the server answers 429, too many requests.",
                hint="the same again in a minute; hf auth login raises the limit",
            )
        found = re.fullmatch(r"bytes (\d+)-(\d+)/(\d+)", response.headers.get("content-range", ""))
        coding = response.headers.get("content-encoding", "identity")
        if status != 206 or found is None or int(found[1]) != start or coding != "identity":
            raise _unreadable(self.url, f"the server answers {status} to a request for a range of bytes")
        self._size = int(found[3])
        length = min(length, self._size - start)
        body = bytearray()
        for chunk in response.iter_bytes(64 * KiB):
            body += chunk[: length - len(body)]
            if len(body) == length:
                return bytes(body)
        raise _unreadable(self.url, f"{len(body)} of {length} bytes arrived")


@dataclass(slots=True)
class TensorHeader:
    """A tensor as the header of its file describes it."""

    name: str  #: such as `model.layers.0.self_attn.q_proj.weight` or `blk.0.attn_q.weight`
    shape: tuple[int, ...]  #: its sizes as torch orders them, the innermost last; GGUF has it first
    dtype: str  #: how the file stores it: `BF16`, `I32`, `Q4_K`, …; a number for an unknown type of GGUF
    n_bytes: int | None  #: None for an unknown type of GGUF
    offset: int = 0  #: its first byte in that file
    #: The file that contains it; None: it is of none.
    file: Ranges | None = field(default=None, repr=False, compare=False)


def hub_ranges(repository: str, filename: str) -> HttpRanges:
    """Return a file of a model on the hub; nothing is requested yet."""
    from huggingface_hub import hf_hub_url
    from huggingface_hub.utils import build_hf_headers  # type: ignore[attr-defined]

    return HttpRanges(hf_hub_url(repository, filename), build_hf_headers())


def _unreadable(name: str, why: str) -> ModelError:
    return ModelError(f"cannot read {name}: {why}.")


def shown_name(name: str) -> str:
    """Shorten a name from a file to one line of a message."""
    return printable(shortened(name)) or "a tensor without a name"


class HeaderBudget:
    """Limits what the headers of a model's files take together: a thousand cannot fill the memory."""

    def __init__(self, most: int) -> None:
        self.most, self.spent, self.lock = most, 0, Lock()

    def spend(self, file: Ranges, n_bytes: int) -> None:
        """Count bytes of a header, before they are kept."""
        with self.lock:
            self.spent += n_bytes
            if self.spent > self.most:
                raise ModelError(
                    f"{file.name} is damaged: its header, and those of the files before it, have"
                    f" {self.spent} bytes, more than {self.most}."
                )


def side_by_side(
    task: Callable[[Ranges], T], files: Iterable[Ranges], report: Callable[[float], None]
) -> list[T]:
    """Return a task's results for several files, of which up to `AT_ONCE` are read at the same time.

    The threads do not keep the process alive: Ctrl-C ends it although a server does not answer.

    Args:
        report: called with the share of files that are done.

    Raises:
        Exception: the first error of a task; no other task begins after it.
    """
    waiting = deque(enumerate(files))
    n_file = len(waiting)
    results: dict[int, T] = {}
    errors: list[BaseException] = []

    def work() -> None:
        while not errors:
            try:
                number, file = waiting.popleft()
            except IndexError:
                return
            try:
                results[number] = task(file)
            except BaseException as error:  # raised again in the caller's thread
                errors.append(error)

    n_thread = min(AT_ONCE, n_file)
    if all(isinstance(file, FileRanges) for _, file in waiting):
        n_thread = 0  # a disk answers at once
        work()
    threads = [Thread(target=work, daemon=True) for _ in range(n_thread)]
    for thread in threads:
        thread.start()
    try:
        for thread in threads:
            while thread.is_alive() and not errors:
                thread.join(0.1)
                report(len(results) / n_file)
    finally:
        waiting.clear()
    if errors:
        raise errors[0]
    report(1.0)
    return [results[number] for number in range(n_file)]
