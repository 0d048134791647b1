"""Where each family of models keeps its attention matrices.

To add a family, add a row to `LAYOUTS` and a test to `tests/models/test_layouts.py`.
"""

from __future__ import annotations

import re
from dataclasses import dataclass

from attnscope.errors import ModelError

PARTS = ("Q", "K", "V", "O")


@dataclass(frozen=True)
class Layout:
    """How a family names the modules of an attention layer.

    Attributes:
        family: who writes it so.
        layer: the name of an attention layer, up to its number.
        modules: from there to each projection: the modules of W_Q, W_K, W_V and W_O.
    """

    family: str
    layer: str
    modules: dict[str, str]


LAYOUTS = (
    Layout(
        family="BERT, RoBERTa, ELECTRA",
        layer="encoder.layer.",
        modules={
            "Q": ".attention.self.query",
            "K": ".attention.self.key",
            "V": ".attention.self.value",
            "O": ".attention.output.dense",
        },
    ),
)


@dataclass(frozen=True)
class Located:
    """A layout as one checkpoint uses it.

    Attributes:
        layout: the family's.
        prefix: what stands before it, such as `bert.` where the model has a task's head.
        n_layer: how many attention layers there are.
    """

    layout: Layout
    prefix: str
    n_layer: int

    def module(self, part: str, layer: int) -> str:
        """The module of one projection, as the bare model (without a task's head) names it."""
        return f"{self.layout.layer}{layer}{self.layout.modules[part]}"

    def tensor(self, part: str, layer: int, kind: str) -> str:
        """The name in the checkpoint of a projection's `weight` or `bias`."""
        return f"{self.prefix}{self.module(part, layer)}.{kind}"


def locate(names: list[str], model: str) -> Located:
    """Find out by its tensors' names which layout a checkpoint has.

    Args:
        names: all tensors of the checkpoint.
        model: what to call it in an error.

    Raises:
        ModelError: no known layout is in it.
    """
    for layout in LAYOUTS:
        before, after = re.escape(layout.layer), re.escape(layout.modules["Q"])
        pattern = re.compile(rf"(|.*\.){before}(\d+){after}\.weight")
        found = [match.groups() for name in names if (match := pattern.fullmatch(name))]
        if found:
            prefix = min((prefix for prefix, _ in found), key=len)
            layers = {int(layer) for each, layer in found if each == prefix}
            return Located(layout, prefix, n_layer=max(layers) + 1)
    families = "; ".join(layout.family for layout in LAYOUTS)
    raise ModelError(
        f"{model} has no attention weights that attnscope knows among its {len(names)} tensors.",
        hint=f"a checkpoint of {families}",
    )
