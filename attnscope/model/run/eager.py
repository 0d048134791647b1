"""Decide when to fall back to a model's own eager attention, and validate the maps that it returns.

The returned maps need care. Hybrids such as LFM2 return only the maps of layers with attention, without
their indices; and if sinks take their part after the softmax, as in granite, the returned maps are not
the weights that were used.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Mapping
from typing import TYPE_CHECKING, Any

from attnscope.base.errors import ModelError
from attnscope.model.masks.visible import arguments_of, visible_keys
from attnscope.model.run.attention_hook import KernelCall, intercepted
from attnscope.model.run.layers import stacks_that_run
from attnscope.model.run.load import switched_attention

if TYPE_CHECKING:
    import torch


def why_eager(
    name: str, stacks: Collection[str], unexplained: Mapping[str, str], captured: Collection[str]
) -> dict[str, str]:
    """Return the stacks whose weights have to come from eager attention, with the reasons."""
    reasons = {}
    for stack in stacks:
        if stack in unexplained:
            reasons[stack] = (
                f"the captured inputs of {name}'s attention do not reproduce its output:"
                f" {unexplained[stack]}"
            )
        elif stack not in captured:
            reasons[stack] = f"{name} does not call attention through transformers' registry"
    return reasons


def returned_maps(name: str, output: Any, config: Any, *, picture: bool) -> Iterator[tuple[str, Any]]:
    """Yield the maps of all layers that a model returned, by stack: `n_batch n_head n_Q n_K` each."""
    names = {
        "encoder": "encoder_attentions",
        "decoder": "decoder_attentions",
        "cross": "cross_attentions",
    }
    if "encoder_attentions" not in output:
        names = {stacks_that_run(config, picture=picture, decodes=False)[0]: "attentions"}
    for stack, key in names.items():
        maps = output.get(key)
        if not maps:
            continue
        if hasattr(config, "attention_window") and stack in ("self", "encoder"):
            raise ModelError(
                f"{name} ({config.model_type}) attends within a window around each token and"
                " returns weights by distance, which are not a map of its tokens."
            )
        n_layer = getattr(config, "num_hidden_layers", len(maps))
        if stack == "self" and len(maps) > n_layer:
            raise ModelError(
                f"{name} ({config.model_type}) returns {len(maps)} maps for its {n_layer} layers:"
                " it also attends outside of them, and which maps belong to which layer is unknown."
            )
        if stack == "self" and len(maps) != n_layer:
            raise ModelError(
                f"{name} returns the maps of {len(maps)} of its {n_layer} layers, and which ones"
                " is unknown."
            )
        for attention in maps:
            _check_is_map(name, config, attention)
        yield stack, maps


def check_returned(
    name: str,
    model: Any,
    stacks: Collection[str],
    found: Collection[str],
    *,
    other: str = "a model with attention",
) -> None:
    """Raise a ModelError if a model returned no weights of a stack that is needed."""
    missing = sorted(set(stacks) - set(found))
    if missing:
        alone = missing == ["self"]
        raise ModelError(
            f"{name} is a {type(model).__name__}, which returns no attention"
            f" weights{'' if alone else f' in its {missing[0]}'}.",
            hint="a model with attention" if alone else other,
        )


def _check_is_map(name: str, config: Any, attention: Any) -> None:
    """Raise a ModelError unless a model returned a map, or None, for a layer."""
    shape = getattr(attention, "shape", None)
    if attention is None or (shape is not None and len(shape) == 4):
        return
    what = f"of the shape {tuple(shape)}" if shape is not None else f"as a {type(attention).__name__}"
    raise ModelError(
        f"{name} ({config.model_type}) returns weights {what}, which are not a map of its tokens"
        " for each head."
    )


# Whether a model's default attention and its eager attention mask the same keys.

SOME = 8
"""The number of tokens used to find out which keys a query can attend to."""

FAR = 0.1
"""The largest difference of outputs, relative to the largest output, that is attributed to rounding."""


def notice_of_masks(name: str, model: Any, run: Callable[[], Any]) -> str | None:
    """Return a notice if a model's queries attend to other keys with eager attention; None if not.

    transformers passes no mask if the fused kernel does not need one, and relies on the module's
    `is_causal` instead. If a family sets that wrong, a model attends in both directions by default, but
    is causal with eager attention (PaliGemma's text), and either is the model's own behaviour.
    """
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
