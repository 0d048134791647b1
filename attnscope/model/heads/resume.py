"""Save and load a run over a corpus, so that it can be resumed with the same result."""

from __future__ import annotations

import io
import json
from dataclasses import dataclass, field
from hashlib import sha256
from pathlib import Path
from typing import TYPE_CHECKING, Any
from zipfile import ZipFile

from attnscope.base.errors import FileError, OptionError
from attnscope.base.spelling import spelled
from attnscope.model.heads.statistics import Accumulator

if TYPE_CHECKING:
    import numpy as np

    from attnscope.model.heads.corpus import CorpusWindow

VERSION = "attnscope.run/2"

SEAL = b"sha256 "
"""The comment of the archive begins with this; the hash of all bytes before the comment follows."""

COUNTS = ("sequences", "tokens", "cut", "empty")  #: fields of an accumulator, numbers
PROGRESS = ("lines", "offset", "skipped", "first_skipped", "share", "done", "why_eager")
"""The fields of a run's state that its record has as they are."""


@dataclass(frozen=True)
class WindowProgress:
    """The progress of an unfinished window."""

    batches: int  #: the number of its batches that were measured
    accumulator: Accumulator


@dataclass(frozen=True)
class RunState:
    """The progress of a run."""

    accumulator: Accumulator  #: the sums of finished windows
    #: lines, offset: the numbers of lines and bytes in these windows
    lines: int = 0
    offset: int = 0
    skipped: int = 0  #: the number of lines in them that were no text
    #: the line number of the first of these, and why it was skipped
    first_skipped: tuple[int, str] | None = None
    #: the share of the corpus's file in these windows, from 0 to 1; None: unknown
    share: float | None = None
    done: bool = False
    why_eager: str | None = None  #: why the model ran with eager attention, if it had to
    #: the unfinished windows, by their place among those that come next, from 0
    parts: dict[int, WindowProgress] = field(default_factory=dict)

    @property
    def accumulators(self) -> list[Accumulator]:
        """The sums of finished and of unfinished windows, in the order of the corpus."""
        return [self.accumulator, *(self.parts[place].accumulator for place in sorted(self.parts))]

    @property
    def whole(self) -> Accumulator:
        """The sums of everything that was measured."""
        whole = Accumulator()
        for accumulator in self.accumulators:
            whole.merge(accumulator)
        return whole

    def after(self, window: CorpusWindow, accumulator: Accumulator) -> RunState:
        """Return the progress after the next window."""
        whole = Accumulator()
        whole.merge(self.accumulator)
        whole.merge(accumulator)
        return RunState(
            whole,
            window.lines,
            window.offset,
            self.skipped + window.skipped,
            self.first_skipped or window.first_skipped,
            window.share,
            parts={place - 1: part for place, part in self.parts.items() if place > 0},
        )


def fingerprint(model: Any) -> str | None:
    """Return a hash of a model's weights, the same on any device; None if some are not in memory."""
    import torch

    digest = sha256()
    for name, parameter in model.named_parameters():
        if parameter.is_meta:  # accelerate keeps it on disk or on the CPU if memory is short
            return None
        digest.update(f"{name} {tuple(parameter.shape)} ".encode())
        digest.update(parameter.detach().cpu().contiguous().reshape(-1).view(torch.uint8).numpy())
    return digest.hexdigest()[:16]


def save_state(path: Path, state: RunState, settings: dict[str, Any], *, force: bool = True) -> None:
    """Write a run's exact sums and its progress to a file, completely or not at all.

    A run with other settings, which are all options that affect the result, is not resumed from it.
    """
    import numpy as np

    from attnscope.base.process.files import write_file

    record = {
        "schema": VERSION,
        "settings": settings,
        **{name: getattr(state, name) for name in PROGRESS},
        **_counts_of(state.accumulator),
        "parts": [
            {"place": place, "batches": part.batches, **_counts_of(part.accumulator)}
            for place, part in state.parts.items()
        ],
    }
    arrays = _sums_of(state.accumulator)
    for place, part in state.parts.items():
        arrays |= _sums_of(part.accumulator, place)
    buffer = io.BytesIO()
    np.savez(buffer, **{"about": np.array(json.dumps(record)), **arrays})  # type: ignore[arg-type]
    with ZipFile(buffer, "a") as archive:
        archive.comment = _seal(b"")  # of the length of the one that takes its place
    content = buffer.getvalue()[: -len(_seal(b""))]
    write_file(path, content + _seal(content), force=force)


