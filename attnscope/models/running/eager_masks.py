"""Check whether a model's default attention and its eager attention see the same keys.

transformers leaves a mask out where the fused kernel can do without it, and masks by what a module says
of itself instead. Where a family gets that wrong, a model looks both ways by default and only back with
eager attention (PaliGemma's text), and both are the model's own.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

from attnscope.models.running.attention_hook import Call, Handed, observing
from attnscope.models.running.load import set_attention

if TYPE_CHECKING:
    import torch

SOME = 8
"""How many tokens are read to see which keys a query may look at."""

FAR = 0.1
"""How far outputs may be apart, in parts of the largest, before it is more than rounding."""


def unlike_eager(name: str, model: Any, run: Callable[[], Any]) -> str | None:
    """What to tell of a model whose queries see other keys with eager attention; None if there are none.

    Args:
        name: what the user called it.
        model: as `load_model` returned it. It runs twice, and is left as it was.
        run: lets it read a few tokens.
    """
    if model.config._attn_implementation == "eager":
        return None
    usual = _visible(model, run)
    with _eager(model):
        try:
            eager = _visible(model, run)
        except Exception:  # its eager attention does not run: then there is nothing to compare with
            return None
    for path, keys in usual.items():
        other = eager.get(path)
        if other is None or other.shape != keys.shape or bool((other == keys).all()):
            continue
        query = int((other != keys).any(-1).nonzero()[0])
        counts = [int(each[query].sum()) for each in (keys, other)]
        return (
            f"{name} does not attend alike by default and with eager attention: in {path}, query {query}"
            f" sees {counts[0]} of {keys.shape[-1]} keys by default and {counts[1]} with eager. What is"
            " shown is the default."
        )
    return None


def outputs_unlike(name: str, usual: torch.Tensor, eager: torch.Tensor) -> str | None:
    """What to tell of a model that computes something else with eager attention; None if it does not.

    Args:
        name: what the user called it.
        usual, eager: its output by default and with eager attention.
    """
    largest = float(usual.abs().max())
    if usual.shape != eager.shape or largest == 0:
        return None
    difference = float((usual - eager).abs().max())
    if not difference > FAR * largest:
        return None
    return (
        f"{name} computes something else by default than with eager attention: its outputs are up to"
        f" {difference:.2g} apart, and {largest:.2g} at most. What is shown is eager attention's."
    )


@contextmanager
def _eager(model: Any) -> Iterator[None]:
    """Have a model attend eagerly for a while."""
    before = set_attention(model, "eager")
    try:
        yield
    finally:
        for config, implementation in before:  # the whole before its parts, as modules are listed
            config._attn_implementation = implementation


def _visible(model: Any, run: Callable[[], Any]) -> dict[str, torch.Tensor]:
    """Which keys each query of the first sequence may look at, by the module that attends: `n_Q n_K`."""
    visible: dict[str, torch.Tensor] = {}

    def see(call: Call) -> None:
        visible[call.path] = _keys_seen(call)

    with observing(model, see):
        run()
    return visible


def _keys_seen(handed: Handed) -> torch.Tensor:
    """Which keys each query of the first sequence may look at, in any head: `n_Q n_K`."""
    import torch

    n_Q, n_K = handed.query.shape[-2], handed.key.shape[-2]
    seen = torch.ones(n_Q, n_K, dtype=torch.bool)
    for added in (handed.added_mask(), handed.position_bias):
        if added is None:
            continue
        hidden = added[..., :n_K] <= torch.finfo(added.dtype).min / 2
        seen &= ~hidden.expand(*hidden.shape[:-2], n_Q, n_K).reshape(-1, n_Q, n_K).cpu()[0]
    return seen
