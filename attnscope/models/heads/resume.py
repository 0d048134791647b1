"""Save and load a run over a corpus, so that it can be resumed with the same result."""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from dataclasses import dataclass, field
from hashlib import sha256
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol

from attnscope.errors import FileError, OptionError, is_out_of_memory
from attnscope.models.heads.statistics import Accumulator
from attnscope.models.running.layers import STACKS

if TYPE_CHECKING:
    import numpy as np

VERSION = "attnscope.run/1"

Check = Callable[[Any], bool]


class Window(Protocol):
    """The position at which a part of a corpus ends, and the lines that were skipped in it."""

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
class Part:
    """The progress of an unfinished window.

    Attributes:
        batches: the number of its batches that were measured.
        accumulator: their sums.
    """

    batches: int
    accumulator: Accumulator


@dataclass(frozen=True)
class RunState:
    """The progress of a run.

    Attributes:
        accumulator: the sums of finished windows.
        lines, offset: the numbers of lines and bytes in these windows.
        skipped: the number of lines in them that were no text.
        first_skipped: the line number of the first of these, and why it was skipped.
        share: the share of the corpus's file in these windows, from 0 to 1; None: unknown.
        done: whether the corpus has ended.
        why_eager: why the model ran with eager attention, if it had to.
        parts: the unfinished windows, by their place among those that come next, from 0.
    """

    accumulator: Accumulator
    lines: int = 0
    offset: int = 0
    skipped: int = 0
    first_skipped: tuple[int, str] | None = None
    share: float | None = None
    done: bool = False
    why_eager: str | None = None
    parts: dict[int, Part] = field(default_factory=dict)

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

    def after(self, window: Window, accumulator: Accumulator) -> RunState:
        """Return the progress after the next window.

        Args:
            window: the window.
            accumulator: its sums.
        """
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

    Args:
        path: the file.
        state: the progress of the run.
        settings: all options that affect the result; a run with others is not resumed from this file.
        force: whether to replace an existing file, such as that of the same run some seconds ago.

    Raises:
        FileError: it cannot be written, and is unchanged.
    """
    import numpy as np

    from attnscope.files import whole_file

    record = {
        "schema": VERSION,
        "settings": settings,
        "lines": state.lines,
        "offset": state.offset,
        "skipped": state.skipped,
        "first_skipped": state.first_skipped,
        "share": state.share,
        "done": state.done,
        "why_eager": state.why_eager,
        **_counts_of(state.accumulator),
        "parts": [
            {"place": place, "batches": part.batches, **_counts_of(part.accumulator)}
            for place, part in state.parts.items()
        ],
    }
    arrays = _sums_of(state.accumulator)
    for place, part in state.parts.items():
        arrays |= _sums_of(part.accumulator, place)
    with whole_file(path, force=force) as unfinished, unfinished.open("wb") as file:
        np.savez(file, **{"about": np.array(json.dumps(record)), **arrays})  # type: ignore[arg-type]


def load_state(path: Path, settings: dict[str, Any]) -> RunState:
    """Read the progress of a run from a file.

    Args:
        path: the file.
        settings: all options of this run that affect the result.

    Raises:
        FileError: it is not such a file, or is damaged.
        OptionError: the run in it has other settings.
    """
    record, arrays = _read(path)
    saved_settings = record["settings"]
    for name in dict.fromkeys([*settings, *saved_settings]):
        current, saved = settings.get(name), saved_settings.get(name)
        if name == "weights" and None in (current, saved):
            continue
        if current is not None and saved is not None and type(current) is not type(saved):
            raise _damaged(path)
        if current != saved:
            raise OptionError(
                f"{path} is from a run with {name} {_short(saved)}, but this run has {_short(current)}.",
                hint="the same options, or another name for --checkpoint",
            )
    first = record["first_skipped"]
    state = RunState(
        _accumulator(record, arrays),
        record["lines"],
        record["offset"],
        record["skipped"],
        None if first is None else (first[0], first[1]),
        record["share"],
        record["done"],
        record["why_eager"],
        {
            part["place"]: Part(part["batches"], _accumulator(part, arrays, part["place"]))
            for part in record["parts"]
        },
    )
    if not _is_possible(state, settings):
        raise _damaged(path)
    return state


def _counts_of(accumulator: Accumulator) -> dict[str, Any]:
    """Return the record of an accumulator, without its sums."""
    return {
        "sequences": accumulator.sequences,
        "tokens": accumulator.tokens,
        "cut": accumulator.cut,
        "empty": accumulator.empty,
        "unknown": accumulator.unknown,
        "layers": accumulator.layers,
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
        layers={stack: (n_layer, n_head) for stack, (n_layer, n_head) in record["layers"].items()},
        heads={(stack, layer): n_head for stack, layer, n_head in record["heads"]},
        sequences=record["sequences"],
        tokens=record["tokens"],
        cut=record["cut"],
        empty=record["empty"],
        unknown=None if record.get("unknown") is None else (record["unknown"][0], record["unknown"][1]),
    )


def _read(path: Path) -> tuple[dict[str, Any], dict[str, np.ndarray]]:
    """Read the record of a run, with every field of its type, and the sums that it names.

    Raises:
        FileError: it cannot be read, is not such a file, or has another version.
    """
    import numpy as np

    try:
        file = path.open("rb")
    except OSError as error:
        raise FileError(f"cannot read {path}: {error.strerror or error}.") from error
    try:
        with file, np.load(file, allow_pickle=False) as stored:
            sizes = {each.filename: each.file_size for each in stored.zip.infolist()}
            if len(sizes) < len(stored.zip.infolist()) or sum(sizes.values()) > path.stat().st_size:
                raise ValueError("an array occurs twice or is compressed")
            record = json.loads(str(stored["about"]), object_pairs_hook=_unique_names)
            if _is_another_version(record):
                raise FileError(f"{path} is from another version: {record['schema']}.")
            if isinstance(record, dict):
                record.setdefault("parts", [])  # an earlier version wrote none
            if not _fits(record, RUN):
                raise ValueError("a field is missing, has another type, or is out of range")
            places = [(None, record), *((part["place"], part) for part in record["parts"])]
            names = [
                _array_name(stack, layer, place)
                for place, accumulator in places
                for stack, layer in accumulator["measured"]
            ]
            arrays = {name: stored[name] for name in names}
    except FileError:
        raise
    except Exception as error:  # numpy, zipfile, zlib and json raise a dozen kinds
        if is_out_of_memory(error):
            raise
        raise _damaged(path) from error
    return record, arrays


def _damaged(path: Path) -> FileError:
    return FileError(
        f"{path} is not a run saved by attnscope, or is damaged.",
        hint="another name for --checkpoint",
    )


def _unique_names(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    """Return a JSON object; raise a ValueError if a name occurs twice."""
    if len(dict(pairs)) < len(pairs):
        raise ValueError("a name occurs twice")
    return dict(pairs)


def _is_another_version(record: Any) -> bool:
    """Return whether a record is that of a run from another version of attnscope."""
    schema = record.get("schema") if isinstance(record, dict) else None
    return (
        isinstance(schema, str)
        and bool(re.fullmatch(r"attnscope\.run/\d{1,9}", schema))
        and (schema != VERSION)
    )


def _is_count(value: Any) -> bool:
    return type(value) is int and 0 <= value < 2**63


def _is_text(value: Any) -> bool:
    return isinstance(value, str)


def _is_stack(value: Any) -> bool:
    return value in STACKS if _is_text(value) else False


def _is_setting(value: Any) -> bool:
    """Return whether a value is null, a boolean, a count, a text, or a list of counts or of texts."""
    lists = [_list_of(_is_count), _list_of(_is_text)]
    return value is None or any(check(value) for check in (_is_bool, _is_count, _is_text, *lists))


def _is_bool(value: Any) -> bool:
    return isinstance(value, bool)


def _is_share(value: Any) -> bool:
    return type(value) in (int, float) and 0 <= value <= 1  # NaN is neither


def _or_none(check: Check) -> Check:
    return lambda value: value is None or check(value)


def _list_of(check: Check) -> Check:
    return lambda value: isinstance(value, list) and all(map(check, value))


def _keyed_list_of(n_key: int, check: Check) -> Check:
    """Return a check for a list of rows whose first `n_key` values are unique."""
    return lambda value: (
        _list_of(check)(value) and len({tuple(row[:n_key]) for row in value}) == len(value)
    )


def _row_of(*checks: Check) -> Check:
    """Return a check for a list with one value for each check."""
    return lambda value: (
        isinstance(value, list)
        and len(value) == len(checks)
        and all(check(each) for check, each in zip(checks, value, strict=True))
    )


def _names_of(name: Check, check: Check) -> Check:
    """Return a check for an object, by its names and values."""
    return lambda value: (
        isinstance(value, dict) and all(map(name, value)) and all(map(check, value.values()))
    )


OPTIONAL = frozenset(["unknown"])
"""Fields that files of earlier versions lack."""


def _fits(record: Any, fields: dict[str, Check]) -> bool:
    """Return whether a record has all of these fields, each with its type and in its range."""
    return isinstance(record, dict) and all(
        check(record[name]) if name in record else name in OPTIONAL for name, check in fields.items()
    )


ACCUMULATOR: dict[str, Check] = {
    **dict.fromkeys(("sequences", "tokens", "cut", "empty"), _is_count),
    "unknown": _or_none(_row_of(_is_count, _is_count)),
    "layers": _names_of(_is_stack, _row_of(_is_count, _is_count)),
    "heads": _keyed_list_of(2, _row_of(_is_stack, _is_count, _is_count)),
    "measured": _keyed_list_of(2, _row_of(_is_stack, _is_count)),
}
"""The fields of an accumulator's record: the type and the range of each."""

