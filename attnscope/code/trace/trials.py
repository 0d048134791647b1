"""Runs of a subject with other sizes, within a budget."""

from __future__ import annotations

import traceback
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import dataclass
from typing import TYPE_CHECKING

from attnscope.base.errors import SizeError, is_a, is_out_of_memory, safe_str, stored_in

if TYPE_CHECKING:
    from attnscope.observe.axes.budget import MemoryEstimate, RunBudget
    from attnscope.observe.axes.from_other_sizes import SizedRun

SMALL = 64 * 2**20
"""Bytes. A run that takes more is made on meta, where tensors have shapes and no values."""


@dataclass
class Trials:
    """Runs code with other sizes: on the CPU if that is quick, or else on meta if it needs no values."""

    run: Callable[[str, Mapping[str, int]], SizedRun]
    estimate: MemoryEstimate
    budget: RunBudget
    quick: bool  #: whether small runs are made on the CPU
    report: Callable[[int], None]  #: receives the number of each run before it
    needs_values: bool = False

    def __call__(self, sizes: dict[str, int]) -> SizedRun:
        """Run the code with other sizes, unless that would exceed the budget."""
        if not self.budget.start():
            return _not_run(sizes)
        self.report(self.budget.spent_runs)
        n_bytes = self.estimate.with_sizes(sizes)
        run = None
        small = min(SMALL, self.budget.n_bytes)
        if self.quick and not self.needs_values and n_bytes <= small:
            run = self._within_budget("cpu", sizes, small)
        if run is None and not self.needs_values:
            run = self._within_budget("meta", sizes, self.budget.n_bytes)
            if run is not None and needs_values(run):
                self.needs_values, run = True, None
        if run is None and self.needs_values and self.budget.allows(n_bytes):
            run = self._within_budget("cpu", sizes, self.budget.n_bytes)
        return run if run is not None else _not_run(sizes)

    def _within_budget(self, device: str, sizes: dict[str, int], most_bytes: int) -> SizedRun | None:
        """Run the code; return None if that takes too much memory or time."""
        from attnscope.observe.axes.budget import OverBudget
        from attnscope.observe.instrument.cost import Meter

        self.budget.is_running = True
        try:
            with Meter(lambda n_bytes: self.budget.check(n_bytes, most_bytes)):
                run = self.run(device, sizes)
        finally:
            self.budget.is_running = False
        _release(run.error)
        if is_a(run.error, KeyboardInterrupt):
            self.budget.interrupt()
            return None
        if run.error is not None and is_out_of_memory(run.error):
            self.budget.too_large = True
            return None
        return None if is_a(run.error, OverBudget) else run


def needs_values(run: SizedRun) -> bool:
    """Check whether code failed because tensors on meta have no values."""
    return run.error is not None and "meta" in safe_str(run.error)


def _release(error: BaseException | None) -> None:
    """Release what the frames of an exception hold: a module with its weights."""
    released: list[BaseException] = []
    while error is not None and error not in released:
        released.append(error)
        for frame, _ in traceback.walk_tb(stored_in(error, "__traceback__")):
            with suppress(RuntimeError):  # it is still running
                frame.clear()
                _ = frame.f_locals  # updates the dictionary that was made when it was first read
        error = stored_in(error, "__cause__") or stored_in(error, "__context__")


def _not_run(sizes: Mapping[str, int]) -> SizedRun:
    from attnscope.observe.axes.from_other_sizes import SizedRun

    return SizedRun([], {}, error=SizeError(f"the budget does not allow a run with {dict(sizes)}."))
