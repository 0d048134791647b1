"""`compare`: two attentions on the same input, or two models head by head."""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from attnscope.comparison.options import Corner
from attnscope.comparison.result import Comparison
from attnscope.errors import OptionError, warn_idle
from attnscope.options import is_code, one_of, refuse
from attnscope.process.devices import check_seed
from attnscope.process.progress import Progress, silent, stage
from attnscope.text import described, nearest

if TYPE_CHECKING:
    from attnscope.comparison.map_differences import HeadDifferences, MapDifferences
    from attnscope.implementations.implementation import Side
    from attnscope.implementations.options import Pairing
    from attnscope.implementations.weight_copy import WeightCopy
    from attnscope.textbook.options import Stages

Texts = Sequence[str] | Mapping[str, Any]
Inputs = Any
"""Tensors, texts `NAME=AXES`, or either by name."""
"""Specifications as `NAME=VALUE`; or by name, as texts or objects."""

REFERENCES = ("sdpa", "mha")


def compare(
    a: Any,
    b: Any = None,
    *args: Any,
    init: Texts | None = None,
    inputs: Inputs = None,
    where: Sequence[str] | None = None,
    call: str | None = None,
    same: Sequence[str] | None = None,
    map: Sequence[str] | None = None,
    weights: str | None = None,
    causal: bool = False,
    align: str | None = None,
    past: int | None = None,
    layout: str | None = None,
    scale: float | None = None,
    rope: bool = False,
    rope_theta: float | None = None,
    softcap: float | None = None,
    backward: bool = False,
    layer: int | str | None = None,
    head: int | str | None = None,
    text: str | Sequence[str] | None = None,
    ids: Any = None,
    tokens: str | Sequence[str] | None = None,
    adapter: Any = None,
    sort: str | None = None,
    reverse: bool = False,
    top: int | None = None,
    dtype: str | None = None,
    seed: int | None = None,
    progress: Progress = silent,
) -> Comparison | HeadDifferences | MapDifferences:
    """Compare two attentions on the same input, and find the first tensor that differs, and why.

    Tensors are found by what is done with them, not by their names, and compared in float64, whatever
    the layout of their axes. What differs by less than rounding in the run's dtype is equal. Two
    models are compared head by head: their weights, or what they attend to in a text; one model, in
    two texts.

    Args:
        a, b: code, as in `attnscope.inspect`: a class or function, itself or as `file.py:NAME`; a
            reference: `sdpa`, scaled dot-product attention, or `mha`, multi-head attention with the
            same weights; or a model, as in `head_weights`. Code alone is compared with the reference
            that fits: `mha` if it has projections. The result calls the reference a.
        init: arguments of the classes, each for the side that has a parameter of that name. Those that
            follow from a model's configuration need not be given.
        args: tensors that the code is called with, by position; they are cast to the dtype of the run.
        inputs: the same by name, as a list, or a tensor alone; or specifications; None: the usual ones,
            with another size for every axis; or what the layer of a model receives.
        where: equations between sizes.
        call: the method to call; None: `forward`.
        same: parameters of the two sides that get the same value, where names and roles do not show
            it: `["query=x"]`.
        map: weights of the two sides that are the same, where their role does not show it:
            `["lin_Q.weight=W_Q.weight"]`; or a weight and its role, `["two.weight=W_K"]`.
        weights: with which weights two modules that already exist are compared: `own` (None), or `same`,
            those of a for both, which asks whether the code is equal. Classes get the same weights, and
            `own` leaves theirs as drawn.
        causal: whether the reference hides later keys.
        align: where the reference has its queries among more keys: `top-left`, query 0 at key 0, or
            `bottom-right`, the last query at the last key; None: top-left.
        past: the number of keys before that of query 0, instead of `align`.
        layout: how a function takes vectors: `rows` (None), or `columns`, as in V·softmax(KᵀQ/√d_K).
        scale: the factor of the reference's scores; None: 1/√d_K.
        rope, rope_theta: whether the reference has rotary positions (halves, as in Llama), and their
            base; None: 10000.
        softcap: the bound for soft-capping the reference's scores.
        backward: whether to compare the gradients of inputs and weights, too.
        layer: the layer of a model, from 0; the code gets its weights, and the input that it has in
            the model. Of two models: an index, several, or a range `0-3`; None: all.
        head: the heads of two models, likewise.
        text: what a model reads; beside code, None is a short sentence. Two texts for one model.
        ids, tokens: token ids, or entries of the vocabulary, that a model beside code reads instead of a
            text; for these, it needs no tokenizer.
        adapter: a folder with a LoRA adapter, which is merged into b, or into a if there is no b.
        sort, reverse, top: how heads of two models are ranked, and how many are shown.
        dtype: the dtype of the run of code: float64, float32, float16 or bfloat16; None: that of the
            model, if one side is one, or else float32.
        seed: the seed of weights and inputs of code; None: 0.
        progress: receives sentences about what is being done.

    Raises:
        AttnscopeError: one side cannot run, or the two are not comparable.

    >>> import attnscope
    >>> sizes = {"embed_dim": 24, "num_heads": 4, "batch_first": True}
    >>> inputs = {"query": "2,5,embed_dim", "key": "2,7,embed_dim", "value": "2,7,embed_dim"}
    >>> attnscope.compare("torch.nn:MultiheadAttention", "mha", init=sizes, inputs=inputs).status
    'equal'
    """
    check_seed(seed or 0)
    if hasattr(b, "dtype") and hasattr(b, "shape"):  # a tensor, as in compare(module, x)
        b, args = None, (b, *args)
    if args and inputs is not None:
        raise OptionError("the inputs are given twice, by position and as inputs.")
    inputs = args or inputs
    of_code: dict[str, Any] = {
        "--init": init,
        "--input": None if inputs is None else True,
        "--where": where,
        "--call": call,
        "--same": same,
    }
    of_code |= {"--map": map, "--weights": weights, "--backward": backward, "--seed": seed}
    of_reference: dict[str, Any] = {"--causal": causal, "--scale": scale, "--rope": rope}
    of_reference |= {"--rope-theta": rope_theta, "--softcap": softcap, "--align": align, "--past": past}
    of_reference |= {"--layout": layout}
    of_models = {
        "--head": head,
        "--adapter": adapter,
        "--sort": sort,
        "--reverse": reverse,
        "--top": top,
    }
    if not is_code(a) and not is_code(b):
        if _is_reference(a) or _is_reference(b):
            raise OptionError(
                f"{a if _is_reference(a) else b} is a reference, and code is compared with it.",
                hint="attnscope compare FILE.py:NAME sdpa",
            )
        refuse(of_code | of_reference, "is for code, and both are models")
        refuse({"--ids": ids, "--tokens": tokens}, "is for a model beside code, and both are models")
        return _models(
            a, b, text, layers=layer, heads=head, adapter=adapter, sort=sort, reverse=reverse, top=top,
            dtype=dtype, progress=progress,
        )  # fmt: skip
    refuse(of_models, "is for two models, and one side is code")
    if b is not None and not (_is_reference(a) or _is_reference(b)):
        refuse(of_reference, "is for the references sdpa and mha: other sides decide themselves")
    from attnscope.implementations.options import Pairing
    from attnscope.textbook.options import Stages

    pairing = Pairing(
        init=init or (),
        inputs=() if inputs is None else inputs,
        where=list(where or ()),
        call=call,
        same=_pairs(same, "--same"),
        map=_pairs(map, "--map"),
        weights=_whose(weights),
        options=_options_of_reference(
            causal, align, past, scale, Stages(softcap, rope, rope_theta), layout
        ),
        backward=backward,
        dtype=dtype or "",
        seed=seed or 0,
    )
    return _code(a, b, pairing, layer, {"text": text, "ids": ids, "tokens": tokens}, progress)


