"""Pairs two sides: the same inputs, and the same weights."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import torch

from attnscope.comparison.anatomy.anatomy import Anatomy, NoAttentionError
from attnscope.comparison.anatomy.operands import operand_of
from attnscope.comparison.sides.code import code_side, constructor_names, parameter_names
from attnscope.comparison.sides.layer import layer_side, sizes_for
from attnscope.comparison.sides.pairing import Pairing, by_name
from attnscope.comparison.sides.parameters import matched, role_of
from attnscope.comparison.sides.references import mha_side, sdpa_side
from attnscope.comparison.sides.side import Recorded, Side, tensors_of
from attnscope.comparison.sides.weights import copy_weights
from attnscope.errors import OptionError
from attnscope.models.attention_layer import AttentionLayer
from attnscope.process.default_dtype import default_dtype
from attnscope.results.comparison import WeightCopy
from attnscope.tracing.target.load import Loaded, load_target, title_of
from attnscope.tracing.target.signatures import callee
from attnscope.tracing.target.subject import Texts


def paired(a: Any, b: Any, pairing: Pairing) -> tuple[Side, Side, list[WeightCopy] | None]:
    """Return both sides, and which weights were copied to make them alike.

    Raises:
        AttnscopeError: one side cannot be built or run, or they cannot be paired.
    """
    if a is None or a in ("sdpa", "mha"):
        second = code_side(load_target(b), title_of(b), pairing)
    if a is None:
        a = "mha" if _has_projections(second, pairing.seed) else "sdpa"
    if a in ("sdpa", "mha"):
        same, options = dict(pairing.same), dict(pairing.options)
        if a == "sdpa":
            first = sdpa_side(second, _anatomy_if_any(second, pairing.seed), same, options)
        else:
            first = mha_side(second, _anatomy(second, pairing.seed), same, options)
        copies = _with_weights_of(second, first, pairing)
        return first, second, None if copies is None else [each.reversed() for each in copies]
    return _two_codes(a, b, pairing)


def paired_with_layer(
    layer: AttentionLayer, target: Any, pairing: Pairing
) -> tuple[Side, Side, list[WeightCopy] | None]:
    """Return the attention of a model's layer, and code with its weights and inputs.

    Raises:
        AttnscopeError: the code cannot be built or run, or has other sizes.
    """
    first = layer_side(layer).in_dtype(getattr(torch, pairing.dtype))
    loaded = load_target(target)
    called = callee(loaded, pairing.call)
    init = by_name(pairing.init)
    init = {**sizes_for(called, layer.config, set(init)), **init} if called.owner is not None else init
    own, _ = _split_inputs(pairing.inputs, parameter_names(called), [])
    second = _second(target, loaded, first, parameter_names(called), init, own, pairing)
    copies = _with_weights_of(first, second, pairing)
    _feed(first, second, pairing.seed)
    return first, second, copies


def _feed(layer: Side, code: Side, seed: int) -> None:
    """Give code without a norm the normalised input of a layer that begins with one, in place.

    Args:
        layer: the layer.
        code: the code; its input is replaced, and a notice says so.
        seed: the seed of what both draw.
    """
    one, other = (_anatomy_if_any(each, seed) for each in (layer, code))
    projections = [None if each is None else each.projections.get("Q") for each in (one, other)]
    if projections[0] is None or projections[1] is None:
        return
    first, second = operand_of(projections[0]), operand_of(projections[1])
    if first.input is not None or second.input is None:
        return
    given = code.inputs[second.input]
    if isinstance(given, torch.Tensor) and given.shape == first.value.tensor.shape:
        for name, each in code.inputs.items():
            if each is given:
                code.inputs[name] = first.value.tensor
        code.notices.append(f"{code.title} gets {first}, from which {layer.title} computes Q, K or V")


def _has_projections(side: Side, seed: int) -> bool:
    """Return whether the Q, K and V of a side are computed with weights."""
    return side.module is not None and {"Q", "K", "V"} <= set(_anatomy(side, seed).projections)


def _anatomy(side: Side, seed: int) -> Anatomy:
    """Run a side in float64, and find its attention.

    Raises:
        OptionError: there is none.
    """
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


def _with_weights_of(source: Side, target: Side, pairing: Pairing) -> list[WeightCopy] | None:
    """Copy the weights of one side to the other, and return which."""
    if source.module is None or target.module is None:
        if pairing.map:
            without = source if source.module is None else target
            raise OptionError(f"--map is for weights, and {without.title} has none.")
        return None

    def anatomies() -> tuple[Anatomy, Anatomy]:
        drawn = _with_drawn_weights(target.in_dtype(torch.float64))
        return _anatomy(source, pairing.seed), _anatomy(drawn, pairing.seed)

    titles = source.title, target.title
    return copy_weights(source.module, target.module, anatomies, pairing.map, titles)


def _with_drawn_weights(side: Side) -> Side:
    """Return the side itself; weights that are zero would hide what is done with them."""
    assert side.module is not None
    with torch.no_grad():
        for parameter in side.module.parameters():
            if not bool(parameter.any()):
                parameter.normal_()
    return side


def _two_codes(a: Any, b: Any, pairing: Pairing) -> tuple[Side, Side, list[WeightCopy] | None]:
    """Build two sides of the user's code, the second with the inputs and weights of the first."""
    targets = [load_target(a), load_target(b)]
    inits = _split_init(targets, pairing.init)
    names = [parameter_names(callee(each, pairing.call)) for each in targets]
    of_first, own = _split_inputs(pairing.inputs, names[0], names[1])
    shared = _shared_roles(names[1])
    first = code_side(
        targets[0], title_of(a), replace(pairing, init=inits[0], inputs=of_first), shared=shared
    )
    second = _second(b, targets[1], first, names[1], inits[1], own, pairing)
    return first, second, _with_weights_of(first, second, pairing)


def _shared_roles(names: list[str]) -> tuple[str, ...]:
    """Return which of Q, K and V are one tensor in code with some parameters: `x`, or `x, context`."""
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
    own_names = list(own_inputs)
    pairs = matched(
        [name for name in names if name not in own_names],
        [*tensors_of(first), *(name for name in first.inputs if name not in tensors_of(first))],
        pairing.same,
        title_of(target),
    )
    if not pairs:
        raise OptionError(
            f"no input of {title_of(target)} ({', '.join(names)}) is one of {first.title}"
            f" ({', '.join(first.inputs)}).",
            hint=f"--same {next(iter(first.inputs), 'x')}={names[0] if names else 'x'}",
        )
    specifications: dict[str, Any] = {name: first.inputs[other] for name, other in pairs.items()}
    own_pairing = replace(pairing, init=init, inputs=specifications | own_inputs)
    return code_side(loaded, title_of(target), own_pairing)


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


def _split_init(targets: list[Loaded], init: Texts) -> list[Texts]:
    """Return the constructor's arguments of both sides.

    Raises:
        OptionError: neither has a parameter of some name.
    """
    known = [constructor_names(each) for each in targets]
    items = by_name(init)
    result: list[dict[str, Any]] = [{}, {}]
    for name, value in items.items():
        takers = [i for i, names in enumerate(known) if names is None or name in names]
        if not takers:
            raise OptionError(
                f"--init {name}: neither {targets[0].name} nor {targets[1].name} has a parameter of"
                " that name."
            )
        for i in takers:
            result[i][name] = value
    return [*result]
