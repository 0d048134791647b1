"""What the heads of a model look at, in one text or picture.

A model runs once, observed; of each layer that is wanted, the weights of the wanted heads are
computed from the queries, keys, mask and scale that its attention got, and everything else is let
go. With the same weights the values are collected again: if that is not what the model's own
attention returned, or if the model never calls attention through transformers' registry, its maps
are taken from its own eager attention instead.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from attnscope.errors import ModelError
from attnscope.models.alike import SOME, outputs_unlike, unlike_eager
from attnscope.models.checkpoint import Checkpoint
from attnscope.models.gallery import Gallery, Seen, Wanted
from attnscope.models.loading import load_eager, told_as_the_models_fault
from attnscope.models.observe import observing
from attnscope.models.reading import Reading
from attnscope.models.stacks import STACKS, counts, has_towers, stacks_that_run

if TYPE_CHECKING:
    import torch

    from attnscope.models.batches import Batch


def look(
    checkpoint: Checkpoint,
    model: Any,
    reading: Reading,
    wanted: Wanted,
    *,
    keep: str | None = None,
) -> Seen:
    """Run a model and see what its heads look at.

    Args:
        checkpoint: where the model is from; it is loaded anew if it has to run eager.
        model: as `load_model` returned it.
        reading: what it reads.
        wanted: the heads to keep.
        keep: the stack of which the first wanted layer's call of attention is kept, too.

    Raises:
        ModelError: the model has no attention, or none that can be shown as maps.
    """
    gallery = Gallery(checkpoint.name, model, reading, wanted, keep)
    with observing(model, gallery.see), told_as_the_models_fault(checkpoint):
        output = run(model, reading)
    seen = gallery.seen(main_output(output))
    stacks = wanted_stacks(model, reading, wanted)
    seen.eager = why_eager(checkpoint.name, stacks, gallery.unexplained, gallery.n_layer)
    if seen.eager:
        eager = eager_maps(checkpoint, model, reading, wanted, list(seen.eager))
        _take_eager(seen, eager)
        add_notice(seen, outputs_unlike(checkpoint.name, seen.output, eager.output), seen.eager)
    if len(seen.eager) < len(stacks) and not reading.picture:
        few = first_tokens(reading, SOME)
        add_notice(seen, unlike_eager(checkpoint.name, model, lambda: run(model, few, logits=False)))
    return seen


def first_tokens(reading: Reading, n: int) -> Reading:
    """What is read, cut to the first `n` tokens."""
    inputs = {name: tensor[:, :n] for name, tensor in reading.inputs.items()}
    return replace(reading, inputs=inputs, source=reading.source[:n], target=reading.target[:n])


def add_notice(seen: Seen, notice: str | None, stacks: Collection[str] | None = None) -> None:
    """Have the maps of some stacks, or of all, say something, if there is something to say."""
    for maps in seen.stacks if notice else []:
        if stacks is None or maps.stack in stacks:
            maps.notices.append(str(notice))


def wanted_stacks(model: Any, reading: Reading, wanted: Wanted) -> list[str]:
    """The stacks that a reading runs through, or the one that is wanted."""
    picture, decodes = reading.picture is not None, bool(reading.target)
    runs = stacks_that_run(model.config, picture=picture, decodes=decodes)
    return [wanted.stack] if wanted.stack else runs


def why_eager(
    name: str, stacks: Collection[str], unexplained: Mapping[str, str], seen: Collection[str]
) -> dict[str, str]:
    """Why a stack's weights have to come from the model's eager attention, of those whose have to.

    Args:
        name: what the user called the model.
        stacks: those that are needed.
        unexplained: what was wrong with some of them.
        seen: those that attended where it can be seen.
    """
    reasons = {}
    for stack in stacks:
        if stack in unexplained:
            reasons[stack] = (
                f"what {name} was seen to hand over does not explain what its attention returns:"
                f" {unexplained[stack]}"
            )
        elif stack not in seen:
            reasons[stack] = f"{name} does not call attention through transformers' registry"
    return reasons


def _take_eager(seen: Seen, eager: Seen) -> None:
    """Replace the stacks that were not seen, or not understood, by the model's own eager maps."""
    for stack in eager.stacks:
        stack.notices.append(
            f"{seen.eager[stack.stack]}. These are the maps of its own eager attention."
        )
    known = {each.stack: each for each in seen.stacks if each.stack not in seen.eager}
    known |= {each.stack: each for each in eager.stacks}
    seen.stacks = [known[stack] for stack in STACKS if stack in known]
    seen.layers = {key: n for key, n in seen.layers.items() if key[0] not in seen.eager} | eager.layers
    seen.n_layer |= eager.n_layer


