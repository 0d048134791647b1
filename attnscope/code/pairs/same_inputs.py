"""Pairs two sides: the same inputs, and the same weights."""

from __future__ import annotations

import inspect
import re
from collections.abc import Iterable, Mapping
from dataclasses import replace
from typing import Any

import torch

from attnscope.base.dtypes import FLOATS
from attnscope.base.errors import OptionError
from attnscope.base.options import Texts
from attnscope.base.process.default_dtype import default_dtype
from attnscope.base.spelling import spelled
from attnscope.code.load.examples import HEADS, WIDTH
from attnscope.code.load.load import Loaded, load_target, title_of
from attnscope.code.load.signatures import Callee, callee, module_of
from attnscope.code.pairs.code import code_side, constructor_names, count_positions, parameter_names
from attnscope.code.pairs.drawn import draw_constants, draw_shared
from attnscope.code.pairs.implementation import Recorded, Side, tensors_of
from attnscope.code.pairs.pairing import Pairing, WeightCopy, by_name, matched, role_of
from attnscope.code.pairs.references import mha_side, sdpa_side
from attnscope.code.pairs.weights import copy_weights
from attnscope.model.run.attention_layer import AttentionLayer
from attnscope.model.run.layers import field_of
from attnscope.observe.operators.anatomy import Anatomy, NoAttentionError
from attnscope.observe.operators.projections import operand_of


def keep_weights(a: Any, b: Any, pairing: Pairing) -> bool:
    """Check whether each side keeps the weights that it has: modules that already exist do.

    But if the user states which weights are the same, they are.
    """
    is_open = pairing.weights is None and not pairing.map
    return pairing.weights == "own" or (is_open and all(map(is_live, (a, b))))


def is_live(side: Any) -> bool:
    """Check whether a side already exists with weights: a layer of a model, a module, or its method."""
    return isinstance(side, AttentionLayer) or module_of(load_target(side).object) is not None


def dtype_of(targets: Iterable[Any]) -> str | None:
    """Return the coarsest dtype of modules that already exist; None if there are none."""
    found = [module_of(load_target(each).object) for each in targets]
    modules = [each for each in found if each is not None]
    dtypes = {each.dtype for module in modules for each in module.parameters()}
    known = [each for each in dtypes if str(each).removeprefix("torch.") in FLOATS]
    coarsest = max(known, key=lambda dtype: torch.finfo(dtype).eps, default=None)
    return None if coarsest is None else str(coarsest).removeprefix("torch.")


def paired(a: Any, b: Any, pairing: Pairing) -> tuple[Side, Side, list[WeightCopy] | None]:
    """Return both sides, and which weights were copied to make them alike."""
    if a is None or a in ("sdpa", "mha"):
        second = count_positions(code_side(load_target(b), title_of(b), pairing))
    if a is None:
        has_weights = second.module is not None
        projections = _anatomy(second, pairing.seed).projections if has_weights else {}
        a = "mha" if {"Q", "K", "V"} <= set(projections) else "sdpa"
    if a in ("sdpa", "mha"):
        same, options = dict(pairing.same), dict(pairing.options)
        if a == "sdpa":
            first = sdpa_side(second, _anatomy_if_any(second, pairing.seed), same, options)
        else:
            first = mha_side(second, _anatomy(second, pairing.seed), same, options)
        return first, second, _reversed(with_weights_of(second, first, pairing))
    return _two_codes(a, b, pairing)


def paired_with_layer(
    layer: AttentionLayer, target: Any, pairing: Pairing
) -> tuple[Side, Side, list[WeightCopy] | None]:
    """Return the attention of a model's layer, and code with its weights and inputs."""
    dtype = getattr(torch, pairing.dtype)
    loaded = load_target(target)
    called = callee(loaded, pairing.call)
    init = by_name(pairing.init)
    init = {**sizes_for(called, layer, set(init)), **init} if called.owner is not None else init
    names = parameter_names(called)
    own, _ = _split_inputs(pairing.inputs, names, [])

    def sides(of: AttentionLayer) -> tuple[Side, Side]:
        first = layer_side(of).in_dtype(dtype)
        return first, _second(target, loaded, first, names, init, own, pairing)

    known = [each for each in (layer, *layer.around) if _is_of_class(each, called, target)]
    first, second = sides(known[0] if known else layer)
    around = [] if known or not _normalises_first(second, pairing.seed) else list(layer.around[:1])
    if around and not _normalises_first(first, pairing.seed):
        first, second = sides(around[0])
        first.notices.append(f"{second.title} normalises its input, and so gets that of {first.title}")
    keeps = keep_weights(layer, target, pairing)
    copies = None if keeps else with_weights_of(first, second, pairing, draws=False)
    _feed(first, second, pairing.seed)
    return first, second, copies


