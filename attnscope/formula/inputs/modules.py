"""Create the module of multi-head attention, with weights from files or random ones."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from attnscope.base.errors import OptionError
from attnscope.base.spelling import spelled
from attnscope.formula.inputs.resolve import RunInputs

if TYPE_CHECKING:
    from attnscope.attention.mha import MultiHeadAttention


def has_biases(bias: bool | None, inputs: RunInputs) -> bool:
    """Decide whether the module has biases: as requested, else as the files have, else True."""
    files = [name for name in inputs.files if name[0] in "Wb"]
    biases = [name for name in files if name[0] == "b"]
    if bias is False and biases:
        raise OptionError(
            f"{spelled(bias=False)} contradicts {inputs.files[biases[0]]}, which gives {biases[0]}.",
            hint=f"leave out {spelled(bias=False)}",
        )
    if bias is None:
        return bool(biases) or not files
    return bias


def module_of(
    sizes: dict[str, int], inputs: RunInputs, bias: bool, device: str, **options: Any
) -> MultiHeadAttention:
    """Return the module, with weights from files, or else initialized as in `nn.Linear`.

    If any weight is from a file, missing biases are 0.
    """
    import torch

    from attnscope.attention.mha import MultiHeadAttention

    module = MultiHeadAttention(
        d_feat=sizes["d_feat"],
        n_head=sizes["n_head"],
        n_kv_head=sizes.get("n_kv_head"),
        d_head=sizes["d_head"],
        d_V=sizes.get("d_V"),
        d_context=sizes.get("d_context"),
        bias=bias,
        dtype=getattr(torch, inputs.dtype),
        device=device,
        **options,
    )
    from_files = any(name[0] in "Wb" for name in inputs.files)
    with torch.no_grad():
        for name in "QKVO":
            layer = getattr(module, f"W_{name}")
            if f"W_{name}" in inputs.files:
                layer.weight.copy_(inputs.tensor(f"W_{name}", layer.weight.shape, device))
            if f"b_{name}" in inputs.files:
                layer.bias.copy_(inputs.tensor(f"b_{name}", layer.bias.shape, device))
            elif bias and from_files:
                layer.bias.zero_()
    return module


def numbers_in(sizes: dict[str, int], bias: bool) -> int:
    """Return the number of parameters of the four projections."""
    d_feat, d_head, n_head = sizes["d_feat"], sizes["d_head"], sizes["n_head"]
    d_V, d_context = sizes.get("d_V", d_head), sizes.get("d_context", d_feat)
    n_kv_head = sizes.get("n_kv_head", n_head)
    matrices = [
        (d_feat, n_head * d_head),
        (d_context, n_kv_head * d_head),
        (d_context, n_kv_head * d_V),
        (n_head * d_V, d_feat),
    ]
    return sum((d_in + bias) * d_out for d_in, d_out in matrices)
