"""Find the masks among the inputs of code, and what their values mean, by what they hide."""

from __future__ import annotations

import re
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

import torch

from attnscope.auditing.code.layout import Group, is_number, shared_axes
from attnscope.auditing.code.runs import fully_masked_rows
from attnscope.auditing.measure.difference import relative
from attnscope.base.errors import OptionError, SourceError
from attnscope.base.spelling import spelled
from attnscope.code.pairs.pairing import role_of

if TYPE_CHECKING:
    from attnscope.auditing.code.code import AuditedCode

KEYS, PAIRS, LENGTHS = "keys", "pairs", "lengths"
"""What a mask has an element for: each key, each pair of a query and a key, each sequence."""

NAMES = re.compile(r"mask|pad|valid|visible", re.I)
"""Names of masks of booleans and integers; `role_of` knows those of numbers."""

LENGTH_NAMES = re.compile(r"(^|_)(seq|real|valid)?_?(lens?|lengths?|seqlens?)$", re.I)
"""Names of the numbers of real positions."""

N_PAD = 3
"""How many positions of padding there are, or a third of all."""


@dataclass(frozen=True)
class Meaning:
    """What the values of a mask mean."""

    text: str  #: in words
    visible: float  #: the values of what is visible and hidden
    hidden: float


@dataclass(frozen=True)
class Mask:
    """An input that hides positions."""

    name: str
    like: torch.Tensor  #: a tensor of its shape and dtype
    kind: str  #: what it has an element for
    axes: tuple[int, ...]  #: the axes of keys; of queries and keys, for pairs; of sequences, for lengths
    group: Group  #: the inputs whose positions it hides
    meaning: Meaning  #: what its values mean
    hides: bool = False  #: whether it hides some positions; otherwise its meaning is a guess
    is_stated: bool = False  #: whether the user says which value hides

    @property
    def is_known(self) -> bool:
        """Whether its meaning is seen in a run, or stated by the user."""
        return self.hides or self.is_stated

    def values(self, visible: torch.Tensor) -> torch.Tensor:
        """Return the mask with which some keys are visible: `n_K`, or `n_Q n_K` for pairs."""
        if self.kind == LENGTHS:
            return torch.full_like(self.like, int(visible.sum()))
        numbers = torch.where(visible, self.meaning.visible, self.meaning.hidden).to(self.like)
        shape = [1] * self.like.dim()
        for axis, size in zip(self.axes, visible.shape, strict=True):
            shape[axis] = size
        return numbers.reshape(shape).expand(self.like.shape).clone()

    def hiding(self, keys: Collection[int]) -> torch.Tensor:
        """Return the mask that hides keys from all queries, but for pairs not from themselves."""
        visible = torch.ones(self.group.n, dtype=torch.bool)
        visible[list(keys)] = False
        if self.kind == PAIRS:
            visible = visible.expand(self.like.shape[self.axes[0]], -1)
            if self.group.aligned:
                visible = visible | torch.eye(self.group.n, dtype=torch.bool)
        return self.values(visible)

    def has_sequences(self, axis: int, size: int) -> bool:
        """Check whether an axis of it counts as many sequences."""
        is_free = self.kind == LENGTHS or axis not in self.axes
        return self.hides and is_free and self.like.dim() > axis and self.like.shape[axis] == size

    def hidden_in(self, mask: torch.Tensor, axis: int, sequences: Sequence[int]) -> torch.Tensor:
        """Return a mask that hides the last positions of some sequences, too."""
        hidden = self.hiding(self.sides()["right"]).movedim(axis, 0)
        result = mask.clone()
        result.movedim(axis, 0)[list(sequences)] = hidden[list(sequences)].to(mask)
        return result

    def real_rows(self, keys: Collection[int], n: int) -> list[int]:
        """Return the rows of an output with `n` positions that are real if some keys are padding."""
        return [row for row in range(n) if not self.group.aligned or row not in keys]

    def sides(self) -> dict[str, list[int]]:
        """Return the positions of the padding on each side that the mask can hide."""
        n_pad = max(min(N_PAD, self.group.n // 3), 1)
        right = list(range(self.group.n - n_pad, self.group.n))
        return {"right": right} if self.kind == LENGTHS else {"left": list(range(n_pad)), "right": right}


def may_be_mask(name: str, tensor: torch.Tensor) -> bool:
    """Check whether an input may be a mask: a boolean one, or a name of masks, or zeros and ones."""
    if is_number(tensor):
        return role_of(name) == "mask" or "mask" in name.lower()
    is_binary = tensor.dim() > 1 and bool(((tensor == 0) | (tensor == 1)).all())
    return is_mask_name(name) or tensor.dtype == torch.bool or is_binary


def is_mask_name(name: str) -> bool:
    """Check whether a name is one of masks."""
    return bool(role_of(name) == "mask" or NAMES.search(name) or LENGTH_NAMES.search(name))


def stated_masks(mask_input: Sequence[str] | Mapping[str, Any]) -> dict[str, float | None]:
    """Return the inputs that are said to hide positions, with the value that hides; None: not said.

    Args:
        mask_input: texts `NAME` or `NAME=VALUE`, or values by name.

    Raises:
        OptionError: a value is none that hides.

    >>> stated_masks(["pad", "mask=0", "bias=-inf"])
    {'pad': None, 'mask': 0.0, 'bias': -inf}
    """
    if not isinstance(mask_input, Mapping):
        pairs = [text.partition("=") for text in mask_input]
        mask_input = {name: value if equals else None for name, equals, value in pairs}
    return {
        name: None if value is None else _hiding_value(name, value) for name, value in mask_input.items()
    }


def _hiding_value(name: str, value: Any) -> float:
    """Return the value of a mask that hides: 0, 1, or a negative number that is added to scores."""
    truths = {"False": 0.0, "True": 1.0}
    try:
        number = truths[str(value)] if str(value) in truths else float(value)
    except (TypeError, ValueError):
        number = float("nan")
    if not (number in (0, 1) or number < 0):
        raise OptionError(
            f"{value!r} hides nothing: the value of {name} that hides is 0, 1, or negative as −∞ is.",
            hint=spelled(mask_input=f"{name}=0"),
        )
    return number


def found_mask(
    code: AuditedCode, name: str, groups: Sequence[Group], hiding_value: float | None = None
) -> Mask | None:
    """Find the positions that a mask hides, and by which values; None if its shape fits none.

    Each meaning is tried at both ends: what is hidden moves nothing else, and does if it is visible. A
    meaning with which some query sees no key, although nothing is hidden, is wrong.
    """
    candidates = [
        Mask(name, code.inputs[name], kind, axes, group, meaning, is_stated=hiding_value is not None)
        for group in groups
        for kind, axes in _kinds(code, name, group)
        for meaning in _meanings(name, code.inputs[name], kind, hiding_value)
    ]
    possible = [each for each in candidates if _hides_nothing(code, each)]
    hiding = next((each for each in possible if _hides(code, each)), None)
    return (
        replace(hiding, hides=True) if hiding is not None else next(iter(possible or candidates), None)
    )


def _kinds(code: AuditedCode, name: str, group: Group) -> list[tuple[str, tuple[int, ...]]]:
    """List what a mask may have elements for, with the axes."""
    side, axes, tensor = code.runs.side, code.layout.axes, code.inputs[name]
    if LENGTH_NAMES.search(name) and not is_number(tensor):
        n_batch = code.output().shape[0]
        return [(LENGTHS, (0,))] if tensor.numel() == len(tensor) == n_batch else []
    if tensor.dim() == 0:
        return []
    keys = shared_axes(side, axes, group.names[0], name)
    queries = shared_axes(side, axes, code.layout.groups[0].names[0], name)
    last, before = tensor.dim() - 1, tensor.dim() - 2
    if last in keys and before in queries:
        return [(PAIRS, (before, last))]
    return [(KEYS, (keys[-1],))] if keys else []


def _meanings(name: str, mask: torch.Tensor, kind: str, hiding_value: float | None) -> list[Meaning]:
    """List the possible meanings of a mask, the usual first; one, if the value that hides is known."""
    if hiding_value is not None and (kind == LENGTHS or (hiding_value < 0 and not is_number(mask))):
        what = "numbers of real positions" if kind == LENGTHS else "no numbers to add to scores"
        raise OptionError(f"{name} has {what}.", hint=spelled(mask_input=name))
    if kind == LENGTHS:
        return [Meaning("the number of real positions", 0, 0)]
    if hiding_value is not None and hiding_value < 0:
        number = "−∞" if hiding_value == -torch.inf else f"{hiding_value:g}"
        return [Meaning(f"{number} hides", 0, hiding_value)]
    one = "True" if mask.dtype == torch.bool else "1"
    seen, hidden = ("visible", "hidden") if kind == PAIRS else ("real", "padding")
    meanings = [Meaning(f"{one} is {seen}", 1, 0), Meaning(f"{one} is {hidden}", 0, 1)]
    if hiding_value is not None:
        return [each for each in meanings if each.hidden == hiding_value]
    if is_number(mask):
        return [Meaning("−∞ hides", 0, -torch.inf), *meanings]
    return meanings[::-1] if "pad" in name.lower() else meanings


def _hides_nothing(code: AuditedCode, mask: Mask) -> bool:
    """Check that every query sees a key if the mask should hide nothing."""
    plain = code.with_inputs({mask.name: mask.hiding([])})
    try:
        tape, output = plain.runs.tape(plain.inputs), plain.output()
    except SourceError:
        return False
    return bool(output.isfinite().all()) and not fully_masked_rows(tape, plain.layout.n)


def _hides(code: AuditedCode, mask: Mask) -> bool:
    """Check that positions that move others, if they are visible, move none if they are hidden."""
    plain = code.with_inputs({mask.name: mask.hiding([])})
    for keys in mask.sides().values():
        hidden = code.with_inputs({mask.name: mask.hiding(keys)})
        rows = mask.real_rows(keys, code.layout.n)
        if (
            bool(hidden.before[rows].isfinite().all())
            and _moves(plain, mask.group, keys, rows)
            and not _moves(hidden, mask.group, keys, rows)
        ):
            return True
    return False


def _moves(code: AuditedCode, group: Group, keys: Sequence[int], rows: Sequence[int]) -> bool:
    """Change some keys, and check whether some rows of the output move."""
    after = code.rows(code.changed(keys, group))
    return bool((relative(code.before, after)[rows] > code.runs.rounding).any())
