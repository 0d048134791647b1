"""`attnscope sdpa`: scaled dot-product attention on drawn tensors."""

from __future__ import annotations

from typing import Annotated, Any

import typer

from attnscope import contracts
from attnscope.cli import options
from attnscope.cli.options import SIZES, Format
from attnscope.cli.output import Output
from attnscope.cli.textbook import present
from attnscope.errors import SizeError


def sdpa(
    batch: options.Batch = 3,
    nq: options.NQ = 30,
    nk: Annotated[int, typer.Option("--nk", help="n_K: keys.", rich_help_panel=SIZES)] = 50,
    nv: Annotated[
        int | None,
        typer.Option("--nv", help="n_V: values; as many as keys.", rich_help_panel=SIZES),
    ] = None,
    dk: Annotated[
        int, typer.Option("--dk", help="d_K: width of a key, and of a query.", rich_help_panel=SIZES)
    ] = 128,
    dv: Annotated[int, typer.Option("--dv", help="d_V: width of a value.", rich_help_panel=SIZES)] = 256,
    heads: Annotated[
        int | None,
        typer.Option(
            "--heads",
            help="n_head: a head axis after the batch; none by default.",
            rich_help_panel=SIZES,
        ),
    ] = None,
    seed: options.Seed = 0,
    dtype: options.DType = "float32",
    device: options.Device = "cpu",
    dry_run: options.DryRun = False,
    stats: options.Stats = False,
    show: options.Show = None,
    save: options.Save = None,
    force: options.Force = False,
    format: options.OutputFormat = Format.TABLE,
    wide: options.Wide = False,
) -> None:
    """Scaled dot-product attention, softmax(Q·Kᵀ/√d_K)·V: every tensor from Q, K, V to the output."""
    lead = {"n_batch": batch} | ({} if heads is None else {"n_head": heads})
    sizes = lead | {"n_Q": nq, "n_K": nk, "d_K": dk, "d_V": dv}
    contracts.check_sizes(sizes | ({} if nv is None else {"n_V": nv}))
    if nv not in (None, nk):
        raise SizeError(
            f"n_V is {nv} but n_K is {nk}: every key needs exactly one value.",
            hint=f"attnscope sdpa --nq {nq} --nk {nk}",
        )
    plan = contracts.sdpa(sizes, dtype=dtype)
    plan.options = {"scale": dk**-0.5, "scale_by": "d_K"}

    def prepare() -> tuple[Any, list[Any]]:
        from attnscope.attention.sdpa import sdpa as textbook_sdpa
        from attnscope.inputs.drawn import draw

        shapes = [plan[name].shape for name in "QKV"]
        return textbook_sdpa, draw(*shapes, dtype=dtype, device=device, seed=seed)

    present(
        plan,
        prepare,
        output=Output(format, wide, show, save, force),
        dry_run=dry_run,
        stats=stats,
        device=device,
        seed=seed,
    )
