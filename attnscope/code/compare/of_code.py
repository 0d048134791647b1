"""Compare code with a reference, with the attention of a model's layer, or with other code."""

from __future__ import annotations

import os
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Any

from attnscope.base.errors import AttnscopeError, OptionError, warn_unused
from attnscope.base.options import check_kind, is_code
from attnscope.base.process.devices import check_seed
from attnscope.base.process.progress import Progress, stage
from attnscope.base.process.random_state import kept_global_random_state
from attnscope.base.spelling import spelled, spelled_any
from attnscope.base.text import described, nearest
from attnscope.code.compare.options import (
    REFERENCES,
    ComparedArguments,
    ComparedExecution,
    Corner,
    Models,
    Reference,
)
from attnscope.code.compare.report import comparison_of
from attnscope.code.compare.result import Comparison
from attnscope.code.pairs.code import axis_of_keys, fitting_inputs, inputs_by_name, name_of
from attnscope.code.pairs.drawn import draw_shared
from attnscope.code.pairs.implementation import Side
from attnscope.code.pairs.pairing import Pairing, WeightCopy, by_name
from attnscope.code.pairs.same_inputs import (
    dtype_of,
    is_live,
    keep_weights,
    paired,
    paired_with_layer,
    with_weights_of,
)
from attnscope.model.run.attention_layer import attention_layer
from attnscope.observe.contracts import stages_of
from attnscope.observe.operators.place import forget_places


def compare_code(
    a: Any,
    b: Any,
    arguments: ComparedArguments,
    reference: Reference,
    models: Models,
    execution: ComparedExecution,
    progress: Progress,
) -> Comparison:
    """Compare code with what it stands beside: a reference, a model, or other code."""
    check_seed(execution.seed or 0)
    code, other = (a, b) if b is None or not is_code(b) else (b, a)
    check_kind(["a model", "a model beside code"], [models], ", and one side is code")
    is_reference = other is None or (isinstance(other, str) and other in REFERENCES)
    if not is_reference:
        check_kind(["code"], [reference], ": other sides decide themselves")
    pairing = _pairing(arguments, reference, execution)
    if is_reference or is_code(other):
        name = name_of(code)
        sides = f"{name} is not one" if other is None else f"neither {name_of(other)} nor {name} is one"
        check_kind(["code"], [models], f", and {sides}")
    if pairing.map and pairing.weights == "own":
        raise OptionError(
            f"{spelled('map')} says which weights are the same, and {spelled('weights', 'own')}"
            " that none are."
        )
    forget_places()
    with kept_global_random_state():
        if is_reference:
            return _with_reference(code, other, pairing, progress)
        if is_code(other):
            return _with_code(other, code, pairing, progress)
        return _with_layer(code, other, models, pairing, progress)


def _with_reference(
    code: Any, reference: str | None, pairing: Pairing, progress: Progress
) -> Comparison:
    """Compare code with the textbook's attention, with the same inputs and the same weights.

    Without a reference, it is `mha` if the code has projections, and else `sdpa`.
    """
    if pairing.weights == "own":
        raise OptionError(
            f"{spelled('weights', 'own')} is for two modules, and a reference has no weights of its own."
        )
    with stage(progress, "building both sides …"):
        pairing = _completed(pairing, code)
        first, second, copies = paired(reference, code, pairing)
        _warn_if_nothing_is_drawn(pairing, first, second)
    with stage(progress, "running both sides …"):
        result = comparison_of(first, second, copies, pairing, part="b")
        result = _with_other_numbers_of_keys(result, (reference, code), pairing, "b")
    causes = {each.cause for each in result.divergences or ()}
    if "causal" not in pairing.options and "mask added" in causes:
        result.notices.append(f"{spelled('causal')} hides later keys in {first.title}, too")
    result.notices += _aligned(result, reference, code, pairing)
    return result


def _with_code(a: Any, b: Any, pairing: Pairing, progress: Progress) -> Comparison:
    """Compare two classes or functions, with the same inputs; modules keep the weights they have."""
    with stage(progress, "building both sides …"):
        pairing = _completed(pairing, a, b)
        first, second, copies = paired(a, b, pairing)
        _warn_if_nothing_is_drawn(pairing, first, second)
    with stage(progress, "running both sides …"):
        result = comparison_of(first, second, copies, pairing)
        result = _with_other_numbers_of_keys(result, (a, b), pairing, None)
        return _with_explained_weights(result, (first, second), (a, b), pairing, None)


