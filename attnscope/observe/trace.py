"""Every named tensor of one call of attention."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any

from attnscope.base.errors import OptionError, first_line, no_such_part
from attnscope.base.text import shortened
from attnscope.base.units import bytes_text, counted, listed, shape_text
from attnscope.document.result import Check, Finding, Part, Stats, TensorResult, held_of, of_room

if TYPE_CHECKING:
    import numpy as np

    from attnscope.document.blocks import Block
    from attnscope.document.tensor_file import Tensors


@dataclass(frozen=True)
class Operand:
    """A tensor in an expression that failed: its source text, and the names and sizes of its axes."""

    text: str
    dims: tuple[str, ...] | None
    shape: tuple[int, ...]


@dataclass(frozen=True)
class Crash:
    """Where and why the traced code raised an exception.

    Attributes:
        file, line: the location of the expression that failed.
        expression: its text, on one line.
        operands: the tensors in it.
        disagreement: which axes of the operands do not match, if that is the cause.
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
    """An exit from Python by the traced code: its status, and what Python would print on stderr."""

    status: int
    text: str | None = None


@dataclass
class Source:
    """The source of a function that ran: its name, the number of its first line, its text.

    `file` is the file that defines it, unless that is the file of the traced code.
    """

    function: str
    line: int
    text: str
    file: str | None = None


@dataclass
class Condition:
    """A condition on the sizes of a trace, such as `d_feat is a multiple of n_head`.

    Attributes:
        text: the condition.
        required: whether the code rejected all sizes that do not fulfil it; False: it was assumed in
            order to name axes, and the code may run without it.
        expression, file, line: the expression that rejected other sizes, on one line, and its location;
            None if the condition is assumed. `file` is None if it is the file of the traced code.
    """

    text: str
    required: bool
    expression: str | None = None
    file: str | None = None
    line: int | None = None


