"""What code returns: its tensors by name, and which of their axes are positions."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, fields, is_dataclass
from typing import Any

import torch

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
