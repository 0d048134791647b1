"""What `heads` does: lets a model read, measures its heads, and shows the numbers."""

from __future__ import annotations

import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, nullcontext
from math import ceil
from typing import TYPE_CHECKING, Any

from attnscope.cli.asked import Asked
from attnscope.cli.options import Format
from attnscope.cli.output import print_json, progress, put, stdout, tell, written_first
from attnscope.errors import FileError, ModelError, OptionError
from attnscope.models.running.fit import check_weights_fit, dtype_of
from attnscope.models.running.text_file import text_of_file
from attnscope.process.budget import memory_budget
from attnscope.process.progress import without_garbage_collection
from attnscope.results.heads import HeadTable
from attnscope.results.maps import AttentionMaps
from attnscope.text import printable
from attnscope.units import bytes_text, counted

if TYPE_CHECKING:
    from attnscope.checkpoints.find import Checkpoint
    from attnscope.models.heads.batches import Batch, Reader
    from attnscope.models.heads.corpus import Corpus
    from attnscope.models.heads.corpus_run import CorpusRun
    from attnscope.models.heads.measurer import HeadMeasurer
    from attnscope.models.heads.processes import ProcessGroup
    from attnscope.models.heads.statistics import Accumulator

LONGEST = 4096
"""The tokens that a text of a corpus is cut to, unless another length is asked for."""

MANY_UNKNOWN = 0.01
"""The share of unknown tokens from which on a corpus is said to have them; in one text, each counts."""

IN_A_PAGE = 2**25
"""How many weights a page holds at most, in the maps of all heads together."""


def show_heads(asked: Asked) -> int:
    """Let a model read, and show what its heads do; the exit status: 130 if it was interrupted."""
    _check_files(asked)
    from attnscope.models.heads.corpus import open_corpus
    from attnscope.models.heads.processes import process_group
    from attnscope.process.memory import check_imports, return_what_is_freed

    corpus = None if asked.corpus is None else open_corpus(asked.corpus, asked.field, asked.target_field)
    text = "" if asked.reads_ids or asked.corpus is not None else _text(asked)
    _check_shared(asked)
    check_imports(transformers=True)
    return_what_is_freed()
    with process_group(asked.device) as group:
        _check_same(corpus, group)
        checkpoint, measurer, reader = _load(asked, group, text)
        unsaved = None
        if corpus is None:
            table = _of_text(asked, measurer, reader, text)
        else:
            table, unsaved = _of_corpus(asked, measurer, reader, corpus, group)
        if group.is_first:
            with written_first(lambda: _draw(asked, checkpoint, measurer, table, text)):
                _print(asked, table)
        if unsaved is not None:
            raise unsaved
    return 130 if table.partial else 0


def _check_files(asked: Asked) -> None:
    """Raise an AttnscopeError if a file cannot be written, or is there already."""
    from attnscope.files import check_file
    from attnscope.process.devices import check_device_name

    check_device_name(asked.device)
    if asked.plot is not None:
        from attnscope.render.figures.plot import check_plot

        check_plot(asked.plot, force=asked.force)
    if asked.page is not None:
        from attnscope.render.page.page import check_page

        check_page(asked.page, name="heads.html", force=asked.force)
    if asked.checkpoint is not None:
        inside = f"--checkpoint {asked.checkpoint / 'run.npz'}"
        of_run: dict[str, Any] = {"suffixes": (".npz",), "kind": "a run", "inside": inside}
        check_file(asked.checkpoint, force=True, streams=False, **of_run)


def _check_shared(asked: Asked) -> None:
    """Raise an OptionError for what several processes cannot share."""
    from attnscope.process.launch import launched

    if not launched():
        return
    if asked.corpus is None:
        raise OptionError(
            "torchrun divides a corpus among processes, and this is one text.", hint="--corpus"
        )
    if asked.corpus == "-":
        raise OptionError(
            "standard input is read by one process, and these are several.", hint="--corpus FILE"
        )
    if ":" in asked.device:
        raise OptionError(
            f"--device {asked.device} is one device, and each process needs its own.",
            hint=f"--device {asked.device.partition(':')[0]}",
        )
    if asked.device_map is not None:
        raise OptionError(
            "--device-map divides one model among all GPUs, and torchrun starts one for each.",
            hint="attnscope heads … --device-map auto, without torchrun; or --device cuda",
        )


