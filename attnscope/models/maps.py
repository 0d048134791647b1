"""What the heads of a model look at, in one text or picture.

A model runs once, observed; of each layer that is wanted, the weights of the wanted heads are
computed from the queries, keys, mask and scale that its attention got, and everything else is let
go. With the same weights the values are collected again: if that is not what the model's own
attention returned, or if the model never calls attention through transformers' registry, its maps
are taken from its own eager attention instead.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Iterator
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any, Literal

from attnscope.errors import ModelError
from attnscope.models.checkpoint import Checkpoint
from attnscope.models.loading import load_model, told_as_the_models_fault
from attnscope.models.observe import Call, observing
from attnscope.models.ranges import check_layer, check_range
from attnscope.models.reading import Reading, patches
from attnscope.results import AttentionMap, AttentionMaps, Token

if TYPE_CHECKING:
    import torch

ORDER = ("self", "text", "encoder", "decoder", "cross", "vision")
"""All stacks; those of one model run in this order."""

AT_ONCE = 2**26
"""How many weights are computed at once: 256 MiB of float32."""


@dataclass(frozen=True)
class Wanted:
    """Which heads somebody asked for.

    Attributes:
        stack: `encoder`, `cross` and the like; None: every one that runs.
        layers: by number; `first`: the first that attends; None: all.
        heads: None: all.
    """

    stack: str | None = None
    layers: Collection[int] | Literal["first"] | None = None
    heads: Collection[int] | None = None

    def heads_of(self, stack: str, layer: int, n_head: int, *, first: bool = False) -> list[int]:
        """Those of one layer's heads that are wanted.

        Args:
            stack, layer, n_head: which layer, and how many heads it has.
            first: whether it is the first of its stack that attends.
        """
        named = first if self.layers == "first" else self.layers is None or layer in self.layers
        if self.stack not in (None, stack) or not named:
            return []
        return [head for head in range(n_head) if self.heads is None or head in self.heads]


@dataclass
class Seen:
    """What came of a run.

    Attributes:
        stacks: the maps that were wanted, a stack each.
        output: the model's logits, or else its last hidden states.
        layers: every layer that has attention, by stack and number, with the number of its heads.
        n_layer: how many layers each stack has, with attention or without.
        call: what one layer handed to its attention, where it was to be kept.
        eager: why a stack's maps are from the model's eager attention, of those whose are.
    """

    stacks: list[AttentionMaps]
    output: torch.Tensor
    layers: dict[tuple[str, int], int]
    n_layer: dict[str, int]
    call: Call | None = None
    eager: dict[str, str] = field(default_factory=dict)

    def check(self, model: str, stack: str, layers: Collection[int], heads: Collection[int]) -> None:
        """Raise a ModelError if there is no such layer or head, or the layer has no attention."""
        having = sorted(layer for each, layer in self.layers if each == stack)
        if not having:
            raise ModelError(f"{model} ran no {stack} attention: only {', '.join(self.n_layer)}.")
        n_layer = self.n_layer[stack]
        for layer in layers:
            check_layer(layer, having, n_layer, model)
        for head in heads:
            check_range("head", head, max(self.layers[stack, layer] for layer in having), model)


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
    gallery = _Gallery(checkpoint.name, model, reading, wanted, keep)
    with observing(model, gallery.see), told_as_the_models_fault(checkpoint):
        output = run(model, reading)
    seen = gallery.seen(main_output(output))
    picture, decodes = reading.picture is not None, bool(reading.target)
    runs = stacks_that_run(model.config, picture=picture, decodes=decodes)
    for stack in [wanted.stack] if wanted.stack else runs:
        if stack in gallery.unexplained:
            handed = f"what {checkpoint.name} was seen to hand over"
            reason = (
                f"{handed} does not explain what its attention returns: {gallery.unexplained[stack]}"
            )
            seen.eager[stack] = reason
        elif stack not in gallery.n_layer:
            seen.eager[stack] = (
                f"{checkpoint.name} does not call attention through transformers' registry"
            )
    if seen.eager:
        _take_eager(seen, eager_maps(checkpoint, model, reading, wanted, list(seen.eager)))
    return seen


def _take_eager(seen: Seen, eager: Seen) -> None:
    """Replace the stacks that were not seen, or not understood, by the model's own eager maps."""
    for stack in eager.stacks:
        stack.notices.append(
            f"{seen.eager[stack.stack]}. These are the maps of its own eager attention."
        )
    known = {each.stack: each for each in seen.stacks if each.stack not in seen.eager}
    known |= {each.stack: each for each in eager.stacks}
    seen.stacks = [known[stack] for stack in ORDER if stack in known]
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
    eager = load_model(
        checkpoint,
        model.config,
        dtype=str(model.dtype).removeprefix("torch."),
        device=str(model.device),
        attention="eager",
    )
    gallery = _Gallery(checkpoint.name, eager, reading, wanted, stacks=stacks)
    with observing(eager, gallery.take_call), told_as_the_models_fault(checkpoint):
        output = run(eager, reading)
    for stack in gallery.unexplained:
        gallery.forget(stack)
    if not set(stacks) <= set(gallery.n_layer):
        with told_as_the_models_fault(
            checkpoint
        ):  # all maps of all layers at once: there is no other way
            output = run(eager, reading, output_attentions=True)
        for stack, maps in _returned(output, gallery, set(stacks) - set(gallery.n_layer)):
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


