"""Write a result to a file, in the format that its suffix names."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from attnscope.auditing.result import Audit
from attnscope.checkpoints.result import HeadWeights
from attnscope.comparison.result import Comparison
from attnscope.document.result import Display, Result
from attnscope.document.tensor_file import WRITERS, Tensors
from attnscope.errors import FileError, OptionError
from attnscope.masks.files import NPY
from attnscope.masks.result import AttentionMasks
from attnscope.model_card.cards import Cards
from attnscope.model_card.result import Card
from attnscope.models.heads.result import HeadMetrics
from attnscope.models.maps.result import AttentionMaps
from attnscope.observe.trace import Trace
from attnscope.process.files import check_file, write_file
from attnscope.render.values import stored
from attnscope.text import alternatives
from attnscope.textbook.example.result import WorkedExample
from attnscope.textbook.scaling.result import Scaling

PICTURES = (".png", ".svg", ".pdf")
PAGES = (".html", ".htm")
TABLES = (
    *(Trace, HeadWeights, AttentionMaps, Scaling, HeadMetrics, AttentionMasks),
    *(Audit, Comparison, Card, Cards),
)
"""The results that are tables, which CSV and Markdown hold."""

TENSORS = (Trace, HeadWeights, AttentionMaps, AttentionMasks)
"""The results that consist of tensors."""

PICTURED = (AttentionMaps, HeadMetrics, AttentionMasks, Audit, Card, Cards, Scaling)
"""The results that a figure shows."""


def save(result: Any, path: Path, *, force: bool = False, **options: Any) -> int:
    """Write a result as `attnscope.document.result.Result.save` promises; return the size in bytes."""
    kind, formats = path.suffix.lower(), formats_of(result)
    if kind not in formats and not path.is_dir():
        known = alternatives(path.with_suffix(each).name for each in formats if each != ".htm")
        raise FileError(
            f"{path}: {type(result).__name__} cannot be written as {kind or 'a file without a suffix'}.",
            hint=known,
        )
    if kind in PICTURES:
        return _save_picture(result, path, force=force, **options)
    if kind in (*WRITERS, NPY):
        return _save_tensors(result, path, force=force, **options)
    check_file(path, force=force, suffixes=None, kind="a result", inside=str(path / "result.json"))
    text = _page(result, **options) if kind in PAGES else _text(result, kind, **options) + "\n"
    content = text.encode()
    write_file(path, content, force=force)
    return len(content)


def formats_of(result: Any) -> list[str]:
    """Return the suffixes of the files that a result can be written to."""
    kinds: dict[tuple[str, ...], tuple[type, ...]] = {
        tuple(WRITERS): TENSORS,
        (NPY,): (AttentionMasks,),
        PICTURES: PICTURED,
        PAGES: (Display,),
        (".json",): (Result,),
        (".csv",): TABLES,
        (".md",): (*TABLES, WorkedExample),
    }
    return [
        suffix for suffixes, kind in kinds.items() if isinstance(result, kind) for suffix in suffixes
    ]


def tensors_of(result: Trace | HeadWeights | AttentionMaps) -> Tensors:
    """Return a result's tensors by name, as stored in a file."""
    if isinstance(result, HeadWeights):
        return {each.name: (each.array, each.dtype) for each in result.weights}
    if isinstance(result, AttentionMaps):
        return result.tensors()
    kept = {step.name: stored(step) for step in result.steps if step.tensor is not None}
    if not kept:
        raise OptionError(f"the trace of {result.title} kept no tensors.", hint="keep=True")
    return kept


def _save_tensors(result: Any, path: Path, *, force: bool, **options: Any) -> int:
    if isinstance(result, AttentionMasks):
        from attnscope.masks.files import save_masks

        return save_masks(result, path, force=force)
    from attnscope.document import tensor_file

    metadata = result.metadata() if isinstance(result, AttentionMaps) else None
    return tensor_file.save(path, tensors_of(result), force=force, metadata=metadata, **options)


def _save_picture(result: Any, path: Path, *, force: bool, **options: Any) -> int:
    from attnscope.render.figures import save_figure as figures

    options["force"] = force
    if isinstance(result, AttentionMaps):
        return figures.save_plot(path, result, **{"query": result.query, **options})
    if isinstance(result, HeadMetrics):
        metrics = [result.sort] if result.sort else result.shown_metrics or list(result.metrics)
        return figures.save_heads_plot(path, result, **{"metrics": metrics, **options})
    if isinstance(result, Card | Cards):
        return figures.save_card_plot(path, result, **options)
    if isinstance(result, Audit):
        return figures.save_audit_plot(path, result, **options)
    if isinstance(result, AttentionMasks):
        return figures.save_masks_plot(path, result, **options)
    return figures.save_scaling_plot(path, result, **options)


def _page(result: Any, **options: Any) -> str:
    """Return a page of a result: its interactive page, or else what a notebook shows."""
    if isinstance(result, AttentionMaps):
        from attnscope.models.maps.drawing import maps_page

        return maps_page(result, **options)
    if isinstance(result, HeadMetrics):
        from attnscope.render.heads import heads_page

        return heads_page(result, **options)
    from attnscope.document.page.document import document
    from attnscope.render.notebook.html import html

    if isinstance(result, Audit):
        from attnscope.auditing.picture import subjects
        from attnscope.auditing.svg import data_of

        data = [None if picture is None else data_of(picture) for _, picture in subjects(result)]
        title = f"{result.name} · audit"
        return document(title, html(result), script="influence.js", data=data, **options)
    title = f"{result.title} · masks" if isinstance(result, AttentionMasks) else repr(result)
    return document(title, html(result), **options)


def _text(result: Any, kind: str) -> str:
    """Return a result as JSON, CSV or Markdown, as its command prints it."""
    if kind == ".json":
        return result.to_json()
    from attnscope.render.records import records

    return records.csv_text(result) if kind == ".csv" else records.markdown_text(result)
