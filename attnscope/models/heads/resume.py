"""A run over a corpus on disk, so that it can go on where it was interrupted, to the same result."""

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
class Part:
    """How far a window is that was begun.

    Attributes:
        batches: how many of its batches were measured.
        accumulator: the sums of these.
    """

    batches: int
    accumulator: Accumulator


@dataclass(frozen=True)
class RunState:
    """How far a run is.

    Attributes:
        accumulator: the sums of the windows that were read to their ends.
        lines, offset: how much of the corpus that is.
        skipped: how many lines were no text.
        first_skipped: the number of the first of them, and what was wrong with it.
        share: how much of the corpus's file that is, from 0 to 1, if it is one.
        done: whether the corpus has ended.
        why_eager: why the model ran eager, if it had to.
        parts: the windows that were begun, by their place among those that come next, from 0.
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
        """Those of whole windows and of the ones that were begun, in the order of the corpus."""
        return [self.accumulator, *(self.parts[place].accumulator for place in sorted(self.parts))]

    @property
    def whole(self) -> Accumulator:
        """The sums of all that was measured."""
        whole = Accumulator()
        for accumulator in self.accumulators:
            whole.merge(accumulator)
        return whole

    def after(self, window: Window, accumulator: Accumulator) -> RunState:
        """How far the run is after one window more.

        Args:
            window: where it ends, and what was skipped in it.
            accumulator: what was measured in it.
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
    """What tells a model's weights from others, on any device; None where some are not in memory."""
    import torch

    digest = sha256()
    for name, parameter in model.named_parameters():
        if parameter.is_meta:  # accelerate keeps it elsewhere, where no room was left
            return None
        digest.update(f"{name} {tuple(parameter.shape)} ".encode())
        digest.update(parameter.detach().cpu().contiguous().reshape(-1).view(torch.uint8).numpy())
    return digest.hexdigest()[:16]


