"""What `model` and `bert` do with a text or a picture: show what heads look at in it."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import AbstractContextManager, ExitStack
from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING, Any, Literal

from attnscope.cli.long_text import (
    beside_weights,
    bytes_of_whole,
    check_room,
    name_of_map,
    plan,
    pools,
    separators,
    with_whole_maps,
)
from attnscope.cli.options import Format
from attnscope.cli.output import progress, tell, written_first
from attnscope.cli.request import Request
from attnscope.errors import ModelError, OptionError
from attnscope.models.running.fit import check_weights_fit
from attnscope.models.running.text_file import text_of_file
from attnscope.process.progress import without_garbage_collection
from attnscope.render.files.save import stored
from attnscope.results.heads import HeadTable
from attnscope.results.maps import AttentionMap, AttentionMaps
from attnscope.sinks import sink_positions

if TYPE_CHECKING:
    from attnscope.checkpoints.find import Checkpoint
    from attnscope.models.maps.capture import Seen, Wanted
    from attnscope.models.maps.pooled import Pooled
    from attnscope.models.running.tokenize import Reading
    from attnscope.process.progress import Progress
    from attnscope.render.files.matrix_file import MatrixFile
    from attnscope.render.files.tensor_file import Tensors
    from attnscope.render.values import Shown


def show_attention(request: Request) -> int:
    """Let a model read, and show what its heads look at; the exit status: 1 if a check fails."""
    _check_files(request)
    from attnscope.checkpoints.find import find_checkpoint
    from attnscope.models.running.load import load_config, load_model
    from attnscope.process.memory import check_imports, return_what_is_freed

    check_imports(transformers=True)
    return_what_is_freed()
    checkpoint = find_checkpoint(request.model)
    with progress(f"loading {checkpoint.name} …"), without_garbage_collection():
        config = load_config(checkpoint)
        reading = _read(request, checkpoint, config)
        stack = _stack(request, checkpoint, config)
        wanted = _wanted(request, stack)
        pooled = pools(request, config, reading, wanted)
        _check_device(request, checkpoint, config, reading)
        if not pooled:
            _check_map_size(request, reading)
            check_room(request, config, reading, wanted)
        whole = 0 if pooled else bytes_of_whole(request, config, reading, wanted)
        beside: dict[str, Any] = {"beside": whole if request.device == "cpu" else 0}
        if pooled:
            beside = beside_weights(request, config, reading, wanted)
        check_weights_fit(checkpoint, config, request.dtype, request.device, **beside)
        options: dict[str, Any] = {"dtype": request.dtype, "device": request.device}
        model = load_model(checkpoint, config, writes=request.generate is not None, **options)
        reading.to(request.device)
        stack = _stack(request, checkpoint, model.config)  # some classes know better than the file
        wanted = _wanted(request, stack)
    what = (request, checkpoint, model, reading, wanted, stack)
    planned, file = plan(*what) if pooled else None, None
    with progress(f"running {checkpoint.name} on {request.device} …") as status, ExitStack() as files:
        if planned is not None:
            planned = replace(planned, watch=_watch(checkpoint.name, status))
        if planned is not None and request.saves_whole:
            file = files.enter_context(_matrices(request))
            planned = with_whole_maps(planned, request, stack, file)
        notices = _give_target(request, checkpoint, model, reading)
        seen = _look(*what, planned)
        maps = _chosen(request, seen, stack, checkpoint)
        maps.notices += reading.notices + notices
        if request.verify:
            from attnscope.models.maps.compare import compare

            maps.checks = compare(checkpoint, model, reading, wanted, seen)
        _check_query(request, maps)
    if file is not None:
        request.output.tell_written(len(maps.maps), file.size, f"whole maps of {_size(maps)} weights")
    write = partial(_draw, request, reading, seen, maps)
    if request.steps:
        _print_steps(request, seen, maps, write)
    else:
        _print_maps(request, maps, write, whole_saved=file is not None)
    return 1 if any(check.ok is False for check in maps.checks) else 0


def _check_files(request: Request) -> None:
    """Raise an AttnscopeError if a file cannot be written, or is there already."""
    from attnscope.process.devices import check_device_name

    check_device_name(request.device)
    request.output.check([])
    if request.plot is not None:
        from attnscope.render.figures.plot import check_plot

        check_plot(request.plot, force=request.force)
    if request.page is not None:
        from attnscope.render.page.page import check_page

        check_page(request.page, name="attention.html", force=request.force)


def _check_map_size(request: Request, reading: Reading) -> None:
    """Raise a SizeError if a page of whole maps is wanted, and they are larger than it can show."""
    if request.page is not None:
        from attnscope.render.page.page import check_map_size

        check_map_size(max(len(reading.source), len(reading.labels)) + (request.generate or 0))


def _read(request: Request, checkpoint: Checkpoint, config: Any) -> Reading:
    """What the model is given to read."""
    from attnscope.models.running.tokenize import check_reads, read_image, read_text, room

    check_reads(checkpoint, config, "image" if request.image else "text")
    if request.image is not None:
        return read_image(checkpoint, config, request.image)
    if request.target is not None and not config.is_encoder_decoder:
        raise OptionError(
            f"--target is what a decoder beside an encoder reads, and {checkpoint.name}"
            f" ({config.model_type}) has no such decoder.",
            hint='--text "…" --pair "…"',
        )
    more: dict[str, Any] = {"target": request.target, "truncate": request.truncate}
    if request.ids is not None or request.tokens is not None:
        from attnscope.models.running.token_ids import ids_of, read_ids

        ids = ids_of(checkpoint, request.ids, request.tokens)
        named = "--tokens" if request.ids is None else "--ids"
        return read_ids(checkpoint, config, ids, named=named, **more)
    text, named = request.text or "", "--text"
    if request.file is not None:
        text = text_of_file(request.file, room(config), truncate=request.truncate)
        named = f"--file {request.file}"
    return read_text(checkpoint, config, text, named=named, pair=request.pair, **more)


def _stack(request: Request, checkpoint: Checkpoint, config: Any) -> str:
    """Whose layers are shown."""
    from attnscope.models.running.layers import stacks_that_run

    runs = stacks_that_run(config, picture=request.image is not None, decodes=request.decodes)
    if request.stack is None:
        return "cross" if "cross" in runs else runs[0]
    if request.stack in runs:
        return request.stack
    if config.is_encoder_decoder and request.stack in ("decoder", "cross"):
        raise OptionError(
            f"--stack {request.stack} is where the decoder of {checkpoint.name} attends, and it has"
            " nothing to read.",
            hint='--target "…", or --generate N',
        )
    raise OptionError(
        f"{checkpoint.name} has no stack {request.stack} that reads this: there is {', '.join(runs)}.",
        hint=f"--stack {runs[0]}",
    )


def _wanted(request: Request, stack: str) -> Wanted:
    """The heads to keep: those that are named; for a page all, unless several are named."""
    from attnscope.models.maps.capture import Wanted

    layers: list[int] | Literal["first"] | None = "first"
    if request.layer is not None:
        layers = request.layers
    if request.page is None:
        return Wanted(stack, layers, request.heads)
    if request.one_head:
        return Wanted(request.stack)
    return Wanted(request.stack, layers, request.heads)


def _check_device(request: Request, checkpoint: Checkpoint, config: Any, reading: Reading) -> None:
    """Raise an AttnscopeError for a device or a number that is wrong, before weights are loaded."""
    from attnscope.models.running.layers import check_numbers
    from attnscope.process.devices import check_device

    check_device(request.device)
    check_numbers(checkpoint.name, config, reading, request.layers or [], request.heads or [])


def _check_query(request: Request, maps: AttentionMaps) -> None:
    """Raise an OptionError if there is no query of the number that is asked for."""
    first, last = maps.first_query, maps.first_query + len(maps.query_tokens) - 1
    if request.query is not None and not first <= request.query <= last:
        raise OptionError(
            f"there is no query {request.query}: they are {first} to {last}.",
            hint="--top 1, which lists them",
        )


def _matrices(request: Request) -> AbstractContextManager[MatrixFile]:
    """The file of `--save`, for whole maps."""
    from attnscope.render.files.matrix_file import matrix_file

    assert request.save is not None
    return matrix_file(request.save, force=request.force)


def _watch(name: str, progress: Progress) -> Callable[[int, int, float], None]:
    """What tells how far a run is."""

    def watch(layer: int, n_layer: int, share: float) -> None:
        progress(f"running {name}: layer {layer} of {n_layer}, {share:.0%} …")

    return watch


def _size(maps: AttentionMaps) -> str:
    return f"{len(maps.query_tokens):,} × {len(maps.key_tokens):,}"


def _look(
    request: Request,
    checkpoint: Checkpoint,
    model: Any,
    reading: Reading,
    wanted: Wanted,
    stack: str,
    pooled: Pooled | None,
) -> Seen:
    """Run the model and see what its heads look at: whole maps, or pooled ones."""
    if pooled is not None:
        from attnscope.models.maps.pooled import look_in_blocks

        return look_in_blocks(checkpoint, model, reading, wanted, pooled)
    from attnscope.models.maps.collect import look

    return look(checkpoint, model, reading, wanted, keep=stack if request.steps else None)


def _give_target(request: Request, checkpoint: Checkpoint, model: Any, reading: Reading) -> list[str]:
    """Let the decoder read its target, or write one; what there is to say of that."""
    from attnscope.models.running.decode import give_target, write_on

    if request.target is not None:
        give_target(checkpoint, model, reading)
    if request.generate is None:
        return []
    written = write_on(checkpoint, model, reading, request.generate)
    return [f"written: {written!r}. A token's row is what it looks at once it is there."]


def _chosen(request: Request, seen: Seen, stack: str, checkpoint: Checkpoint) -> AttentionMaps:
    """The maps that are shown on the terminal, among those that a page may need beside them."""
    from attnscope.models.maps.capture import Wanted

    layers = request.layers
    if request.layer is None:
        layers = [min((layer for name, layer in seen.layers if name == stack), default=0)]
    seen.check(checkpoint.name, stack, layers or [], request.heads or [])
    wanted = Wanted(stack, layers, request.heads)
    maps = next(each for each in seen.stacks if each.stack == stack)
    own = [each for each in maps.maps if each.head in wanted.heads_of(stack, each.layer, maps.n_head)]
    left_out = sink_positions(key.special for key in maps.key_tokens) if request.without_sink else []
    return replace(maps, maps=own, left_out=left_out, notices=list(maps.notices))


def _print_maps(
    request: Request, maps: AttentionMaps, write: Callable[[], None], *, whole_saved: bool
) -> None:
    """Print one head's map, or an overview of several, once the files are written.

    Args:
        request, maps: what is printed.
        write: writes the files of the plot and of the page.
        whole_saved: whether the file of `--save` is written already.
    """
    output = request.output
    one = maps.maps[0] if len(maps.maps) == 1 else None
    if request.without_sink and request.format is Format.CSV and not request.top:
        tell("--without-sink has no effect on csv without --top: it holds all weights")
    shown: list[Shown] = []
    if request.show and one is not None:
        arrays = {"attention": one.attention} | _more_of(one)
        axes = {name: ("n_K",) if name == "row" else ("n_Q", "n_K") for name in arrays}
        where = "this map (--steps has more)" if maps.pooling is None else "this pooled map"
        output.check_selections({name: (arrays[name].shape, axes[name]) for name in arrays}, where)
        shown = output.shown(lambda name: (arrays[name], "float32", axes[name]))

    def save() -> None:
        if not whole_saved:
            output.write(_tensors(maps), _pooling_metadata(maps))
            _tell_pooled(request, maps)

    with written_first(save, write):
        output.print_maps(maps, one, shown, query=request.query, top=request.top)


def _tensors(maps: AttentionMaps) -> Tensors:
    """The maps by their names in a file; of pooled maps, all that is known of them."""
    tensors: Tensors = {}
    one = len(maps.maps) == 1
    for each in maps.maps:
        name = name_of_map(each.layer, each.head, one=False)
        tensors[name_of_map(each.layer, each.head, one=one)] = (each.attention, "float32")
        for kind, array in _more_of(each).items():
            tensors[kind if one else f"{name}.{kind}"] = (array, "float32")
    if maps.pooling is not None:
        import numpy as np

        for axis, cells in (("queries", maps.pooling.queries), ("keys", maps.pooling.keys)):
            starts = [[cell.start, cell.stop] for cell in cells]
            tensors[f"{axis}_of_cells"] = (np.array(starts), "int64")
    return tensors


def _pooling_metadata(maps: AttentionMaps) -> dict[str, str] | None:
    """What a file says of pooled maps beside its tensors, where its format has a place for that."""
    if maps.pooling is None:
        return None
    return {"pooling": maps.pooling.shown, "weights": _size(maps)}


def _tell_pooled(request: Request, maps: AttentionMaps) -> None:
    """Say that a file holds pooled maps."""
    if request.save is None or maps.pooling is None:
        return
    rows, columns = len(maps.pooling.queries), len(maps.pooling.keys)
    tell(
        f"--pool {request.pool}: the maps in {request.save} are pooled, {rows} × {columns} cells of"
        f" {_size(maps)} weights; without --pool, or with --pool none, they are whole"
    )


def _more_of(map: AttentionMap) -> dict[str, Any]:
    """What is known of a pooled map beside what it shows."""
    arrays = {"mean": map.mean, "max": map.max, "row": map.row}
    return {name: array for name, array in arrays.items() if array is not None}


def _print_steps(request: Request, seen: Seen, maps: AttentionMaps, write: Callable[[], None]) -> None:
    """Print one layer's attention step by step, once the files are written."""
    from attnscope.models.maps.steps import trace_steps
    from attnscope.render.heading import named

    if seen.call is None:
        raise ModelError(f"{seen.eager[maps.stack]}. Only its maps are known, not their --steps.")
    output = request.output
    layer = maps.maps[0].layer
    title = f"{named(maps.model, maps.stack)} · layer {layer} of {maps.n_layer}"
    trace = trace_steps(seen.call, title, keep=output.keep, stats=request.stats)
    trace.notices, trace.checks = [*trace.notices, *maps.notices], trace.checks + maps.checks
    output.check_selections({step.name: (step.shape, step.dims) for step in trace.steps}, "these steps")
    shown = output.shown_of(trace)
    tensors = {step.name: stored(step) for step in trace.steps} if request.save else {}
    with written_first(lambda: output.write(tensors), write):
        output.print(trace, shown)
    for notice in trace.notices:
        tell(notice)