def _check_same(corpus: Corpus | None, group: ProcessGroup) -> None:
    """Raise a FileError if the processes do not read the same corpus."""
    rank = None if corpus is None else group.first_mismatch(corpus.identity())
    if rank is not None:
        raise FileError(
            f"process {rank} finds another file under {corpus} than process 0.",
            hint="a folder that all machines share, or a copy of the same file on each",
        )


def _load(asked: Asked, group: ProcessGroup, text: str) -> tuple[Checkpoint, HeadMeasurer, Reader]:
    """The model, what measures it, and what makes its batches; the text tells what room these need."""
    from attnscope.checkpoints.find import find_checkpoint
    from attnscope.models.heads.batches import Reader
    from attnscope.models.heads.measurer import HeadMeasurer
    from attnscope.models.running.load import load_config, load_model, load_tokenizer
    from attnscope.models.running.tokenize import check_reads
    from attnscope.process.devices import check_device

    checkpoint = find_checkpoint(asked.model)
    with _shown(group, f"loading {checkpoint.name} …"), without_garbage_collection():
        config = load_config(checkpoint)
        try:
            check_reads(checkpoint, config, "text")
        except ModelError as error:
            raise ModelError(error.message, hint="a model that reads text") from error
        targets = {"--target": asked.target, "--target-field": asked.target_field}
        given = [option for option, value in targets.items() if value is not None]
        if given and not config.is_encoder_decoder:
            raise OptionError(
                f"{given[0]} is what a decoder beside an encoder reads, and {checkpoint.name}"
                f" ({config.model_type}) has no such decoder."
            )
        check_device(group.device)
        tokenizer = load_tokenizer(checkpoint)
        if asked.device_map is None:
            _check_room(asked, checkpoint, config, tokenizer, text, group.device)
        options: dict[str, Any] = {"dtype": asked.dtype, "device": group.device}
        model = load_model(checkpoint, config, device_map=asked.device_map, **options)
    reader = Reader(model, tokenizer, _longest(asked))
    what = {"layers": asked.layers, "stack": asked.stack, "special": asked.special}
    what["without_sink"] = asked.without_sink
    return checkpoint, HeadMeasurer(checkpoint, model, asked.measured, **what), reader  # type: ignore[arg-type]


def _longest(asked: Asked) -> int | None:
    """How many tokens a text may have at most; None: as many as the model takes."""
    return LONGEST if asked.max_length is None and asked.corpus is not None else asked.max_length


def _batch_tokens(asked: Asked, device: str) -> int:
    """How many tokens of a corpus are read at once."""
    return asked.batch_tokens or (16384 if "cuda" in device else 4096)


def _check_room(
    asked: Asked, checkpoint: Checkpoint, config: Any, tokenizer: Any, text: str, device: str
) -> None:
    """Raise a SizeError if the weights and what is measured have no room together."""
    from attnscope.contracts import DTYPES
    from attnscope.models.heads.memory_plan import needs_of, tokens_text
    from attnscope.models.running.token_ids import ids_of
    from attnscope.models.running.tokenize import encoded, room

    limits = [limit for limit in (room(config), _longest(asked)) if limit is not None]
    n_batch, n_tokens = 1, max(1, min(limits, default=1))
    if asked.corpus is not None:
        n_batch = ceil(_batch_tokens(asked, device) / n_tokens)
    else:
        ids = (
            ids_of(checkpoint, asked.ids, asked.tokens)
            if asked.reads_ids
            else encoded(tokenizer, {"text": [text]}, verbose=False)["input_ids"][0]
        )
        n_tokens = min([len(ids), *limits])
    itemsize = DTYPES.get(dtype_of(config, asked.dtype), 4)
    needs = needs_of(config, itemsize, n_batch, n_tokens, **_measured(asked))
    check_weights_fit(
        checkpoint,
        config,
        asked.dtype,
        device,
        beside=needs.least,
        what=f"measuring {tokens_text(n_batch, n_tokens)} at least",
        hint=_hint(asked),
    )


