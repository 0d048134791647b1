"""The recorded steps of a file, by the code that binds them and by the call that they belong to."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable
from dataclasses import dataclass

from attnscope.observe.trace import Step
from attnscope.tracing.comments.claims import Subject
from attnscope.tracing.comments.places import Binding, Code, Function


@dataclass(frozen=True)
class Call:
    """One call of a function: its number among the calls at its depth."""

    function: Function | None
    depth: int
    number: int


@dataclass(frozen=True, eq=False)
class Run:
    """A step and the call that it belongs to."""

    call: Call
    step: Step


class History:
    """The steps of each binding, run by run.

    A call begins with its arguments. One without tensors cannot be distinguished from the one before.
    """

    def __init__(self, code: Code, steps: Iterable[Step]) -> None:
        self.runs_of: dict[Binding, list[Run]] = defaultdict(list)
        self.order: list[Run] = []
        number: dict[tuple[Function | None, int], int] = defaultdict(int)
        arguments: dict[tuple[Function | None, int], set[str] | None] = defaultdict(set)
        for step in steps:
            binding = code.binding_of(step)
            if binding is None:
                continue
            key = binding.place.function, step.depth
            names = arguments[key]
            if not binding.argument:
                arguments[key] = None
            elif names is None or step.name in names:
                number[key] += 1
                arguments[key] = {step.name}
            else:
                names.add(step.name)
            run = Run(Call(*key, number[key]), step)
            self.runs_of[binding].append(run)
            self.order.append(run)

    def last_before(self, run: Run, name: str) -> Run | None:
        """Return the last step of a name in the same call before a run."""
        earlier = self.order[: self.order.index(run)]
        return next((e for e in reversed(earlier) if (e.call, e.step.name) == (run.call, name)), None)

    def generic_functions(self) -> set[Function | None]:
        """Return the functions that were called with arguments of different axes."""
        generic = set()
        for binding, runs in self.runs_of.items():
            if (
                binding.argument
                and len({run.step.dims for run in runs if run.step.name == binding.name}) > 1
            ):
                generic.add(binding.place.function)
        return generic

    def runs(self, subject: Subject) -> list[Run]:
        """Return the runs that a claim refers to: `parts[0]` has its own, `parts[i]` all elements'."""
        runs = [run for binding in subject.bindings for run in self.runs_of[binding]]
        exact = [run for run in runs if run.step.name == subject.name]
        if exact:
            runs = exact
        return list({run.call: run for run in runs}.values()) if subject.last else runs
