"""Measure how every head of a model attends, over one text or many, as `attnscope heads` does."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from attnscope.base.errors import FileError, OptionError
from attnscope.base.options import with_keywords
from attnscope.base.process.progress import Progress, silent, stage
from attnscope.base.spelling import spelled
from attnscope.base.text import shortened
from attnscope.model.files.indices import parse_indices
from attnscope.model.heads.options import (
    MeasuredHeads,
    MeasurementRun,
    TextOptions,
    check_needle_options,
    check_options,
)
from attnscope.model.heads.result import IN_A_PAGE, HeadTable

if TYPE_CHECKING:
    from attnscope.model.heads.corpus import Corpus, IterableCorpus
    from attnscope.model.heads.job import MeasurementJob
    from attnscope.model.heads.processes import ProcessGroup
    from attnscope.model.maps.result import AttentionMaps

Sources = str | Path | Iterable[str | Mapping[str, Any]]


@with_keywords
def measure_heads(
    model: Any,
    texts: Sources | None = None,
    *,
    inputs: TextOptions,
    measured: MeasuredHeads,
    run: MeasurementRun,
    page: bool = False,
    progress: Progress = silent,
) -> HeadTable:
    """Measure how every head of a model attends: how widely, how far, and to what.

    >>> table = measure_heads("minilm", "The cat sat on the mat.")  # doctest: +SKIP
    >>> table[3, 7].values["entropy"]  # doctest: +SKIP

    Weights are measured block by block and never held as whole maps, so a text may be long, and a corpus
    of any size. Over several texts, each mean has a standard error, for which each text is a cluster of
    queries. Ctrl-C ends a run over a corpus, and returns the metrics of the texts measured so far, with
    `partial` True. Under torchrun, processes share a corpus, and each returns the table of all.

    A text with a needle, which the model is to find, is an object with `text`, `needle` (a part of it,
    or its first and end characters), and perhaps `question`, which follows, and `answer`, which the
    model is made to write. The only metric is `retrieval`. With `without_sink` or `weigh="value"`, the
    weights of a query are rescaled to sum to 1. See `HeadTable.metrics` for the meanings of metrics.

    Args:
        model: `minilm`, a folder, a name on the hub, or a model that transformers has loaded, which
            stays exactly as it is, and on its device unless `device` is not `cpu`.
        texts: a text; or a corpus: an iterable of strings, or of objects (such as rows of a data set)
            with a field that is a string; or the `Path` of a file, as for `corpus`.
        page: collect the maps of one short text, too, which `table.save("x.html")` shows.
        progress: called with the progress of the work.

    Raises:
        OptionError: there is no input, or options contradict each other.
        ModelError: the model cannot be loaded or run, or has no such layer or head.
        FileError: a file cannot be read, or must not be replaced.
        SizeError: there is too little memory.
        KeyboardInterrupt: it came before anything was measured.

    Warns:
        OptionWarning: an option has no effect.
    """
    from attnscope.base.process.memory import check_imports
    from attnscope.model.heads.job import MeasurementJob
    from attnscope.model.heads.metrics import METRICS, RETRIEVAL
    from attnscope.model.heads.needles import measure_needles
    from attnscope.model.heads.processes import process_group
    from attnscope.model.heads.selection import Selection, metric_names
    from attnscope.model.run.open import open_model

    if isinstance(texts, Path):
        inputs = replace(inputs, texts=None, corpus=inputs.corpus or texts)
    known = METRICS if inputs.needle is None else [RETRIEVAL]
    selection = Selection(
        metric_names(measured.metrics, measured.sort, known),
        measured.stack,
        parse_indices("layers", measured.layers),
        parse_indices("heads", measured.heads),
        inputs.special,
        measured.without_sink,
        measured.weigh and str(measured.weigh),
    )
    check_options(inputs, run, measured)
    _check_files(run)
    if inputs.needle is not None:
        check_needle_options(inputs, run, selection)
        table = measure_needles(model, inputs.needle, inputs, selection, run, measured, progress)
        table.why_no_maps = "each trial has its own maps" if page else None
        return table
    corpus_texts = _open_corpus(inputs)
    text = "" if corpus_texts is not None or inputs.has_ids else _text(model, inputs)
    _check_shared(inputs, run)
    check_imports(transformers=True)
    with process_group(run.device) as group:
        _check_same(corpus_texts, group)
        options: dict[str, Any] = {"dtype": run.dtype, "memory": run.memory, "tokenizer": run.tokenizer}
        shown = progress if group.is_first else silent
        with open_model(model, group.device, progress=shown, **options) as opened:
            job = MeasurementJob(inputs, selection, run, measured, group, opened)
            job.load(text)
            table = job.measure_text(text) if corpus_texts is None else job.measure_corpus(corpus_texts)
            if page and group.is_first:
                table.maps, table.why_no_maps = _page_maps(job, text)
    return table


def _check_files(run: MeasurementRun) -> None:
    """Raise an AttnscopeError for an unknown device, or a checkpoint that cannot be written."""
    from attnscope.base.process.devices import check_device_name
    from attnscope.base.process.files import check_file

    check_device_name(run.device)
    if run.file is not None:
        inside = spelled("checkpoint", run.file / "run.npz")
        options: dict[str, Any] = {"suffixes": (".npz",), "kind": "a run", "inside": inside}
        check_file(run.file, force=True, streams=False, **options)


def _open_corpus(inputs: TextOptions) -> Corpus | IterableCorpus | None:
    """Open the corpus; return None for a single text."""
    from attnscope.model.heads.corpus import IterableCorpus, open_corpus

    if inputs.corpus is not None:
        return open_corpus(str(inputs.corpus), inputs.field, inputs.target_field)
    if inputs.texts is not None and not isinstance(inputs.texts, str):
        if not isinstance(inputs.texts, Iterable) or getattr(inputs.texts, "shape", None) == ():
            raise OptionError(
                f"texts is {shortened(repr(inputs.texts))}, but takes a text, several, or a Path."
            )
        return IterableCorpus(inputs.texts, inputs.field, inputs.target_field)
    return None


def _text(model: Any, inputs: TextOptions) -> str:
    """Return the text, or that of a file; raise an OptionError if it or the target is not a text."""
    text = inputs.texts or ""
    if inputs.file is not None:
        from attnscope.model.files.config import longest_text
        from attnscope.model.files.loaded import find_model
        from attnscope.model.run.text_file import text_of_file

        limit = longest_text(find_model(model).config())
        if inputs.max_length is not None:
            limit = min(inputs.max_length, limit or inputs.max_length)
        text = text_of_file(Path(inputs.file), limit, truncate=inputs.truncate)
    from attnscope.model.run.tokenize import check_text

    for option, value in ((inputs.name, text), (spelled("target"), inputs.target)):
        if value is not None:
            check_text(option, value, empty="there is nothing to measure")
    return text


def _check_shared(inputs: TextOptions, run: MeasurementRun) -> None:
    """Raise an OptionError for options that do not go with several processes."""
    from attnscope.base.process.launch import launched

    if not launched():
        return
    if not inputs.has_corpus:
        raise OptionError(
            "torchrun divides a corpus among processes, but this is a single text.",
            hint=spelled("corpus"),
        )
    if inputs.corpus == "-":
        raise OptionError(
            "standard input can only be read by one process, but there are several.",
            hint=spelled(corpus="FILE"),
        )
    if ":" in run.device:
        raise OptionError(
            f"{spelled('device', run.device)} is one device, but each process needs its own.",
            hint=spelled(device=run.device.partition(":")[0]),
        )
    if run.device_map is not None:
        raise OptionError(
            f"{spelled('device_map')} divides one model among all GPUs, and torchrun starts one for"
            " each.",
            hint=f"attnscope heads … --device-map auto, without torchrun; or {spelled(device='cuda')}",
        )


def _check_same(corpus: Corpus | IterableCorpus | None, group: ProcessGroup) -> None:
    """Raise a FileError unless all processes read the same corpus."""
    rank = None if corpus is None else group.first_mismatch(corpus.identity())
    if rank is not None:
        raise FileError(
            f"process {rank} finds a different file at {corpus} than process 0.",
            hint="a folder shared by all machines, or a copy of the same file on each",
        )


def _page_maps(job: MeasurementJob, text: str) -> tuple[list[AttentionMaps], str | None]:
    """Collect the maps of one text's heads for a page; if they are too large, return the reason."""
    from attnscope.model.maps.capture import HeadSelection
    from attnscope.model.maps.collect import collect_maps
    from attnscope.model.run.forward import give_target
    from attnscope.model.run.read_inputs import read_ids
    from attnscope.model.run.tokenize import read_text

    inputs, selection, measurer = job.inputs, job.selection, job.measurer
    if inputs.has_corpus:
        return [], "each text of a corpus has its own maps"
    if measurer.why_eager is not None:
        return [], "attnscope model --page takes them from a model's eager attention"
    checkpoint, model = job.checkpoint, measurer.model
    options: dict[str, Any] = {"target": inputs.target, "truncate": inputs.truncate}
    if inputs.has_ids:
        reading = read_ids(checkpoint, model.config, inputs.ids, inputs.tokens, **options)
    else:
        reading = read_text(checkpoint, model.config, text, name=inputs.name, **options)
    sizes = (len(reading.source), len(reading.labels))
    if inputs.max_length is not None and max(sizes) > inputs.max_length:
        return [], f"the text was cut with {spelled('max_length')}"
    n_weight = selection.n_weights(measurer.heads, *sizes)
    if n_weight > IN_A_PAGE:
        return [], f"they have {n_weight:,} weights, and a page holds at most {IN_A_PAGE:,}"
    reading.to(str(model.device))
    if inputs.target is not None:
        give_target(checkpoint, model, reading)
    selected = HeadSelection(selection.stack, selection.layers, selection.heads)
    with stage(job.progress, "collecting maps …"):
        return collect_maps(checkpoint, model, reading, selected).stacks, None
