"""The masks of a model's layers, with what they amount to."""

from __future__ import annotations

from typing import Any

from attnscope.base.process.progress import Progress
from attnscope.masks.result import AttentionMask, AttentionMasks
from attnscope.masks.summary import mask_of_tensor
from attnscope.model.masks.model_masks import LayerGroup, model_masks
from attnscope.model.masks.options import InputOptions, LayerOptions


def masks_of_model(
    model: Any,
    inputs: InputOptions,
    layers: LayerOptions,
    block: tuple[int, int],
    progress: Progress,
    processors: tuple[Any, Any] = (None, None),
) -> AttentionMasks:
    """Run a model, and return the masks of all layers."""
    from attnscope.base.process.devices import check_device_name
    from attnscope.base.process.memory import check_imports, return_freed_memory

    check_device_name(layers.device)
    check_imports(transformers=True)
    return_freed_memory()
    found = model_masks(model, inputs, layers, progress, processors)
    masks = [_mask(group, block) for group in found.groups]
    return AttentionMasks(found.name, found.name, masks, None, found.checks, found.notices)


def _mask(group: LayerGroup, block: tuple[int, int]) -> AttentionMask:
    """Return the mask of some layers, with its counts."""
    first = group.masks[0]
    kinds = dict.fromkeys(
        ", ".join(filter(None, (each.kind, f"window {each.window}" if each.window else "")))
        for each in group.masks
    )
    return mask_of_tensor(
        group.visible,
        block,
        stack=first.stack,
        layers=[each.layer for each in group.masks],
        n_layer=first.n_layer,
        kinds=[kind for kind in kinds if kind],
        kernel=first.kernel,
        received=first.received,
        query_tokens=group.query_tokens,
        key_tokens=group.key_tokens,
    )