def _with_layer(
    code: Any, model: Any, models: Models, pairing: Pairing, progress: Progress
) -> Comparison:
    """Compare code with a layer of a model, with its weights and what it receives for a text."""
    pairing = replace(pairing, inputs=inputs_by_name(code, pairing.inputs, pairing.call))
    layer = attention_layer(
        model,
        _index(models.layer, model),
        _one_text(models.text),
        ids=models.ids,
        tokens=models.tokens,
        progress=progress,
    )
    pairing = replace(pairing, dtype=pairing.dtype or layer.dtype)
    first, second, copies = paired_with_layer(layer, code, pairing)
    _warn_if_nothing_is_drawn(pairing, first, second)
    with stage(progress, "running both sides …"):
        result = comparison_of(first, second, copies, pairing, part="a")
        if result.is_equal:
            result = _with_other_constants(result, first, second, copies or [], pairing)
        return _with_explained_weights(result, (first, second), (layer, code), pairing, "a")


def _warn_if_nothing_is_drawn(pairing: Pairing, *sides: Side) -> None:
    """Say that the distribution of drawn inputs has no effect, where no input is drawn."""
    unused = pairing.draw is not None and not any(side.drawn for side in sides)
    warn_unused([(unused, "draw", "no input is drawn")])


def _pairing(
    arguments: ComparedArguments, reference: Reference, execution: ComparedExecution
) -> Pairing:
    """Read the options of a comparison of code."""
    if arguments.weights not in (None, "own", "same"):
        raise OptionError(
            f"{spelled('weights')} is {arguments.weights!r}.",
            hint=spelled_any("weights", ["own", "same"]),
        )
    return Pairing(
        init=arguments.init or (),
        inputs=() if arguments.inputs is None else arguments.inputs,
        where=list(arguments.where or ()),
        call=arguments.call,
        same=_pairs(arguments.same, "same"),
        map=_pairs(arguments.map, "map"),
        weights=arguments.weights,
        options=_options_of(reference),
        backward=arguments.backward,
        dtype=execution.dtype or "",
        seed=execution.seed or 0,
        draw=execution.draw,
    )


def _completed(pairing: Pairing, *codes: Any) -> Pairing:
    """Complete the options with what follows from the code: the names of inputs, and the dtype."""
    return replace(
        pairing,
        inputs=inputs_by_name(codes[0], pairing.inputs, pairing.call),
        dtype=pairing.dtype or dtype_of(codes) or "float32",
    )


def _with_other_constants(
    equal: Comparison, layer: Side, code: Side, copies: Sequence[WeightCopy], pairing: Pairing
) -> Comparison:
    """Compare a model's layer and code again, with other values of weights that are constant in it.

    Gains of one, for example, hide whether a norm comes before or after rotary positions. The weights of
    both sides are changed.
    """
    if layer.module is None or code.module is None:
        return equal
    names = ", ".join(draw_shared(layer.module, code.module, copies, pairing.seed))
    if not names:
        return equal
    again = comparison_of(layer, code, list(copies), pairing, part="a")
    if again.is_equal:
        equal.notices.append(f"equal, too, with other values of {names}, constant in {layer.title}")
        return equal
    again.notices.insert(
        0,
        f"the weights of {layer.title} hide the difference, because {names} are constant there: here"
        " both sides have other values of these",
    )
    return again


N_KEYS = (1, 15, 16, 17, 33, 129)
"""The numbers of keys with which operators that cannot be seen into are tried: around usual tiles."""


def _with_other_numbers_of_keys(
    result: Comparison, targets: tuple[Any, Any], pairing: Pairing, part: str | None
) -> Comparison:
    """Compare with other numbers of keys, if the two are equal, and one side cannot be seen into."""
    codes = [each for each in targets if each is not None and is_code(each)]
    if not result.opaque or not result.is_equal or any(map(is_live, codes)):
        return result
    code = codes[0]
    inputs = by_name(pairing.inputs or fitting_inputs(code, pairing))
    axis, size = axis_of_keys(inputs)
    tried = {size}
    for n in N_KEYS if axis else ():
        sized = re.compile(rf"\b{axis}:\d+")
        texts = {name: sized.sub(f"{axis}:{n}", str(each)) for name, each in inputs.items()}
        other = replace(pairing, inputs=texts, backward=False)
        try:
            again = comparison_of(*paired(*targets, other), other, part=part)
        except AttnscopeError:
            continue  # code may need other sizes
        if again.status == "different":
            known = ", ".join(map(str, sorted(tried)))
            again.notices.insert(0, f"equal with {axis} {known}, and different with {axis} {n}")
            return again
        tried |= {n} if again.is_equal else set()
    result.n_keys = sorted(tried) if len(tried) > 1 else []
    result.notices.append(
        f"{', '.join(result.opaque)} cannot be seen into: only what it returns was compared"
    )
    return result


