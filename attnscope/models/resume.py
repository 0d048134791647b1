"""A run over a corpus on disk, so that it can go on where it was interrupted, to the same result."""

from __future__ import annotations

import json
from dataclasses import dataclass
from hashlib import sha256
from pathlib import Path
from typing import Any, Protocol

from attnscope.errors import FileError, OptionError, is_out_of_memory
from attnscope.models.tally import Key, Tally

VERSION = "attnscope.run/1"
KEYS = {
    *("settings", "lines", "offset", "skipped", "first_skipped", "share", "done", "why_eager"),
    *("sequences", "tokens", "cut", "empty", "layers", "heads", "measured"),
}
"""What a file says of its run."""


class Window(Protocol):
    """A part of a corpus, as far as a run has to know it: up to which line and byte it goes."""

    @property
    def lines(self) -> int: ...
    @property
    def offset(self) -> int: ...
    @property
    def skipped(self) -> int: ...
    @property
    def first_skipped(self) -> tuple[int, str] | None: ...
    @property
    def share(self) -> float | None: ...


@dataclass(frozen=True)
class Progress:
    """How far a run is.

    Attributes:
        tally: the sums of all that was read.
        lines, offset: how much of the corpus that is.
        skipped: how many lines were no text.
        first_skipped: the number of the first of them, and what was wrong with it.
        share: how much of the corpus's file that is, from 0 to 1, if it is one.
        done: whether the corpus has ended.
        why_eager: why the model ran eager, if it had to.
    """

    tally: Tally
    lines: int = 0
    offset: int = 0
    skipped: int = 0
    first_skipped: tuple[int, str] | None = None
    share: float | None = None
    done: bool = False
    why_eager: str | None = None

    def after(self, window: Window, tally: Tally) -> Progress:
        """How far the run is after one window more.

        Args:
            window: where it ends, and what was skipped in it.
            tally: what was measured in it.
        """
        whole = Tally()
        whole.include(self.tally)
        whole.include(tally)
        return Progress(
            whole,
            window.lines,
            window.offset,
            self.skipped + window.skipped,
            self.first_skipped or window.first_skipped,
            window.share,
        )


def fingerprint(model: Any) -> str | None:
    """What tells a model's weights from others, on any device; None where some are not in memory."""
    import torch

    digest = sha256()
    for name, parameter in model.named_parameters():
        if parameter.is_meta:  # accelerate keeps it elsewhere, where no room was left
            return None
        digest.update(f"{name} {tuple(parameter.shape)} ".encode())
        digest.update(parameter.detach().cpu().contiguous().reshape(-1).view(torch.uint8).numpy())
    return digest.hexdigest()[:16]


def save_progress(path: Path, progress: Progress, settings: dict[str, Any]) -> None:
    """Write a run's sums, as they are to the last bit, and how far it is: whole or not at all.

    Args:
        path: the file, which is replaced.
        progress: the run.
        settings: what decided the numbers; a run with others does not go on from here.

    Raises:
        FileError: it cannot be written; then it is as it was.
    """
    import numpy as np

    from attnscope.whole_file import whole_file

    tally = progress.tally
    told = {
        "schema": VERSION,
        "settings": settings,
        "lines": progress.lines,
        "offset": progress.offset,
        "skipped": progress.skipped,
        "first_skipped": progress.first_skipped,
        "share": progress.share,
        "done": progress.done,
        "why_eager": progress.why_eager,
        "sequences": tally.sequences,
        "tokens": tally.tokens,
        "cut": tally.cut,
        "empty": tally.empty,
        "layers": tally.layers,
        "heads": [[stack, layer, n_head] for (stack, layer), n_head in tally.heads.items()],
        "measured": [[stack, layer] for stack, layer in tally.sums],
    }
    arrays = {f"{stack} {layer}": sums for (stack, layer), sums in tally.sums.items()}
    with whole_file(path, force=True) as unfinished, unfinished.open("wb") as file:
        np.savez(file, **{"about": np.array(json.dumps(told)), **arrays})  # type: ignore[arg-type]


def load_progress(path: Path, settings: dict[str, Any]) -> Progress:
    """The run that a file holds.

    Args:
        path: the file.
        settings: what this run would be decided by.

    Raises:
        FileError: it is no such file, or is damaged.
        OptionError: it is of a run with other settings.
    """
    told, sums = _stored(path)
    for name, given in settings.items():
        before = told["settings"].get(name)
        if name == "weights" and None in (before, given):
            continue
        if before != given:
            raise OptionError(
                f"{path} is of a run with {name} {_short(before)}, and this one has {_short(given)}.",
                hint="the same options, or another name for --checkpoint",
            )
    first = told["first_skipped"]
    return Progress(
        Tally(
            sums=sums,
            layers={stack: (n_layer, n_head) for stack, (n_layer, n_head) in told["layers"].items()},
            heads={(stack, layer): n_head for stack, layer, n_head in told["heads"]},
            sequences=told["sequences"],
            tokens=told["tokens"],
            cut=told["cut"],
            empty=told["empty"],
        ),
        told["lines"],
        told["offset"],
        told["skipped"],
        (first[0], first[1]) if first else None,
        told["share"],
        told["done"],
        told["why_eager"],
    )


def _stored(path: Path) -> tuple[dict[str, Any], dict[Key, Any]]:
    """What a file says of its run, and the sums of each layer. A FileError if it is no such file."""
    import numpy as np

    try:
        with np.load(path, allow_pickle=False) as stored:
            told = json.loads(str(stored["about"]))
            if told["schema"] != VERSION:
                raise FileError(f"{path} is of another version: {told['schema']}.")
            missing = KEYS - told.keys()
            if missing:
                raise KeyError(*missing)
            sums = {(stack, layer): stored[f"{stack} {layer}"] for stack, layer in told["measured"]}
    except FileError:
        raise
    except Exception as error:  # numpy, zipfile, zlib and json raise a dozen kinds
        if is_out_of_memory(error):
            raise
        raise FileError(
            f"{path} is no run that attnscope has saved, or is damaged.",
            hint="another name for --checkpoint",
        ) from error
    return told, sums


def _short(value: Any) -> str:
    """A setting in a sentence."""
    text = ", ".join(map(str, value)) if isinstance(value, list) else str(value)
    return text if len(text) <= 60 else f"{text[:57]}…"
