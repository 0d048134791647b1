"""Run a model and collect its attention: `attnscope.attention_maps`, `attention_steps`."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from attnscope.base.errors import ModelError, OptionError
from attnscope.base.options import group_of
from attnscope.base.process.progress import Progress, silent, stage
from attnscope.document.grid.sinks import sink_positions
from attnscope.model.files.indices import Indices
from attnscope.model.heads.result import HeadTable
from attnscope.model.maps.options import HeadOptions, MapRun, ShownOptions
from attnscope.model.maps.request import MapRequest
from attnscope.model.maps.result import VALUE_WEIGHTED, AttentionMaps
from attnscope.model.run.options import ReadOptions
from attnscope.model.run.read_inputs import read_inputs
from attnscope.model.run.tokens import query_position
from attnscope.observe.trace import Trace

if TYPE_CHECKING:
    from attnscope.model.files.checkpoint import Checkpoint
    from attnscope.model.maps.capture import CollectedMaps, HeadSelection
    from attnscope.model.maps.pooled import Pooled
    from attnscope.model.run.open import OpenedModel
    from attnscope.model.run.tokenize import Reading


def attention_maps(
    model: Any = None,
    text: str | Sequence[str] | None = None,
    *,
    file: str | Path | None = None,
    ids: str | Sequence[int] | None = None,
    tokens: str | Sequence[str] | None = None,
    pair: str | None = None,
    target: str | None = None,
    image: Any = None,
    generate: int | None = None,
    truncate: bool = False,
    layers: Indices = None,
    heads: Indices = None,
    stack: str | None = None,
    query: int | str | None = None,
    top: int | None = None,
    without_sink: bool = False,
    weigh: str | None = None,
    rollout: bool = False,
    pool: str | None = None,
    steps: bool = False,
    stats: bool = False,
    keep: bool | Collection[str] = False,
    verify: bool = False,
    page: bool = False,
    save: str | Path | None = None,
    force: bool = False,
    copies: int = 1,
    tokenizer: Any = None,
    image_processor: Any = None,
    dtype: str | None = None,
    device: str = "cpu",
    memory: str | int | None = None,
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

    Args:
        model: `minilm`, a folder, a hub name, or a model that transformers has loaded; None: `minilm`
            where it is installed, else `bert-base-uncased`.
        text: the text to read. Or instead of it: `file`, a file to read as one text; `ids`, token ids;
            `tokens`, entries of the vocabulary; `image`, a file or a pillow image.
        pair: the second text of a pair.
        target: the decoder's input in an encoder-decoder model.
        generate: the number of tokens to generate; only their queries are shown.
        truncate: whether to truncate a text that is too long instead of raising an error.
        layers, heads: an index, several, a range, `"0-3"` or `"all"`; None: the first layer with
            attention, and head 0.
        stack: the stack of layers, if a model has several; None: `encoder`, or `cross` if a decoder
            runs.
        query: the position of a single query to show, or a token that occurs once in the text; its row
            is kept unpooled.
        top: the number of each query's strongest keys to list.
        without_sink: leave the first token and special ones out of these, and of the scale of colours.
        weigh: `value`: multiply each weight α_ij by ‖v_j W_O^h‖, the norm of what the value of key j
            adds to the layer's output (Kobayashi et al. 2020). Rows then do not sum to 1.
        rollout: in place of the maps of heads, the attention rollout up to each of `layers`, the last by
            default: R_l = ½(Ā_l + I) R_{l−1}, where Ā_l is the mean over the heads of layer l (Abnar &
            Zuidema 2020). Its map is `maps[layer, 0]`.
        pool: `max` or `mean`: pool maps to at most 256 × 256 cells; `none`: never. None: if whole maps
            take 256 MiB or more.
        steps: trace the attention of the layer step by step, too.
        stats, keep: options of the steps, as in `attnscope.trace`.
        verify: compare the maps with the model's own, from its eager attention.
        page: collect everything that a page shows, so that `maps.save("x.html")` has the other heads and
            stacks too, and ranks them.
        save: a `.safetensors`, `.npz` or `.pt` file. If maps are pooled, whole maps are written to it
            while they are computed; otherwise nothing is written here, and `maps.save` writes it.
        force: replace that file if it exists.
        copies: the memory to reserve for later copies, in multiples of the size of whole maps.
        tokenizer, image_processor: those of a loaded model.
        dtype: `float32`, `bfloat16`, `float16` or `float64`; None: as stored, or loaded.
        device: the device to run on; a loaded model stays on its own, unless this is not `cpu`.
        memory: the memory of the run beside the weights: `2G`, or bytes; None: 80 % of the free memory.
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
        text = _only(text)
    if keep and not steps:
        raise OptionError("keep is for the steps of a layer's attention.", hint="steps=True")
    file, save = (None if path is None else Path(path) for path in (file, save))
    arguments = locals()
    request = group_of(
        MapRequest,
        arguments,
        inputs=group_of(ReadOptions, arguments),
        heads=group_of(HeadOptions, arguments),
        display=group_of(ShownOptions, arguments),
        run=group_of(MapRun, arguments),
    )
    return collect_maps(request, model, progress, tokenizer, image_processor)


def _only(texts: Sequence[str]) -> str:
    """Return the only text of several."""
    if len(texts) != 1:
        raise OptionError(
            f"attention maps are those of one text, and here are {len(texts)}.",
            hint="[attention_maps(model, text) for text in texts]; or measure_heads(model, texts)",
        )
    return texts[0]


def attention_steps(
    model: Any = None,
    text: str | None = None,
    *,
    layer: int | None = None,
    stats: bool = False,
    keep: bool | Collection[str] = False,
    file: str | Path | None = None,
    ids: str | Sequence[int] | None = None,
    tokens: str | Sequence[str] | None = None,
    pair: str | None = None,
    target: str | None = None,
    image: Any = None,
    generate: int | None = None,
    truncate: bool = False,
    stack: str | None = None,
    verify: bool = False,
    tokenizer: Any = None,
    image_processor: Any = None,
    dtype: str | None = None,
    device: str = "cpu",
    memory: str | int | None = None,
    progress: Progress = silent,
) -> Trace:
    """Trace the attention of one layer of a model step by step, as `attnscope maps --steps` shows it.

    For example::

        trace = attnscope.attention_steps("minilm", "the cat sat", layer=2, keep=True)
        trace["scores"].tensor  # n_batch n_head n_Q n_K

    Args:
        model, text: as in `attention_maps`; so are all arguments that are not listed here.
        layer: the layer's index, from 0; None: the first with attention.
        stats: compute six statistics of each tensor, too.
        keep: keep the tensors: all, or those with these names.

    Returns:
        `Q`, `K`, `V` to `x_rsh2`, of all heads, with a check that `x_rsh2` equals the model's own.

    Raises:
        ModelError: the layer's attention cannot be captured. And the errors of `attention_maps`.
    """
    file = None if file is None else Path(file)
    arguments = locals()
    request = MapRequest(
        group_of(ReadOptions, arguments),
        group_of(HeadOptions, arguments, layers=layer, heads=None),
        ShownOptions(),
        group_of(MapRun, arguments),
        steps=True,
        stats=stats,
        keep=keep,
        verify=verify,
    )
    maps = collect_maps(request, model, progress, tokenizer, image_processor)
    assert maps.steps is not None
    return maps.steps


def collect_maps(
    request: MapRequest,
    model: Any,
    progress: Progress,
    tokenizer: Any = None,
    image_processor: Any = None,
) -> AttentionMaps:
    """Run a model, given by its name or itself, and collect the maps that a request asks for."""
    request.check()
    from attnscope.model.run.open import open_model

    options: dict[str, Any] = {"dtype": request.run.dtype, "memory": request.run.memory}
    options |= {"tokenizer": tokenizer, "image_processor": image_processor, "progress": progress}
    with open_model(model, request.run.device, **options) as opened:
        return _collect(request, _load(request, opened), progress)


@dataclass
class _LoadedMaps:
    """A model that is ready to run, its inputs, and what is collected."""

    opened: OpenedModel
    reading: Reading
    stack: str
    selection: HeadSelection
    #: how maps are pooled; None: they are held whole.
    pooled: Pooled | None = None

    @property
    def inputs(self) -> tuple[Checkpoint, Any, Reading, HeadSelection]:
        """The first arguments of what collects maps, or compares them with the model's own."""
        return self.opened.checkpoint, self.opened.model, self.reading, self.selection


