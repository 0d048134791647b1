"""What several commands are given in the same way: a file as one text, and memory."""

from __future__ import annotations

from pathlib import Path

from attnscope.errors import FileError, SizeError


def content(path: Path) -> str:
    """A file as one text.

    Raises:
        FileError: it cannot be read, or is not UTF-8.
    """
    try:
        text = path.read_text(encoding="utf-8-sig")
    except UnicodeDecodeError as error:
        raise FileError(f"{path} is not UTF-8.", hint="iconv -t utf-8 …") from error
    except FileNotFoundError as error:
        raise FileError(f"there is no file {path}.") from error
    except OSError as error:
        raise FileError(f"cannot read {path}: {error.strerror}.") from error
    if "\0" in text:
        raise FileError(f"{path} has a NUL character: it is no text.")
    return text


def memory_for(asked: str | None, device: str) -> int:
    """How many bytes a run may take on a device: those of `--memory`; else a share of what is free.

    What is free is divided among the processes of a machine where they share it, as under torchrun.

    Raises:
        OptionError: `--memory` is no size.
        SizeError: it is more than may be taken.
    """
    from attnscope.inputs.drawn import room_of
    from attnscope.models.launch import processes_here
    from attnscope.models.plan import SHARE, bytes_of

    room = room_of(device)
    if asked is None:
        sharing = processes_here() if device == "cpu" else 1
        return int(SHARE * (2**34 if room is None else room.free) / sharing)
    memory = bytes_of(asked)
    if room is not None and memory > room.free:
        raise SizeError(f"--memory {asked} is more than there is: {room.on(device)}.")
    return memory
