"""Run a model and collect its attention: `attnscope.attention_maps`, `attention_steps`."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from attnscope.base.errors import ModelError, OptionError
from attnscope.base.options import with_keywords
from attnscope.base.process.progress import Progress, silent, stage
from attnscope.base.spelling import spelled
from attnscope.document.grid.sinks import sink_positions
from attnscope.model.heads.result import HeadTable
from attnscope.model.maps.options import (
    HeadOptions,
    MapParts,
    MapRun,
    ShownOptions,
    StepOptions,
)
from attnscope.model.maps.request import MapRequest
from attnscope.model.maps.result import VALUE_WEIGHTED, AttentionMaps
from attnscope.model.run.options import ReadOptions
from attnscope.model.run.read_inputs import read_inputs
from attnscope.model.run.tokens import query_position
from attnscope.observe.trace import Trace

if TYPE_CHECKING:
    from attnscope.model.files.checkpoint import Checkpoint
    from attnscope.model.maps.capture import CollectedMaps, HeadSelection
    from attnscope.model.maps.matrix_file import MapsFile
    from attnscope.model.run.memory_plan import MemoryPlan
    from attnscope.model.run.open import OpenedModel
    from attnscope.model.run.tokenize import Reading


@with_keywords
def attention_maps(
    model: Any = None,
    text: str | Sequence[str] | None = None,
    *,
    inputs: ReadOptions,
    heads: HeadOptions,
    view: ShownOptions,
    parts: MapParts,
    run: MapRun,
    progress: Progress = silent,
) -> AttentionMaps:
    """Run a model on an input, and return its attention maps, as `attnscope maps` shows them.

    For example::

        maps = attnscope.attention_maps("minilm", "the cat sat", layers="all", heads="all")
        maps[3, 5].attention  # n_Q n_K, numpy
        maps.save("attention.html")
        model = AutoModel.from_pretrained(name)
        maps = attnscope.attention_maps(model, "the cat sat", tokenizer=tokenizer)

    A loaded model is left unchanged: a copy runs, which shares its weights and hooks. Kinds of attention
    that cannot be observed (flash, flex) are replaced by torch's own in the copy.

    With `weigh="value"`, weight α_ij is multiplied by ‖v_j W_O^h‖ (Kobayashi et al. 2020), so that rows
    do not sum to 1. With `rollout=True`, there is a map for each of `layers`, `maps[layer, 0]`, in place
    of those of heads: R_l = ½(Ā_l + I) R_{l−1}, where Ā_l is the mean over the heads of layer l (Abnar &
    Zuidema 2020).

    Args:
        model: `minilm`, a folder, a hub name, or a model that transformers has loaded; None: `minilm`
            where it is installed, else `bert-base-uncased`.
        text: the text to read; or instead of it, `file`, `ids`, `tokens` or `image`.
        progress: called with the progress of the work.

    Returns:
        Weights after the softmax, or the numbers that `numbers` names, float32, `n_Q n_K` for each head;
        checks, steps, `collected` and `metrics` if requested, else None.

    Raises:
        OptionError: options contradict each other, or the model does not support them.
        ModelError: no such model, stack, layer or head; or transformers cannot run it.
        SizeError: there is too little memory.
        FileError: a file cannot be read, or written.
    """
    if text is not None and not isinstance(text, str):
        if len(text) != 1:
            raise OptionError(
                f"attention maps are those of one text, and here are {len(text)}.",
                hint="[attention_maps(model, text) for text in texts]; or measure_heads(model, texts)",
            )
        inputs = replace(inputs, text=text[0])
    return _maps(MapRequest(inputs, heads, view, parts, run), model, progress)


@with_keywords
def attention_steps(
    model: Any = None,
    text: str | None = None,
    *,
    options: StepOptions,
    inputs: ReadOptions,
    run: MapRun,
    progress: Progress = silent,
) -> Trace:
    """Trace the attention of one layer of a model step by step, as `attnscope maps --steps` shows it.

    For example::

        trace = attnscope.attention_steps("minilm", "the cat sat", layer=2, keep=True)
        trace["scores"].tensor  # n_batch n_head n_Q n_K

    Args:
        model, text: as in `attention_maps`.
        progress: called with the progress of the work.

    Returns:
        `Q`, `K`, `V` to `x_rsh2`, of all heads, with a check that `x_rsh2` equals the model's own.

    Raises:
        ModelError: the layer's attention cannot be captured. And the errors of `attention_maps`.
    """
    heads = HeadOptions(options.layer, None, options.stack)
    parts = MapParts(steps=True, verify=options.verify, stats=options.stats, keep=options.keep)
    maps = _maps(MapRequest(inputs, heads, ShownOptions(), parts, run), model, progress)
    assert maps.steps is not None
    return maps.steps


def _maps(request: MapRequest, model: Any, progress: Progress) -> AttentionMaps:
    """Run a model, given by its name or itself, and collect the maps that a request asks for."""
    request.check()
    from attnscope.model.run.open import open_model

    run = request.run
    options: dict[str, Any] = {"dtype": run.dtype, "memory": run.memory, "tokenizer": run.tokenizer}
    options |= {"image_processor": run.image_processor, "progress": progress}
    with open_model(model, run.device, **options) as opened:
        return _collect(request, _load(request, opened))


@dataclass
class _LoadedModel:
    """A model that is ready to run, and its inputs."""

    opened: OpenedModel
    reading: Reading
    stack: str
    #: the heads that are collected.
    selection: HeadSelection
    #: the memory of a run that pools maps; None: they are held whole.
    plan: MemoryPlan | None

    @property
    def inputs(self) -> tuple[Checkpoint, Any, Reading, HeadSelection]:
        """The first arguments of what collects maps, or compares them with the model's own."""
        return self.opened.checkpoint, self.opened.model, self.reading, self.selection