def _load(request: MapRequest, opened: OpenedModel) -> _LoadedMaps:
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
    run = _LoadedMaps(opened, reading, stack, request.selection(stack))
    if pooled:
        run.pooled = plan_pooling(request, opened, reading, run.selection, stack)
    return run


def _collect(request: MapRequest, run: _LoadedMaps, progress: Progress) -> AttentionMaps:
    """Run the model, and return the maps that are shown, with checks, steps and metrics."""
    name, reading = run.opened.name, run.reading
    doing = f"running {name} on {run.opened.device} …"
    whole_file = request.save if run.pooled is not None and request.saves_whole else None
    with stage(progress, doing), ExitStack() as files:
        if run.pooled is not None:

            def watch(layer: int, n_layer: int, share: float) -> None:
                progress(f"running {name}: layer {layer} of {n_layer}, {share:.0%} …")

            run.pooled = replace(run.pooled, watch=watch)
            if whole_file is not None:
                from attnscope.model.maps.matrix_file import MapsFile, matrix_file

                about = {"numbers": VALUE_WEIGHTED.name} if request.display.weigh else None
                opened = matrix_file(whole_file, force=request.force, about=about)
                file = files.enter_context(opened)
                of_whole = request.shown_selection(run.stack)
                run.pooled = replace(run.pooled, whole=MapsFile(file), of_whole=of_whole)
        notices = _give_target(request.inputs, run)
        request = _with_position(request, run)
        collected = _run_model(request, run)
        maps = _shown(request, run, collected)
        maps.notices += reading.notices + notices
        maps.whole_file = whole_file
        if request.verify:
            from attnscope.model.maps.verify import verify

            if collected.weights:
                weights = replace(collected, stacks=collected.weights)
                maps.checks = verify(*run.inputs, weights, what="weight map")
                maps.checks += [] if collected.projected is None else [collected.projected]
            else:
                what = "rollout" if request.display.rollout else "map"
                maps.checks = verify(*run.inputs, collected, what=what)
        _check_query(maps)
    if request.page:
        maps.collected = collected.stacks
        if not request.display.rollout:
            maps.metrics = _metrics(reading, collected)
        maps.of_weights = collected.weights
    if request.steps:
        maps.steps = _steps(request, collected, maps)
    return maps


