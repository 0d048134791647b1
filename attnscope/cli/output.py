"""Print results on stdout in the requested format, and everything else on stderr."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from functools import cached_property
from math import prod
from pathlib import Path
from typing import TYPE_CHECKING, Any

from attnscope.base.errors import FileError, OptionError, warn_unused
from attnscope.base.options import option
from attnscope.base.process.error_record import expect_record
from attnscope.base.process.progress import Progress, silent, stage
from attnscope.base.spelling import spelled
from attnscope.base.text import LEFT_TO_RIGHT_MARK, encodable_json, printable, printable_lines
from attnscope.cli.options import STATS, FigureOptions, Format, FormatOptions, TableOptions

if TYPE_CHECKING:
    import numpy as np
    from rich.console import Console

    from attnscope.document.blocks import Block
    from attnscope.document.result import Check, Result
    from attnscope.document.tensor_file import Tensors
    from attnscope.document.values import Index, Shown
    from attnscope.model.answers.result import Answer
    from attnscope.model.effects.result import HeadEffects
    from attnscope.model.files.result import HeadWeights
    from attnscope.model.heads.result import HeadTable
    from attnscope.model.maps.result import AttentionMaps
    from attnscope.observe.trace import Step, Trace

    Shape = tuple[int, ...]
    Dims = tuple[str, ...] | None


PER_VALUE_IN_JSON = 110
"""Bytes of a number while a JSON document is written: a Python float, twice in lists, and its text."""


@dataclass(frozen=True)
class TensorOutput(TableOptions):
    """The options of printing tensors: the format of the table, values, and a file."""

    show: list[str] | None = option(
        'Print values of a tensor: "attention", "attention[0,1]"; "Q[0,:2]" has two rows.',
        metavar="NAME[INDEX]",
        common=True,
    )
    save: Path | None = option(
        "Write all tensors by name: .safetensors, .npz or .pt.", metavar="FILE", common=True
    )
    force: bool = option("Replace an existing file.", default=False)

    def check(self, dtypes: list[str]) -> None:
        """Raise an AttnscopeError for options that no result can satisfy, before it is computed.

        Args:
            dtypes: the dtypes of the tensors to write.
        """
        if self.show:
            if self.format is Format.CSV:
                raise OptionError(
                    "csv holds one table, and --show prints values beside it.",
                    hint="--format json, or --save values.npz",
                )
            self.selections  # noqa: B018 - parsed immediately, so that a mistake is reported first
        if self.save is not None:
            from attnscope.document.tensor_file import check_target

            check_target(self.save, force=self.force, dtypes=dtypes)
        warn_unused(
            [
                (self.force and self.save is None, "force", "no file is written"),
                (self.wide and self.always_wide, "wide", f"{self.format} has all columns anyway"),
            ]
        )

    @cached_property
    def selections(self) -> list[tuple[str, Index]]:
        """The name and the index of each `--show`."""
        from attnscope.document.values import parse_selection

        return [parse_selection(text) for text in self.show or ()]

    @property
    def keep(self) -> bool | set[str]:
        """The names of the tensors that `--save` and `--show` need, or True for all."""
        return self.save is not None or {name for name, _ in self.selections}

    def bytes_needed(self, plan: Trace, *, numbers: bool) -> int:
        """Return the bytes that writing and showing take in addition to the tensors.

        Args:
            plan: the plan of the run.
            numbers: whether the values of every step are shown.
        """
        from attnscope.document.values import size_of_selection

        values = [(step.name, prod(step.shape)) for step in plan.steps] if numbers else []
        if self.show:
            values += [
                (name, size_of_selection(index, plan[name].shape)) for name, index in self.selections
            ]
        shown = 0
        for name, n in values:
            shown += PER_VALUE_IN_JSON * n if self.format is Format.JSON else 0
            shown += 4 * n if plan[name].dtype in ("bfloat16", "float16") else 0
        if any(plan[name].dtype == "bfloat16" for name, _ in values):
            shown += 4 * max(n for _, n in values)
        copied = sum(step.bytes for step in plan.steps if not step.contiguous)  # to be written
        return max(shown, copied if self.save is not None else 0)

    def check_selections(self, tensors: Mapping[str, tuple[Shape, Dims]], where: str) -> None:
        """Raise an OptionError if a `--show` selects a tensor or an index that does not exist.

        Args:
            tensors: each tensor's shape and dims, by name.
            where: the name of all of them in the message.
        """
        if not self.show:
            return
        from attnscope.document.values import check_index, check_name

        for text, (name, index) in zip(self.show or (), self.selections, strict=True):
            check_name(name, tensors.keys(), where)
            check_index(text, index, *tensors[name])

    def shown(self, tensor_of: Callable[[str], tuple[np.ndarray, str, Dims]]) -> list[Shown]:
        """Return the parts of tensors that `--show` selects.

        Args:
            tensor_of: returns a whole tensor by its name: as stored, its dtype, its dims.
        """
        if not self.show:
            return []
        from attnscope.base.arrays import numbers
        from attnscope.document.values import select

        shown = []
        for text, (name, index) in zip(self.show or (), self.selections, strict=True):
            array, dtype, dims = tensor_of(name)
            part = select(text, index, array, dtype, dims)
            shown.append(replace(part, array=numbers(part.array, dtype)))
        return shown

    def shown_of(self, trace: Trace) -> list[Shown]:
        """Return the parts of a trace's tensors that `--show` selects."""
        return self.shown(lambda name: (*trace[name].stored(), trace[name].dims))

    def print(
        self,
        result: Trace | HeadWeights | AttentionMaps | Answer,
        shown: Sequence[Shown] = (),
        **parts: bool,
    ) -> None:
        """Print a result, and below it the selected values.

        Args:
            result: the result.
            shown: the selected values.
            parts: the parts of the result that are shown on request.
        """
        from attnscope.document import values

        if self.format is Format.JSON:
            print_text(result.json_of(result.to_dict(**parts) | values.shown_fields(shown)))
        else:
            print_result(result, self, [*result.document(**parts), *map(values.Values, shown)])

    def write(self, tensors: Tensors, metadata: dict[str, str] | None = None) -> None:
        """Write tensors and metadata to the file of `--save`, and report that."""
        if self.save is None:
            return
        from attnscope.document.tensor_file import save

        size = save(self.save, tensors, force=self.force, metadata=metadata)
        self.tell_written(len(tensors), size)

    def tell_written(self, n: int, size: int, what: str = "") -> None:
        """Report that `n` tensors were written to the file of `--save`.

        Args:
            n: the number of tensors.
            size: the size of the file in bytes.
            what: a description of the tensors.
        """
        from attnscope.base.units import bytes_text

        what = f": {what}" if what else ""
        print_notice(f"wrote {n} tensors, {bytes_text(size)}, to {self.save}{what}")