def _load(request: MapRequest, opened: OpenedModel) -> _LoadedModel:
    """Check what is requested, and load the model."""
    from attnscope.model.maps.memory import check_fits, is_pooled, plan_pooling
    from attnscope.model.run.layers import check_numbers

    with opened.loading():
        reading = read_inputs(request.inputs, opened.checkpoint, opened.config)
        selection = request.selection(_stack(request, opened))
        pooled = is_pooled(request, opened.config, reading, selection)
        opened.check_device()
        numbers = (request.heads.layer_numbers or [], request.heads.head_numbers or [])
        check_numbers(opened.name, opened.config, reading, *numbers)
        check_fits(request, opened, reading, selection, pooled=pooled)
        opened.load(generates=request.inputs.generate is not None)
        reading.to(opened.device)
        stack = _stack(request, opened)  # loading may change the configuration
    selection = request.selection(stack)
    plan = plan_pooling(request, opened, reading, selection) if pooled else None
    return _LoadedModel(opened, reading, stack, selection, plan)


def _collect(request: MapRequest, run: _LoadedModel) -> AttentionMaps:
    """Run the model, and return the maps that are shown, with checks, steps and metrics."""
    name, reading, parts, view = run.opened.name, run.reading, request.parts, request.display
    doing = f"running {name} on {run.opened.device} …"
    whole = request.file if run.plan is not None and request.saves_whole else None
    with stage(run.opened.progress, doing), _file_of_whole(request, whole) as file:
        notices = _give_target(request.inputs, run)
        query = _query(view.query, run)
        collected = _run_model(request, run, query, file)
        maps = _shown(request, run, collected)
        maps.query, maps.whole_file = query, whole
        maps.notices += reading.notices + notices
        if parts.verify:
            from attnscope.model.maps.verify import verify

            if collected.weights:
                weights = replace(collected, stacks=collected.weights)
                maps.checks = verify(*run.inputs, weights, what="weight map")
                maps.checks += [] if collected.projected is None else [collected.projected]
            else:
                maps.checks = verify(*run.inputs, collected, what="rollout" if view.rollout else "map")
        _check_query(maps)
    if parts.page:
        maps.collected, maps.of_weights = collected.stacks, collected.weights
        maps.metrics = None if view.rollout else _metrics(reading, collected)
    if parts.steps:
        maps.steps = _steps(request, collected, maps)
    return maps


@contextmanager
def _file_of_whole(request: MapRequest, path: Path | None) -> Iterator[MapsFile | None]:
    """Open the file for whole maps beside pooled ones, if there is a path."""
    if path is None:
        yield None
        return
    from attnscope.model.maps.matrix_file import MapsFile, matrix_file

    about = {"numbers": VALUE_WEIGHTED.name} if request.display.weigh else None
    with matrix_file(path, force=request.parts.force, about=about) as file:
        yield MapsFile(file)


def _run_model(
    request: MapRequest, run: _LoadedModel, query: int | None, file: MapsFile | None
) -> CollectedMaps:
    """Run the model and collect its maps, whole or pooled."""
    from attnscope.model.maps.collect import collect_maps, norms_of_values

    view, keeps_weights = request.display, request.keeps_weights
    norms = None if view.weigh is None else norms_of_values(*run.inputs[:3])
    if run.plan is None:
        keep = run.stack if request.parts.steps else None
        return collect_maps(*run.inputs, keep=keep, norms=norms, keep_weights=keeps_weights)
    from attnscope.model.maps.memory import separators
    from attnscope.model.maps.pooled import Pooled, collect_pooled

    name, progress = run.opened.name, run.opened.progress

    def watch(layer: int, n_layer: int, share: float) -> None:
        progress(f"running {name}: layer {layer} of {n_layer}, {share:.0%} …")

    shown = request.shown_selection(run.stack)
    pooled = Pooled(
        shown=str(view.pool) if view.pools else "max",
        block_bytes=run.plan.block,
        query=query,
        top=view.top,
        head=shown if query is not None or view.top else None,
        without_sink=view.without_sink,
        whole=file,
        of_whole=None if file is None else shown,
        separators=separators(run.reading) if request.parts.page else None,
        norms=norms,
        keep_weights=keeps_weights,
        watch=watch,
    )
    return collect_pooled(*run.inputs, pooled)


