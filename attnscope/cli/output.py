"""Prints results on stdout in the format asked for, and everything else on stderr."""

from __future__ import annotations

import json
import re
import sys
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from functools import cached_property
from math import prod
from pathlib import Path
from typing import TYPE_CHECKING, Any, TextIO

from attnscope.cli.options import Format
from attnscope.errors import (
    FileError,
    OptionError,
    warn_idle,
)
from attnscope.process.progress import Progress, silent, stage
from attnscope.text import LEFT_TO_RIGHT_MARK, json_printable, printable, printable_lines

if TYPE_CHECKING:
    import numpy as np
    from rich.console import Console
    from rich.progress import Progress as Bar
    from rich.status import Status

    from attnscope.render.files.tensor_file import Tensors
    from attnscope.render.values import Index, Shown
    from attnscope.results.common import Check
    from attnscope.results.example import WorkedExample
    from attnscope.results.maps import AttentionMaps
    from attnscope.results.trace import Step, Trace
    from attnscope.results.weights import HeadWeights

    Shape = tuple[int, ...]
    Dims = tuple[str, ...] | None


NOT_DRAWN = "nothing is drawn"


@dataclass(frozen=True)
class Output:
    """What a user wants to get of a result: the options of the panel `Output`."""

    format: Format = Format.TABLE
    wide: bool = False
    show: Sequence[str] = ()
    save: Path | None = None
    force: bool = False

    def check(self, dtypes: list[str]) -> None:
        """Raise an AttnscopeError for what cannot be done with any result, before it is made.

        Args:
            dtypes: of the tensors to come.
        """
        if self.show:
            if self.format is Format.CSV:
                raise OptionError(
                    "csv holds one table, and --show prints values beside it.",
                    hint="--format json, or --save values.npz",
                )
            self.selections  # noqa: B018 - parsed here and now, so that a mistake is told first
        if self.save is not None:
            from attnscope.render.files.tensor_file import check_target

            check_target(self.save, force=self.force, dtypes=dtypes)
        warn_idle(
            [
                (self.force and self.save is None, "--force", "no file is written"),
                (
                    self.wide and self.format in (Format.CSV, Format.JSON),
                    "--wide",
                    f"{self.format} has all columns anyway",
                ),
            ]
        )

    @cached_property
    def selections(self) -> list[tuple[str, Index]]:
        """The name and the index of each `--show`."""
        from attnscope.render.values import parse_selection

        return [parse_selection(text) for text in self.show]

    @property
    def keep(self) -> bool | set[str]:
        """The tensors of a trace that `--save` and `--show` need afterwards."""
        return self.save is not None or {name for name, _ in self.selections}

    def bytes_needed(self, plan: Trace, *, numbers: bool) -> int:
        """How much memory writing and showing takes, beside the tensors.

        Args:
            plan: what is going to be computed.
            numbers: whether every step's values are shown.
        """
        from attnscope.render.memory import bytes_to_save, bytes_to_show
        from attnscope.render.values import size_of_selection

        values = [(step.name, prod(step.shape)) for step in plan.steps] if numbers else []
        if self.show:
            values += [
                (name, size_of_selection(index, plan[name].shape)) for name, index in self.selections
            ]
        shown = bytes_to_show(plan, values, json=self.format is Format.JSON)
        return max(shown, bytes_to_save(plan) if self.save is not None else 0)

    def check_selections(self, tensors: Mapping[str, tuple[Shape, Dims]], where: str) -> None:
        """Raise an OptionError if a `--show` asks for what none of the tensors has.

        Args:
            tensors: each tensor's shape and dims, by name.
            where: what to call them together.
        """
        if not self.show:
            return
        from attnscope.render.values import check_index, check_name

        for text, (name, index) in zip(self.show, self.selections, strict=True):
            check_name(name, tensors.keys(), where)
            check_index(text, index, *tensors[name])

    def shown(self, tensor_of: Callable[[str], tuple[np.ndarray, str, Dims]]) -> list[Shown]:
        """The parts of tensors that `--show` asks for.

        Args:
            tensor_of: gives a whole tensor by its name: as stored, its dtype, its dims.
        """
        if not self.show:
            return []
        from attnscope.arrays import numbers
        from attnscope.render.values import select

        shown = []
        for text, (name, index) in zip(self.show, self.selections, strict=True):
            array, dtype, dims = tensor_of(name)
            part = select(text, index, array, dtype, dims)
            shown.append(replace(part, array=numbers(part.array, dtype)))
        return shown

    def shown_of(self, trace: Trace) -> list[Shown]:
        """The parts of a trace's tensors that `--show` asks for."""
        from attnscope.render.values import stored

        return self.shown(lambda name: (*stored(trace[name]), trace[name].dims))

    def print(self, result: Trace | HeadWeights, shown: Sequence[Shown] = ()) -> None:
        """Print a result, and below it the values that were asked for."""
        if self.format is Format.JSON:
            print_json(_record(result, shown))
        else:
            self._print_table(result)
            self._print_shown(shown)

    def print_run(
        self,
        trace: Trace,
        shown: Sequence[Shown] = (),
        *,
        source: bool = False,
        numbers: Mapping[str, Shown] | None = None,
    ) -> None:
        """Print a run of the textbook, and below it what else was asked for.

        Args:
            trace: the run, or its plan.
            shown: the values of some tensors.
            source: whether to show the code, as the trace has it.
            numbers: the values of every tensor, by name.
        """
        if self.format is Format.JSON:
            record = _record(trace, shown)
            if numbers is not None:
                from attnscope.render.numbers import numbers_record

                record["values"] = numbers_record(trace, numbers)
            print_json(record)
            return
        self._print_table(trace)
        if source:
            from attnscope.render.terminal.source import print_source, source_text

            if self.format is Format.MARKDOWN:
                put("\n" + source_text(trace))
            else:
                print_source(trace, stdout())
        if numbers is not None:
            from attnscope.render.numbers import numbers_text, print_numbers

            without_words = replace(trace, steps=[replace(step, why=None) for step in trace.steps])
            if self.format is Format.MARKDOWN:
                put("\n" + numbers_text(without_words, numbers))
            else:
                print_numbers(without_words, numbers, stdout())
        self._print_shown(shown)

    def _print_table(self, result: Trace | HeadWeights) -> None:
        from attnscope.results.weights import HeadWeights

        if isinstance(result, HeadWeights) and result.circuits:
            self._print_circuits(result)
        elif self.format is Format.TABLE:
            from attnscope.render.terminal.table import print_table

            print_table(result, stdout(), wide=self.wide)
        else:
            from attnscope.render.records.records import csv_text, markdown_text

            is_csv = self.format is Format.CSV
            put(csv_text(result) if is_csv else markdown_text(result, wide=self.wide))

    def _print_circuits(self, head: HeadWeights) -> None:
        """Print what a head's products tell, in place of its weights."""
        from attnscope.render.circuits import circuit_columns
        from attnscope.render.records.circuits import circuits_text
        from attnscope.render.records.tables import csv_table
        from attnscope.render.terminal.circuits import print_head_circuits

        if self.format is Format.CSV:
            put(csv_table(circuit_columns(head.circuits or [], head.d_head)))
        elif self.format is Format.MARKDOWN:
            put(circuits_text(head))
        else:
            print_head_circuits(head, stdout(), wide=self.wide)

    def _print_shown(self, shown: Sequence[Shown]) -> None:
        for each in shown:
            self._print_one(each)

    def _print_one(self, shown: Shown) -> None:
        from attnscope.render.values import shown_text

        if self.format is Format.MARKDOWN:
            put(f"\n```\n{shown_text(shown)}\n```")
        else:
            put("\n" + shown_text(shown, width=stdout().width))

    def print_example(self, example: WorkedExample) -> None:
        """Print a worked example: in each form every step, and its values."""
        if self.format is Format.JSON:
            print_json(example.to_dict())
        elif self.format is Format.MARKDOWN:
            from attnscope.render.records.example import example_text

            put(example_text(example))
        else:
            from attnscope.render.terminal.example import print_example

            print_example(example, stdout())

    def print_maps(self, maps: AttentionMaps, shown: Sequence[Shown] = ()) -> None:
        """Print what heads look at, and below it the values that were asked for."""
        from attnscope.render.records import maps as view

        if self.format is Format.JSON:
            print(_as_encoded(view.maps_json(view.maps_record(maps) | _shown_records(shown))))
        elif self.format is Format.CSV:
            for line in view.maps_csv(maps):
                put(line)
        elif self.format is Format.MARKDOWN:
            put(view.maps_text(maps))
            self._print_shown(shown)
        else:
            from attnscope.render.terminal.maps import print_maps

            print_maps(maps, stdout(), wide=self.wide)
            self._print_shown(shown)

    def write(self, tensors: Tensors, metadata: dict[str, str] | None = None) -> None:
        """Write the tensors into the file of `--save`, and say so; with what else it says of them."""
        if self.save is None:
            return
        from attnscope.render.files.tensor_file import save

        size = save(self.save, tensors, force=self.force, metadata=metadata)
        self.tell_written(len(tensors), size)

    def tell_written(self, n: int, size: int, what: str = "") -> None:
        """Say that a file of `size` bytes, that of `--save`, holds `n` tensors; and what they are."""
        from attnscope.units import bytes_text

        what = f": {what}" if what else ""
        tell(f"wrote {n} tensors, {bytes_text(size)}, to {self.save}{what}")


