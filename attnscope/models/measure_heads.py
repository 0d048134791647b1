"""Measure how every head of a model attends, over one text or many: what `attnscope heads` does."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from math import ceil
from pathlib import Path
from typing import TYPE_CHECKING, Any

from attnscope.checkpoints.indices import Indices, parse_indices
from attnscope.errors import FileError, ModelError, OptionError
from attnscope.models.heads.options import OrderOptions, RunOptions, TextOptions, check_options
from attnscope.process.progress import Progress, notify, silent, stage, without_garbage_collection
from attnscope.results.heads import HeadTable

if TYPE_CHECKING:
    from attnscope.checkpoints.checkpoint import Checkpoint
    from attnscope.models.heads.batches import Batch, Encoded
    from attnscope.models.heads.corpus import Corpus, IterableCorpus
    from attnscope.models.heads.processes import ProcessGroup
    from attnscope.models.heads.selection import Selection
    from attnscope.models.heads.statistics import Accumulator
    from attnscope.results.maps import AttentionMaps

MANY_UNKNOWN = 0.01
"""The share of unknown tokens from which on a corpus is said to have them; in one text, each counts."""

IN_A_PAGE = 2**25
"""How many weights a page holds at most, in the maps of all heads together."""

Texts = str | Path | Iterable[str | Mapping[str, Any]]


def measure_heads(
    model: Any,
    texts: Texts | None = None,
    *,
    metrics: str | Sequence[str] | None = None,
    file: str | Path | None = None,
    corpus: str | Path | None = None,
    field: str | None = None,
    ids: str | Sequence[int] | None = None,
    tokens: str | Sequence[str] | None = None,
    target: str | None = None,
    target_field: str | None = None,
    max_length: int | None = None,
    truncate: bool = False,
    special: bool = True,
    without_sink: bool = False,
    sort: str | None = None,
    reverse: bool = False,
    top: int | None = None,
    stack: str | None = None,
    layers: Indices = None,
    heads: Indices = None,
    tokenizer: Any = None,
    dtype: str | None = None,
    device: str = "cpu",
    device_map: str | None = None,
    memory: str | int | None = None,
    batch_tokens: int | None = None,
    checkpoint: str | Path | None = None,
    page: bool = False,
    progress: Progress = silent,
) -> HeadTable:
    """Measure how every head of a model attends: how widely, how far, and to what.

    >>> table = measure_heads("minilm", "The cat sat on the mat.")  # doctest: +SKIP
    >>> table[3, 7].values["entropy"]  # doctest: +SKIP

    Weights are measured block by block and never held as whole maps; so a text may be long, and a corpus
    as large as it is. Over several texts, each mean has a standard error, with a text a cluster of
    queries. Ctrl-C ends a run over a corpus, and what was measured is returned: then `partial` is True.
    Under torchrun, processes share a corpus, and each returns the table of all.

    Args:
        model: `minilm`, a folder, a name on the hub, or a model that transformers has loaded, which
            stays exactly as it is.
        texts: one text; or many: an iterable of strings, or of objects (such as rows of a data set) with
            a field that is a string; or the path of a corpus (not a string), as `corpus`.
        metrics: the names of those that are measured; None: all. See `HeadTable.metrics` for meanings.
        file: a file that is one text.
        corpus: a file of many texts: .txt (a line each), .jsonl (an object each), either with .gz; `-`
            for standard input.
        field: the field of each object that is its text; None: `text`.
        ids, tokens: token ids, or entries of the vocabulary, to read in place of a text, as they are.
        target: what a decoder beside an encoder reads, with one text.
        target_field: the field of each object that the decoder reads.
        max_length: cut longer texts to so many tokens; None: of a corpus 4096, or what the model takes.
        truncate: cut a single text that is longer than the model takes, instead of refusing it.
        special: whether [CLS], [SEP] and the like count as queries.
        without_sink: measure what goes to other keys than the first token and special ones, as if they
            were all there is.
        sort: the metric by which views rank the heads, the largest first; `rows` stay as they are.
        reverse: the smallest first.
        top: show so many heads only.
        stack: whose layers, in models that have several: `encoder`, `decoder`, `cross`, `text`, …; None:
            all that run.
        layers, heads: numbers from 0: one, several, a range, or `0-3`; None or `all`: all.
        tokenizer: the loaded model's.
        dtype: what the model runs in, such as `bfloat16`; None: as it is stored.
        device: where it runs; a loaded model runs where it is, unless another than `cpu` is named. Under
            torchrun, `cuda` is one GPU each.
        device_map: `auto`: divide the model among all devices, with accelerate.
        memory: how much a run may take beside the model's weights: bytes, or `2G`; None: 80 % of what is
            free.
        batch_tokens: how many tokens of a corpus are read at once; None: 4096, on a GPU 16384.
        checkpoint: a .npz file where a run over a corpus is kept, and goes on from if it is there.
        page: collect the maps of one short text, too: `table.save("x.html")` shows them.
        progress: is told how far the work is.

    Raises:
        OptionError: there is nothing to read, or options contradict each other.
        ModelError: the model cannot be loaded or run, or has no such layer or head.
        FileError: a file cannot be read, or is not to be written.
        SizeError: it has no room in memory.
        KeyboardInterrupt: it came before anything was measured.

    Warns:
        OptionWarning: an option has no effect.
    """
    from attnscope.models.heads.processes import process_group
    from attnscope.models.heads.selection import Selection, metric_names
    from attnscope.process.devices import kept_random_state
    from attnscope.process.memory import check_imports, return_what_is_freed

    if isinstance(texts, Path):
        corpus, texts = texts if corpus is None else corpus, None
    reads = TextOptions(
        texts=texts,  # type: ignore[arg-type]
        file=None if file is None else Path(file),
        ids=ids,  # type: ignore[arg-type]
        tokens=tokens,  # type: ignore[arg-type]
        corpus=None if corpus is None else str(corpus),
        field=field,
        target=target,
        target_field=target_field,
        max_length=max_length,
        truncate=truncate,
        special=special,
    )
    run = RunOptions(
        dtype=dtype,
        device=device,
        device_map=device_map,
        memory=memory,  # type: ignore[arg-type]
        batch_tokens=batch_tokens,
        checkpoint=None if checkpoint is None else Path(checkpoint),
    )
    selection = Selection(
        metric_names(metrics, sort),
        stack,
        parse_indices("--layer", layers),
        parse_indices("--head", heads),
        special,
        without_sink,
    )
    order = OrderOptions(sort, reverse, top)
    check_options(reads, run, order)
    _check_files(run)
    opened = _open_corpus(reads)
    text = "" if opened is not None or reads.has_ids else _text(model, reads)
    _check_shared(reads, run)
    check_imports(transformers=True)
    return_what_is_freed()
    with process_group(run.device) as group, kept_random_state(group.device):
        _check_same(opened, group)
        job = _Job(reads, selection, run, order, group, progress if group.is_first else silent)
        job.load(model, tokenizer, text)
        table = job.measure_text(text) if opened is None else job.measure_corpus(opened)
        if page and group.is_first:
            job.add_maps(table, text)
        return table


def _check_files(run: RunOptions) -> None:
    """Raise an AttnscopeError for a device that has no name, or a run that cannot be kept."""
    from attnscope.files import check_file
    from attnscope.process.devices import check_device_name

    check_device_name(run.device)
    if run.checkpoint is not None:
        inside = f"--checkpoint {run.checkpoint / 'run.npz'}"
        of_run: dict[str, Any] = {"suffixes": (".npz",), "kind": "a run", "inside": inside}
        check_file(run.checkpoint, force=True, streams=False, **of_run)


def _open_corpus(reads: TextOptions) -> Corpus | IterableCorpus | None:
    """The corpus that is to be read; None for one text."""
    from attnscope.models.heads.corpus import IterableCorpus, open_corpus

    if reads.corpus is not None:
        return open_corpus(reads.corpus, reads.field, reads.target_field)
    if reads.texts is not None and not isinstance(reads.texts, str):
        return IterableCorpus(reads.texts, reads.field, reads.target_field)
    return None


def _text(model: Any, reads: TextOptions) -> str:
    """The text that is given, or the content of a file; an OptionError if it is none, or the target."""
    text = reads.texts or ""
    if reads.file is not None:
        from attnscope.checkpoints.checkpoint import longest_text
        from attnscope.checkpoints.loaded import find_model
        from attnscope.models.running.text_file import text_of_file

        limit = longest_text(find_model(model).config())
        if reads.max_length is not None:
            limit = min(reads.max_length, limit or reads.max_length)
        text = text_of_file(reads.file, limit, truncate=reads.truncate)
    from attnscope.models.running.tokenize import check_text

    for source, given in ((reads.name, text), ("--target", reads.target)):
        if given is not None:
            check_text(source, given, empty="there is nothing to measure")
    return text


def _check_shared(reads: TextOptions, run: RunOptions) -> None:
    """Raise an OptionError for what several processes cannot share."""
    from attnscope.process.launch import launched

    if not launched():
        return
    if not reads.has_corpus:
        raise OptionError(
            "torchrun divides a corpus among processes, and this is one text.", hint="--corpus"
        )
    if reads.corpus == "-":
        raise OptionError(
            "standard input is read by one process, and these are several.", hint="--corpus FILE"
        )
    if ":" in run.device:
        raise OptionError(
            f"--device {run.device} is one device, and each process needs its own.",
            hint=f"--device {run.device.partition(':')[0]}",
        )
    if run.device_map is not None:
        raise OptionError(
            "--device-map divides one model among all GPUs, and torchrun starts one for each.",
            hint="attnscope heads … --device-map auto, without torchrun; or --device cuda",
        )


def _check_same(corpus: Corpus | IterableCorpus | None, group: ProcessGroup) -> None:
    """Raise a FileError if the processes do not read the same corpus."""
    rank = None if corpus is None else group.first_mismatch(corpus.identity())
    if rank is not None:
        raise FileError(
            f"process {rank} finds another file under {corpus} than process 0.",
            hint="a folder that all machines share, or a copy of the same file on each",
        )


class _Job:
    """A model that is loaded, what measures its heads, and what it is to read.

    Args:
        reads, run, order: the options.
        selection: what is measured, and of which heads.
        group: this process among those that share a run.
        progress: is told how far the work is.
    """

    def __init__(
        self,
        reads: TextOptions,
        selection: Selection,
        run: RunOptions,
        order: OrderOptions,
        group: ProcessGroup,
        progress: Progress,
    ) -> None:
        self.reads, self.selection, self.run, self.order = reads, selection, run, order
        self.group, self.progress = group, progress

    @property
    def name(self) -> str:
        """What the model is called."""
        return self.checkpoint.name

    def load(self, model: Any, tokenizer: Any, text: str) -> None:
        """Load the model; the text tells what room it needs.

        Raises:
            ModelError: it cannot be loaded, or reads no text.
            OptionError: it has no decoder for what it is to read.
            SizeError: there is no room for it.
        """
        from attnscope.checkpoints.loaded import find_model
        from attnscope.models.heads.batches import Reader
        from attnscope.models.heads.measurer import HeadMeasurer
        from attnscope.models.running.load import device_of, load_config, load_model, load_tokenizer
        from attnscope.models.running.tokenize import check_reads
        from attnscope.process.devices import check_device

        self.checkpoint: Checkpoint = find_model(model, tokenizer)
        self.device = device_of(self.checkpoint, self.group.device)
        run, device = self.run, self.device
        with stage(self.progress, f"loading {self.name} …"), without_garbage_collection():
            config = load_config(self.checkpoint)
            try:
                check_reads(self.checkpoint, config, "text")
            except ModelError as error:
                raise ModelError(error.message, hint="a model that reads text") from error
            self._check_decodes(config)
            check_device(device)
            tokenizer = load_tokenizer(self.checkpoint)
            if run.device_map is None:
                self._check_room(config, tokenizer, text)
            loaded = load_model(
                self.checkpoint, config, dtype=run.dtype, device=device, device_map=run.device_map
            )
        self.reader = Reader(loaded, tokenizer, self.reads.longest)
        selection = self.selection
        self.measurer = HeadMeasurer(
            self.checkpoint,
            loaded,
            selection.metrics,
            layers=selection.layers,
            stack=selection.stack,
            special=selection.special,
            without_sink=selection.without_sink,
        )

    def measure_text(self, text: str) -> HeadTable:
        """Measure the heads on one text, or on token ids in its place."""
        from attnscope.models.running.token_ids import notices_of_ids
        from attnscope.models.running.tokenize import notices_of_unknown

        reads, reader = self.reads, self.reader
        read = self._encoded(text)
        lengths = {reads.name: read.length, "--target": read.target_length}
        limit = reader.limit
        cut = {source: n for source, n in lengths.items() if limit is not None and n > limit}
        for source, n in cut.items():
            if not reads.truncate:
                raise OptionError(
                    f"{source} is {n:,} tokens long, and the model takes {limit:,}.",
                    hint="--truncate; or --corpus FILE, which reads a file line by line",
                )
        batch = reader.batch([read])
        with stage(self.progress, f"running {self.name} on some tokens …"):
            self._probe(batch)
        self._plan(1, batch.longest)
        with stage(self.progress, f"measuring {self.name} …"):
            accumulator = self.measurer.measure(batch)
        table = self._table(accumulator)
        table.notices += [f"{of} was cut from {n:,} tokens to {limit:,}." for of, n in cut.items()]
        own = read.inputs["input_ids"]
        about = notices_of_ids if reads.has_ids else notices_of_unknown
        table.notices += about(reader.tokenizer, own, reads.name)
        table.notices += notices_of_unknown(reader.tokenizer, read.target or [], "--target")
        return table

    def measure_corpus(self, corpus: Corpus | IterableCorpus) -> HeadTable:
        """Measure the heads on many texts."""
        from attnscope.models.heads.corpus_run import CorpusRun

        reader, group = self.reader, self.group
        tokens = self._batch_tokens(str(self.measurer.model.device))
        assert reader.limit is not None
        self._plan(ceil(tokens / reader.limit), reader.limit, padded=tokens > 1)
        corpus_run = CorpusRun(
            self.measurer,
            reader,
            corpus,
            group,
            tokens=tokens,
            probe=self._probe,
            progress=self.progress,
        )
        settings = self._settings(corpus, tokens)
        rank = group.first_mismatch(settings["weights"])
        if rank is not None:
            raise ModelError(
                f"process {rank} has other weights of {self.name} than process 0.",
                hint="a folder that all machines share, or the same revision on each",
            )
        accumulator = corpus_run.run(self.run.checkpoint, settings)
        n_layer = {stack: n for stack, (n, _) in accumulator.layers.items()}
        self.selection.check(self.name, n_layer, accumulator.heads)
        state, table = corpus_run.state, self._table(accumulator)
        table.partial, table.skipped = not state.done, state.skipped + accumulator.empty
        table.unsaved = corpus_run.unsaved
        if state.first_skipped is not None:
            line, why = state.first_skipped
            table.notices.append(f"line {line} of {corpus} {why}.")
        table.notices += self._notices_of_corpus(corpus, accumulator)
        return table

    def add_maps(self, table: HeadTable, text: str) -> None:
        """Add the maps of one text's heads to their table, if they are small; else say why not."""
        table.maps, table.why_no_maps = self._maps(text)

    def _maps(self, text: str) -> tuple[list[AttentionMaps], str | None]:
        from attnscope.models.maps.capture import HeadSelection
        from attnscope.models.maps.collect import collect_maps
        from attnscope.models.running.decode import give_target
        from attnscope.models.running.token_ids import ids_of, read_ids
        from attnscope.models.running.tokenize import read_text

        reads, selection, measurer = self.reads, self.selection, self.measurer
        if reads.has_corpus:
            return [], "each text of a corpus has its own"
        if measurer.why_eager is not None:
            return [], "attnscope model --page takes them from a model's eager attention"
        checkpoint, model = self.checkpoint, measurer.model
        more: dict[str, Any] = {
            "target": reads.target,
            "truncate": reads.truncate,
            "named": reads.name,
        }
        if reads.has_ids:
            ids = ids_of(checkpoint, reads.ids, reads.tokens)
            reading = read_ids(checkpoint, model.config, ids, **more)
        else:
            reading = read_text(checkpoint, model.config, text, **more)
        sizes = (len(reading.source), len(reading.labels))
        if reads.max_length is not None and max(sizes) > reads.max_length:
            return [], "the text was cut with --max-length"
        n_weight = selection.n_weights(measurer.found, *sizes)
        if n_weight > IN_A_PAGE:
            return [], f"they have {n_weight:,} weights, and a page holds {IN_A_PAGE:,}"
        reading.to(str(model.device))
        if reads.target is not None:
            give_target(checkpoint, model, reading)
        wanted = HeadSelection(selection.stack, selection.layers, selection.heads)
        with stage(self.progress, "collecting maps …"):
            return collect_maps(checkpoint, model, reading, wanted).stacks, None

    def _check_decodes(self, config: Any) -> None:
        """Raise an OptionError if there is a target, and no decoder beside an encoder to read it."""
        targets = {"--target": self.reads.target, "--target-field": self.reads.target_field}
        given = [option for option, value in targets.items() if value is not None]
        if given and not config.is_encoder_decoder:
            raise OptionError(
                f"{given[0]} is what a decoder beside an encoder reads, and {self.name}"
                f" ({config.model_type}) has no such decoder."
            )

    def _check_room(self, config: Any, tokenizer: Any, text: str) -> None:
        """Raise a SizeError if the weights and what is measured have no room together."""
        from attnscope.contracts import DTYPES
        from attnscope.models.heads.memory_plan import needs_of, tokens_text
        from attnscope.models.running.token_ids import ids_of
        from attnscope.models.running.tokenize import encoded, room
        from attnscope.models.running.weights_fit import check_weights_fit, dtype_of

        reads, dtype, device = self.reads, self.run.dtype, self.device
        limits = [limit for limit in (room(config), reads.longest) if limit is not None]
        n_batch, n_tokens = 1, max(1, min(limits, default=1))
        if reads.has_corpus:
            n_batch = ceil(self._batch_tokens(device) / n_tokens)
        else:
            read = (
                ids_of(self.checkpoint, reads.ids, reads.tokens)
                if reads.has_ids
                else encoded(tokenizer, {"text": [text]}, verbose=False)["input_ids"][0]
            )
            n_tokens = min([len(read), *limits])
        itemsize = DTYPES.get(dtype_of(config, dtype), 4)
        needs = needs_of(config, itemsize, n_batch, n_tokens, **self._measured)
        check_weights_fit(
            self.checkpoint,
            config,
            dtype,
            device,
            beside=needs.least,
            what=f"measuring {tokens_text(n_batch, n_tokens)} at least",
            hint=self._hint,
        )

    @property
    def _measured(self) -> dict[str, Any]:
        """What of the selection decides how much memory measuring takes."""
        return {"pairs": self.selection.n_pairs, "without_sink": self.selection.without_sink}

    @property
    def _hint(self) -> str:
        """What takes less memory."""
        if self.reads.has_corpus:
            return "--max-length N with --batch-tokens N, fewer of each; or more --memory, if there is"
        return "a shorter text: --truncate --max-length N; or more --memory, if there is"

    def _batch_tokens(self, device: str) -> int:
        """How many tokens of a corpus are read at once."""
        return self.run.batch_tokens or (16384 if "cuda" in device else 4096)

    def _encoded(self, text: str) -> Encoded:
        """One text as tokens, or the ids in its place."""
        from attnscope.models.running.token_ids import check_ids, ids_of

        reads = self.reads
        targets = None if reads.target is None else [reads.target]
        if reads.has_ids:
            ids = ids_of(self.checkpoint, reads.ids, reads.tokens)
            check_ids(self.checkpoint, self.measurer.model.config, ids, reads.name)
            return self.reader.read_ids(ids, targets)
        read = self.reader.read([text], targets)
        if not read:
            raise OptionError(f"{reads.name} has no tokens in {self.name}.", hint="another text")
        return read[0]

    def _plan(self, n_batch: int, n_tokens: int, *, padded: bool = False) -> None:
        """Divide the memory up, log how, and give the measurer its part."""
        from attnscope.models.heads.memory_plan import plan_run
        from attnscope.process.budget import memory_budget

        measurer = self.measurer
        model, device = measurer.model, str(measurer.model.device)
        memory = memory_budget(self.run.memory, device)
        kept = 0
        if measurer.why_eager is not None:  # it makes all heads' maps, those of a layer out of others
            n_map = sum(measurer.found.values()) + 2 * max(measurer.found.values())
            kept = 4 * n_batch * n_tokens**2 * n_map
        sizes = (model.dtype.itemsize, n_batch, n_tokens)
        options = {"kept": kept, "padded": padded, "hint": self._hint, **self._measured}
        planned = plan_run(self.name, model.config, *sizes, memory, device, **options)
        measurer.blockwise.block_bytes, measurer.store.keep = planned.block, planned.keep
        measurer.memory = memory
        if self.group.is_first:
            notify(f"{planned}")

    def _probe(self, batch: Batch) -> None:
        """Find out how the model attends, and that it has the layers and heads that are selected."""
        self.measurer.probe(batch)
        self.selection.check(self.name, self.measurer.n_layer, self.measurer.found)

    def _settings(self, corpus: Corpus | IterableCorpus, tokens: int) -> dict[str, Any]:
        """What decides the numbers of a run, by the names that users know."""
        from attnscope.models.heads.resume import fingerprint

        identity, selection, model = corpus.identity(), self.selection, self.measurer.model
        shared = self.run.checkpoint is not None or self.group.world_size > 1
        return {
            "model": self.name,
            "dtype": str(model.dtype),
            "metrics": selection.metrics,
            "corpus": identity["name"],
            "size of the corpus": identity["size"],
            "beginning of the corpus": identity["sha256"],
            "field": identity["field"],
            "target_field": identity["target_field"],
            "max_length": self.reader.limit,
            "batch_tokens": tokens,
            "special": selection.special,
            "without_sink": selection.without_sink or None,  # runs without it have no such setting
            "stack": selection.stack,
            "layers": selection.layers,
            "weights": fingerprint(model) if shared else None,
        }

    def _notices_of_corpus(self, corpus: Corpus | IterableCorpus, accumulator: Accumulator) -> list[str]:
        """What a reader should know of texts that were left out or cut, and of unknown tokens."""
        from attnscope.models.running.tokenize import notice_of_unknown
        from attnscope.units import counted

        reader, notices = self.reader, []
        if accumulator.empty:
            left_out = counted(accumulator.empty, "text")
            notices.append(f"{left_out} without a token in {self.name} left out.")
        if accumulator.cut:
            texts = f"{accumulator.cut:,} of {accumulator.sequences:,} texts"
            notices.append(f"{texts} were cut to {reader.limit:,} tokens.")
        unknown, n_token = accumulator.unknown or (0, 0)
        if unknown and unknown >= MANY_UNKNOWN * n_token:
            notices.append(notice_of_unknown(reader.tokenizer, unknown, n_token, str(corpus)))
        return notices

    def _table(self, accumulator: Accumulator) -> HeadTable:
        """The numbers of the heads that are selected."""
        from attnscope.models.heads.metrics import meaning

        measurer, selection, order = self.measurer, self.selection, self.order
        of_stack = {stack: list(measurer.of_stack(stack)) for stack in accumulator.layers}
        rows = [
            row
            for row in accumulator.rows(selection.metrics, of_stack)
            if selection.heads is None or row.head in selection.heads
        ]
        stacks = {row.stack for row in rows}
        table = HeadTable(
            model=self.name,
            metrics={name: meaning(name) for name in selection.metrics},
            sequences=accumulator.sequences,
            tokens=accumulator.tokens,
            layers={stack: sizes for stack, sizes in accumulator.layers.items() if stack in stacks},
            rows=rows,
            without_sink=selection.without_sink,
            sort=order.sort,
            reverse=order.reverse,
            top=order.top,
        )
        if order.sort is not None and all(row.values[order.sort] is None for row in rows):
            table.notices.append(
                f"no query has {order.sort} here: the heads are in the order of layers."
            )
        if selection.without_sink:
            table.notices.append(
                "without sinks: what goes to the first token and to special ones is left out, and what"
                " goes to the other keys sums to 1 for each query."
            )
        if measurer.why_eager is not None:
            table.notices.append(f"{measurer.why_eager}. It ran with its own eager attention.")
        if measurer.eager_notice is not None:
            table.notices.append(measurer.eager_notice)
        return table