def run(model: Any, reading: Reading, **options: Any) -> Any:
    """Run a model, or the part of it that the reading is for, and return its output."""
    import torch

    inputs = reading.inputs | options
    call = model
    if "pixel_values" in inputs and hasattr(model, "get_image_features"):
        call = model.get_image_features
    elif has_towers(model.config) and hasattr(model, "get_text_features"):
        call = model.get_text_features
    elif model.config.is_encoder_decoder and not reading.target:
        call = model.get_encoder()
    with torch.no_grad():
        return call(**inputs, return_dict=True)


def main_output(output: Any) -> torch.Tensor:
    """What a model computes in the end: its logits, or else its last hidden states."""
    names = [name for name in ("logits", "last_hidden_state", "pooler_output") if name in output]
    return output[names[0]] if names else next(iter(output.values()))


def has_towers(config: Any) -> bool:
    """Whether a model has one stack of layers for text and another for pictures."""
    return hasattr(config, "text_config") and hasattr(config, "vision_config")


def stacks_that_run(config: Any, *, picture: bool, decodes: bool) -> list[str]:
    """The stacks of a model that a reading runs through, the first to run first."""
    if config.is_encoder_decoder:
        return ["encoder", "decoder", "cross"] if decodes else ["encoder"]
    if has_towers(config):
        return ["vision" if picture else "text"]
    return ["self"]


def stack_of(path: str, config: Any, *, cross: bool) -> str:
    """Which stack a module belongs to, by its name in the model."""
    if cross:
        return "cross"
    if config.is_encoder_decoder:
        return "decoder" if re.search(r"(^|\.)decoder\.", path) else "encoder"
    if has_towers(config):
        return "vision" if re.search(r"vision|visual|image", path) else "text"
    return "self"


def bytes_of_maps(config: Any, reading: Reading, wanted: Wanted) -> int:
    """What maps take as float32, as far as a configuration tells."""
    n = len(reading.source)
    if reading.picture:
        n = reading.picture.rows * reading.picture.columns
    n_layer, n_head = _counts(config, reading)
    if wanted.layers is not None:
        n_layer = 1 if wanted.layers == "first" else len(wanted.layers)
    if wanted.heads is not None:
        n_head = len(wanted.heads)
    return 4 * n * n * (n_layer or 1) * (n_head or 1)


def check_numbers(
    model: str, config: Any, reading: Reading, layers: Collection[int], heads: Collection[int]
) -> None:
    """Raise a ModelError if a configuration tells that there is no such layer or head."""
    n_layer, n_head = _counts(config, reading)
    if config.is_encoder_decoder:
        return  # its two stacks may differ
    for layer in layers:
        check_range("layer", layer, n_layer or layer + 1, model)
    for head in heads:
        check_range("head", head, n_head or head + 1, model)


def _counts(config: Any, reading: Reading) -> tuple[int | None, int | None]:
    """How many layers and heads a configuration tells of, in the stack that reads."""
    seen = getattr(config, "vision_config", config)
    own = seen if reading.picture else config.get_text_config()
    counts = [getattr(own, name, None) for name in ("num_hidden_layers", "num_attention_heads")]
    n_layer, n_head = (each if isinstance(each, int) else None for each in counts)
    return n_layer, n_head


def weights(call: Call, heads: list[int]) -> tuple[torch.Tensor, float, float]:
    """The weights of some heads of the first sequence, and whether they explain what the model computed.

    Args:
        call: what the layer handed to its attention.
        heads: query heads.

    Returns:
        The weights, `n_head n_Q n_K` in float32 (of these heads); how far the values that they
        collect are at most from what the model's own attention returned; and how far rounding may
        part the two.
    """
    from attnscope.attention.observed import observed

    collected, attention = observed(**call.arguments(heads))
    theirs = call.output[0, :, heads].flatten(1).to(collected)
    return attention[0].float(), difference_of(collected[0], theirs), output_tolerance(call)


