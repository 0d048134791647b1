"""An example of the arguments that a target lacks, with the user's own names and sizes, for a hint."""

from __future__ import annotations

import re
from collections.abc import Collection, Sequence
from dataclasses import dataclass
from typing import Any

from attnscope.base.spelling import spelled
from attnscope.code.load.signatures import VARIADIC, Callee
from attnscope.code.load.specs import AxisSpec, Input, TensorSpec

WIDTH = re.compile(r"^d$|^d_|dim|embed|embd|hidden|feat|width|channels|model_size|input_size")
HEADS = re.compile(r"heads?$")
IDS = re.compile(r"(^|_)(ids?|idx|tokens?)$")
"""Names of parameters that are usually the width of the input, the number of heads, or token ids."""

WITHOUT = 64
"""The width of an example, if the user has written none."""


@dataclass
class Example:
    """The example of a call's arguments."""

    target: Callee
    init: Collection[str]
    inputs: Sequence[tuple[str | None, Input]]

    def of_constructor(self, missing: Sequence[str]) -> str:
        """Return `--init` for the missing arguments, and `--input` with an axis named like one of them.

        An axis and an argument of one name are one size, and it can vary.
        """
        axes = [axis for tensor in self._tensors for axis in tensor.axes or ()]
        names = [axis.name for axis in axes if axis.name and axis.name in missing]
        name = next((each for each in (*names, *missing) if each in names or WIDTH.search(each)), None)
        if name is None:
            return spelled(init=[f"{each}=…" for each in missing])
        last = self._tensors[0].axes[-1] if self._tensors and self._tensors[0].axes else None
        axis = next((each for each in axes if each.name == name), last)
        width = (axis and axis.size) or WITHOUT
        n_head = next(n for n in (8, 5, 4, 3, 2, 1) if width % n == 0)
        init = [
            f"{each}={width if each == name else n_head if HEADS.search(each) else '…'}"
            for each in missing
        ]
        if not self.inputs:
            parameters = self.target.signature.parameters.values() if self.target.signature else ()
            required = [p.name for p in parameters if p.default is p.empty and p.kind not in VARIADIC]
            return spelled(init=init, inputs=_inputs(required, f"B:2,T:10,{name}"))
        inputs = []
        if len(self._tensors) == len(self.inputs):
            for label, tensor in self.inputs:
                inputs.append((f"{label}=" if label else "") + _text(tensor, axis, name))
        return spelled(init=init, inputs=inputs)

    def of_call(self, missing: Sequence[str]) -> str:
        """Return `--input` for the missing arguments, with the axes of the last one that is there."""
        width = next((name for name in self.init if WIDTH.search(name)), f"d:{WITHOUT}")
        axes = _text(self._tensors[-1]) if self._tensors else f"B:2,T:10,{width}"
        return spelled(inputs=_inputs(missing, axes))

    @property
    def _tensors(self) -> list[TensorSpec]:
        """The inputs that are drawn with axes alone."""
        tensors = [value for _, value in self.inputs if isinstance(value, TensorSpec)]
        return [each for each in tensors if each.axes and each == TensorSpec(each.axes)]


def _inputs(names: Sequence[str], axes: str) -> list[str]:
    """Return a specification of each missing argument of the call; an axis has its size once."""
    inputs: list[str] = []
    for name in names:
        spec = "…" if "mask" in name else "B:2,T:10<100" if IDS.search(name) else axes
        if any(":" in each for each in inputs):
            spec = re.sub(r":\d+", "", spec)
        inputs.append(f"{name}={spec}")
    return inputs


def _text(tensor: Any, axis: AxisSpec | None = None, name: str | None = None) -> str:
    """Return the axes of a tensor as a user writes them, with another name for one of them."""
    axes: list[AxisSpec] = list(tensor.axes)
    for place, each in enumerate(axes):
        is_last = place == len(axes) - 1
        if axis and (each.name == axis.name if axis.name else is_last and each == axis):
            axes[place] = AxisSpec(name, None)
    return ",".join(each.text for each in axes)
