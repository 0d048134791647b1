"""The masks of a model's layers, with what they amount to."""

from __future__ import annotations

from typing import Any

from attnscope.masks.matrices import planes_of_matrix
from attnscope.masks.options import InputOptions, LayerOptions
from attnscope.masks.result import AttentionMask, AttentionMasks
from attnscope.masks.summary import mask_of_planes
from attnscope.models.masks.model_masks import LayerGroup, MaskRun, model_masks
from attnscope.models.options import ReadOptions
from attnscope.process.progress import Progress


def masks_of_model(
    model: Any,
    inputs: InputOptions,
    layers: LayerOptions,
    block: tuple[int, int],
    progress: Progress,
    **processors: Any,
) -> AttentionMasks:
    """Run a model, and return the masks of all layers.

    Args:
        model: as in `attention_maps`.
        inputs: one input, or several texts.
        layers: the layers to show, and how the model is run.
        block: the numbers of queries and keys in a block.
        progress: called with the progress of the work.
        processors: the tokenizer and image processor of a loaded model.
    """
    from attnscope.process.devices import check_device_name
    from attnscope.process.memory import check_imports, return_freed_memory

    check_device_name(layers.device)
    check_imports(transformers=True)
    return_freed_memory()
    texts = inputs.text if inputs.text is not None and len(inputs.text) > 1 else None
    text = inputs.text[0] if inputs.text and texts is None else None
    single = ReadOptions(
        text=text,
        file=inputs.file,
        ids=inputs.ids,
        tokens=inputs.tokens,
        pair=inputs.pair,
        target=inputs.target,
        image=inputs.image,
        truncate=inputs.truncate,
    )
    run = MaskRun(
        texts,
        inputs.packed,
        single,
        layers.layer,
        layers.stack,
        layers.kernel,
        layers.verify,
        layers.dtype,
        layers.device,
    )
    found = model_masks(model, run, progress, **processors)
    masks = [_mask(group, block) for group in found.groups]
    return AttentionMasks(found.name, found.name, masks, None, found.checks, found.notices)


def _mask(group: LayerGroup, block: tuple[int, int]) -> AttentionMask:
    """Return the mask of some layers, with its counts."""
    first, visible = group.masks[0], group.visible
    sizes = dict(zip(("n_batch", "n_head", "n_Q", "n_K"), visible.shape, strict=True))
    windows = [f"window {each.window}" if each.window else "" for each in group.masks]
    kinds = dict.fromkeys(
        ", ".join(filter(None, (each.kind, window)))
        for each, window in zip(group.masks, windows, strict=True)
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