def _record(result: Trace | HeadWeights, shown: Sequence[Shown]) -> dict[str, Any]:
    from attnscope.render.records.records import record

    return record(result) | _shown_records(shown)


def _shown_records(shown: Sequence[Shown]) -> dict[str, Any]:
    """What `--show` adds to a record: `shown`, the last; and where there are several, all of them."""
    if not shown:
        return {}
    from attnscope.render.values import shown_record

    records = [shown_record(each) for each in shown]
    return {"shown": records[-1]} | ({"shown_all": records} if len(records) > 1 else {})


def refuse_in_csv(format: Format, asked: Mapping[str, bool]) -> None:
    """Raise an OptionError if one of these options is asked for, and csv has no place for it."""
    for option, given in asked.items():
        if given and format is Format.CSV:
            raise OptionError(f"csv holds one table, and {option} prints more.", hint="--format json")


def stored_of_all(steps: Iterable[Step]) -> dict[str, tuple[np.ndarray, str]]:
    """The tensors of all steps by name; of those that cannot be read, it is told why."""
    from attnscope.render.values import stored

    tensors = {}
    for step in steps:
        try:
            tensors[step.name] = stored(step)
        except OptionError as error:
            tell(f"{step.name} is not written: {error}")
    return tensors


def exit_status(checks: Iterable[Check] | None) -> int:
    """Return 1 if a check does not hold, else 0."""
    return 1 if any(check.ok is False for check in checks or []) else 0


