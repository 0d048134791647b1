"""Find which axis of the output is the positions of which inputs: the code runs one position shorter."""

from __future__ import annotations

import re
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch

from attnscope.auditing.code.runs import CodeRuns
from attnscope.base.errors import OptionError, SourceError
from attnscope.base.spelling import spelled
from attnscope.code.pairs.implementation import Side, tensors_of
from attnscope.code.pairs.pairing import role_of

POSITIONS = re.compile(
    r"^(n|t|s|l|n_?[qkt]|nq|nk|q_len|kv_len|time|length|block_size|n_(tokens?|positions?))$|seq|tokens|length",
    re.I,
)
"""Names of the axis of positions."""

BATCH = re.compile("b|bs|bsz|(n_?)?batch(_size)?", re.I)
"""Names of the axis of sequences."""


@dataclass(frozen=True)
class Group:
    """Inputs whose positions are changed together."""

    names: tuple[str, ...]  #: the inputs
    n: int  #: how many positions they have
    aligned: bool  #: whether their positions are those of the output


@dataclass(frozen=True)
class PositionLayout:
    """Where the positions are."""

    axes: dict[str, int]  #: of each input that has positions, the index of their axis
    out_axis: int  #: the axis of the output with positions
    n: int
    groups: list[Group]  #: the inputs by what is changed together, those of the output's positions first


def axes_of(side: Side, positions: str | None) -> dict[str, int]:
    """Return the axis of positions of each input that has one.

    `positions` names an axis; None: it is found by its name, or is the last but one that is not the
    batch.
    """
    axes = {}
    for name, value in tensors_of(side).items():
        names = labels_of(side, name)
        found = [
            index
            for index, each in enumerate(names)
            if (each == positions if positions else POSITIONS.search(str(each)))
        ]
        last = value.dim() - (2 if is_number(value) else 1)
        others = [index for index in range(last, -1, -1) if not BATCH.fullmatch(str(names[index]))]
        if found:
            axes[name] = found[-1]
        elif positions is None and last >= 0:
            axes[name] = next(iter(others), last)
    return axes


def labels_of(side: Side, name: str) -> list[str | int]:
    """Return the names of the axes of an input; an empty one for each that has none."""
    labels = list(side.axes.get(name) or [])
    return labels + [""] * (side.inputs[name].dim() - len(labels))


def is_number(tensor: torch.Tensor) -> bool:
    """Check whether a tensor has real or complex numbers, and not integers."""
    return tensor.is_floating_point() or tensor.is_complex()


def shared_axes(side: Side, axes: Mapping[str, int], name: str, other: str) -> list[int]:
    """Return the axes of another input that are the positions of an input: by name, or else by size."""
    label, size = labels_of(side, name)[axes[name]], side.inputs[name].shape[axes[name]]
    labels = labels_of(side, other)
    if isinstance(label, str) and label and label in labels:
        return [index for index, each in enumerate(labels) if each == label]
    named = isinstance(label, str) and label and any(isinstance(each, str) and each for each in labels)
    sizes = side.inputs[other].shape
    if named:  # another name is another size, but for axes without names
        return [i for i, each in enumerate(sizes) if each == size and not isinstance(labels[i], str)]
    return [index for index, each in enumerate(sizes) if each == size]


def layout_of(
    runs: CodeRuns, inputs: Mapping[str, Any], axes: Mapping[str, int], sequences: Sequence[str]
) -> PositionLayout:
    """Find the positions of the output among those of the inputs.

    One input after the other gets one position less. Those that shorten the output so are aligned with
    it; if the code needs them to be as long as others, all of one length are tried together.

    `axes` has all inputs that may have positions, and `sequences` those that may be changed.
    """
    full = runs.output(inputs)
    finder = _PositionFinder(runs, inputs, dict(axes), list(sequences), full)
    alone = {name: finder.axis_of([name]) for name in sequences}
    aligned = [name for name in sequences if alone[name] is not None]
    lengths = {name: inputs[name].shape[axes[name]] for name in sequences}
    if aligned:
        out_axis = alone[aligned[0]]
    else:
        for n in dict.fromkeys(lengths.values()):
            aligned = [name for name in sequences if lengths[name] == n]
            if (out_axis := finder.axis_of(aligned)) is not None:
                break
        else:
            aligned = list(sequences[:1])
            out_axis = None if finder.ran else finder.axis_of_square(sequences[0])
            if out_axis is None:
                out_axis = finder.axis_by_size(sequences[0])
    assert out_axis is not None
    for is_beside in (lambda name: role_of(name) == "context", lambda name: not is_number(inputs[name])):
        aligned = [name for name in aligned if not is_beside(name)] or aligned
    n = full.shape[out_axis]
    others = [name for name in sequences if name not in aligned]
    groups = [Group(tuple(aligned), n, True)]
    for size in dict.fromkeys(lengths[name] for name in others):
        groups.append(Group(tuple(each for each in others if lengths[each] == size), size, False))
    return PositionLayout(dict(axes), out_axis, n, groups)