def difference_of(ours: torch.Tensor, theirs: torch.Tensor) -> float:
    """The largest difference between two results; NaN where one is not a number and the other is."""
    import torch

    same = (ours == theirs) | (torch.isnan(ours) & torch.isnan(theirs))
    return float(torch.where(same, 0, (ours - theirs).abs()).max())


def output_tolerance(call: Call) -> float:
    """How far rounding may part two ways of collecting a call's values.

    Both sum up in float32, where a score is known to its own size times float32's precision; the
    model rounds weights and what it collects to its dtype, and eager attention its scores as well.
    """
    import torch

    score = call.scale * float(call.query.norm(dim=-1).max() * call.key.norm(dim=-1).max())
    single, own = torch.finfo(torch.float32).eps, torch.finfo(call.query.dtype).eps
    rounding = (16 + 4 * score) * single
    if own > single:
        rounding += (2 if call.weights is None else 2 + score) * own
    return rounding * max(float(call.value.abs().max()), 1e-6)


class _Gallery:
    """Gathers the maps of the wanted heads while a model runs."""

    def __init__(
        self,
        name: str,
        model: Any,
        reading: Reading,
        wanted: Wanted,
        keep: str | None = None,
        stacks: Collection[str] = ORDER,
    ) -> None:
        self.name, self.model, self.reading, self.wanted = name, model, reading, wanted
        self.keep, self.stacks = keep, stacks
        self.found: dict[str, AttentionMaps] = {}
        self.rows: dict[str, list[int]] = {}  # the queries that are shown: all, or the generated ones
        self.layers: dict[tuple[str, int], int] = {}  # how many heads each layer has
        self.n_layer: dict[str, int] = {}
        self.call: Call | None = None
        self.unexplained: dict[str, str] = {}  # why, by stack

    def see(self, call: Call) -> None:
        """Take what is wanted of one call of attention."""
        stack = stack_of(call.path, self.model.config, cross=call.cross)
        layer, n_layer = self._place(stack, call.path)
        if (stack, layer) in self.layers:
            self.unexplained[stack] = f"layer {layer} attends more than once"
            return
        heads = self._announce(
            stack, layer, n_layer, call.n_head, call.n_kv_head, call.query.shape, call.key.shape
        )
        for part in _parts(heads, call.query.shape[-2] * call.key.shape[-2]):
            attention, difference, tolerance = weights(call, part)
            if not difference <= tolerance:
                self.unexplained[stack] = f"in layer {layer} it is {difference:.2g} off"
            self._add(stack, layer, part, call.n_head // call.n_kv_head, attention)
        if heads and self.keep == stack:
            self.call = self.call or call

    def take_call(self, call: Call) -> None:
        """Take what is wanted of the weights that a layer's own eager attention returned."""
        stack = stack_of(call.path, self.model.config, cross=call.cross)
        layer, n_layer = self._place(stack, call.path)
        if (stack, layer) in self.layers:
            self.unexplained[stack] = f"layer {layer} attends more than once"
        elif stack in self.stacks:
            self.take(stack, layer, n_layer, call.weights, call.n_kv_head)

    def take(
        self,
        stack: str,
        layer: int,
        n_layer: int,
        attention: torch.Tensor | None,
        n_kv_head: int | None = None,
    ) -> None:
        """Take what is wanted of the weights that a model returned for one layer."""
        if attention is None:
            return
        if attention.dim() != 4:
            raise ModelError(
                f"{self.name} returns weights of the shape {tuple(attention.shape)}: they are no map"
                " of its tokens for each head."
            )
        n_batch, n_head, n_Q, n_K = attention.shape
        shapes = (n_batch, n_head, n_Q), (n_batch, n_head, n_K)
        n_kv_head = n_kv_head or n_head
        heads = self._announce(
            stack, layer, n_layer, n_head, n_kv_head, *((*each, 1) for each in shapes)
        )
        self._add(stack, layer, heads, n_head // n_kv_head, attention[0, heads].float())

    def forget(self, stack: str) -> None:
        """Let go of what was taken of a stack."""
        self.found.pop(stack, None)
        self.n_layer.pop(stack, None)
        self.layers = {key: n for key, n in self.layers.items() if key[0] != stack}

    def seen(self, output: torch.Tensor) -> Seen:
        """All that was gathered."""
        stacks = [self.found[stack] for stack in ORDER if stack in self.found]
        return Seen(stacks, output, self.layers, self.n_layer, self.call)

    def _place(self, stack: str, path: str) -> tuple[int, int]:
        """The number of a module's layer, and how many there are."""
        config = self.model.config
        if getattr(config, "num_hidden_groups", None):  # ALBERT runs the same modules again and again
            n_layer = config.num_hidden_layers * getattr(config, "inner_group_num", 1)
            return sum(known == stack for known, _ in self.layers), n_layer
        match = re.match(r"(?:(.*?)\.)?(\d+)(?:\.|$)", path)
        if match is None:
            return 0, 1
        layer = int(match[2])
        return layer, len(self.model.get_submodule(match[1] or ""))

    def _announce(
        self,
        stack: str,
        layer: int,
        n_layer: int,
        n_head: int,
        n_kv_head: int,
        of_query: tuple[int, ...],
        of_key: tuple[int, ...],
    ) -> list[int]:
        """Note that a layer has attention; the heads of it that are wanted.

        Args:
            stack, layer: which.
            n_layer, n_head, n_kv_head: how many.
            of_query, of_key: the shapes `n_batch … n_Q d` and `n_batch … n_K d`.
        """
        first = stack not in self.n_layer
        self.layers[stack, layer] = n_head
        self.n_layer[stack] = n_layer
        heads = self.wanted.heads_of(stack, layer, n_head, first=first)
        if not heads:
            return []
        queries = self._tokens(stack, "Q", of_query[-2])
        keys = self._tokens(stack, "K", of_key[-2])
        if (of_query[0], of_query[-2], of_key[-2]) != (1, len(queries), len(keys)):
            raise ModelError(
                f"{self.name} attends from {of_query[0]} × {of_query[-2]} queries to {of_key[-2]} keys"
                f" in layer {layer}, and there are {len(queries)} and {len(keys)} tokens: attnscope"
                " shows attention among all tokens."
            )
        if stack not in self.found:
            picture = self.reading.picture
            if picture:
                picture = replace(picture, first=len(keys) - picture.rows * picture.columns)
            generated = [i for i, token in enumerate(queries) if token.generated]
            self.rows[stack] = generated or list(range(len(queries)))
            shown = [queries[i] for i in self.rows[stack]]
            self.found[stack] = AttentionMaps(
                self.name,
                stack,
                n_layer,
                n_head,
                n_kv_head,
                shown,
                keys,
                [],
                picture,
                self.rows[stack][0],
            )
        return heads

    def _tokens(self, stack: str, which: str, n: int) -> list[Token]:
        """The tokens that are a stack's queries, or keys; `n` of them, if a picture's."""
        if stack == "decoder" or (stack == "cross" and which == "Q"):
            return self.reading.target
        if self.reading.picture:
            return patches(self.reading.picture, n, self.reading.most_added)
        return self.reading.source

    def _add(
        self, stack: str, layer: int, heads: list[int], group: int, attention: torch.Tensor
    ) -> None:
        """Keep the maps of some heads, `n_head n_Q n_K`: the rows that are shown."""
        if not heads:
            return
        rows = self.rows[stack]
        attention = attention if len(rows) == attention.shape[1] else attention[:, rows]
        for head, of_head in zip(heads, attention.cpu().numpy(), strict=True):
            self.found[stack].maps.append(AttentionMap(layer, head, head // group, of_head))


def _returned(output: Any, gallery: _Gallery, stacks: Collection[str]) -> Iterator[tuple[str, Any]]:
    """The maps that a model returned, by stack: those of the stacks that are needed."""
    config = gallery.model.config
    names = {
        "encoder": "encoder_attentions",
        "decoder": "decoder_attentions",
        "cross": "cross_attentions",
    }
    if "encoder_attentions" not in output:
        picture = gallery.reading.picture is not None
        names = {stacks_that_run(config, picture=picture, decodes=False)[0]: "attentions"}
    for stack, name in names.items():
        maps = output.get(name) if stack in stacks else None
        if not maps:
            continue
        if hasattr(config, "attention_window") and stack in ("self", "encoder"):
            raise ModelError(
                f"{gallery.name} ({config.model_type}) attends within a band around each token, and"
                " returns weights by distance: they are no map of its tokens."
            )
        n_layer = getattr(config, "num_hidden_layers", len(maps))
        if stack == "self" and len(maps) != n_layer:
            raise ModelError(
                f"{gallery.name} returns the maps of {len(maps)} of its {n_layer} layers, and does not"
                " say which."
            )
        yield stack, maps


def _parts(heads: list[int], size: int) -> Iterator[list[int]]:
    """Heads in parts whose maps, of `size` weights each, are computed at once."""
    n = max(1, AT_ONCE // max(size, 1))
    for start in range(0, len(heads), n):
        yield heads[start : start + n]
