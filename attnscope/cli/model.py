"""`attnscope model`: one attention head of a checkpoint: its weights, its maps, or what an answer reads.

Three questions behind one name: `attnscope weights`, `maps` and `answer` ask one each.
"""

from __future__ import annotations

from dataclasses import dataclass, fields, replace
from typing import Any

from attnscope.base.errors import OptionError, warn_unused
from attnscope.base.options import keywords, option, refuse
from attnscope.base.suggestions import quoted
from attnscope.cli import answer as of_answer
from attnscope.cli import maps as of_maps
from attnscope.cli import weights as of_weights
from attnscope.cli.options import ModelName, expanded
from attnscope.cli.output import refuse_in_csv
from attnscope.model.answers.options import AnswerOptions
from attnscope.model.maps.options import HeadOptions, MapRun, ShownOptions, View
from attnscope.model.run.options import DeviceAndDtype, PromptContent, ReadOptions

EXAMPLES = {
    "attnscope model minilm --layer 0 --head 0": "the weights of one head",
    **{command.replace(" maps ", " model "): what for command, what in of_maps.EXAMPLES.items()},
    "attnscope model my-llama --messages chat.json --by segment": (
        "the parts of a chat that the answer reads"
    ),
}


@dataclass(frozen=True)
class ModelOptions(of_maps.MapParts):
    """What is shown of a head, in addition to its weights or its map."""

    circuits: bool = option("Print the singular values of the head's QK and OV matrices.", default=False)
    verify: bool = option(
        "Compare the weights or the maps with transformers; exit with status 1 if they differ.",
        default=False,
        common=True,
    )


@dataclass(frozen=True)
class ModelOutput(of_maps.MapOutput):
    """The options of the output."""

    show: list[str] | None = option(
        'Print values: "W_Q[0,:5]", "attention[3]"; with --steps "scores[0,1]".',
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
        return _answer(model, which, reads, shown, more, about, run, output)
    if not reads.names:
        return _weights(model, which, reads, shown, more, run, output)
    if more.circuits:
        refuse_in_csv(output.format, {"--verify": more.verify})
        raise OptionError(
            "--circuits is about a head's weights, and --text about its attention.",
            hint="one of the two",
        )
    return of_maps.print_maps(model, reads, which, shown, more, run, output)


def _weights(
    model: str | None,
    which: HeadOptions,
    reads: ReadOptions,
    shown: ShownOptions,
    more: ModelOptions,
    run: MapRun,
    output: ModelOutput,
) -> int:
    """Print the weights of one head; refuse options that are about its attention."""
    refuse_in_csv(output.format, {"--verify": more.verify})
    about_attention = {
        "--pair": reads.pair,
        "--target": reads.target,
        "--generate": reads.generate,
        "--query": shown.query,
        "--top": shown.top,
        "--weigh": shown.weigh,
        "--rollout": shown.rollout,
        "--steps": more.steps,
        "--plot": output.plot,
        "--page": output.page,
    }
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
    no_text = 'there is no text to attend in (--text "…")'
    warn_unused(
        [
            (reads.truncate, "--truncate", no_text),
            (shown.pool, "--pool", no_text),
            (run.memory, "--memory", no_text),
            (shown.without_sink, "--without-sink", no_text),
            (run.dtype, "--dtype", no_text),
            (run.device != "cpu", "--device", "weights are read, and no model runs"),
            (output.force and not output.save, "--force", "no file is written"),
            (output.stats, "--stats", "weights are shown with theirs"),
        ]
    )
    [head] = which.head_numbers or []
    layer = None if which.layers is None else (which.layer_numbers or [])[0]
    options: dict[str, Any] = {"circuits": more.circuits, "verify": more.verify}
    output = replace(output, force=output.force and output.save is not None)
    return of_weights.print_weights(model, output, layer=layer, head=head, stack=which.stack, **options)


def _answer(
    model: str | None,
    which: HeadOptions,
    reads: ReadOptions,
    shown: ShownOptions,
    more: ModelOptions,
    about: AnswerOptions,
    run: MapRun,
    output: ModelOutput,
) -> int:
    """Print what an answer reads; refuse options that are about the maps of single heads."""
    of_single_heads = {
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
    refuse(of_single_heads, "is for the maps of single heads, and this shows what an answer reads")
    prompt, view, place = (
        kind(**{each.name: getattr(group, each.name) for each in fields(kind)})
        for kind, group in ((PromptContent, reads), (View, shown), (DeviceAndDtype, run))
    )
    return of_answer.print_answer(
        model, output, **keywords(prompt, about, which, view, place), verify=more.verify
    )