def _is_of_class(layer: AttentionLayer, called: Callee, target: Any) -> bool:
    """Check whether a module of a model is of the class of some code."""
    module = module_of(load_target(target).object)
    cls = called.owner if module is None else type(module)
    own = type(layer.module)
    return cls is not None and (cls.__module__, cls.__qualname__) == (own.__module__, own.__qualname__)


def _normalises_first(side: Side, seed: int) -> bool:
    """Check whether Q is projected from what a side computes from its input, as by a norm."""
    anatomy = _anatomy_if_any(side, seed)
    projection = None if anatomy is None else anatomy.projections.get("Q")
    return projection is not None and operand_of(projection).input is None


def _feed(layer: Side, code: Side, seed: int) -> None:
    """Give code without a norm the normalised input of a layer that begins with one, in place."""
    one, other = (_anatomy_if_any(each, seed) for each in (layer, code))
    projections = [None if each is None else each.projections.get("Q") for each in (one, other)]
    if projections[0] is None or projections[1] is None:
        return
    first, second = operand_of(projections[0]), operand_of(projections[1])
    if first.input is not None or second.input is None:
        return
    drawn = code.inputs[second.input]
    if isinstance(drawn, torch.Tensor) and drawn.shape == first.value.tensor.shape:
        for name, each in code.inputs.items():
            if each is drawn:
                code.inputs[name] = first.value.tensor
        code.notices.append(f"{code.title} gets {first}, from which {layer.title} computes Q, K or V")


def _anatomy(side: Side, seed: int) -> Anatomy:
    """Run a side in float64, and find its attention."""
    try:
        return _run(side, seed).anatomy()
    except NoAttentionError as error:
        raise OptionError(f"no attention was found in {side.title}: {error}.") from error


def _anatomy_if_any(side: Side, seed: int) -> Anatomy | None:
    """Run a side in float64, and find its attention; None if there is none."""
    try:
        return _run(side, seed).anatomy()
    except NoAttentionError:
        return None


def _run(side: Side, seed: int) -> Recorded:
    with default_dtype(torch.float64):
        return side.in_dtype(torch.float64).run(seed, exact=True)


def with_weights_of(
    source: Side, target: Side, pairing: Pairing, *, draws: bool = True
) -> list[WeightCopy] | None:
    """Copy the weights of one side to the other, and return which.

    If `draws`, weights that both have and that begin constant get other values; those of a checkpoint
    are as they are.
    """
    if source.module is None or target.module is None:
        if pairing.map:
            without = source if source.module is None else target
            raise OptionError(f"{spelled('map')} is for weights, and {without.title} has none.")
        return None

    def anatomy(side: Side) -> Anatomy:
        copy = side.in_dtype(torch.float64)
        assert copy.module is not None
        draw_constants(copy.module, torch.Generator().manual_seed(pairing.seed))  # zeros would hide
        return _anatomy(copy, pairing.seed)

    titles = source.title, target.title
    copies = copy_weights(
        source.module, target.module, lambda: (anatomy(source), anatomy(target)), pairing.map, titles
    )
    if draws:
        draw_shared(source.module, target.module, copies, pairing.seed)
    return copies


def _two_codes(a: Any, b: Any, pairing: Pairing) -> tuple[Side, Side, list[WeightCopy] | None]:
    """Build two sides of the user's code, the second with the inputs and weights of the first."""
    targets = [load_target(a), load_target(b)]
    inits = _split_init(targets, pairing.init, pairing.call)
    names = [parameter_names(callee(each, pairing.call)) for each in targets]
    of_first, own = _split_inputs(pairing.inputs, names[0], names[1])
    shared = _shared_roles(names[1])
    of_a = replace(pairing, init=inits[0], inputs=of_first)
    first = count_positions(code_side(targets[0], title_of(a), of_a, shared=shared))
    second = _second(b, targets[1], first, names[1], inits[1], own, pairing)
    if keep_weights(a, b, pairing):
        return first, second, None
    if is_live(b) and not is_live(a):  # the module that exists keeps its weights
        return first, second, _reversed(with_weights_of(second, first, pairing))
    return first, second, with_weights_of(first, second, pairing)


def _reversed(copies: list[WeightCopy] | None) -> list[WeightCopy] | None:
    return None if copies is None else [each.reversed() for each in copies]


def _shared_roles(names: list[str]) -> tuple[str, ...]:
    """Find which of Q, K and V are one tensor in code with some parameters: `x`, or `x, context`."""
    roles = {role_of(name) for name in names}
    if roles >= {"K", "V"} or not roles & {"x", "Q"}:
        return ()
    return ("K", "V") if roles & {"K", "context"} else ("Q", "K", "V")


