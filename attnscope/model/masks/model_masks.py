"""Run a model on an input, and collect the masks of all layers."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import nullcontext
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any

from attnscope.base.errors import ModelError, OptionError
from attnscope.base.process.progress import Progress, stage
from attnscope.base.spelling import spelled, spelled_any
from attnscope.document.result import Check
from attnscope.model.files.indices import check_indices, parse_indices
from attnscope.model.files.loaded import LoadedModel
from attnscope.model.masks.inputs import MaskedBatch, read_texts
from attnscope.model.masks.options import ModelMaskOptions
from attnscope.model.masks.seen_keys import ObservedMask, observe_masks
from attnscope.model.run.read_inputs import read_inputs
from attnscope.model.run.tokens import Token

if TYPE_CHECKING:
    import torch

    from attnscope.model.files.checkpoint import Checkpoint
    from attnscope.model.run.open import OpenedModel

CALLED = ("sdpa", "eager")
"""The kernels that run everywhere; others are not called, if the user selects them."""

SUPPORTED = {"sdpa": "_supports_sdpa", "flex_attention": "_supports_flex_attn"}
"""The attributes of models that tell whether they support a kernel."""


@dataclass
class LayerGroup:
    """Layers of one stack whose queries see the same keys."""

    #: what was observed in each of them; all have the same `visible`.
    masks: list[ObservedMask]
    #: query_tokens, key_tokens: the tokens of each sequence; None: unknown.
    query_tokens: list[list[Token]] | None = None
    key_tokens: list[list[Token]] | None = None

    @property
    def visible(self) -> torch.Tensor:
        """True where a query sees a key, `n_batch n_head n_Q n_K`."""
        return self.masks[0].visible


@dataclass
class ModelMasks:
    """The masks of a model's layers for one input."""

    name: str
    #: layers that share a mask, in the order of the first of them.
    groups: list[LayerGroup]
    #: comparisons with the kernels themselves; None if none were made.
    checks: list[Check] | None = None
    notices: list[str] = field(default_factory=list)


def model_masks(model: Any, options: ModelMaskOptions, progress: Progress) -> ModelMasks:
    """Run a model once, and return the masks of all layers."""
    from attnscope.base.process.devices import check_device
    from attnscope.model.run.load import as_model_error
    from attnscope.model.run.open import open_model

    opening = open_model(
        model,
        options.device,
        dtype=options.dtype,
        tokenizer=options.tokenizer,
        image_processor=options.image_processor,
        progress=progress,
    )
    with opening as opened:
        checkpoint, layers = opened.checkpoint, parse_indices("layers", options.layer)
        check_device(options.device)
        with opened.loading():
            loaded, batch = _load(opened, options)
        with stage(progress, f"running {checkpoint.name} …"), as_model_error(checkpoint):
            masks = _observe(loaded, batch, options.kernel, measures=False)
            notices = [*batch.notices, *_not_observed(checkpoint, loaded, batch, masks)]
            chosen = _chosen(checkpoint.name, loaded, masks, layers, options.stack)
            checks = None
            if options.verify:
                measured = _observe(loaded, batch, options.kernel, measures=True)
                checks = _checks(chosen, measured)
    groups = _groups(chosen, batch)
    return ModelMasks(checkpoint.name, groups, checks, notices + _notices(options.kernel, chosen))


def _load(opened: OpenedModel, options: ModelMaskOptions) -> tuple[Any, MaskedBatch]:
    """Load a model and its input."""
    from attnscope.model.run.forward import give_target
    from attnscope.model.run.load import disable_cache
    from attnscope.model.run.tokenize import check_reads

    checkpoint, config = opened.checkpoint, opened.config
    reading = None
    if options.several is None:
        reading = read_inputs(options.single, checkpoint, config)
    else:
        check_reads(checkpoint, config, "text")
        packed, truncate = options.packed, options.truncate
        batch = read_texts(checkpoint, config, options.several, packed=packed, truncate=truncate)
    opened.check_weights_fit(what="masks")
    own = checkpoint.module.config._attn_implementation if isinstance(checkpoint, LoadedModel) else None
    called = options.kernel if options.kernel in CALLED else None
    model = opened.load(attention=called or own)
    disable_cache(model)
    if reading is not None:
        reading.to(opened.device)
        if options.target is not None:
            give_target(checkpoint, model, reading)
        batch = MaskedBatch.of(reading)
    batch.inputs = {name: tensor.to(model.device) for name, tensor in batch.inputs.items()}
    _check_kernel(checkpoint.name, model, options.kernel)
    return model, batch


def _check_kernel(name: str, model: Any, kernel: str | None) -> None:
    """Raise an OptionError if there is no such kernel, or a model does not support it."""
    from transformers.modeling_utils import ALL_ATTENTION_FUNCTIONS

    if kernel is None or kernel == "eager":
        return
    known = ["eager", *(each for each in ALL_ATTENTION_FUNCTIONS if "|" not in each)]
    if kernel not in known:
        raise OptionError(
            f"there is no kernel {kernel!r}.", hint=spelled_any("kernel", sorted(known), ", ")
        )
    attribute = "_supports_flash_attn" if "flash" in kernel else SUPPORTED.get(kernel)
    if attribute is not None and not getattr(model, attribute, False):
        raise OptionError(
            f"{name} is a {type(model).__name__}, which does not support {kernel}.",
            hint=spelled(kernel="eager"),
        )