PART: dict[str, Check] = {"place": _is_count, "batches": _is_count, **ACCUMULATOR}
"""The same of an unfinished window."""

RUN: dict[str, Check] = {
    "schema": lambda value: value == VERSION,
    "settings": _names_of(_is_text, _is_setting),
    **dict.fromkeys(("lines", "offset", "skipped"), _is_count),
    "first_skipped": _or_none(_row_of(_is_count, _is_text)),
    "share": _or_none(_is_share),
    "done": _is_bool,
    "why_eager": _or_none(_is_text),
    **ACCUMULATOR,
    "parts": lambda value: (
        _list_of(lambda part: _fits(part, PART))(value)
        and len({part["place"] for part in value}) == len(value)
    ),
}
"""The same of a run."""


def _is_possible(state: RunState, settings: dict[str, Any]) -> bool:
    """Return whether the numbers of a run are consistent."""
    first, accumulator = state.first_skipped, state.accumulator
    return (
        state.lines <= state.offset
        and state.skipped + accumulator.sequences + accumulator.empty <= state.lines
        and (first is None) == (state.skipped == 0)
        and (first is None or 1 <= first[0] <= state.lines)
        and not (state.done and state.parts)
        and all(_is_possible_accumulator(each, settings) for each in state.accumulators)
    )