@dataclass(frozen=True)
class Output(TensorOutput):
    """The options of printing tensors, with statistics of their values."""

    stats: bool = option(STATS, default=False)


def refuse_in_csv(format: Format, options: Mapping[str, bool]) -> None:
    """Raise an OptionError if one of these options is set, and the format is csv, which lacks it."""
    for name, is_set in options.items():
        if is_set and format is Format.CSV:
            raise OptionError(
                f"csv holds one table, and {spelled(name)} prints more.", hint="--format json"
            )


def stored_of_all(steps: Iterable[Step]) -> Tensors:
    """Return the tensors of all steps by name; report those that cannot be read."""
    tensors = {}
    for step in steps:
        try:
            tensors[step.name] = step.stored()
        except OptionError as error:
            print_notice(f"{step.name} is not written: {error}")
    return tensors


def exit_status(checks: Iterable[Check] | None) -> int:
    """Return 1 if a check does not hold, else 0."""
    return 1 if any(check.ok is False for check in checks or []) else 0


def print_heads(table: HeadTable | HeadEffects, files: FigureOptions, output: TableOptions) -> None:
    """Write the figure and the page of a table of heads, and print it."""
    n = len(table.rows)
    several, maps = ("a head", "its map") if n == 1 else (f"{n} heads", "their maps")
    contents = (f"{several} with {maps}", "")
    if table.why_no_maps is not None:
        contents = (several, f"; without maps: {table.why_no_maps}")
    with written_first(lambda: draw(table, files.plot, files.page, lambda: contents, force=files.force)):
        print_result(table, output)
        for remark in table.remarks if output.format is Format.CSV else []:  # it has no heading
            print_notice(remark)


