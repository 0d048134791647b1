"""Check whether a model's default attention and its eager attention mask the same keys.

transformers passes no mask if the fused kernel does not need one, and relies on the module's `is_causal`
instead. If a family sets that wrong, a model attends in both directions by default, but is causal with
eager attention (PaliGemma's text), and either is the model's own behaviour.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from attnscope.model.masks.visible import arguments_of, visible_keys
from attnscope.model.run.attention_hook import KernelCall, intercepted
from attnscope.model.run.load import switched_attention

if TYPE_CHECKING:
    import torch

SOME = 8
"""The number of tokens used to find out which keys a query can attend to."""

FAR = 0.1
"""The largest difference of outputs, relative to the largest output, that is attributed to rounding."""


def notice_of_masks(name: str, model: Any, run: Callable[[], Any]) -> str | None:
    """Return a notice if a model's queries attend to other keys with eager attention; None if not."""
    if model.config._attn_implementation == "eager":
        return None
    default = _visible(model, run)
    with switched_attention(model, "eager"):
        try:
            eager = _visible(model, run)
        except Exception:  # its eager attention does not run, so there is nothing to compare with
            return None
    for path, keys in default.items():
        other = eager.get(path)
        if other is None or other.shape != keys.shape or bool((other == keys).all()):
            continue
        query = int((other != keys).any(-1).nonzero()[0])
        counts = [int(each[query].sum()) for each in (keys, other)]
        return (
            f"{name} attends differently by default and with eager attention: in {path}, query {query}"
            f" sees {counts[0]} of {keys.shape[-1]} keys by default and {counts[1]} with eager."
            " The default is shown."
        )
    return None


def notice_of_outputs(name: str, default: torch.Tensor, eager: torch.Tensor) -> str | None:
    """Return a notice if a model's output differs with eager attention; None if not."""
    largest = float(default.abs().max())
    if default.shape != eager.shape or largest == 0:
        return None
    difference = float((default - eager).abs().max())
    if not difference > FAR * largest:
        return None
    return (
        f"{name} computes different outputs by default and with eager attention: they differ by up"
        f" to {difference:.2g}, with values up to {largest:.2g}. Eager attention is shown."
    )


def _visible(model: Any, run: Callable[[], Any]) -> dict[str, torch.Tensor]:
    """Mark the keys that each query of a run's first sequence sees in its first head, by module."""
    visible: dict[str, torch.Tensor] = {}

    def see(call: KernelCall) -> Any:
        keys = visible_keys(arguments_of(call))
        if keys is not None:
            visible[call.path] = keys[0, 0].cpu()
        return call.compute()

    with intercepted(model, see, kernels=("sdpa", "eager")):
        run()
    return visible