def _with_explained_weights(
    result: Comparison,
    sides: tuple[Side, Side],
    targets: tuple[Any, Any],
    pairing: Pairing,
    part: str | None,
) -> Comparison:
    """Add to a result with which weights both ran, and whether their weights explain a difference.

    If no common cause explains it, and weights differ, the code is compared with the same weights.
    """
    keeps = keep_weights(*targets, pairing)
    if keeps or all(map(is_live, targets)):
        result.weights_used = "own" if keeps else "same"
    a, b = sides
    if not keeps or result.is_equal or a.module is None or b.module is None:
        return result
    try:
        own = {name: each.clone() for name, each in b.module.named_parameters()}
        copies = with_weights_of(a, b, pairing, draws=False)
        changed = [name for name, each in b.module.named_parameters() if not each.equal(own[name])]
        again = comparison_of(a, b, copies, replace(pairing, backward=False), part=part)
    except AttnscopeError as error:
        result.notices.append(f"whether their weights explain it is unknown: {error.message}")
        return result
    if changed and not result.explained and again.status != "undecided":
        again.weights_used, again.other_weights, again.checks = "own", changed, result.checks
        again.status = "different"
        if pairing.backward:
            again.notices.append("gradients were not compared, because the weights differ")
        return again
    if again.is_equal:
        words = f"with the weights of {a.title} in both, they are equal: only their weights differ"
    elif again.divergences:
        first = again.divergences[0]
        cause = f" ({first.cause})" if first.cause else ""
        words = f"with the same weights they differ, too, first in {first.role}{cause}: so does the code"
    else:
        words = "with the same weights they differ, too"
    result.notices.append(words)
    return result


def _options_of(reference: Reference) -> dict[str, Any]:
    """Return the arguments of the textbook's function or module, with `causal`, `past` and `layout`."""
    corner, past, rope = reference.align, reference.past, reference.rope
    is_idle = not (reference.causal or rope)
    why = f"the reference has neither {spelled('causal')} nor {spelled('rope')}"
    no_theta = f"there are no rotary positions ({spelled('rope')})"
    warn_unused(
        [
            (is_idle and corner is not None, "align", why),
            (is_idle and past is not None, "past", why),
            (reference.rope_theta is not None and not rope, "rope_theta", no_theta),
        ]
    )
    softcap, theta = stages_of(reference.scale, reference.softcap, rope, reference.rope_theta)
    chosen = {
        "causal": reference.causal or None,
        "scale": reference.scale,
        "past": past,
        "align": corner,
        "layout": reference.layout,
        "softcap": softcap,
        "rope_theta": theta,
    }
    return {name: value for name, value in chosen.items() if value is not None}


def _aligned(result: Comparison, reference: str | None, code: Any, pairing: Pairing) -> Iterator[str]:
    """Yield sentences about where the queries of a causal reference are, if there are more keys.

    If the two differ, they are compared with the other alignment, too.
    """
    n_Q, n_K, options = result.sizes.get("n_Q"), result.sizes.get("n_K"), pairing.options
    if n_Q is None or n_K is None or n_Q == n_K or "past" in options or "causal" not in options:
        return
    corner = options.get("align", Corner.TOP_LEFT)
    query, key = (n_Q - 1, n_K - 1) if corner == Corner.BOTTOM_RIGHT else (0, 0)
    place = f"{corner}, query {query} at key {key}"
    yield f"{n_Q} queries, {n_K} keys: {result.a} aligns its causal mask {place}"
    if result.status == "different":
        other = next(each for each in Corner if each != corner)
        again = replace(pairing, options=options | {"align": other}, backward=False)
        if comparison_of(*paired(reference, code, again), again, part="b").is_equal:
            yield f"with {spelled('align', other)}, both are equal"


def _index(layer: int | str | None, model: Any) -> int:
    """Return the index of one layer of what is taken for a model, and may be a mistake."""
    if not isinstance(model, str) and type(model).__module__ == "builtins":
        raise OptionError(f"{described(model)} is neither code nor a model.")
    text = "" if layer is None else str(layer)
    near = nearest(model, REFERENCES) if isinstance(model, str) and not text else None
    if near and not os.path.exists(model):
        raise OptionError(f"{model!r} is neither a reference nor code.", hint=near)
    if not text.isdecimal():
        is_wrong = f"{spelled('layer', text)} is not one layer"
        problem = is_wrong if text else f"{name_of(model)} has several layers"
        raise OptionError(f"{problem}, and the code is compared with one.", hint=spelled(layer=0))
    return int(text)


def _one_text(text: Any) -> str | None:
    if text is None or isinstance(text, str):
        return text
    if len(text) > 1:
        raise OptionError("there are several texts, and the code is compared on one.")
    return text[0] if text else None


def _pairs(texts: Sequence[str] | None, option: str) -> Mapping[str, str]:
    """Return pairs of names, each `NAME=NAME`."""
    pairs = {}
    for text in texts or ():
        name, equals, other = (part.strip() for part in text.partition("="))
        if not (name and equals and other):
            raise OptionError(
                f"{spelled(option)} {text!r} is not a pair of names.",
                hint=spelled(**{option: "NAME=NAME"}),
            )
        pairs[name] = other
    return pairs