def eager_maps(
    checkpoint: Checkpoint, model: Any, reading: Reading, wanted: Wanted, stacks: Collection[str]
) -> Seen:
    """The maps that a model's own eager attention returns.

    They are taken where each layer returns them, so that layers without attention do not shift the
    others' numbers; or else, as `output_attentions` has them.

    Args:
        checkpoint: where it is loaded from once more, with eager attention.
        model: the one that is there: its dtype and device are taken.
        reading, wanted: as in `look`.
        stacks: those that are needed.

    Raises:
        ModelError: it returns none for one of them, or they are not a weight for each query and key.
    """
    eager = load_eager(checkpoint, model)
    gallery = Gallery(checkpoint.name, eager, reading, wanted, stacks=stacks)
    with observing(eager, gallery.take_call), told_as_the_models_fault(checkpoint):
        output = run(eager, reading)
    for stack in gallery.unexplained:
        gallery.forget(stack)
    if not set(stacks) <= set(gallery.n_layer):
        # All maps of all layers at once: there is no other way.
        with told_as_the_models_fault(checkpoint):
            output = run(eager, reading, output_attentions=True)
        picture = reading.picture is not None
        for stack, maps in returned_maps(checkpoint.name, output, model.config, picture=picture):
            if stack not in stacks or stack in gallery.n_layer:
                continue
            for layer, attention in enumerate(maps):
                gallery.take(stack, layer, len(maps), attention)
    lacking = sorted(set(stacks) - set(gallery.n_layer))
    if lacking:
        whose = "" if lacking == ["self"] else f" in its {lacking[0]}"
        raise ModelError(
            f"{checkpoint.name} is a {type(model).__name__}, which returns no attention weights{whose}.",
            hint="a model with attention" if not whose else "another --stack",
        )
    return gallery.seen(main_output(output))


def run(model: Any, reading: Reading | Batch, *, logits: bool = True, **options: Any) -> Any:
    """Run a model, or the part of it that the reading is for, and return its output.

    Args:
        model: as `load_model` returned it.
        reading: what it reads: its inputs, on the model's device, and whether a decoder reads too.
        logits: whether to compute them: of a long text, they are the largest tensor.
        options: more for the model.
    """
    import torch

    inputs = reading.inputs | options
    call = model
    if "pixel_values" in inputs and hasattr(model, "get_image_features"):
        call = model.get_image_features
    elif has_towers(model.config) and hasattr(model, "get_text_features"):
        call = model.get_text_features
    elif model.config.is_encoder_decoder and not reading.target:
        call = model.get_encoder()
    elif not logits:
        call = model.base_model
    with torch.no_grad():
        return call(**inputs, return_dict=True)


def main_output(output: Any) -> torch.Tensor:
    """What a model computes in the end: its logits, or else its last hidden states."""
    names = [name for name in ("logits", "last_hidden_state", "pooler_output") if name in output]
    return output[names[0]] if names else next(iter(output.values()))


def bytes_of_maps(config: Any, reading: Reading, wanted: Wanted) -> int:
    """What whole maps take as float32, as far as a configuration tells."""
    n = max(len(reading.source), len(reading.labels))
    if reading.picture:
        n = reading.picture.rows * reading.picture.columns
    return 4 * n * n * number_of_maps(config, reading, wanted)


def number_of_maps(config: Any, reading: Reading, wanted: Wanted) -> int:
    """How many heads are wanted, as far as a configuration tells."""
    n_layer, n_head = counts(config, reading)
    if wanted.layers is not None:
        n_layer = 1 if wanted.layers == "first" else len(wanted.layers)
    if wanted.heads is not None:
        n_head = len(wanted.heads)
    return (n_layer or 1) * (n_head or 1)


def returned_maps(name: str, output: Any, config: Any, *, picture: bool) -> Iterator[tuple[str, Any]]:
    """The maps of all layers that a model returned, by stack: of each layer `n_batch n_head n_Q n_K`.

    Args:
        name: what the user called the model.
        output: of a run with `output_attentions`.
        config: the model's.
        picture: whether it looked at one.

    Raises:
        ModelError: they are not all layers' maps of all tokens.
    """
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
                f"{name} ({config.model_type}) attends within a band around each token, and returns"
                " weights by distance: they are no map of its tokens."
            )
        n_layer = getattr(config, "num_hidden_layers", len(maps))
        if stack == "self" and len(maps) > n_layer:
            raise ModelError(
                f"{name} ({config.model_type}) returns {len(maps)} maps for its {n_layer} layers: it"
                " attends outside of them too, and does not say which maps are whose."
            )
        if stack == "self" and len(maps) != n_layer:
            raise ModelError(
                f"{name} returns the maps of {len(maps)} of its {n_layer} layers, and does not say"
                " which."
            )
        for attention in maps:
            _check_is_map(name, config, attention)
        yield stack, maps


def _check_is_map(name: str, config: Any, attention: Any) -> None:
    """Raise a ModelError unless what a model returned for a layer is a map, or nothing."""
    shape = getattr(attention, "shape", None)
    if attention is None or (shape is not None and len(shape) == 4):
        return
    what = f"of the shape {tuple(shape)}" if shape is not None else f"as a {type(attention).__name__}"
    raise ModelError(
        f"{name} ({config.model_type}) returns weights {what}: they are no map of its tokens for each"
        " head."
    )