def _is_possible_accumulator(accumulator: Accumulator, settings: dict[str, Any]) -> bool:
    """Return whether the sums are consistent with the layers, heads and metrics that were measured."""
    from attnscope.models.heads.metrics import metrics_of

    layers = [
        (stack, layer)
        for stack, layer in accumulator.heads
        if settings.get("stack") in (None, stack)
        and (settings.get("layers") is None or layer in settings["layers"])
    ]
    return (
        accumulator.cut <= accumulator.sequences <= accumulator.tokens
        and (
            accumulator.unknown is None
            or accumulator.unknown[0] <= accumulator.unknown[1] <= accumulator.tokens
        )
        and (accumulator.sequences > 0) == bool(accumulator.heads)
        and accumulator.layers.keys() == {stack for stack, _ in accumulator.heads}
        and all(
            layer < accumulator.layers[stack][0] and 0 < n_head <= accumulator.layers[stack][1]
            for (stack, layer), n_head in accumulator.heads.items()
        )
        and accumulator.sums.keys() == set(layers)
        and all(
            _are_possible_sums(
                sums,
                (accumulator.heads[key], len(metrics_of(key[0], settings["metrics"])), 6),
                accumulator,
            )
            for key, sums in accumulator.sums.items()
        )
    )


def _are_possible_sums(sums: np.ndarray, shape: tuple[int, ...], accumulator: Accumulator) -> bool:
    """Return whether an array has this shape, float64 and finite values, and no negative counts."""
    import numpy as np

    if sums.shape != shape or sums.dtype != np.float64 or not np.isfinite(sums).all():
        return False
    sequences, queries, *_ = np.moveaxis(sums, -1, 0)
    return bool(
        (sums[..., [0, 1, 3, 5]] >= 0).all()
        and (sequences <= accumulator.sequences).all()
        and (queries <= accumulator.tokens).all()
    )


def _short(value: Any) -> str:
    """Format a setting for a message."""
    text = ", ".join(map(str, value)) if isinstance(value, list) else str(value)
    return text if len(text) <= 60 else f"{text[:57]}…"
