"""`compare`: two attentions on the same input, or two models head by head."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from attnscope.errors import OptionError
from attnscope.options import is_code, refuse
from attnscope.process.progress import Progress, silent, stage
from attnscope.results.comparison import Comparison

if TYPE_CHECKING:
    from attnscope.comparison.sides.pairing import Pairing
    from attnscope.results.differences import HeadDifferences, MapDifferences

Texts = Sequence[str] | Mapping[str, Any]
"""Specifications as `NAME=VALUE`; or by name, as texts or objects."""

REFERENCES = ("sdpa", "mha")


def compare(  # long, because it takes the options of all kinds of comparison
    a: Any,
    b: Any = None,
    *,
    init: Texts | None = None,
    inputs: Texts | None = None,
    where: Sequence[str] | None = None,
    call: str | None = None,
    same: Sequence[str] | None = None,
    map: Sequence[str] | None = None,
    causal: bool = False,
    scale: float | None = None,
    rope: bool = False,
    rope_theta: float | None = None,
    softcap: float | None = None,
    backward: bool = False,
    layer: int | str | None = None,
    head: int | str | None = None,
    text: str | Sequence[str] | None = None,
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
        inputs: arguments of the calls; None: the usual ones, with another size for every axis; or what
            the layer of a model receives.
        where: equations between sizes.
        call: the method to call; None: `forward`.
        same: parameters of the two sides that get the same value, where names and roles do not show
            it: `["query=x"]`.
        map: weights of the two sides that are the same, where their role does not show it:
            `["lin_Q.weight=W_Q.weight"]`.
        causal: whether the reference hides later keys.
        scale: the factor of the reference's scores; None: 1/√d_K.
        rope, rope_theta: whether the reference has rotary positions (halves, as in Llama), and their
            base; None: 10000.
        softcap: the bound for soft-capping the reference's scores.
        backward: whether to compare the gradients of inputs and weights, too.
        layer: the layer of a model, from 0; the code gets its weights, and the input that it has in
            the model. Of two models: an index, several, or a range `0-3`; None: all.
        head: the heads of two models, likewise.
        text: what a model reads; beside code, None is a short sentence. Two texts for one model.
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
    of_code: dict[str, Any] = {
        "--init": init,
        "--input": inputs,
        "--where": where,
        "--call": call,
        "--same": same,
    }
    of_code |= {"--map": map, "--backward": backward, "--seed": seed}
    of_reference = {"--causal": causal, "--scale": scale, "--rope": rope}
    of_reference |= {"--rope-theta": rope_theta, "--softcap": softcap}
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
        return _models(
            a, b, text, layers=layer, heads=head, adapter=adapter, sort=sort, reverse=reverse, top=top,
            dtype=dtype, progress=progress,
        )  # fmt: skip
    refuse(of_models, "is for two models, and one side is code")
    if b is not None and not (_is_reference(a) or _is_reference(b)):
        refuse(of_reference, "is for the references sdpa and mha: other sides decide themselves")
    from attnscope.comparison.sides.pairing import Pairing

    pairing = Pairing(
        init=init or (),
        inputs=inputs or (),
        where=list(where or ()),
        call=call,
        same=_pairs(same, "--same"),
        map=_pairs(map, "--map"),
        options=_options_of_reference(causal, scale, rope, rope_theta, softcap),
        backward=backward,
        dtype=dtype or "",
        seed=seed or 0,
    )
    return _code(a, b, pairing, layer, text, progress)


def _code(
    a: Any, b: Any, pairing: Pairing, layer: int | str | None, text: Any, progress: Progress
) -> Comparison:
    """Compare code with a reference, a model's layer, or other code."""
    from attnscope.comparison.anatomy.place import forget_places
    from attnscope.comparison.report import comparison_of
    from attnscope.comparison.sides.pair import paired, paired_with_layer
    from attnscope.process.random_state import kept_global_random_state

    if b is None or not is_code(b):
        a, b = b, a
    is_reference = a is None or _is_reference(a)
    is_model = not is_reference and not is_code(a)
    if not is_model and (layer is not None or text is not None):
        option = "--layer" if layer is not None else "--text"
        sides = f"{b} is not one" if a is None else f"neither {a} nor {b} is one"
        raise OptionError(f"{option} is for a model, and {sides}.")
    forget_places()
    with kept_global_random_state():
        if is_model:
            from attnscope.models.attention_layer import attention_layer

            attention = attention_layer(a, _index(layer, a), _one_text(text), progress=progress)
            pairing = replace(pairing, dtype=pairing.dtype or attention.dtype)
            first, second, copies = paired_with_layer(attention, b, pairing)
        else:
            with stage(progress, "building both sides …"):
                pairing = replace(pairing, dtype=pairing.dtype or "float32")
                first, second, copies = paired(a, b, pairing)
        with stage(progress, "running both sides …"):
            part = "a" if is_model else "b" if is_reference else None
            result = comparison_of(first, second, copies, pairing, part=part)
    causes = {each.cause for each in result.divergences or ()}
    if is_reference and "causal" not in pairing.options and "mask added" in causes:
        result.notices.append(f"--causal hides later keys in {first.title}, too")
    return result


def _options_of_reference(
    causal: bool, scale: float | None, rope: bool, rope_theta: float | None, softcap: float | None
) -> dict[str, Any]:
    """Return the arguments of the textbook's function or module, and `causal`.

    Raises:
        OptionError: a value is invalid.
    """
    from attnscope.textbook.options import Masking, Scale, Stages
    from attnscope.textbook.variants import variants_of

    stages = Stages(softcap=softcap, rope=rope, rope_theta=rope_theta)
    variants = variants_of(Masking(), Scale(scale), stages)
    chosen = {"causal": causal or None, "scale": scale}
    chosen |= {"softcap": variants.softcap, "rope_theta": variants.theta}
    return {name: value for name, value in chosen.items() if value is not None}


def _models(a: Any, b: Any, text: Any, **options: Any) -> HeadDifferences | MapDifferences:
    """Compare the weights of two models, or what they attend to."""
    texts = [text] if isinstance(text, str) else list(text or ())
    if len(texts) > 2:
        raise OptionError(f"there are {len(texts)} texts, and two can be compared.")
    if texts:
        from attnscope.models.compare_maps import compare_maps

        return compare_maps(a, b, texts[0], other_text=texts[1] if texts[1:] else None, **options)
    from attnscope.models.compare_checkpoints import compare_checkpoints

    if options.pop("dtype") is not None:
        raise OptionError(
            "--dtype is for runs, and weights are compared as they are stored.", hint='--text "…"'
        )
    return compare_checkpoints(a, b, **options)


def _index(layer: int | str | None, model: Any) -> int:
    """Return the index of one layer."""
    text = "" if layer is None else str(layer)
    if not text.isdecimal():
        problem = f"--layer {text} is not one layer" if text else f"{model} has several layers"
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