def _observe(
    model: Any, batch: MaskedBatch, kernel: str | None, *, measures: bool
) -> list[ObservedMask]:
    """Run a model, and return the masks of all layers in order."""
    import torch

    from attnscope.model.run.forward import run as run_model
    from attnscope.model.run.load import switched_attention

    computes = kernel is None or kernel in CALLED
    if measures and not computes:
        raise OptionError(
            f"{spelled('verify')} asks the kernel itself, and {kernel} is not called here.",
            hint=f"a loaded model that uses it, in Python; or without {spelled(verify=True)}",
        )
    # Compiling the code that makes block masks would take many seconds.
    compiling = nullcontext() if computes else torch.compiler.set_stance("force_eager")
    with nullcontext() if kernel is None else switched_attention(model, kernel), compiling:
        return observe_masks(
            model, lambda: run_model(model, batch, logits=False), computes=computes, measures=measures
        )


def _not_observed(
    checkpoint: Checkpoint, model: Any, batch: MaskedBatch, masks: list[ObservedMask]
) -> list[str]:
    """Add the masks of stacks that do not call the registry, from their own weights; return notices."""
    from attnscope.model.run.layers import stacks_that_run

    runs = stacks_that_run(model.config, picture=batch.picture is not None, decodes=bool(batch.target))
    missing = [stack for stack in runs if all(each.stack != stack for each in masks)]
    if not missing:
        return []
    found = list(_from_weights(checkpoint, model, batch, missing))
    left = [stack for stack in missing if all(each.stack != stack for each in found)]
    if left:
        raise ModelError(
            f"{checkpoint.name} is a {type(model).__name__}, which neither calls attention through"
            " transformers' registry nor returns its weights: what its queries see is unknown.",
            hint="a model with attention",
        )
    masks += found
    return [
        f"{checkpoint.name} does not call attention through transformers' registry: a key counts as"
        " visible if its weight is not 0 in the model's own attention."
    ]


def _from_weights(
    checkpoint: Checkpoint, model: Any, batch: MaskedBatch, stacks: Sequence[str]
) -> Iterator[ObservedMask]:
    """Yield masks that follow from the weights that a model returns."""
    from attnscope.model.run.eager import returned_maps
    from attnscope.model.run.forward import run as run_model
    from attnscope.model.run.load import load_eager

    eager = load_eager(checkpoint, model)
    output = run_model(eager, batch, output_attentions=True)
    picture = batch.picture is not None
    for stack, maps in returned_maps(checkpoint.name, output, model.config, picture=picture):
        for layer, weights in enumerate(maps if stack in stacks else ()):
            if weights is None:
                continue
            visible = (weights != 0).cpu()
            if bool((visible == visible[:, :1]).all()):
                visible = visible[:, :1]
            yield ObservedMask(
                stack, layer, len(maps), "", None, None, "own code", "unknown", visible, True
            )


def _chosen(
    name: str, model: Any, masks: list[ObservedMask], layers: list[int] | None, stack: str | None
) -> list[ObservedMask]:
    """Return the masks of the selected layers."""
    stacks = list(dict.fromkeys(each.stack for each in masks))
    if stack is not None and stack not in stacks:
        raise OptionError(
            f"{name} runs no {stack} attention for this input: it has {', '.join(stacks)}.",
            hint=spelled(target="…") if model.config.is_encoder_decoder else spelled(stack=stacks[0]),
        )
    kept = [stack] if stack is not None else stacks
    check_indices(
        name,
        kept,
        layers or [],
        [],
        n_layer={each.stack: each.n_layer for each in masks},
        n_head={(each.stack, each.layer): 1 for each in masks},
    )
    return [each for each in masks if each.stack in kept and (layers is None or each.layer in layers)]


def _groups(masks: Sequence[ObservedMask], batch: MaskedBatch) -> list[LayerGroup]:
    """Group layers of one stack whose queries see the same keys through the same kernel."""
    import torch

    groups: list[LayerGroup] = []
    for mask in masks:
        for group in groups:
            first = group.masks[0]
            same = (first.stack, first.kernel) == (mask.stack, mask.kernel)
            if (
                same
                and first.visible.shape == mask.visible.shape
                and torch.equal(first.visible, mask.visible)
            ):
                group.masks.append(replace(mask, visible=first.visible))
                break
        else:
            n_Q, n_K = mask.visible.shape[-2:]
            queries, keys = batch.tokens(mask.stack, "Q", n_Q), batch.tokens(mask.stack, "K", n_K)
            groups.append(LayerGroup([mask], queries, keys))
    return groups


def _checks(masks: Sequence[ObservedMask], measured: Sequence[ObservedMask]) -> list[Check]:
    """Compare masks with what the kernels do, once for each kernel and stack."""
    import torch

    of_path: dict[str, list[ObservedMask]] = {}
    for each in measured:
        of_path.setdefault(each.path, []).append(each)
    differing: dict[str, list[int]] = {}
    for mask in masks:
        name = f"{mask.kernel} itself" if mask.stack == "self" else f"{mask.kernel} itself, {mask.stack}"
        calls = of_path.get(mask.path)
        if mask.measured or not calls:
            continue
        other = calls.pop(0).visible
        seeing = mask.visible.any(-1, keepdim=True)
        differing.setdefault(name, []).append(int(torch.count_nonzero(seeing & (mask.visible != other))))
    note = "pairs that the kernel sees differently, for queries that see a key"
    return [Check.within(name, float(sum(counts)), 0.0, note) for name, counts in differing.items()]


def _notices(kernel: str | None, masks: Sequence[ObservedMask]) -> list[str]:
    """Say which kernels were not called, and which were measured."""
    notices = []
    if kernel is not None and kernel not in CALLED:
        notices.append(f"{kernel} was not called: this is what it would see of its arguments.")
    if kernels := sorted({each.kernel for each in masks if each.measured and each.path}):
        notices.append(
            f"what {', '.join(kernels)} does with its arguments is unknown, so it was called with"
            " queries and keys of zeros: a key is visible if it gets a weight."
        )
    return notices
