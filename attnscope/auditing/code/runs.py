"""Call code again and again, each time as if it were the first, and read what it returns."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping, Sequence
from contextlib import suppress
from copy import deepcopy
from dataclasses import dataclass, fields, is_dataclass, replace
from typing import Any

import torch

from attnscope.attention.masks import hidden
from attnscope.auditing.measure.difference import relative
from attnscope.auditing.measure.leak import LIMIT, line_of
from attnscope.base.errors import SizeError, SourceError
from attnscope.base.process.default_dtype import default_dtype
from attnscope.base.process.random_state import seed_torch
from attnscope.base.units import bytes_text
from attnscope.code.pairs.implementation import Side, described, same
from attnscope.code.pairs.rounding import CLOSE, EXACT
from attnscope.observe.operator_names import PRODUCTS, SOFTMAXES
from attnscope.observe.operators.output import ranked_outputs
from attnscope.observe.operators.tape import Tape, TooLargeError, TorchCall, Value


@dataclass
class CodeRuns:
    """Calls code with values of its inputs, and counts the calls."""

    side: Side
    dtype: torch.dtype = torch.float64  #: the dtype of its inputs and weights, and of new tensors
    rounding: float = EXACT  #: how far rounding moves an output, at most, divided by the largest number
    #: which of the tensors that the code returns may be its output, the likeliest first
    ranked: Sequence[int] = (0,)
    returned_names: Sequence[str] = ("output",)  #: the names of these tensors
    unknown: Sequence[str] = ()  #: the names of what else is returned, and is not looked into
    count: int = 0  #: how many times the code was called

    def call(self, inputs: Mapping[str, Any], *, copy: bool = True) -> Any:
        """Call the code with copies of its inputs, which it may change."""
        self.count += 1
        side = replace(self.side, inputs=copied(inputs) if copy else dict(inputs))
        seed_torch(0)
        with torch.no_grad(), default_dtype(self.dtype), described(side.title):
            return side.call()

    def returned(self, inputs: Mapping[str, Any], *, copy: bool = True) -> list[torch.Tensor]:
        """Return all tensors that the code returns."""
        tensors = [each for _, each in named_tensors(self.call(inputs, copy=copy))]
        if not tensors:
            raise SourceError(f"{self.side.title} returns no tensor.")
        return [each.detach().clone() for each in tensors]

    def output(self, inputs: Mapping[str, Any]) -> torch.Tensor:
        """Return the likeliest output."""
        returned = self.returned(inputs)
        return returned[min(self.ranked[0], len(returned) - 1)]

    def choose_output(self, inputs: Mapping[str, Any]) -> None:
        """Choose the output, if the code returns several tensors: the last that depends on V."""
        out = self.call(inputs)
        self.returned_names = [name for name, _ in named_tensors(out)]
        self.unknown = list(unknown_parts(out))
        if len(self.returned_names) > 1:
            self.ranked = ranked_outputs(*self.recorded(inputs))

    def tape(self, inputs: Mapping[str, Any]) -> Tape:
        """Call the code, and return all tensors that it computes."""
        return self.recorded(inputs)[0]

    def names(self, inputs: Mapping[str, Any]) -> tuple[dict[int, str], dict[int, str]]:
        """Return the names of weights and of inputs, by the `id` of their tensors."""
        return replace(self.side, inputs=dict(inputs)).tensor_names()

    def recorded(self, inputs: Mapping[str, Any]) -> tuple[Tape, list[Value]]:
        """Call the code, and return its tape, and which values of it are returned."""
        own = copied(inputs)
        tape = Tape(*self.names(own), limit=LIMIT, exact=self.is_exact)
        try:
            with tape:
                out = self.call(own, copy=False)
                return tape, [tape.value_of(each) for _, each in named_tensors(out)]
        except TooLargeError as error:
            raise SizeError(
                f"auditing {self.side.title} takes too much memory: its tensors take more than"
                f" {bytes_text(LIMIT)}.",
                hint="smaller sizes; a mistake shows at small sizes, too",
            ) from error

    def measure_rounding(self, inputs: Mapping[str, Any]) -> None:
        """Measure how far an output moves if weights and inputs change by one unit in the last place.

        In float64, it is known to be so small that it does not matter.
        """
        if self.is_exact:
            return
        module, generator = self.side.module, torch.Generator().manual_seed(1)
        weights = [] if module is None else [*module.parameters()]
        before, kept = self.returned(inputs), [each.clone() for each in weights]

        def other(tensor: torch.Tensor) -> torch.Tensor:
            if not tensor.is_floating_point():
                return tensor
            signs = torch.randint(0, 2, tensor.shape, generator=generator) * 2 - 1
            return tensor * (1 + torch.finfo(tensor.dtype).eps * signs.to(tensor))

        try:
            with torch.no_grad():
                for each in weights:
                    each.copy_(other(each))
            tensors = {name: each for name, each in inputs.items() if isinstance(each, torch.Tensor)}
            after = self.returned({**inputs, **{name: other(each) for name, each in tensors.items()}})
        finally:
            with torch.no_grad():
                for each, value in zip(weights, kept, strict=True):
                    each.copy_(value)
        eps = torch.finfo(self.dtype).eps
        moved = [
            float(relative(one[None], other[None]).max())
            for one, other in zip(before, after, strict=True)
            if one.is_floating_point() or one.is_complex()
        ]
        self.rounding = CLOSE * max([eps, *moved])

    @property
    def is_exact(self) -> bool:
        """Whether it runs in float64."""
        return self.dtype == torch.float64

    def check_repeatable(self, inputs: Mapping[str, Any]) -> None:
        """Run the code twice on the same input."""
        if all(map(same, self.returned(inputs), self.returned(inputs))):
            return
        other = None
        with suppress(SizeError):  # the line is left out
            first, second = (self.tape(inputs).values for _ in range(2))
            pairs = zip(first, second, strict=False)
            unlike = (one for one, two in pairs if one.call and not same(one.tensor, two.tensor))
            other = next(unlike, None)
        line = None if other is None else line_of(other)
        where = f", first in line {line.line}: {line.expression}" if line is not None else ""
        raise SourceError(
            f"{self.side.title} cannot be audited: two runs on the same input differ{where}.",
            hint="code without random numbers of Python or numpy, and without state between calls",
        )


def copied(inputs: Mapping[str, Any]) -> dict[str, Any]:
    """Return inputs with a copy of each tensor, one copy for one tensor that occurs twice.

    Objects, such as a cache that the code updates in place, are copied whole.
    """
    copies: dict[int, torch.Tensor] = {}

    def copy_of(value: Any) -> Any:
        if isinstance(value, torch.Tensor):
            return copies.setdefault(id(value), value.clone())
        if type(value) in (list, tuple):
            return type(value)(map(copy_of, value))
        if type(value) is dict:
            return {name: copy_of(each) for name, each in value.items()}
        if callable(value):
            return value
        try:
            return deepcopy(value)
        except Exception:  # whatever the object's own copying raises
            return value

    return {name: copy_of(each) for name, each in inputs.items()}


PLAIN = (str, bytes, int, float, complex, type(None), torch.dtype, torch.device)
"""What is returned beside tensors and needs no word."""

MOST_OF_PAIRS = 128
"""The most positions of an output with an element for each pair of them."""


@dataclass(frozen=True)
class CodeOutput:
    """A tensor that code returns, with positions."""

    place: int  #: its number among the tensors that are returned
    name: str  #: where it is in what is returned: `output["a"]`
    axes: tuple[int, ...]  #: the axis of positions; of weights and scores, those of queries and keys

    @property
    def is_of_pairs(self) -> bool:
        """Whether it has an element for each pair of a query and a key."""
        return len(self.axes) > 1

    def by_position(self, tensor: torch.Tensor) -> torch.Tensor:
        """Return the tensor by position, `n …`, or by pair, `n_Q·n_K …`."""
        moved = tensor.movedim(self.axes, tuple(range(len(self.axes))))
        return moved.reshape(moved.shape[: len(self.axes)].numel(), -1)


def named_tensors(out: Any, name: str = "output") -> Iterator[tuple[str, torch.Tensor]]:
    """Yield the tensors in what a call returns, with their names: those that `tensors_in` yields."""
    if isinstance(out, torch.Tensor):
        yield name, out
    for part, each in parts_of(out, name):
        yield from named_tensors(each, part)


def unknown_parts(out: Any, name: str = "output") -> Iterator[str]:
    """Yield the names of what a call returns and may hold tensors of which nothing is known."""
    parts = list(parts_of(out, name))
    for part, each in parts:
        yield from unknown_parts(each, part)
    is_known = isinstance(out, (torch.Tensor, tuple, list, Mapping, *PLAIN)) or is_dataclass(out)
    if not is_known:
        yield f"{name}, an object of {type(out).__name__}"


def parts_of(out: Any, name: str = "output") -> Iterator[tuple[str, Any]]:
    """Yield the parts of a structure, with their names."""
    if isinstance(out, torch.Tensor):
        return
    if is_dataclass(out) and not isinstance(out, type | Mapping):
        yield from ((f"{name}.{each.name}", getattr(out, each.name, None)) for each in fields(out))
    elif isinstance(out, tuple | list):
        names = getattr(out, "_fields", None)
        for i, each in enumerate(out):
            yield f"{name}.{names[i]}" if names else f"{name}[{i}]", each
    elif isinstance(out, Mapping):
        for key, each in out.items():
            yield f'{name}["{key}"]' if isinstance(key, str) else f"{name}[{key!r}]", each


def outputs_of(
    names: Sequence[str],
    full: Sequence[torch.Tensor],
    shorter: Collection[tuple[int, Sequence[torch.Tensor]]],
    main: tuple[int, int],
    n: int,
) -> tuple[list[CodeOutput], list[str]]:
    """Find the outputs that have positions, and say why others have none.

    `shorter` has the tensors of runs with one query or key less, each beside the number of these before;
    `main` is the output that is known, with its axis of positions.
    """
    place, out_axis = main
    outputs, left_out = [CodeOutput(place, names[place], (out_axis,))], []
    for i, (name, tensor) in enumerate(zip(names, full, strict=True)):
        if i == place:
            continue
        runs = [
            (size, each[i])
            for size, each in shorter
            if len(each) == len(full) and each[i].dim() == tensor.dim()
        ]
        axes = tuple(axis for axis in range(tensor.dim()) if _is_shorter(tensor, runs, axis))
        if not runs and tensor.dim() > out_axis and list(tensor.shape).count(n) == 1:
            axes = (out_axis,) if tensor.shape[out_axis] == n else ()
        if not axes:
            shape = "×".join(map(str, tensor.shape)) or "a number"
            left_out.append(f"{name} ({shape}), which has no axis of the {n} positions")
        elif len(axes) > 2:
            left_out.append(f"{name}, which has {len(axes)} axes of positions")
        elif len(axes) == 2 and n > MOST_OF_PAIRS:
            left_out.append(
                f"{name}, which has an element for each pair; {MOST_OF_PAIRS} positions show it"
            )
        else:
            outputs.append(CodeOutput(i, name, axes))
    return outputs, left_out


def _is_shorter(tensor: torch.Tensor, runs: Collection[tuple[int, torch.Tensor]], axis: int) -> bool:
    return any((tensor.shape[axis], each.shape[axis]) == (n, n - 1) for n, each in runs)


FUSED = (
    "scaled_dot_product_attention",
    "flex_attention",
    "transformer_encoder_layer_fwd",
    "native_multi_head_attention",
)
"""Functions that attend on their own."""


def depths_of(tape: Tape) -> dict[Value, int]:
    """Return for each tensor how many attentions follow each other up to it; nothing if there are none.

    An attention is a softmax whose result enters a product, or a fused function. Heads beside each other
    are one.
    """
    depths: dict[Value, int] = {}
    weights: set[Value] = set()  # a softmax, and what was made of it, up to a product
    for call in tape.calls:
        depth = max((depths.get(parent, 0) for parent in call.parents), default=0)
        from_weights = any(parent in weights for parent in call.parents)
        if call.name in FUSED or (from_weights and call.name in {*PRODUCTS, "tensordot"}):
            depth += 1
        elif call.name in SOFTMAXES or (from_weights and call.name != "linear"):
            weights.update(call.outputs)
        depths.update(dict.fromkeys(call.outputs, depth))
    return depths if any(depths.values()) else {}


def fully_masked_rows(tape: Tape, n: int) -> set[int]:
    """Return the positions of queries that see no key in any softmax of a run."""
    rows: set[int] = set()
    for call in tape.calls:
        hidden = _hidden(call)
        if hidden is None or hidden.dim() < 2 or hidden.shape[-2] not in (1, n):
            continue
        empty = hidden.all(-1).reshape(-1, hidden.shape[-2]).any(0).expand(n)
        rows |= set(empty.nonzero().flatten().tolist())
    return rows


def n_softmaxes(tape: Tape) -> int:
    """Count the softmaxes of a run, and the fused functions that compute one."""
    return sum(_hidden(call) is not None for call in tape.calls)


def _hidden(call: TorchCall) -> torch.Tensor | None:
    """Find the keys that a softmax gives no weight to, `… n_Q n_K`; None for other calls."""
    if call.name in SOFTMAXES and call.parents:
        scores = call.parents[0].tensor
        dim = call.argument(1, "dim", -1)
        if not isinstance(dim, int) or scores.dim() < 2:
            return None
        return hidden(scores.movedim(dim, -1))
    if call.name == "scaled_dot_product_attention":
        mask = call.argument(3, "attn_mask")
        return torch.zeros(1, 1, dtype=torch.bool) if mask is None else hidden(mask.tensor)
    return None