def fitting_inputs(target: Any, **options: Any) -> list[str]:
    """Return the inputs that `compare` draws for code of which none are given, as specifications.

    Args:
        target: the code, as in `compare`.
        options: `init`, `where`, `call`, `dtype` and `seed`, as in `compare`; others do not matter.

    Raises:
        AttnscopeError: it cannot be built, or the usual inputs do not fit.
    """
    from attnscope.implementations.code import fitting_inputs
    from attnscope.implementations.options import Pairing
    from attnscope.process.random_state import kept_global_random_state

    with kept_global_random_state():
        pairing = Pairing(
            init=options.get("init") or (),
            where=list(options.get("where") or ()),
            call=options.get("call"),
            dtype=options.get("dtype") or "float32",
            seed=options.get("seed") or 0,
        )
        return list(fitting_inputs(target, pairing))


def _code(
    a: Any,
    b: Any,
    pairing: Pairing,
    layer: int | str | None,
    reading: Mapping[str, Any],
    progress: Progress,
) -> Comparison:
    """Compare code with a reference, a model's layer, or other code."""
    from attnscope.comparison.own_weights import explain_weights
    from attnscope.comparison.report import comparison_of
    from attnscope.implementations.inputs import inputs_by_name, name_of
    from attnscope.implementations.same_inputs import dtype_of, paired, paired_with_layer
    from attnscope.observe.operators.place import forget_places
    from attnscope.process.random_state import kept_global_random_state

    if b is None or not is_code(b):
        a, b = b, a
    is_reference = a is None or _is_reference(a)
    is_model = not is_reference and not is_code(a)
    of_model = [name for name, value in {"layer": layer, **reading}.items() if value is not None]
    if not is_model and of_model:
        option = f"--{of_model[0]}"
        name = name_of(b)
        sides = f"{name} is not one" if a is None else f"neither {name_of(a)} nor {name} is one"
        raise OptionError(f"{option} is for a model, and {sides}.")
    if len(of_model) - ("layer" in of_model) > 1:
        raise OptionError(f"--{' and --'.join(of_model[-2:])} exclude each other.")
    if is_reference and pairing.weights == "own":
        raise OptionError("--weights own is for two modules, and a reference has no weights of its own.")
    if pairing.map and pairing.weights == "own":
        raise OptionError("--map says which weights are the same, and --weights own that none are.")
    forget_places()
    with kept_global_random_state():
        codes = [each for each in (a, b) if not (is_reference or is_model) or each is b]
        pairing = replace(pairing, inputs=inputs_by_name(codes[0], pairing.inputs, pairing.call))
        if is_model:
            from attnscope.models.attention_layer import attention_layer

            attention = attention_layer(
                a,
                _index(layer, a),
                _one_text(reading["text"]),
                ids=reading["ids"],
                tokens=reading["tokens"],
                progress=progress,
            )
            pairing = replace(pairing, dtype=pairing.dtype or attention.dtype)
            first, second, copies = paired_with_layer(attention, b, pairing)
        else:
            with stage(progress, "building both sides …"):
                pairing = replace(pairing, dtype=pairing.dtype or dtype_of(codes) or "float32")
                first, second, copies = paired(a, b, pairing)
        with stage(progress, "running both sides …"):
            part = "a" if is_model else "b" if is_reference else None
            result = comparison_of(first, second, copies, pairing, part=part)
            if is_model and result.is_equal:
                result = _with_other_constants(result, first, second, copies or [], pairing)
            if not is_reference:
                targets = attention if is_model else a, b
                explain_weights(result, (first, second), targets, pairing, part)
    causes = {each.cause for each in result.divergences or ()}
    if is_reference and "causal" not in pairing.options and "mask added" in causes:
        result.notices.append(f"--causal hides later keys in {first.title}, too")
    if is_reference:
        with kept_global_random_state():
            result.notices += _aligned(result, a, b, pairing)
    return result


