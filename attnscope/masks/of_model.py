"""The masks of a model's layers, with what they amount to."""

from __future__ import annotations

from typing import Any

from attnscope.masks.planes import planes_of_matrix
from attnscope.masks.result import AttentionMask, AttentionMasks
from attnscope.masks.summary import mask_of_planes
from attnscope.models.masks.model_masks import LayerGroup, model_masks
from attnscope.models.masks.options import InputOptions, LayerOptions
from attnscope.process.progress import Progress


def masks_of_model(
    model: Any,
    inputs: InputOptions,
    layers: LayerOptions,
    block: tuple[int, int],
    progress: Progress,
    processors: tuple[Any, Any] = (None, None),
) -> AttentionMasks:
    """Run a model, and return the masks of all layers.

    Args:
        model: as in `attention_maps`.
        inputs: one input, or several texts.
        layers: the layers to show, and how the model is run.
        block: the numbers of queries and keys in a block.
        progress: called with the progress of the work.
        processors: the tokenizer and the image processor of a loaded model.
    """
    from attnscope.process.devices import check_device_name
    from attnscope.process.memory import check_imports, return_freed_memory

    check_device_name(layers.device)
    check_imports(transformers=True)
    return_freed_memory()
    found = model_masks(model, inputs, layers, progress, processors)
    masks = [_mask(group, block) for group in found.groups]
    return AttentionMasks(found.name, found.name, masks, None, found.checks, found.notices)


def _mask(group: LayerGroup, block: tuple[int, int]) -> AttentionMask:
    """Return the mask of some layers, with its counts."""
    first, visible = group.masks[0], group.visible
    sizes = dict(zip(("n_batch", "n_head", "n_Q", "n_K"), visible.shape, strict=True))
    kinds = dict.fromkeys(
        ", ".join(filter(None, (each.kind, f"window {each.window}" if each.window else "")))
        for each in group.masks
    )
    return mask_of_planes(
        planes_of_matrix(visible, sizes),
        sizes,
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
