"""`attnscope mask`: which keys each query sees, in a model, by a rule or function, or in code."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Annotated

import typer

from attnscope.base.errors import warn_unused
from attnscope.base.options import keywords, option
from attnscope.base.process.streams import user_streams
from attnscope.cli.completion import completion
from attnscope.cli.options import FigureOptions, Format, TableOptions, expanded
from attnscope.cli.output import (
    draw,
    exit_status,
    notices_shown,
    print_notice,
    print_result,
    refuse_in_csv,
    shown_progress,
    written_first,
)
from attnscope.masks.options import BlockOptions, CodeOptions, RuleOptions
from attnscope.model.masks.options import ModelMaskOptions

EXAMPLES = {
    "attnscope mask causal --window 4 --nq 16": "a rule: every pair",
    'attnscope mask minilm --text "The cat sat." --text "Hi."': "what the layers of a model receive",
    "attnscope mask masks.py:sliding --nq 64": "a mask_mod, as flex_attention takes it",
    "attnscope mask masks.py:make_sliding --init window=4": "one that another function makes",
    "attnscope mask attn.py:Attention --init d_model=32 --input x=2,9,d_model": "what code hides",
    "attnscope mask causal window:256 --nq 65536 --page masks.html": "the blocks that a kernel skips",
}


@dataclass(frozen=True)
class MaskFiles(FigureOptions):
    """The files of the result."""

    page: Path | None = option("Write a page: one file.", metavar="FILE.html", common=True)
    save: Path | None = option(
        "Write the masks: .npy (a single one), .npz, .safetensors or .pt.", metavar="FILE", common=True
    )


@expanded
def mask(
    subject: Annotated[
        list[str],
        typer.Argument(
            metavar="MASK…",
            help="A model; rules: causal, window:W, window:L,R, chunk:C, prefix:P, lengths:N,N,…,"
            " a file; a mask_mod: file.py:NAME; or attention code: file.py:NAME, with --input.",
            autocompletion=completion("models"),
        ),
    ],
    rule: RuleOptions,
    code: CodeOptions,
    model: ModelMaskOptions,
    view: BlockOptions,
    files: MaskFiles,
    output: TableOptions,
) -> int:
    """Run `attnscope mask` and return its exit status."""
    from attnscope.masks.mask import mask

    refuse_in_csv(output.format, {"verify": model.verify})
    _check_output(files, output, cell=view.cell)
    with shown_progress() as progress, user_streams(), notices_shown():
        result = mask(subject, **keywords(rule, code, model, view), progress=progress)

    def save() -> None:
        if files.save is not None:
            from attnscope.base.units import bytes_text, counted
            from attnscope.masks.files import save_masks

            size = save_masks(result, files.save, force=files.force)
            what = counted(len(result.masks), "mask")
            print_notice(f"wrote {what}, {bytes_text(size)}, to {files.save}")

    contents = "the masks", ""
    with written_first(
        save, lambda: draw(result, files.plot, files.page, lambda: contents, force=files.force)
    ):
        print_result(result, output)
    return exit_status(result.checks)


def _check_output(files: MaskFiles, output: TableOptions, *, cell: int | None) -> None:
    """Raise an AttnscopeError if a file cannot be written; warn about options without effect."""
    files.check_drawings("masks.html")
    if files.save is not None:
        from attnscope.masks.files import check_masks_file

        check_masks_file(files.save, force=files.force)
    picture = files.plot or files.page
    written = picture or files.save
    is_data = output.format in (Format.JSON, Format.CSV)
    warn_unused(
        [
            (output.wide and output.always_wide, "wide", f"{output.format} has all columns anyway"),
            (files.force and not written, "force", "no file is written"),
            (cell and is_data and not picture, "cell", f"{output.format} has no picture"),
        ]
    )
