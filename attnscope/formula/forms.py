"""The plans and calls of `sdpa` in its three forms: by rows, by columns, and for one query."""

from __future__ import annotations

from typing import Any

from attnscope.attention.mask_rules import Masks
from attnscope.base.errors import OptionError, SizeError
from attnscope.base.options import Distribution, VectorLayout, keywords, one_of
from attnscope.base.sizes import check_sizes
from attnscope.base.spelling import spelled
from attnscope.formula.computation import Computation, TextbookCall
from attnscope.formula.inputs.resolve import RunInputs, inputs_of_sdpa, open_tensors
from attnscope.formula.options import (
    Form,
    Masking,
    RunOptions,
    Scale,
    SdpaSizes,
    SdpaTensors,
    Stages,
)
from attnscope.formula.variants import Variants, variants_of
from attnscope.observe import contracts
from attnscope.observe.trace import Trace

CODE = {
    "sdpa": ("attnscope.attention.sdpa", "sdpa"),
    "columns": ("attnscope.attention.columns", "sdpa_columns"),
    "query": ("attnscope.attention.one_query", "sdpa_query"),
}
DRAWN = {"Q", "K", "V", "K_past", "V_past"}
"""The inputs that are drawn if the user does not pass them."""


def sdpa_computation(
    sizes: SdpaSizes,
    tensors: SdpaTensors,
    masking: Masking,
    scale: Scale,
    stages: Stages,
    form: Form,
    run: RunOptions,
) -> Computation:
    """Plan `sdpa` in the selected form.

    Raises:
        AttnscopeError: options are invalid, or do not fit together.
    """
    variants = variants_of(masking, scale, stages)
    by_axis = {"n_batch": sizes.batch, "n_head": sizes.heads, "n_kv_head": sizes.kv_heads}
    by_axis |= {"n_Q": sizes.nq, "n_new": sizes.nk, "n_past": sizes.past or None}
    by_axis |= {"d_K": sizes.dk, "d_V": sizes.dv}
    columns = one_of(VectorLayout, "layout", form.layout) is VectorLayout.COLUMNS
    files = open_tensors(keywords(tensors))
    inputs = inputs_of_sdpa(by_axis, files, variants.masks.files, run.dtype, columns=columns)
    inputs.distribution = one_of(Distribution, "draw", run.draw)
    _check_values(sizes.nv, inputs)
    _check_form(form, inputs, rope=bool(stages.rope))
    masks = variants.masks_for(inputs.sizes, inputs.dtype, columns=columns)
    name = "columns" if columns else "sdpa" if form.query is None else "query"
    return form_computation(name, inputs, variants, masks, query=form.query)


def form_computation(
    form: str, inputs: RunInputs, variants: Variants, masks: Masks, *, query: int | None
) -> Computation:
    """Plan one form: `sdpa` (by rows), `columns` or `query`.

    Args:
        form: the name of the form.
        inputs: the inputs of the run.
        variants: they select the stages.
        masks: the masks as they are applied.
        query: the index of the query, for the form `query`.
    """
    plan = _plan(form, inputs, variants, masks)
    if query is not None:
        plan.options["query"] = query
    code = [CODE[form]]
    if "X" in inputs.files:
        project = "project_columns" if form == "columns" else "project"
        code.insert(0, ("attnscope.attention.projection", project))
    names = {step.name for step in plan.steps if step.how == "input"}
    drawn_inputs = DRAWN & (names - set(inputs.files))
    return Computation(
        plan,
        lambda device: _calls(form, plan, inputs, variants, masks, device),
        masks,
        tuple(code),
        drawn=bool(drawn_inputs),
        drawn_inputs=drawn_inputs,
    )