@dataclass
class _PositionFinder:
    """Runs the code with shorter inputs."""

    runs: CodeRuns
    inputs: Mapping[str, Any]
    axes: dict[str, int]
    sequences: list[str]
    full: torch.Tensor
    ran: bool = False  # whether it ran with any shorter input

    def axis_of(self, names: Sequence[str]) -> int | None:
        """Return the axis of the output that loses one position if inputs do; None if none does."""
        n = self.inputs[names[0]].shape[self.axes[names[0]]]
        if n < 2:
            return None
        short = shorter(self.runs.side, self.inputs, self.axes, self.sequences, names)
        return self._shortened(short, names[0], n)

    def _shortened(self, short: Mapping[str, Any], name: str, n: int) -> int | None:
        """Run with shorter inputs, and return the axis of the output that has one position less.

        The axis of the input `name` comes first, if several get shorter.
        """
        try:
            output = self.runs.output(short)
        except SourceError:
            return None
        self.ran = True
        if output.dim() != self.full.dim():
            return None
        pairs = zip(self.full.shape, output.shape, strict=True)
        found = [index for index, pair in enumerate(pairs) if pair == (n, n - 1)]
        own = self.axes[name]
        return own if own in found else next(iter(found), None)

    def axis_of_square(self, name: str) -> int | None:
        """Return the axis of the output that gets shorter if all axes of one size of an input do.

        Such an input has an element for each pair of positions, as those of residues. None: it does not.
        """
        side, n = self.runs.side, self.inputs[name].shape[self.axes[name]]
        axes = {each: shared_axes(side, self.axes, name, each) for each in tensors_of(side)}
        if len(axes[name]) < 2 or n < 2:
            return None
        short = {each: _cut(self.inputs[each], axes[each]) for each in axes}
        return self._shortened({**self.inputs, **short}, name, n)

    def axis_by_size(self, source: str) -> int:
        """Return the only axis of the output that has as many elements as an input has positions."""
        title, shape = self.runs.side.title, tuple(self.full.shape)
        n, axis = self.inputs[source].shape[self.axes[source]], self.axes[source]
        what = f"the output of {title} has the shape {shape}"
        if self.ran:
            one = len(shape) > axis and shape[axis] == 1
            why = "one position" if one else "no axis that changes with them"
            raise SourceError(
                f"{what}: {source} has {n} positions, and the output {why}.",
                hint="a function or method that returns the output of every position",
            )
        places = [index for index, size in enumerate(shape) if size == n]
        others = [size for index, size in enumerate(self.inputs[source].shape) if index != axis]
        if axis in places and n not in others:
            return axis
        if len(places) == 1 and n not in others:
            return places[0]
        raise SourceError(
            f"{what}, and which of its axes are the {n} positions of {source} is unknown.",
            hint="other sizes: a number of positions that no other axis has",
        )


def shorter(
    side: Side,
    inputs: Mapping[str, Any],
    axes: Mapping[str, int],
    sequences: Collection[str],
    names: Sequence[str],
) -> dict[str, Any]:
    """Return inputs of which some have one position less, and with them their masks and positions.

    `sequences` are the inputs that are neither masks nor positions.
    """
    short = {name: _cut(inputs[name], [axes[name]]) for name in names}
    for other in tensors_of(side):
        if other not in sequences:
            short[other] = _cut(inputs[other], shared_axes(side, axes, names[0], other))
    return {**inputs, **short}


def _cut(tensor: torch.Tensor, axes: Iterable[int]) -> torch.Tensor:
    for axis in axes:
        tensor = tensor.narrow(axis, 0, tensor.shape[axis] - 1)
    return tensor


def chosen(side: Side, layout: PositionLayout, positions: str | None) -> Group | None:
    """Return the inputs whose positions `--positions` names, as inputs or by an axis; None: none."""
    if positions is None:
        return None
    sequences = [name for group in layout.groups for name in group.names]
    if positions in sequences:
        names = [positions]
    else:
        names = [name for name in sequences if positions in labels_of(side, name)]
        names = [name for name in names if name in layout.groups[0].names] or names
    if not names:
        raise OptionError(
            f"no input of {side.title} that can be changed is called {positions}, or has such an axis.",
            hint=f"{spelled(inputs='x=B,T,C', positions='T')}, or {spelled(positions='x')}",
        )
    n = side.inputs[names[0]].shape[layout.axes[names[0]]]
    return Group(tuple(names), n, set(names) <= set(layout.groups[0].names))