def _measured(asked: Asked) -> dict[str, Any]:
    """What of the options decides how much memory measuring takes."""
    from attnscope.models.heads.metrics import METRICS

    pairs = sum(METRICS[name].pair is not None for name in asked.measured)
    return {"pairs": pairs, "without_sink": asked.without_sink}


def _hint(asked: Asked) -> str:
    """What takes less memory."""
    if asked.corpus is not None:
        return "--max-length N with --batch-tokens N, fewer of each; or more --memory, if there is"
    return "a shorter text: --truncate --max-length N; or more --memory, if there is"


def _text(asked: Asked) -> str:
    """The text that is given, or the content of a file; an OptionError if it is none, or the target."""
    text = asked.text or ""
    if asked.file is not None:
        from attnscope.checkpoints.find import find_checkpoint, longest_text

        limit = longest_text(find_checkpoint(asked.model).config())
        if asked.max_length is not None:
            limit = min(asked.max_length, limit or asked.max_length)
        text = text_of_file(asked.file, limit, truncate=asked.truncate)
    for source, given in ((asked.source, text), ("--target", asked.target)):
        if given is None:
            continue
        if not given.strip():
            raise OptionError(f"{source} is empty: there is nothing to measure.")
        if any("\ud800" <= character <= "\udfff" for character in given):  # how Python holds them
            raise OptionError(f"{source} holds bytes that are no UTF-8.", hint=f'{source} "$(iconv …)"')
    return text


def _of_text(asked: Asked, measurer: HeadMeasurer, reader: Reader, text: str) -> HeadTable:
    """Measure the heads on one text."""
    from attnscope.models.running.tokenize import unknown_tokens

    name = measurer.checkpoint.name
    targets = None if asked.target is None else [asked.target]
    if asked.reads_ids:
        from attnscope.models.running.token_ids import check_ids, ids_of

        ids = ids_of(measurer.checkpoint, asked.ids, asked.tokens)
        check_ids(measurer.checkpoint, measurer.model.config, ids, asked.source)
        read = [reader.read_ids(ids, targets)]
    else:
        read = reader.read([text], targets)
    if not read:
        raise OptionError(f"{asked.source} has no tokens in {name}.", hint="another text")
    lengths = {asked.source: read[0].length, "--target": read[0].target_length}
    cut = {source: n for source, n in lengths.items() if reader.limit is not None and n > reader.limit}
    for source, n in cut.items():
        if not asked.truncate:
            raise OptionError(
                f"{source} is {n:,} tokens long, and the model takes {reader.limit:,}.",
                hint="--truncate; or --corpus FILE, which reads a file line by line",
            )
    batch = reader.batch(read)
    with progress(f"running {name} on some tokens …"):
        probe(asked, measurer, batch)
    plan(asked, measurer, 1, batch.longest)
    with progress(f"measuring {name} …"):
        accumulator = measurer.measure(batch)
    table = _table(asked, measurer, accumulator)
    table.notices += [f"{of} was cut from {n:,} tokens to {reader.limit:,}." for of, n in cut.items()]
    own = read[0].inputs["input_ids"]
    if asked.reads_ids:
        from attnscope.models.running.token_ids import notices_of_ids

        table.notices += notices_of_ids(reader.tokenizer, own, asked.source)
    else:
        table.notices += unknown_tokens(reader.tokenizer, own, asked.source)
    table.notices += unknown_tokens(reader.tokenizer, read[0].target or [], "--target")
    return table