@dataclass(repr=False)
class Step(Part):
    """One named tensor of a trace.

    Attributes:
        name: the variable that the code assigned it to.
        dims: the names of its axes, or None if they are unknown.
        shape: the sizes of its axes.
        dtype: such as `float32`.
        how: the expression that computed it, or `input`.
        bytes: number of elements × element size, whether or not it owns the memory.
        flops: floating-point operations of the matrix products that computed it (a multiply
            and an add are two, as `torch.utils.flop_counter` counts); element-wise operations
            are not counted.
        contiguous: whether its elements lie in memory in the order of its axes.
        strides: the stride of each axis in elements, if it is not contiguous.
        view_of: the first step that owns the memory, if this one is a view.
        same_as: the earlier step that is the same tensor object under another name.
        members: if it is a returned dict, tuple or list of tensors with earlier steps: the names of
            those, by key or index (`weights`, `0`, `cache.0`). Such a step has no dims, and no shape.
        fresh_bytes: bytes allocated while it was computed, including hidden copies; None in a dry run.
        line: the source line that computed it; None in a dry run.
        file: the file of that line, unless that is the file of the traced code.
        times: how many times a loop computed it; `flops` and `bytes` are those of one iteration.
        depth: its depth in the stack of traced calls: 0 in the target itself.
        inside: the function of torch that computes it, if it is a step of torch's own attention.
        is_computed_beside: whether it is such a step that was computed beside the call, from the
            arguments of the function, which need not have it in memory.
        why: a sentence that explains the tensor and its shape, if requested.
        stats: statistics of its values, if requested.
        tensor: the tensor itself, if requested.
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
    members: dict[str, str] | None = None
    fresh_bytes: int | None = None
    line: int | None = None
    file: str | None = None
    times: int = 1
    depth: int = 0
    inside: str | None = None
    is_computed_beside: bool = False
    why: str | None = None
    stats: Stats | None = None
    tensor: Any = field(default=None, repr=False, compare=False)

    @property
    def owns_memory(self) -> bool:
        """Whether it owns memory: it is not a view, nor another name of a tensor."""
        return not (self.view_of or self.same_as or self.members or self.is_computed_beside)

    @property
    def is_input(self) -> bool:
        """Whether it is an input of the traced code itself, not an argument of a call in it."""
        return self.how == "input" and self.depth == 0

    @property
    def summary(self) -> str:
        """What it is, on one line, without its class."""
        name = shortened(self.name)
        if self.members is not None:
            return f"{name}: {counted(len(self.members), 'tensor')}"
        shape = [" ".join(self.dims or ()), shape_text(self.shape)]
        parts = [" = ".join(filter(None, shape)), self.dtype, bytes_text(self.bytes)]
        parts += [f"view of {shortened(self.view_of)}"] if self.view_of else []
        parts += [f"same tensor as {shortened(self.same_as)}"] if self.same_as else []
        parts += [] if self.line is None else [f"line {self.line}"]
        return f"{name}: {listed(parts)}"

    def stored(self) -> tuple[np.ndarray, str]:
        """Return its tensor as an array, and the name of its dtype, which numpy may lack.

        Raises:
            OptionError: numpy has no such tensors (sparse, nested, quantized, on meta), or the tensor's
                own class does not give its values.
        """
        from attnscope.base.arrays import from_tensor

        if self.tensor is None:
            raise OptionError(f"the values of {self.name} cannot be read: its class does not allow it.")
        try:
            return from_tensor(self.tensor)
        except (NotImplementedError, RuntimeError, TypeError) as error:
            raise OptionError(
                f"the values of {self.name} cannot be read: {first_line(error).rstrip('.')}."
            ) from error


@dataclass(repr=False)
class Trace(TensorResult):
    """Every named tensor of one call of attention.

    Attributes:
        title: the name of the function or module, such as `sdpa`.
        sizes: the size of each named axis, such as `{"n_batch": 3}`.
        guessed: the names among them that are only customary: neither the user nor the code has them.
        options: other options that determine the numbers, such as `{"scale": 0.0884}`.
        device: the device it ran on; None in a dry run.
        dtype: the dtype of the inputs.
        seed: the seed of random inputs and weights; None if nothing was drawn at random.
        steps: the tensors, in the order in which they were computed.
        conditions: conditions on sizes, found by running the code with others; None if it ran only once.
        checks: comparisons with references; None if nothing was compared.
        findings: likely mistakes; None if the trace was not searched for any.
        saw_softmax: whether a softmax was among the operators that were searched for mistakes.
        notices: further sentences for the reader.
        crash: the exception that the code raised, if any.
        tracing_error: an exception that only tracing caused, if any: without it, the code runs. The
            steps are those recorded until then.
        source: the code that ran; None if it was not requested.
        file: the file of the traced code, if it is the user's own.
        exit: the exit from Python by `sys.exit` or `os._exit`, if any. It is not part of any record.
        weights: the weights of the module that ran, by name, if all tensors were kept.
    """

    schema = "trace"

    title: str
    sizes: dict[str, int] = field(default_factory=dict)
    guessed: list[str] = field(default_factory=list)
    options: dict[str, Any] = field(default_factory=dict)
    device: str | None = None
    dtype: str | None = None
    seed: int | None = None
    steps: list[Step] = field(default_factory=list)
    conditions: list[Condition] | None = None
    checks: list[Check] | None = None
    findings: list[Finding] | None = None
    saw_softmax: bool = True
    notices: list[str] = field(default_factory=list)
    crash: Crash | None = None
    tracing_error: str | None = None
    source: list[Source] | None = None
    file: str | None = None
    exit: Exit | None = field(default=None, repr=False)
    weights: dict[str, Any] | None = field(default=None, repr=False, compare=False)

    @property
    def largest(self) -> list[Step]:
        """The largest tensors that the code computes, all of the same size; without any, inputs."""
        owners = [step for step in self.steps if step.owns_memory]
        computed = [step for step in owners if not step.is_input] or owners
        most = max((step.bytes for step in computed), default=0)
        return [step for step in computed if step.bytes == most]

    @property
    def summary(self) -> str:
        """What it is, on one line, without its class."""
        parts = [counted(len(self.steps), "tensor")]
        if steps := self.largest:
            name = f"{shortened(steps[0].name)} " if len(steps) == 1 else ""
            parts.append(f"largest {name}{bytes_text(steps[0].bytes)}")
        parts += [] if self.device or not self.steps else ["dry run"]
        parts += ["tracing failed"] if self.tracing_error else []
        if self.crash is not None:
            what = shortened(self.crash.disagreement or self.crash.error)
            parts.append(f"failed in line {self.crash.line}: {what}")
        elif self.findings is not None:
            found = counted(len(self.findings), "finding")
            parts.append(found if self.findings else self.no_softmax or "no findings")
        parts += held_of(self.checks)
        return f"{shortened(self.title)}: {listed(parts)}"

    @property
    def no_softmax(self) -> str | None:
        """What a trace without findings says of attention whose softmax was not among its operators."""
        if self.saw_softmax or self.findings != [] or self.crash or self.tracing_error:
            return None
        return "no softmax was seen: nothing is known of the attention"

    def set_tracing_error(self, error: str, *, code_runs: bool) -> None:
        """Note that tracing failed, with a description of the exception.

        If the code fails as well, its own failure matters: it has no `tracing_error`.
        """
        if code_runs:
            self.tracing_error = error
            self.notices.append(f"tracing failed, but the code itself runs: {error}; the rows end there")
        elif not error.startswith("RecursionError"):  # the code's own recursion left no room
            self.notices.append(f"tracing failed before the code did: {error}; the rows end there")

    def __getitem__(self, name: str) -> Step:
        """Return the last step of that name.

        Raises:
            PartError: there is no such step; it is a KeyError.
        """
        for step in reversed(self.steps):
            if step.name == name:
                return step
        raise no_such_part(name, [step.name for step in self.steps], f"the trace of {self.title}")

    def document(self, *, numbers: bool = False) -> list[Block]:
        """Build a row for each tensor, a summary, and what is wrong; with `numbers`, all values."""
        return of_room(Trace, "document", "document.document")(self, numbers=numbers)

    def to_dict(self, *, numbers: bool = False) -> dict[str, Any]:
        """Return the record that `--format json` prints; with `numbers`, all values of every tensor."""
        record = super().to_dict()
        for name in ("checks", "source"):  # None if not computed, but a list in version 1 of the record
            record[name] = record[name] or []
        if numbers:
            record["values"] = of_room(Trace, "numbers_record", "document.numbers")(self)
        return record

    def tensors(self) -> Tensors:
        """Return the tensors that were kept by their names, as stored in a file.

        Raises:
            OptionError: none were kept.
        """
        kept = {step.name: step.stored() for step in self.steps if step.tensor is not None}
        if not kept:
            raise OptionError(f"the trace of {self.title} kept no tensors.", hint="keep=True")
        return kept


MAX_STEPS = 200
"""The maximal number of steps in a loop body that is folded."""


def fold_loops(steps: Sequence[Step]) -> list[Step]:
    """Replace identical iterations of each loop by a single one.

    Each step counts its iterations in `times`, and has the tensor of the last one. Nested loops
    are folded from the inside out.

    >>> from attnscope.observe.trace import Step
    >>> def step(name):
    ...     return Step(name, None, (2,), "float32", "…", 8)
    >>> [(s.name, s.times) for s in fold_loops([step(name) for name in "x ab ab ab y".replace(" ", "")])]
    [('x', 1), ('a', 3), ('b', 3), ('y', 1)]
    """
    result = list(steps)
    length = 1
    while length <= min(MAX_STEPS, len(result) // 2):
        once = _fold_bodies(result, length)
        length = length + 1 if len(once) == len(result) else 1
        result = once
    return result


def _fold_bodies(steps: list[Step], length: int) -> list[Step]:
    """Fold all loop bodies of one length."""
    keys = [_iteration_key(step) for step in steps]
    result: list[Step] = []
    start = 0
    while start < len(steps):
        body, end = keys[start : start + length], start + length
        while keys[end : end + length] == body and len(body) == length:
            end += length
        turns = (end - start) // length
        if turns > 1:
            last = steps[end - length : end]
            result += [
                replace(step, times=step.times * turns, tensor=latest.tensor)
                for step, latest in zip(steps[start : start + length], last, strict=True)
            ]
            start = end
        else:
            result.append(steps[start])
            start += 1
    return result


def _iteration_key(step: Step) -> tuple:
    """Collect what must be equal for two steps to count as the same iteration."""
    where = step.file, step.line, step.name, step.depth, step.times
    return (
        *where,
        step.dims,
        step.shape,
        step.dtype,
        step.bytes,
        step.flops,
        step.fresh_bytes,
        step.strides,
    )