def print_notice(message: str) -> None:
    """Print a message on stderr that is neither a result nor an error."""
    from rich.text import Text

    from attnscope.document.console import print_message

    print_message(Text(f"attnscope: {printable(message)}"))


def print_line(text: str) -> None:
    """Print lines of a result without styles: Markdown, CSV, numbers."""
    print(printable_lines(text, LEFT_TO_RIGHT_MARK))


def print_result(result: Result, output: FormatOptions, blocks: list[Block] | None = None) -> None:
    """Print a result in the format of `--format`; what CSV has no room for goes to stderr.

    Args:
        result: the result.
        output: the format.
        blocks: its document with the requested parts; None: as it is by default.
    """
    if output.format is Format.JSON:
        print_text(result.to_json())
        return
    blocks = result.document() if blocks is None else blocks
    wide = isinstance(output, TableOptions) and output.wide
    if output.format is Format.CSV:
        from attnscope.document.csv import remarks

        for lines in result.csv():
            print_line(lines)
        for remark in remarks(blocks):
            print_notice(remark)
    elif output.format is Format.MARKDOWN:
        from attnscope.document.markdown import markdown_document

        print_line(markdown_document(blocks, wide=wide))
    else:
        from attnscope.document.terminal import print_document

        print_document(blocks, stdout(), wide=wide)


def print_text(document: str) -> None:
    """Print a JSON document, in characters that stdout can encode."""
    expect_record(None)
    print(encodable_json(document, sys.stdout.encoding))


def stdout() -> Console:
    """Return the console on which results are printed."""
    from attnscope.document.console import Terminal

    return Terminal()


@contextmanager
def written_first(*writes: Callable[[], None]) -> Iterator[None]:
    """Write files before results are printed, whose reader may stop early, as in `… | head`.

    If a file cannot be written, results are still printed before the error is raised.

    Args:
        writes: functions that write a file each; after a failure, the others are not called.

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


def draw(
    result: Any,
    plot: Path | None,
    page: Path | None = None,
    contents: Callable[[], tuple[str, str]] = lambda: ("", ""),
    *,
    force: bool,
) -> None:
    """Write the figure and the page of a result, if requested, and report that.

    Args:
        result: attention maps, metrics of heads, masks, or the effect of the scale.
        plot, page: the files.
        contents: returns what the page contains, and a remark.
        force: whether to replace existing files.
    """
    if plot is None and page is None:
        return
    from attnscope.base.units import bytes_text
    from attnscope.document.save import save

    with shown_progress() as progress:
        if plot is not None:
            with stage(progress, f"drawing {plot} …"):
                size = save(result, plot, force=force)
            print_notice(f"drew {plot}, {bytes_text(size)}")
        if page is not None:
            with stage(progress, f"writing {page} …"):
                size = save(result, page, force=force)
            what, remark = contents()
            print_notice(f"wrote {what}, {bytes_text(size)}, to {page}{remark}")


@contextmanager
def notices_shown() -> Iterator[None]:
    """Print the library's log messages on stderr."""
    import logging

    class Handler(logging.Handler):
        def emit(self, record: logging.LogRecord) -> None:
            print_notice(record.getMessage())

    logger, handler = logging.getLogger("attnscope"), Handler()
    level = logger.level
    logger.addHandler(handler)
    logger.setLevel(logging.INFO)
    try:
        yield
    finally:
        logger.removeHandler(handler)
        logger.setLevel(level)


@contextmanager
def shown_progress() -> Iterator[Progress]:
    """Yield a function for `progress=` that shows the progress on stderr, if that is a terminal."""
    if not sys.stderr.isatty():
        yield silent
        return
    from attnscope.cli.progress import Live

    live = Live(sys.stderr)
    try:
        yield live
    finally:
        live(None)
