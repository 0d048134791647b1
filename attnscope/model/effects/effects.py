"""Measure what each head of a model does to a prediction, as `attnscope effects` does."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from attnscope.base.errors import OptionError, warn_unused
from attnscope.base.options import with_keywords
from attnscope.base.process.progress import Progress, silent
from attnscope.base.spelling import spelled
from attnscope.base.text import nearest
from attnscope.model.effects.options import (
    BLOCKED,
    COLUMNS,
    FIRST_ORDER,
    PATCHED,
    EffectOptions,
    EffectRun,
    PromptOptions,
    PromptText,
)
from attnscope.model.effects.result import HeadEffects
from attnscope.model.files.indices import parse_indices


@with_keywords
def effects(
    model: Any,
    first: PromptText,
    *,
    prompt: PromptOptions,
    view: EffectOptions,
    run: EffectRun,
    tokenizer: Any = None,
    page: bool = False,
    progress: Progress = silent,
) -> HeadEffects:
    """Measure what each head of a model does to a prediction.

    >>> text = "When Mary and John went to the store, John gave a drink to"
    >>> table = effects("gpt2", text, answer=" Mary", against=" John")  # doctest: +SKIP
    >>> table[9, 9].values["zero"]  # doctest: +SKIP

    A head's output is what its attention gives, `n_batch n_Q d_V`, before the output projection W_O,
    whose bias belongs to no head. For each head, it is replaced by 0, by its mean over positions, or by
    its output on another text; and the model runs on from there. Estimates from one gradient, and what
    the head adds to the logit directly, stand beside these (see `HeadEffects.metrics`).

    `text` may be several prompts, an iterable of objects as in a corpus; `answer` and `against`, token
    ids or the index of a class; `corrupt`, token ids. Without an answer, a masked language model or a
    classifier is measured by its likeliest one. The layers and heads are an index, several, or `0-3`.

    Args:
        model: `minilm`, a folder, a name on the hub, or a model that transformers has loaded, which
            stays exactly as it is, and on its device unless `device` is not `cpu`.
        tokenizer: the tokenizer of a loaded model.
        page: collect the maps of the text, too, which `table.save("x.html")` shows.
        progress: called with the progress of the work.

    Returns:
        A row for each head. Ctrl-C ends the run, and returns the effects measured so far, with `partial`
        True.

    Raises:
        OptionError: there is no input, or options contradict each other.
        ModelError: the model cannot be loaded or run, or has no such layer or head.
        FileError: a file cannot be read.
        SizeError: there is too little memory.

    Warns:
        OptionWarning: an option has no effect.
    """
    columns = column_names(view.columns, view.sort)
    text = first.text if isinstance(first.text, str | None) else None
    prompts = None if isinstance(first.text, str | None) else list(first.text)
    several = prompts is not None or prompt.corpus is not None
    _check_inputs(first, prompt, several=several)
    _check_view(view, columns or (), corrupted=prompt.corrupt is not None, several=several)
    from attnscope.model.effects.job import EffectJob
    from attnscope.model.effects.measure import EffectSelection
    from attnscope.model.maps.capture import HeadSelection
    from attnscope.model.run.open import open_model

    at = view.at
    if not isinstance(at, str | None):
        at = ",".join(map(str, [at] if isinstance(at, int) else at))
    layers, heads = (
        parse_indices("layers", view.layers),
        parse_indices("heads", view.heads),
    )
    selected = HeadSelection(None if view.stack is None else str(view.stack), layers, heads)
    selection = EffectSelection(columns, selected, at, view.block, view.each_position)
    opening: dict[str, Any] = {"dtype": run.dtype, "memory": run.memory, "tokenizer": tokenizer}
    with open_model(model, run.device, progress=progress, **opening) as opened:
        job = EffectJob(opened, text, prompt, selection)
        table = job.table(prompts)
        ranked_by = next(iter(table.metrics)) if view.top is not None else None
        table.sort, table.reverse, table.top = view.sort or ranked_by, view.reverse, view.top
        if page:
            table.maps, table.why_no_maps = job.maps()
    return table


OTHER_INPUTS = ("file", "corpus", "ids", "tokens")
"""The inputs beside a text, of which there is one."""


def column_names(columns: str | Sequence[str] | None, sort: str | None = None) -> list[str] | None:
    """Return the names of columns, in the order of the table; None: all that apply.

    >>> column_names("first-order, zero")
    ['zero', 'first order']
    """
    names = None
    if columns is not None:
        parts = columns.split(",") if isinstance(columns, str) else columns
        names = [" ".join(name.replace("-", " ").split()) for name in parts]
    for option, name in [*(("columns", name) for name in names or []), ("sort", sort)]:
        if name is not None and name not in COLUMNS:
            raise OptionError(
                f"{spelled(option)}: there is no column {name!r}.",
                hint=nearest(name, COLUMNS) or ", ".join(COLUMNS),
            )
    if names is None:
        return None
    if sort is not None and sort not in names:
        raise OptionError(f"{spelled('sort', sort)} is not among {spelled('columns', ','.join(names))}.")
    return [name for name in COLUMNS if name in names]


def _check_inputs(first: PromptText, prompt: PromptOptions, *, several: bool) -> None:
    """Raise an OptionError unless there is one input, and several prompts have their own answers."""
    inputs = {"text": first.text} | {name: getattr(prompt, name) for name in OTHER_INPUTS}
    names = [name for name, value in inputs.items() if value is not None]
    readable = f"{spelled(text='…')}, {spelled(file='FILE')} or {spelled(corpus='FILE')}"
    if not names:
        raise OptionError("there is no input.", hint=readable)
    if len(names) > 1:
        raise OptionError(f"{' and '.join(map(spelled, names))} cannot be combined.", hint=readable)
    for name in ("answer", "against", "target", "corrupt"):
        if several and getattr(prompt, name) is not None:
            hint = f'"{name}": "…" in each line'
            raise OptionError(f"{spelled(name)} is a field of each prompt.", hint=hint)


def _check_view(view: EffectOptions, columns: Sequence[str], *, corrupted: bool, several: bool) -> None:
    """Raise an OptionError for options that contradict each other; warn of those without effect."""
    if PATCHED in columns and not corrupted and not several:
        raise OptionError("patched needs a corrupted text.", hint=spelled(corrupt="…"))
    if BLOCKED in columns and view.block is None:
        raise OptionError("blocked needs keys to block.", hint=spelled(block="'0-3>last'"))
    if view.block is not None and columns and BLOCKED not in columns:
        raise OptionError(
            f"{spelled('block')} is measured in the column blocked.", hint=spelled(columns="blocked")
        )
    if view.each_position and several:
        raise OptionError(
            f"{spelled('each_position')} is for a single text: positions differ between prompts."
        )
    if corrupted and columns and not {PATCHED, FIRST_ORDER} & set(columns):
        raise OptionError(
            f"{spelled('corrupt')} is for patched and first order.", hint=spelled(columns="patched")
        )
    warn_unused([(view.reverse and view.sort is None, "reverse", f"there is no {spelled('sort')}")])
