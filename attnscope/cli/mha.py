"""`attnscope mha`: multi-head attention on drawn tensors and weights."""

from __future__ import annotations

from enum import StrEnum
from typing import Annotated, Any

import typer

from attnscope import contracts
from attnscope.cli import options
from attnscope.cli.options import RUN, SIZES, Format
from attnscope.cli.output import Output
from attnscope.cli.textbook import present
from attnscope.errors import OptionError
from attnscope.results import Finding


class ScaleBy(StrEnum):
    """The width whose root divides the scores."""

    D_HEAD = "d_head"
    D_FEAT = "d_feat"


def mha(
    batch: options.Batch = 128,
    nq: options.NQ = 32,
    nk: Annotated[
        int | None,
        typer.Option(
            "--nk",
            help="n_K: keys, from a source of their own; without it Q attends to itself.",
            rich_help_panel=SIZES,
        ),
    ] = None,
    d_feat: Annotated[
        int, typer.Option("--d-feat", help="d_feat: the model's width.", rich_help_panel=SIZES)
    ] = 200,
    heads: Annotated[
        int, typer.Option("--heads", help="n_head: heads; must divide d_feat.", rich_help_panel=SIZES)
    ] = 5,
    bias: Annotated[
        bool,
        typer.Option("--bias/--no-bias", help="Whether projections have biases.", rich_help_panel=RUN),
    ] = True,
    dropout: Annotated[
        float,
        typer.Option(
            "--dropout", help="Share of attention weights zeroed in training.", rich_help_panel=RUN
        ),
    ] = 0.1,
    train: Annotated[
        bool,
        typer.Option("--train/--eval", help="Training, with dropout, or not.", rich_help_panel=RUN),
    ] = False,
    scale_by: Annotated[
        ScaleBy,
        typer.Option(
            "--scale-by",
            help="Divide scores by √d_head (right) or √d_feat (a well-known slip).",
            rich_help_panel=RUN,
        ),
    ] = ScaleBy.D_HEAD,
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
    """Multi-head attention: projected, split into heads, attended, merged, projected."""
    self_attention = nk is None
    sizes = {"n_batch": batch, "n_Q": nq, "n_K": nq if nk is None else nk}
    sizes |= {"d_feat": d_feat, "n_head": heads}
    if not 0 <= dropout <= 1:
        raise OptionError(f"dropout is {dropout}, but a share is between 0 and 1.", hint="--dropout 0.1")

    dropping = train and dropout > 0
    plan = contracts.mha(sizes, dtype=dtype, self_attention=self_attention, dropout=dropping)
    plan.options = {
        "scale": plan.sizes[scale_by] ** -0.5,
        "scale_by": str(scale_by),
        "attention": "self" if self_attention else "cross",
        "bias": bias,
        "dropout": dropout,
        "mode": "train" if train else "eval",
    }
    if scale_by is ScaleBy.D_FEAT:
        plan.findings = [
            Finding(
                f"the scores are divided by √d_feat = √{d_feat}, but Q and K are multiplied over"
                f" d_head = {plan.sizes['d_head']}: √d_head keeps their variance at that of one product."
            )
        ]

    def prepare() -> tuple[Any, list[Any]]:
        from attnscope.inputs.drawn import draw, draw_mha

        sources = [plan["Q"].shape] if self_attention else [plan["Q"].shape, plan["K"].shape]
        drawn = draw(*sources, dtype=dtype, device=device, seed=seed)
        module = draw_mha(
            d_feat=d_feat,
            n_head=heads,
            bias=bias,
            dropout=dropout,
            scale_by=scale_by,
            dtype=dtype,
            device=device,
        )
        return module.train(train), [drawn[0], drawn[-1], drawn[-1]]

    present(
        plan,
        prepare,
        output=Output(format, wide, show, save, force),
        dry_run=dry_run,
        stats=stats,
        device=device,
        seed=seed,
        weight_bytes=4 * d_feat * (d_feat + bias) * contracts.DTYPES[dtype],
    )
