"""`compare`: run two attentions on the same input, and find where they part, and why."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from attnscope.errors import OptionError
from attnscope.process.progress import Progress, silent, stage
from attnscope.results.comparison import Comparison

Texts = Sequence[str] | Mapping[str, Any]
"""Specifications as `NAME=VALUE`; or by name, as texts or objects."""

REFERENCES = ("sdpa", "mha")


def compare(
    a: Any,
    b: Any,
    *,
    init: Texts | None = None,
    inputs: Texts | None = None,
    where: Sequence[str] | None = None,
    call: str | None = None,
    same: Sequence[str] | None = None,
    map: Sequence[str] | None = None,
    causal: bool = False,
    dtype: str | None = None,
    seed: int | None = None,
    progress: Progress = silent,
) -> Comparison:
    """Run two attentions on the same input, and find the first tensor that differs, and why.

    Tensors are found by what is done with them, not by their names, and compared in float64, whatever
    the layout of their axes. What differs by less than rounding in the run's dtype is equal.

    Args:
        a, b: code, as in `attnscope.inspect`: a class or function, itself or as `file.py:NAME`; or a
            reference: `sdpa`, scaled dot-product attention, or `mha`, multi-head attention with the
            same weights. The result calls the reference a.
        init: arguments of the classes, each for the side that has a parameter of that name.
        inputs: arguments of the calls; None: the usual ones, with another size for every axis.
        where: equations between sizes.
        call: the method to call; None: `forward`.
        same: parameters of the two sides that get the same value, where names and roles do not show
            it: `["query=x"]`.
        map: weights of the two sides that are the same, where their role does not show it:
            `["lin_Q.weight=W_Q.weight"]`.
        causal: whether the reference hides later keys.
        dtype: the dtype of the run: float32 (None), float64, float16 or bfloat16.
        seed: the seed of weights and inputs; None: 0.
        progress: receives sentences about what is being done.

    Raises:
        AttnscopeError: one side cannot run, or the two are not comparable.

    >>> import attnscope
    >>> sizes = {"embed_dim": 24, "num_heads": 4, "batch_first": True}
    >>> inputs = {"query": "2,5,embed_dim", "key": "2,7,embed_dim", "value": "2,7,embed_dim"}
    >>> attnscope.compare("torch.nn:MultiheadAttention", "mha", init=sizes, inputs=inputs).status
    'equal'
    """
    from attnscope.comparison.report import comparison_of
    from attnscope.comparison.sides.pair import Pairing, paired
    from attnscope.process.random_state import kept_global_random_state

    if _is_reference(a) and _is_reference(b):
        raise OptionError(
            f"{a} and {b} are both references.", hint="attnscope compare FILE.py:NAME sdpa"
        )
    if _is_reference(b):
        a, b = b, a
    if causal and not _is_reference(a):
        raise OptionError("--causal is for the references sdpa and mha: your code decides itself.")
    pairing = Pairing(
        init=init or (),
        inputs=inputs or (),
        where=list(where or ()),
        call=call,
        same=_pairs(same, "--same"),
        map=_pairs(map, "--map"),
        options={"causal": True} if causal else {},
        dtype=dtype or "float32",
        seed=seed or 0,
    )
    with kept_global_random_state():
        with stage(progress, "building both sides …"):
            first, second, copies = paired(a, b, pairing)
        with stage(progress, "running both sides …"):
            return comparison_of(first, second, copies, pairing)


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
