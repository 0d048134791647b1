"""The four projections of multi-head attention, under the names that different libraries use."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from os import PathLike
from pathlib import Path
from typing import TYPE_CHECKING, Any

from attnscope.base.errors import FileError, OptionError
from attnscope.base.spelling import spelled
from attnscope.base.tensor_files import TensorFile, in_memory, open_tensors

if TYPE_CHECKING:
    import torch

NAMES = {
    part: (f"{part}.weight", *names)
    for part, names in {
        "W_Q": ("W_Q", "q_proj.weight", "q_proj_weight", "query.weight"),
        "W_K": ("W_K", "k_proj.weight", "k_proj_weight", "key.weight"),
        "W_V": ("W_V", "v_proj.weight", "v_proj_weight", "value.weight"),
        "W_O": ("W_O", "o_proj.weight", "out_proj.weight"),
    }.items()
} | {
    "b_Q": ("W_Q.bias", "b_Q", "q_proj.bias", "query.bias"),
    "b_K": ("W_K.bias", "b_K", "k_proj.bias", "key.bias"),
    "b_V": ("W_V.bias", "b_V", "v_proj.bias", "value.bias"),
    "b_O": ("W_O.bias", "b_O", "o_proj.bias", "out_proj.bias"),
}
"""The names of each in attnscope, in Llama and its relatives, in nn.MultiheadAttention, in BERT."""

STACKED = {"in_proj_weight": ("W_Q", "W_K", "W_V"), "in_proj_bias": ("b_Q", "b_K", "b_V")}
"""The tensors that nn.MultiheadAttention stacks if all widths are equal."""


@dataclass(frozen=True)
class Third(TensorFile):
    """One of three equal parts of a tensor, along its first axis.

    Args:
        whole: the tensor.
        part: the index of the part, from 0.
    """

    whole: TensorFile
    part: int

    def __str__(self) -> str:
        return str(self.whole)

    def load(self) -> torch.Tensor:
        n = self.shape[0]
        return self.whole.load()[self.part * n : (self.part + 1) * n].clone()


def open_projections(source: Any, others: dict[str, TensorFile]) -> dict[str, TensorFile]:
    """Find the weights and biases of the projections under any of their usual names.

    Args:
        source: a file, a mapping of names to tensors (as `state_dict()` returns), or None.
        others: weights and biases one by one, which replace those of the source.

    Raises:
        FileError: it cannot be read, or none of its names is known.
        OptionError: it is neither a file nor a mapping.
    """
    if source is None:
        return others
    members, place = _members(source)
    found: dict[str, TensorFile] = {}
    for name, known in NAMES.items():
        for member in known:
            if member in members:
                found[name] = replace(members[member], name=name)
                break
    for member, names in STACKED.items():
        file = members.get(member)
        if file is not None and file.shape and file.shape[0] % 3 == 0:
            shape = (file.shape[0] // 3, *file.shape[1:])
            for part, name in enumerate(names):
                found[name] = Third(name, file.path, file.member, shape, file.dtype, file, part)
    if not found:
        raise FileError(
            f"{place} has no weights with names that attnscope knows: it has"
            f" {', '.join(list(members)[:8])}.",
            hint=f"W_Q, W_K, W_V, W_O, b_Q, b_K, b_V, b_O; or one by one: {spelled(wq='FILE:NAME')}",
        )
    _check_not_one_head(place, found)
    return found | others


def _members(source: Any) -> tuple[dict[str, TensorFile], str]:
    """Return all tensors of a file or a mapping by name, and its name in messages."""
    if isinstance(source, str | PathLike):
        path = Path(source)
        if not path.suffix or path.is_dir():
            raise FileError(
                f"{path} is not a file of weights.",
                hint=f"{spelled(weights=path, layer=0)}, if it is a model",
            )
        return open_tensors(path), str(path)
    if not isinstance(source, Mapping):
        raise OptionError(
            f"weights is a {type(source).__name__}, not a file or a mapping of names to tensors.",
            hint="weights=module.state_dict(); or a loaded model, with layer=0",
        )
    place = "the argument weights"
    return {name: in_memory(name, value, f"{place}:{name}") for name, value in source.items()}, place


def _check_not_one_head(place: str, found: dict[str, TensorFile]) -> None:
    """Raise a FileError for the weights of one head, as `attnscope weights --save` writes them."""
    shapes = {name: file.shape for name, file in found.items()}
    if not {"W_Q", "W_K", "W_V", "W_O"} <= shapes.keys() or len(shapes["W_Q"]) != 2:
        return
    d_head, d_feat = shapes["W_Q"]
    alike = shapes["W_Q"] == shapes["W_K"] == shapes["W_V"]
    if alike and shapes["W_O"] == (d_feat, d_head) and d_head < d_feat:
        raise FileError(
            f"{place} holds one head: W_Q, W_K and W_V are {d_head}×{d_feat}, and W_O is"
            f" {d_feat}×{d_head}. mha takes the weights of all heads: {d_feat}×{d_feat}.",
            hint="the weights of a whole layer; or attnscope maps MODEL --text TEXT --steps, which"
            " shows what the heads of a layer compute",
        )
