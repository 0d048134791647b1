"""`attnscope bert`: the weights of one attention head of a checkpoint."""

from __future__ import annotations

from typing import Annotated

import typer

from attnscope.cli import options
from attnscope.cli.options import OUTPUT, Format
from attnscope.cli.output import Output, progress
from attnscope.errors import OptionError
from attnscope.results import WeightSlice


def bert(
    model: Annotated[
        str | None,
        typer.Option(
            "--model",
            metavar="MODEL",
            help="minilm (bundled), a folder, or a hub name; bert-base-uncased where minilm is not"
            " installed.",
        ),
    ] = None,
    layer: Annotated[int, typer.Option("--layer", help="Which layer, counted from 0.")] = 0,
    head: Annotated[int, typer.Option("--head", help="Which head, counted from 0.")] = 0,
    verify: Annotated[
        bool,
        typer.Option(
            "--verify",
            help="Run attnscope's attention with these weights on the model's hidden states, and compare"
            " with transformers.",
        ),
    ] = False,
    show: Annotated[
        str | None,
        typer.Option(
            "--show",
            metavar="NAME[INDEX]",
            help='Print a slice\'s values too: "W_Q", "W_Q[0,:5]", "b_O".',
            rich_help_panel=OUTPUT,
        ),
    ] = None,
    save: options.Save = None,
    force: options.Force = False,
    format: options.OutputFormat = Format.TABLE,
    wide: options.Wide = False,
) -> int:
    """One head's weights in a BERT: its slices of W_Q, W_K, W_V, W_O and their biases."""
    from attnscope.models.checkpoint import find_checkpoint
    from attnscope.models.head import read_head

    output = Output(format, wide, show, save, force)
    output.check([])
    if verify and format is Format.CSV:
        raise OptionError("csv holds one table, and --verify prints another.", hint="--format json")
    checkpoint = find_checkpoint(model)
    result = read_head(checkpoint, layer=layer, head=head)
    slices = {slice_.name: slice_ for slice_ in result.weights}

    dims = {name: _dims(each) for name, each in slices.items()}
    shapes = {name: (each.head_shape, dims[name]) for name, each in slices.items()}
    output.check_selection(shapes, "this head")
    shown = None
    if show is not None:
        chosen = slices[output.selection[0]]
        shown = output.shown(chosen.array, chosen.dtype, dims[chosen.name])
    if verify:
        from attnscope.models.verify import verify_head

        with progress(f"running {checkpoint.name} with transformers …"):
            result.checks = verify_head(checkpoint, result)
    output.write({name: (each.array, each.dtype) for name, each in slices.items()})
    output.print(result, shown)
    return 0 if all(check.ok for check in result.checks) else 1


def _dims(slice_: WeightSlice) -> tuple[str, ...]:
    """The axes of a head's part of a weight or a bias."""
    dims = {"W_O": ("d_feat", "d_head"), "b_O": ("d_feat",)}.get(slice_.name, ("d_head", "d_feat"))
    return dims[: len(slice_.head_shape)]
