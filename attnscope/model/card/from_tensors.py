"""The anatomy of a model's attention by its tensors, and where config.json contradicts them."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from attnscope.base.errors import ModelError
from attnscope.base.text import printable, shortened
from attnscope.base.units import counted
from attnscope.document.result import Finding
from attnscope.model.card.anatomy import LayerAnatomy, LayerCache, ModelAnatomy
from attnscope.model.card.from_config import anatomy_of
from attnscope.model.families.fields import families
from attnscope.model.families.table import family_of
from attnscope.model.files.config import dtype_of, longest_text, text_part

if TYPE_CHECKING:
    from attnscope.model.card.layers_from_tensors import ObservedLayer, ObservedModel
    from attnscope.model.files.headers import Headers

GROUPED = ("full", "sliding", "chunked", "sparse", "shared")
"""The kinds of layers whose heads have keys and values of their own."""


def anatomy_of_checkpoint(
    config: dict[str, Any] | None, headers: Headers | None
) -> tuple[ModelAnatomy, str, tuple[Finding, ...]]:
    """Return the anatomy of a model, what it was read from, and where its tensors contradict that.

    It is read from the header of a GGUF file, or from config.json, or of a new type from its tensors.
    """
    if headers is not None and headers.format == "GGUF":
        from attnscope.model.card.gguf_anatomy import anatomy_of_gguf

        anatomy = anatomy_of_gguf(headers)
        found = contradictions(anatomy, headers, headers.metadata)
        return anatomy, "the header of a GGUF file", found
    if config is None and headers is None:
        raise ModelError(
            "the model has neither a config.json nor weights with a header.",
            hint="the folder of the whole model",
        )
    try:
        if config is not None:
            anatomy = anatomy_of(config)
            found = contradictions(anatomy, headers, config) if headers is not None else ()
            return anatomy, "config.json", found
    except ModelError:
        if headers is None or not _is_new_decoder(config or {}):
            raise
    assert headers is not None
    config = config or {}
    anatomy = anatomy_of_tensors(headers, config)
    anatomy = replace(anatomy, longest=longest_text(config), dtype=dtype_of(config))
    return anatomy, "the names and shapes of its tensors", ()


def _is_new_decoder(config: dict[str, Any]) -> bool:
    """Check whether a configuration is of a decoder whose model type is unknown."""
    text = text_part(config)
    if (kind := text.get("model_type")) in families() or family_of(kind).undecided:
        return False
    named = config.get("architectures")
    return isinstance(named, list) and any(
        isinstance(each, str) and each.endswith(("ForCausalLM", "LMHeadModel")) for each in named
    )


def anatomy_of_tensors(headers: Headers, config: dict[str, Any] | None = None) -> ModelAnatomy:
    """Return the anatomy of a model of an unknown architecture, as far as its tensors determine it.

    What a token takes in the cache follows from the shapes of W_K and W_V. How many heads share it,
    which layers have a window, and rotary positions mostly do not: `uncertain` says so.

    Args:
        config: its config.json, of which only the name of the architecture and how integers are packed
            are used.
    """
    from attnscope.model.card.layers_from_tensors import observe

    config = config or {}
    observed = observe(headers, config)
    if len(observed.stacks) > 1:
        named = " and ".join(printable(shortened(each)) for each in observed.stacks[:2])
        raise ModelError(
            f"the attention of {headers.name} is undecided: it has several stacks of layers, {named}.",
            hint="a config.json of a type that attnscope knows",
        )
    if not observed.layers or observed.d_feat is None:
        raise ModelError(
            f"the attention of {headers.name} is undecided: none of its {len(headers.tensors)} tensors"
            " is a projection to queries, keys and values that attnscope recognizes.",
            hint="a config.json of a type that attnscope knows",
        )
    layers = tuple(_layer(observed, i) for i in range(observed.n_layer))
    return ModelAnatomy(
        model_type=str(config.get("model_type", "unknown")),
        n_layer=observed.n_layer,
        d_feat=observed.d_feat,
        layers=layers,
        uncertain=tuple(_uncertainties(observed, layers)),
    )


def _layer(observed: ObservedModel, i: int) -> LayerAnatomy:
    """Build the anatomy of a layer, as far as its tensors say it."""
    layer = observed.layers.get(i)
    if layer is None or layer.recurrent:
        return LayerAnatomy("linear" if layer else "state space" if i in observed.states else "none")
    if layer.latent is not None:
        kind = "sparse" if "indexer" in layer.extras else "latent"
        cache = LayerCache(layer.latent + (layer.indexer or 0))
        return LayerAnatomy(kind, extras=layer.extras, cache=cache)
    if layer.n_K is None or layer.n_V is None:
        raise ModelError(
            f"the sizes of the keys and values of {printable(shortened(layer.module))} are undecided:"
            " its tensors have other names or shapes than attnscope recognizes.",
            hint="a config.json of a type that attnscope knows",
        )
    n_head, n_kv_head, d_V = layer.n_head, None, None
    if layer.d_head:
        n_kv_head = layer.n_K // layer.d_head
        d_V = layer.n_V // n_kv_head if layer.n_V % n_kv_head == 0 else None
        if n_head is None and layer.n_O and d_V and layer.n_O % d_V == 0:
            n_head = layer.n_O // d_V
    kind = "sparse" if layer.indexer else "full + state space" if i in observed.states else "full"
    return LayerAnatomy(
        kind=kind,
        n_head=n_head,
        n_kv_head=n_kv_head,
        d_K=layer.d_head,
        d_V=d_V,
        extras=layer.extras,
        cache=LayerCache(layer.n_K + layer.n_V + (layer.indexer or 0)),
    )


def _uncertainties(observed: ObservedModel, layers: tuple[LayerAnatomy, ...]) -> Iterator[str]:
    """Yield a sentence for each thing that tensors do not determine."""
    yield (
        "tensors do not say which layers have a window, or whether keys are kept at all: all keys count"
        " as kept"
    )
    for i, layer in observed.layers.items():
        if layer.d_head is None and layer.latent is None and not layer.recurrent:
            yield (
                f"tensors do not say how wide a head is: the keys of layer {i} have {layer.n_K}"
                f" columns, n_kv_head · d_head, and its queries {layer.n_Q}, n_head · d_head"
            )
            break
    states = [
        i for i, layer in enumerate(layers) if {"linear", "state space"} & {*layer.kind.split(" + ")}
    ]
    if states:
        layers_text = counted(len(states), "layer")
        yield f"tensors do not say how large the states of {layers_text} are: none count"
    if any("indexer" in layer.extras and layer.indexer is None for layer in observed.layers.values()):
        yield "tensors do not say how many numbers the indexer keeps for a token: none count"


def contradictions(
    anatomy: ModelAnatomy, headers: Headers, config: dict[str, Any]
) -> tuple[Finding, ...]:
    """Find where a model's configuration contradicts its tensors.

    Args:
        config: the content of config.json, or the metadata of a GGUF file.
    """
    from attnscope.model.card.layers_from_tensors import observe

    said_by = "its metadata" if headers.format == "GGUF" else "config.json"
    observed = observe(headers, config)
    found: dict[str, list[int]] = {}
    for i, expected in enumerate(anatomy.layers):
        layer = observed.layers.get(i)
        if layer is not None and observed.d_feat == anatomy.d_feat and not layer.recurrent:
            for message in _differences(expected, layer, said_by):
                found.setdefault(message, []).append(i)
    messages = [*_of_model(anatomy, observed, config, said_by)]
    for message, numbers in found.items():
        messages.append(f"{message} (in {_numbered(numbers)})")
    return tuple(Finding(message) for message in messages)


def _of_model(
    anatomy: ModelAnatomy, observed: ObservedModel, config: dict[str, Any], said_by: str
) -> Iterator[str]:
    """Yield differences in the number of layers and in the width of the model."""
    if not observed.layers or len(observed.stacks) != 1:
        return
    if observed.d_feat is not None and observed.d_feat != anatomy.d_feat:
        yield (
            f"{said_by} says that the model is {anatomy.d_feat} wide, but the norms of its layers are"
            f" {observed.d_feat} wide"
        )
    said = f"{said_by} says that the model has {counted(anatomy.n_layer, 'layer')}, but its tensors"
    if observed.n_layer < anatomy.n_layer:
        yield f"{said} are those of {observed.n_layer}"
    n_draft = observed.n_layer - anatomy.n_layer
    if n_draft > 0 and not _has_draft_layers(config):
        last = "the last is" if n_draft == 1 else f"the last {n_draft} are"
        yield f"{said} are those of {observed.n_layer}: {last} not loaded"


def _has_draft_layers(config: dict[str, Any]) -> bool:
    """Check whether a configuration mentions layers that predict further tokens, or shared ones."""
    nested = [config, *(part for part in config.values() if isinstance(part, dict))]
    return any(
        isinstance(value, int) and value > 0
        for part in nested
        for name, value in part.items()
        if "nextn" in name or "mtp" in name or "predict_layers" in name
    )


def _differences(expected: LayerAnatomy, layer: ObservedLayer, said_by: str) -> Iterator[str]:
    """Yield how the tensors of a layer differ from what the configuration says."""
    n_head, n_kv_head, d_K, d_V = expected.n_head, expected.n_kv_head, expected.d_K, expected.d_V
    kinds = expected.kind.split(" + ")
    if expected.kind in ("latent", "sparse") and layer.latent is not None:
        kept, found = expected.cache.numbers(1), layer.latent + (layer.indexer or 0)
        if found != kept:
            yield f"by {said_by}, a token takes {kept} numbers, but its latents have {found}"
        return
    if not set(kinds) & set(GROUPED) or not (n_head and n_kv_head and d_K and d_V):
        return
    sizes = (
        ("W_Q", layer.n_Q, n_head, d_K, "query heads"),
        ("W_K", layer.n_K, n_kv_head, d_K, "key heads"),
        ("W_V", layer.n_V, n_kv_head, d_V, "value heads"),
    )
    for name, columns, count, width, what in sizes:
        is_gated = name == "W_Q" and columns == 2 * count * width  # a gate beside each query
        if columns is not None and columns != count * width and not is_gated:
            yield (
                f"by {said_by}, there are {count} {what} of {width}, but {name} has {columns} columns,"
                f" not {count * width}"
            )


def _numbered(numbers: list[int]) -> str:
    """Return the indices of layers: `layer 3`, `layers 0–7`, `8 layers from 0 to 14`."""
    first, last = numbers[0], numbers[-1]
    if len(numbers) == 1:
        return f"layer {first}"
    if last - first + 1 == len(numbers):
        return f"layers {first}–{last}"
    return f"{len(numbers)} layers from {first} to {last}"
