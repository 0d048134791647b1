"""`attnscope sdpa`: scaled dot-product attention, of drawn tensors or the user's own."""

from __future__ import annotations

from typing import Annotated

import typer

from attnscope.cli import options
from attnscope.cli.options import VARIANT, Format, Layout, size, tensor


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
    seed: options.Seed = None,
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
    from attnscope.cli.forms import CODE, calls_of, check_form, check_values, plan_of
    from attnscope.cli.output import Output
    from attnscope.cli.textbook import Request, present
    from attnscope.cli.variants import Variants
    from attnscope.textbook.inputs.resolve import given_to_sdpa, open_all

    sizes = {"n_batch": batch, "n_head": heads, "n_kv_head": kv_heads, "n_Q": nq, "n_new": nk}
    sizes |= {"n_past": past, "d_K": dk, "d_V": dv}
    files = {"Q": q, "K": k, "V": v, "K_past": past_k, "V_past": past_v}
    files |= {"X": x, "W_Q": wq, "W_K": wk, "W_V": wv}
    asked = Variants(
        mask, mask_style, mask_fill, align, masked_rows, scale, softcap, rope, rope_theta, softmax_dtype
    )
    asked.check()
    given = given_to_sdpa(sizes, open_all(files), asked.masks.files, dtype)
    check_values(nv, given)
    check_form(layout, query, given, asked)
    masks = asked.resolved(given.sizes, given.dtype)
    form = "columns" if layout is Layout.COLUMNS else "sdpa" if query is None else "query"
    plan = plan_of(form, given, asked, masks)
    if query is not None:
        plan.options["query"] = query

    drawn = {"Q", "K", "V", "K_past", "V_past"} & {s.name for s in plan.steps if s.how == "input"} - set(
        given.files
    )
    request = Request(
        Output(format, wide, show or (), save, force),
        dry_run=dry_run,
        stats=stats,
        verify=verify,
        explain=explain,
        source=source,
        numbers=numbers,
        device=device,
        seed=(seed or 0) if drawn else None,
        seed_given=seed is not None,
    )
    request.check(given.dtype)
    code = [CODE[form]]
    if "X" in given.files:
        code.insert(
            0, ("attnscope.attention.projection", "project_columns" if form == "columns" else "project")
        )
    return present(
        plan,
        lambda: calls_of(form, plan, given, asked, masks, device, seed or 0),
        request,
        masks=masks,
        code=code,
    )
