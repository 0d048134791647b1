"""`attnscope answer`: what a model reads while it writes its answer."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

from attnscope.base.errors import warn_unused
from attnscope.base.options import keywords, option
from attnscope.cli.options import FigureOptions, ModelName, expanded
from attnscope.cli.output import (
    TensorOutput,
    draw,
    exit_status,
    notices_shown,
    refuse_in_csv,
    shown_progress,
    written_first,
)
from attnscope.model.answers.options import AnswerOptions, AnswerPrompt, AnswerView
from attnscope.model.run.options import DeviceAndDtype

if TYPE_CHECKING:
    from attnscope.cli.maps import MapOutput

EXAMPLES = {
    'attnscope answer my-llama --text "The cat sat" --generate 3': "what each token reads",
    "attnscope answer my-llama --messages chat.json --by segment": (
        "the parts of a chat that the answer reads"
    ),
    "attnscope answer my-llama --messages chat.json --page answer.html": "a page to click through",
}


@dataclass(frozen=True)
class AnswerText:
    """The text of the prompt."""

    PANEL = "Input"

    text: str | None = option("The prompt; with --image or --video, a question about it.", common=True)


@dataclass(frozen=True)
class AnswerOutput(TensorOutput, FigureOptions):
    """The options of the output."""

    show: list[str] | None = option('Print values: "weights[0]".', metavar="NAME[INDEX]")


@expanded
def answer(
    model: ModelName,
    text: AnswerText,
    prompt: AnswerPrompt,
    about: AnswerOptions,
    view: AnswerView,
    place: DeviceAndDtype,
    output: AnswerOutput,
) -> int:
    """Run `attnscope answer` and return its exit status."""
    return print_answer(model, output, **keywords(text, prompt, about, view, place))


def print_answer(model: str | None, output: AnswerOutput | MapOutput, **options: Any) -> int:
    """Let a model answer, and print what it reads while it writes; return the exit status.

    Args:
        model: the model's name.
        output: the options of the output.
        options: those of the library's `answer`.
    """
    from attnscope.model.answers.answer import answer

    refuse_in_csv(output.format, {"verify": options["verify"]})
    replace(output, force=output.force and output.save is not None).check([])
    is_written = output.save or output.plot or output.page
    warn_unused([(output.force and not is_written, "force", "no file is written")])
    output.check_drawings("answer.html")
    with notices_shown(), shown_progress() as progress:
        result = answer(model, page=output.page is not None, progress=progress, **options)
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
