"""`attnscope model`: one attention head of a checkpoint: its weights, or its attention maps."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

from attnscope.answers.options import AnswerOptions
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
from attnscope.errors import OptionError, warn_unused
from attnscope.maps.options import HeadOptions, MapRun, ShownOptions
from attnscope.maps.request import MapRequest
from attnscope.models.options import ReadOptions
from attnscope.options import keywords, option, refuse
from attnscope.suggestions import quoted

if TYPE_CHECKING:
    from attnscope.models.maps.result import AttentionMaps

COPIES_OF_A_FORMAT = {Format.JSON: 20, Format.MARKDOWN: 60}
"""The memory for printing whole maps, as a multiple of the maps' own, which it includes; others: 1."""

COPIES_OF_A_PICTURE = 10
"""The same for a page or a plot."""


EXAMPLES = {
    "attnscope model minilm --layer 0 --head 0": "the weights of one head",
    'attnscope model minilm --text "The cat sat."': "what the head attends to in a text",
    'attnscope model minilm --text "A cat." --layer all --head all --page a.html': (
        "a page of all heads"
    ),
    'attnscope model minilm --text "The cat sat." --steps': "the layer's attention, step by step",
    'attnscope model minilm --text "The cat sat." --top 3': "the strongest keys of each query",
    "attnscope model my-llama --messages chat.json --by segment": (
        "the parts of a chat that the answer reads"
    ),
}


@dataclass(frozen=True)
class ModelOptions:
    """What is shown of a head, in addition to its weights or its map."""

    PANEL = ShownOptions.PANEL

    steps: bool = option(
        "Print the layer's attention step by step: Q, K, V, scores, mask, attention, x_raw.",
        default=False,
        common=True,
    )
    circuits: bool = option("Print the singular values of the head's QK and OV matrices.", default=False)
    verify: bool = option(
        "Compare the weights or the maps with transformers; exit with status 1 if they differ.",
        default=False,
        common=True,
    )


@dataclass(frozen=True)
class ModelOutput(Output, FigureOptions):
    """The options of the output."""

    show: list[str] | None = option(
        'Print values: "W_Q[0,:5]", "attention[3]"; with --steps "scores[0,1]". Repeatable.',
        metavar="NAME[INDEX]",
    )


@expanded
def model(
    model: ModelName,
    which: HeadOptions,
    reads: ReadOptions,
    shown: ShownOptions,
    more: ModelOptions,
    about: AnswerOptions,
    run: MapRun,
    output: ModelOutput,
) -> int:
    """Run `attnscope model` and return its exit status."""
    if about.are_set or (reads.image and (reads.text is not None or reads.file is not None)):
        return _show_answer(model, which, reads, shown, more, about, run, output)
    written = output.save or output.plot or output.page
    refuse_in_csv(output.format, {"--verify": more.verify})
    idle_force = [("--force", output.force and not written, "no file is written")]
    if not reads.names:
        about_attention = {"--steps": more.steps, "--plot": output.plot, "--page": output.page}
        _check_options_of_weights(reads, which, shown, about_attention)
        idle = [*idle_force, ("--stats", output.stats, "weights are shown with theirs")]
        _warn_of_weights(reads, shown, run, idle)
        return _show_weights(model, which, output, more)
    if more.circuits:
        raise OptionError(
            "--circuits is about a head's weights, and --text about its attention.",
            hint="one of the two",
        )
    if output.show and not more.steps and not which.one_head:
        raise OptionError(
            f"--show is for one head, and {which} are several.", hint="--layer 0 --head 0 --show …"
        )
    is_table = output.format in (Format.TABLE, Format.MARKDOWN)
    map_alone = is_table and not (shown.top or more.steps or more.verify)
    idle = [*idle_force, ("--wide", output.wide and map_alone, "a map has no columns")]
    warn_unused((value, option, why) for option, value, why in idle)
    request = MapRequest(
        reads, which, shown, run, steps=more.steps, stats=output.stats, verify=more.verify
    )
    return _show_attention(model, request, output)


# Weights.


def _check_options_of_weights(
    reads: ReadOptions, which: HeadOptions, shown: ShownOptions, more: dict[str, Any]
) -> None:
    """Raise an OptionError for options that do not apply to weights."""
    about_attention = {
        "--pair": reads.pair,
        "--target": reads.target,
        "--generate": reads.generate,
        "--query": shown.query,
        "--top": shown.top,
        "--weigh": shown.weigh,
        "--rollout": shown.rollout,
    } | more
    for name, value in about_attention.items():
        if value is not None and value is not False:
            raise OptionError(
                f"{name} needs a text, and there is none.",
                hint=f'--text "…" {name}' + ("" if value is True else f" {quoted(str(value))}"),
            )
    if not which.one_head:
        raise OptionError(
            f"weights are shown of one head: {which} are several.",
            hint="--layer 0 --head 0; or a --text",
        )


def _warn_of_weights(
    reads: ReadOptions,
    shown: ShownOptions,
    run: MapRun,
    more: list[tuple[str, bool, str]],
) -> None:
    """Warn about options that have no effect on weights."""
    of_attention = {
        "--truncate": reads.truncate,
        "--pool": shown.pool,
        "--memory": run.memory,
        "--without-sink": shown.without_sink,
        "--dtype": run.dtype,
    }
    no_text = 'there is no text to attend in (--text "…")'
    warn_unused((value, option, no_text) for option, value in of_attention.items())
    warn_unused([(run.device != "cpu", "--device", "weights are read, and no model runs")])
    warn_unused((value, option, why) for option, value, why in more)