def _second(
    target: Any,
    loaded: Loaded,
    first: Side,
    names: list[str],
    init: Texts,
    own: Texts,
    pairing: Pairing,
) -> Side:
    """Build the second side with the inputs of the first."""
    own_inputs = by_name(own)
    pairs = matched(
        [name for name in names if name not in own_inputs],
        [*tensors_of(first), *(name for name in first.inputs if name not in tensors_of(first))],
        pairing.same,
        title_of(target),
    )
    if not pairs:
        raise OptionError(
            f"no input of {title_of(target)} ({', '.join(names)}) is one of {first.title}"
            f" ({', '.join(first.inputs)}).",
            hint=spelled(same=f"{next(iter(first.inputs), 'x')}={names[0] if names else 'x'}"),
        )
    specifications: dict[str, Any] = {name: first.inputs[other] for name, other in pairs.items()}
    own_pairing = replace(pairing, init=init, inputs=specifications | own_inputs)
    return count_positions(code_side(loaded, title_of(target), own_pairing))


def _split_inputs(inputs: Texts, of_first: list[str], of_second: list[str]) -> tuple[Texts, Texts]:
    """Return the inputs of the first side, and those of which only the second has a parameter."""
    if isinstance(inputs, Mapping):
        only = {name for name in inputs if name in of_second and name not in of_first}
        return (
            {name: each for name, each in inputs.items() if name not in only},
            {name: each for name, each in inputs.items() if name in only},
        )
    only = {text for text in inputs if (name := _name(text)) in of_second and name not in of_first}
    return [text for text in inputs if text not in only], [text for text in inputs if text in only]


def _name(text: str) -> str | None:
    """Return the name in a specification of an input; None if it is positional."""
    name, equals, _ = text.partition("=")
    return name.strip() if equals and name.strip().isidentifier() else None


def _split_init(targets: list[Loaded], init: Texts, call: str | None) -> list[Texts]:
    """Return the constructor's arguments of both sides."""
    known = [constructor_names(each, call) for each in targets]
    items = by_name(init)
    result: list[dict[str, Any]] = [{}, {}]
    for name, value in items.items():
        takers = [i for i, names in enumerate(known) if names is None or name in names]
        if not takers:
            raise OptionError(
                f"{spelled('init', name)}: neither {targets[0].name} nor {targets[1].name} has a"
                " parameter of that name."
            )
        for i in takers:
            result[i][name] = value
    return [*result]


HEAD_WIDTH = re.compile(r"head_?dim|dim_?head|d_?head|head_?size|^d_?[kv]$")


LAYER_INDEX = ("layer_idx", "layer_id", "layer_index")


def layer_side(layer: AttentionLayer) -> Side:
    """Return the attention of a layer with the arguments that it received."""
    bound = inspect.signature(layer.module.forward).bind(*layer.args, **layer.kwargs)
    inputs: dict[str, Any] = {}
    for name, value in bound.arguments.items():
        kind = bound.signature.parameters[name].kind
        inputs |= value if kind is inspect.Parameter.VAR_KEYWORD else {name: value}
    inputs = {name: value for name, value in inputs.items() if not _is_cache(name, value)}
    return Side(f"{layer.name}, {layer.path}", layer.module, inputs, module=layer.module)


def _is_cache(name: str, value: Any) -> bool:
    """Check whether an argument is a cache, to which every run would append."""
    is_named = name.startswith(("past_key_value", "layer_past")) or name == "cache_position"
    return is_named or type(value).__name__.endswith("Cache")


def sizes_for(target: Callee, layer: AttentionLayer, known: set[str]) -> dict[str, Any]:
    """Return arguments of a constructor that follow from a model's configuration.

    These are `config`, the index of the layer, and fields of the configuration: by their own names, or
    by the usual words for widths and numbers of heads.
    """
    text = layer.config.get_text_config()

    def field(name: str) -> Any:
        return field_of(text, name, layer.index)

    n_head = field("num_attention_heads")
    d_head = field("head_dim") or field("hidden_size") // n_head
    found: dict[str, Any] = {}
    for name, parameter in (target.parameters.parameters if target.parameters else {}).items():
        if name in known:
            continue
        if name in LAYER_INDEX:
            found[name] = layer.index
        elif parameter.default is not parameter.empty:
            continue
        elif name == "config":
            found[name] = text
        elif (value := field(name)) is not None:
            found[name] = value
        elif HEAD_WIDTH.search(name):
            found[name] = d_head
        elif HEADS.search(name) or name in ("h", "n_h"):
            is_shared = re.search(r"kv|key", name)
            found[name] = field("num_key_value_heads") or n_head if is_shared else n_head
        elif WIDTH.search(name):
            found[name] = field("hidden_size")
    return found
