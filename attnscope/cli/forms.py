"""The forms of `sdpa`: by rows, by columns, and for one query. What is planned, and what is called."""

from __future__ import annotations

from typing import Any

from attnscope import contracts
from attnscope.cli.options import Layout
from attnscope.cli.textbook import Call
from attnscope.cli.variants import Variants
from attnscope.errors import OptionError, SizeError
from attnscope.results.trace import Trace
from attnscope.textbook.inputs.mask_options import Masks
from attnscope.textbook.inputs.resolve import Given

CODE = {
    "sdpa": ("attnscope.attention.sdpa", "sdpa"),
    "columns": ("attnscope.attention.columns", "sdpa_columns"),
    "query": ("attnscope.attention.one_query", "sdpa_query"),
}


def plan_of(form: str, given: Given, asked: Variants, masks: Masks) -> Trace:
    """What the contract says of a form: `sdpa` (by rows), `columns` or `query`."""
    contract = {
        "sdpa": contracts.sdpa,
        "columns": contracts.sdpa_columns,
        "query": contracts.sdpa_query,
    }[form]
    variant = asked.contract(given.sizes, masks, split=given.split, embeddings="X" in given.files)
    plan = contract(given.sizes, dtype=given.dtype, variant=variant)
    scale = given.sizes["d_K"] ** -0.5 if asked.scale is None else asked.scale
    plan.options = {"scale": scale} | ({"scale_by": "d_K"} if asked.scale is None else {})
    plan.options |= {"layout": "columns"} if form == "columns" else {}
    plan.options |= asked.described(masks, given.dtype)
    return plan


def calls_of(
    form: str, plan: Trace, given: Given, asked: Variants, masks: Masks, device: str, seed: int
) -> list[Call]:
    """What is called: the projections if there are any, and the formula in the form asked for."""
    import torch

    from attnscope.attention.columns import sdpa_columns
    from attnscope.attention.one_query import sdpa_query
    from attnscope.attention.projection import project, project_columns
    from attnscope.attention.sdpa import sdpa

    torch.manual_seed(seed)
    columns = form == "columns"
    inputs: dict[str, Any] = {}
    for step in plan.steps:
        if step.how != "input" or step.name == "mask":
            continue
        shape = (*step.shape[:-2], step.shape[-1], step.shape[-2]) if columns else step.shape
        tensor = given.tensor(step.name, shape, device)
        inputs[step.name] = tensor.mT.contiguous() if columns else tensor
    if masks:
        built = masks.build(plan.sizes, given.dtype, device)
        inputs["mask"] = built.mT.contiguous() if columns else built
    told = asked.arguments(masks) | ({} if asked.scale is None else {"scale": asked.scale})
    if given.split:
        told |= {"n_head": plan.sizes["n_head"], "n_kv_head": given.sizes["n_kv_head"]}
    if form == "query":
        told["query"] = plan.options["query"]
    embeddings: dict[str, Any] = {
        name: inputs.pop(name) for name in ("X", "W_Q", "W_K", "W_V") if name in inputs
    }
    forms: dict[str, Any] = {"sdpa": sdpa, "columns": sdpa_columns, "query": sdpa_query}
    first = [Call(project_columns if columns else project, embeddings)] if embeddings else []
    return [*first, Call(forms[form], inputs, told)]


def check_values(nv: int | None, given: Given) -> None:
    """Every key has one value."""
    if nv is None:
        return
    contracts.check_sizes({"n_V": nv})
    n_K = given.sizes["n_K"] - given.sizes.get("n_past", 0)
    if nv != n_K:
        raise SizeError(
            f"n_V is {nv} but n_K is {n_K}: every key needs exactly one value.",
            hint=f"attnscope sdpa --nq {given.sizes['n_Q']} --nk {n_K}",
        )


def check_form(layout: Layout, query: int | None, given: Given, asked: Variants) -> None:
    """Columns and one query show the formula itself; and there must be such a query."""
    if layout is Layout.COLUMNS:
        if query is not None:
            raise OptionError("--query shows vectors, and --layout a matrix.", hint="one of the two")
        if asked.rope:
            raise OptionError(
                "--layout columns shows the formula itself, and --rope turns Q and K before it.",
                hint="--rope with --layout rows",
            )
        if given.split:
            raise OptionError(
                "--layout columns shows the formula itself, and splitting heads comes before it.",
                hint="tensors of four axes, n_batch n_head n d, or --layout rows",
            )
    if query is not None and not 0 <= query < given.sizes["n_Q"]:
        n_Q = given.sizes["n_Q"]
        raise SizeError(f"there is no query {query}: n_Q is {n_Q}, so they are 0 to {n_Q - 1}.")
