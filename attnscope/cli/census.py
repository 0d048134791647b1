"""Reads a corpus, a window of its texts after the other, alone or among several processes."""

from __future__ import annotations

import signal
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from itertools import islice
from pathlib import Path
from typing import TYPE_CHECKING, Any

from attnscope.cli.output import tell
from attnscope.errors import OptionError
from attnscope.models.resume import Progress, load_progress, save_progress
from attnscope.models.tally import Tally
from attnscope.text import printable

if TYPE_CHECKING:
    from attnscope.inputs.corpus import Corpus, Window
    from attnscope.models.batches import Batch, Encoded, Reader
    from attnscope.models.ranks import Ranks
    from attnscope.models.survey import Survey

BETWEEN_SAVINGS = 5.0
"""Seconds."""


class Census:
    """A run over a corpus.

    The corpus is read in windows. In each round every process measures one of them, and all learn what
    was found; it is added up in the order of the corpus. So the sums are the same however many processes
    there are, and wherever a run was interrupted.

    Args:
        survey: measures a batch.
        reader: makes batches of texts.
        corpus: the texts.
        ranks: this process among the others.
        tokens: how many tokens are read at once.
        prove: called with the first text, before any is measured.

    Attributes:
        state: how far the run is: what was measured in whole windows.
        since: what this process has measured since then.
    """

    def __init__(
        self,
        survey: Survey,
        reader: Reader,
        corpus: Corpus,
        ranks: Ranks,
        *,
        tokens: int,
        prove: Callable[[Batch], None],
    ) -> None:
        self.survey, self.reader, self.corpus, self.ranks = survey, reader, corpus, ranks
        self.tokens, self.prove = tokens, prove
        self.state, self.since = Progress(Tally()), Tally()
        self._proved = self._stop = False

    def run(self, path: Path | None, settings: dict[str, Any]) -> Tally:
        """Read the corpus to its end, or until somebody interrupts; what was measured.

        Args:
            path: where the run is kept; it goes on from there, if it is.
            settings: what decides the numbers.

        Raises:
            OptionError: no text was found in it.
            KeyboardInterrupt: it came before there was anything to show.
        """
        from attnscope.inputs.corpus import Position

        if path is not None:
            self._resume(path, settings)
        windows = self.corpus.windows(Position(self.state.lines, self.state.offset))
        saved = time.monotonic()
        try:
            with self._interruptible(), self._watched() as show:
                while not (self.state.done or self._stop):
                    self._round(list(islice(windows, self.ranks.world)), show)
                    if path is not None and time.monotonic() - saved > BETWEEN_SAVINGS:
                        self._save(path, settings)
                        saved = time.monotonic()
        except KeyboardInterrupt:
            pass
        except Exception:
            if path is not None and self.state.tally.sequences:
                self._save(path, settings)
            raise
        whole = Tally()
        whole.include(self.state.tally)
        if not self.state.done:
            whole.include(self.since)
        self._check(whole)
        if path is not None:
            self._save(path, settings)
        return whole

    def _resume(self, path: Path, settings: dict[str, Any]) -> None:
        """Go on from a file, if it is there: the first process reads it, for all."""
        kept = load_progress(path, settings) if self.ranks.first and path.exists() else None
        kept, *_ = self.ranks.exchange(kept)
        if kept is None:
            return
        self.state = kept
        self.survey.why_eager = kept.why_eager  # for the case that there is nothing left to read
        if self.ranks.first:
            read = f"{kept.tally.sequences:,} texts"
            tell(f"{path} has {read}: " + ("all there are" if kept.done else "going on"))

    def _round(self, windows: Sequence[Window], show: Callable[[float | None], None]) -> None:
        """Measure as many windows as there are processes, and add them up."""
        if not windows:
            self.state = replace(self.state, done=True)
            return
        own = windows[self.ranks.rank] if self.ranks.rank < len(windows) else None
        before = self.state.share or 0.0
        encoded = [] if own is None else self._encoded(own)
        if not self._proved:
            self._prove(windows)
        self.since = Tally(empty=0 if own is None else len(own.texts) - len(encoded))
        done = 0
        whole = True
        for batch in self.reader.batches(encoded, self.tokens):
            if self._stop:
                whole = False
                break
            self.since.include(self.survey.measure(batch))
            done += len(batch.texts)
            if own is not None and own.share is not None:
                show(before + (own.share - before) * done / len(encoded))
        found = self.ranks.exchange((self.since, self._stop, whole))
        self._stop = any(stop for _, stop, _ in found)
        self.since = Tally()
        if not all(each_whole for _, _, each_whole in found):  # shown, and measured again another time
            for tally, _, _ in found:
                self.since.include(tally)
            return
        state = self.state
        for window, (tally, _, _) in zip(windows, found, strict=False):
            state = state.after(window, tally)
        self.state = replace(state, done=len(windows) < self.ranks.world)
        show(self.state.share)

    def _encoded(self, window: Window) -> list[Encoded]:
        """The texts of a window as tokens."""
        targets = [text.target for text in window.texts]
        given = [target or "" for target in targets] if any(targets) else None
        return self.reader.read([text.text for text in window.texts], given)

    def _prove(self, windows: Sequence[Window]) -> None:
        """Let the survey find out how the model attends, on the longest of the first texts."""
        for window in windows:
            encoded = self._encoded(window)
            if encoded:
                self.prove(self.reader.batch([max(encoded, key=lambda each: each.n_tokens)]))
                self._proved = True
                return

    def _save(self, path: Path, settings: dict[str, Any]) -> None:
        if self.ranks.first:
            save_progress(path, replace(self.state, why_eager=self.survey.why_eager), settings)

    def _check(self, whole: Tally) -> None:
        """Raise what there is to say if nothing was read."""
        if whole.sequences:
            return
        if not self.state.done:
            raise KeyboardInterrupt
        line, why = self.state.first_skipped or (None, "")
        raise OptionError(
            f"{self.corpus} has no text that {self.survey.checkpoint.name} reads"
            + (f": line {line} {why}." if line else "."),
            hint=_other_fields(self.corpus),
        )

    @contextmanager
    def _interruptible(self) -> Iterator[None]:
        """Among several processes, Ctrl-C ends the run after the batches that all are in."""
        if self.ranks.world == 1:
            yield
            return

        def note(*_: Any) -> None:
            self._stop = True

        before = signal.signal(signal.SIGINT, note)
        try:
            yield
        finally:
            signal.signal(signal.SIGINT, before)

    @contextmanager
    def _watched(self) -> Iterator[Callable[[float | None], None]]:
        """A bar on stderr: how much of the corpus was read, how fast, and how long it will take."""
        if not (self.ranks.first and sys.stderr.isatty()):
            yield lambda share: None
            return
        from rich.progress import BarColumn, TaskProgressColumn, TextColumn, TimeRemainingColumn
        from rich.progress import Progress as Bar

        from attnscope.views.terminal import Terminal

        columns = (TextColumn("{task.description}", markup=False), BarColumn(), TaskProgressColumn())
        begun, tokens = time.monotonic(), self.state.tally.tokens
        with Bar(*columns, TimeRemainingColumn(), console=Terminal(stderr=True), transient=True) as bar:
            task = bar.add_task(f"reading {printable(self.corpus)} …", total=1.0)

            bar.update(task, completed=self.state.share)

            def show(share: float | None) -> None:
                read = self.state.tally.tokens + self.since.tokens
                rate = (read - tokens) / max(time.monotonic() - begun, 1e-3)
                told = (
                    f"{self.state.tally.sequences + self.since.sequences:,} texts · {rate:,.0f} tokens/s"
                )
                bar.update(task, description=told, completed=share, total=None if share is None else 1.0)

            yield show


def _other_fields(corpus: Corpus) -> str | None:
    """What to do where texts are not where they were looked for."""
    if corpus.field is None:
        return None
    if corpus.target_field is None:
        return "--field NAME, where texts are in another field"
    return "--field NAME --target-field NAME, where texts are in other fields"
