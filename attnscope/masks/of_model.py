"""The masks of a model's layers, with what they amount to."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

from attnscope.base.errors import OptionError
from attnscope.base.process.progress import Progress
from attnscope.base.spelling import spelled
from attnscope.masks.kinds import named
from attnscope.masks.result import AttentionMask, AttentionMasks
from attnscope.masks.summary import mask_of_tensor
from attnscope.model.masks.model_masks import LayerGroup, model_masks
from attnscope.model.masks.options import ModelMaskOptions


def masks_of_model(
    model: Any,
    args: Sequence[Any],
    options: ModelMaskOptions,
    block: tuple[int, int],
    progress: Progress,
) -> AttentionMasks:
    """Run a model, and return the masks of all layers; see `attnscope.mask`."""
    from attnscope.base.process.devices import check_device_name
    from attnscope.base.process.memory import check_imports, return_freed_memory

    if args:
        options = replace(options, text=_positional_text(args, options.text))
    _check_inputs(model, options)
    check_device_name(options.device)
    check_imports(transformers=True)
    return_freed_memory()
    found = model_masks(model, options, progress)
    masks = [_mask(group, block) for group in found.groups]
    return AttentionMasks(found.name, found.name, masks, None, found.checks, found.notices)


def _positional_text(args: Sequence[Any], text: Any) -> Any:
    """Return the text of a model that is given by position, one or several in a list.

    Raises:
        OptionError: there are several, or it is something else.
    """
    [first, *more] = args
    texts = [first] if isinstance(first, str) else first if isinstance(first, list | tuple) else [first]
    if more or text is not None or not all(isinstance(each, str) for each in texts):
        raise OptionError(
            "a model reads a text, or a list of several.", hint='text="…", or ids=… for its tokens'
        )
    return first


def _check_inputs(subject: Any, inputs: ModelMaskOptions) -> None:
    """Raise an OptionError if a model has no input, or several."""
    names, texts = inputs.names, inputs.several
    if not names:
        raise OptionError(
            f"{named(subject)} is a model, whose masks depend on its input.", hint=spelled(text="…")
        )
    if len(names) > 1:
        both = " and ".join(map(spelled, names[:2]))
        raise OptionError(f"{both} are two inputs.", hint="one of them")
    for name in ("pair", "target"):
        if texts and getattr(inputs, name) is not None:
            one_text = f"{spelled(name)} goes with one {spelled('text')}"
            raise OptionError(f"{one_text}, and there are {len(texts)}.")
    if inputs.packed and not texts:
        raise OptionError(
            f"{spelled('packed')} puts several texts into one row.", hint=spelled(text=["…", "…"])
        )


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