def _with_other_constants(
    equal: Comparison, layer: Side, code: Side, copies: Sequence[WeightCopy], pairing: Pairing
) -> Comparison:
    """Compare a model's layer and code again, with other values of weights that are constant in it.

    Gains of one, for example, hide whether a norm comes before or after rotary positions.

    Args:
        equal: what was found with the model's own weights; returned if the two are equal again.
        layer, code: the sides; their weights are changed.
        copies: which weights they share.
        pairing: the options.
    """
    from attnscope.comparison.report import comparison_of
    from attnscope.implementations.drawn import draw_shared

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


def _options_of_reference(
    causal: bool,
    align: str | None,
    past: int | None,
    scale: float | None,
    stages: Stages,
    layout: str | None,
) -> dict[str, Any]:
    """Return the arguments of the textbook's function or module, `causal`, `align`, `past` and `layout`.

    Raises:
        OptionError: a value is invalid.
    """
    from attnscope.textbook.options import Masking, Scale, VectorLayout
    from attnscope.textbook.variants import variants_of

    corner = one_of(Corner, "--align", align)
    if corner is not None and past is not None:
        raise OptionError("--align and --past both say which key query 0 is at.", hint="one of them")
    is_idle = not (causal or stages.rope)
    why = "the reference has neither --causal nor --rope"
    warn_idle(
        [(is_idle and align is not None, "--align", why), (is_idle and past is not None, "--past", why)]
    )
    variants = variants_of(Masking(), Scale(scale), stages)
    chosen: dict[str, Any] = {"causal": causal or None, "scale": scale, "past": past, "align": corner}
    chosen["layout"] = one_of(VectorLayout, "--layout", layout)
    chosen |= {"softcap": variants.softcap, "rope_theta": variants.theta}
    return {name: value for name, value in chosen.items() if value is not None}


