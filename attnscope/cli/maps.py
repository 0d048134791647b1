"""`attnscope maps`: what the heads of a model attend to in a text or an image."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

from attnscope.base.errors import OptionError, warn_unused
from attnscope.base.options import keywords, option
from attnscope.base.spelling import quoted
from attnscope.cli.options import FigureOptions, Format, ModelName, expanded
from attnscope.cli.output import (
    Output,
    draw,
    exit_status,
    notices_shown,
    print_notice,
    refuse_in_csv,
    shown_progress,
    written_first,
)
from attnscope.model.maps.options import HeadOptions, MapParts, MapRun, ShownOptions
from attnscope.model.run.options import ReadOptions

if TYPE_CHECKING:
    from attnscope.model.maps.result import AttentionMaps

COPIES_OF_A_FORMAT = {Format.JSON: 20, Format.MARKDOWN: 60}
"""The memory for printing whole maps, as a multiple of the maps' own, which it includes; others: 1."""

COPIES_OF_A_PICTURE = 10
"""The same for a page or a plot."""

EXAMPLES = {
    'attnscope maps minilm --text "The cat sat."': "what the head attends to in a text",
    'attnscope maps minilm --text "A cat." --layer all --head all --page a.html': "a page of all heads",
    'attnscope maps minilm --text "The cat sat." --steps': "the layer's attention, step by step",
    'attnscope maps minilm --text "The cat sat." --top 3': "the strongest keys of each query",
}


@dataclass(frozen=True)
class MapOutput(Output, FigureOptions):
    """The options of the output."""

    show: list[str] | None = option(
        'Print values: "attention[3]"; with --steps "scores[0,1]".', metavar="NAME[INDEX]"
    )


@expanded
def maps(
    model: ModelName,
    inputs: ReadOptions,
    heads: HeadOptions,
    view: ShownOptions,
    parts: MapParts,
    run: MapRun,
    output: MapOutput,
) -> int:
    """Run `attnscope maps` and return its exit status."""
    if not inputs.names:
        raise OptionError(
            "there is nothing to attend to: maps are those of a text or an image.",
            hint=f'--text "The cat sat."; or attnscope weights {quoted(model)}, which needs none',
        )
    return print_maps(model, inputs, heads, view, parts, run, output)


def print_maps(
    model: str | None,
    inputs: ReadOptions,
    heads: HeadOptions,
    view: ShownOptions,
    parts: MapParts,
    run: MapRun,
    output: MapOutput,
) -> int:
    """Run a model and print its heads' attention maps; return the exit status: 1 if a check fails."""
    from attnscope.model.maps.attention_maps import attention_maps

    refuse_in_csv(output.format, {"verify": parts.verify})
    if parts.steps and output.plot is not None:
        raise OptionError("--steps is a table, and --plot draws maps.", hint="one of the two")
    if output.show and not parts.steps and not heads.one_head:
        raise OptionError(
            f"--show is for one head, and {heads} are several.", hint="--layer 0 --head 0 --show …"
        )
    output.check_drawings("attention.html")
    drawn = output.plot is not None or output.page is not None
    map_alone = not (view.top or parts.steps or parts.verify)
    warn_unused(
        [
            (output.force and not (output.save or drawn), "force", "no file is written"),
            (
                output.wide and map_alone and output.format in (Format.TABLE, Format.MARKDOWN),
                "wide",
                "a map has no columns",
            ),
        ]
    )
    replace(output, force=output.force and output.save is not None).check([])
    parts = replace(
        parts,
        stats=output.stats,
        keep=parts.steps and output.keep,
        page=output.page is not None,
        save=output.save,
        force=output.force,
        copies=_copies(output, drawn=drawn),
    )
    with shown_progress() as progress, notices_shown():
        options = keywords(inputs, heads, view, parts, run)
        maps = attention_maps(model, **options, progress=progress)
    if maps.whole_file is not None:
        size = maps.whole_file.stat().st_size
        output.tell_written(len(maps.maps), size, f"whole maps of {maps.size_text} weights")

    def write() -> None:
        heads = sum(len(each.maps) for each in maps.collected or [])
        contents = f"{heads} {'heads' if maps.of_heads else 'layers'}", ""
        draw(maps, output.plot, output.page, lambda: contents, force=output.force)

    if maps.steps is not None:
        trace = maps.steps
        shapes = {step.name: (step.shape, step.dims) for step in trace.steps}
        output.check_selections(shapes, "these steps")
        shown = output.shown_of(trace)
        tensors = trace.tensors() if output.save else {}
        with written_first(lambda: output.write(tensors), write):
            output.print(trace, shown)
        for notice in trace.notices:
            print_notice(notice)
    else:
        _print_maps(maps, output, write, pool=view.pool)
    return exit_status(maps.checks)


def _copies(output: MapOutput, *, drawn: bool) -> int:
    """Return the memory for what is made of whole maps, in multiples of their size; 0: not needed."""
    if output.format is Format.TABLE and not drawn and not output.show:
        return 0
    return max(COPIES_OF_A_FORMAT.get(output.format, 1), COPIES_OF_A_PICTURE if drawn else 0)


def _print_maps(maps: AttentionMaps, output: Output, write: Any, *, pool: str | None) -> None:
    """Write the files, then print one head's map, or an overview of several."""
    if maps.left_out and output.format is Format.CSV and not maps.top:
        print_notice("--without-sink has no effect on csv without --top: it holds all weights")
    shown = []
    if output.show and maps.one is not None:
        arrays = maps.one.arrays
        axes = {name: ("n_K",) if name == "row" else ("n_Q", "n_K") for name in arrays}
        where = "this map (--steps has more)" if maps.pooling is None else "this pooled map"
        output.check_selections({name: (arrays[name].shape, axes[name]) for name in arrays}, where)
        shown = output.shown(lambda name: (arrays[name], "float32", axes[name]))

    def save() -> None:
        if output.save is None or maps.whole_file is not None:
            return
        output.write(maps.tensors(), maps.metadata())
        if maps.pooling is not None:
            rows, columns = len(maps.pooling.queries), len(maps.pooling.keys)
            print_notice(
                f"--pool {pool}: the maps in {output.save} are pooled, {rows} × {columns} cells of"
                f" {maps.size_text} weights; without --pool, or with --pool none, they are whole"
            )

    with written_first(save, write):
        output.print(maps, shown)
