"""What several commands are given in the same way: a file as one text, and memory."""

from __future__ import annotations

from codecs import getincrementaldecoder
from pathlib import Path
from typing import TYPE_CHECKING, Any

from attnscope.errors import FileError, SizeError
from attnscope.units import bytes_text

if TYPE_CHECKING:
    from attnscope.checkpoints.find import Checkpoint

BYTES_OF_A_TOKEN = 1024
"""How many bytes of a text a token may stand for; more than any does, but for endless blanks."""

LEAST = 2**20
"""How many bytes of a file are read in any case."""

MOST = 2**28
"""How many bytes of a file are read at most, as where nothing but memory limits a model's texts."""


def content(path: Path, n_token: int | None, *, truncate: bool = False) -> str:
    """A file as one text; of a file that may have no end, no more than a model can use.

    Args:
        path: the file.
        n_token: how many tokens the model takes; None: any number.
        truncate: whether what is too long is cut rather than refused.

    Raises:
        FileError: it cannot be read, is not UTF-8, or is longer than so many tokens can be.
    """
    most = MOST if n_token is None else min(MOST, max(LEAST, n_token * BYTES_OF_A_TOKEN))
    try:
        raw, more = _beginning(path, most)
    except FileNotFoundError as error:
        raise FileError(f"there is no file {path}.") from error
    except OSError as error:
        raise FileError(f"cannot read {path}: {error.strerror}.") from error
    try:  # what is cut may end within a character
        text = getincrementaldecoder("utf-8-sig")().decode(raw, final=not more)
    except UnicodeDecodeError as error:
        raise FileError(f"{path} is not UTF-8.", hint="iconv -t utf-8 …") from error
    if "\0" in text:
        raise FileError(f"{path} has a NUL character: it is no text.")
    if more and not truncate:
        use = "attnscope reads" if most == MOST else f"a model that takes {n_token:,} tokens can use"
        raise FileError(
            f"{path} is longer than {bytes_text(most)}, which is more than {use}.",
            hint="--truncate, which reads its beginning",
        )
    return text.replace("\r\n", "\n").replace("\r", "\n")  # as Python reads texts


def _beginning(path: Path, most: int) -> tuple[bytes, bool]:
    """A file's first bytes, and whether there are more; it ends at once where a NUL makes it no text."""
    parts: list[bytes] = []
    left = most + 1
    with path.open("rb") as file:
        while left and (part := file.read(min(left, LEAST))):
            parts.append(part)
            left -= len(part)
            if b"\0" in part:
                break
    raw = b"".join(parts)
    return raw[:most], len(raw) > most


def memory_for(asked: str | None, device: str) -> int:
    """How many bytes a run may take on a device: those of `--memory`; else a share of what is free.

    What is free is divided among the processes of a machine where they share it, as under torchrun.

    Raises:
        OptionError: `--memory` is no size.
        SizeError: it is more than may be taken.
    """
    from attnscope.models.heads.memory_plan import SHARE, bytes_of
    from attnscope.process.devices import room_of
    from attnscope.process.launch import processes_here

    room = room_of(device)
    if asked is None:
        sharing = processes_here() if device == "cpu" else 1
        return int(SHARE * (2**34 if room is None else room.free) / sharing)
    memory = bytes_of(asked)
    if room is not None and memory > room.free:
        raise SizeError(f"--memory {asked} is more than there is: {room.on(device)}.")
    return memory


def dtype_of(config: Any, dtype: str | None) -> str:
    """What a model is to run in: the dtype that is asked for; else what its configuration says."""
    return dtype or str(getattr(config, "dtype", None)).removeprefix("torch.")


def check_weights(
    checkpoint: Checkpoint,
    config: Any,
    dtype: str | None,
    device: str,
    *,
    beside: int = 0,
    what: str = "maps",
    hint: str | None = None,
) -> None:
    """Raise a SizeError if a model's weights, and what is made beside them, have no room together.

    It is told before the weights are loaded.

    Args:
        checkpoint: the model; of one whose files are not here yet, nothing is known.
        config: its configuration.
        dtype: what it is to run in; None: what its configuration says.
        device: where.
        beside: how many bytes are taken beside them.
        what: what these bytes are.
        hint: what makes them fewer.
    """
    from attnscope.checkpoints.tensors import bytes_of_weights
    from attnscope.contracts import DTYPES
    from attnscope.process.devices import room_of

    runs_in = dtype_of(config, dtype)
    needed, room = bytes_of_weights(checkpoint, DTYPES.get(runs_in)), room_of(device)
    if needed is None or room is None or needed + beside <= room.free:
        return
    more = f" and {what} {bytes_text(beside)}" if beside else ""
    hints = ["a smaller model"]
    if runs_in not in ("bfloat16", "float16"):
        hints.append("--dtype bfloat16")
    if hint is not None and needed <= room.free:
        hints = [hint]
    raise SizeError(
        f"the weights of {checkpoint.name} take {bytes_text(needed)}{more}, and {room.on(device)}.",
        hint=", or ".join(hints),
    )