# Before a model is loaded.


def _stack(request: MapRequest, opened: OpenedModel) -> str:
    """Return the stack that is shown."""
    from attnscope.model.run.layers import stacks_that_run

    inputs, named = request.inputs, request.heads.stack
    runs = stacks_that_run(opened.config, picture=inputs.image is not None, decodes=inputs.decodes)
    if named is None and request.display.rollout and "cross" in runs:
        raise OptionError(
            f"{opened.name} has several stacks of layers, and {spelled('rollout')} is of one.",
            hint=f"{spelled(stack='encoder')}, or {spelled(stack='decoder')}",
        )
    if named is None:
        return "cross" if "cross" in runs else runs[0]
    if named in runs:
        return named
    if opened.config.is_encoder_decoder and named in ("decoder", "cross"):
        raise OptionError(
            f"{spelled('stack', named)} belongs to the decoder of {opened.name}, which has no input.",
            hint=f"{spelled(target='…')}, or {spelled(generate='N')}",
        )
    raise OptionError(
        f"{opened.name} has no stack {named} for this input: it has {', '.join(runs)}.",
        hint=spelled(stack=runs[0]),
    )


# While it runs.


def _query(query: int | str | None, run: _LoadedModel) -> int | None:
    """Return the position of the query that is shown, which a token may name."""
    if not isinstance(query, str):
        return query
    if run.reading.picture and not query.isdecimal():
        raise OptionError(
            f"{spelled('query')} is {query!r}, but an image has patches.", hint=spelled(query=0)
        )
    decodes = run.stack in ("decoder", "cross")
    return query_position(query, run.reading.target if decodes else run.reading.source)


def _give_target(inputs: ReadOptions, run: _LoadedModel) -> list[str]:
    """Set the decoder's target, or generate one; return notices about it."""
    from attnscope.model.run.forward import generate_tokens, give_target

    if inputs.target is not None:
        give_target(*run.inputs[:3])
    if inputs.generate is None:
        return []
    text = generate_tokens(*run.inputs[:3], inputs.generate)
    return [f"generated: {text!r}. A token's row shows what it attends to as a query."]


# When it has run.


def _shown(request: MapRequest, run: _LoadedModel, collected: CollectedMaps) -> AttentionMaps:
    """Return the maps that are shown; others may have been collected for a page."""
    from attnscope.model.maps.capture import HeadSelection

    stack, layers, heads = run.stack, request.heads.layer_numbers, request.heads.head_numbers
    if request.heads.layers is None:
        default = max if request.display.rollout else min
        layers = [default((layer for name, layer in collected.layers if name == stack), default=0)]
    collected.check(run.opened.name, stack, layers or [], heads or [])
    selection = HeadSelection(stack, layers, heads)
    maps = next(each for each in collected.stacks if each.stack == stack)
    shown = [
        each for each in maps.maps if each.head in selection.heads_of(stack, each.layer, maps.n_head)
    ]
    sinks = (
        sink_positions(key.special for key in maps.key_tokens) if request.display.without_sink else []
    )
    return replace(
        maps,
        maps=shown,
        left_out=sinks,
        top=request.display.top,
        notices=list(maps.notices),
    )


def _check_query(maps: AttentionMaps) -> None:
    """Raise an OptionError if the selected query does not exist."""
    first, last = maps.first_query, maps.first_query + len(maps.query_tokens) - 1
    if maps.query is not None and not first <= maps.query <= last:
        raise OptionError(
            f"there is no query {maps.query}: queries are {first} to {last}.",
            hint=f"{spelled(top=1)}, which lists them",
        )


def _metrics(reading: Reading, collected: CollectedMaps) -> HeadTable:
    """Return the metrics of heads by which a page ranks them."""
    from attnscope.model.maps.memory import separators
    from attnscope.model.maps.metrics import measure, table

    rows, stacks = collected.measured, collected.weights or collected.stacks
    if not rows:
        rows = [row for maps in stacks for row in measure(maps, separators(reading))]
    return table(stacks, rows)


def _steps(request: MapRequest, collected: CollectedMaps, maps: AttentionMaps) -> Trace:
    """Trace one layer's attention step by step."""
    from attnscope.model.maps.steps import trace_steps

    if collected.call is None:
        raise ModelError(
            f"{collected.eager[maps.stack]}. Only its maps are available, not their {spelled('steps')}."
        )
    named = maps.model if maps.stack == "self" else f"{maps.model} · {maps.stack} attention"
    title = f"{named} · layer {maps.maps[0].layer} of {maps.n_layer}"
    trace = trace_steps(collected.call, title, keep=request.parts.keep, stats=request.parts.stats)
    trace.notices = [*trace.notices, *maps.notices]
    trace.checks = [*(trace.checks or []), *(maps.checks or [])]
    return trace