def _run_model(request: MapRequest, run: _LoadedMaps) -> CollectedMaps:
    """Run the model and collect its maps, whole or pooled."""
    from attnscope.model.maps.collect import collect_maps, norms_of_values

    norms = None if request.display.weigh is None else norms_of_values(*run.inputs[:3])
    if run.pooled is not None:
        from attnscope.model.maps.pooled import collect_pooled

        pooled = replace(run.pooled, norms=norms, keep_weights=request.keeps_weights)
        return collect_pooled(*run.inputs, pooled)
    keep = run.stack if request.steps else None
    return collect_maps(*run.inputs, keep=keep, norms=norms, keep_weights=request.keeps_weights)


# Before a model is loaded.


def _stack(request: MapRequest, opened: OpenedModel) -> str:
    """Return the stack that is shown."""
    from attnscope.model.run.layers import stacks_that_run

    inputs, named = request.inputs, request.heads.stack
    runs = stacks_that_run(opened.config, picture=inputs.image is not None, decodes=inputs.decodes)
    if named is None and request.display.rollout and "cross" in runs:
        raise OptionError(
            f"{opened.name} has several stacks of layers, and --rollout is of one.",
            hint="--stack encoder, or --stack decoder",
        )
    if named is None:
        return "cross" if "cross" in runs else runs[0]
    if named in runs:
        return named
    if opened.config.is_encoder_decoder and named in ("decoder", "cross"):
        raise OptionError(
            f"--stack {named} belongs to the decoder of {opened.name}, which has no input.",
            hint='--target "…", or --generate N',
        )
    raise OptionError(
        f"{opened.name} has no stack {named} for this input: it has {', '.join(runs)}.",
        hint=f"--stack {runs[0]}",
    )


# While it runs.


def _with_position(request: MapRequest, run: _LoadedMaps) -> MapRequest:
    """Return the request with the position of the query that a token names."""
    query = request.display.query
    if isinstance(query, str):
        if run.reading.picture and not query.isdecimal():
            raise OptionError(f"--query is {query!r}, but an image has patches.", hint="--query 0")
        decodes = run.stack in ("decoder", "cross")
        query = query_position(query, run.reading.target if decodes else run.reading.source)
    if run.pooled is not None:
        run.pooled = replace(run.pooled, query=query)
    return replace(request, display=replace(request.display, query=query))


def _give_target(inputs: ReadOptions, run: _LoadedMaps) -> list[str]:
    """Set the decoder's target, or generate one; return notices about it."""
    from attnscope.model.run.forward import generate_tokens, give_target

    if inputs.target is not None:
        give_target(*run.inputs[:3])
    if inputs.generate is None:
        return []
    text = generate_tokens(*run.inputs[:3], inputs.generate)
    return [f"generated: {text!r}. A token's row shows what it attends to as a query."]


# When it has run.


def _shown(request: MapRequest, run: _LoadedMaps, collected: CollectedMaps) -> AttentionMaps:
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
        query=request.display.query,
        top=request.display.top,
        notices=list(maps.notices),
    )


def _check_query(maps: AttentionMaps) -> None:
    """Raise an OptionError if the selected query does not exist."""
    first, last = maps.first_query, maps.first_query + len(maps.query_tokens) - 1
    if maps.query is not None and not first <= maps.query <= last:
        raise OptionError(
            f"there is no query {maps.query}: queries are {first} to {last}.",
            hint="--top 1, which lists them",
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
            f"{collected.eager[maps.stack]}. Only its maps are available, not their --steps."
        )
    named = maps.model if maps.stack == "self" else f"{maps.model} · {maps.stack} attention"
    title = f"{named} · layer {maps.maps[0].layer} of {maps.n_layer}"
    trace = trace_steps(collected.call, title, keep=request.keep, stats=request.stats)
    trace.notices = [*trace.notices, *maps.notices]
    trace.checks = [*(trace.checks or []), *(maps.checks or [])]
    return trace
