"""Every named tensor of one call of attention."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

from attnscope.results.common import Check, Finding, Result, Stats


@dataclass(frozen=True)
class Operand:
    """What went into an expression that failed: its text, and its axes' names and sizes."""

    text: str
    dims: tuple[str, ...] | None
    shape: tuple[int, ...]


@dataclass(frozen=True)
class Crash:
    """Where and why the traced code raised an exception.

    Attributes:
        file, line: where the expression stands that failed.
        expression: its text, on one line.
        operands: the tensors in it.
        disagreement: which axes of them do not fit together, if that is why.
        error: the last line of the traceback.
    """

    file: str
    line: int
    expression: str
    operands: list[Operand]
    disagreement: str | None
    error: str


@dataclass(frozen=True)
class Exit:
    """How code left Python: the exit status, and the text that Python would print on stderr."""

    status: int
    text: str | None = None


@dataclass
class Source:
    """The source of a function that a trace ran: its name, the number of its first line, its text.

    `file` is where it stands, if that is not the file of what was traced.
    """

    function: str
    line: int
    text: str
    file: str | None = None


@dataclass
class Step:
    """One named tensor of a trace, in the order in which it was made.

    Attributes:
        name: the name that the code gave it.
        dims: its axes' names, or None where nobody knows them.
        shape: its axes' sizes.
        dtype: such as `float32`.
        how: the expression that made it, or `input`.
        bytes: its elements × their size, whether or not the memory is its own.
        flops: floating-point operations of the matrix products that made it (a multiply
            and an add are two, as `torch.utils.flop_counter` counts); element-wise work
            is not counted.
        contiguous: whether its elements lie in memory in the order of its axes.
        strides: how many elements apart the neighbours along each axis lie, if it is not contiguous.
        view_of: the first step that owns the memory this one looks at, if it is not its own.
        same_as: the earlier step that is this very tensor under another name.
        fresh_bytes: bytes allocated while it was made, hidden copies included; None in a dry run.
        line: the line of the source that made it; None in a dry run.
        file: the file of that line, if it is not the file of what was traced.
        times: how often a loop made the same again; `flops` and `bytes` are those of one time.
        depth: how many traced calls deep it was made: 0 in the target itself.
        why: what it is, and why its shape is so, in a sentence; where asked for.
        stats: its values in six numbers, where asked for.
        tensor: the tensor itself, where asked for.
    """

    name: str
    dims: tuple[str, ...] | None
    shape: tuple[int, ...]
    dtype: str
    how: str
    bytes: int
    flops: int = 0
    contiguous: bool = True
    strides: tuple[int, ...] | None = None
    view_of: str | None = None
    same_as: str | None = None
    fresh_bytes: int | None = None
    line: int | None = None
    file: str | None = None
    times: int = 1
    depth: int = 0
    why: str | None = None
    stats: Stats | None = None
    tensor: Any = field(default=None, repr=False, compare=False)


@dataclass
class Trace(Result):
    """Every named tensor of one call of attention.

    Attributes:
        title: what was called, such as `sdpa`.
        sizes: what each axis name stands for, such as `{"n_batch": 3}`.
        options: what else decided the numbers, such as `{"scale": 0.0884}`.
        device: where it ran; None in a dry run.
        dtype: the inputs' dtype.
        seed: what random inputs and weights were drawn with; None where nothing was drawn.
        steps: the tensors, in the order in which they were made.
        checks: comparisons with references.
        findings: what looks wrong; None where nothing was looked for.
        notices: what else a reader of this trace should know.
        crash: where the code raised an exception, if it did.
        source: the code that ran, where asked for.
        file: the file of the code that was traced, if it is the user's own.
        exit: how the code left Python, if it did: by `sys.exit` or `os._exit`. No record has it.
        weights: the weights of the module that ran, by name, where all tensors were kept.
    """

    title: str
    sizes: dict[str, int] = field(default_factory=dict)
    options: dict[str, Any] = field(default_factory=dict)
    device: str | None = None
    dtype: str | None = None
    seed: int | None = None
    steps: list[Step] = field(default_factory=list)
    checks: list[Check] = field(default_factory=list)
    findings: list[Finding] | None = field(default_factory=list)
    notices: list[str] = field(default_factory=list)
    crash: Crash | None = None
    source: list[Source] = field(default_factory=list)
    file: str | None = None
    exit: Exit | None = field(default=None, repr=False)
    weights: dict[str, Any] | None = field(default=None, repr=False, compare=False)

    def __getitem__(self, name: str) -> Step:
        """The last step of that name.

        Raises:
            KeyError: no step has it.
        """
        for step in reversed(self.steps):
            if step.name == name:
                return step
        raise KeyError(name)
