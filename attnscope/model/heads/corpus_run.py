"""Measure heads on a corpus, window by window, in one process or in several."""

from __future__ import annotations

import signal
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from itertools import islice
from pathlib import Path
from typing import TYPE_CHECKING, Any

from attnscope.base.errors import FileError, OptionError
from attnscope.base.process import interrupt
from attnscope.base.process.files import FileThereError
from attnscope.base.process.progress import Progress, notify, silent
from attnscope.base.spelling import spelled
from attnscope.model.heads.resume import RunState, WindowProgress, load_state, save_state
from attnscope.model.heads.statistics import Accumulator

if TYPE_CHECKING:
    from attnscope.model.heads.batches import Encoded, Reader, TextBatch
    from attnscope.model.heads.corpus import Corpus, CorpusWindow, IterableCorpus
    from attnscope.model.heads.measurer import HeadMeasurer
    from attnscope.model.heads.processes import ProcessGroup

Report = Callable[[float | None], None]
"""A callable that reports the share of the corpus that was read; None: unknown."""

SECONDS_BETWEEN_SAVES = 5.0  #: the least time between two saves of a run, which follow a batch

SECONDS_BETWEEN_SYNCS = 2.0
"""The least time between two exchanges of progress among processes, which follow a batch."""


@dataclass(eq=False)
class CorpusRun:
    """A run over a corpus.

    The corpus is read in windows. In each round, every process measures one window, and the sums of all
    windows are added in the order of the corpus. So the result does not depend on the number of
    processes, or on where a run was interrupted. The sums of an unfinished window are kept apart until
    it is finished, so that they are added in the same order, too.
    """

    measurer: HeadMeasurer
    reader: Reader
    corpus: Corpus | IterableCorpus
    group: ProcessGroup
    tokens: int
    probe: Callable[[TextBatch], None]
    progress: Progress = silent
    #: the progress of the run, with that of other processes at the last exchange
    state: RunState = field(default_factory=lambda: RunState(Accumulator()), init=False)
    unsaved: FileError | None = field(default=None, init=False)  #: why the last attempt to save failed
    _path: Path | None = field(default=None, init=False)
    _settings: dict[str, Any] = field(default_factory=dict, init=False)
    _saved_before: bool = field(default=False, init=False)  #: whether the file is this run's

    def __post_init__(self) -> None:
        self._saved = time.monotonic()
        self._probed = self._interrupted = self._stop = False

    def run(self, path: Path | None, settings: dict[str, Any]) -> Accumulator:
        """Read the corpus to its end, or until an interrupt, and return the sums.

        The run is resumed from the file if that exists, and kept in it. A KeyboardInterrupt is raised
        only if nothing was measured before it.
        """
        from attnscope.model.heads.corpus import Position

        self._path, self._settings = path, settings
        if path is not None:
            self._resume(path, settings)
        windows = self.corpus.windows(Position(self.state.lines, self.state.offset))
        self._saved = time.monotonic()
        try:
            with self._interruptible(), self._reported() as report:
                while not (self.state.done or self._stop):
                    self._round(list(islice(windows, self.group.world_size)), report)
        except KeyboardInterrupt:
            pass
        except Exception:
            if self.state.whole.sequences:
                self._save()
            raise
        whole = self.state.whole
        self._check(whole)
        self._save()
        return whole

    @contextmanager
    def _reported(self) -> Iterator[Report]:
        """Report the progress of the run: yield a function to call with the share that was read."""
        start, tokens = time.perf_counter(), sum(each.tokens for each in self.state.accumulators)

        def report(share: float | None) -> None:
            read = sum(each.tokens for each in self.state.accumulators)
            texts = sum(each.sequences for each in self.state.accumulators)
            rate = (read - tokens) / max(time.perf_counter() - start, 1e-3)
            self.progress(f"{texts:,} texts · {rate:,.0f} tokens/s", share)

        share = 0.0 if self.corpus.size else None
        self.progress(f"reading {self.corpus} …", self.state.share or share)
        try:
            yield report
        finally:
            self.progress(None)

    def _resume(self, path: Path, settings: dict[str, Any]) -> None:
        """Resume the run from a file, if it exists: the first process reads it for all."""
        self._saved_before = self.group.is_first and path.exists()
        state = load_state(path, settings) if self._saved_before else None
        state, *_ = self.group.all_gather(state)
        if state is None:
            return
        self.state = state
        self.measurer.why_eager = state.why_eager  # in case nothing is left to read
        if self.group.is_first:
            read = f"{state.whole.sequences:,} texts"
            notify(f"{path} has {read}: " + ("the whole corpus" if state.done else "continuing"))

    def _round(self, windows: Sequence[CorpusWindow], report: Report) -> None:
        """Measure one window in each process, and add up their sums."""
        if not windows:
            self.state = replace(self.state, done=True, parts={})
            return
        if not self._probed:
            self._probe(windows)
        rank = self.group.rank
        window = windows[rank] if rank < len(windows) else None
        batches = iter(()) if window is None else self._batches_left(window)
        ended = False
        while not (ended or self._stop):
            ended = self._synchronize(self._measure(batches, window, report))
        if not ended:
            return
        state = self.state
        for place, each in enumerate(windows):
            state = state.after(each, self.state.parts[place].accumulator)
        done = len(windows) < self.group.world_size
        self.state = replace(state, done=done, parts={} if done else state.parts)
        report(self.state.share)

    def _batches_left(self, window: CorpusWindow) -> Iterator[TextBatch]:
        """Return the batches of this process's window that are not measured yet."""
        encoded = self._encoded(window)
        new = WindowProgress(0, Accumulator(empty=len(window.texts) - len(encoded)))
        self._note({self.group.rank: self.state.parts.get(self.group.rank, new)})
        done = self.state.parts[self.group.rank].batches
        return islice(self.reader.batches(encoded, self.tokens), done, None)

    def _measure(
        self, batches: Iterator[TextBatch], window: CorpusWindow | None, report: Report
    ) -> bool:
        """Measure batches until the next exchange of progress; return whether none is left."""
        start = time.monotonic()
        for batch in batches:
            part, accumulator = self.state.parts[self.group.rank], Accumulator()
            accumulator.merge(part.accumulator)
            accumulator.merge(self.measurer.measure(batch))
            self._note({self.group.rank: WindowProgress(part.batches + 1, accumulator)})
            if window is not None and window.share is not None:
                before = self.state.share or 0.0
                report(before + (window.share - before) * accumulator.sequences / len(window.texts))
            alone = self.group.world_size == 1
            if alone or self._interrupted or time.monotonic() - start > SECONDS_BETWEEN_SYNCS:
                return False
        return True

    def _synchronize(self, ended: bool) -> bool:
        """Exchange progress, and save the run if it is time; return whether all windows are measured."""
        part = self.state.parts.get(self.group.rank)
        reports = self.group.all_gather((part, ended, self._interrupted))
        self._note({place: part for place, (part, _, _) in enumerate(reports) if part is not None})
        self._stop = any(interrupted for _, _, interrupted in reports)
        if time.monotonic() - self._saved > SECONDS_BETWEEN_SAVES:
            before = self.unsaved
            self._save()
            if self.unsaved is not None and before is None:
                outlook = "The run continues and is saved as soon as possible."
                notify(f"{self.unsaved.message} {outlook}", important=True)
        return all(each_ended for _, each_ended, _ in reports)

    def _note(self, parts: dict[int, WindowProgress]) -> None:
        """Record the progress of windows in one assignment, since Ctrl-C may come at any time."""
        self.state = replace(self.state, parts=self.state.parts | parts)

    def _encoded(self, window: CorpusWindow) -> list[Encoded]:
        """Tokenize the texts of a window."""
        targets = [text.target or "" for text in window.texts]
        return self.reader.read([text.text for text in window.texts], targets if any(targets) else None)

    def _probe(self, windows: Sequence[CorpusWindow]) -> None:
        """Call `probe` with the longest text of the first window that has any."""
        for window in windows:
            encoded = self._encoded(window)
            if encoded:
                self.probe(self.reader.batch([max(encoded, key=lambda each: each.n_tokens)]))
                self._probed = True
                return

    def _save(self) -> None:
        """Save the run, if requested; a failure is recorded, and the next save tries again."""
        if self._path is not None and self.group.is_first:
            state = replace(self.state, why_eager=self.measurer.why_eager)
            try:
                save_state(self._path, state, self._settings, force=self._saved_before)
                self._saved_before, self.unsaved = True, None
            except FileThereError:  # it did not exist when the run began
                self.unsaved = FileError(
                    f"another program created {self._path} after this run had started; it was not"
                    " overwritten.",
                    hint=f"move that file, or use another name for {spelled('checkpoint')}",
                )
            except FileError as error:
                self.unsaved = error
        self._saved = time.monotonic()

    def _check(self, whole: Accumulator) -> None:
        """Raise an error if nothing was measured."""
        if whole.sequences:
            return
        if not self.state.done:
            raise KeyboardInterrupt
        line, why = self.state.first_skipped or (None, "")
        hint = (
            None
            if self.corpus.field is None
            else f"{spelled(field='NAME')}, if texts are in another field"
        )
        if hint and self.corpus.target_field is not None:
            hint = f"{spelled(field='NAME', target_field='NAME')}, if texts are in other fields"
        raise OptionError(
            f"{self.corpus} has no text that {self.measurer.checkpoint.name} can read"
            + (f": line {line} {why}." if line else "."),
            hint=hint,
        )

    @contextmanager
    def _interruptible(self) -> Iterator[None]:
        """Let Ctrl-C end the run, and a second one the command, or the calling program.

        A single process leaves its batch at once; if the exception is lost in a callback, it ends after
        that batch. Several processes end after their current batches.
        """
        if threading.current_thread() is not threading.main_thread():  # signals go to the main thread
            yield
            return
        before = signal.getsignal(signal.SIGINT)

        def note(*_: Any) -> None:
            if self._interrupted and before is interrupt.end:
                interrupt.end()
            again, self._interrupted = self._interrupted, True
            if again or self.group.world_size == 1:
                raise KeyboardInterrupt

        signal.signal(signal.SIGINT, note)
        try:
            yield
        finally:
            signal.signal(signal.SIGINT, before)
