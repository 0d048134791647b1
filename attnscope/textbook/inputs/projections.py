"""The four projections of multi-head attention, under the names that others have for them."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from attnscope.errors import FileError
from attnscope.tensor_files import TensorFile, open_tensors

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
"""What each is called: by attnscope, by Llama and its kin, by nn.MultiheadAttention, by BERT."""

STACKED = {"in_proj_weight": ("W_Q", "W_K", "W_V"), "in_proj_bias": ("b_Q", "b_K", "b_V")}
"""What nn.MultiheadAttention keeps on top of each other, when all widths are the same."""


@dataclass(frozen=True)
class Third(TensorFile):
    """One of three equal parts of a tensor, along its first axis."""

    part: int = 0

    def load(self) -> torch.Tensor:
        n = self.shape[0]
        whole = TensorFile(self.name, self.path, self.member, (3 * n, *self.shape[1:]), self.dtype)
        return whole.load()[self.part * n : (self.part + 1) * n].clone()


def open_projections(path: Path | None, others: dict[str, TensorFile]) -> dict[str, TensorFile]:
    """The projections' weights and biases in a file, by our names; those given one by one replace them.

    Args:
        path: the file, or None.
        others: weights and biases that are given one by one.

    Raises:
        FileError: it cannot be read, or nothing in it has a name that is known.
    """
    if path is None:
        return others
    members = open_tensors(path)
    found: dict[str, TensorFile] = {}
    for name, known in NAMES.items():
        for member in known:
            if member in members:
                found[name] = _renamed(members[member], name)
                break
    for member, names in STACKED.items():
        file = members.get(member)
        if file is not None and file.shape and file.shape[0] % 3 == 0:
            shape = (file.shape[0] // 3, *file.shape[1:])
            for part, name in enumerate(names):
                found[name] = Third(name, file.path, file.member, shape, file.dtype, part)
    if not found:
        raise FileError(
            f"{path} holds no weights under names that attnscope knows: it has"
            f" {', '.join(list(members)[:8])}.",
            hint="W_Q, W_K, W_V, W_O, b_Q, b_K, b_V, b_O; or one by one: --wq FILE:NAME",
        )
    _check_not_one_head(path, found)
    return found | others


def _check_not_one_head(path: Path, found: dict[str, TensorFile]) -> None:
    """Raise a FileError for the weights of one head, as `attnscope model --save` writes them."""
    shapes = {name: file.shape for name, file in found.items()}
    if not {"W_Q", "W_K", "W_V", "W_O"} <= shapes.keys() or len(shapes["W_Q"]) != 2:
        return
    d_head, d_feat = shapes["W_Q"]
    alike = shapes["W_Q"] == shapes["W_K"] == shapes["W_V"]
    if alike and shapes["W_O"] == (d_feat, d_head) and d_head < d_feat:
        raise FileError(
            f"{path} holds one head: W_Q, W_K and W_V are {d_head}×{d_feat}, and W_O is"
            f" {d_feat}×{d_head}. mha takes the weights of all heads: {d_feat}×{d_feat}.",
            hint="the weights of a whole layer; or attnscope model MODEL --text TEXT --steps, which"
            " shows what the heads of a layer compute",
        )


def _renamed(file: TensorFile, name: str) -> TensorFile:
    return TensorFile(name, file.path, file.member, file.shape, file.dtype)
