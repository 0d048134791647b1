"""`attnscope model`: one attention head of a checkpoint: its weights, its maps, or what an answer reads.

Three questions behind one name: `attnscope weights`, `maps` and `answer` ask one each.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from attnscope.base.errors import OptionError, warn_unused
from attnscope.base.options import keywords, option, refuse
from attnscope.base.spelling import quoted, spelled
from attnscope.cli import maps as of_maps
from attnscope.cli.answer import print_answer
from attnscope.cli.options import ModelName, expanded
from attnscope.cli.output import refuse_in_csv
from attnscope.cli.weights import print_weights
from attnscope.model.answers.options import AnswerOptions
from attnscope.model.maps.options import HeadOptions, MapParts, MapRun, ShownOptions
from attnscope.model.run.options import ReadOptions, device_option, dtype_option

EXAMPLES = {
    "attnscope model minilm --layer 0 --head 0": "the weights of one head",
    **{command.replace(" maps ", " model "): what for command, what in of_maps.EXAMPLES.items()},
    "attnscope model my-llama --messages chat.json --by segment": (
        "the parts of a chat that the answer reads"
    ),
}


@dataclass(frozen=True)
class HeadInputs(ReadOptions):
    """The inputs of a model that shows maps, or answers."""

    image: list[Path] | None = option(
        "An image, for a vision model; with {text}, what its answer reads.", metavar="FILE", common=True
    )
    generate: int | None = option(
        "Generate N more tokens, and show what they attend to.",
        metavar="N",
        min=1,
        shown="20, if the answer is shown",
        common=True,
    )


@dataclass(frozen=True)
class ModelOptions(MapParts):
    """What is shown of a head, in addition to its weights or its map."""

    circuits: bool = option("Print the singular values of the head's QK and OV matrices.", default=False)
    verify: bool = option(
        "Compare the weights or the maps with transformers; exit with status 1 if they differ.",
        default=False,
        common=True,
    )


@dataclass(frozen=True)
class HeadRun(MapRun):
    """The device, dtype and memory of a run."""

    dtype: str | None = dtype_option(common=False)
    device: str = device_option(common=False)


@dataclass(frozen=True)
class ModelOutput(of_maps.MapOutput):
    """The options of the output."""

    show: list[str] | None = option(
        'Print values: "W_Q[0,:5]", "attention[3]"; with --steps "scores[0,1]".',
        metavar="NAME[INDEX]",
    )


OF_ATTENTION = (
    *("pair", "target", "generate", "query", "top", "weigh", "rollout", "steps"),
    *("plot", "page"),
)
"""Options about what a head attends to, which needs an input."""

IDLE_WITHOUT_TEXT = ("truncate", "pool", "memory", "without_sink", "dtype")
"""Options without effect on weights."""

OF_SINGLE_HEADS = (
    *("ids", "tokens", "pair", "target", "top", "weigh", "rollout", "steps"),
    *("circuits", "stats", "memory"),
)
"""Options about the maps or the weights of heads, and not about an answer."""

OF_ANSWERS = (
    *("text", "file", "image", "generate", "truncate", "layers", "heads", "stack"),
    *("query", "without_sink", "pool", "dtype", "device"),
)
"""Options of answers that maps have, too."""


@expanded
def model(
    model: ModelName,
    which: HeadOptions,
    reads: HeadInputs,
    shown: ShownOptions,
    more: ModelOptions,
    about: AnswerOptions,
    run: HeadRun,
    output: ModelOutput,
) -> int:
    """Run `attnscope model` and return its exit status."""
    options = keywords(which, reads, shown, more, run, output)
    if about.are_set or (reads.image and (reads.text is not None or reads.file is not None)):
        of_heads = {name: options[name] for name in OF_SINGLE_HEADS}
        refuse(of_heads, "is for the maps of single heads, and this shows what an answer reads")
        of_answer = {name: options[name] for name in (*OF_ANSWERS, "verify")}
        return print_answer(model, output, **keywords(about), **of_answer)
    if not reads.names:
        return _weights(model, which, options, output)
    if more.circuits:
        refuse_in_csv(output.format, {"verify": more.verify})
        raise OptionError(
            "--circuits is about a head's weights, and --text about its attention.",
            hint="one of the two",
        )
    parts = MapParts(steps=more.steps, verify=more.verify)
    return of_maps.print_maps(model, reads, which, shown, parts, run, output)


def _weights(model: str | None, which: HeadOptions, options: dict[str, Any], output: ModelOutput) -> int:
    """Print the weights of one head; refuse options that are about its attention."""
    refuse_in_csv(output.format, {"verify": options["verify"]})
    for name in OF_ATTENTION:
        value = options[name]
        if value is not None and value is not False:
            raise OptionError(
                f"{spelled(name)} needs a text, and there is none.",
                hint=f'--text "…" {spelled(name)}' + ("" if value is True else f" {quoted(str(value))}"),
            )
    if not which.one_head:
        raise OptionError(
            f"weights are shown of one head: {which} are several.",
            hint="--layer 0 --head 0; or a --text",
        )
    no_text = 'there is no text to attend in (--text "…")'
    elsewhere = options["device"] != "cpu"
    warn_unused(
        [
            *((options[name], name, no_text) for name in IDLE_WITHOUT_TEXT),
            (elsewhere, "device", "weights are read, and no model runs"),
            (output.force and not output.save, "force", "no file is written"),
            (output.stats, "stats", "weights are shown with theirs"),
        ]
    )
    [head] = which.head_numbers or []
    layer = None if which.layers is None else (which.layer_numbers or [])[0]
    checks = {name: options[name] for name in ("stack", "circuits", "verify")}
    output = replace(output, force=output.force and output.save is not None)
    return print_weights(model, output, layer=layer, head=head, **checks)
