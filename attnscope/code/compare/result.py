"""Two attentions on the same input: which tensors are equal, which differs first, and why."""

from __future__ import annotations

from dataclasses import dataclass, field

from attnscope.base.errors import no_such_part
from attnscope.base.text import shortened
from attnscope.base.units import difference_text
from attnscope.code.pairs.pairing import WeightCopy
from attnscope.document.result import Check, Part, Result


@dataclass(frozen=True)
class Site:
    """Where one side computes a tensor.

    Attributes:
        name: the variable that it is assigned to, or the input that it is; None for an expression.
        expression: what computes it, on one line; empty for an input.
        file, line: the location; None if it is an input, or inside a kernel.
        shape: its shape there.
    """

    name: str | None
    expression: str
    file: str | None
    line: int | None
    shape: tuple[int, ...]


@dataclass(repr=False)
class ComparedTensor(Part):
    """One tensor that both sides compute.

    Attributes:
        role: what it is, such as `scores`.
        dims, shape: its axes in the arrangement in which both are compared; an axis that is not known
            to be one of the named ones, such as that of windows, has its size in place of a name.
        a, b: where each side computes it.
        largest: the largest absolute difference in float64; None if the shapes differ.
        index: where that is, by axis; `axis_0` is the first one, if it has no name.
        share: the share of elements that differ by more than rounding.
        rounding: the difference that rounding in the run's dtype causes on either side.
        status: `equal`; `different`; `follows` if it differs because an earlier one does;
            `form` if it differs without effect on the output, or has another shape.
        factor: the factor from a's tensor to b's, if it differs by that alone.
    """

    role: str
    dims: tuple[str, ...]
    shape: tuple[int, ...]
    a: Site
    b: Site
    largest: float | None
    index: dict[str, int]
    share: float
    rounding: float | None
    status: str
    factor: float | None = None

    @property
    def summary(self) -> str:
        """What it is, on one line, without its class."""
        return f"{self.role}: {self.status}, largest difference {difference_text(self.largest)}"


@dataclass(frozen=True)
class Divergence:
    """A tensor that differs although all that it comes from is equal, and why.

    Attributes:
        role: the tensor.
        cause: the mistake in a few words, such as `another scale`; None if no hypothesis holds.
        explanation: a sentence with the numbers; of the closest hypothesis if none holds.
        rest: the largest difference that the hypothesis leaves; None if there is no hypothesis.
        largest: the largest difference when the divergences before this one are corrected.
        a, b: where each side computes the first result that differs though all that it is computed from
            is equal, such as one term of a sum; None if that is unknown.
    """

    role: str
    cause: str | None
    explanation: str | None
    rest: float | None
    largest: float | None = None
    a: Site | None = None
    b: Site | None = None


@dataclass(frozen=True, repr=False)
class ComparedGradient(Part):
    """The gradient of an input or a weight that both sides have.

    The gradient is that of the sum of the output times fixed random numbers.

    Attributes:
        a, b: its name on both sides.
        shape: its shape.
        largest: the largest absolute difference in float64.
        rounding: the difference that rounding in the run's dtype causes.
        status: `equal` or `different`; `undecided` where both are NaN.
    """

    a: str
    b: str
    shape: tuple[int, ...]
    largest: float
    rounding: float
    status: str

    @property
    def summary(self) -> str:
        """What it is, on one line, without its class."""
        return f"{self.a}: {self.status}, largest difference {difference_text(self.largest)}"


@dataclass(repr=False)
class Comparison(Result):
    """Two attentions on the same input.

    Attributes:
        a, b: the names of both; a is the reference, if one is.
        status: `equal`, `different`, or `undecided` if not all could be compared.
        sizes: the sizes by name.
        dtype, device, seed: those of the run.
        tensors: the tensors that both compute, in order.
        divergences: the tensors that differ although all that they come from is equal, in order; empty
            if the two are equal; None if that is unknown.
        explained: whether the causes together make both outputs equal.
        n_causes: the number of common causes that were tested.
        weights: which weights were copied; None if there are none.
        weights_used: `own` if each module had its own weights, as it was passed, `same` if those of
            one were copied to the other although both had some; None where that was no question.
        other_weights: the weights of b that are not those of a, if no common cause explains what differs
            with them: the tensors are then those with the weights of a in both. Else empty.
        opaque: the operators of either side that cannot be seen into.
        n_keys: the numbers of keys with which both were compared because of that, if several.
        zeroed: the weights of b that were set to 0, because a has none like them.
        gradients: the gradients of inputs and weights; None if they were not compared.
        checks: the outputs, compared in the run's dtype.
        notices: further sentences for the reader.
    """

    schema = "comparison"

    a: str
    b: str
    status: str
    sizes: dict[str, int] = field(default_factory=dict)
    dtype: str | None = None
    device: str | None = None
    seed: int | None = None
    tensors: list[ComparedTensor] = field(default_factory=list)
    divergences: list[Divergence] | None = None
    explained: bool = False
    n_causes: int = 0
    weights: list[WeightCopy] | None = None
    weights_used: str | None = None
    other_weights: list[str] = field(default_factory=list)
    opaque: list[str] = field(default_factory=list)
    n_keys: list[int] = field(default_factory=list)
    zeroed: list[str] = field(default_factory=list)
    gradients: list[ComparedGradient] | None = None
    checks: list[Check] = field(default_factory=list)
    notices: list[str] = field(default_factory=list)

    @property
    def verdict(self) -> str:
        """Whether the two are equal, in words, and with which weights, if that was a question."""
        if self.other_weights:
            return f"different: the weights differ; with the same weights, {self._verdict}"
        weights = {"own": ", each with its own weights", "same": ", with the same weights"}
        return self._verdict + weights.get(self.weights_used or "", "")

    @property
    def _verdict(self) -> str:
        if self.status == "equal" or (self.other_weights and self.divergences == []):
            return f"equal up to rounding in {self.dtype}{self._limits}"
        if self.status == "undecided":
            return "undecided"
        where = [each.role for each in self.divergences or []]
        if not where and any(each.status == "different" for each in self.gradients or []):
            return "different: the outputs are equal, and the gradients are not"
        return f"different, first in {where[0]}" if where else "different"

    @property
    def _limits(self) -> str:
        """What the verdict that both are equal does not cover, in words."""
        limits = f", with {', '.join(self.zeroed)} of b set to 0" if self.zeroed else ""
        if self.n_keys:
            limits += f", with {', '.join(map(str, self.n_keys))} keys"
        elif self.opaque:
            limits += ", at these sizes alone"
        return limits

    @property
    def summary(self) -> str:
        """What it is, on one line, without its class."""
        return f"{shortened(self.a)} and {shortened(self.b)}: {self.verdict}"

    @property
    def is_equal(self) -> bool:
        """Whether the two are equal up to rounding."""
        return self.status == "equal"

    @property
    def check(self) -> Check:
        """The comparison as one check: that the outputs are equal, or which tensors differ first."""
        output = self.checks[0] if self.checks else Check(self.a, None, None, None)
        causes = [f"{each.role}: {each.cause or 'unexplained'}" for each in self.divergences or []]
        ok = {"equal": True, "different": False}.get(self.status)
        note = "; ".join(causes) or "; ".join(self.notices)
        return Check(self.a, output.max_abs_diff, output.tolerance, ok, note)

    def __getitem__(self, role: str) -> ComparedTensor:
        """Return a tensor by its role.

        Raises:
            KeyError: the two were not compared there.
        """
        for each in self.tensors:
            if each.role == role:
                return each
        raise no_such_part(role, [each.role for each in self.tensors], "this comparison")
