"""Check whether a model's default attention and its eager attention mask the same keys.

transformers passes no mask if the fused kernel does not need one, and relies on the module's `is_causal`
instead. If a family sets that wrong, a model attends in both directions by default, but is causal with
eager attention (PaliGemma's text), and either is the model's own behaviour.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

from attnscope.models.attention_hook import AttentionCall, AttentionInputs, observing
from attnscope.models.load import set_attention

if TYPE_CHECKING:
    import torch

SOME = 8
"""The number of tokens used to find out which keys a query can attend to."""

FAR = 0.1
"""The largest difference of outputs, relative to the largest output, that is attributed to rounding."""


def notice_of_masks(name: str, model: Any, run: Callable[[], Any]) -> str | None:
    """Return a notice if a model's queries attend to other keys with eager attention; None if not.

    Args:
        name: the model's name as the user gave it.
        model: as `load_model` returned it. It runs twice, and is left unchanged.
        run: runs it on a few tokens.
    """
    if model.config._attn_implementation == "eager":
        return None
    default = _visible(model, run)
    with _eager(model):
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
    """Return a notice if a model's output differs with eager attention; None if not.

    Args:
        name: the model's name as the user gave it.
        default, eager: its output by default and with eager attention.
    """
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


@contextmanager
def _eager(model: Any) -> Iterator[None]:
    """Switch a model to eager attention temporarily."""
    before = set_attention(model, "eager")
    try:
        yield
    finally:
        for config, implementation in before:  # the whole before its parts, as modules are listed
            config._attn_implementation = implementation


def _visible(model: Any, run: Callable[[], Any]) -> dict[str, torch.Tensor]:
    """Mark the keys that each query of a run's first sequence sees, by module: `n_Q n_K`."""
    visible: dict[str, torch.Tensor] = {}

    def see(call: AttentionCall) -> None:
        visible[call.path] = _visible_keys(call)

    with observing(model, see):
        run()
    return visible


def _visible_keys(inputs: AttentionInputs) -> torch.Tensor:
    """Mark the keys to which each query of the first sequence can attend in any head: `n_Q n_K`."""
    import torch

    from attnscope.attention.masks import visible_in_model

    n_Q, n_K = inputs.query.shape[-2], inputs.key.shape[-2]
    visible = torch.ones(n_Q, n_K, dtype=torch.bool)
    for added in (inputs.added_mask(), inputs.position_bias):
        if added is None:
            continue
        seen = visible_in_model(added[..., :n_K])
        visible &= seen.expand(*seen.shape[:-2], n_Q, n_K).reshape(-1, n_Q, n_K).cpu()[0]
    return visible