def _of_corpus(
    asked: Asked, measurer: HeadMeasurer, reader: Reader, corpus: Corpus, group: ProcessGroup
) -> tuple[HeadTable, FileError | None]:
    """Measure the heads on many texts; and why the run could not be saved, if it could not."""
    from attnscope.models.heads.corpus_run import CorpusRun
    from attnscope.models.heads.resume import fingerprint

    tokens = _batch_tokens(asked, str(measurer.model.device))
    assert reader.limit is not None
    n_batch = ceil(tokens / reader.limit)
    plan(asked, measurer, n_batch, reader.limit, padded=tokens > 1, tell_it=group.is_first)
    corpus_run = CorpusRun(
        measurer,
        reader,
        corpus,
        group,
        tokens=tokens,
        probe=lambda batch: probe(asked, measurer, batch),
        tell=tell,
        watch=progress_bar,
    )
    settings = _settings(asked, measurer, reader, corpus, tokens)
    shared = asked.checkpoint is not None or group.world_size > 1
    settings["weights"] = fingerprint(measurer.model) if shared else None
    rank = group.first_mismatch(settings["weights"])
    if rank is not None:
        raise ModelError(
            f"process {rank} has other weights of {asked.model} than process 0.",
            hint="a folder that all machines share, or the same revision on each",
        )
    accumulator = corpus_run.run(asked.checkpoint, settings)
    n_layer = {stack: n for stack, (n, _) in accumulator.layers.items()}
    _check_numbers(asked, measurer.checkpoint.name, n_layer, accumulator.heads)
    state, table = corpus_run.state, _table(asked, measurer, accumulator)
    table.partial, table.skipped = not state.done, state.skipped + accumulator.empty
    if state.first_skipped is not None:
        line, why = state.first_skipped
        table.notices.append(f"line {line} of {corpus} {why}.")
    if accumulator.empty:
        left_out = counted(accumulator.empty, "text")
        table.notices.append(f"{left_out} without a token in {table.model} left out.")
    if accumulator.cut:
        table.notices.append(
            f"{accumulator.cut:,} of {accumulator.sequences:,} texts were cut to {reader.limit:,}"
            " tokens."
        )
    unknown, n_token = accumulator.unknown or (0, 0)
    if unknown and unknown >= MANY_UNKNOWN * n_token:
        from attnscope.models.running.tokenize import told_unknown

        table.notices.append(told_unknown(reader.tokenizer, unknown, n_token, str(corpus)))
    return table, corpus_run.unsaved


@contextmanager
def progress_bar(corpus_run: CorpusRun) -> Iterator[Callable[[float | None], None]]:
    """A bar on stderr: how much of the corpus was read, how fast, and how long it will take."""
    if not (corpus_run.group.is_first and sys.stderr.isatty()):
        yield lambda share: None
        return
    from rich.progress import BarColumn, TaskProgressColumn, TextColumn, TimeRemainingColumn
    from rich.progress import Progress as Bar

    from attnscope.render.terminal.console import Terminal

    columns = (TextColumn("{task.description}", markup=False), BarColumn(), TaskProgressColumn())
    begun, tokens = time.monotonic(), sum(each.tokens for each in corpus_run.state.accumulators)
    with Bar(*columns, TimeRemainingColumn(), console=Terminal(stderr=True), transient=True) as bar:
        task = bar.add_task(f"reading {printable(corpus_run.corpus)} …", total=1.0)

        bar.update(task, completed=corpus_run.state.share)

        def show(share: float | None) -> None:
            read = sum(each.tokens for each in corpus_run.state.accumulators)
            texts = sum(each.sequences for each in corpus_run.state.accumulators)
            rate = (read - tokens) / max(time.monotonic() - begun, 1e-3)
            told = f"{texts:,} texts · {rate:,.0f} tokens/s"
            bar.update(task, description=told, completed=share, total=None if share is None else 1.0)

        yield show


def _settings(
    asked: Asked, measurer: HeadMeasurer, reader: Reader, corpus: Corpus, tokens: int
) -> dict[str, Any]:
    """What decides the numbers of a run, by the names that users know."""
    identity = corpus.identity()
    return {
        "model": measurer.checkpoint.name,
        "dtype": str(measurer.model.dtype),
        "metrics": asked.measured,
        "corpus": identity["name"],
        "size of the corpus": identity["size"],
        "beginning of the corpus": identity["sha256"],
        "field": identity["field"],
        "target_field": identity["target_field"],
        "max_length": reader.limit,
        "batch_tokens": tokens,
        "special": asked.special,
        "without_sink": asked.without_sink or None,  # runs without the option have no such setting
        "stack": asked.stack,
        "layers": asked.layers,
    }