def _draw(request: Request, reading: Reading, seen: Seen, maps: AttentionMaps) -> None:
    """Write the plot and the page, and say so."""
    from attnscope.units import bytes_text

    if request.plot is not None:
        from attnscope.render.figures.plot import save_plot

        with progress(f"drawing {request.plot} …"):
            size = save_plot(request.plot, maps, query=request.query, force=request.force)
        tell(f"drew {request.plot}, {bytes_text(size)}")
    if request.page is not None:
        from attnscope.files import write_file
        from attnscope.render.page.page import page_html
        from attnscope.render.pooling import row_of

        shown = maps.maps[0]
        of_others = [each for each in seen.stacks if each.stack != maps.stack]
        [own] = [each for each in seen.stacks if each.stack == maps.stack]
        stacks = [replace(own, checks=maps.checks, notices=maps.notices), *of_others]
        query = None if request.query is None else row_of(maps, request.query)
        with progress(f"writing {request.page} …"):
            title = f"{maps.model} · attention"
            html = page_html(
                stacks,
                layer=shown.layer,
                head=shown.head,
                query=query,
                title=title,
                heads=_measured(reading, seen),
                metric="map",
                without_sink=request.without_sink,
            )
            content = html.encode()
            write_file(request.page, content, force=request.force)
        n = sum(len(each.maps) for each in stacks)
        tell(f"wrote {n} heads, {bytes_text(len(content))}, to {request.page}")


def _measured(reading: Reading, seen: Seen) -> HeadTable:
    """The heads of a page in numbers, by which it ranks them."""
    from attnscope.models.heads.page_metrics import measure, table

    rows = seen.measured
    if not rows:
        rows = [row for maps in seen.stacks for row in measure(maps, separators(reading))]
    return table(seen.stacks, rows)