def tell(message: str) -> None:
    """Tell something on stderr that is neither a result nor an error."""
    print(f"attnscope: {printable(message)}", file=sys.stderr)


def put(text: str) -> None:
    """Print lines of a result that is not for a console: Markdown, CSV, numbers."""
    print(printable_lines(text, LEFT_TO_RIGHT_MARK))


def print_json(record: dict[str, Any]) -> None:
    """Print one JSON document."""
    from attnscope.render.records.records import json_text

    print(_as_encoded(json_text(record)))


def _as_encoded(document: str) -> str:
    """A JSON document with escapes for what is not printable, and for what stdout's encoding lacks."""
    document = json_printable(document)
    try:
        document.encode(sys.stdout.encoding or "utf-8")
    except UnicodeEncodeError:
        return re.sub(r"[^\x00-\x7f]", lambda character: json.dumps(character[0])[1:-1], document)
    return document


def stdout() -> Console:
    """The console that results are printed on."""
    from attnscope.render.terminal.console import Terminal

    return Terminal()


@contextmanager
def written_first(*writes: Callable[[], None]) -> Iterator[None]:
    """Write files, and then print results: nobody may read these to their end, as in `… | head`.

    Results are printed too where a file cannot be written, and that is told afterwards.

    Args:
        writes: each writes a file; after one that fails, the others are not tried.

    Raises:
        FileError: a file cannot be written.
    """
    failure = None
    try:
        for write in writes:
            write()
    except FileError as error:
        failure = error
    yield
    if failure is not None:
        raise failure


@contextmanager
def progress(doing: str) -> Iterator[Progress]:
    """Tell on stderr what takes a while, as long as it takes; yield what may tell more."""
    with shown_progress() as show, stage(show, doing):
        yield show


@contextmanager
def notices_told() -> Iterator[None]:
    """Tell on stderr what the library logs in the meantime."""
    import logging

    class Teller(logging.Handler):
        def emit(self, record: logging.LogRecord) -> None:
            tell(record.getMessage())

    logger, teller = logging.getLogger("attnscope"), Teller()
    level = logger.level
    logger.addHandler(teller)
    logger.setLevel(logging.INFO)
    try:
        yield
    finally:
        logger.removeHandler(teller)
        logger.setLevel(level)


@contextmanager
def shown_progress() -> Iterator[Progress]:
    """What tells on stderr how far work is, if somebody is looking: for `progress=` of the library."""
    if not sys.stderr.isatty():
        yield silent
        return
    live = _Live(sys.stderr)
    try:
        yield live
    finally:
        live(None)


class _Live:
    """What a terminal shows of work under way: a spinner, or a bar where its share is known."""

    def __init__(self, stream: TextIO) -> None:
        self.stream = stream  # code of the user, which may run meanwhile, has another one
        self.status: Status | None = None
        self.bar: Bar | None = None

    def __call__(self, doing: str | None, share: float | None = None, /) -> None:
        if doing is None or share is not None:
            self._stop_spinner()
        if doing is None:
            self._stop_bar()
        elif share is None:
            self._spin(doing)
        else:
            self._draw_bar(doing, share)

    def _spin(self, doing: str) -> None:
        from rich.text import Text

        from attnscope.render.terminal.console import Terminal

        if self.status is None:
            self.status = Terminal(file=self.stream).status(Text(printable(doing)))
            self.status.start()
        else:
            self.status.update(Text(printable(doing)))

    def _draw_bar(self, doing: str, share: float) -> None:
        """Show the share with the time that is left."""
        if self.bar is None:
            from rich.progress import BarColumn, TaskProgressColumn, TextColumn, TimeRemainingColumn
            from rich.progress import Progress as Bar

            from attnscope.render.terminal.console import Terminal

            columns = (TextColumn("{task.description}", markup=False), BarColumn(), TaskProgressColumn())
            console = Terminal(file=self.stream)
            self.bar = Bar(*columns, TimeRemainingColumn(), console=console, transient=True)
            self.bar.add_task("", total=1.0)
            self.bar.start()
        [task] = self.bar.task_ids
        self.bar.update(task, description=printable(doing), completed=share)

    def _stop_spinner(self) -> None:
        if self.status is not None:
            self.status.stop()
            self.status = None

    def _stop_bar(self) -> None:
        if self.bar is not None:
            self.bar.stop()
            self.bar = None
