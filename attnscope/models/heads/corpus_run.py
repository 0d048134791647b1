"""Reads a corpus, a window of its texts after the other, alone or among several processes."""

from __future__ import annotations

import signal
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from itertools import islice
from pathlib import Path
from typing import TYPE_CHECKING, Any

from attnscope.errors import FileError, OptionError
from attnscope.files import FileThereError
from attnscope.models.heads.resume import Part, RunState, load_state, save_state
from attnscope.models.heads.statistics import Accumulator
from attnscope.process import interrupt
from attnscope.process.progress import Progress, notify, silent

if TYPE_CHECKING:
    from attnscope.models.heads.batches import Batch, Encoded, Reader
    from attnscope.models.heads.corpus import Corpus, IterableCorpus, Window
    from attnscope.models.heads.measurer import HeadMeasurer
    from attnscope.models.heads.processes import ProcessGroup

Report = Callable[[float | None], None]
"""Is told the share of a corpus that was read; None where nobody knows it."""

SECONDS_BETWEEN_SAVES = 5.0
"""Seconds, after which a run is saved as soon as a batch is measured."""

SECONDS_BETWEEN_SYNCS = 2.0
"""Seconds, after which processes tell each other how far they are, as soon as a batch is measured."""


class CorpusRun:
    """A run over a corpus.

    The corpus is read in windows. In each round every process measures one of them, and all learn what
    was found; it is added up in the order of the corpus. So the sums are the same however many processes
    there are, and wherever a run was interrupted. What was measured of a window that was begun is kept
    by itself until all of it is, so that these sums are added in the same order too.

    Args:
        measurer: measures a batch.
        reader: makes batches of texts.
        corpus: the texts.
        group: this process among the others.
        tokens: how many tokens are read at once.
        probe: called with the first text, before any is measured.
        progress: is told how much of the corpus was read, and how fast.

    Attributes:
        unsaved: why the run could not be saved the last time, if it could not.
        state: how far the run is. Of windows that the others have begun, it is what they told last.
    """

    def __init__(
        self,
        measurer: HeadMeasurer,
        reader: Reader,
        corpus: Corpus | IterableCorpus,
        group: ProcessGroup,
        *,
        tokens: int,
        probe: Callable[[Batch], None],
        progress: Progress = silent,
    ) -> None:
        self.measurer, self.reader, self.corpus, self.group = measurer, reader, corpus, group
        self.tokens, self.probe, self.progress = tokens, probe, progress
        self.state = RunState(Accumulator())
        self._path: Path | None = None
        self._settings: dict[str, Any] = {}
        self._is_there = False  # the file, as that of this run
        self.unsaved: FileError | None = None
        self._saved = time.monotonic()
        self._probed = self._interrupted = self._stop = False

    def run(self, path: Path | None, settings: dict[str, Any]) -> Accumulator:
        """Read the corpus to its end, or until somebody interrupts; what was measured.

        Args:
            path: where the run is kept; it goes on from there, if it is.
            settings: what decides the numbers.

        Raises:
            OptionError: no text was found in it.
            KeyboardInterrupt: it came before there was anything to show.
        """
        from attnscope.models.heads.corpus import Position

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
        """Report how far the run is: what is called with the share of the corpus that was read."""
        begun, tokens = time.perf_counter(), sum(each.tokens for each in self.state.accumulators)

        def report(share: float | None) -> None:
            read = sum(each.tokens for each in self.state.accumulators)
            texts = sum(each.sequences for each in self.state.accumulators)
            rate = (read - tokens) / max(time.perf_counter() - begun, 1e-3)
            self.progress(f"{texts:,} texts · {rate:,.0f} tokens/s", share)

        share = 0.0 if self.corpus.size else None
        self.progress(f"reading {self.corpus} …", self.state.share or share)
        try:
            yield report
        finally:
            self.progress(None)

    def _resume(self, path: Path, settings: dict[str, Any]) -> None:
        """Go on from a file, if it is there: the first process reads it, for all."""
        self._is_there = self.group.is_first and path.exists()
        kept = load_state(path, settings) if self._is_there else None
        kept, *_ = self.group.all_gather(kept)
        if kept is None:
            return
        self.state = kept
        self.measurer.why_eager = kept.why_eager  # for the case that there is nothing left to read
        if self.group.is_first:
            read = f"{kept.whole.sequences:,} texts"
            notify(f"{path} has {read}: " + ("all there are" if kept.done else "going on"))

    def _round(self, windows: Sequence[Window], report: Report) -> None:
        """Measure as many windows as there are processes, and add them up."""
        if not windows:
            self.state = replace(self.state, done=True, parts={})
            return
        if not self._probed:
            self._probe(windows)
        rank = self.group.rank
        own = windows[rank] if rank < len(windows) else None
        batches = iter(()) if own is None else self._batches_left(own)
        ended = False
        while not (ended or self._stop):
            own_ended = self._measure(batches, own, report)
            ended = self._synchronize(own_ended)
        if not ended:
            return
        state = self.state
        for place, window in enumerate(windows):
            state = state.after(window, self.state.parts[place].accumulator)
        done = len(windows) < self.group.world_size
        self.state = replace(state, done=done, parts={} if done else state.parts)
        report(self.state.share)

    def _batches_left(self, window: Window) -> Iterator[Batch]:
        """The batches of this process's window that are not measured yet."""
        encoded = self._encoded(window)
        begun = Part(0, Accumulator(empty=len(window.texts) - len(encoded)))
        self._note({self.group.rank: self.state.parts.get(self.group.rank, begun)})
        done = self.state.parts[self.group.rank].batches
        return islice(self.reader.batches(encoded, self.tokens), done, None)

    def _measure(self, batches: Iterator[Batch], window: Window | None, report: Report) -> bool:
        """Measure some batches, until it is time to meet the others; whether there are no more.

        Args:
            batches: those that are left of this process's window.
            window: that window.
            report: is told how much of the corpus was read.
        """
        begun = time.monotonic()
        for batch in batches:
            part, accumulator = self.state.parts[self.group.rank], Accumulator()
            accumulator.merge(part.accumulator)
            accumulator.merge(self.measurer.measure(batch))
            self._note({self.group.rank: Part(part.batches + 1, accumulator)})
            if window is not None and window.share is not None:
                before = self.state.share or 0.0
                report(before + (window.share - before) * accumulator.sequences / len(window.texts))
            alone = self.group.world_size == 1
            if alone or self._interrupted or time.monotonic() - begun > SECONDS_BETWEEN_SYNCS:
                return False
        return True

    def _synchronize(self, ended: bool) -> bool:
        """Learn how far everybody is, and save it now and then; whether all windows are measured.

        Args:
            ended: whether this process has measured its own.
        """
        own = self.state.parts.get(self.group.rank)
        found = self.group.all_gather((own, ended, self._interrupted))
        self._note({place: part for place, (part, _, _) in enumerate(found) if part is not None})
        self._stop = any(interrupted for _, _, interrupted in found)
        if time.monotonic() - self._saved > SECONDS_BETWEEN_SAVES:
            before = self.unsaved
            self._save()
            if self.unsaved is not None and before is None:
                then = "The run goes on, and is saved as soon as that is possible."
                notify(f"{self.unsaved.message} {then}", important=True)
        return all(each_ended for _, each_ended, _ in found)

    def _note(self, parts: dict[int, Part]) -> None:
        """Keep how far windows are: all at once, for Ctrl-C may come at any time."""
        self.state = replace(self.state, parts=self.state.parts | parts)

    def _encoded(self, window: Window) -> list[Encoded]:
        """The texts of a window as tokens."""
        targets = [text.target for text in window.texts]
        given = [target or "" for target in targets] if any(targets) else None
        return self.reader.read([text.text for text in window.texts], given)

    def _probe(self, windows: Sequence[Window]) -> None:
        """Let the measurer find out how the model attends, on the longest of the first texts."""
        for window in windows:
            encoded = self._encoded(window)
            if encoded:
                self.probe(self.reader.batch([max(encoded, key=lambda each: each.n_tokens)]))
                self._probed = True
                return

    def _save(self) -> None:
        """Save the run, if it is to be kept; what fails is tried again with what is measured next."""
        if self._path is not None and self.group.is_first:
            state = replace(self.state, why_eager=self.measurer.why_eager)
            try:
                save_state(self._path, state, self._settings, force=self._is_there)
                self._is_there, self.unsaved = True, None
            except FileThereError:  # it was not, when the run began
                self.unsaved = FileError(
                    f"another program made {self._path} after this run had begun: it is left as it is.",
                    hint="move that file away, or take another name for --checkpoint",
                )
            except FileError as error:
                self.unsaved = error
        self._saved = time.monotonic()

    def _check(self, whole: Accumulator) -> None:
        """Raise what there is to say if nothing was read."""
        if whole.sequences:
            return
        if not self.state.done:
            raise KeyboardInterrupt
        line, why = self.state.first_skipped or (None, "")
        raise OptionError(
            f"{self.corpus} has no text that {self.measurer.checkpoint.name} reads"
            + (f": line {line} {why}." if line else "."),
            hint=_other_fields(self.corpus),
        )

    @contextmanager
    def _interruptible(self) -> Iterator[None]:
        """Let Ctrl-C end the run, and a second one the command, or what else runs.

        One process by itself leaves the batch that it is in; should the exception be lost in somebody's
        callback, it ends after that batch. Several end after the batches that all are in.
        """
        if threading.current_thread() is not threading.main_thread():  # signals go to the main one
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


def _other_fields(corpus: Corpus | IterableCorpus) -> str | None:
    """What to do where texts are not where they were looked for."""
    if corpus.field is None:
        return None
    if corpus.target_field is None:
        return "--field NAME, where texts are in another field"
    return "--field NAME --target-field NAME, where texts are in other fields"