def load_state(path: Path, settings: dict[str, Any]) -> RunState:
    """Read the progress of a run from a file."""
    record, arrays = _read(path)
    saved_settings = record["settings"]
    for name in dict.fromkeys([*settings, *saved_settings]):
        current, saved = settings.get(name), saved_settings.get(name)
        if name == "weights" and None in (current, saved):
            continue
        if current != saved:
            raise OptionError(
                f"{path} is from a run with {name} {_short(saved)}, but this run has {_short(current)}.",
                hint=f"the same options, or another name for {spelled('checkpoint')}",
            )
    parts = {
        part["place"]: WindowProgress(part["batches"], _accumulator(part, arrays, part["place"]))
        for part in record["parts"]
    }
    progress = {name: record[name] for name in PROGRESS}
    if progress["first_skipped"] is not None:
        progress["first_skipped"] = tuple(progress["first_skipped"])
    return RunState(_accumulator(record, arrays), **progress, parts=parts)


def _counts_of(accumulator: Accumulator) -> dict[str, Any]:
    """Return the record of an accumulator, without its sums."""
    return {
        **{name: getattr(accumulator, name) for name in (*COUNTS, "unknown", "layers")},
        "heads": [[stack, layer, n_head] for (stack, layer), n_head in accumulator.heads.items()],
        "measured": [[stack, layer] for stack, layer in accumulator.sums],
    }


def _sums_of(accumulator: Accumulator, place: int | None = None) -> dict[str, np.ndarray]:
    """Return the sums of an accumulator, by their names in a file."""
    return {_array_name(stack, layer, place): sums for (stack, layer), sums in accumulator.sums.items()}


def _array_name(stack: str, layer: int, place: int | None) -> str:
    """Return the name of a layer's sums in a file: of finished windows, or of the one at a place."""
    return f"{stack} {layer}" if place is None else f"{place} {stack} {layer}"


def _accumulator(
    record: dict[str, Any], arrays: dict[str, np.ndarray], place: int | None = None
) -> Accumulator:
    """Return the accumulator in a file."""
    return Accumulator(
        sums={
            (stack, layer): arrays[_array_name(stack, layer, place)]
            for stack, layer in record["measured"]
        },
        heads={(stack, layer): n_head for stack, layer, n_head in record["heads"]},
        **{name: record[name] for name in COUNTS},
        unknown=tuple(record["unknown"]),
        layers={stack: tuple(sizes) for stack, sizes in record["layers"].items()},
    )


def _seal(content: bytes) -> bytes:
    """Return the comment at the end of an archive with this content."""
    return SEAL + sha256(content).hexdigest().encode()


def _read(path: Path) -> tuple[dict[str, Any], dict[str, np.ndarray]]:
    """Read the record of a run, and its sums by name."""
    import numpy as np

    try:
        with path.open("rb") as file:
            end = max(0, file.seek(0, io.SEEK_END) - len(_seal(b"")))
            file.seek(end)
            seal = file.read()
            file.seek(0)
            content = file.read(end) if seal.startswith(SEAL) else b""  # others may be of any size
    except OSError as error:
        raise FileError(f"cannot read {path}: {error.strerror or error}.") from error
    if seal != _seal(content):
        raise FileError(
            f"{path} is not a run saved by this version of attnscope, or is damaged.",
            hint=f"another name for {spelled('checkpoint')}",
        )
    with np.load(io.BytesIO(content + seal), allow_pickle=False) as stored:
        arrays = dict(stored)
    record = json.loads(str(arrays.pop("about")))
    if record["schema"] != VERSION:
        raise FileError(
            f"{path} is from another version: {record['schema']}.",
            hint=f"another name for {spelled('checkpoint')}",
        )
    return record, arrays


def _short(value: Any) -> str:
    """Format a setting for a message."""
    text = ", ".join(map(str, value)) if isinstance(value, list) else str(value)
    return text if len(text) <= 60 else f"{text[:57]}…"