def plan(
    asked: Asked,
    measurer: HeadMeasurer,
    n_batch: int,
    n_tokens: int,
    *,
    padded: bool = False,
    tell_it: bool = True,
) -> None:
    """Divide the memory up, say how, and give the measurer its part."""
    from attnscope.models.heads.memory_plan import plan_run

    model, device = measurer.model, str(measurer.model.device)
    memory = memory_budget(asked.memory, device)
    sizes = (model.dtype.itemsize, n_batch, n_tokens)
    kept = 0
    if measurer.why_eager is not None:  # it makes the maps of all heads, those of a layer out of others
        n_map = sum(measurer.found.values()) + 2 * max(measurer.found.values())
        kept = 4 * n_batch * n_tokens**2 * n_map
    options = {"kept": kept, "padded": padded, "hint": _hint(asked), **_measured(asked)}
    planned = plan_run(measurer.checkpoint.name, model.config, *sizes, memory, device, **options)
    measurer.blockwise.block_bytes, measurer.store.keep = planned.block, planned.keep
    measurer.memory = memory
    if tell_it:
        tell(f"{planned}")


def probe(asked: Asked, measurer: HeadMeasurer, batch: Batch) -> None:
    """Find out how the model attends, and that it has the layers and heads that are asked for."""
    measurer.probe(batch)
    _check_numbers(asked, measurer.checkpoint.name, measurer.n_layer, measurer.found)


def _check_numbers(
    asked: Asked, name: str, n_layer: dict[str, int], found: dict[tuple[str, int], int]
) -> None:
    """Raise an AttnscopeError if no stack has the layers and heads that are asked for.

    Args:
        asked: what is.
        name: the model's.
        n_layer: how many layers each stack has.
        found: how many heads each layer has, by stack and number.
    """
    from attnscope.checkpoints.indices import check_layer, check_range

    stacks = [asked.stack] if asked.stack else list(n_layer)
    for stack in stacks:
        having = sorted(layer for known, layer in found if known == stack)
        if not having:
            raise OptionError(
                f"{name} runs no {stack} attention here: only {', '.join(n_layer)}.",
                hint=f"--stack {next(iter(n_layer))}",
            )
    most = max(stacks, key=lambda stack: n_layer[stack])
    own = {key: n_head for key, n_head in found.items() if key[0] in stacks}
    having = sorted({layer for _, layer in own})
    for layer in asked.layers or []:
        check_layer(layer, having, n_layer[most], name)
    shown = [n for (_, layer), n in own.items() if asked.layers is None or layer in asked.layers]
    for head in asked.heads or []:
        check_range("head", head, max(shown), name)


def _table(asked: Asked, measurer: HeadMeasurer, accumulator: Accumulator) -> HeadTable:
    """The numbers of the heads that were asked for."""
    from attnscope.models.heads.metrics import meaning

    of_stack = {stack: list(measurer.of_stack(stack)) for stack in accumulator.layers}
    rows = [
        row
        for row in accumulator.rows(asked.measured, of_stack)
        if asked.heads is None or row.head in asked.heads
    ]
    stacks = {row.stack for row in rows}
    table = HeadTable(
        model=measurer.checkpoint.name,
        metrics={name: meaning(name) for name in asked.measured},
        sequences=accumulator.sequences,
        tokens=accumulator.tokens,
        layers={stack: sizes for stack, sizes in accumulator.layers.items() if stack in stacks},
        rows=rows,
        without_sink=asked.without_sink,
    )
    if asked.sort is not None and all(row.values[asked.sort] is None for row in rows):
        table.notices.append(f"no query has {asked.sort} here: the heads are in the order of layers.")
    if asked.without_sink:
        table.notices.append(
            "without sinks: what goes to the first token and to special ones is left out, and what goes"
            " to the other keys sums to 1 for each query."
        )
    if measurer.why_eager is not None:
        table.notices.append(f"{measurer.why_eager}. It ran with its own eager attention.")
    if measurer.unlike_eager is not None:
        table.notices.append(measurer.unlike_eager)
    return table


def _print(asked: Asked, table: HeadTable) -> None:
    """Print the table in the format that is asked for."""
    from attnscope.render.heads import heads_heading
    from attnscope.render.records import heads

    order: dict[str, Any] = {"sort": asked.sort, "reverse": asked.reverse, "top": asked.top}
    if asked.format is Format.JSON:
        print_json(heads.heads_record(table, **order))
    elif asked.format is Format.CSV:
        put(heads.heads_csv(table, **order))
        for told in [*heads_heading(table)[2:], *table.notices]:  # csv has no place for them
            tell(told)
    elif asked.format is Format.MARKDOWN:
        put(heads.heads_markdown(table, **order))
    else:
        from attnscope.render.terminal.heads import print_heads

        print_heads(table, stdout(), **order, wide=asked.wide)


