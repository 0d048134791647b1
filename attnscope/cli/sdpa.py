"""`attnscope sdpa`: scaled dot-product attention, of drawn tensors or the user's own."""

from __future__ import annotations

from enum import StrEnum
from typing import Annotated, Any

import typer

from attnscope import contracts
from attnscope.cli import options
from attnscope.cli.options import VARIANT, Format, size, tensor
from attnscope.cli.output import Output
from attnscope.cli.textbook import Call, Request, present
from attnscope.cli.variants import Variants
from attnscope.errors import OptionError, SizeError
from attnscope.inputs.given import Given, given_to_sdpa, open_all
from attnscope.inputs.masks import Masks
from attnscope.results import Trace


class Layout(StrEnum):
    """Which way vectors lie."""

    ROWS = "rows"
    COLUMNS = "columns"


CODE = {
    "sdpa": ("attnscope.attention.sdpa", "sdpa"),
    "columns": ("attnscope.attention.columns", "sdpa_columns"),
    "query": ("attnscope.attention.one_query", "sdpa_query"),
}


def sdpa(
    batch: Annotated[int | None, size("--batch", "n_batch: sequences.", 3)] = None,
    nq: Annotated[int | None, size("--nq", "n_Q: queries.", 30)] = None,
    nk: Annotated[int | None, size("--nk", "n_K: keys.", 50)] = None,
    nv: Annotated[int | None, size("--nv", "n_V: values; as many as keys.")] = None,
    dk: Annotated[int | None, size("--dk", "d_K: width of a key, and of a query.", 128)] = None,
    dv: Annotated[int | None, size("--dv", "d_V: width of a value.", 256)] = None,
    heads: Annotated[
        int | None,
        size("--heads", "n_head: a head axis after the batch; three axes of yours are split.", "none"),
    ] = None,
    kv_heads: options.KVHeads = None,
    past: options.Past = None,
    q: options.FileQ = None,
    k: options.FileK = None,
    v: options.FileV = None,
    past_k: options.FilePastK = None,
    past_v: options.FilePastV = None,
    x: options.FileX = None,
    wq: Annotated[str | None, tensor("--wq", "W_Q, d_feat × d_K: Q is X·W_Q.")] = None,
    wk: Annotated[str | None, tensor("--wk", "W_K, d_feat × d_K.")] = None,
    wv: Annotated[str | None, tensor("--wv", "W_V, d_feat × d_V.")] = None,
    mask: options.Mask = None,
    mask_style: options.Style = None,
    mask_fill: options.Fill = None,
    align: options.Align = None,
    masked_rows: options.Rows = None,
    scale: options.Scale = None,
    softcap: options.Softcap = None,
    rope: options.Rope = False,
    rope_theta: options.RopeTheta = None,
    softmax_dtype: options.SoftmaxDType = None,
    layout: Annotated[
        Layout,
        typer.Option(
            "--layout",
            help="Each vector a row, or a column: then all is transposed.",
            rich_help_panel=VARIANT,
        ),
    ] = Layout.ROWS,
    query: Annotated[
        int | None,
        typer.Option(
            "--query",
            help="One query alone, counted from 0: its scores, their softmax, the sum term by term.",
            rich_help_panel=VARIANT,
        ),
    ] = None,
    seed: options.Seed = 0,
    dtype: options.DType = None,
    device: options.Device = "cpu",
    dry_run: options.DryRun = False,
    verify: options.Verify = False,
    explain: options.Explain = False,
    source: options.Source = False,
    numbers: options.Numbers = False,
    stats: options.Stats = False,
    show: options.Show = None,
    save: options.Save = None,
    force: options.Force = False,
    format: options.OutputFormat = Format.TABLE,
    wide: options.Wide = False,
) -> int:
    """Scaled dot-product attention, softmax(Q·Kᵀ/√d_K)·V: every tensor from Q, K, V to the output."""
    sizes = {"n_batch": batch, "n_head": heads, "n_kv_head": kv_heads, "n_Q": nq, "n_new": nk}
    sizes |= {"n_past": past, "d_K": dk, "d_V": dv}
    files = {"Q": q, "K": k, "V": v, "K_past": past_k, "V_past": past_v}
    files |= {"X": x, "W_Q": wq, "W_K": wk, "W_V": wv}
    asked = Variants(
        mask, mask_style, mask_fill, align, masked_rows, scale, softcap, rope, rope_theta, softmax_dtype
    )
    asked.check()
    given = given_to_sdpa(sizes, open_all(files), asked.masks.files, dtype)
    _check_values(nv, given)
    _check_form(layout, query, given, asked)
    masks = asked.resolved(given.sizes, given.dtype)
    form = "columns" if layout is Layout.COLUMNS else "sdpa" if query is None else "query"
    plan = plan_of(form, given, asked, masks)
    if query is not None:
        plan.options["query"] = query

    drawn = {"Q", "K", "V", "K_past", "V_past"} & {s.name for s in plan.steps if s.how == "input"} - set(
        given.files
    )
    request = Request(
        Output(format, wide, show, save, force),
        dry_run=dry_run,
        stats=stats,
        verify=verify,
        explain=explain,
        source=source,
        numbers=numbers,
        device=device,
        seed=seed if drawn else None,
    )
    request.check(given.dtype)
    code = [CODE[form]]
    if "X" in given.files:
        code.insert(
            0, ("attnscope.attention.projection", "project_columns" if form == "columns" else "project")
        )
    return present(
        plan,
        lambda: calls_of(form, plan, given, asked, masks, device, seed),
        request,
        masks=masks,
        code=code,
    )


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


def _check_values(nv: int | None, given: Given) -> None:
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


def _check_form(layout: Layout, query: int | None, given: Given, asked: Variants) -> None:
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
