"""Run a model once, and return the keys that the queries of each of its layers see."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from attnscope.model.masks.visible import MaskArguments, arguments_of, measured_keys, visible_keys
from attnscope.model.run.attention_hook import KernelCall, intercepted, is_cross
from attnscope.model.run.layers import layer_of, stack_of

if TYPE_CHECKING:
    import torch


@dataclass(frozen=True)
class ObservedMask:
    """The keys that the queries of one layer see."""

    stack: str
    layer: int
    n_layer: int
    path: str
    #: the kind of layer according to the model: `sliding_attention`, `chunked_attention`, …; None: it
    #: does not say.
    kind: str | None
    #: the `sliding_window` that the model passes to the kernel, whether that uses it or not.
    window: int | None
    kernel: str
    #: what the kernel received, in words.
    received: str
    #: True where a query sees a key, `n_batch n_head n_Q n_K` on the CPU; `n_head` is 1 if all heads see
    #: the same.
    visible: torch.Tensor = field(repr=False)
    #: whether the kernel itself was asked, as its arguments are not understood.
    measured: bool = False


def observe_masks(
    model: Any, run: Callable[[], Any], *, computes: bool = True, measures: bool = False
) -> list[ObservedMask]:
    """Run a model, and return the keys that the queries of each attention see, in order.

    Only attention that is called through transformers' registry is observed. A layer that attends more
    than once in the run is returned as often.

    Args:
        computes: whether kernels are called. If not, their outputs are replaced by zeros, so that also
            a kernel that cannot run on this machine is seen; masks do not depend on the outputs, unless
            layers choose their keys.
        measures: whether to ask each kernel itself, whatever its arguments say: see `measured_keys`.
    """
    masks: list[ObservedMask] = []

    def see(call: KernelCall) -> Any:
        masks.append(_mask_of(model, call, masks, measures))
        return call.compute() if computes else (_zeros(call), None)

    with intercepted(model, see):
        run()
    return masks


def _mask_of(model: Any, call: KernelCall, masks: list[ObservedMask], measures: bool) -> ObservedMask:
    """Read the mask of one call of attention."""
    arguments = arguments_of(call)
    stack = stack_of(call.path, model.config, cross=is_cross(call.path, call.module))
    known = {(each.stack, each.layer) for each in masks}
    layer, n_layer = layer_of(model, stack, call.path, known)
    visible = None if measures else visible_keys(arguments)
    measured = visible is None
    visible = (measured_keys(call) if visible is None else visible).cpu()
    return ObservedMask(
        stack,
        layer,
        n_layer,
        call.path,
        kind_of(call, model.config, layer),
        arguments.window,
        call.name,
        received(arguments),
        _shared(visible, masks),
        measured,
    )


def _shared(visible: torch.Tensor, masks: list[ObservedMask]) -> torch.Tensor:
    """Return the tensor of an earlier layer if it is the same: masks of long texts are large."""
    import torch

    for other in {id(each.visible): each.visible for each in masks}.values():
        if other.shape == visible.shape and torch.equal(other, visible):
            return other
    return visible


def kind_of(call: KernelCall, config: Any, layer: int) -> str | None:
    """Return the kind of a layer according to its module or the model's configuration."""
    from transformers.configuration_utils import ALLOWED_ATTN_LAYER_TYPES

    of_module = [getattr(call.module, name, None) for name in ("layer_type", "attention_type")]
    own = getattr(call.module, "config", None) or config.get_text_config()
    kinds = getattr(own, "layer_types", None) or []
    of_config = kinds[layer] if layer < len(kinds) else None
    names = [
        each
        for each in (*of_module, of_config)
        if isinstance(each, str) and each in ALLOWED_ATTN_LAYER_TYPES
    ]
    if names:
        return names[0]
    return None if call.options.get("sliding_window") is None else "sliding_attention"


def received(arguments: MaskArguments) -> str:
    """Describe in words what a kernel received."""
    words = [_mask_words(arguments.mask)]
    flash = "flash" in arguments.kernel
    if flash or (arguments.kernel == "sdpa" and arguments.mask is None):
        words.append(f"is_causal {arguments.is_causal}")
    if flash and arguments.window is not None:
        words.append(f"sliding_window {arguments.window}")
    if flash and arguments.lengths is not None:
        words.append(f"{len(arguments.lengths[0]) - 1} packed sequences")
    if arguments.position_bias is not None:
        words.append("a position bias")
    return ", ".join(words)


def _mask_words(mask: Any) -> str:
    """Describe a mask in words."""
    import torch

    if mask is None:
        return "no mask"
    shape = "×".join(map(str, mask.shape))
    if not isinstance(mask, torch.Tensor):
        rows, columns = mask.BLOCK_SIZE
        return f"a BlockMask {shape} of blocks {rows}×{columns}"
    dtype = str(mask.dtype).removeprefix("torch.")
    return f"a {dtype} mask {shape}"


def _zeros(call: KernelCall) -> torch.Tensor:
    """Return zeros of the shape of the output: `n_batch n_Q n_head d_V`."""
    n_batch, n_head, n_Q, _ = call.query.shape
    return call.value.new_zeros(n_batch, n_Q, n_head, call.value.shape[-1])
