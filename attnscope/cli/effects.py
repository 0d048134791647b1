"""`attnscope effects`: what each head of a model does to its prediction."""

from __future__ import annotations

from attnscope.base.errors import warn_unused
from attnscope.base.options import keywords
from attnscope.cli.options import FigureOptions, ModelName, TableOptions, expanded
from attnscope.cli.output import notices_shown, print_heads, shown_progress
from attnscope.model.effects.options import EffectOptions, EffectRun, PromptOptions, PromptText

EXAMPLES = {
    "attnscope effects llama --ids 1,2,3,1,2 --answer 3 --against 4": "heads that bring 3, not 4",
    'attnscope effects minilm --text "A cat." --answer "A kitten."': "heads that make them similar",
    "attnscope effects llama --ids 1,2,3,1,2 --sort zero --top 5": "heads that the loss needs",
    "attnscope effects minilm --corpus prompts.jsonl": "means over many prompts",
}


@expanded
def effects(
    model: ModelName,
    text: PromptText,
    prompt: PromptOptions,
    view: EffectOptions,
    run: EffectRun,
    files: FigureOptions,
    output: TableOptions,
) -> int:
    """Run `attnscope effects` and return its exit status."""
    from attnscope.model.effects.effects import effects as measure_effects

    files.check_drawings("effects.html")
    warn_unused(
        [
            (output.wide and output.always_wide, "wide", f"{output.format} has all columns anyway"),
            (files.force and not (files.plot or files.page), "force", "no file is written"),
        ]
    )
    with notices_shown(), shown_progress() as show:
        options = keywords(text, prompt, view, run)
        table = measure_effects(model, **options, page=files.page is not None, progress=show)
    print_heads(table, files, output)
    return 130 if table.partial else 0
