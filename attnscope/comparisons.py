"""`compare`: two attentions on the same input, or two models head by head."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from attnscope.comparison.options import (
    REFERENCES,
    ComparedArguments,
    ComparedExecution,
    Models,
    Reference,
)
from attnscope.errors import OptionError
from attnscope.options import flags_of, group_of, is_code, refuse
from attnscope.process.devices import check_seed
from attnscope.process.progress import Progress, silent

if TYPE_CHECKING:
    from attnscope.comparison.result import Comparison
    from attnscope.maps.differences import MapDifferences
    from attnscope.weights.differences import HeadDifferences

Texts = Sequence[str] | Mapping[str, Any]
"""Specifications as `NAME=VALUE`; or by name, as texts or objects."""
Inputs = Any
"""Tensors, texts `NAME=AXES`, or either by name."""


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
    keywords = locals()
    arguments = group_of(ComparedArguments, keywords)
    reference = group_of(Reference, keywords)
    models = group_of(Models, keywords)
    if not (is_code(a) or is_code(b)):
        for each in (a, b):
            if isinstance(each, str) and each in REFERENCES:
                raise OptionError(
                    f"{each} is a reference, and code is compared with it.",
                    hint="attnscope compare FILE.py:NAME sdpa",
                )
        of_code = flags_of(arguments) | {"--seed": seed} | flags_of(reference)
        refuse(of_code, "is for code, and both are models")
        refuse({"--ids": ids, "--tokens": tokens}, "is for a model beside code, and both are models")
        return _compare_models(a, b, models, dtype, progress)
    of_models = {"--head": head, "--adapter": adapter, "--sort": sort, "--reverse": reverse}
    refuse(of_models | {"--top": top}, "is for two models, and one side is code")
    from attnscope.comparison.of_code import compare_code

    return compare_code(a, b, arguments, reference, models, ComparedExecution(dtype, seed), progress)


def _compare_models(
    a: Any, b: Any, models: Models, dtype: str | None, progress: Progress
) -> HeadDifferences | MapDifferences:
    """Compare the weights of two models; or, if there is a text, what they attend to."""
    text = models.text
    texts = [text] if isinstance(text, str) else list(text or ())
    if len(texts) > 2:
        raise OptionError(f"there are {len(texts)} texts, and two can be compared.")
    options: dict[str, Any] = {
        "layers": models.layer,
        "heads": models.head,
        "adapter": models.adapter,
        "sort": models.sort,
        "reverse": models.reverse,
        "top": models.top,
        "progress": progress,
    }
    if texts:
        from attnscope.maps.compare_maps import compare_maps

        other = texts[1] if texts[1:] else None
        return compare_maps(a, b, texts[0], other_text=other, dtype=dtype, **options)
    if dtype is not None:
        raise OptionError(
            "--dtype is for runs, and weights are compared as they are stored.", hint='--text "…"'
        )
    from attnscope.weights.compare_checkpoints import compare_checkpoints

    return compare_checkpoints(a, b, **options)


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
