"""Measure what each head of a model does to a prediction, as `attnscope effects` does."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

from attnscope.base.errors import OptionError, warn_unused
from attnscope.base.options import group_of
from attnscope.base.process.progress import Progress, silent
from attnscope.base.text import nearest
from attnscope.model.effects.columns import BLOCKED, COLUMNS, FIRST_ORDER, PATCHED
from attnscope.model.effects.options import (
    EffectHeads,
    EffectOptions,
    EffectOrder,
    EffectRun,
    PredictionOptions,
    PromptOptions,
)
from attnscope.model.effects.result import HeadEffects
from attnscope.model.files.indices import Indices, parse_indices

Prompts = str | Iterable[str | Mapping[str, Any]]
Answer = str | int | Sequence[int]


def effects(
    model: Any,
    text: Prompts | None = None,
    *,
    answer: Answer | None = None,
    against: Answer | None = None,
    metric: str | None = None,
    position: str | int | None = None,
    corrupt: str | Sequence[int] | None = None,
    file: str | Path | None = None,
    corpus: str | Path | None = None,
    ids: str | Sequence[int] | None = None,
    tokens: str | Sequence[str] | None = None,
    target: str | None = None,
    truncate: bool = False,
    columns: str | Sequence[str] | None = None,
    at: str | int | Sequence[int] | None = None,
    each_position: bool = False,
    block: str | None = None,
    sort: str | None = None,
    reverse: bool = False,
    top: int | None = None,
    stack: str | None = None,
    layers: Indices = None,
    heads: Indices = None,
    tokenizer: Any = None,
    dtype: str | None = None,
    device: str = "cpu",
    memory: str | int | None = None,
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
    the head adds to the logit directly, stand beside these.

    Args:
        model: `minilm`, a folder, a name on the hub, or a model that transformers has loaded, which
            stays exactly as it is.
        text: the model's input; or several prompts, an iterable of objects as in a corpus.
        answer: the answer whose logit is measured, as it continues the text, with its leading space; or
            its token ids; the name or index of a class; for a model without a prediction head, another
            text. None: the loss of the text; masked token, class: the likeliest.
        against: another answer, whose logit is subtracted.
        metric: `logit`, `log-probability`, `loss`, `similarity` or `distance`; None: the logit, or the
            log-probability of an answer of several tokens.
        position: the position whose prediction is measured; None: the last, or the masked tokens.
        corrupt: a text of as many tokens, or token ids: heads are patched from the first text into it.
        file, ids, tokens: a file, token ids, or entries of the vocabulary, instead of a text.
        corpus: a `.jsonl` file of prompts, with `text`, `answer`, `against`, `corrupt`, `target`.
        target: the decoder's text, for an encoder-decoder model; an answer follows it.
        truncate: whether to truncate a text that is too long instead of raising an error.
        columns: the names of columns to measure; None: all that apply. See `HeadEffects.metrics`.
        at: the positions at which a head's output is replaced: `last`, `0-3`, numbers, or a token.
        each_position: measure each position of a head's output by itself.
        block: keys that queries may not read: `0-3>last`.
        sort: the column by which heads are ranked when shown, the strongest first.
        reverse: rank the weakest first.
        top: the number of heads to show, ranked by the first column if there is no `sort`.
        stack: the stack of layers, if a model has several: `encoder`, `decoder`, `cross`.
        layers, heads: an index from 0, several, a range, or `0-3`; None or `all`: all.
        tokenizer: the tokenizer of a loaded model.
        dtype: the dtype to run in; None: as stored, but float32 instead of 16 bits, whose rounding is
            as large as effects are.
        device: the device to run on; a loaded model stays on its own, unless this is not `cpu`.
        memory: the memory of a run beside the model's weights: bytes, or `2G`; None: 80 % of the free
            memory.
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
    prompts = None if text is None or isinstance(text, str) else list(text)
    if prompts is not None:
        text = None
    if not isinstance(corpus, str | None):
        corpus = str(corpus)
    if not isinstance(at, str | None):
        at = ",".join(map(str, [at] if isinstance(at, int) else at or []))
    arguments = locals()
    inputs = group_of(PromptOptions, arguments, file=None if file is None else Path(file))
    request = group_of(PredictionOptions, arguments)
    options = group_of(EffectOptions, arguments, columns=column_names(columns, sort))
    order = group_of(EffectOrder, arguments)
    run = group_of(EffectRun, arguments)
    of_heads = group_of(EffectHeads, arguments)
    _check(inputs, request, options, order, several=prompts is not None)
    from attnscope.model.effects.job import EffectJob
    from attnscope.model.effects.measure import EffectSelection
    from attnscope.model.maps.capture import HeadSelection
    from attnscope.model.run.open import open_model

    selection = EffectSelection(
        options.columns,  # type: ignore[arg-type]
        HeadSelection(
            None if of_heads.stack is None else str(of_heads.stack),
            parse_indices("--layer", of_heads.layers),
            parse_indices("--head", of_heads.heads),
        ),
        options.at,
        options.block,
        options.each_position,
    )
    opening: dict[str, Any] = {"dtype": run.dtype, "memory": run.memory, "tokenizer": tokenizer}
    with open_model(model, run.device, progress=progress, **opening) as opened:
        job = EffectJob(opened, inputs, request, selection)
        table = job.table(prompts)
        first = next(iter(table.metrics)) if order.top is not None else None
        table.sort, table.reverse, table.top = order.sort or first, order.reverse, order.top
        if page:
            table.maps, table.why_no_maps = job.maps()
    return table


def column_names(columns: str | Sequence[str] | None, sort: str | None = None) -> list[str] | None:
    """Return the names of columns, in the order of the table; None: all that apply.

    >>> column_names("first-order, zero")
    ['zero', 'first order']
    """
    names = None
    if columns is not None:
        parts = columns.split(",") if isinstance(columns, str) else columns
        names = [" ".join(name.replace("-", " ").split()) for name in parts]
    for flag, name in [*(("--columns", name) for name in names or []), ("--sort", sort)]:
        if name is not None and name not in COLUMNS:
            raise OptionError(
                f"{flag}: there is no column {name!r}.",
                hint=nearest(name, COLUMNS) or ", ".join(COLUMNS),
            )
    if names is None:
        return None
    if sort is not None and sort not in names:
        raise OptionError(f"--sort {sort} is not among --columns {','.join(names)}.")
    return [name for name in COLUMNS if name in names]


def _check(
    inputs: PromptOptions,
    request: PredictionOptions,
    options: EffectOptions,
    order: EffectOrder,
    *,
    several: bool,
) -> None:
    """Raise an OptionError for options that contradict each other; warn of those without effect."""
    names = inputs.names + (["text"] if several else [])
    readable = '--text "…", --file FILE or --corpus FILE'
    if not names:
        raise OptionError("there is no input.", hint=readable)
    if len(names) > 1:
        raise OptionError(f"--{' and --'.join(names)} cannot be combined.", hint=readable)
    several = several or inputs.corpus is not None
    columns: Sequence[str] = options.columns or ()
    if PATCHED in columns and inputs.corrupt is None and not several:
        raise OptionError("patched needs a corrupted text.", hint='--corrupt "…"')
    if BLOCKED in columns and options.block is None:
        raise OptionError("blocked needs keys to block.", hint="--block '0-3>last'")
    if options.block is not None:
        if columns and BLOCKED not in columns:
            raise OptionError("--block is measured in the column blocked.", hint="--columns blocked")
        for flag, value in (("--at", options.at), ("--each-position", options.each_position)):
            if value:
                raise OptionError(f"{flag} is for the outputs of heads, and --block for what they read.")
    if options.each_position and several:
        raise OptionError("--each-position is for a single text: positions differ between prompts.")
    of_prompts = {"--answer": request.answer, "--against": request.against, "--target": inputs.target}
    for flag, value in (of_prompts | {"--corrupt": inputs.corrupt}).items():
        if several and value is not None:
            name = flag.removeprefix("--")
            raise OptionError(f"{flag} is a field of each prompt.", hint=f'"{name}": "…" in each line')
    if inputs.corrupt is not None and columns and not {PATCHED, FIRST_ORDER} & set(columns):
        raise OptionError("--corrupt is for patched and first order.", hint="--columns patched")
    if order.top is not None and order.top < 1:
        raise OptionError(f"--top is {order.top}, but must be 1 or more.")
    warn_unused([(order.reverse and order.sort is None, "--reverse", "there is no --sort")])
