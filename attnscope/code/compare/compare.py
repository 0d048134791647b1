"""`compare`: two attentions on the same input, or two models head by head."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from attnscope.base.errors import OptionError
from attnscope.base.options import Texts, check_kind, inputs_of, is_code, with_keywords
from attnscope.base.process.progress import Progress, silent
from attnscope.base.spelling import spelled
from attnscope.code.compare.options import (
    REFERENCES,
    ComparedArguments,
    ComparedExecution,
    Models,
    Reference,
)

if TYPE_CHECKING:
    from attnscope.code.compare.result import Comparison
    from attnscope.model.maps.differences import MapDifferences
    from attnscope.model.weights.differences import HeadDifferences


@with_keywords
def compare(
    a: Any,
    b: Any = None,
    *args: Any,
    arguments: ComparedArguments,
    reference: Reference,
    models: Models,
    execution: ComparedExecution,
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
        args: tensors that the code is called with, by position; they are cast to the dtype of the run.
        progress: receives sentences about what is being done.

    Raises:
        AttnscopeError: one side cannot run, or the two are not comparable.

    >>> import attnscope
    >>> sizes = {"embed_dim": 24, "num_heads": 4, "batch_first": True}
    >>> inputs = {"query": "2,5,embed_dim", "key": "2,7,embed_dim", "value": "2,7,embed_dim"}
    >>> attnscope.compare("torch.nn:MultiheadAttention", "mha", init=sizes, inputs=inputs).status
    'equal'
    """
    if hasattr(b, "dtype") and hasattr(b, "shape"):  # a tensor, as in compare(module, x)
        b, args = None, (b, *args)
    arguments = replace(arguments, inputs=inputs_of(args, arguments.inputs))
    if is_code(a) or is_code(b):
        from attnscope.code.compare.of_code import compare_code

        return compare_code(a, b, arguments, reference, models, execution, progress)
    for each in (a, b):
        if isinstance(each, str) and each in REFERENCES:
            raise OptionError(
                f"{each} is a reference, and code is compared with it.",
                hint="attnscope compare FILE.py:NAME sdpa",
            )
    of_code = [arguments, execution, reference]
    check_kind(["two models", "a model"], [*of_code, models], ", and both are models")
    return _compare_models(a, b, models, execution.dtype, progress)


def _compare_models(
    a: Any, b: Any, models: Models, dtype: str | None, progress: Progress
) -> HeadDifferences | MapDifferences:
    """Compare the weights of two models; or, if there is a text, what they attend to."""
    texts = [models.text] if isinstance(models.text, str) else list(models.text or ())
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
        from attnscope.model.maps.compare_maps import compare_maps

        other = texts[1] if texts[1:] else None
        return compare_maps(a, b, texts[0], other_text=other, dtype=dtype, **options)
    if dtype is not None:
        raise OptionError(
            f"{spelled('dtype')} is for runs, and weights are compared as they are stored.",
            hint=spelled(text="…"),
        )
    from attnscope.model.weights.compare_checkpoints import compare_checkpoints

    return compare_checkpoints(a, b, **options)


def fitting_inputs(
    target: Any,
    *,
    init: Texts | None,
    where: Sequence[str] | None,
    call: str | None,
    dtype: str | None,
    seed: int | None,
) -> list[str]:
    """Return the inputs that `compare` draws for code of which none are given, as specifications.

    The options are those of `compare`.

    Raises:
        AttnscopeError: the code cannot be built, or the usual inputs do not fit.
    """
    from attnscope.base.process.random_state import kept_global_random_state
    from attnscope.code.pairs.code import fitting_inputs
    from attnscope.code.pairs.pairing import Pairing

    pairing = Pairing(
        init or (), where=list(where or ()), call=call, dtype=dtype or "float32", seed=seed or 0
    )
    with kept_global_random_state():
        return list(fitting_inputs(target, pairing))
