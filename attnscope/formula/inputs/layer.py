"""A layer of a checkpoint: its weights, its sizes, and the options that its configuration implies."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from attnscope.base.arrays import to_tensor
from attnscope.base.errors import ModelError, OptionError
from attnscope.base.spelling import quoted, spelled
from attnscope.base.tensor_files import TensorFile

if TYPE_CHECKING:
    import torch

    from attnscope.model.families.formula import LayerFormula
    from attnscope.model.files.result import WeightSlice


@dataclass(frozen=True)
class JoinedHeads(TensorFile):
    """The weights of all heads of a layer, as one matrix in `nn.Linear`'s layout, or one bias.

    Args:
        model: the name of the checkpoint.
        slices: those of the heads, in order.
    """

    model: str
    slices: tuple[WeightSlice, ...]

    def __str__(self) -> str:
        return f"{self.model}:{self.member}"

    def load(self) -> torch.Tensor:
        import numpy as np

        axis = 1 if self.name == "W_O" else 0
        joined = np.concatenate([each.array for each in self.slices], axis=axis)
        joined = joined.astype(joined.dtype.newbyteorder("="), copy=False)
        return to_tensor(joined, self.dtype)


@dataclass(frozen=True)
class CheckpointLayer:
    """A layer of a checkpoint, as `mha` runs it.

    Attributes:
        model, stack, index: the checkpoint's name, the name of its stack, and the layer's index.
        files: the weights and biases, by name.
        sizes: the layer's sizes, by axis.
        formula: what it computes beside its projections.
    """

    model: str
    stack: str
    index: int
    files: dict[str, TensorFile]
    sizes: dict[str, int]
    formula: LayerFormula

    def __str__(self) -> str:
        stack = "" if self.stack == "self" else f" ({self.stack})"
        return f"layer {self.index} of {self.model}{stack}"

    @property
    def described(self) -> dict[str, Any]:
        """The options that name the layer, for the heading and for records."""
        named = {"model": self.model, "layer": self.index}
        return named if self.stack == "self" else {**named, "stack": self.stack}

    @property
    def masks(self) -> list[str]:
        """The masks of the layer, as a user writes them."""
        window = self.formula.window
        masks = ["causal"] if self.formula.causal else []
        return masks + ([] if window is None else [f"window:{window[0]},{window[1]}"])

    @property
    def limits(self) -> str | None:
        """A sentence on what the layer computes and `mha` does not; None if that is nothing."""
        from attnscope.model.files.indices import enumerated

        missing = self.formula.missing
        if self.formula.family is None:
            more = f", and leaves out {enumerated(missing)}" if missing else ""
            return (
                f"attnscope does not know what {self} computes beside its projections: mha applies"
                f" these, without a mask and without positions{more}"
            )
        if not missing:
            return None
        return f"{self} computes more than mha, which leaves out {enumerated(missing)}"


def open_layer(weights: Any, layer: int | None, stack: str | None) -> CheckpointLayer | None:
    """Open a layer of a checkpoint; None if no layer is selected.

    Args:
        weights: the checkpoint: `minilm`, a folder, a hub name or a loaded transformers model.
        layer: the layer's index, from 0.
        stack: the name of its stack; None: the first.

    Raises:
        OptionError: the layer of something that is not a checkpoint, or a stack without a layer.
        ModelError: there is no such model, stack or layer, or `mha` cannot express its attention.
    """
    if layer is None:
        if stack is not None:
            raise OptionError(
                f"{spelled('stack', stack)} selects layers of a model, but there is no"
                f" {spelled('layer')}.",
                hint=spelled(layer=0),
            )
        return None
    if weights is None:
        raise OptionError(
            f"{spelled('layer', layer)} is a layer of a model, but there is none.",
            hint=spelled(weights="minilm", layer=layer),
        )
    if isinstance(weights, Mapping):
        raise OptionError(
            f"{spelled('layer', layer)} is a layer of a model, but weights is a mapping of tensors.",
            hint="weights=MODEL, a name or a loaded model; or the tensors without a layer",
        )
    if not hasattr(layer, "__index__"):
        raise OptionError(f"{spelled('layer')} is {layer!r}, but a layer is a whole number from 0.")
    from attnscope.model.families.formula import formula_of
    from attnscope.model.files.heads import open_heads
    from attnscope.model.files.loaded import find_model

    heads = open_heads(find_model(weights), stack)
    heads.check(layer)
    own = heads.layer(layer)
    name = f"layer {layer} of {heads.model}"
    if own.latent is not None:
        raise ModelError(
            f"{name} has latent attention: its keys and values are products of two matrices, which mha"
            " does not have.",
            hint=f"attnscope weights {quoted(heads.model)} --layer {layer}",
        )
    files = {part: _joined(part, slices, heads.model) for part, slices in heads.slices(own).items()}
    d_K, d_V = files["W_K"].shape[1], files["W_V"].shape[1]
    if d_K != d_V:
        raise ModelError(
            f"{name} projects keys from {d_K} numbers and values from {d_V}: they have different inputs,"
            " and mha has one for both.",
            hint=f"attnscope weights {quoted(heads.model)} --layer {layer}",
        )
    sizes = {"n_head": heads.n_head, "n_kv_head": own.n_kv_head, "d_feat": own.d_feat}
    sizes |= {"d_head": own.d_head, "d_V": own.d_head}
    if heads.stack.layout.cross:
        sizes["d_context"] = d_K
    formula = formula_of(heads, layer, own.d_head)
    return CheckpointLayer(heads.model, heads.stack.name, layer, files, sizes, formula)


def _joined(name: str, slices: list[WeightSlice], model: str) -> TensorFile:
    """Return a weight or a bias of all heads."""
    first = slices[0]
    shape = list(first.head_shape)
    shape[1 if name == "W_O" else 0] *= len(slices)
    return JoinedHeads(name, Path(), first.tensor, tuple(shape), first.dtype, model, tuple(slices))
