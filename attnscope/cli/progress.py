"""Show the progress of work on a terminal."""

from __future__ import annotations

from typing import TextIO

from rich.progress import BarColumn, Progress, TaskProgressColumn, TextColumn, TimeRemainingColumn
from rich.status import Status
from rich.text import Text

from attnscope.base.text import printable
from attnscope.document.console import Terminal


class Live:
    """A live display of the progress: a spinner, or a bar if the completed share is known."""

    def __init__(self, stream: TextIO) -> None:
        self.stream = stream  # the user's code, which may run at the same time, has another one
        self.status: Status | None = None
        self.bar: Progress | None = None

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
        if self.status is None:
            self.status = Terminal(file=self.stream).status(Text(printable(doing)))
            self.status.start()
        else:
            self.status.update(Text(printable(doing)))

    def _draw_bar(self, doing: str, share: float) -> None:
        """Show the completed share and the remaining time."""
        if self.bar is None:
            columns = (TextColumn("{task.description}", markup=False), BarColumn(), TaskProgressColumn())
            console = Terminal(file=self.stream)
            self.bar = Progress(*columns, TimeRemainingColumn(), console=console, transient=True)
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