def _show_weights(model: str | None, which: HeadOptions, output: ModelOutput, more: ModelOptions) -> int:
    """Read one head's weights and show them; return the exit status: 1 if a check fails."""
    from attnscope.weights.head_weights import head_weights

    replace(output, force=output.force and output.save is not None).check([])
    [head] = which.head_numbers or []
    layer = None if which.layers is None else (which.layer_numbers or [])[0]
    with shown_progress() as progress:
        result = head_weights(
            model,
            layer,
            head,
            stack=which.stack,
            circuits=more.circuits,
            verify=more.verify,
            progress=progress,
        )
    shapes = {each.name: (each.head_shape, each.dims) for each in result.weights}
    output.check_selections(shapes, "this head")
    shown = output.shown(lambda name: (result[name].array, result[name].dtype, result[name].dims))
    tensors = {each.name: (each.array, each.dtype) for each in result.weights}
    with written_first(lambda: output.write(tensors)):
        output.print(result, shown)
    return exit_status(result.checks)


# An answer.


def _show_answer(
    model: str | None,
    which: HeadOptions,
    reads: ReadOptions,
    shown: ShownOptions,
    more: ModelOptions,
    about: AnswerOptions,
    run: MapRun,
    output: ModelOutput,
) -> int:
    """Let a model answer, and show what it reads while it writes; return the exit status."""
    from attnscope.answers.answer import answer

    of_maps = {
        "--ids": reads.ids,
        "--tokens": reads.tokens,
        "--pair": reads.pair,
        "--target": reads.target,
        "--top": shown.top,
        "--weigh": shown.weigh,
        "--rollout": shown.rollout,
        "--steps": more.steps,
        "--circuits": more.circuits,
        "--stats": output.stats,
        "--memory": run.memory,
    }
    refuse(of_maps, "is for the maps of single heads, and this shows what an answer reads")
    replace(output, force=output.force and output.save is not None).check([])
    written = output.save or output.plot or output.page
    warn_unused([(output.force and not written, "--force", "no file is written")])
    output.check_drawings("answer.html")
    with notices_shown(), shown_progress() as progress:
        result = answer(
            model,
            reads.text,
            image=reads.image,
            file=reads.file,
            generate=reads.generate,
            truncate=reads.truncate,
            **keywords(about),
            layers=which.layers,
            heads=which.heads,
            stack=which.stack,
            pool=None if shown.pool is None else str(shown.pool),
            query=shown.query,
            without_sink=shown.without_sink,
            verify=more.verify,
            page=output.page is not None,
            dtype=run.dtype,
            device=run.device,
            progress=progress,
        )
    arrays = {name: array for name, (array, _) in result.tensors().items()}
    output.check_selections(
        {name: (array.shape, result.dims[name]) for name, array in arrays.items()}, "this answer"
    )
    values = output.shown(lambda name: (arrays[name], "float32", result.dims[name]))

    def write() -> None:
        draw(result, output.plot, output.page, lambda: (result.summary, ""), force=output.force)

    with written_first(lambda: output.write(result.tensors(), result.metadata()), write):
        output.print(result, values)
    return exit_status(result.checks)


# Attention.


def _show_attention(model: str | None, request: MapRequest, output: ModelOutput) -> int:
    """Run a model and show its heads' attention maps; return the exit status: 1 if a check fails."""
    from attnscope.maps.attention_maps import collect_maps

    replace(output, force=output.force and output.save is not None).check([])
    output.check_drawings("attention.html")
    drawn = output.plot is not None or output.page is not None
    copies = max(COPIES_OF_A_FORMAT.get(output.format, 1), COPIES_OF_A_PICTURE if drawn else 0)
    if output.format is Format.TABLE and not drawn and not output.show:
        copies = 0
    request = replace(
        request,
        keep=request.steps and output.keep,
        page=output.page is not None,
        save=output.save,
        force=output.force,
        copies=copies,
    )
    with shown_progress() as progress, notices_shown():
        maps = collect_maps(request, model, progress)
    if maps.whole_file is not None:
        size = maps.whole_file.stat().st_size
        output.tell_written(len(maps.maps), size, f"whole maps of {maps.size_text} weights")

    def write() -> None:
        heads = sum(len(each.maps) for each in maps.collected or [])
        contents = f"{heads} {'heads' if maps.of_heads else 'layers'}", ""
        draw(maps, output.plot, output.page, lambda: contents, force=output.force)

    if maps.steps is not None:
        _print_steps(maps, output, write)
    else:
        _print_maps(maps, output, write, pool=request.display.pool)
    return exit_status(maps.checks)


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


def _print_steps(maps: AttentionMaps, output: Output, write: Any) -> None:
    """Write the files, then print one layer's attention step by step."""
    trace = maps.steps
    assert trace is not None
    output.check_selections({step.name: (step.shape, step.dims) for step in trace.steps}, "these steps")
    shown = output.shown_of(trace)
    tensors = trace.tensors() if output.save else {}
    with written_first(lambda: output.write(tensors), write):
        output.print(trace, shown)
    for notice in trace.notices:
        print_notice(notice)