def _aligned(result: Comparison, a: Any, b: Any, pairing: Pairing) -> Iterator[str]:
    """Yield sentences about where the queries of a causal reference are, if there are more keys.

    If the two differ, they are compared with the other alignment, too.
    """
    from attnscope.comparison.report import comparison_of
    from attnscope.implementations.same_inputs import paired

    n_Q, n_K, options = result.sizes.get("n_Q"), result.sizes.get("n_K"), pairing.options
    if n_Q is None or n_K is None or n_Q == n_K or "past" in options or "causal" not in options:
        return
    corner = options.get("align", Corner.TOP_LEFT)
    query, key = (n_Q - 1, n_K - 1) if corner is Corner.BOTTOM_RIGHT else (0, 0)
    place = f"{corner}, query {query} at key {key}"
    yield f"{n_Q} queries, {n_K} keys: {result.a} aligns its causal mask {place}"
    if result.status == "different":
        other = next(each for each in Corner if each is not corner)
        again = replace(pairing, options=options | {"align": other}, backward=False)
        if comparison_of(*paired(a, b, again), again, part="b").is_equal:
            yield f"with --align {other}, both are equal"


def _models(a: Any, b: Any, text: Any, **options: Any) -> HeadDifferences | MapDifferences:
    """Compare the weights of two models, or what they attend to."""
    texts = [text] if isinstance(text, str) else list(text or ())
    if len(texts) > 2:
        raise OptionError(f"there are {len(texts)} texts, and two can be compared.")
    if texts:
        from attnscope.comparison.maps import compare_maps

        return compare_maps(a, b, texts[0], other_text=texts[1] if texts[1:] else None, **options)
    from attnscope.comparison.checkpoints import compare_checkpoints

    if options.pop("dtype") is not None:
        raise OptionError(
            "--dtype is for runs, and weights are compared as they are stored.", hint='--text "…"'
        )
    return compare_checkpoints(a, b, **options)


def _whose(weights: str | None) -> str | None:
    """Return whose weights two modules have: None, `own` or `same`."""
    if weights not in (None, "own", "same"):
        raise OptionError(f"--weights is {weights!r}.", hint="--weights own or same")
    return weights


def _index(layer: int | str | None, model: Any) -> int:
    """Return the index of one layer of what is taken for a model, and may be a mistake."""
    from attnscope.implementations.inputs import name_of

    if not isinstance(model, str) and type(model).__module__ == "builtins":
        raise OptionError(f"{described(model)} is neither code nor a model.")
    text = "" if layer is None else str(layer)
    near = nearest(model, REFERENCES) if isinstance(model, str) and not text else None
    if near and not os.path.exists(model):
        raise OptionError(f"{model!r} is neither a reference nor code.", hint=near)
    if not text.isdecimal():
        problem = f"--layer {text} is not one layer" if text else f"{name_of(model)} has several layers"
        raise OptionError(f"{problem}, and the code is compared with one.", hint="--layer 0")
    return int(text)


def _one_text(text: Any) -> str | None:
    if text is None or isinstance(text, str):
        return text
    if len(text) > 1:
        raise OptionError("there are several texts, and the code is compared on one.")
    return text[0] if text else None


def _is_reference(side: Any) -> bool:
    return isinstance(side, str) and side in REFERENCES


def _pairs(texts: Sequence[str] | None, option: str) -> Mapping[str, str]:
    """Return pairs of names, each `NAME=NAME`."""
    pairs = {}
    for text in texts or ():
        name, equals, other = (part.strip() for part in text.partition("="))
        if not (name and equals and other):
            raise OptionError(f"{option} {text!r} is not a pair of names.", hint=f"{option} NAME=NAME")
        pairs[name] = other
    return pairs