def _plan(form: str, inputs: RunInputs, variants: Variants, masks: Masks) -> Trace:
    """Return the plan of a form according to its contract."""
    contract = {
        "sdpa": contracts.sdpa,
        "columns": contracts.sdpa_columns,
        "query": contracts.sdpa_query,
    }[form]
    variant = variants.contract(
        inputs.sizes,
        masks,
        scale=variants.scale,
        split=inputs.split,
        embeddings="X" in inputs.files,
    )
    plan = contract(inputs.sizes, dtype=inputs.dtype, variant=variant)
    scale = inputs.sizes["d_K"] ** -0.5 if variants.scale is None else variants.scale
    plan.options = {"scale": scale} | ({"scale_by": "d_K"} if variants.scale is None else {})
    plan.options |= {"layout": "columns"} if form == "columns" else {}
    plan.options |= variants.described(masks, inputs.dtype)
    return plan


def _calls(
    form: str, plan: Trace, inputs: RunInputs, variants: Variants, masks: Masks, device: str
) -> list[TextbookCall]:
    """Return the calls of a run: the projections, if there are any, then the formula."""
    from attnscope.attention.columns import sdpa_columns
    from attnscope.attention.one_query import sdpa_query
    from attnscope.attention.projection import project, project_columns
    from attnscope.attention.sdpa import sdpa

    columns = form == "columns"
    tensors: dict[str, Any] = {}
    for step in plan.steps:
        if step.how != "input" or step.name == "mask":
            continue
        tensors[step.name] = inputs.tensor(step.name, step.shape, device)
    if masks:
        mask = masks.build(plan.sizes, inputs.dtype, device)
        tensors["mask"] = mask.mT.contiguous() if columns else mask
    options = variants.arguments(masks) | variants.of_sequences(masks)
    options |= {} if variants.scale is None else {"scale": variants.scale}
    if inputs.split:
        options |= {"n_head": plan.sizes["n_head"], "n_kv_head": inputs.sizes["n_kv_head"]}
    if form == "query":
        options["query"] = plan.options["query"]
    embeddings: dict[str, Any] = {
        name: tensors.pop(name) for name in ("X", "W_Q", "W_K", "W_V") if name in tensors
    }
    forms: dict[str, Any] = {"sdpa": sdpa, "columns": sdpa_columns, "query": sdpa_query}
    first = [TextbookCall(project_columns if columns else project, embeddings)] if embeddings else []
    return [*first, TextbookCall(forms[form], tensors, options)]


def _check_values(nv: int | None, inputs: RunInputs) -> None:
    """Raise a SizeError unless every key has one value."""
    if nv is None:
        return
    check_sizes({"n_V": nv})
    n_K = inputs.sizes["n_K"] - inputs.sizes.get("n_past", 0)
    if nv != n_K:
        raise SizeError(
            f"n_V is {nv}, but n_K is {n_K}: every key needs exactly one value.",
            hint=f"attnscope sdpa --nq {inputs.sizes['n_Q']} --nk {n_K}",
        )


def _check_form(form: Form, inputs: RunInputs, *, rope: bool) -> None:
    """Raise an AttnscopeError for options that the form by columns lacks, or a missing query."""
    if inputs.columns:
        if form.query is not None:
            raise OptionError(
                f"{spelled('query')} shows vectors, and {spelled('layout')} a matrix.",
                hint="one of the two",
            )
        if rope:
            raise OptionError(
                f"{spelled('layout', 'columns')} shows the bare formula, and {spelled('rope')}"
                " rotates Q and K before it.",
                hint=f"{spelled(rope=True)} with {spelled(layout='rows')}",
            )
        if inputs.split:
            raise OptionError(
                f"{spelled('layout', 'columns')} shows the bare formula, and heads are split before it.",
                hint=f"tensors of four axes, n_batch n_head n d, or {spelled(layout='rows')}",
            )
    check_query(form.query, inputs.sizes["n_Q"])


def check_query(query: int | None, n_Q: int) -> None:
    """Raise a SizeError if a query's index is out of range."""
    if query is not None and not 0 <= query < n_Q:
        raise SizeError(f"there is no query {query}: n_Q is {n_Q}, so queries are 0 to {n_Q - 1}.")