def save_state(path: Path, state: RunState, settings: dict[str, Any], *, force: bool = True) -> None:
    """Write a run's sums, as they are to the last bit, and how far it is: whole or not at all.

    Args:
        path: the file.
        state: the run.
        settings: what decided the numbers; a run with others does not go on from here.
        force: whether it replaces a file that is there, as that of the same run some seconds ago.

    Raises:
        FileError: it cannot be written; then it is as it was.
    """
    import numpy as np

    from attnscope.files import whole_file

    told = {
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
        np.savez(file, **{"about": np.array(json.dumps(told)), **arrays})  # type: ignore[arg-type]


def load_state(path: Path, settings: dict[str, Any]) -> RunState:
    """The run that a file holds.

    Args:
        path: the file.
        settings: what this run would be decided by.

    Raises:
        FileError: it is no such file, or is damaged.
        OptionError: it is of a run with other settings.
    """
    told, arrays = _stored(path)
    before = told["settings"]
    for name in dict.fromkeys([*settings, *before]):
        here, there = settings.get(name), before.get(name)
        if name == "weights" and None in (here, there):
            continue
        if here is not None and there is not None and type(here) is not type(there):
            raise _damaged(path)
        if here != there:
            raise OptionError(
                f"{path} is of a run with {name} {_short(there)}, and this one has {_short(here)}.",
                hint="the same options, or another name for --checkpoint",
            )
    first = told["first_skipped"]
    state = RunState(
        _accumulator(told, arrays),
        told["lines"],
        told["offset"],
        told["skipped"],
        None if first is None else (first[0], first[1]),
        told["share"],
        told["done"],
        told["why_eager"],
        {
            part["place"]: Part(part["batches"], _accumulator(part, arrays, part["place"]))
            for part in told["parts"]
        },
    )
    if not _is_possible(state, settings):
        raise _damaged(path)
    return state


def _counts_of(accumulator: Accumulator) -> dict[str, Any]:
    """What a file says of a accumulator beside its sums."""
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
    """The arrays of a accumulator, by their names in a file."""
    return {_array_name(stack, layer, place): sums for (stack, layer), sums in accumulator.sums.items()}


def _array_name(stack: str, layer: int, place: int | None) -> str:
    """What the sums of a layer are called in a file: of whole windows, or of the one at a place."""
    return f"{stack} {layer}" if place is None else f"{place} {stack} {layer}"


def _accumulator(
    told: dict[str, Any], arrays: dict[str, np.ndarray], place: int | None = None
) -> Accumulator:
    """The accumulator that a file holds."""
    return Accumulator(
        sums={
            (stack, layer): arrays[_array_name(stack, layer, place)] for stack, layer in told["measured"]
        },
        layers={stack: (n_layer, n_head) for stack, (n_layer, n_head) in told["layers"].items()},
        heads={(stack, layer): n_head for stack, layer, n_head in told["heads"]},
        sequences=told["sequences"],
        tokens=told["tokens"],
        cut=told["cut"],
        empty=told["empty"],
        unknown=None if told.get("unknown") is None else (told["unknown"][0], told["unknown"][1]),
    )


def _stored(path: Path) -> tuple[dict[str, Any], dict[str, np.ndarray]]:
    """What a file says of its run, with every field of its type, and the sums that it names.

    Raises:
        FileError: it cannot be read, is no such file, or is of another version.
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
                raise ValueError("an array stands twice, or is compressed, which none of ours is")
            told = json.loads(str(stored["about"]), object_pairs_hook=_without_twins)
            if _is_another_version(told):
                raise FileError(f"{path} is of another version: {told['schema']}.")
            if isinstance(told, dict):
                told.setdefault("parts", [])  # an earlier version wrote none
            if not _fits(told, RUN):
                raise ValueError("a field is missing, or of another type, or out of range")
            places = [(None, told), *((part["place"], part) for part in told["parts"])]
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
    return told, arrays


def _damaged(path: Path) -> FileError:
    return FileError(
        f"{path} is no run that attnscope has saved, or is damaged.",
        hint="another name for --checkpoint",
    )


def _without_twins(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    """An object of JSON; a ValueError if one of its names stands twice."""
    if len(dict(pairs)) < len(pairs):
        raise ValueError("a name stands twice")
    return dict(pairs)


def _is_another_version(told: Any) -> bool:
    """Whether a record is that of a run, as another version of attnscope writes it."""
    schema = told.get("schema") if isinstance(told, dict) else None
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
    """Whether it is nothing, true or false, a count, a text, or a list of counts or of texts."""
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
    """A list of rows that are told from each other by their first values."""
    return lambda value: (
        _list_of(check)(value) and len({tuple(row[:n_key]) for row in value}) == len(value)
    )


def _row_of(*checks: Check) -> Check:
    """A list with a value for each check."""
    return lambda value: (
        isinstance(value, list)
        and len(value) == len(checks)
        and all(check(each) for check, each in zip(checks, value, strict=True))
    )


def _names_of(name: Check, check: Check) -> Check:
    """An object whose names and values are right."""
    return lambda value: (
        isinstance(value, dict) and all(map(name, value)) and all(map(check, value.values()))
    )


LATER = frozenset(["unknown"])
"""Fields that files do not have which an earlier attnscope has written."""


def _fits(told: Any, fields: dict[str, Check]) -> bool:
    """Whether a record has all of these fields, each of its type and in its range."""
    return isinstance(told, dict) and all(
        check(told[name]) if name in told else name in LATER for name, check in fields.items()
    )


ACCUMULATOR: dict[str, Check] = {
    **dict.fromkeys(("sequences", "tokens", "cut", "empty"), _is_count),
    "unknown": _or_none(_row_of(_is_count, _is_count)),
    "layers": _names_of(_is_stack, _row_of(_is_count, _is_count)),
    "heads": _keyed_list_of(2, _row_of(_is_stack, _is_count, _is_count)),
    "measured": _keyed_list_of(2, _row_of(_is_stack, _is_count)),
}
"""What a file says of a accumulator: the type and the range of each field."""

PART: dict[str, Check] = {"place": _is_count, "batches": _is_count, **ACCUMULATOR}
"""What it says of a window that was begun."""

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
"""What it says of its run."""


def _is_possible(state: RunState, settings: dict[str, Any]) -> bool:
    """Whether the numbers of a run do not contradict each other."""
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
    """Whether the sums are of the layers, heads and metrics that were measured, and can be sums."""
    from attnscope.models.heads.metrics import metrics_of

    wanted = [
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
        and accumulator.sums.keys() == set(wanted)
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
    """Whether an array has its shape and type, finite numbers, and counts and squares from 0."""
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
    """A setting in a sentence."""
    text = ", ".join(map(str, value)) if isinstance(value, list) else str(value)
    return text if len(text) <= 60 else f"{text[:57]}…"