def _draw(
    asked: Asked, checkpoint: Checkpoint, measurer: HeadMeasurer, table: HeadTable, text: str
) -> None:
    """Write the plot and the page, and say so."""
    if asked.plot is not None:
        from attnscope.render.figures.plot import save_heads_plot

        shown = [asked.sort] if asked.sort else list(table.metrics)
        with progress(f"drawing {asked.plot} …"):
            n_bytes = save_heads_plot(asked.plot, table, metrics=shown, force=asked.force)
        tell(f"drew {asked.plot}, {bytes_text(n_bytes)}")
    if asked.page is not None:
        from attnscope.files import write_file
        from attnscope.render.page.page import page_html
        from attnscope.render.ranking import ranked

        with progress(f"writing {asked.page} …"):
            stacks, why_none = _maps(asked, checkpoint, measurer, text)
            first, *_ = ranked(table, asked.sort, reverse=asked.reverse)
            html = page_html(
                stacks,
                layer=first.layer,
                head=first.head,
                title=f"{table.model} · heads",
                heads=table,
                metric=asked.sort,
            )
            content = html.encode()
            write_file(asked.page, content, force=asked.force)
        n, size = len(table.rows), bytes_text(len(content))
        heads, maps = ("a head", "its map") if n == 1 else (f"{n} heads", "their maps")
        if why_none is None:
            tell(f"wrote {heads} with {maps}, {size}, to {asked.page}")
        else:
            tell(f"wrote {heads}, {size}, to {asked.page}; without maps: {why_none}")


def _maps(
    asked: Asked, checkpoint: Checkpoint, measurer: HeadMeasurer, text: str
) -> tuple[list[AttentionMaps], str | None]:
    """The maps of one text's heads, if they are small enough for a page; else why there are none."""
    from attnscope.models.maps.capture import HeadSelection
    from attnscope.models.maps.collect import collect_maps
    from attnscope.models.running.decode import give_target
    from attnscope.models.running.token_ids import ids_of, read_ids
    from attnscope.models.running.tokenize import read_text

    if asked.corpus is not None:
        return [], "each text of a corpus has its own"
    if measurer.why_eager is not None:
        return [], "attnscope model --page takes them from a model's eager attention"
    model = measurer.model
    more: dict[str, Any] = {"target": asked.target, "truncate": asked.truncate, "named": asked.source}
    if asked.reads_ids:
        reading = read_ids(checkpoint, model.config, ids_of(checkpoint, asked.ids, asked.tokens), **more)
    else:
        reading = read_text(checkpoint, model.config, text, **more)
    sizes = (len(reading.source), len(reading.labels))
    if asked.max_length is not None and max(sizes) > asked.max_length:
        return [], "the text was cut with --max-length"
    n_weight = _weights_of(asked, measurer, *sizes)
    if n_weight > IN_A_PAGE:
        return [], f"they have {n_weight:,} weights, and a page holds {IN_A_PAGE:,}"
    reading.to(str(model.device))
    if asked.target is not None:
        give_target(checkpoint, model, reading)
    wanted = HeadSelection(asked.stack, asked.layers, asked.heads)
    return collect_maps(checkpoint, model, reading, wanted).stacks, None


def _weights_of(asked: Asked, measurer: HeadMeasurer, n_source: int, n_target: int) -> int:
    """How many weights the heads have that are asked for, of so many tokens."""
    n_target = n_target or n_source
    sizes = {"decoder": n_target * n_target, "cross": n_target * n_source}
    n_weight = 0
    for (stack, layer), n_head in measurer.found.items():
        if measurer.wants(stack, layer):
            heads = range(n_head) if asked.heads is None else [n for n in asked.heads if n < n_head]
            n_weight += len(heads) * sizes.get(stack, n_source * n_source)
    return n_weight


def _shown(group: ProcessGroup, doing: str) -> Any:
    """Progress, told by the first process alone."""
    return progress(doing) if group.is_first else nullcontext()
